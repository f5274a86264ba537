"""Why a result is as wrong as it is: which step of the computation put how much of the error there.

A kernel is a black box: only its bits can be compared. `explain` evaluates the ways in which such kernels are
commonly written, each in the arithmetic that it would run in, and looks which of them gives the kernel's bits, in
every element of the case and of one more. The error of a way that does is divided among its steps (see
`verify.diagnose.explain.steps`), and that is the kernel's error too, as far as the bits can tell. Where none does, it
says so: the nearest way is named, and what holds for any kernel stays: the error of a single rounding, and what an
error of half an ulp in the input would do. Of a PyTorch function (like=) it is also what rounding each step of its
program would do (see `verify.diagnose.explain.program`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import mpmath
import msgspec
import numpy as np
import torch
from mpmath import mp
from torch import Tensor

from verify.backends import Backend
from verify.cases import Case, problem_of
from verify.cases.regimes import segments_of
from verify.declare.declaration import Kernel
from verify.diagnose.explain import elementwise, program, rows
from verify.diagnose.explain.steps import BITS, Budget, Model, Share, budget, trace
from verify.diagnose.replay import replay
from verify.diagnose.requests import Explanation, Other, Replay, Rounded, Stage
from verify.errors import KernelError, UsageError
from verify.measure.call import Measured, run_baseline, run_kernel
from verify.ops.op import Op, Problem
from verify.records.readings import NONFINITE
from verify.records.record import Number, number, value_of
from verify.truth import formats
from verify.truth.enclosure import dyadic
from verify.truth.fast import evaluate
from verify.truth.figure import signed
from verify.truth.formats import Format, power_of_two
from verify.truth.ulp import bits_of, errors, pattern_at

COMPARED = 1 << 16  # elements of a case that the ways are compared on
NEAR = 0.95  # share of equal bits from which on a way may explain an element that it agrees in: not a coincidence
OTHERS = 3  # other formulas whose error at this element is shown, in the same arithmetic and in others
_NOTHING = 1e-60  # ULP: two routes to one real number at 600 bits
_CANCELS = 3.0  # bits from which on a sum is said to cancel
_GATED = {"geglu": "gelu", "geglu_split": "gelu", "swiglu": "silu", "swiglu_split": "silu"}
_NORMS = ("layer_norm", "layer_norm_residual", "layer_norm_residual_bias", "rms_norm", "rms_norm_residual")


@dataclass(frozen=True)
class _Evidence:
    """What a kernel was given and what it gave, as a model takes it: tensors by name, and the result's bits."""

    given: dict[str, Any]
    got: Tensor
    place: tuple[int, int] | None  # (row, column) of the explained element, where this holds it


def explain(kernel: Kernel, target: str, backend: Backend, case: Case, *, result: str, index: int) -> Explanation:
    """Divide the error of one element among the steps of the way in which the kernel computes it."""
    found = replay(kernel, target, backend, case, result=result, index=index)
    measured = run_kernel(kernel, case, backend.device)
    unit = _Unit.of(kernel.op, case, measured, result, index, found)
    models = _models(kernel, case, measured.results[result].dtype, result)
    common = {
        "replay": found,
        "least": number(unit.least(found)),
        "sensitivity": _sensitivity(kernel.op, case, measured, result, index, unit),
    }
    if not models:
        without = _without(common, f"explain knows no ways to compute {result} of op {kernel.op.name}")
        return _by_program(without, kernel.op, case, measured, result, index, unit)
    runs = [(case, measured, index), *_more(kernel, case, backend)]
    evidence = [_evidence(kernel.op, each, run, result, place) for each, run, place in runs]
    scores = _compare(models, evidence)
    compared = sum(item.got.numel() for item in evidence)
    theirs = _baseline_same(kernel, backend, [each for each, _, _ in runs], evidence, result, index)
    return _judged({**common, "baseline_same": theirs}, scores, evidence[0], compared, unit, found)


