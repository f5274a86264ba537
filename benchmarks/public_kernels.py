"""The verdicts on public kernels: python -m benchmarks.public_kernels RUN.json... [--page docs/public-kernels.md]

RUN.json is the record of `verify run examples/public/*.py --json RUN.json` on a machine with the packages, or with the
files of their kernels (benchmarks/kernel_files.py). The verdicts are compared with examples/public/expected.toml. If
several records hold a kernel, the last one that has a verdict on it counts. --page writes the table of verdicts into a
page, --figures all figures of the first record.
"""

from __future__ import annotations

import argparse
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.like_rules import write
from verify.records import files
from verify.records.record import CLASSES, KernelRun, Result, Run
from verify.report import result_words
from verify.report.present import present

DTYPES = ("float32", "bfloat16", "float16")
EXPECTED = Path(__file__).parents[1] / "examples" / "public" / "expected.toml"
#: What a run says of a kernel that is right, and of one that has a fault.
WORDS = {
    "right": {"pass": "right, passes", "wrong": "FALSE ALARM", "none": "right, no verdict"},
    "fault": {"pass": "FAULT NOT SEEN", "wrong": "fault, named", "none": "fault, no verdict"},
}


def table(run: Run) -> str:
    """A row for each result: its largest errors by class in each dtype, and PyTorch's on ordinary inputs."""
    environment = run.environment
    where = environment["gpu"] if run.backend == "cuda" else f"Triton's interpreter on {environment['cpu']}"
    versions = f"torch {environment['torch']}, triton {environment['triton']}"
    lines = [f"{where}; {versions}; seed {run.seed}.", ""]
    lines += ["| kernel | s / dtype | result | " + " | ".join(DTYPES) + " |", "|---" * (3 + len(DTYPES)) + "|"]
    project = ""
    for kernel in sorted(run.kernels, key=lambda each: each.target.partition("::")[0]):
        if kernel.status in ("skipped", "interrupted") or not (kernel.results or kernel.unmeasured or kernel.message):
            continue
        file = Path(kernel.target.partition("::")[0]).stem
        if file != project:
            project = file
            lines.append(f"| **{file}** |" + " |" * (2 + len(DTYPES)))
        lines += _rows(kernel)
    told = dict.fromkeys((kernel.run.target, text) for kernel, text in present(run).limits)
    refused = [f"- `{target.removeprefix('examples/public/')}`: {text}" for target, text in told]
    return (
        "\n".join([*lines, *(["", "Sizes and inputs that a kernel does not take:", "", *refused] if refused else [])])
        + "\n"
    )


def _rows(kernel: KernelRun) -> list[str]:
    if not kernel.results:
        return [f"| {kernel.name} | | {kernel.status} |" + " |" * len(DTYPES)]
    seconds = kernel.seconds / len({result.dtype for result in kernel.results})
    rows = []
    for output in dict.fromkeys(result.output for result in kernel.results):
        found = {result.dtype: result for result in kernel.results if result.output == output}
        cells = [_cell(found[dtype]) if dtype in found else "" for dtype in DTYPES]
        shown = f"{kernel.name} | {seconds:.1f}" if not rows else " | "
        rows.append(f"| {shown} | {output} | " + " | ".join(cells) + " |")
    return rows


def _cell(result: Result) -> str:
    classes = " · ".join(result_words.of_class(result, name) for name in CLASSES)
    return f"{classes} ({result_words.baseline_of(result)})"


def judged(run: Run, kernel: KernelRun) -> tuple[str, str]:
    """Returns "pass", "wrong", "none" or "skipped" for a kernel, and the reason in a line."""
    reasons = [f"{each.output} {each.dtype}: {each.reason}" for each in kernel.results if each.status != "ok"]
    gaps = [f"{gap.kind}: {gap.text}" for gap in run.incomplete if gap.target == kernel.target]
    why = " | ".join([*([kernel.message] if kernel.message else []), *reasons, *gaps])
    broken = kernel.status in ("wrong", "error", "crashed") and " raised " not in kernel.message
    if broken or any(each.status == "wrong" for each in kernel.results):
        return "wrong", why
    kinds = {gap.kind for gap in run.incomplete if gap.target == kernel.target}
    if "interrupted" in kinds:
        return "skipped", why  # some of its dtypes alone were judged
    if kinds - {"refused"}:
        return "none", why  # some of its cases alone
    return {"ok": "pass", "skipped": "skipped"}.get(kernel.status, "none"), why


