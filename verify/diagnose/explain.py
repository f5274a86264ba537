"""Divides the error of one element among the steps of a computation.

A step is one operation of a program (`verify.ops.graph`). Its effect is the change of the element if only that step is
rounded. There are two programs:

* the kernel's own, if it is written in PyTorch. It is used only if it accounts for the measured error. It also shows
  the error of the formula itself, with no step rounded.
* the definition, which is the PyTorch function that the kernel is judged against. Every kernel has one.

Two figures exist for every kernel: the error of the exact value rounded once, and the effect of half an ulp of the
input.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Literal

import msgspec
import torch
from mpmath import mp
from torch import Tensor

from verify.backends import Backend
from verify.cases import Case, problem_of
from verify.declare.declaration import Kernel
from verify.diagnose.replay import replay, worst_index
from verify.diagnose.requests import Explanation, Replay, Rounded, Whole
from verify.errors import UsageError
from verify.measure.call import Measured, run_kernel
from verify.ops.graph.program import Program, run_of, trace
from verify.ops.graph.shipped import operands_of
from verify.ops.graph.spans import point
from verify.ops.graph.steps import Leaf, Plain, Run, Step
from verify.ops.graph.wording import names, rounds
from verify.ops.op import Op, Problem
from verify.records.figure import signed
from verify.records.record import Number, number, value_of
from verify.truth import formats
from verify.truth.enclosure import dyadic
from verify.truth.ulp import bits_of, pattern_at

Owner = Literal["kernel", "definition"]

_MOST = 128  # at most this many steps are rounded alone
BITS = 600  # bits of the exact value
_RESOLVED = 0.01  # ULP, or share of the error: effects are shown if float64 resolves the element this well
# A program accounts for an error up to this multiple of the sum of all effects. Steps that are rounded together may
# move an element more than each alone. A kernel rounds a sum many times, and here it is rounded once.
_ACCOUNTED: dict[Owner, float] = {"kernel": 16.0, "definition": 2.0}


def explain(kernel: Kernel, target: str, backend: Backend, case: Case, *, result: str, index: int) -> Explanation:
    """Divides the error of one element among the steps that lead to it."""
    found = replay(kernel, target, backend, case, result=result, index=index)
    measured = run_kernel(kernel, case, backend.device)
    unit = _ErrorUnit.of(kernel.op, case, measured, result, index, found)
    least = number(unit.error(int(found.right_hex, 16)) if found.right_hex.startswith("0x") else 0.0)
    plain = Explanation(found, least, _sensitivity(kernel.op, case, measured, result, index, unit), cause="")
    got, said = measured.results[result], partial(msgspec.structs.replace, plain)
    if not mp.isfinite(unit.truth):
        return said(cause="the exact value is not a finite number: there is no error to divide")
    if got.dtype == torch.float64:
        return said(cause="steps are evaluated in float64, which shows nothing of a result in float64")
    problem = problem_of(kernel.op, case, measured.inputs, measured.upstream, (result,))
    for owner, program, run in _programs(kernel, case, problem):
        divided = _Divided.of(owner, program, run, result, got, index, unit)
        if divided.steps and divided.resolved and (owner == "definition" or divided.accounts):
            formula = number(divided.formula) if owner == "kernel" else None
            figures = {"steps": divided.steps, "wholes": divided.wholes, "compared": got.numel()}
            return said(owner=owner, formula=formula, cause=divided.cause(value_of(least)), **figures)
    return said(cause=f"not known: float64 has too few digits for the steps of {result} here, or none rounds")


def _programs(kernel: Kernel, case: Case, problem: Problem) -> Iterator[tuple[Owner, Program, Run]]:
    """Yields the kernel's own program, if it is written in PyTorch, and the program of the definition."""
    present, gradients = operands_of(problem)
    keywords = {name: value for name, value in problem.params.items() if name in kernel.accepted}

    def called(*values: Tensor) -> Any:
        given = dict(zip(present, values, strict=True))
        return kernel.function(*(given.get(name) for name in kernel.operands), **keywords)

    examples = {name: torch.empty(value.shape, dtype=value.dtype, device="meta") for name, value in present.items()}
    with suppress(UsageError):  # the kernel is not written in PyTorch, or uses functions that cannot be traced
        program = trace(called, examples, outputs=kernel.outputs, differentiable=gradients, on_zeros=False)
        yield "kernel", program, run_of(program, problem)
    yield "definition", *kernel.op.program(problem)


