"""The report as one HTML file that needs nothing else: no server, no network, no other file.

The page's policy forbids every request, and style and script run only because their hashes are in
it. The record is embedded as JSON; the page reads replay commands from there: they are stored once.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec

from verify.record import Figures, KernelRun, LawRun, Result, Run, Worst, value_of
from verify.report import plot, verdict, words
from verify.report.signs import GLYPHS

if TYPE_CHECKING:
    from markupsafe import Markup

RANK = {"wrong": 6, "crashed": 5, "timeout": 4, "error": 3, "skipped": 2, "ok": 1, "peer": 0}
COLUMNS = (  # key, heading, numeric
    ("kernel", "Kernel", False),
    ("output", "Result", False),
    ("dtype", "Dtype", False),
    ("max", "Max ULP", True),
    ("basis", "Basis", True),
    ("p999", "p99.9", True),
    ("misrounded", "Misrounded", True),
    ("baseline", "PyTorch max", True),
    ("verdict", "Verdict", True),
)


@dataclass(frozen=True)
class Cell:
    """What a table cell shows, and what numeric columns are sorted by (empty sorts last)."""

    text: str
    key: str = ""


@dataclass(frozen=True)
class Row:
    """One line of the table: a result, or a kernel that has none."""

    anchor: str
    standing: str
    cells: dict[str, Cell]
    strip: Markup | None
    call: str


@dataclass(frozen=True)
class FiguresView:
    """One implementation's figures over one region, as text."""

    maximum: str
    p999: str
    misrounded: str
    nonfinite: str


@dataclass(frozen=True)
class RegimeView:
    """One region: ours beside PyTorch's."""

    name: str
    region: str
    n: str
    ours: FiguresView
    theirs: FiguresView | None
    strip: Markup
    bad: bool


@dataclass(frozen=True)
class WorstView:
    """One bad element. Its replay command stays in the embedded record, where the page finds it."""

    index: str
    inputs: str
    got: str
    got_hex: str
    truth: str
    error: str
    replay: str


@dataclass(frozen=True)
class ResultView:
    """One output or gradient in one dtype; `path` is where it stands in the embedded record."""

    path: str
    title: str
    standing: str
    label: str
    maximum: str
    basis: str
    limit: str
    p999: str
    mean: str
    misrounded: str
    nonfinite: str
    reason: str
    truth: str
    scaled: bool
    baseline: str
    baseline_name: str
    baseline_worst: WorstView | None
    regimes: list[RegimeView]
    histogram: Markup
    worst: list[WorstView]


@dataclass(frozen=True)
class LawView:
    """One law in one dtype: kept, broken or not applicable, with what was found."""

    law: str
    dtype: str
    standing: str
    word: str
    cases: str
    message: str
    facts: list[str]
    replay: str


@dataclass(frozen=True)
class KernelView:
    """One kernel: its section of the page."""

    anchor: str
    name: str
    standing: str
    word: str
    call: str
    target: str
    promise: str
    message: list[str]
    hint: str
    notes: list[str]
    seconds: str
    rerun: str
    results: list[ResultView]
    laws: list[LawView]
    summary: str


