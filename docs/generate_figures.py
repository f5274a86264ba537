"""Fills the marked sections of README.md and docs/*.md with tables from the record files.

    python docs/generate_figures.py            write the sections
    python docs/generate_figures.py --check    exit 1 if one of them differs

A section stands between `<!-- figures: NAME -->` and `<!-- /figures -->`. Its figures come from the record of the
nightly run under reports/published/sm_90/, from the same cases on the interpreter under reports/published/interpreter/
and from the benchmarks under reports/benchmarks/sm_90/; where such a file
does not exist, the section says that nothing is published. No figure is typed by hand in a section.
"""

from __future__ import annotations

import functools
import gzip
import json
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))


from benchmarks.fuzz_programs import LINES  # noqa: E402
from benchmarks.start import importing  # noqa: E402
from docs import contract_tables, generate_findings, kernel_speed  # noqa: E402
from docs.kernel_speed import table  # noqa: E402
from verify.records import files  # noqa: E402
from verify.records.compare import Comparison, Pair, compare  # noqa: E402
from verify.records.readings import commit_of, inputs_of  # noqa: E402
from verify.records.record import CLASSES, Basis, Figures, KernelRun, Result, Run, value_of  # noqa: E402
from verify.report import words  # noqa: E402
from verify.report.result_words import judged  # noqa: E402

RUN = ROOT / "reports" / "published" / "sm_90" / "run.json.gz"
INTERPRETED = ROOT / "reports" / "published" / "interpreter" / "run.json.gz"  # the same cases without a GPU
BENCHMARKS = ROOT / "reports" / "benchmarks" / "sm_90"
SECTION = re.compile(r"^(<!-- figures: ([\w ]+) -->\n)(.*?)^(<!-- /figures -->)$", re.DOTALL | re.MULTILINE)
OPENING = re.compile(r"^<!-- figures:", re.MULTILINE)

Table = tuple[Sequence[str], Iterable[Sequence[str]]]


def pages() -> list[Path]:
    """Every page that may hold a section."""
    return [ROOT / "README.md", *sorted(HERE.glob("*.md"))]


def updated(text: str) -> str:
    """The text with every section filled anew."""
    found = SECTION.findall(text)
    if len(found) != len(OPENING.findall(text)):
        raise ValueError("a section `<!-- figures: NAME -->` has no `<!-- /figures -->`")
    for _, name, _, _ in found:
        if name not in SECTIONS:
            raise ValueError(f"no figures are called {name!r}; there are: {', '.join(SECTIONS)}")
    return SECTION.sub(lambda match: match[1] + SECTIONS[match[2]]() + match[4], text)


# -- the published run ----------------------------------------------------------------------------------


def _published() -> Run | None:
    """Returns the published night."""
    return _load(RUN) if RUN.exists() else None


_load = functools.cache(files.load)  # several sections are about the same record


def of_run(render: Callable[[Run], str]) -> Callable[[], str]:
    """A section about the published run, which says so when there is none."""

    def section() -> str:
        run = _published()
        return f"*No run is published yet: `{RUN.relative_to(ROOT)}` does not exist.*\n" if run is None else render(run)

    return section


def _setting(run: Run) -> str:
    """What was run where and when."""
    return f"`{run.command}` on {_where(run)}, {run.created[:10]}, record {run.id} in `{_folder()}`."


def _where(run: Run) -> str:
    about = {name: text for name, text in words.flat(run.environment) if text not in ("absent", "none")}
    named = [f"{label} {about[name]}" for name, label in _ABOUT.items() if about.get(name)]
    return ", ".join([_device(about), *named])


def _folder() -> str:
    folder = RUN.parent
    return str(folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder.name)


_ABOUT = {"driver": "driver", "torch": "torch", "triton": "Triton"}


def _device(about: dict[str, str]) -> str:
    return about.get("gpu") or about.get("gpu name") or about.get("cpu") or "an unnamed device"


def _judged(run: Run) -> list[KernelRun]:
    return [kernel for kernel in run.kernels if not kernel.peer and kernel.results]


def _maximum(result: Result, figures: Figures | None) -> float:
    """The figure that the op gates: plain, scaled, or a multiple of the noise."""
    return 0.0 if figures is None else value_of(judged(figures, result.gate).maximum)


def _order(value: float) -> float:
    """For sorting: NaN is the worst there is."""
    return float("inf") if value != value else value


