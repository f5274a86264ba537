"""The table of docs/public-kernels.md: python -m benchmarks.public_kernels RUN.json ... --page docs/public-kernels.md

RUN.json are the records of `verify run examples/public/*.py --json RUN.json` on a machine with the packages: one, or
several. What a kernel has in several of them is shown from the first that has it.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.like_rules import write
from verify.records import files
from verify.records.record import CLASSES, KernelRun, Result, Run
from verify.report import run_words

DTYPES = ("float32", "bfloat16", "float16")


def table(runs: Sequence[Run]) -> str:
    """A row for each result: its largest errors by class in each dtype, and PyTorch's on ordinary inputs."""
    run, environment = runs[0], runs[0].environment
    found = _merged(runs)
    kernels = sorted(found.values(), key=lambda each: each.target.partition("::")[0])
    where = environment["gpu"] if run.backend == "cuda" else f"Triton's interpreter on {environment['cpu']}"
    versions = f"torch {environment['torch']}, triton {environment['triton']}"
    lines = [f"{where}; {versions}; seed {run.seed}.", ""]
    lines += ["| kernel | s / dtype | result | " + " | ".join(DTYPES) + " |", "|---" * (3 + len(DTYPES)) + "|"]
    project = ""
    for kernel in kernels:
        if kernel.status in ("skipped", "interrupted") or not (kernel.results or kernel.unmeasured or kernel.message):
            continue
        file = Path(kernel.target.partition("::")[0]).stem
        if file != project:
            project = file
            lines.append(f"| **{file}** |" + " |" * (2 + len(DTYPES)))
        lines += _rows(kernel)
    first = {kernel.target: each for each in reversed(runs) for kernel in each.kernels if kernel.results}
    told = [(kernel.target, text) for each in runs for kernel, text in run_words.limits_of(each)
            if first.get(kernel.target, each) is each]  # fmt: skip
    refused = [f"- `{target.removeprefix('examples/public/')}`: {text}" for target, text in dict.fromkeys(told)]
    return (
        "\n".join([*lines, *(["", "Sizes and inputs that a kernel does not take:", "", *refused] if refused else [])])
        + "\n"
    )


def _merged(runs: Sequence[Run]) -> dict[str, KernelRun]:
    """Each kernel with the results of all runs; `seconds` are those of one dtype in the first run that has any."""
    found: dict[str, KernelRun] = {}
    for kernel in itertools.chain.from_iterable(run.kernels for run in runs):
        dtypes = {result.dtype for result in kernel.results}
        now = msgspec.structs.replace(kernel, seconds=kernel.seconds / max(len(dtypes), 1))
        known = found.get(kernel.target)
        if known is None or not known.results:
            told = now.results or known is None or known.status == "interrupted"
            found[kernel.target] = now if told else known
            continue
        have = {(result.output, result.dtype) for result in known.results}
        more = [result for result in kernel.results if (result.output, result.dtype) not in have]
        found[kernel.target] = msgspec.structs.replace(known, results=[*known.results, *more])
    return found


def _rows(kernel: KernelRun) -> list[str]:
    if not kernel.results:
        return [f"| {kernel.name} | | {kernel.status} |" + " |" * len(DTYPES)]
    rows = []
    for output in dict.fromkeys(result.output for result in kernel.results):
        found = {result.dtype: result for result in kernel.results if result.output == output}
        cells = [_cell(found[dtype]) if dtype in found else "" for dtype in DTYPES]
        shown = f"{kernel.name} | {kernel.seconds:.1f}" if not rows else " | "
        rows.append(f"| {shown} | {output} | " + " | ".join(cells) + " |")
    return rows


def _cell(result: Result) -> str:
    classes = " · ".join(run_words.of_class(result, name) for name in CLASSES)
    return f"{classes} ({run_words.baseline_of(result)})"


def main() -> None:
    """The command of the docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="+")
    parser.add_argument("--page", type=Path, required=True)
    options = parser.parse_args()
    write(options.page, "public kernels", table([files.load(path) for path in options.run]))


if __name__ == "__main__":
    main()