def render(run: Run) -> str:
    """The whole page."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    style, script = asset("report.css"), asset("report.js")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(asset("report.html.j2"))
    worst = verdict.worst_result(run)
    kernels = [_kernel(run, index) for index in range(len(run.kernels))]
    return template.render(
        policy=policy(style, script),
        style=Markup(style),
        script=Markup(script),
        record=embedded(run),
        run=run,
        state={"pass": "ok", "fail": "wrong", "incomplete": "skipped"}[run.verdict],
        sign=GLYPHS,
        word=verdict.STATUS_WORD,
        clauses=verdict.clauses(run),
        sentence=verdict.sentence(run),
        setting=verdict.setting(run),
        command_line=words.clean(run.command),
        created=words.clean(run.created).replace("T", " ").replace("Z", " UTC").replace("+00:00", " UTC"),
        identity=words.clean(run.id),
        counts=_counts(run),
        worst=None if worst is None else _headline(run, worst),
        failures=[_failure(kernel) for kernel in verdict.failures(run)],
        missing=verdict.not_measured(run),
        next_command=verdict.next_command(run),
        columns=COLUMNS,
        rows=rows(run),
        kernels=kernels,
        environment=words.flat(run.environment),
    )


def asset(name: str) -> str:
    """A file of the assets folder; newlines as browsers see them, or the hash would not match."""
    text = files("verify.report").joinpath("assets", name).read_text(encoding="utf-8")
    return text.replace("\r\n", "\n")


def policy(style: str, script: str) -> str:
    """The Content-Security-Policy: nothing is fetched, and only our own style and script apply."""

    def hashed(text: str) -> str:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        return f"'sha256-{digest}'"

    return (
        f"default-src 'none'; style-src {hashed(style)}; script-src {hashed(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def embedded(run: Run) -> Markup:
    """The record as JSON in ASCII that cannot end its script element: the same value."""
    from markupsafe import Markup

    text = msgspec.json.encode(run, order="sorted").decode()
    # outside its strings JSON has none of these characters, so each may become an escape
    return Markup(re.sub("[<>&]|[^\0-\x7f]", lambda match: _escape(match[0]), text))


def _escape(char: str) -> str:
    return f"\\u{ord(char):04x}" if char in "<>&" else json.dumps(char)[1:-1]


def rows(run: Run) -> list[Row]:
    """All lines of the table, worst first: the order in which the page opens."""
    found: list[tuple[tuple[float, ...], Row]] = []
    for index, kernel in enumerate(run.kernels):
        anchor = f"kernel-{index}"
        for result in kernel.results:
            standing = verdict.standing(kernel, result)
            order = (-RANK[standing], *(-part for part in verdict.badness(result)))
            found.append((order, _row(anchor, standing, kernel, result)))
        if not kernel.results or kernel.status not in ("ok", "wrong"):
            standing = verdict.standing(kernel)
            found.append(((-RANK[standing],), _bare_row(anchor, standing, kernel)))
    # the sort is stable: equal rows keep the order of the record
    return [row for _, row in sorted(found, key=lambda pair: pair[0])]


def _row(anchor: str, standing: str, kernel: KernelRun, result: Result) -> Row:
    figures = verdict.judged(result.figures, result.gate)
    baseline = None if result.baseline is None else verdict.judged(result.baseline, result.gate)
    scaled = " scaled" if result.gate == "scaled" else ""
    cells = {
        "kernel": Cell(verdict.name_of(kernel)),
        "output": Cell(words.clean(result.output)),
        "dtype": Cell(words.clean(result.dtype)),
        "max": Cell(verdict.maximum(result.figures, result.gate) + scaled, sort_key(figures.upper)),
        "basis": Cell(words.basis(result.basis), str(result.basis.n)),
        "p999": Cell(words.ulp(figures.p999), sort_key(figures.p999)),
        "misrounded": Cell(
            words.share(result.figures.misrounded, result.figures.n),
            f"{result.figures.misrounded / max(result.figures.n, 1):.9g}",
        ),
        "baseline": Cell("", "")
        if baseline is None or result.baseline is None
        else Cell(verdict.maximum(result.baseline, result.gate), sort_key(baseline.upper)),
        "verdict": Cell(verdict.label(kernel, result), str(RANK[standing])),
    }
    strip = plot.strip(
        figures.upper,
        None if baseline is None else baseline.upper,
        result.limit,
        bad=standing == "wrong",
    )
    return Row(anchor, standing, cells, strip, words.call(kernel.op, kernel.params))


def _bare_row(anchor: str, standing: str, kernel: KernelRun) -> Row:
    cells = {key: Cell("", "") for key, _, _ in COLUMNS}
    cells["kernel"] = Cell(verdict.name_of(kernel))
    cells["verdict"] = Cell(verdict.STATUS_WORD[kernel.status], str(RANK[standing]))
    return Row(anchor, standing, cells, None, words.call(kernel.op, kernel.params))


def sort_key(value: Any) -> str:
    """A number that scripts compare: NaN above infinity above every finite one."""
    number = value_of(value)
    if math.isnan(number):
        return "Infinity"
    return "1e308" if math.isinf(number) else repr(abs(number))


def _counts(run: Run) -> list[tuple[str, str, str]]:
    """(standing, figure, noun) for the line under the verdict."""
    found = verdict.counts(run)
    nouns = {**verdict.STATUS_WORD, "error": "raised"}
    nouns["peer"] = "peer" if found.get("peer") == 1 else "peers"
    labels = [verdict.kind(kernel, result) for kernel in run.kernels if not kernel.peer for result in kernel.results]
    line = [("", f"{len(run.kernels):,}", "kernel" if len(run.kernels) == 1 else "kernels")]
    line += [(status, f"{count:,}", nouns[status]) for status, count in found.items()]
    line.append(("", f"{len(labels):,}", "result" if len(labels) == 1 else "results"))
    for earned, noun in (("rounded", "correctly rounded"), ("faithful", "faithful")):
        if earned in labels:
            line.append(("ok", f"{sum(item == earned for item in labels):,}", noun))
    return line


def _headline(run: Run, found: verdict.Found) -> dict[str, Any]:
    kernel_index = run.kernels.index(found.kernel)
    result_index = found.kernel.results.index(found.result)
    view = None
    if found.worst is not None:
        view = _worst(found.worst, found.result)
    result = _result(run, kernel_index, result_index)
    return {
        "kernel": verdict.name_of(found.kernel),
        "anchor": f"kernel-{kernel_index}",
        "result": result,
        "element": view,
    }


def _failure(kernel: KernelRun) -> dict[str, Any]:
    return {
        "name": verdict.name_of(kernel),
        "standing": verdict.standing(kernel),
        "word": verdict.STATUS_WORD[kernel.status],
        "message": words.clean_lines(kernel.message) if kernel.message else [],
        "hint": words.clean(kernel.hint),
        "rerun": verdict.rerun(kernel),
    }


def _kernel(run: Run, index: int) -> KernelView:
    kernel = run.kernels[index]
    results = [_result(run, index, position) for position in range(len(kernel.results))]
    standing = verdict.standing(kernel)
    return KernelView(
        anchor=f"kernel-{index}",
        name=verdict.name_of(kernel),
        standing=standing,
        word=verdict.STATUS_WORD[kernel.status if not kernel.peer else "peer"],
        call=words.call(kernel.op, kernel.params),
        target=words.clean(kernel.target),
        promise=words.clean(kernel.promise),
        message=words.clean_lines(kernel.message) if kernel.message else [],
        hint=words.clean(kernel.hint),
        notes=[words.clean(note) for note in kernel.notes],
        seconds=words.seconds(kernel.seconds),
        rerun=verdict.rerun(kernel),
        results=results,
        laws=[_law(law) for law in kernel.laws],
        summary=", ".join(f"{result.title}: {result.label}" for result in results),
    )


def _law(law: LawRun) -> LawView:
    return LawView(
        law=words.clean(law.law),
        dtype=words.clean(law.dtype),
        standing="wrong" if law.status == "broken" else law.status,
        word=verdict.LAW_WORD[law.status],
        cases=f"{law.cases:,}",
        message=words.clean(law.message),
        facts=[f"{words.clean(name)}: {words.clean(value)}" for name, value in law.facts.items()],
        replay=words.clean(law.replay),
    )


def _result(run: Run, kernel_index: int, result_index: int) -> ResultView:
    kernel = run.kernels[kernel_index]
    result = kernel.results[result_index]
    path = f"{kernel_index}.{result_index}"
    scaled = result.gate == "scaled"
    unit = " ULP scaled" if scaled else " ULP"
    maximum = verdict.maximum(result.figures, result.gate)
    title = f"{words.clean(result.output)} {words.clean(result.dtype)}"
    theirs = "" if result.baseline is None else verdict.maximum(result.baseline, result.gate)
    n, missed = result.figures.n, result.figures.misrounded
    return ResultView(
        path=path,
        title=title,
        standing=verdict.standing(kernel, result),
        label=verdict.label(kernel, result),
        maximum=maximum if maximum == "NaN" else maximum + unit,
        basis=words.basis(result.basis),
        limit=f"{words.decimal(result.limit)}{unit}",
        p999=words.ulp(verdict.judged(result.figures, result.gate).p999),
        mean=words.ulp(result.figures.mean),
        misrounded=f"{missed:,} of {n:,} ({words.share(missed, n)})",
        nonfinite=f"{result.figures.nonfinite:,}" if result.figures.nonfinite else "",
        reason=words.clean(result.reason),
        truth=_truth(result),
        scaled=scaled,
        baseline=theirs if theirs in ("", "NaN") else theirs + unit,
        baseline_name=words.clean(result.baseline_name) or "PyTorch",
        baseline_worst=_worst(result.baseline_worst[0], result) if result.baseline_worst else None,
        regimes=[_regime(result, index) for index in range(len(result.regimes))],
        histogram=plot.histogram_svg(result.histogram, name=f"{words.clean(kernel.name)} {title}", path=path),
        worst=[_worst(item, result) for item in result.worst],
    )


def _truth(result: Result) -> str:
    if result.certificate == "exact":
        return "Truth: exact arithmetic throughout."
    settled = f"; {words.plural(result.escalated, 'element')} settled in exact arithmetic" if result.escalated else ""
    return f"Truth: float64, certificate: {words.clean(result.certificate)}{settled}."


def _regime(result: Result, index: int) -> RegimeView:
    regime = result.regimes[index]
    ours = verdict.judged(regime.figures, result.gate)
    theirs = None if regime.baseline is None else verdict.judged(regime.baseline, result.gate)
    bad = not (value_of(ours.upper) <= result.limit)
    return RegimeView(
        name=words.clean(regime.name),
        region=words.region(regime),
        n=f"{regime.figures.n:,}",
        ours=_figures(regime.figures, result),
        theirs=None if regime.baseline is None else _figures(regime.baseline, result),
        strip=plot.strip(ours.upper, None if theirs is None else theirs.upper, result.limit, bad=bad),
        bad=bad,
    )


def _figures(figures: Figures, result: Result) -> FiguresView:
    return FiguresView(
        maximum=verdict.maximum(figures, result.gate),
        p999=words.ulp(verdict.judged(figures, result.gate).p999),
        misrounded=words.share(figures.misrounded, figures.n),
        nonfinite=f"{figures.nonfinite:,}" if figures.nonfinite else "",
    )


def _worst(item: Worst, result: Result) -> WorstView:
    return WorstView(
        index=verdict.index_text(item),
        inputs=verdict.inputs_text(item),
        got=words.clean(item.got),
        got_hex=words.clean(item.got_hex),
        truth=words.clean(item.truth),
        error=verdict.error_text(item, result.gate),
        replay=words.clean(item.replay),
    )