def families(run: Run) -> str:
    """One line per family of judged kernels: the largest error known of any in each dtype, and PyTorch's."""
    dtypes = ("bfloat16", "float16", "float32")
    head = ["kernels", *(f"{dtype}{extra}" for dtype in dtypes for extra in ("", ", PyTorch"))]
    rows = []
    for start, title in FAMILIES.items():
        found = [r for kernel in _judged(run) if _family(kernel.name) == start for r in kernel.results]
        if found:
            of = [[result for result in found if result.dtype == dtype] for dtype in dtypes]
            rows.append([title, *(cell for results in of for cell in (_worst(results), _baseline(results)))])
    return table(head, rows) + "\n" + _setting(run) + " " + _verdict(run) + "\n"


def _family(name: str) -> str:
    return max((start for start in FAMILIES if name.startswith(start)), key=len, default="")


FAMILIES = {
    "gelu": "GELU, erf and tanh",
    "geglu": "GEGLU, both halves or split",
    "swiglu": "SwiGLU",
    "layer_norm": "layer norm, residual and bias",
    "rms_norm": "RMS norm, residual",
    "rms_norm_gated": "gated RMS norm",
    "linear": "linear + activation",
}


def _worst(results: list[Result]) -> str:
    if not results:
        return ""
    worst = max(results, key=lambda result: _order(_maximum(result, result.figures)))
    return f"**{words.ulp(_maximum(worst, worst.figures))}**{words.MARK[worst.gate]} ({words.basis_short(worst.basis)})"


def _baseline(results: list[Result]) -> str:
    with_baseline = [result for result in results if result.baseline is not None]
    if not with_baseline:
        return ""
    return words.ulp(max((_maximum(result, result.baseline) for result in with_baseline), key=_order))


def _verdict(run: Run) -> str:
    own = [kernel for kernel in run.kernels if not kernel.peer]
    broken = sum(law.status == "broken" for kernel in own for law in kernel.laws)
    cases = sum(law.cases for kernel in own for law in kernel.laws)
    wrong = sum(result.status == "wrong" for kernel in own for result in kernel.results)
    laws = f"; {words.plural(cases, 'case')} of laws, {broken:,} broken" if cases else ""
    return f"Verdict: {run.verdict}; {words.plural(wrong, 'result')} beyond its own limit{laws}."


def accuracy(run: Run) -> str:
    """Every result of every judged kernel: the largest error on cases or all inputs, and of what a hunt tried."""
    head = ["kernel", "result", "dtype", "max ULP", "basis", "misrounded", "limit", "PyTorch", "hunted"]
    rows = []
    for kernel in _judged(run):
        hunted = {(result.output, result.dtype): result for result in kernel.results if result.source == "hunt"}
        for result in _strongest([result for result in kernel.results if result.source != "hunt"]):
            found = hunted.get((result.output, result.dtype))
            figures = result.figures
            rows.append(
                [
                    f"`{kernel.name}`",
                    result.output,
                    result.dtype,
                    _bold(words.ulp(_maximum(result, figures)), result.status != "ok") + words.MARK[result.gate],
                    words.basis_short(result.basis),
                    words.share(figures.misrounded, figures.n),
                    words.decimal(result.limit),
                    words.ulp(_maximum(result, result.baseline)) if result.baseline else "",
                    f"{words.ulp(_maximum(found, found.figures))} ({words.basis_short(found.basis)})" if found else "",
                ]
            )
    return table(head, rows) + "\n" + _setting(run) + "\n"


def _strongest(results: list[Result]) -> list[Result]:
    """One result per output and dtype: the largest error, or of equal ones the one that rests on most."""
    chosen: dict[tuple[str, str], Result] = {}
    for result in results:
        key = (result.output, result.dtype)
        if key not in chosen or _weight(result) > _weight(chosen[key]):
            chosen[key] = result
    return list(chosen.values())


def _weight(result: Result) -> tuple[float, bool, int]:
    basis: Basis = result.basis
    return _order(_maximum(result, result.figures)), basis.kind == "exhaustive", basis.n


def sweeps(run: Run) -> str:
    """Every result that a sweep judged on all inputs."""
    head = ["kernel", "result", "dtype", "max ULP", "basis", "misrounded", "PyTorch"]
    rows = [
        [
            f"`{kernel.name}`",
            result.output,
            result.dtype,
            words.ulp(_maximum(result, result.figures)),
            words.basis_short(result.basis),
            words.share(result.figures.misrounded, result.figures.n),
            words.ulp(_maximum(result, result.baseline)) if result.baseline else "",
        ]
        for kernel in run.kernels
        for result in kernel.results
        if result.source == "sweep"
    ]
    if not rows:
        return "*The published run holds no sweep.*\n"
    return table(head, rows) + "\n" + _setting(run) + "\n"


