"""From the tallies of one result to its entry in the record: figures, regimes, the verdict and its reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from verify.cases.regimes import deciding_operand
from verify.declare.declaration import Kernel
from verify.measure.tally import Tally
from verify.ops.op import Regime
from verify.records.readings import APART, NONFINITE
from verify.records.record import (
    CLASSES,
    EXTREME,
    Basis,
    ClassFigures,
    Curve,
    Figures,
    RegimeFigures,
    Result,
    Worst,
    value_of,
)
from verify.truth.figure import shown

KEEP_RIGHT = 3  # worst elements that the record keeps of a result within its limit, and of a peer's
KEEP_SPECIAL = 3  # of the worst elements of infinite and NaN inputs
_UNBOUNDED = Regime("", math.nan, math.nan)


PartName = tuple[str, str]  # of a result: a regime and a class


@dataclass(frozen=True)
class Findings:
    """What was found about one result of one implementation. Infinite and NaN inputs are one regime."""

    parts: Mapping[PartName, Tally]  # in the order of the record
    escalated: int = 0
    certificates: Sequence[str] = ()
    each: Mapping[PartName, tuple[float, Worst]] = field(default_factory=dict)  # the worst element of a part

    @property
    def regimes(self) -> dict[str, Tally]:
        """The parts by regime."""
        found: dict[str, Tally] = {}
        for (regime, _), item in self.parts.items():
            found[regime] = found.get(regime, Tally()).merge(item.without_places())
        return found

    def worst(self, of: Callable[[PartName], bool]) -> Worst | None:
        """The worst element of some parts."""
        return max((item for name, item in self.each.items() if of(name)), key=itemgetter(0), default=(0.0, None))[1]


@dataclass(frozen=True)
class ClassCheck:
    """One class of inputs: its figures, its limit (None: nothing is promised) and why it is beyond it."""

    figures: Figures
    limit: float | None
    reason: str


@dataclass(frozen=True)
class LimitCheck:
    """Whether a result keeps its limits. `reason` says why it does not; "" when it does."""

    reason: str
    only_special: bool  # wrong at infinite or NaN inputs alone
    classes: Mapping[str, ClassCheck]


def finite(parts: Mapping[PartName, Tally], of_class: str | None = None) -> Tally:
    """All of them, or of one class, but infinite and NaN inputs and those beyond the domain; without leaders."""
    merged = Tally()
    for (regime, its_class), item in parts.items():
        if regime not in APART and of_class in (None, its_class):
            merged = merged.merge(item.without_places())
    return merged


def check_limit(kernel: Kernel, dtype: str, result: str, parts: Mapping[PartName, Tally]) -> LimitCheck:
    """The verdict on the tallies of one result by the kernel's own limits, that of ordinary inputs first."""
    classes = {}
    for name in CLASSES:
        figures, limit = finite(parts, name).figures(), kernel.limit_of(dtype, name, result)
        if figures.n:
            classes[name] = ClassCheck(figures, limit, _beyond(figures, kernel.op.gate, limit, name))
    if wrong := [item.reason for item in classes.values() if item.reason]:
        return LimitCheck(wrong[0], False, classes)
    limit = kernel.limit_of(dtype, EXTREME, result)
    special = parts.get((NONFINITE, EXTREME), Tally()).figures()
    if special.nonfinite and limit is not None:
        return LimitCheck(only_at_special(special.nonfinite), True, classes)
    judged = _upper(special, kernel.op.gate)
    if special.n and limit is not None and not judged <= limit:
        return LimitCheck(f"{shown(judged)} ULP at an infinite input, the limit is {limit:g}", True, classes)
    return LimitCheck("", False, classes)


def _beyond(figures: Figures, gate: str, limit: float | None, of_class: str) -> str:
    judged = _upper(figures, gate)
    # not (x <= limit): a NaN must fail
    return "" if limit is None or judged <= limit else _over_the_limit(figures, judged, limit, gate, of_class)


def result_of(
    kernel: Kernel,
    dtype: str,
    findings: Findings,
    peer: Findings | None,
    *,
    result: str,
    output: str,
    basis: Basis,
    judged: LimitCheck,
    bounds: Mapping[str, Regime],
    worst: list[Worst],
    baseline_name: str,
    baseline_worst: list[Worst],
    properties: str,
    curve: Curve | None,
) -> Result:
    """The entry of one result, beside that of PyTorch (`peer`). `bounds` are the ends of its regimes."""
    counted, operand = finite(findings.parts), deciding_operand(kernel.op)
    theirs = {} if peer is None else peer.regimes
    regimes = []
    for name, item in findings.regimes.items():
        region = bounds.get(name, _UNBOUNDED)
        regimes.append(
            RegimeFigures(
                name=name,
                low=region.low if math.isfinite(region.low) else None,
                high=region.high if math.isfinite(region.high) else None,
                figures=item.figures(),
                baseline=theirs[name].figures() if name in theirs else None,
                operand=operand,
                worst=findings.worst(lambda part, name=name: part[0] == name),  # type: ignore[misc]
            )
        )
    classes = []
    for name, check in judged.classes.items():
        beside = Tally() if peer is None else finite(peer.parts, name)
        classes.append(
            ClassFigures(
                name=name,
                figures=check.figures,
                limit=check.limit,
                baseline=beside.figures() if beside.n else None,
                worst=findings.worst(lambda part, name=name: part[1] == name and part[0] not in APART),  # type: ignore[misc]
                reason=check.reason,
            )
        )
    return Result(
        output=output,
        dtype=dtype,
        basis=basis,
        gate=kernel.op.gate,
        limit=kernel.limit(dtype, result),
        status="wrong" if judged.reason else "ok",
        reason=judged.reason,
        figures=counted.figures(),
        regimes=regimes,
        histogram=counted.histogram(),
        worst=worst,
        escalated=findings.escalated,
        certificate="; ".join(findings.certificates),
        baseline=None if peer is None else finite(peer.parts).figures(),
        baseline_name="" if peer is None else baseline_name,
        baseline_worst=baseline_worst,
        properties=properties,
        curve=curve,
        classes=classes,
    )


def _upper(figures: Figures, gate: str) -> float:
    """The upper end of the maximum that is judged."""
    upper = figures.scaled_upper if gate == "scaled" else figures.max_upper
    return math.nan if upper is None else value_of(upper)


def _over_the_limit(figures: Figures, judged: float, limit: float, gate: str, of_class: str) -> str:
    unit = "scaled ULP" if gate == "scaled" else "ULP"
    inputs = f"{of_class} inputs".lstrip()
    if math.isnan(judged):
        return f"NaN at {figures.nonfinite:,} of {figures.n:,} {inputs} whose exact answer is a number"
    if math.isinf(judged) and figures.nonfinite:
        return f"infinite or unbounded error at {figures.nonfinite:,} of {figures.n:,} {inputs}"
    on = f" on {inputs}" if of_class else ""
    proven = figures.scaled_max if gate == "scaled" else figures.max_ulp
    if proven is not None and not value_of(proven) > limit:
        return f"not proven within {limit:g} {unit}{on}: up to {shown(judged)} cannot be excluded"
    return f"{shown(judged)} {unit}{on}, the limit is {limit:g}"


def only_at_special(count: int) -> str:
    return f"wrong at {count:,} infinite or NaN input{'' if count == 1 else 's'}, right at all others"
