"""What the page says about kernels, results, regimes and elements, as text and drawings ready to be placed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verify.records.record import (
    UNPROVEN,
    ClassFigures,
    Figures,
    KernelRun,
    LawRun,
    Number,
    Result,
    Run,
    Worst,
    replay_command,
    value_of,
)
from verify.report import run_words, words
from verify.report.html import against, curve_plot, plot
from verify.report.judged import limit_of, on_average, remedy

if TYPE_CHECKING:
    from markupsafe import Markup

GRADIENT_LAWS = ("gradcheck", "gradgradcheck")


@dataclass(frozen=True)
class FiguresView:
    """One implementation's figures over one region, as text."""

    maximum: str
    p999: str
    misrounded: str
    nonfinite: str


@dataclass(frozen=True)
class RegimeView:
    """One region: the kernel beside PyTorch."""

    name: str
    region: str
    n: str
    measured: FiguresView
    baseline: FiguresView | None
    strip: Markup
    bad: bool


@dataclass(frozen=True)
class WorstView:
    """One bad element."""

    index: str
    inputs: str
    got: str
    got_hex: str
    truth: str
    error: str
    replay: str
    regions: str = ""  # whose worst element this is


@dataclass(frozen=True)
class SpecialView:
    """One special input and what came out."""

    inputs: str
    got: str
    truth: str
    standing: str
    replay: str


@dataclass(frozen=True)
class ResultView:
    """One output or gradient in one dtype."""

    title: str
    standing: str
    label: str
    maximum: str
    trouble: str  # the maximum, or what is wrong where the maximum is in order
    basis: str
    basis_short: str
    limit: str
    p999: str
    mean: str
    misrounded: str
    misrounded_share: str
    average: str
    nonfinite: str
    reason: str
    remedy: str
    truth: str
    scaled: bool
    baseline: str
    baseline_name: str
    baseline_worst: WorstView | None
    classes: list[ClassView]
    regimes: list[RegimeView]
    histogram: Markup
    worst: list[WorstView]
    curve: Markup | str
    operand: str
    special: list[SpecialView]
    special_wrong: int
    hardest: list[dict[str, str]]
    trend: Markup | str
    source: str
    bits: str


@dataclass(frozen=True)
class ClassView:
    """The maximum of one result on one class of inputs."""

    name: str
    maximum: str
    limit: str
    baseline: str
    bad: bool


@dataclass(frozen=True)
class LawView:
    """One law in one dtype: kept, broken or not applicable, with what was found."""

    law: str
    dtype: str
    standing: str
    word: str
    cases: str
    message: str
    facts: list[tuple[str, str]]
    replay: str


@dataclass(frozen=True)
class LawsView:
    """The laws of one kernel: broken ones in full, kept ones by name, the others by their reason."""

    gradients: list[LawView]
    broken: list[LawView]
    kept: list[tuple[str, str]]
    skipped: list[tuple[str, str]]
    counts: str


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
    printed: list[str]  # the lines of what it printed
    seconds: str
    rerun: str
    results: list[ResultView]
    laws: LawsView
    summary: str
    peer: bool
    stands_in: bool  # PyTorch in the place of another kernel, beside whose figures it stands as well
    page: str  # the command that writes a page with all of this kernel


def kernel_view(run: Run, index: int, history: against.History | None = None) -> KernelView:
    """The section of one kernel."""
    kernel = run.kernels[index]
    results = [result_view(kernel, result, f"{index}.{place}", history) for place, result in enumerate(kernel.results)]
    standing = run_words.standing(kernel)
    return KernelView(
        anchor=f"kernel-{index}",
        name=run_words.name_of(kernel),
        standing=standing,
        word=run_words.STATUS_WORD[kernel.status if not kernel.peer else "peer"],
        call=words.call(kernel.op, kernel.params),
        target=words.clean(kernel.target),
        promise=words.clean(kernel.promise),
        message=[*_differs(kernel), *(words.clean_lines(kernel.message) if kernel.message else [])],
        hint=run_words.advice(kernel),
        notes=run_words.notes_of(kernel),
        printed=words.clean_lines(kernel.printed.text) if kernel.printed else [],
        seconds=words.seconds(kernel.seconds),
        rerun=run_words.rerun(kernel),
        results=results,
        laws=_laws(kernel.laws),
        summary=run_words.summary(kernel),
        peer=kernel.peer,
        stands_in="@" in kernel.target,
        page=f"verify report RUN.json --html report.html --whole {shlex.quote(words.clean(kernel.name))}",
    )