def stages(run: Run) -> str:
    """What each stage of the published night did, and how long it took."""
    if not run.stages:
        return "*The published run is not a nightly run.*\n"
    rows = [[stage.name, stage.status, stage.message, words.seconds(stage.seconds)] for stage in run.stages]
    total = words.seconds(sum(stage.seconds for stage in run.stages))
    text = table(["stage", "status", "what was done", "time"], rows)
    return f"{text}\n{_setting(run)} {_verdict(run)} All stages together: {total}.\n"


def findings() -> str:
    """Lists the findings that have `front` in docs/findings.toml, with a GPU's answer, else the interpreter's."""
    places = [place["answers"] for _, place in sorted(json.loads(generate_findings.ANSWERS.read_text()).items())]
    lines = []
    for finding in generate_findings.findings():
        answer = next((answers[finding["id"]] for answers in places if finding["id"] in answers), None)
        if "front" in finding and answer:
            about, worst = finding["about"], answer["worst"]
            link = f"[{about}](docs/findings.md#{about.lower().replace(' ', '-')})"
            got, exact = worst["got"].replace("nan", "NaN"), f"{float(worst['truth']):.4g}"
            lines.append(f"- {link}: {finding['front']} in {finding['case']['dtype']}, {got} instead of {exact}\n")
    return "".join(lines)


# -- the published run and the interpreter --------------------------------------------------------------


def of_both(render: Callable[[Comparison], str]) -> Callable[[], str]:
    """A section about the published run beside the same cases on the interpreter."""

    def section() -> str:
        for path in (RUN, INTERPRETED):
            if not path.exists():
                shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
                return f"*Nothing is published yet: `{shown}` does not exist.*\n"
        return render(compare(_load(RUN), _load(INTERPRETED)))

    return section


_Name = tuple[str, str, str]  # kernel, dtype, result


def toolchains(found: Comparison) -> str:
    """One line per kernel and dtype: which results have the same bits on both, and the maxima of the others."""
    results = _compared(found)
    rows = []
    for kernel, dtypes in _by_kernel(results).items():
        whole = [dtype for dtype, names in dtypes.items() if _all_same(results, kernel, dtype, names)]
        if whole:
            count = sum(len(dtypes[dtype]) for dtype in whole)
            rows.append([f"`{kernel}`", ", ".join(whole), f"all {words.plural(count, 'result')}", ""])
        for dtype in (dtype for dtype in dtypes if dtype not in whole):
            pairs = {name: results[kernel, dtype, name] for name in dtypes[dtype]}
            same = ", ".join(name for name, group in pairs.items() if group[0].bits == "identical")
            other = "; ".join(_maxima(name, group) for name, group in pairs.items() if group[0].bits != "identical")
            rows.append([f"`{kernel}`", dtype, same or "none", other])
    text = table(["kernel", "dtype", "same bits", "other bits: largest error on the GPU, on the interpreter"], rows)
    return f"{text}\n{_counts(found, results)}\n\nGPU: {_about(found.base)}\nInterpreter: {_about(found.head)}\n"


def _compared(found: Comparison) -> dict[_Name, list[Pair]]:
    """The pairs of every result that `verify run` measured on the same cases of both."""
    results: dict[_Name, list[Pair]] = {}
    for pair in found.pairs:
        if pair.source == "run" and not pair.reason and pair.base is not None and pair.head is not None:
            results.setdefault((pair.key.kernel, pair.key.dtype, pair.key.output), []).append(pair)
    order = [(k.name, r.dtype, r.output) for k in found.head.kernels for r in k.results if r.source == "run"]
    return {name: results[name] for name in dict.fromkeys(order) if name in results}


def _by_kernel(results: Iterable[_Name]) -> dict[str, dict[str, list[str]]]:
    kernels: dict[str, dict[str, list[str]]] = {}
    for kernel, dtype, name in results:
        kernels.setdefault(kernel, {}).setdefault(dtype, []).append(name)
    return kernels


