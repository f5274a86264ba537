"""Every op and result: two exact routes agree, the reference is close, and PyTorch in float64 has the same gradients.

`test_op_formulas.py` compares with second formulas. One case per op and setting; the same cases serve all checks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import flint
import pytest
import torch
from mpmath import mp
from torch import Tensor

from tests.ops.exactly import mpf_to_arb
from verify.ops import Op, Point, Problem, get, names
from verify.ops.elements import arb_bits
from verify.ops.op import Fast

PREC = 160


@dataclass(frozen=True)
class Case:
    op: str
    dims: tuple[int, ...]
    params: tuple[tuple[str, Any], ...] = ()
    absent: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [self.op, "x".join(map(str, self.dims)), *(str(v) for _, v in self.params)]
        return "-".join(parts + ["no_" + name for name in self.absent])


GATES = [("gelu",), ("geglu",), ("geglu_split",)]
FORMS = [(("approximate", "none"),), (("approximate", "tanh"),)]
CASES = [
    *[Case(op, (2, 3), form) for (op,) in GATES for form in FORMS],
    *[Case(op, (2, 3)) for op in ("silu", "swiglu", "swiglu_split")],
    *[
        Case(op, (2, 4), absent=absent)
        for op in ("layer_norm", "layer_norm_residual", "layer_norm_residual_bias")
        for absent in ((), ("weight", "bias"))
    ],
    Case("layer_norm", (2, 3), (("eps", 0.5),), ("bias",)),
    *[Case(op, (2, 4), absent=absent) for op in ("rms_norm", "rms_norm_residual") for absent in ((), ("weight",))],
    Case("softmax", (2, 4)),
    *[
        Case("linear", (2, 3, 2), (("activation", activation),), absent)
        for activation in ("id", "gelu", "gelu_tanh", "squared_relu", "geglu", "geglu_tanh")
        for absent in ((), ("bias",))
    ],
]
each_case = pytest.mark.parametrize("case", CASES, ids=str)


def grid(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal numbers rounded to multiples of 2^-6, never zero."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float64) * 64
    return ((values.floor() + 0.5) / 64).to(dtype)


def problem_of(case: Case, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Op, Problem]:
    op = get(case.op)
    params = op.resolve(dict(case.params))
    inputs: dict[str, Tensor | None] = {}
    for number, (name, shape) in enumerate(op.shapes(case.dims, params).items()):
        inputs[name] = None if name in case.absent else grid(shape, seed + number, dtype)
    gradients = tuple(g for g in op.gradients if inputs[g[1:]] is not None)
    forward = op.fast(Problem(inputs, params, results=op.outputs))
    upstream = {
        name: grid(tuple(forward[name].value.shape), seed + 100 + number, dtype)
        for number, name in enumerate(op.outputs)
    }
    return op, Problem(inputs, params, upstream, op.outputs + gradients)


def all_points(op: Op, problem: Problem, result: str, count: int) -> list[Point]:
    return op.points(problem, result, range(count))


def routes_agree(point: Point, prec: int = PREC) -> bool:
    """Whether mpmath's value lies in Arb's ball and the ball is as small as was asked for."""
    value, ball = point.mp(prec), point.arb(prec)
    if mp.isnan(value):
        return bool(ball.is_nan())
    if mp.isinf(value):
        return not ball.is_nan() and not ball.is_finite() and bool((ball > 0) == (value > 0))
    with arb_bits(4 * prec):
        exact = mpf_to_arb(value)
        if abs(value) < mp.ldexp(1, -1300) and ball.abs_upper() < flint.arb((1, -1300)):
            return True  # below every format, where mpmath has 0 for e^x
        if value == 0:
            return bool(ball.contains(exact) and ball.abs_upper() < flint.arb((1, -prec)))
        relative = abs(ball - exact) / abs(exact)
        return bool(relative.abs_upper() < flint.arb((1, 8 - prec)))


def inside(value: float, bound: float, exact: Any) -> bool:
    """Whether the exact value lies within the bound of a reference; an infinite bound leaves it open."""
    if math.isinf(bound):
        return True
    if not mp.isfinite(exact) or not math.isfinite(value):
        return bool((math.isnan(value) and mp.isnan(exact)) or mp.mpf(value) == exact)
    return bool(abs(mp.mpf(value) - exact) <= bound)


def covered(op: Op, problem: Problem, result: str, fast: Fast | None = None, most: int = 24) -> bool:
    """Whether about `most` exact values of a result lie within the bounds of its reference, or of `fast`."""
    found = fast or op.fast(problem)[result]
    values, bounds = found.value.flatten().tolist(), found.bound.flatten().tolist()
    some = range(0, len(values), max(1, len(values) // most))
    points = zip(some, op.points(problem, result, some), strict=True)
    return all(inside(values[at], bounds[at], point.mp(PREC)) for at, point in points)


def spoiled(op: Op, problem: Problem) -> int:
    """How many elements are not finite; by mpmath and Arb alike, and all within the bounds of the reference."""
    count = 0
    for result, fast in op.fast(problem).items():
        values, bounds = fast.value.flatten().tolist(), fast.bound.flatten().tolist()
        points = all_points(op, problem, result, len(values))
        for value, bound, point in zip(values, bounds, points, strict=True):
            exact = point.mp(PREC)
            assert inside(value, bound, exact), (result, value, exact)
            assert mp.isfinite(exact) == bool(point.arb(PREC).is_finite()), result
            count += not mp.isfinite(exact)
    return count


@each_case
def test_routes_agree(case: Case) -> None:
    op, problem = problem_of(case, torch.float32)
    for result in problem.results:
        count = op.fast(problem)[result].value.numel()
        points = all_points(op, problem, result, count)
        assert len(points) == count > 0
        assert all(routes_agree(point) for point in points), result


@each_case
def test_the_bound_of_the_reference_holds_and_is_narrow(case: Case) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        op, problem = problem_of(case, dtype, seed=7)
        for result, fast in op.fast(problem).items():
            assert covered(op, problem, result, fast), (dtype, result)
            assert float((fast.bound / (fast.scale + 1)).max()) <= 2.0**-40, (dtype, result)


@each_case
def test_baseline_and_autograd_agree_with_fast(case: Case) -> None:
    """PyTorch in float64 on moderate numbers: another implementation of value and gradient."""
    op, problem = problem_of(case)
    leaves = {
        name: None if tensor is None else tensor.clone().requires_grad_() for name, tensor in problem.inputs.items()
    }
    outputs = op.baseline(*leaves.values(), **problem.params)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    assert len(outputs) == len(op.outputs)
    fast = op.fast(problem)
    for name, output in zip(op.outputs, outputs, strict=True):
        torch.testing.assert_close(output, fast[name].value, rtol=1e-9, atol=1e-12)
    total = sum((output * problem.upstream[name]).sum() for name, output in zip(op.outputs, outputs, strict=True))
    assert isinstance(total, Tensor)
    total.backward()  # type: ignore[no-untyped-call]
    for name, leaf in leaves.items():
        if leaf is not None:
            torch.testing.assert_close(leaf.grad, fast["d" + name].value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("op_name", sorted({case.op for case in CASES} - {"linear"}))
@pytest.mark.parametrize("rows", [0, 2])
def test_empty_problems(op_name: str, rows: int) -> None:
    """No rows, or rows of no elements: empty results, and zero for sums over nothing."""
    op = get(op_name)
    params = op.resolve({})
    dims = (0, 3) if rows == 0 else (2, 0)
    inputs = {name: torch.zeros(shape) for name, shape in op.shapes(dims, params).items()}
    upstream = {name: torch.zeros(dims) for name in op.outputs}
    problem = Problem(inputs, params, upstream, op.outputs + op.gradients)
    for name, fast in op.fast(problem).items():
        like = inputs[name[1:]].shape if name not in op.outputs else dims
        assert fast.value.shape == torch.Size(like)
        assert not fast.value.any()


@pytest.mark.parametrize("dims", [(0, 3, 2), (2, 0, 3), (2, 3, 0)])
def test_empty_linear(dims: tuple[int, int, int]) -> None:
    op = get("linear")
    inputs = {name: torch.ones(shape) for name, shape in op.shapes(dims, {}).items()}
    upstream = {"y": torch.ones(dims[0], dims[2])}
    problem = Problem(inputs, op.resolve({}), upstream, op.outputs + op.gradients)
    fast = op.fast(problem)
    for result in problem.results:
        count = fast[result].value.numel()
        for value, point in zip(
            fast[result].value.flatten().tolist(),
            all_points(op, problem, result, count),
            strict=True,
        ):
            assert value == point.mp(80), result


def test_the_regimes_of_an_op_cover_every_number_once() -> None:
    for op, params in [(get(name), get(name).params) for name in names()] + [(get("gelu"), {"approximate": "tanh"})]:
        regimes = op.landmarks.regimes(params)
        ends = [-math.inf, *(regime.high for regime in regimes)]
        assert [regime.low for regime in regimes] == ends[:-1] and ends[-1] in (math.inf, -math.inf), op.name
        assert all(regime.low < regime.high for regime in regimes), op.name
        assert len({regime.name for regime in regimes}) == len(regimes), op.name
