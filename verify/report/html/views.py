"""Makes the views of kernels, results, regimes and elements: text and drawings for the templates.

Each view is a namespace, whose fields `assets/*.j2` read.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING

from verify.records.record import UNPROVEN, Figures, LawRun, Number, Result, Worst, replay_command, value_of
from verify.report import result_words, words
from verify.report.html import against, curve_plot, plot
from verify.report.present import LAW_WORD, KernelFacts, ResultFacts, law_counts, skipped_laws
from verify.report.result_words import judged, limit_of, on_average, remedy

if TYPE_CHECKING:
    from markupsafe import Markup

GRADIENT_LAWS = ("gradcheck", "gradgradcheck")


def kernel_view(kernel: KernelFacts, history: against.History | None = None) -> SimpleNamespace:
    """The section of one kernel. `stands_in` is PyTorch in the place of another kernel, shown beside that one too."""
    run = kernel.run
    return SimpleNamespace(
        anchor=f"kernel-{kernel.index}",
        name=kernel.name,
        standing=kernel.standing,
        word="peer" if run.peer else kernel.word,
        call=kernel.call,
        target=words.clean(run.target),
        promise=words.clean(run.promise),
        message=[*_differs(kernel), *(words.clean_lines(run.message) if run.message else [])],
        hint=kernel.advice,
        notes=kernel.notes,
        printed=words.clean_lines(run.printed.text) if run.printed else [],
        seconds=words.seconds(run.seconds),
        rerun=kernel.rerun,
        results=[result_view(each, f"{kernel.index}.{n}", history) for n, each in enumerate(kernel.results)],
        laws=_laws(run.laws),
        summary=kernel.summary,
        peer=run.peer,
        stands_in="@" in run.target,
        page=f"verify report RUN.json --html report.html --whole {shlex.quote(words.clean(run.name))}",
    )


def _differs(kernel: KernelFacts) -> list[str]:
    """That the calls of a kernel differ, and what follows from it."""
    if not kernel.run.unrepeatable:
        return []
    return [words.clean(f"Not deterministic: {kernel.run.unrepeatable}"), *filter(None, [kernel.besides()])]


def _laws(laws: Sequence[LawRun]) -> SimpleNamespace:
    """The laws of one kernel: broken ones in full, kept ones by name, the others by their reason."""
    kept: dict[str, list[str]] = {}
    for law in laws:
        if law.status == "ok" and law.law not in GRADIENT_LAWS:
            kept.setdefault(law.law, []).append(f"{law.dtype} {words.plural(law.cases, 'case')}")
    return SimpleNamespace(
        gradients=[_law(law) for law in laws if law.law in GRADIENT_LAWS and law.status != "skipped"],
        broken=[_law(law) for law in laws if law.status == "broken" and law.law not in GRADIENT_LAWS],
        kept=[(words.clean(name), words.clean(", ".join(where))) for name, where in kept.items()],
        skipped=skipped_laws(laws),
        counts=law_counts(laws),
    )


def _law(law: LawRun) -> SimpleNamespace:
    return SimpleNamespace(
        law=words.clean(law.law),
        dtype=words.clean(law.dtype),
        standing="wrong" if law.status == "broken" else law.status,
        word=LAW_WORD[law.status],
        cases=f"{law.cases:,}",
        message=words.clean(law.message),
        facts=[(words.clean(name), words.clean(value)) for name, value in law.facts.items()],
        replay=words.clean(replay_command(law.origin)),
    )


def result_view(each: ResultFacts, at: str = "", history: against.History | None = None) -> SimpleNamespace:
    """One result of a kernel; `at` is its place in the embedded record."""
    result, figures, unit = each.result, each.result.figures, words.UNIT[each.result.gate]
    trouble = result_words.trouble(result)
    title = f"{words.clean(result.output)} {words.clean(result.dtype)}"
    named = f"{words.clean(each.owner.run.name)} {title}"
    baseline = "" if result.baseline is None else result_words.maximum(result.baseline, result.gate)
    missed = words.share(figures.misrounded, figures.n)
    return SimpleNamespace(
        title=title,
        standing=each.standing,
        label=each.label,
        maximum=each.figure,
        trouble=trouble if trouble == result.reason else trouble.replace(" ULP", unit, 1),
        basis=words.basis_of(result),
        basis_short=words.basis_of(result, short=True),
        limit=limit_of(result),
        p999=words.ulp(judged(figures, result.gate).p999),
        mean=words.ulp(figures.mean),
        misrounded=f"{figures.misrounded:,} of {figures.n:,} ({missed})" + words.open_elements(figures),
        misrounded_share=missed,
        average=on_average(result),
        nonfinite=f"{figures.nonfinite:,}" if figures.nonfinite else "",
        reason=words.clean(result.reason),
        remedy=remedy(result) if result.status in UNPROVEN else "",
        truth=_truth(result),
        baseline=baseline if baseline in ("", "NaN") else baseline + unit,
        baseline_name=words.clean(result.baseline_name) or "PyTorch",
        baseline_worst=worst_view(result.baseline_worst[0], result) if result.baseline_worst else None,
        classes=_classes(each, unit),
        regimes=[_regime(result, index) for index in range(len(result.regimes))],
        histogram=plot.histogram_svg(result.histogram, name=named, at=at),
        worst=_elements(result),
        curve=_curve(result, named, at),
        operand="" if result.curve is None else words.clean(result.curve.operand),
        special=[
            SimpleNamespace(
                inputs=result_words.named_values(item.inputs),
                got=words.clean(item.got),
                truth=words.truth(item.truth),
                standing=item.status,
                replay=words.clean(replay_command(item.origin)),
            )
            for item in result.special
        ],
        special_wrong=sum(item.status == "wrong" for item in result.special),
        hardest=[
            SimpleNamespace(
                inputs=result_words.named_values(item.inputs),
                truth=words.truth(item.truth),
                distance=words.decimal(item.distance),
            )
            for item in result.hardest
        ],
        trend=_trend(against.trend(history, each), result, title),
        source="" if result.source == "run" else result.source,
        bits=words.clean(result.bits),
    )


def _classes(each: ResultFacts, unit: str) -> list[SimpleNamespace]:
    """The maximum on each class of inputs that occurs."""
    return [
        SimpleNamespace(
            name=words.clean(found.name),
            maximum=each.classes[found.name],
            limit="no promise" if found.limit is None else f"{words.decimal(found.limit)}{unit}",
            baseline="" if found.baseline is None else result_words.maximum(found.baseline, each.result.gate),
            bad=bool(found.reason),
        )
        for found in each.result.classes
    ]


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


def _regime(result: Result, index: int) -> SimpleNamespace:
    regime = result.regimes[index]
    measured = judged(regime.figures, result.gate)
    baseline = None if regime.baseline is None else judged(regime.baseline, result.gate)
    bad = not (value_of(measured.upper) <= result.limit)
    return SimpleNamespace(
        name=words.clean(regime.name),
        region=words.region(regime),
        n=f"{regime.figures.n:,}",
        measured=_figures(regime.figures, result),
        baseline=None if regime.baseline is None else _figures(regime.baseline, result),
        strip=plot.strip(measured.upper, None if baseline is None else baseline.upper, result.limit, bad=bad),
        bad=bad,
    )


def _figures(figures: Figures, result: Result) -> SimpleNamespace:
    return SimpleNamespace(
        maximum=result_words.maximum(figures, result.gate),
        misrounded=words.share(figures.misrounded, figures.n),
    )


def _elements(result: Result) -> list[SimpleNamespace]:
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


def worst_view(item: Worst, result: Result, regions: str = "") -> SimpleNamespace:
    """One bad element."""
    return SimpleNamespace(
        index=result_words.index_text(item),
        inputs=result_words.inputs_text(item),
        got=words.clean(item.got),
        got_hex=words.clean(item.got_hex),
        truth=words.truth(item.truth),
        error=result_words.error_text(item, result.gate),
        replay=words.clean(replay_command(item.origin)),
        regions=regions,
    )
