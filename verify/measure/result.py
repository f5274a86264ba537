"""From the tallies of one result to its entry in the record: figures, regimes, the verdict and its reason."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from verify.cases.regimes import NONFINITE, deciding_operand
from verify.declare.declaration import Kernel
from verify.measure.tally import Tally
from verify.ops.op import Regime
from verify.records.record import Basis, Curve, Figures, RegimeFigures, Result, Worst, value_of
from verify.truth.figure import shown

KEEP_RIGHT = 3  # worst elements that the record keeps of a result within its limit, and of a peer's
KEEP_SPECIAL = 3  # of the worst elements of infinite and NaN inputs
_UNBOUNDED = Regime("", math.nan, math.nan)


@dataclass(frozen=True)
class Findings:
    """What was found about one result of one implementation. Infinite and NaN inputs are one regime."""

    regimes: Mapping[str, Tally]  # in the order of the record
    escalated: int = 0
    certificates: Sequence[str] = ()
    each: Mapping[str, Worst] = field(default_factory=dict)  # the worst element of a regime


@dataclass(frozen=True)
class LimitCheck:
    """Whether a result keeps its limit. `reason` says why it does not; "" when it does."""

    reason: str
    only_special: bool  # wrong at infinite or NaN inputs alone


def ordinary(regimes: Mapping[str, Tally]) -> Tally:
    """Everything but the infinite and NaN inputs, without leaders."""
    merged = Tally()
    for name, item in regimes.items():
        if name != NONFINITE:
            merged = merged.merge(item.without_places())
    return merged


def check_limit(kernel: Kernel, dtype: str, regimes: Mapping[str, Tally]) -> LimitCheck:
    """The verdict on the tallies of one result by the kernel's own limit."""
    figures, gate, limit = ordinary(regimes).figures(), kernel.op.gate, kernel.limit(dtype)
    judged = _upper(figures, gate)
    # not (x <= limit): a NaN must fail
    if not judged <= limit:
        return LimitCheck(_over_the_limit(figures, judged, limit, gate), only_special=False)
    special = regimes.get(NONFINITE, Tally()).figures()
    if special.nonfinite:
        return LimitCheck(only_at_special(special.nonfinite), only_special=True)
    judged = _upper(special, gate)
    if special.n and not judged <= limit:
        return LimitCheck(f"{shown(judged)} ULP at an infinite input, the limit is {limit:g}", only_special=True)
    return LimitCheck("", only_special=False)


def result_of(
    kernel: Kernel,
    dtype: str,
    findings: Findings,
    peer: Findings | None,
    *,
    output: str,
    basis: Basis,
    reason: str,
    bounds: Mapping[str, Regime],
    worst: list[Worst],
    baseline_name: str,
    baseline_worst: list[Worst],
    properties: str,
    curve: Curve | None,
) -> Result:
    """The entry of one result, beside that of PyTorch (`peer`). `bounds` are the ends of its regimes."""
    counted, operand = ordinary(findings.regimes), deciding_operand(kernel.op)
    regimes = []
    for name, item in findings.regimes.items():
        region = bounds.get(name, _UNBOUNDED)
        regimes.append(
            RegimeFigures(
                name=name,
                low=region.low if math.isfinite(region.low) else None,
                high=region.high if math.isfinite(region.high) else None,
                figures=item.figures(),
                baseline=None if peer is None or name not in peer.regimes else peer.regimes[name].figures(),
                operand=operand,
                worst=findings.each.get(name),
            )
        )
    return Result(
        output=output,
        dtype=dtype,
        basis=basis,
        gate=kernel.op.gate,
        limit=kernel.limit(dtype),
        status="wrong" if reason else "ok",
        reason=reason,
        figures=counted.figures(),
        regimes=regimes,
        histogram=counted.histogram(),
        worst=worst,
        escalated=findings.escalated,
        certificate="; ".join(findings.certificates),
        baseline=None if peer is None else ordinary(peer.regimes).figures(),
        baseline_name="" if peer is None else baseline_name,
        baseline_worst=baseline_worst,
        properties=properties,
        curve=curve,
    )


def _upper(figures: Figures, gate: str) -> float:
    """The upper end of the maximum that is judged."""
    upper = figures.scaled_upper if gate == "scaled" else figures.max_upper
    return math.nan if upper is None else value_of(upper)


def _over_the_limit(figures: Figures, judged: float, limit: float, gate: str) -> str:
    unit = "scaled ULP" if gate == "scaled" else "ULP"
    if math.isnan(judged):
        return f"NaN at {figures.nonfinite:,} of {figures.n:,} inputs whose exact answer is a number"
    if math.isinf(judged):
        return f"infinite or unbounded error at {figures.nonfinite:,} of {figures.n:,} inputs"
    proven = figures.scaled_max if gate == "scaled" else figures.max_ulp
    if proven is not None and not value_of(proven) > limit:
        return f"not proven within {limit:g} {unit}: up to {shown(judged)} cannot be excluded"
    return f"{shown(judged)} {unit}, the limit is {limit:g}"


def only_at_special(count: int) -> str:
    return f"wrong at {count:,} infinite or NaN input{'' if count == 1 else 's'}, right at all others"
