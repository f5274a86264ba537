"""Describes one result in words: its judged figures, PyTorch's, its limit and its worst elements."""

import math
from collections.abc import Mapping

from verify.records.figure import COUNTABLE, UNIT, rank, shown, signed
from verify.records.readings import decimal as number_of
from verify.records.record import CLASSES, ORDINARY, ClassFigures, Figures, Gate, Result, Worst, value_of
from verify.records.recorded import deciding, judged, largest
from verify.report.words import at_least, clean, decimal, interval, share, signed_ulp, truth, ulp

LOST = 100.0  # times the limit in ULP: a result in 16 bits is half as large or twice as large as the right one
HUGE = 65_504.0  # beyond this magnitude, squares and sums usually overflow
# By gate, an error that counts as none in a comparison with PyTorch; and the factor that is worth mentioning.
NOTHING, MANY = {"plain": 0.5, "scaled": 0.5, "noise": 1.0}, 8.0


def promised(result: Result) -> list[Figures]:
    """Returns the figures of the classes of inputs for which the kernel has a limit. Without classes it returns all."""
    known = [each.figures for each in result.classes if each.limit is not None]
    return known if known and len(known) < len(result.classes) else [result.figures]


def times_pytorch(result: Result, name: str = ORDINARY) -> float:
    """Returns how many times as large as PyTorch's the error in a class is. 1.0 if it is not worth a word."""
    for each in result.classes:
        if each.name == name and each.baseline is not None:
            sizes = (largest(of, result.gate) for of in (each.figures, each.baseline))
            own, theirs = (max(size, NOTHING[result.gate]) for size in sizes)
            return 1.0 if own <= MANY * theirs else own / theirs
    return 1.0


def is_wrong_as_pytorch(result: Result) -> bool:
    """True if PyTorch is beyond the limit, and hardly better, in each class of inputs where a result is wrong."""
    wrong = [each for each in result.classes if each.reason and each.limit is not None]
    return bool(wrong) and all(
        each.baseline is not None
        and not largest(each.baseline, result.gate) <= (each.limit or 0.0)
        and times_pytorch(result, each.name) == 1.0
        for each in wrong
    )


def beside_pytorch(result: Result) -> str:
    """Returns `worse than PyTorch 14 times` for ordinary inputs, `as PyTorch` for a wrong result, else ""."""
    if (times := times_pytorch(result)) != 1.0:
        return "worse than PyTorch" + ("" if math.isinf(times) else f" {ulp(times)} times")
    return "as PyTorch" if is_wrong_as_pytorch(result) else ""


def limit_of(result: Result) -> str:
    """Returns for example `8× noise or 4 ULP`, `4 ULP` or `no wrong integer`."""
    if result.counts:
        return "no wrong integer"
    also = "" if result.ulp_limit is None else f" or {decimal(result.ulp_limit)} ULP"
    return f"{decimal(result.limit)}{UNIT[result.gate]}{also}"


def on_average(result: Result) -> str:
    """Returns `rms 1.3; bias +0.02 +- 0.01 ULP; misrounded 12%, PyTorch 10%; as PyTorch`.

    The bias is that of each class. All else is of ordinary inputs, or of all.
    """
    part = next((each for each in result.classes if each.name == ORDINARY), result)
    own, theirs, parts = part.figures, part.baseline, []
    beside = "" if theirs is None else f", PyTorch {share(theirs.misrounded, theirs.n)}"
    if result.counts:
        return f"wrong {share(own.misrounded, own.n)}{beside}"
    if own.weighed and own.rms is not None:
        parts.append(f"rms {shown(own.rms)}{'' if result.gate == 'noise' else ' ULP'}")
    classes = [(f" ({each.name})", each.figures) for each in result.classes] or [("", own)]
    known = [each for each in classes if each[1].bias_error is not None]
    said = [f"{signed(of.bias or 0.0)} +- {shown(of.bias_error or 0.0)}{name * (len(known) > 1)}" for name, of in known]
    parts += [f"bias {', '.join(said)} ULP"] if said else []
    parts.append(f"misrounded {share(own.misrounded, own.n)}{beside}")
    return "; ".join(filter(None, [*parts, beside_pytorch(result)]))


def result_notes(result: Result) -> list[str]:
    """Returns remarks about a result: an accepted vacuous limit, a right trivial answer, and PyTorch's lead at inputs
    where nothing is promised.
    """
    found = [result.trivial] if result.trivial else []
    found += [f"{of.reason}; nothing is promised there" for of in result.classes if of.limit is None and of.reason]
    for of in result.classes:
        # the first class where a result in ULP has lost its digits although it passes, because the noise is as large
        size, less = rank(of.figures.max_ulp), of.figures.scaled_upper
        passes = of.limit is not None and less is not None and value_of(less) <= of.limit
        if result.gate == "plain" and of.limit is not None and passes and not size <= LOST * of.limit:
            lost = "loses the tail" if _is_lost(of.worst) else f"is {shown(size)} ULP off"
            found.append(f"{lost} on {of.name} inputs, as rounding each step of the definition may do")
            break
    return [clean(f"{result.output} {result.dtype}: {text}") for text in found]


def remedy(result: Result) -> str:
    """Returns the next step for a result without a verdict."""
    limit = "max_noise= or max_ulp=" if result.gate == "noise" else "max_ulp="
    known = 2 * result.figures.open <= result.figures.n
    if result.status == "undecided":
        return f"other inputs, or a larger {limit} that the result is proven to keep" if known else "other inputs"
    declared = f'other inputs, or vacuous={{"{clean(result.output)}": "REASON"}} in the declaration'
    return f"a stricter {limit}, {declared}" if known else declared