def _all_same(results: dict[_Name, list[Pair]], kernel: str, dtype: str, names: Iterable[str]) -> bool:
    return all(results[kernel, dtype, name][0].bits == "identical" for name in names)


def _maxima(name: str, pairs: Sequence[Pair]) -> str:
    gate = pairs[0].head.gate if pairs[0].head else "plain"
    sides = []
    for side in ("base", "head"):
        readings = [reading for pair in pairs if (reading := getattr(pair, side)) is not None]
        sides.append(words.ulp(max((reading.value for reading in readings), key=_order)))
    unit = words.MARK[gate]
    same = sides[0] == sides[1]
    return f"{name} {sides[0]}{unit} on both" if same else f"{name} {sides[0]}, {sides[1]}{unit}"


def _counts(found: Comparison, results: dict[_Name, list[Pair]]) -> str:
    alike = sum(pairs[0].bits == "identical" for pairs in results.values())
    elements = sum(_elements(pairs) for pairs in results.values())
    text = f"{alike:,} of {words.plural(len(results), 'result')} have the same bits, {elements:,} elements compared."
    apart = {
        (pair.key.kernel, pair.key.dtype, pair.key.output)
        for pair in found.pairs
        if pair.source == "run" and (pair.reason or pair.base is None or pair.head is None)
    }
    missing = len(apart - results.keys())
    text += f" Not measured on the same cases: {words.plural(missing, 'result')}." if missing else ""
    commits = {run.environment.get("commit") for run in (found.base, found.head)}
    return text + (" The records are of two commits: the kernels may differ too." if len(commits) > 1 else "")


def _elements(pairs: Iterable[Pair]) -> int:
    """The elements of all regimes; each lies in a class too."""
    classes = {inputs_of(name) for name in CLASSES}
    return sum(pair.head.figures.n for pair in pairs if pair.head is not None and pair.key.regime not in classes)


def _about(run: Run) -> str:
    about = run.environment
    where = about.get("gpu") if run.backend == "cuda" else "the interpreter"
    return (
        f"`{run.command}` on {where}, torch {about.get('torch')}, Triton {about.get('triton')}, {run.created[:10]}, "
        f"commit {commit_of(run)}, record {run.id}."
    )


def baselines(found: Comparison) -> str:
    """PyTorch's own largest error of any result on both, as far as the cases are the same."""
    results = _compared(found)
    theirs = [_baselines(run) for run in (found.base, found.head)]
    dtypes = ("bfloat16", "float16", "float32")
    rows = []
    for kernel, measured in _by_kernel(results).items():
        cells = [f"`{kernel}`"]
        for dtype in dtypes:
            names = [(kernel, dtype, name) for name in measured.get(dtype, [])]
            values = [[side[name] for name in names if name in side] for side in theirs]
            cells.append(", ".join(words.ulp(max(side, key=_order)) for side in values) if all(values) else "")
        rows.append(cells)
    versions = " and ".join(f"torch {run.environment.get('torch')}" for run in (found.base, found.head))
    text = table(["PyTorch in place of", *dtypes], rows)
    return f"{text}\nFirst on the GPU, then on the CPU ({versions}), on the inputs of the table above.\n"


def _baselines(run: Run) -> dict[_Name, float]:
    return {
        (kernel.name, result.dtype, result.output): _maximum(result, result.baseline)
        for kernel in _judged(run)
        for result in kernel.results
        if result.source == "run" and result.baseline is not None
    }


# -- benchmarks -----------------------------------------------------------------------------------------


def of_benchmark(*names: str, by: Callable[..., str]) -> Callable[[], str]:
    """A section about files of reports/benchmarks/sm_90/."""

    def section() -> str:
        paths = [BENCHMARKS / f"{name}.json" for name in names]
        for path in paths:
            if not path.exists():
                return f"*Not measured yet: `{path.relative_to(ROOT)}` does not exist.*\n"
        return by(*(json.loads(path.read_text(encoding="utf-8")) for path in paths))

    return section


def _bold(text: str, on: bool) -> str:
    return f"**{text}**" if on else text