@dataclass(frozen=True)
class _Divided:
    """Holds the error of an element and the effects of one program's steps on it. All figures are in units.

    The program is evaluated in float64, and the numbers of one step are rounded to a format, while all other steps
    remain exact. The change of the element is the effect of the step: a large one needs a wider format. Steps that
    round nothing (moved elements, a maximum, a condition) have no row. Their text is part of the next step's.
    """

    owner: Owner
    unit: _ErrorUnit
    error: float
    ends: tuple[float, float]  # enclose the element with no step rounded
    steps: list[Rounded]
    wholes: list[Whole]  # every step rounded, each sum once: the bits of a kernel that works in the format throughout

    @classmethod
    def of(
        cls, owner: Owner, program: Program, run: Run, result: str, got: Tensor, index: int, unit: _ErrorUnit
    ) -> _Divided:
        """Divides the error of an element among the steps of a program, in the result's format and in float32."""
        dtypes = list(dict.fromkeys([got.dtype, torch.float32]))
        program.decide(run, [result])
        end, steps = id(program.results[result]), program.needed_for([result])
        held: dict[int, Any] = {}
        for step in steps:
            held[id(step)] = step.span(run, [held[id(each)] for each in step.inputs])
        places, texts = program.places(run, result, [index], {}, every=True), names(steps)
        found, wholes = list[Rounded](), list[Whole]()
        for step in [step for step in steps if id(step) in places and rounds(step)][:_MOST]:
            moves: dict[str, Number] = {}
            for dtype in dtypes:
                changed = {id(step): _rounded(held[id(step)], dtype)}
                _follow(steps, run, held, changed)
                moved = _at(changed.get(end, held[end]), index) - _at(held[end], index)
                moves[formats.of(dtype).name] = number(unit.ulps(mp.mpf(moved)))
            mine = places[id(step)][0]
            value = f"{_at(held[id(step)], int(mine[0])):.6g}" if mine.size == 1 else f"{mine.size:,} numbers"
            found.append(Rounded(texts[id(step)], value, moves))
        for dtype in dtypes:
            changed = {id(step): held[id(step)] for step in steps if isinstance(step, Leaf | Plain)}
            _follow(steps, run, held, changed, dtype)
            made = changed[end].mid().to(got.dtype).to(got.device)
            same = (bits_of(made) == bits_of(got)) | (torch.isnan(made.double()) & torch.isnan(got.double()))
            error = unit.error(pattern_at(made.contiguous(), index))
            wholes.append(Whole(formats.of(dtype).name, number(error), int(same.sum())))
        least, most = (float(side.reshape(-1)[index]) for side in (held[end].lo, held[end].hi))
        return cls(owner, unit, unit.error(pattern_at(got.contiguous(), index)), (least, most), found, wholes)

    @property
    def formula(self) -> float:
        """Returns the error of the program with no step rounded. A definition has none."""
        least, most = self.ends
        if self.owner == "definition" or least <= self.unit.truth <= most:
            return 0.0
        return self.unit.ulps((mp.mpf(least) + mp.mpf(most)) / 2 - self.unit.truth)

    @property
    def resolved(self) -> bool:
        """True if float64 resolves the element, with no step rounded, well enough for the effects to mean something."""
        least, most = self.ends
        return self.unit.ulps(mp.mpf(most) - mp.mpf(least)) <= _RESOLVED * max(1.0, abs(self.error))

    def effects(self, name: str) -> list[float]:
        """Returns the size of every step's effect in one of the formats. A NaN becomes infinity."""
        moves = [abs(value_of(step.moves[name])) for step in self.steps]
        return [math.inf if math.isnan(move) else move for move in moves]

    @property
    def accounts(self) -> bool:
        """True if all effects together are large enough for the error."""
        own = sum(self.effects(self.wholes[0].format))
        return abs(self.error - self.formula) <= _ACCOUNTED[self.owner] * own + 0.5

    def cause(self, least: float) -> str:
        """Returns the cause of the error as a sentence. `least` is the error of the correctly rounded result."""
        # the kernel's working format is the one with the most equal bits
        name, last = max(self.wholes, key=lambda whole: whole.same).format, self.wholes[-1].format
        effects = self.effects(name)
        largest = max(range(len(effects)), key=effects.__getitem__)
        if self.owner == "kernel" and not abs(self.formula) <= max(effects[largest], 0.5):
            return f"the formula itself: with no step rounded it is {signed(self.formula)} ULP off"
        if abs(self.error) <= abs(least):
            return "rounding the result: it is the exact value, rounded once"
        if not self.accounts:
            own = self.wholes[0].format
            return (
                f"the kernel computes something else: the steps of the definition, each rounded to {own}, "
                f"move the result by {sum(self.effects(own)):.3g} ULP together"
            )
        text = self.steps[largest].text
        text = f"{text} in {name} moves the result most, by {effects[largest]:.3g} of {abs(self.error):.4g} ULP"
        return text + (
            f"; in {last} no step moves it by more than {max(self.effects(last)):.3g}" if name != last else ""
        )