def _differs(kernel: KernelRun) -> list[str]:
    """That the calls of a kernel differ, and what follows from it."""
    if not kernel.unrepeatable:
        return []
    return [words.clean(f"Not deterministic: {kernel.unrepeatable}"), *filter(None, [run_words.besides(kernel)])]


def _laws(laws: Sequence[LawRun]) -> LawsView:
    kept: dict[str, list[str]] = {}
    for law in laws:
        if law.status == "ok" and law.law not in GRADIENT_LAWS:
            kept.setdefault(law.law, []).append(f"{law.dtype} {words.plural(law.cases, 'case')}")
    found = [law.status for law in laws]
    return LawsView(
        gradients=[_law(law) for law in laws if law.law in GRADIENT_LAWS and law.status != "skipped"],
        broken=[_law(law) for law in laws if law.status == "broken" and law.law not in GRADIENT_LAWS],
        kept=[(words.clean(name), words.clean(", ".join(where))) for name, where in kept.items()],
        skipped=run_words.skipped_laws(laws),
        counts=", ".join(f"{found.count(key):,} {word}" for key, word in run_words.LAW_WORD.items() if key in found),
    )


def _law(law: LawRun) -> LawView:
    return LawView(
        law=words.clean(law.law),
        dtype=words.clean(law.dtype),
        standing="wrong" if law.status == "broken" else law.status,
        word=run_words.LAW_WORD[law.status],
        cases=f"{law.cases:,}",
        message=words.clean(law.message),
        facts=[(words.clean(name), words.clean(value)) for name, value in law.facts.items()],
        replay=words.clean(replay_command(law.origin)),
    )


def result_view(kernel: KernelRun, result: Result, at: str = "", history: against.History | None = None) -> ResultView:
    """One result of a kernel; `at` is where it stands in the embedded record."""
    scaled = result.gate != "plain"
    unit = words.UNIT[result.gate]
    maximum = run_words.maximum(result.figures, result.gate)
    trouble = run_words.trouble(result)
    title = f"{words.clean(result.output)} {words.clean(result.dtype)}"
    baseline = "" if result.baseline is None else run_words.maximum(result.baseline, result.gate)
    n, missed = result.figures.n, result.figures.misrounded
    return ResultView(
        title=title,
        standing=run_words.standing(kernel, result),
        label=run_words.label(kernel, result),
        maximum=maximum if maximum == "NaN" else maximum + unit,
        trouble=trouble if trouble == result.reason else trouble.replace(" ULP", unit, 1),
        basis=words.basis_of(result),
        basis_short=words.basis_of(result, short=True),
        limit=limit_of(result),
        p999=words.ulp(run_words.judged(result.figures, result.gate).p999),
        mean=words.ulp(result.figures.mean),
        misrounded=f"{missed:,} of {n:,} ({words.share(missed, n)})" + words.open_elements(result.figures),
        misrounded_share=words.share(missed, n),
        average=on_average(result),
        nonfinite=f"{result.figures.nonfinite:,}" if result.figures.nonfinite else "",
        reason=words.clean(result.reason),
        remedy=remedy(result) if result.status in UNPROVEN else "",
        truth=_truth(result),
        scaled=scaled,
        baseline=baseline if baseline in ("", "NaN") else baseline + unit,
        baseline_name=words.clean(result.baseline_name) or "PyTorch",
        baseline_worst=worst_view(result.baseline_worst[0], result) if result.baseline_worst else None,
        classes=[_class(result, each, unit) for each in result.classes],
        regimes=[_regime(result, index) for index in range(len(result.regimes))],
        histogram=plot.histogram_svg(result.histogram, name=f"{words.clean(kernel.name)} {title}", at=at),
        worst=_elements(result),
        curve=_curve(result, f"{words.clean(kernel.name)} {title}", at),
        operand="" if result.curve is None else words.clean(result.curve.operand),
        special=[
            SpecialView(
                inputs=run_words.named_values(item.inputs),
                got=words.clean(item.got),
                truth=words.truth(item.truth),
                standing=item.status,
                replay=words.clean(replay_command(item.origin)),
            )
            for item in result.special
        ],
        special_wrong=sum(item.status == "wrong" for item in result.special),
        hardest=[
            {
                "inputs": run_words.named_values(item.inputs),
                "truth": words.truth(item.truth),
                "distance": words.decimal(item.distance),
            }
            for item in result.hardest
        ],
        trend=_trend(against.trend(history, kernel, result), result, title),
        source="" if result.source == "run" else result.source,
        bits=words.clean(result.bits),
    )