def most(result: Result, figures: Figures) -> str:
    """Returns the judged maximum of a result, or the number of its wrong integers, for example `54 wrong`."""
    if result.counts:
        return f"{figures.misrounded:,} wrong" if figures.misrounded else "0"
    return maximum(figures, result.gate)


def maximum(figures: Figures, gate: Gate) -> str:
    """Returns the judged maximum as text, an interval if the reference left it open."""
    chosen = judged(figures, gate)
    shown = interval(chosen.maximum, chosen.upper)
    return at_least(chosen.maximum) if chosen.open and shown != "NaN" else shown


def of_class(result: Result, name: str) -> str:
    """Returns the maximum on one class of inputs. Without classes, it is an upper bound. "-" if the class is empty."""
    found = next((each for each in result.classes if each.name == name), None)
    if found is not None:
        return most(result, found.figures)
    if result.classes:
        return "-"
    if result.counts:
        return most(result, result.figures)
    whole = maximum(result.figures, result.gate)
    return whole if whole == "NaN" or whole[:1] in "≤≥<>" else "≤" + whole


def of_classes(result: Result) -> dict[str, str]:
    """Maps each class of inputs to the maximum there."""
    return {name: of_class(result, name) for name in CLASSES}


def baseline_of(result: Result) -> str:
    """Returns PyTorch's maximum on ordinary inputs, on all inputs if there are no classes, or "" without PyTorch."""
    theirs = [each.baseline for each in result.classes if each.name == ORDINARY] or [result.baseline]
    return most(result, theirs[0]) if theirs[0] is not None else ""


def worst_class(result: Result) -> str:
    """Returns the name of the most important class on which a result is wrong, or ""."""
    return "" if (of := deciding(result)) is None else of.name


def unbounded_too(result: Result) -> ClassFigures | None:
    """Returns the class with a limit on which a result is NaN or infinite, if the error on a more important one is
    finite.
    """
    wrong = [each for each in result.classes if each.reason and each.limit is not None]
    unbounded = [each for each in wrong if not math.isfinite(value_of(judged(each.figures, result.gate).upper))]
    return unbounded[0] if unbounded and unbounded[0] is not wrong[0] else None


def wrong_words(result: Result) -> str:
    """Returns the error in a few words: `wrong on ordinary inputs`, `NaN at -inf`, `loses the tail`."""
    found = deciding(result)
    if found is None:
        worst = result.worst[0] if result.worst else None
        inputs = {} if worst is None else worst.inputs
        at = [text.partition(" ")[0] for text in inputs.values() if not math.isfinite(number_of(text))]
        if worst is None or not at:
            return "wrong"
        shown = "NaN" if worst.got == "nan" else clean(worst.got)
        return f"{shown} at {at[0]}" if len(at) == 1 else "wrong at infinity or NaN"
    of, worst = found.name, found.worst
    if worst is None or of == ORDINARY or result.counts:
        return f"wrong on {of} inputs"
    got = number_of(worst.got)
    largest = max((number_of(text) for text in worst.inputs.values()), key=abs, default=0.0)
    if math.isnan(got) and largest:
        return f"NaN at {largest:.1g}"
    if abs(largest) > HUGE and (got == 0 or not math.isfinite(got)):
        return f"overflows at {largest:.1g}"
    return "loses the tail" if _is_lost(worst) else f"wrong on {of} inputs"


def _is_lost(worst: Worst | None) -> bool:
    """True if a result is 0 where the answer is another number."""
    return worst is not None and number_of(worst.got) == 0 and bool(number_of(worst.truth))


def trouble(result: Result, *, unit: str = " ULP") -> str:
    """Returns the maximum of a wrong result, or its reason if the maximum is within the limit.

    `unit` is that of a scaled error; an error in noise names its own.
    """
    of = worst_class(result)
    if result.reason and not of and value_of(judged(result.figures, result.gate).upper) <= result.limit:
        return clean(result.reason)
    figure = of_class(result, of) if of else most(result, result.figures)
    on = f" on {of} inputs" if of and len(result.classes) > 1 else ""
    unit = UNIT["noise"] if result.gate == "noise" else unit
    other = unbounded_too(result)
    too = f", {of_class(result, other.name)} on {other.name} ones" if other is not None else ""
    return (figure if figure == "NaN" or result.counts else f"{figure}{unit}") + on + too


def error_text(worst: Worst, gate: Gate, *, counts: bool = False) -> str:
    """Returns the error of one element: `+254.9 ULP`, `+1.2 ULP scaled, +3,000 ULP plain` or `another integer`."""
    if counts:
        return "another integer"
    if not math.isfinite(value_of(worst.ulp)):
        return f"unbounded: got is {clean(worst.got)}"
    plain = f"{signed_ulp(worst.ulp)} ULP"
    if abs(value_of(worst.ulp)) > COUNTABLE:
        plain += f" (got {clean(worst.got)} for {truth(worst.truth)})"
    if gate != "plain" and worst.scaled_ulp is not None:
        return f"{signed_ulp(worst.scaled_ulp)}{UNIT[gate]}, {plain} plain"
    return plain


def named_values(inputs: Mapping[str, str]) -> str:
    """Returns `x = -3.5 (0xc060), dy = 1 (0x3f80)`, arriving gradients last: a file sorts names by letter."""
    ordered = sorted(inputs.items(), key=lambda item: item[0].startswith("d"))
    return ", ".join(f"{clean(name)} = {clean(value)}" for name, value in ordered)


def index_text(worst: Worst) -> str:
    """Returns for example `[0, 12]`, or "" for a 0-d tensor."""
    return f"[{', '.join(map(str, worst.index))}]" if worst.index else ""
