"""Makes drawings, and groups of laws and elements, for the templates of the HTML report.

A view is a namespace. Templates read all other facts from `facts` and `record` in it, and the page cleans every text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

from verify.records.record import LawRun, RegimeFigures, Result, Worst, replay_command, value_of
from verify.records.recorded import judged
from verify.report import result_words, words
from verify.report.html import plot
from verify.report.present import KernelFacts, ResultFacts, law_counts

GRADIENT_LAWS = ("gradcheck", "gradgradcheck")


Replay = Callable[[ResultFacts, Worst], str]  # returns the command that shows an element again


def kernel_view(kernel: KernelFacts, replay: Replay | None = None) -> SimpleNamespace:
    """Returns the section of one kernel. `replay` shortens commands if the record lies beside the page."""
    run, differs = kernel.run, list[str]()
    if run.unrepeatable:
        differs = [words.clean(f"Not deterministic: {run.unrepeatable}"), *filter(None, [kernel.besides()])]
    return SimpleNamespace(
        facts=kernel,
        record=run,
        anchor=kernel.anchor,
        message=[*differs, *(words.clean_lines(run.message) if run.message else [])],
        printed=words.clean_lines(run.printed.text) if run.printed else [],
        results=[result_view(each, replay) for each in kernel.results],
        laws=_laws(run.laws),
    )


def _laws(laws: Sequence[LawRun]) -> SimpleNamespace:
    """Returns the laws of one kernel: broken ones in full, kept ones by name, the others by their reason."""
    kept: dict[str, list[str]] = {}
    skipped: dict[str, dict[str, list[str]]] = {}  # by reason and law: its dtypes
    for law in laws:
        if law.status == "skipped":
            skipped.setdefault(law.message or "no reason was recorded", {}).setdefault(law.law, []).append(law.dtype)
        if law.status == "ok" and law.law not in GRADIENT_LAWS:
            kept.setdefault(law.law, []).append(f"{law.dtype} {words.plural(law.cases, 'case')}")
    return SimpleNamespace(
        gradients=[law for law in laws if law.law in GRADIENT_LAWS and law.status != "skipped"],
        broken=[law for law in laws if law.status == "broken" and law.law not in GRADIENT_LAWS],
        kept=[(name, ", ".join(where)) for name, where in kept.items()],
        skipped=[
            (reason, ", ".join(f"{name} ({', '.join(dtypes)})" for name, dtypes in names.items()))
            for reason, names in skipped.items()
        ],
        counts=law_counts(laws),
    )


def result_view(each: ResultFacts, replay: Replay | None = None) -> SimpleNamespace:
    """Returns the view of one result of a kernel."""
    result, unit = each.result, words.UNIT[each.result.gate]
    title = f"{words.clean(result.output)} {words.clean(result.dtype)}"
    named = f"{words.clean(each.owner.run.name)} {title}"
    baseline = "" if result.baseline is None else result_words.maximum(result.baseline, result.gate)
    return SimpleNamespace(
        facts=each,
        record=result,
        title=title,
        unit=unit,
        truth=_truth(result),
        baseline=baseline if baseline in ("", "NaN") else baseline + unit,
        baseline_worst=worst_view(result.baseline_worst[0], result) if result.baseline_worst else None,
        histogram=plot.histogram_svg(result.histogram, name=named),
        worst=_elements(each, replay),
        curve=plot.curve_svg(result.curve, result.limit, result.dtype, name=named) if result.curve else "",
        special_wrong=sum(item.status == "wrong" for item in result.special),
    )


def finding_view(each: ResultFacts) -> SimpleNamespace:
    """Returns one result with the element that shows its error."""
    result = each.result
    return SimpleNamespace(
        facts=each,
        record=result,
        title=f"{result.output} {result.dtype}",
        trouble=result_words.trouble(result, unit=words.UNIT[result.gate]),
        element=None if each.worst is None else worst_view(each.worst, result),
    )


def _truth(result: Result) -> str:
    if result.certificate == "exact":
        return "Truth: exact arithmetic throughout."
    settled = f"; {words.plural(result.escalated, 'element')} settled in exact arithmetic" if result.escalated else ""
    return f"Truth: float64, {result.certificate}{settled}."


def region(part: RegimeFigures, result: Result) -> SimpleNamespace:
    """Returns the errors of one region on a scale, and whether they are beyond the limit."""
    measured = judged(part.figures, result.gate)
    theirs = None if part.baseline is None else judged(part.baseline, result.gate).upper
    bad = not (value_of(measured.upper) <= result.limit)
    return SimpleNamespace(strip=plot.strip(measured.upper, theirs, result.limit, bad=bad), bad=bad)


def _elements(each: ResultFacts, replay: Replay | None) -> list[SimpleNamespace]:
    """Returns the worst elements of all, then those of regions that are not among them."""
    result = each.result
    regions: list[tuple[Worst, list[str]]] = [(item, []) for item in result.worst]
    for part in result.regimes:
        if part.worst is None:
            continue
        known = next((names for item, names in regions if item == part.worst), None)
        if known is None:
            regions.append((part.worst, [part.name]))
        else:
            known.append(part.name)
    return [
        worst_view(item, result, ", ".join(names), "" if replay is None else replay(each, item))
        for item, names in regions
    ]


def worst_view(item: Worst, result: Result, regions: str = "", replay: str = "") -> SimpleNamespace:
    """Returns the view of one bad element."""
    return SimpleNamespace(
        record=item,
        index=result_words.index_text(item),
        inputs=result_words.inputs_text(item),
        truth=words.truth(item.truth),
        error=result_words.error_text(item, result.gate, counts=result.counts),
        replay=replay or replay_command(item.origin),
        regions=regions,
    )
