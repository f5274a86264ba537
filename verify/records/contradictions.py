"""Finds impossible facts in a record: figures that no set of elements has, or a status that contradicts its figures.

When verify makes a record, such a contradiction is an error of the harness, and the kernel gets no verdict. When it
reads a file, it refuses the file.
"""

import math
import re
from collections.abc import Iterator

from verify.records.readings import APART, BEYOND, FEWEST, NONFINITE, RMS_LIMIT, judged
from verify.records.record import EXTREME, RESULT_STATUSES, UNPROVEN, Figures, KernelRun, Number, Result, Run, value_of

ROUNDED_UP = 1.01  # rounding up to three digits enlarges a number by at most this factor
Found = Iterator[tuple[str, str]]  # the place below the object that is checked, and the contradiction


def contradictions(kernel: KernelRun) -> Found:
    """Yields the contradictions in one kernel, each with its place below it."""
    asked: dict[str, str] = {}
    for at, result in enumerate(kernel.results):
        place = f".results[{at}]"
        yield from ((place + below, text) for below, text in _of_result(result))
        known = asked.setdefault(result.properties, result.source) if result.properties else result.source
        if known != result.source:  # a hash covers the choice of inputs, which differs between commands
            yield f"{place}.source", f"a {result.source} has the property hash {result.properties} of a {known}"
        judged_kernel = kernel.status in RESULT_STATUSES and not kernel.peer
        if judged_kernel and RESULT_STATUSES.index(result.status) > RESULT_STATUSES.index(kernel.status):
            yield f"{place}.status", f'"{result.status}", and the kernel {kernel.name} is "{kernel.status}"'
    if kernel.status in ("interrupted", "skipped") and kernel.results:
        yield ".status", f'"{kernel.status}", and the kernel {kernel.name} has results'
    if kernel.status in UNPROVEN and all(each.status == "ok" for each in kernel.results):
        yield ".status", f'"{kernel.status}", and no result of the kernel {kernel.name} is'
    for at, law in enumerate(kernel.laws):
        if kernel.status in ("ok", *UNPROVEN) and law.status == "broken":
            yield f".laws[{at}].status", f'"broken", and the kernel {kernel.name} is "{kernel.status}"'


def contradictions_of(run: Run) -> Found:
    """Yields the contradictions in a whole run, each with its place below it."""
    gaps = {gap.target for gap in run.incomplete}
    for at, kernel in enumerate(run.kernels):
        yield from ((f".kernels[{at}]{place}", text) for place, text in contradictions(kernel))
        if kernel.status == "interrupted" and kernel.target not in gaps:
            yield f".kernels[{at}].status", f'"interrupted", and nothing in the run is missing of {kernel.name}'


def _of_result(result: Result) -> Found:
    """Yields the contradictions in one result, each with its place below it."""
    regimes = [(f".regimes[{at}]", part) for at, part in enumerate(result.regimes)]
    parts = [("", ".figures", result.figures)]
    parts += [(part.name, f"{place}.figures", part.figures) for place, part in regimes]
    classes = [(f".classes[{at}]", each) for at, each in enumerate(result.classes)]
    figures_at = {place: figures for _, place, figures in parts} | {f"{at}.figures": of.figures for at, of in classes}
    theirs = {".baseline": result.baseline} | {f"{place}.baseline": part.baseline for place, part in regimes}
    inside = [(place, _of_figures(figures)) for place, figures in (figures_at | theirs).items() if figures]
    inside += [(".basis", _of_basis(result))]
    inside += [(".histogram", _of_bins(result.histogram.edges, result.histogram.counts, result.figures.n))]
    if result.curve is not None:
        inside += [(".curve", _of_bins(result.curve.edges, result.curve.counts, result.figures.n))]
    inside += [("", _of_errors(result)), ("", _of_sums(result))]
    for place, found in inside:
        yield from ((place + below, text) for below, text in found)
    limits = [(".limit", result.limit), (".ulp_limit", result.ulp_limit)]
    for place, limit in limits + [(f"{place}.limit", each.limit) for place, each in classes]:
        if limit is not None and not limit >= 0:
            yield place, f"a limit is at least 0, and this is {limit:g}"
    if result.status in UNPROVEN and not result.reason:
        yield ".reason", f'empty beside the status "{result.status}"'
    if result.status == "ok":
        for at, each in classes:
            rms = each.figures.rms if result.gate == "noise" and each.figures.weighed >= FEWEST else None
            if rms is not None and each.limit is not None and not rms <= RMS_LIMIT:
                yield f"{at}.figures.rms", f'{rms:g} beside the status "ok" with the limit {RMS_LIMIT:g}'
            # of a vacuous result, and at extreme inputs, open ones may be accepted
            if each.figures.open and each.name != EXTREME and each.limit is not None and not result.trivial:
                yield f"{at}.figures", f'{each.figures.open:,} elements are open beside the status "ok"'
        alike = all(each.limit == result.limit for each in result.classes)
        # If no number is extreme, the record does not say which limit infinite inputs have.
        silent = result.classes and all(each.name != EXTREME for each in result.classes)
        unknown = (BEYOND, NONFINITE) if silent else (BEYOND,)
        promised: list[tuple[str, str, Figures, float | None]]
        promised = [(at, name, each, result.limit) for name, at, each in parts if alike and name not in unknown]
        promised += [(at, "", each.figures, each.limit) for at, each in classes]
        for place, name, figures, limit in promised:
            if figures.nonfinite and name != NONFINITE and limit is not None:
                yield place, f'{figures.nonfinite:,} elements are not finite beside the status "ok"'
            if figures.open and name != NONFINITE and limit is not None and not result.trivial and not result.classes:
                yield place, f'{figures.open:,} elements are open beside the status "ok"'
            endless = name == NONFINITE and figures.nonfinite
            error = math.inf if endless else judged(figures, result.gate)
            # not (x <= limit): a NaN must not be ok
            if figures.n and limit is not None and not error <= limit:
                yield place, f'a maximum of {error:g} ULP beside the status "ok" with the limit {limit:g}'
    yield from _of_worst(result)


