"""The figures that a result is judged by, and what they are beside PyTorch's."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from verify.records.record import ORDINARY, Figures, Gate, Number, Result, value_of
from verify.report.words import clean, decimal, share, ulp
from verify.truth.figure import UNIT, shown, signed

# by gate, an error that is none beside another; by how much one is worse that is worth a word
NOTHING, MANY = {"plain": 0.5, "scaled": 0.5, "noise": 1.0}, 8.0


@dataclass(frozen=True)
class Judged:
    """The figures of one implementation that its result is judged by: plain or scaled."""

    maximum: Number
    upper: Number
    p999: Number
    open: bool = False  # nothing is known of some elements, which the figures leave out


def judged(figures: Figures, gate: Gate) -> Judged:
    """The figures in the unit of the gate where they exist, else the plain ones."""
    found = Judged(figures.max_ulp, figures.max_upper, figures.p999)
    if gate != "plain" and figures.scaled_max is not None:
        upper = figures.scaled_max if figures.scaled_upper is None else figures.scaled_upper
        found = Judged(figures.scaled_max, upper, figures.p999 if figures.scaled_p999 is None else figures.scaled_p999)
    endless = math.isfinite(value_of(found.maximum)) and math.isinf(value_of(found.upper))  # of older records
    return replace(found, upper=found.maximum, open=True) if endless or figures.open else found


def promised(result: Result) -> list[Figures]:
    """The figures of the classes of inputs that the kernel promises something of; all where it has no classes."""
    known = [each.figures for each in result.classes if each.limit is not None]
    return known if known and len(known) < len(result.classes) else [result.figures]


def rank(value: Number) -> float:
    """The size of an error; infinite for NaN."""
    found = value_of(value)
    return math.inf if math.isnan(found) else found


def beside_pytorch(result: Result) -> str:
    """`, worse than PyTorch 14 times` on ordinary inputs, `, as PyTorch` of a wrong result; else empty."""
    for each in result.classes:
        if each.name != ORDINARY or each.baseline is None:
            continue
        least = NOTHING[result.gate]
        own, theirs = (max(rank(judged(of, result.gate).upper), least) for of in (each.figures, each.baseline))
        if not own <= MANY * theirs:
            times = "" if math.isinf(own) else f" {ulp(own / theirs)} times"
            return f", worse than PyTorch{times}"
        if each.reason and not theirs <= result.limit:
            return ", as PyTorch"
    return ""


def limit_of(result: Result) -> str:
    """`8× noise or 4 ULP`, `4 ULP`."""
    also = "" if result.ulp_limit is None else f" or {decimal(result.ulp_limit)} ULP"
    return f"{decimal(result.limit)}{UNIT[result.gate]}{also}"


def on_average(result: Result) -> str:
    """`rms 1.3, bias +0.02 +- 0.01; misrounded 12%, PyTorch 10%; as PyTorch`: ordinary inputs, if there are any."""
    part = next((each for each in result.classes if each.name == ORDINARY), result)
    own, theirs, parts = part.figures, part.baseline, []
    if own.weighed and own.rms is not None:
        of = {"noise": ""}.get(result.gate, " ULP")
        parts.append(f"rms {shown(own.rms)}{of}, bias {signed(own.bias or 0.0)} +- {shown(own.bias_error or 0.0)}{of}")
    beside = "" if theirs is None else f", PyTorch {share(theirs.misrounded, theirs.n)}"
    parts.append(f"misrounded {share(own.misrounded, own.n)}{beside}")
    return "; ".join(parts) + beside_pytorch(result).replace(", ", "; ", 1)


# How `verify.measure.result` begins to say that a trivial answer is right; else `Result.trivial` is a reason.
RIGHT = "on ordinary inputs "


def result_notes(result: Result) -> list[str]:
    """What a reader has to know of a result that is in order: accepted vacuous limits, right trivial answers."""
    if not result.trivial:
        return []
    accepted = "" if result.trivial.startswith(RIGHT) else "its limit is vacuous, which the declaration accepts: "
    return [clean(f"{result.output} {result.dtype}: {accepted}{result.trivial}")]


def remedy(result: Result) -> str:
    """What a project can do about a result without a verdict."""
    limit = "max_noise= or max_ulp=" if result.gate == "noise" else "max_ulp="
    known = 2 * result.figures.open <= result.figures.n
    if result.status == "undecided":
        return f"other inputs, or a larger {limit} that the result is proven to keep" if known else "other inputs"
    declared = f'other inputs, or vacuous={{"{clean(result.output)}": "REASON"}} in the declaration'
    return f"a stricter {limit}, {declared}" if known else declared