def _rounded(span: Any, dtype: torch.dtype) -> Any:
    return point(span.mid().to(dtype).to(torch.float64))


def _at(span: Any, place: int) -> float:
    return float(span.mid().reshape(-1)[place])


def _follow(
    steps: Sequence[Step], run: Run, held: dict[int, Any], changed: dict[int, Any], dtype: torch.dtype | None = None
) -> None:
    """Evaluates again all steps that depend on `changed` spans, and rounds them to a dtype."""
    for step in steps:
        if id(step) not in changed and any(id(each) in changed for each in step.inputs):
            given = [changed.get(id(each), held[id(each)]) for each in step.inputs]
            found = step.span(run, given)
            changed[id(step)] = found if dtype is None or not rounds(step) else _rounded(found, dtype)


def worst_place(kernel: Kernel, backend: Backend, case: Case, result: str) -> int:
    """Returns the flat index of the worst element of a result, by the fast truth."""
    measured = run_kernel(kernel, case, backend.device)
    if result not in measured.results:
        raise UsageError(f"kernel {kernel.name!r} has no result {result!r} here; it has: {', '.join(measured.results)}")
    if not measured.results[result].numel():
        raise UsageError(f"{result} has no elements in this case")
    return worst_index(kernel, case, measured, result)


# -- the unit of every figure --------------------------------------------------------------------------


@dataclass(frozen=True)
class _ErrorUnit:
    """Holds the truth of an element and the size of its ULP, or of its ULP of scale if that judges the op."""

    fmt: formats.Format
    truth: Any  # mpf; NaN or infinite where the function is
    exponent: int

    @staticmethod
    def of(op: Op, case: Case, measured: Measured, result: str, index: int, found: Replay) -> _ErrorUnit:
        """Returns the unit of one replayed element. The scale changes the exponent by the ratio of its two errors."""
        fmt = formats.named(found.dtype)
        problem = problem_of(op, case, measured.inputs, measured.upstream, (result,))
        truth = op.points(problem, result, [index])[0].mp(BITS)
        exponent = fmt.ulp_exponent(rational(truth)) if mp.isfinite(truth) else fmt.min_ulp_exponent
        plain, scaled = found.worst.ulp, found.worst.scaled_ulp
        if scaled is not None and value_of(plain) and math.isfinite(value_of(plain)):
            exponent -= round(math.log2(value_of(scaled) / value_of(plain)))
        return _ErrorUnit(fmt, truth, exponent)

    def ulps(self, difference: Any) -> float:
        """Returns a real number in units."""
        return float(mp.ldexp(difference, -self.exponent))

    def error(self, pattern: int) -> float:
        """Returns the error of a pattern; NaN for a NaN."""
        if self.fmt.is_nan(pattern) or not mp.isfinite(self.truth):
            return math.nan
        truth = rational(self.truth)
        steps = self.fmt.error(pattern, truth) * self.fmt.ulp(min(max(truth, -self.fmt.overflow), self.fmt.overflow))
        return float(steps / formats.power_of_two(self.exponent))


def rational(value: Any) -> Fraction:
    """Returns a finite mpf as a rational; zero for numbers far below every format, such as exp(-1e76)."""
    sign, mantissa, exponent, _ = value._mpf_
    return dyadic(-int(mantissa) if sign else int(mantissa), int(exponent), up=bool(sign))


def _sensitivity(op: Op, case: Case, measured: Measured, result: str, index: int, unit: _ErrorUnit) -> Number | None:
    """Returns by how many units a function of one number moves if the number moves by half an ulp."""
    x = measured.inputs.get("x")
    if not op.is_unary or x is None or x.dtype == torch.float64 or not mp.isfinite(unit.truth):
        return None
    pattern, fmt = pattern_at(x, index), formats.of(x.dtype)
    if not fmt.is_finite(pattern):
        return None
    value = fmt.value(pattern)
    near = float(value + fmt.ulp(value) / 2)  # half an ulp needs one bit more than the format has
    upstream = {name: grad.reshape(-1)[index : index + 1] for name, grad in measured.upstream.items()}
    moved = Problem({"x": torch.tensor([near], dtype=torch.float64)}, op.resolve(case.params), upstream, (result,))
    there = op.points(moved, result, [0])[0].mp(BITS)
    return number(abs(unit.ulps(there - unit.truth))) if mp.isfinite(there) else None