def _curve(result: Result, name: str, at: str) -> Markup | str:
    if result.curve is None:
        return ""
    return curve_plot.curve_svg(result.curve, result.limit, result.dtype, name=name, at=at)


def _trend(values: Sequence[Number], result: Result, title: str) -> Markup | str:
    if not values:
        return ""
    listing = ", ".join(words.ulp(value) for value in values)
    return curve_plot.spark(values, result.limit, label=f"Maximum of {title} over {len(values)} runs: {listing}")


def _truth(result: Result) -> str:
    if result.certificate == "exact":
        return "Truth: exact arithmetic throughout."
    settled = f"; {words.plural(result.escalated, 'element')} settled in exact arithmetic" if result.escalated else ""
    return f"Truth: float64, certificate: {words.clean(result.certificate)}{settled}."


def _regime(result: Result, index: int) -> RegimeView:
    regime = result.regimes[index]
    measured = run_words.judged(regime.figures, result.gate)
    baseline = None if regime.baseline is None else run_words.judged(regime.baseline, result.gate)
    bad = not (value_of(measured.upper) <= result.limit)
    return RegimeView(
        name=words.clean(regime.name),
        region=words.region(regime),
        n=f"{regime.figures.n:,}",
        measured=_figures(regime.figures, result),
        baseline=None if regime.baseline is None else _figures(regime.baseline, result),
        strip=plot.strip(measured.upper, None if baseline is None else baseline.upper, result.limit, bad=bad),
        bad=bad,
    )


def _class(result: Result, found: ClassFigures, unit: str) -> ClassView:
    return ClassView(
        name=words.clean(found.name),
        maximum=run_words.of_class(result, found.name),
        limit="no promise" if found.limit is None else f"{words.decimal(found.limit)}{unit}",
        baseline="" if found.baseline is None else run_words.maximum(found.baseline, result.gate),
        bad=bool(found.reason),
    )


def _figures(figures: Figures, result: Result) -> FiguresView:
    return FiguresView(
        maximum=run_words.maximum(figures, result.gate),
        p999=words.ulp(run_words.judged(figures, result.gate).p999),
        misrounded=words.share(figures.misrounded, figures.n),
        nonfinite=f"{figures.nonfinite:,}" if figures.nonfinite else "",
    )


def _elements(result: Result) -> list[WorstView]:
    """The worst elements of all, then those of regions that are not among them."""
    regions: list[tuple[Worst, list[str]]] = [(item, []) for item in result.worst]
    for part in result.regimes:
        if part.worst is None:
            continue
        known = next((names for item, names in regions if item == part.worst), None)
        if known is None:
            regions.append((part.worst, [part.name]))
        else:
            known.append(part.name)
    return [worst_view(item, result, words.clean(", ".join(names))) for item, names in regions]


def worst_view(item: Worst, result: Result, regions: str = "") -> WorstView:
    """One bad element."""
    return WorstView(
        index=run_words.index_text(item),
        inputs=run_words.inputs_text(item),
        got=words.clean(item.got),
        got_hex=words.clean(item.got_hex),
        truth=words.truth(item.truth),
        error=run_words.error_text(item, result.gate),
        replay=words.clean(replay_command(item.origin)),
        regions=regions,
    )