def worst_place(kernel: Kernel, backend: Backend, case: Case, result: str) -> int:
    """The flat index of the worst element of a result, by the fast truth."""
    measured = run_kernel(kernel, case, backend.device)
    if result not in measured.results:
        raise UsageError(f"kernel {kernel.name!r} has no result {result!r} here; it has: {', '.join(measured.results)}")
    got = measured.results[result]
    if not got.numel():
        raise UsageError(f"{result} has no elements in this case")
    fmt = formats.of(got.dtype)
    problem = problem_of(kernel.op, case, measured.inputs, measured.upstream, (result,))
    truth = evaluate(kernel.op, problem, {result: fmt})[result].for_result(got)
    scale = truth.unit(kernel.op.gate_of(result), kernel.noise_floor(case.dtype, result))
    found = errors(got, truth.value, fmt, low=truth.low, bound=truth.bound, scale=scale, policy=kernel.policy)
    judged = torch.nan_to_num((found.ulp if found.scaled is None else found.scaled).abs(), nan=torch.inf)
    segments, regimes = segments_of(kernel.op, case, problem, result, tuple(got.shape))
    if segments is not None and regimes[-1].name == NONFINITE:  # finite inputs first: there is more to explain
        judged = torch.where(segments == len(regimes) - 1, -1.0, judged)
    return int(judged.argmax())


def _without(common: dict[str, Any], cause: str) -> Explanation:
    return Explanation(
        **common,
        status="unknown",
        model="",
        same=0,
        compared=0,
        baseline_same=None,
        alike=0,
        formula=None,
        stages=[],
        kinds={},
        cause=cause,
        others=[],
    )


def _by_program(
    without: Explanation, op: Op, case: Case, measured: Measured, result: str, index: int, unit: _Unit
) -> Explanation:
    """What rounding each step of a PyTorch function's program does to the element; of float64 nothing is known."""
    got = measured.results[result]
    if op.program is None or got.dtype == torch.float64 or not mp.isfinite(unit.truth):
        return without
    dtypes = [got.dtype] if got.dtype == torch.float32 else [got.dtype, torch.float32]
    steps, run = op.program(problem_of(op, case, measured.inputs, measured.upstream, (result,)))
    found, wholes = program.roundings(steps, run, result, index, dtypes)
    if not found:
        return without
    table = [
        Rounded(
            text=each.text,
            value=f"{each.needed:,} numbers" if each.value is None else f"{each.value:.6g}",
            moves={_name(dtype): number(unit.ulps(mp.mpf(by))) for dtype, by in zip(dtypes, each.moves, strict=True)},
        )
        for each in found
    ]
    others = []
    for dtype, whole in zip(dtypes, wholes, strict=True):
        made = whole.to(got.dtype).to(got.device)
        same = int(_same_bits(made, got).sum())
        others.append(
            Other(
                f"every step of the program in {_name(dtype)}, each sum rounded once",
                number(unit.error(pattern_at(made.contiguous(), index))),
                same,
            )
        )
    largest = max(table, key=lambda row: _moved(row, dtypes[0]))
    by, all_of_them = _moved(largest, dtypes[0]), sum(_moved(row, dtypes[0]) for row in table)
    worst = without.replay.worst
    error = abs(value_of(worst.ulp if without.replay.gate == "plain" else worst.scaled_ulp or 0.0))
    cause = f"of the steps of the program {largest.text} in {_name(dtypes[0])} moves the result most, by {by:.3g} ULP"
    if not error <= 2 * all_of_them + 0.5:
        cause = (
            f"the kernel computes something else: the steps of the program, each rounded to {_name(dtypes[0])}, move "
            f"the result by {all_of_them:.3g} ULP together"
        )
    elif len(dtypes) > 1:
        most = max(_moved(row, torch.float32) for row in table)
        cause += f"; in float32 none moves it by more than {most:.3g}"
    return msgspec.structs.replace(
        without, cause=cause, others=others, program=table, same=max(each.same for each in others), compared=got.numel()
    )


