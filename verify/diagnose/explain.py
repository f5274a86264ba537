"""Divides the error of one element among the steps of a computation.

A step is one operation of a program (`verify.ops.graph`). Its effect is the change of the element if only that step is
rounded (`verify.diagnose.roundings`). There are two programs:

* the kernel's own, if it is written in PyTorch. It is used only if it accounts for the measured error. It also shows
  the error of the formula itself, with no step rounded.
* the definition, which is the PyTorch function that the kernel is judged against. Every kernel has one.

Two figures exist for every kernel: the error of the exact value rounded once, and the effect of half an ulp of the
input.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
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
from verify.diagnose.roundings import Roundings, roundings
from verify.errors import UsageError
from verify.measure.call import Measured, run_kernel
from verify.ops.graph.program import Program, trace
from verify.ops.graph.shipped import operands_of, run_of
from verify.ops.graph.steps import Run
from verify.ops.op import Op, Problem
from verify.records.figure import signed
from verify.records.record import Number, number, value_of
from verify.truth import formats
from verify.truth.enclosure import dyadic
from verify.truth.formats import Format, power_of_two
from verify.truth.ulp import bits_of, pattern_at

Owner = Literal["kernel", "definition"]

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
    plain = Explanation(
        replay=found,
        least=number(unit.least(found)),
        sensitivity=_sensitivity(kernel.op, case, measured, result, index, unit),
        cause="",
    )
    got = measured.results[result]
    if not mp.isfinite(unit.truth):
        return _with(plain, cause="the exact value is not a finite number: there is no error to divide")
    if got.dtype == torch.float64:
        return _with(plain, cause="steps are evaluated in float64, which shows nothing of a result in float64")
    dtypes = [got.dtype] if got.dtype == torch.float32 else [got.dtype, torch.float32]
    problem = problem_of(kernel.op, case, measured.inputs, measured.upstream, (result,))
    for owner, program, run in _programs(kernel, case, problem):
        rounded = roundings(program, run, result, index, dtypes)
        divided = _Divided(owner, rounded, tuple(map(_name, dtypes)), got, index, unit, value_of(plain.least))
        if rounded.steps and divided.resolved and (owner == "definition" or divided.accounts):
            return divided.told(plain)
    return _with(plain, cause=f"not known: float64 has too few digits for the steps of {result} here, or none rounds")


def _with(plain: Explanation, **fields: Any) -> Explanation:
    return msgspec.structs.replace(plain, **fields)


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
    """Holds the error of an element and the effects of one program's steps on it. All figures are in units."""

    owner: Owner
    rounded: Roundings
    formats: tuple[str, ...]  # the format of the result, and float32
    got: Tensor
    index: int
    unit: _ErrorUnit
    least: float

    @property
    def error(self) -> float:
        return self.unit.error(pattern_at(self.got.contiguous(), self.index))

    @property
    def formula(self) -> float:
        """Returns the error of the program with no step rounded. A definition has none."""
        if self.owner == "definition":
            return 0.0
        least, most = self.rounded.ends
        if least <= self.unit.truth <= most:
            return 0.0
        return self.unit.ulps((mp.mpf(least) + mp.mpf(most)) / 2 - self.unit.truth)

    @property
    def resolved(self) -> bool:
        """True if float64 resolves the element, with no step rounded, well enough for the effects to mean something."""
        least, most = self.rounded.ends
        return self.unit.ulps(mp.mpf(most) - mp.mpf(least)) <= _RESOLVED * max(1.0, abs(self.error))

    def effects(self, place: int) -> list[float]:
        """Returns the size of every step's effect in one of the formats. A NaN becomes infinity."""
        moves = [abs(self.unit.ulps(mp.mpf(step.moves[place]))) for step in self.rounded.steps]
        return [math.inf if math.isnan(move) else move for move in moves]

    @property
    def accounts(self) -> bool:
        """True if all effects together are large enough for the error."""
        return abs(self.error - self.formula) <= _ACCOUNTED[self.owner] * sum(self.effects(0)) + 0.5

    def wholes(self) -> list[Whole]:
        """Returns the program with every step rounded: its error here, and how many elements have the kernel's bits."""
        found = []
        for name, whole in zip(self.formats, self.rounded.wholes, strict=True):
            made = whole.to(self.got.dtype).to(self.got.device)
            error = self.unit.error(pattern_at(made.contiguous(), self.index))
            both_nan = torch.isnan(made.double()) & torch.isnan(self.got.double())
            same = (bits_of(made) == bits_of(self.got)) | both_nan
            found.append(Whole(name, number(error), int(same.sum())))
        return found

    def told(self, plain: Explanation) -> Explanation:
        """Returns the explanation with the figures of every step."""
        wholes = self.wholes()
        steps = [
            Rounded(
                text=step.text,
                value=f"{step.needed:,} numbers" if step.value is None else f"{step.value:.6g}",
                moves={
                    name: number(self.unit.ulps(mp.mpf(by))) for name, by in zip(self.formats, step.moves, strict=True)
                },
            )
            for step in self.rounded.steps
        ]
        return _with(
            plain,
            owner=self.owner,
            steps=steps,
            formula=number(self.formula) if self.owner == "kernel" else None,
            wholes=wholes,
            compared=self.got.numel(),
            cause=self.cause(wholes),
        )

    def cause(self, wholes: list[Whole]) -> str:
        """Returns the cause of the error as a sentence."""
        # the kernel's working format is the one with the most equal bits
        working = max(range(len(wholes)), key=lambda place: wholes[place].same)
        effects, name = self.effects(working), self.formats[working]
        largest = max(range(len(effects)), key=effects.__getitem__)
        if self.owner == "kernel" and not abs(self.formula) <= max(effects[largest], 0.5):
            return f"the formula itself: with no step rounded it is {signed(self.formula)} ULP off"
        if abs(self.error) <= abs(self.least):
            return "rounding the result: it is the exact value, rounded once"
        if not self.accounts:
            return (
                f"the kernel computes something else: the steps of the definition, each rounded to {self.formats[0]}, "
                f"move the result by {sum(self.effects(0)):.3g} ULP together"
            )
        text = self.rounded.steps[largest].text
        text = f"{text} in {name} moves the result most, by {effects[largest]:.3g} of {abs(self.error):.4g} ULP"
        if name != self.formats[-1]:
            text += f"; in {self.formats[-1]} no step moves it by more than {max(self.effects(-1)):.3g}"
        return text


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

    fmt: Format
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
        return float(steps / power_of_two(self.exponent))

    def least(self, found: Replay) -> float:
        """Returns the error of the correctly rounded result."""
        return self.error(int(found.right_hex, 16)) if found.right_hex.startswith("0x") else 0.0


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


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