def _of_sums(result: Result) -> Found:
    """Checks that the regimes add up to the whole, because every element lies in one regime.

    A hunt is not checked: it counts cases, and its figures are of their elements.
    """
    if not result.regimes or result.source == "hunt":
        return
    whole = sum(part.figures.n for part in result.regimes)
    finite = sum(part.figures.n for part in result.regimes if part.name not in APART)
    classed = sum(each.figures.n for each in result.classes) if result.classes else finite
    if classed != finite:
        yield ".classes", f"the classes add up to {classed:,} elements, the regimes to {finite:,}"
    for what, said, total in (("basis", result.basis.n, whole), ("figures", result.figures.n, finite)):
        if said != total:
            yield ".regimes", f"the regimes add up to {total:,} elements, n of the {what} is {said:,}"


def _of_basis(result: Result) -> Found:
    """Checks the number of inputs of an exhaustive result: all numbers of a format or all pairs of them.

    A packed result has two elements for each of these. Two kinds of results may have fewer inputs, but more than one: a
    sweep of a range, which the name of the output shows, and a quantiser, whose limit is 0. A quantiser is tried with
    all magnitudes of a block or an element.
    """
    basis, dtype = result.basis, result.dtype
    if basis.kind == "exhaustive" and (bits := re.search(r"float(\d+)", dtype)):
        numbers = 1 << int(bits[1])
        part = result.source == "sweep" and " (" in result.output and 1 < basis.n < 2 * numbers**2
        part = part or (result.limit == 0 and 1 < basis.n < numbers**2)
        if basis.n not in (numbers, 2 * numbers, numbers**2, 2 * numbers**2) and not part:
            yield ".n", f"exhaustive over {basis.n:,} inputs, and {dtype} has {numbers:,} numbers"


def _of_bins(edges: list[Number], counts: list[int], n: int) -> Found:
    if len(edges) != len(counts) + 1:
        yield ".edges", f"{len(edges)} edges of {len(counts)} bins"
    if min(counts, default=0) < 0 or sum(counts) != n:
        yield ".counts", f"the counts add up to {sum(counts):,}, the figures are of {n:,} elements"


def _of_errors(result: Result) -> Found:
    """Checks that histogram and curve have no error beyond the maximum.

    A hunt is not checked: its histogram counts estimates of the errors, and its maximum is exact.
    """
    if result.source == "hunt":
        return
    top, edges = value_of(result.figures.max_upper), [value_of(edge) for edge in result.histogram.edges]
    bins = zip(edges, edges[1:], result.histogram.counts, strict=False)
    seen = [(".histogram.counts", min(abs(low), abs(high))) for low, high, n in bins if n and low * high > 0]
    if result.curve is not None:
        seen += [(".curve.max_ulp", value_of(error) / ROUNDED_UP) for error in result.curve.max_ulp]
    for place, error in seen:
        if error > top:
            yield place, f"an error of at least {error:g} ULP, and no element exceeds {top:g}"


def _of_figures(figures: Figures) -> Found:
    """Yields negative errors, impossible counts, and maxima beyond their upper end."""
    for name in ("max_ulp", "max_upper", "p999", "mean", "scaled_max", "scaled_upper", "scaled_p999"):
        if (value := getattr(figures, name)) is not None and value_of(value) < 0:
            yield f".{name}", f"an error is at least 0, and this is {value}"
    for name in ("n", "misrounded", "undecided", "open", "nonfinite"):
        if not 0 <= getattr(figures, name) <= figures.n:
            yield f".{name}", f"{getattr(figures, name):,} of {figures.n:,} elements"
    for name, upper in (("max_ulp", figures.max_upper), ("scaled_max", figures.scaled_upper)):
        seen = getattr(figures, name)
        if seen is not None and upper is not None and value_of(seen) > value_of(upper):
            yield f".{name}", f"a maximum of {seen}, and no element exceeds {upper}"


def _of_worst(result: Result) -> Found:
    """Checks that no listed element is worse than the maximum of its regime or result."""
    listed = [(f".regimes[{at}].worst", part.worst, [part.figures]) for at, part in enumerate(result.regimes)]
    if result.regimes or result.basis.n == result.figures.n:  # otherwise infinite inputs were omitted with their regime
        among = [result.figures, *(part.figures for part in result.regimes)]
        listed += [(f".worst[{at}]", worst, among) for at, worst in enumerate(result.worst)]
    if result.baseline is not None:
        among = [result.baseline]
        listed += [(f".baseline_worst[{at}]", worst, among) for at, worst in enumerate(result.baseline_worst)]
    for place, worst, among in listed:
        # A NaN result makes the maximum NaN, and its element has an infinite error.
        uppers = [value_of(figures.max_upper) for figures in among]
        top = math.inf if any(map(math.isnan, uppers)) else max(uppers)
        if worst is not None and abs(value_of(worst.ulp)) > top:
            yield f"{place}.ulp", f"an error of {worst.ulp} ULP, and no element exceeds {top:g}"