def night_times(data: dict[str, Any]) -> str:
    """One night on several numbers of GPUs of one machine, stage by stage."""
    stages = list(data["rows"][0]["stages"])
    rows = [
        [str(row["gpus"]), *(f"{row['stages'][name]:.0f} s" for name in stages), f"{row['seconds']:,.0f} s"]
        for row in data["rows"]
    ]
    last, environment = data["rows"][-1], data["environment"]
    unlike = sorted({name for row in data["rows"] for name in row["differences"]})
    same = f"Only figures of {', '.join(unlike)} differ." if unlike else "All figures are equal."
    left_out = f"{data['hunts ended by the clock']} searches that the clock ended are not compared"
    return (
        table(["GPUs", *stages, "whole night"], rows)
        + f"\n{environment['gpu']}, {data['cores']} cores for each, torch {environment['torch']}: "
        + f"{last['gpus']} GPUs are {last['speedup']:.2f} times as fast. {same} {left_out} "
        + "([record](../reports/benchmarks/sm_90/nights.json)).\n"
    )


def hunts(data: dict[str, Any]) -> str:
    """Hunts beside random sampling with as many evaluations and with as much time: medians over the seeds."""
    rows = []
    for row in sorted(data["comparisons"], key=lambda item: item["kernel"].removeprefix("torch_")):
        unit = "scaled ULP" if row["gate"] == "scaled" else "ULP"
        largest = row["largest_input"]
        subject = f"`{row['kernel']}`" + (f", inputs up to {largest:,g}" if largest else "")
        found = [_digits(row[name]) for name in ("median_hunt", "median_random", "median_random_same_time")]
        ahead = f"{row['hunt_above_random_same_time']} of {row['seeds']}"
        rows.append([subject, f"2^{row['evaluations'].bit_length() - 1}", f"{found[0]} {unit}", *found[1:], ahead])
    about = data["environment"]
    text = table(["subject", "evaluations", "hunt", "random, as many", "random, as long", "hunt ahead"], rows)
    share = statistics.median(row["median_evaluations_to_match"] / row["evaluations"] for row in data["comparisons"])
    return (
        f"{text}\n{about['gpu']}, torch {about['torch']}; float32, medians. The hunts had passed what random sampling "
        f"found with all of its evaluations after {100 * share:.0f}% of their own (median).\n"
    )


def judge_times(data: dict[str, Any]) -> str:
    """How soon `verify judge` answers, and how many judgements a minute it makes: `python -m benchmarks.judge`."""
    about, many, limits = data["environment"], data["many"], data["limits"]
    each, large = [], data["large"]["sum"]
    for kind in ("quick", "ci"):
        took = ", ".join(f"{row['seconds']:.1f} s ({name})" for name, row in data[kind].items())
        each.append(f"`{kind}` took {took}, {limits[kind]:g} s wanted")
    return (
        f"On {about['gpu']} with {about['cores']} cores, where importing PyTorch takes {about['import_torch']:.1f} s: "
        f"{'; '.join(each)}. `--many` with {data['jobs']} jobs made {many['a_minute']:.0f} judgements a minute "
        f"({limits['many']:g} wanted), the first after {many['first']:.0f} s. A result of 4.3 GB took "
        f"{large['more']:.1f} s more than one of 16 KB ({limits['large']:g} wanted). `python -m benchmarks.judge` "
        "measures this ([record](../reports/benchmarks/sm_90/judge.json)).\n"
    )


def start_times(data: dict[str, Any]) -> str:
    """How soon a verdict comes, of one command and of a warm pool: `python -m benchmarks.start`.

    A record that was interrupted lacks some kinds of candidates.
    """
    about, limits = data["environment"], data["limits"]
    last = {kind: data[kind]["seconds"][-1] for kind in ("run", "elementwise", "row", "product") if kind in data}
    side, run = data["side"], data["run"]
    names = {
        "elementwise": f"an elementwise kernel of 2^{(side * side).bit_length() - 1} elements",
        "row": f"a softmax of {side:,} rows",
        "product": f"a product of {side:,} x {side:,} matrices",
    }
    each = [f"{last[kind]:.1f} s ({name}; {limits[kind]:g} wanted)" for kind, name in names.items() if kind in last]
    return (
        f"On {about['gpu']} with {about['cores']} cores, the next candidate of a warm pool takes {', '.join(each)}. "
        f"`verify run` of one small kernel takes {last['run']:.1f} s ({limits['run']:g} wanted), its imports "
        f"{importing(run):.1f} s ({limits['imports']:g} wanted): [record](../reports/benchmarks/sm_90/start.json) of "
        "`python -m benchmarks.start`.\n"
    )


def _digits(value: float) -> str:
    """Errors as the table of hunts shows them."""
    if value >= 1e6:
        return f"{value:.2g}"
    # ten digits where the figure touches a half: 0.5 and just above are two verdicts
    return f"{value:.10g}" if abs(value - 0.5) < 1e-6 else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