def _moved(row: Rounded, dtype: torch.dtype) -> float:
    by = abs(value_of(row.moves[_name(dtype)]))
    return math.inf if math.isnan(by) else by


# -- the unit of every figure --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Unit:
    """The truth of an element and what one ULP of it is, of scale where the op is judged so."""

    fmt: Format
    truth: Any  # mpf; not a number or infinite where the function is
    exponent: int

    @staticmethod
    def of(op: Op, case: Case, measured: Measured, result: str, index: int, found: Replay) -> _Unit:
        fmt = formats.named(found.dtype)
        problem = problem_of(op, case, measured.inputs, measured.upstream, (result,))
        truth = op.points(problem, result, [index])[0].mp(BITS)
        exponent = fmt.ulp_exponent(rational(truth)) if mp.isfinite(truth) else fmt.min_ulp_exponent
        plain, scaled = found.worst.ulp, found.worst.scaled_ulp
        if scaled is not None and value_of(plain) and math.isfinite(value_of(plain)):
            exponent -= round(math.log2(value_of(scaled) / value_of(plain)))
        return _Unit(fmt, truth, exponent)

    def ulps(self, difference: Any) -> float:
        """A real number in units."""
        return float(mp.ldexp(difference, -self.exponent))

    def error(self, pattern: int) -> float:
        """The error of a pattern that is not NaN."""
        if self.fmt.is_nan(pattern) or not mp.isfinite(self.truth):
            return math.nan
        truth = rational(self.truth)
        steps = self.fmt.error(pattern, truth) * self.fmt.ulp(min(max(truth, -self.fmt.overflow), self.fmt.overflow))
        return float(steps / power_of_two(self.exponent))

    def least(self, found: Replay) -> float:
        """The error of the correctly rounded result."""
        return self.error(int(found.right_hex, 16)) if found.right_hex.startswith("0x") else 0.0


def rational(value: Any) -> Fraction:
    """The rational behind a finite mpf; zero for what is far below every format, such as exp(-1e76)."""
    sign, mantissa, exponent, _ = value._mpf_
    return dyadic(-int(mantissa) if sign else int(mantissa), int(exponent), up=bool(sign))


def _sensitivity(op: Op, case: Case, measured: Measured, result: str, index: int, unit: _Unit) -> Number | None:
    """By how many units a function of one number moves when that number does by half an ulp."""
    x = measured.inputs.get("x")
    one = op.kind == "elementwise" and len(op.operands) == 1 and op.regime_values is None
    if not one or x is None or x.dtype == torch.float64 or not mp.isfinite(unit.truth):
        return None
    pattern, fmt = pattern_at(x, index), formats.of(x.dtype)
    if not fmt.is_finite(pattern):
        return None
    value = fmt.value(pattern)
    near = float(value + fmt.ulp(value) / 2)  # half an ulp more: one bit more than the format has
    upstream = {name: grad.reshape(-1)[index : index + 1] for name, grad in measured.upstream.items()}
    moved = Problem({"x": torch.tensor([near], dtype=torch.float64)}, op.resolve(case.params), upstream, (result,))
    there = op.points(moved, result, [0])[0].mp(BITS)
    return number(abs(unit.ulps(there - unit.truth))) if mp.isfinite(there) else None


# -- which ways there are, and what they are given -----------------------------------------------------


def _models(kernel: Kernel, case: Case, dtype: torch.dtype, result: str) -> list[Model]:
    op = kernel.op
    if op.name in ("gelu", "silu") and result == "y":
        return elementwise.value_models(op.name, dtype, gated=False)
    if op.name == "gelu" and result == "dx":
        return elementwise.slope_models(dtype)
    if op.name in _GATED and result == "y":
        return elementwise.value_models(_GATED[op.name], dtype, gated=True)
    if op.name in _NORMS:
        names = [name for name in kernel.operands if name not in case.absent]
        summands = [name for name in names if name not in ("weight", "bias")]
        single = len(summands) == 1 and result == "dx"
        if result == "y" or single:
            width = case.dims[-1]
            return rows.models(result, summands, names, dtype, width, centre=not op.name.startswith("rms_norm"))
    return []