def compared(run: Run, expected: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str, str, str]]:
    """Yields each kernel of which something is expected, with that, what the run makes of it, and why."""
    for kernel in run.kernels:
        path, _, name = kernel.target.partition("::")
        if said := expected.get(Path(path).stem, {}).get(name):
            fault, _, where = said.partition(" on ")
            said = "right" if where not in ("", run.backend) else fault
            verdict, why = judged(run, kernel)
            yield f"{Path(path).stem}::{name}", said, WORDS[said.split()[0]].get(verdict, verdict), why


def judged_last(row: tuple[str, str, str, str]) -> int:
    """Returns a sort key: kernels that were skipped, then those without a verdict, then all others."""
    return 0 if row[2] == "skipped" else 1 if row[2].endswith("no verdict") else 2


def found_in(runs: Sequence[Run]) -> list[tuple[str, str, str, str]]:
    """Returns the kernels of some records, compared; the last record that has a verdict on a kernel counts."""
    expected = tomllib.loads(EXPECTED.read_text())
    order = [f"{stem}::{name}" for stem, said in expected.items() if stem != "faults" for name in said]
    rows = sorted((row for run in runs for row in compared(run, expected)), key=judged_last)
    found = {row[0]: row for row in rows}
    return [found[name] for name in order if name in found]


def verdicts(runs: Sequence[Run]) -> str:
    """A line for each kernel that is not as expected, and counts of all."""
    faults, found = tomllib.loads(EXPECTED.read_text())["faults"], found_in(runs)
    counts = Counter(word for _, _, word, _ in found)
    lines = [f"{len(found)} kernels of {len({name.split('::')[0] for name, *_ in found})} files", ""]
    lines += [f"{count:4}  {word}" for word, count in sorted(counts.items())]
    named = {said.split()[1] for _, said, word, _ in found if word == "fault, named"}
    unseen = sorted({said.split()[1] for _, said, *_ in found if said != "right"} - named, key=int)
    lines += ["", f"faults named: {len(named)}"] + [f"not named: {each}, {faults[each]}" for each in unseen]
    for word in sorted(counts):
        if word not in ("right, passes", "skipped"):
            lines += ["", word.upper(), *(f"  {name}: {why[:300]}" for name, _, one, why in found if one == word)]
    return "\n".join(lines)


def found_table(runs: Sequence[Run]) -> str:
    """A row for each file: how many kernels are right and pass, which faults were named, and what is different."""
    expected, rows = tomllib.loads(EXPECTED.read_text()), dict[str, list[tuple[str, str, str, str]]]()
    faults = expected.pop("faults")
    for row in found_in(runs):
        rows.setdefault(row[0].split("::")[0], []).append(row)
    lines = ["| file | right, and pass | faults, and named | not so |", "|---|---|---|---|"]
    for stem, some in rows.items():
        right = [word for _, said, word, _ in some if said == "right" and word != "skipped"]
        wrong = [word for _, said, word, _ in some if said != "right" and word != "skipped"]
        other = [f"{name.split('::')[1]}: {word.lower()}" for name, _, word, _ in some]
        other = [each for each in other if not each.endswith(("right, passes", "fault, named", "skipped"))]
        counts = [
            f"{each.count(good)} of {len(each)}" if each else "-"
            for each, good in ((right, "right, passes"), (wrong, "fault, named"))
        ]
        lines.append(f"| {stem} | " + " | ".join([*counts, "; ".join(other)]) + " |")
    lines += ["", "| | fault | kernels |", "|---|---|---|"]
    for number, text in faults.items():
        told = (f"fault {number}", f"fault {number} on cuda")
        of = [f"`{stem}::{name}`" for stem, said in expected.items() for name, word in said.items() if word in told]
        lines.append(f"| {number} | {text} | {', '.join(of)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command of the docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--figures", action="store_true")
    options = parser.parse_args()
    runs = [files.load(each) for each in options.runs]
    print(verdicts(runs))
    if options.page is not None and options.figures:
        write(options.page, "public kernels", table(runs[0]))
    elif options.page is not None:
        write(options.page, "public verdicts", found_table(runs))


if __name__ == "__main__":
    main()
