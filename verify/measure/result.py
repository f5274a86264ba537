"""Turns the tallies of one result into its entry in the record: figures, regimes, the verdict and its reason."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from verify.cases import Case
from verify.cases.regimes import deciding_operand
from verify.declare.declaration import Kernel
from verify.measure.findings import Findings, PartName
from verify.measure.tally import BIAS_LIMIT, Bias, Tally
from verify.measure.trivial import EMPTY, rungs
from verify.ops.geometry import Geometry
from verify.ops.op import Regime
from verify.records.figure import UNIT, shown, signed
from verify.records.readings import APART, FEWEST, NONFINITE, ends
from verify.records.record import (
    CLASSES,
    EXTREME,
    INTEGERS,
    ORDINARY,
    Basis,
    ClassFigures,
    Figures,
    Gate,
    RegimeFigures,
    Result,
    ResultStatus,
    value_of,
)
from verify.truth.formats import named

_CHANCE = 0.01  # of a statement that holds for all wrong cases, if being wrong had nothing to do with it
_MOST, _FEW = 2, 2  # statements; wrong cases, of which one is described
_STEPS = (16, 32, 64, 128)

Tried = tuple[Case, Mapping[str, int]]  # a case with its sizes by name


def where(geometry: Geometry, cases: Sequence[Case], wrong: Sequence[bool]) -> str:
    """Returns the statement on the cases of a result; "" if none alone is wrong, or there is one case."""
    if not any(wrong) or len(cases) == 1:
        return ""
    tried: list[Tried] = [(case, geometry.sizes_by_name(case.dims)) for case in cases]
    bad = [each for each, is_wrong in zip(tried, wrong, strict=True) if is_wrong]
    count = f"in {f'{len(bad)} of' if len(bad) < len(tried) else 'all'} {len(tried)} cases"
    found = list[str]()
    while len(bad) > _FEW and len(found) < _MOST:
        text, left = min(_rules(bad, tried), key=lambda rule: len(rule[1]), default=("", tried))
        if (len(left) / len(tried)) ** len(bad) > _CHANCE:
            break
        found, tried = [*found, text], left
    if not found and len(bad) < len(cases):
        case, sizes = min(bad, key=lambda each: math.prod(each[0].dims))
        found = [*(f"{name} = {size:,}" for name, size in sizes.items()), *_kinds(case)]
        count += ": the smallest has" if len(bad) > 1 else ":"
        return f"{count} {', '.join(found)}"
    return ": ".join(filter(None, [count, ", ".join(found)]))


def _kinds(case: Case) -> list[str]:
    """Returns the values and the layout of a case."""
    return [f"values: {case.fill}" + (f" in {case.only}" if case.only else ""), *map(" ".join, case.layouts.items())]


def _rules(bad: Sequence[Tried], tried: Sequence[Tried]) -> Iterator[tuple[str, list[Tried]]]:
    """Yields statements that hold for all wrong cases, each with the cases that it holds for."""
    for name in bad[0][1]:
        own, every = ({sizes[name] for _, sizes in some} for some in (bad, tried))
        low, high = min(own), max(own)
        below, above = ({size for size in every if size < low}, {size for size in every if size > high})
        sized = {f"from {low:,} on, right up to {max(below):,}": every - below} if below else {}
        sized |= {f"up to {high:,}, right from {min(above):,} on": every - above} if above else {}
        sized |= {f"= {low:,}": own} if low == high else {}
        for step in _STEPS:
            whole = {size for size in every if size % step == 0}
            sized |= {f"a multiple of {step}": whole} if own <= whole else {}
            sized |= {f"no multiple of {step}": every - whole} if not own & whole else {}
        for text, fitting in sized.items():
            yield f"{name} {text}", [each for each in tried if each[1][name] in fitting]
    for kind in _kinds(bad[0][0]):
        if all(kind in _kinds(case) for case, _ in bad):
            yield kind, [each for each in tried if kind in _kinds(each[0])]


KEEP_RIGHT = 3  # worst elements in the record of a result within its limit, and of a peer's result
# limits of the root mean square: for wide formats, and for 16 bits, where correct kernels reach 1.2
RMS_LIMIT, RMS_LIMIT_NARROW = 3.0, 1.4
RANDOMLY = 1.5  # times these limits for results that are rounded at random
_UNBOUNDED = Regime("", math.nan, math.nan)


@dataclass(frozen=True)
class LimitCheck:
    """Holds the verdict on a result by its limits. `reason` is "" if the result keeps them."""

    reason: str
    only_special: bool  # True: only wrong at infinite or NaN inputs
    classes: Mapping[str, ClassFigures]  # without PyTorch's figures and the worst elements
    status: ResultStatus = "ok"
    trivial: str = ""  # what the limit does not see on ordinary inputs, or why the declaration accepts a vacuous result


def finite(parts: Mapping[PartName, Tally], of_class: str | None = None) -> Tally:
    """Merges the tallies of all parts, or of one class, without leaders.

    Infinite and NaN inputs and inputs beyond the domain are excluded.
    """
    merged = Tally()
    for (regime, its_class), item in parts.items():
        if regime not in APART and of_class in (None, its_class):
            merged = merged.merge(item.without_places())
    return merged


def check_limit(
    kernel: Kernel,
    dtype: str,
    result: str,
    parts: Mapping[PartName, Tally],
    trivial: Mapping[str, Tally] | None = None,
    theirs: Mapping[PartName, Tally] | None = None,
) -> LimitCheck:
    """Returns the verdict on the tallies of one result by the kernel's limits. Ordinary inputs come first.

    `trivial` has the tallies of trivial answers on ordinary inputs, by name; `theirs` those of PyTorch's result, whose
    bias excuses one as large.
    """
    classes: dict[str, ClassFigures] = {}
    found: list[tuple[ResultStatus, str, bool]] = []
    gate = kernel.op.gate_of(result)
    rms = _rms_limit_of(kernel, dtype, result)
    for name in CLASSES:
        counted, limit = finite(parts, name), kernel.limit_of(dtype, name, result)
        figures = counted.figures()
        if not figures.n:
            continue
        status, reason = _judged(figures, gate, limit, name)
        if not reason and limit is not None:
            status, reason = _on_average(figures, gate, name, rms)
        if not reason and limit is not None:
            most = _bias_limit(kernel, dtype, result, finite(theirs or {}, name), limit if gate == "plain" else 1.0)
            status, reason = _biased(counted.bias, most, name)
        if limit is None and counted.worse:  # a fact for the report: no promise gives no verdict
            reason = _worse(counted.worse, figures.n, name)
        if reason and status == "wrong" and result in kernel.op.integers:
            reason = f"{figures.misrounded:,} of {figures.n:,} integers are wrong on {name} inputs"
        classes[name] = ClassFigures(name, figures, limit, reason=reason)
        if reason and limit is not None:
            found.append((status, reason, False))
    limit = kernel.limit_of(dtype, EXTREME, result)
    counted = parts.get((NONFINITE, EXTREME), Tally())
    special = counted.figures()
    judged = _upper(special, gate)
    if special.nonfinite and limit is not None:
        found.append(("wrong", only_at_special(special.nonfinite), True))
    elif counted.worse and limit is None:
        found.append(("wrong", _worse(counted.worse, special.n, "infinite or NaN"), True))
    elif special.n and limit is not None and not judged <= limit:
        told = f"{shown(judged)}{UNIT[gate]} at an infinite input, the limit is {limit:g}"
        found.append(("wrong", told, True))
    if not any(part.n for part in parts.values()):
        found.append(("undecided", "nothing was judged", False))
    tried = trivial or {}
    empty, accepted = _vacuous(kernel, dtype, result, finite(parts, ORDINARY), tried)
    if empty:  # this reason says more than that the result is undecided
        found = [each for each in found if each[0] == "wrong"] + ([] if accepted else [("vacuous", empty, False)])
    found.sort(key=lambda each: each[0] != "wrong")  # stable: within a status the classes keep their order
    status, reason, special_only = found[0] if found else ("ok", "", False)
    told = accepted if empty else _right(tried) or _unseen(kernel, dtype, result, tried)
    return LimitCheck(reason, special_only, classes, status, told)


def _judged(figures: Figures, gate: Gate, limit: float | None, of_class: str) -> tuple[ResultStatus, str]:
    """Returns the verdict on the maximum of one class, and the reason."""
    judged = _upper(figures, gate)
    # not (x <= limit): a NaN must fail
    if limit is None or judged <= limit:
        if limit is not None and figures.open:
            return "undecided", f"nothing is known of {figures.open:,} of {figures.n:,} elements on {of_class} inputs"
        return "ok", ""
    proven, _ = ends(figures, gate)
    undecided = not math.isnan(judged) and proven is not None and not value_of(proven) > limit
    return "undecided" if undecided else "wrong", _over_the_limit(figures, judged, limit, gate, of_class)


def rms_limit(dtype: str) -> float:
    """Returns the limit of the root mean square of errors, in units of noise and rounding."""
    return RMS_LIMIT if named(dtype).bits > 16 else RMS_LIMIT_NARROW


def _rms_limit_of(kernel: Kernel, dtype: str, result: str) -> float:
    """Returns that limit for a result. Stochastic rounding has the variance ulp^2 / 6, to nearest it is ulp^2 / 12."""
    return rms_limit(kernel.result_dtype(dtype, result) or dtype) * (RANDOMLY if result in kernel.stochastic else 1.0)


def _on_average(figures: Figures, gate: str, of_class: str, rms: float) -> tuple[ResultStatus, str]:
    """Returns the verdict on the root mean square of one class, and the reason."""
    if gate == "noise" and figures.weighed >= FEWEST and figures.rms is not None and not figures.rms <= rms:
        told = f"{shown(figures.rms)} times what noise and rounding explain, root mean square on {of_class} inputs"
        return "wrong", f"{told}, the limit is {rms:g}"
    return "ok", ""


def _bias_limit(kernel: Kernel, dtype: str, result: str, theirs: Tally, ulps: float) -> float:
    """Returns the limit of a result's bias: as declared, else the default or PyTorch's own bias.

    Where a declaration allows errors of several `ulps`, they may all lie on one side.
    """
    if (declared := kernel.max_bias.get(result, kernel.max_bias.get(""))) is not None:
        return declared
    wide = named(kernel.result_dtype(dtype, result) or dtype).bits > 16
    return (
        math.inf
        if wide or result in (*kernel.stochastic, *kernel.op.integers)
        else max(BIAS_LIMIT * max(ulps, 1.0), theirs.bias.at_most)
    )


def _biased(bias: Bias, limit: float, of_class: str) -> tuple[ResultStatus, str]:
    """Returns the verdict on the bias of one class, and the reason."""
    if bias.sure <= limit:
        return "ok", ""
    side = "away from" if bias.mean > 0 else "toward"
    told = f"{bias.count:,} distinct {of_class} inputs are rounded {side} zero: {signed(bias.mean)} +- "
    return "wrong", f"{told}{shown(bias.error)} ULP on average, the limit is {limit:.3g}"


def _worse(count: int, of: int, inputs: str) -> str:
    return f"worse than PyTorch at {count:,} of {of:,} {inputs} inputs: beyond the limit where PyTorch is within"


def _vacuous(kernel: Kernel, dtype: str, result: str, own: Tally, trivial: Mapping[str, Tally]) -> tuple[str, str]:
    """Returns why the limit says nothing about a result, and why its declaration accepts that.

    The first is empty if the limit says something.
    """
    gate, limit = kernel.op.gate_of(result), kernel.limit(dtype, result)
    accepted = kernel.vacuous.get(result, "")
    if own.n and 2 * own.open > own.n:
        return f"nothing is known of {own.open:,} of {own.n:,} elements on ordinary inputs", accepted
    for name, each in trivial.items():
        if name in EMPTY and _keeps_limit(kernel, dtype, result, each) and not _is_right(each):
            return f"{name} would pass: the limit of {limit:g}{UNIT[gate]} says nothing on ordinary inputs", accepted
    return "", ""


def _unseen(kernel: Kernel, dtype: str, result: str, trivial: Mapping[str, Tally]) -> str:
    """Returns which other answers would pass on ordinary inputs: copies of an operand, and errors of some size."""
    whole = max((each.n for each in trivial.values()), default=0)
    passing = [name for name, each in trivial.items() if each.n == whole and _keeps_limit(kernel, dtype, result, each)]
    steps = rungs(named(kernel.result_dtype(dtype, result) or dtype))
    told = [f"{name} would pass" for name in passing if name not in steps]
    seen = [share for name, share in steps.items() if name not in passing] + [0.5]  # halves do not pass
    if len(seen) <= len(steps):
        told.append(f"errors below {seen[0]:.0%} are not seen")
    return f"on ordinary inputs {', and '.join(told)}" if told else ""


def _keeps_limit(kernel: Kernel, dtype: str, result: str, answer: Tally) -> bool:
    """True if a trivial answer would pass on ordinary inputs."""
    figures, gate = answer.figures(), kernel.op.gate_of(result)
    if _judged(figures, gate, kernel.limit(dtype, result), ORDINARY)[0] == "wrong":
        return False
    return _on_average(figures, gate, ORDINARY, _rms_limit_of(kernel, dtype, result))[0] == "ok"


def _is_right(answer: Tally) -> bool:
    """True if a trivial answer is the correctly rounded truth at every element."""
    return not answer.misrounded and not answer.nan and value_of(answer.plain.seen) <= 0.5


def _right(trivial: Mapping[str, Tally]) -> str:
    whole = max((each.n for each in trivial.values()), default=0)
    right = [name for name, each in trivial.items() if each.n == whole and _is_right(each)]
    return f"on ordinary inputs {right[0]} {'is' if right[0].startswith('a ') else 'are'} right" if right else ""


def result_of(
    kernel: Kernel,
    dtype: str,
    result: str,
    findings: Findings,
    judged: LimitCheck,
    basis: Basis,
    peer: tuple[str, Findings] | None,
    **more: Any,
) -> Result:
    """Returns the entry of one result, beside that of PyTorch (`peer`, with its name).

    `more` has other fields of the entry, such as its curve.
    """
    gate, own = kernel.op.gate_of(result), not kernel.peer
    baseline_name, beside = peer or ("", Findings())
    theirs = beside.regimes
    regimes = []
    for name, item in findings.regimes.items():
        region = findings.bounds.get(name, _UNBOUNDED)
        regimes.append(
            RegimeFigures(
                name=name,
                low=region.low if math.isfinite(region.low) else None,
                high=region.high if math.isfinite(region.high) else None,
                figures=item.figures(),
                baseline=theirs[name].figures() if name in theirs else None,
                operand=deciding_operand(kernel.op),
                worst=findings.worst_of(regime=name) if own else None,
            )
        )
    classes = []
    for name, check in judged.classes.items():
        baseline, worst = finite(beside.parts, name), findings.worst_of(of_class=name) if own else None
        with_baseline = baseline.figures() if baseline.n else None
        classes.append(msgspec.structs.replace(check, baseline=with_baseline, worst=worst))
    # the inputs that the reason names come first
    lists = [findings.ordinary, findings.special]
    shown = [worst for entries in (reversed(lists) if judged.only_special else lists) for worst in entries]
    counted = finite(findings.parts)
    entry: dict[str, Any] = {
        "output": result,
        "baseline_worst": beside.ordinary[:1],
        "worst": shown[: None if judged.reason and own else KEEP_RIGHT],
        "reason": f"{findings.mistake}. {judged.reason}" if judged.reason and findings.mistake else judged.reason,
        "where": where(kernel.op.geometry, findings.cases, findings.wrong) if judged.status == "wrong" and own else "",
        "format": INTEGERS if result in kernel.op.integers else "" if findings.format == dtype else findings.format,
    }
    return Result(
        dtype=dtype,
        basis=basis,
        gate=gate,
        limit=kernel.limit(dtype, result),
        ulp_limit=kernel.ulp_limit(dtype, result) if gate == "noise" else None,
        trivial=judged.trivial,
        status=judged.status,
        figures=counted.figures(),
        regimes=regimes,
        histogram=counted.histogram(),
        escalated=findings.escalated,
        certificate="; ".join(findings.certificates),
        baseline=finite(beside.parts).figures() if peer else None,
        baseline_name=baseline_name,
        classes=classes,
        **entry | more,
    )


def _upper(figures: Figures, gate: Gate) -> float:
    """Returns the upper end of the maximum that is judged: in the unit of the gate, or in ULP less noise beside it."""
    _, upper = ends(figures, gate)
    return math.nan if upper is None else value_of(upper)


def _over_the_limit(figures: Figures, judged: float, limit: float, gate: Gate, of_class: str) -> str:
    """Returns why a class breaks its limit."""
    unit = UNIT[gate]
    inputs = f"{of_class} inputs".lstrip()
    if math.isnan(judged):
        return f"NaN at {figures.nonfinite:,} of {figures.n:,} {inputs} whose exact answer is a number"
    if math.isinf(judged) and figures.nonfinite:
        return f"infinite or unbounded error at {figures.nonfinite:,} of {figures.n:,} {inputs}"
    on = f" on {inputs}" if of_class else ""
    proven, _ = ends(figures, gate)
    if proven is not None and not value_of(proven) > limit:
        return f"not proven within {limit:g}{unit}{on}: up to {shown(judged)} cannot be excluded"
    return f"{shown(judged)}{unit}{on}, the limit is {limit:g}"


def only_at_special(count: int) -> str:
    return f"wrong at {count:,} infinite or NaN input{'' if count == 1 else 's'}, right at all others"