def _evidence(op: Op, case: Case, measured: Measured, result: str, index: int | None) -> _Evidence:
    got = measured.results[result].detach().contiguous()
    if op.name in _NORMS:
        return _row_evidence(op, case, measured, got, index)
    tensors = {name: value.contiguous() for name, value in measured.inputs.items() if value is not None}
    if op.name in ("geglu", "swiglu"):
        first, second = tensors["x"].chunk(2, -1)
        given = {"x1_given": first.reshape(-1), "x_given": second.reshape(-1)}
    elif op.name in _GATED:
        given = {"x1_given": tensors["x1"].reshape(-1), "x_given": tensors["x2"].reshape(-1)}
    else:
        given = {"x_given": tensors["x"].reshape(-1)}
        given |= {f"d{name}_given": value.contiguous().reshape(-1) for name, value in measured.upstream.items()}
    flat = got.reshape(-1)
    start = 0 if index is None else max(0, min(index - COMPARED // 2, flat.numel() - COMPARED))
    window = slice(start, start + COMPARED)
    place = None if index is None else (0, index - start)
    return _Evidence({name: value[window] for name, value in given.items()}, flat[window], place)


def _row_evidence(op: Op, case: Case, measured: Measured, got: Tensor, index: int | None) -> _Evidence:
    width = case.dims[-1]
    row = 0 if index is None else index // width
    most = max(1, COMPARED // max(width, 1))
    start = max(0, min(row - most // 2, got.numel() // width - most))
    window = slice(start, start + most)
    given: dict[str, Any] = {"eps": float(op.resolve(case.params)["eps"])}
    tensors = {name: value for name, value in measured.inputs.items() if value is not None}
    tensors |= {"dy": measured.upstream["y"]} if "y" in measured.upstream else {}
    for name, value in tensors.items():
        given[f"{name}_given"] = (
            value if value.ndim == 1 and case.dims != value.shape else value.reshape(-1, width)[window]
        )
    place = None if index is None else (row - start, index % width)
    return _Evidence(given, got.reshape(-1, width)[window], place)


def _more(kernel: Kernel, case: Case, backend: Backend) -> list[tuple[Case, Measured, None]]:
    """The kernel on more inputs than a small case has: that one element agrees says little."""
    by_element = kernel.op.kind == "elementwise"
    if by_element and math.prod(case.dims) >= COMPARED // 16:
        return []
    fill, dims = ("mixed", (32, 128)) if by_element else ("randn", (16, case.dims[-1]))
    upstream = "normal" if case.upstream else ""
    more = msgspec.structs.replace(
        case, fill=fill, dims=dims, seed=1, upstream=upstream, values={}, edits={}, layouts={}, regime=""
    )
    try:
        return [(more, run_kernel(kernel, more, backend.device), None)]
    except KernelError:
        return []


def _baseline_same(
    kernel: Kernel, backend: Backend, cases: list[Case], evidence: list[_Evidence], result: str, index: int
) -> int | None:
    """In how many of the compared elements PyTorch's own kernel gives the same bits."""
    same = 0
    for place, (case, item) in enumerate(zip(cases, evidence, strict=True)):
        theirs = run_baseline(kernel, case, backend.device)
        if result not in theirs.results:
            return None
        other = _evidence(kernel.op, case, theirs, result, index if place == 0 else None)
        same += int(_same_bits(other.got, item.got).sum())
    return same


# -- comparing -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Score:
    model: Model
    same: int  # elements with the kernel's bits
    here: int | None  # the pattern at the explained element
    agrees: bool  # it is the kernel's


def _compare(models: list[Model], evidence: list[_Evidence]) -> list[_Score]:
    scores = []
    for model in models:
        same, here, agrees = 0, None, False
        try:
            for item in evidence:
                made = trace(model, item.given)[model.steps[-1].name]
                equal = _same_bits(made, item.got)
                same += int(equal.sum())
                if item.place is not None:
                    flat = item.place[0] * item.got.shape[-1] + item.place[1]
                    here, agrees = pattern_at(made.contiguous(), flat), bool(equal.reshape(-1)[flat])
        except (RuntimeError, NotImplementedError):  # an operation that this dtype does not have here
            continue
        scores.append(_Score(model, same, here, agrees))
    return sorted(scores, key=lambda score: (-score.same, not score.agrees))  # stable: simpler ways first


def _same_bits(made: Tensor, got: Tensor) -> Tensor:
    made = made.expand_as(got) if made.shape != got.shape else made
    both_nan = torch.isnan(made.double()) & torch.isnan(got.double())
    return (bits_of(made) == bits_of(got)) | both_nan


def _judged(
    common: dict[str, Any],
    scores: list[_Score],
    evidence: _Evidence,
    compared: int,
    unit: _Unit,
    found: Replay,
) -> Explanation:
    status: Literal["matches", "nearest", "unlike"] = "unlike"
    best = scores[0]
    if best.same == compared:
        status = "matches"
    else:
        near = [score for score in scores if score.agrees and score.same >= NEAR * compared]
        if near:
            best, status = near[0], "nearest"
    stages: list[Stage] = []
    formula: Number | None = None
    kinds: dict[str, Number] = {}
    cause = "not known: no common way of computing this gives the kernel's bits"
    if status != "unlike":
        divided = _divide(best.model, evidence)
        stages = [_stage(share, unit) for share in divided.shares]
        formula, kinds, cause = _sums(divided, unit, stages)
        if status == "nearest":
            cause = f"computed that way, {cause}"
    alike = sum(score.same == compared for score in scores) - 1 if status == "matches" else 0
    return Explanation(
        **common,
        status=status,
        model=best.model.name,
        same=best.same,
        compared=compared,
        alike=alike,
        formula=formula,
        stages=stages,
        kinds=kinds,
        cause=cause,
        others=_others(scores, best, unit),
    )


def _divide(model: Model, evidence: _Evidence) -> Budget:
    """The budget of the explained element."""
    assert evidence.place is not None
    row, column = evidence.place
    whole = trace(model, evidence.given)
    by_row = evidence.got.ndim == 2
    width = evidence.got.shape[-1]

    def exact(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return mp.mpf(value)
        if not by_row:
            return mp.mpf(float(value.reshape(-1)[column].double()))
        line = value if value.ndim == 1 else value[row]
        if line.numel() == 1 and width != 1:
            return mp.mpf(float(line.double()))
        return np.array([mp.mpf(item) for item in line.double().tolist()], dtype=object)

    with mpmath.workprec(BITS):
        given = {name: exact(value) for name, value in evidence.given.items()}
        traced = {step.name: exact(whole[step.name]) for step in model.steps}
    formats_of = {step.name: whole[step.name].dtype for step in model.steps}
    divided = budget(model, traced, given, column if by_row else 0)
    shares = tuple(
        Share(item.step, (item.value, formats_of[item.step.name]), item.exact, item.effect, item.lost)
        for item in divided.shares
    )
    return Budget(divided.formula, shares)


def _stage(share: Share, unit: _Unit) -> Stage:
    value, dtype = share.value
    fmt = formats.of(dtype)
    off: Number | None = None
    if mp.isfinite(value) and mp.isfinite(share.exact):
        exact = rational(share.exact)
        off = number(float((rational(value) - exact) / fmt.ulp(exact)))
    return Stage(
        text=share.step.text,
        kind=share.step.kind,
        value=repr(float(value)) if fmt.name == "float64" else f"{float(value):.9g}",
        off=off,
        effect=number(unit.ulps(share.effect) if mp.isfinite(share.effect) else math.nan),
        lost_bits=None if share.lost is None else number(share.lost),
    )


def _sums(divided: Budget, unit: _Unit, stages: list[Stage]) -> tuple[Number | None, dict[str, Number], str]:
    """The share of the formula itself, the shares by kind of step, and the largest of all as a sentence."""
    strange = _strange(divided.shares)
    if strange is not None:
        cause = f"{strange.step.text} is {float(strange.value[0])!r} in {_name(strange.value[1])}"
        if mp.isfinite(strange.exact):
            cause += f"; exactly it is {mp.nstr(strange.exact, 6)}"
        return None, {}, cause
    if not mp.isfinite(unit.truth) or not mp.isfinite(divided.formula):
        return None, {}, "the exact value is not a finite number: there is no error to divide"
    formula = unit.ulps(divided.formula - unit.truth)
    formula = 0.0 if abs(formula) < _NOTHING else formula
    kinds: dict[str, float] = {}
    for stage in stages:
        kinds[stage.kind] = kinds.get(stage.kind, 0.0) + value_of(stage.effect)
    total = formula + sum(kinds.values())
    return number(formula), {kind: number(value) for kind, value in kinds.items()}, _cause(stages, formula, total)


def _strange(shares: Sequence[Share]) -> Share | None:
    """The step that brings an infinity or NaN into the chain: out of finite numbers, or NaN out of infinities."""
    values = [share.value[0] for share in shares]
    if all(mp.isfinite(value) for value in values):
        return None
    made = [share for share in shares if not mp.isfinite(share.value[0]) and mp.isfinite(share.exact)]
    made += [share for share in shares if mp.isnan(share.value[0])]
    made += [share for share in shares if not mp.isfinite(share.value[0])]
    return made[0]


def _cause(stages: list[Stage], formula: float, total: float) -> str:
    place = max(range(len(stages)), key=lambda at: abs(value_of(stages[at].effect)))
    stage, effect = stages[place], value_of(stages[place].effect)
    if abs(formula) > abs(effect):
        return f"the formula itself: with every step exact it is {signed(formula)} ULP off"
    if stage.kind == "output":
        return f"rounding the result: {signed(effect)} of {signed(total)} ULP"
    off = "" if stage.off is None else f", {abs(value_of(stage.off)):.3g} ulp off,"
    text = f"{stage.text}{off} moves the result by {signed(effect)} of {signed(total)} ULP"
    later = [item for item in stages[place:] if item.lost_bits is not None and value_of(item.lost_bits) >= _CANCELS]
    if later:
        worst = max(later, key=lambda item: value_of(item.lost_bits or 0.0))
        lost = value_of(worst.lost_bits or 0.0)
        text += f": {worst.text} cancels " + ("every bit" if math.isinf(lost) else f"{lost:.0f} bits")
    return text


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _others(scores: list[_Score], best: _Score, unit: _Unit) -> list[Other]:
    """Other formulas at this element in the arithmetic of the best one, then in others; the most accurate of each."""
    kept: dict[tuple[str, str], Other] = {}
    for score in scores:
        key = _written(score.model, best.model)
        if score.here is None or key == _written(best.model, best.model):
            continue
        other = Other(score.model.name, number(unit.error(score.here)), score.same)
        if key not in kept or _size(other) < _size(kept[key]):
            kept[key] = other
    ranked = sorted(kept.items(), key=lambda item: _size(item[1]))
    alike = [other for key, other in ranked if key[1] == best.model.arithmetic]
    apart = [other for key, other in ranked if key[1] != best.model.arithmetic]
    return alike[:OTHERS] + apart[:OTHERS]


def _written(model: Model, best: Model) -> tuple[str, str]:
    """A formula without how its parts are put in order; another arithmetic than the best one's by its dtype alone."""
    arithmetic = model.arithmetic if model.arithmetic == best.arithmetic else model.arithmetic.split(",")[0]
    return model.formula.split(",")[0].split(";")[0], arithmetic


def _size(other: Other) -> float:
    error = abs(value_of(other.error))
    return math.inf if math.isnan(error) else error