def mutants() -> str:
    """How many seeded bugs the laws and assert_close see, by machine: `python -m mutants --first --json`."""
    rows = []
    for path in sorted(BENCHMARKS.parent.glob("*/mutants.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        killed = f"{data['killed']} of {data['visible']}"
        seen = [
            sum(each.get(f"assert_close_{which}") == "caught" for each in data["mutants"])
            for which in ("default", "project")
        ]
        rows.append([f"[{data['device']}](../{path.relative_to(ROOT)})", data["profile"], killed, *map(str, seen)])
    return table(["machine", "profile", "killed by laws", "by assert_close", "with projects' tolerances"], rows)


def endurance() -> str:
    """Cases of laws on correct kernels: `python -m mutants.endurance --json`."""
    rows = []
    for path in sorted((*BENCHMARKS.parent.glob("endurance*.json"), *BENCHMARKS.parent.glob("*/endurance*.json"))):
        data = json.loads(path.read_text(encoding="utf-8"))
        about = f"[{', '.join(data['devices'])}](../{path.relative_to(ROOT)})"
        rows.append([about, f"{data['cases']:,}", str(len(data["laws"])), str(len(data["alarms"]))])
    return table(["record", "cases", "laws", "alarms"], rows)


def fuzz() -> str:
    """What random programs found: `python -m benchmarks.fuzz_programs --seed S --programs 2000 --json`."""
    records = [json.loads(gzip.decompress(path.read_bytes())) for path in sorted(BENCHMARKS.parent.glob("fuzz-*.gz"))]
    counts = [
        sum((Counter(row["counts"]) for row in record["rows"]), Counter({"programs": len(record["rows"])}))
        for record in records
    ]
    rows = [[name, *(f"{count[name]:,}" for count in counts)] for name in ("programs", *LINES)]
    share = [f"{100 * count['PyTorch passes'] / count['programs']:.1f}%" for count in counts]
    heads = [f"seed {record['seed']}" for record in records]
    return table(["", *heads], [*rows[:2], ["", *share], *rows[2:]])


def contracts() -> str:
    """Contracts found on a CPU and on a GPU: `python -m benchmarks.contracts --json`."""
    own, gpu = (
        json.loads((BENCHMARKS.parent / f"{arch}/contracts.json").read_text()) for arch in ("interpreter", "sm_90")
    )
    return contract_tables.contracts(own, gpu["pairs"])


SECTIONS: dict[str, Callable[[], str]] = {
    "families": of_run(families),
    "findings": findings,
    "accuracy": of_run(accuracy),
    "sweeps": of_run(sweeps),
    "stages": of_run(stages),
    "toolchains": of_both(toolchains),
    "baselines": of_both(baselines),
    "kernel promises": of_benchmark("everything", by=kernel_speed.promised),
    "kernel promises elsewhere": of_benchmark("everything-h200", "everything", by=kernel_speed.elsewhere),
    "norm speed": of_benchmark("everything", by=kernel_speed.elementwise("norms", "heads", "gated", "fp8")),
    "gate speed": of_benchmark("everything", by=kernel_speed.elementwise("gates", "gelu")),
    "linear speed": of_benchmark("everything", by=kernel_speed.linear),
    "host speed": of_benchmark("everything", by=kernel_speed.host),
    "wall speed": of_benchmark("elementwise-h200", by=kernel_speed.wall),
    "patched models": of_benchmark("llama-h200", by=kernel_speed.models),
    "block speed": of_benchmark("everything", by=kernel_speed.block),
    "night times": of_benchmark("nights", by=night_times),
    "hunts": of_benchmark("hunt", by=hunts),
    "judge times": of_benchmark("judge", by=judge_times),
    "start times": of_benchmark("start", by=start_times),
    "mutants": mutants,
    "endurance": endurance,
    "random programs": fuzz,
    "contracts": contracts,
}


def main(arguments: list[str]) -> int:
    """Fill the sections, or say whether they are current."""
    stale = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        filled = updated(text)
        if filled == text:
            continue
        stale.append(page.relative_to(ROOT))
        if arguments != ["--check"]:
            page.write_text(filled, encoding="utf-8")
    if arguments == ["--check"] and stale:
        print(f"not current: {', '.join(map(str, stale))}; run: python docs/generate_figures.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
