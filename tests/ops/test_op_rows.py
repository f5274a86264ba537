"""Row-wise ops where they are hard: large means, constant rows, outliers, extremes, infinities."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import flint
import pytest
import torch
from mpmath import mp
from torch import Tensor

from tests.ops.test_op_routes import PREC, covered, spoiled
from verify.ops import Op, Problem, get
from verify.ops.elements import arb_bits
from verify.ops.graph.functions import FUNCTIONS
from verify.ops.graph.shipped import merged
from verify.ops.op import Kept

NORMS = ("layer_norm", "layer_norm_residual", "layer_norm_residual_bias", "rms_norm", "rms_norm_residual")
OPS = (*NORMS, "softmax")
RECIPES = (
    *("randn", "mean 1e3", "mean 1e4", "near constant", "constant", "outlier", "tiny", "huge"),
    *("largest", "wide range", "subnormal", "cancelling", "pairs"),
)


@cache
def rows(recipe: str, shape: tuple[int, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    if recipe == "outlier":
        x[..., 0] = 1e4
    exponents = torch.randint(-60, 60, shape, generator=generator).double()
    # equal and opposite but for a few, of all magnitudes: the mean is far below what double-doubles keep of the largest
    half, width = shape[-1] // 2, shape[-1]
    pairs = x * torch.exp2(2 * exponents)
    pairs[..., half : 2 * half] = -pairs[..., :half]
    pairs = pairs[..., torch.randperm(width, generator=generator)]
    pairs[..., 0] *= 2.0**-60
    return {
        "mean 1e3": x + 1e3,
        "mean 1e4": x + 1e4,
        "near constant": 1e4 + 1e-3 * x,
        "constant": torch.full(shape, 1000.0, dtype=torch.float64),
        "tiny": x * 1e-20,
        "huge": x * 1e30,
        "largest": x * 5e37,
        "wide range": x * torch.exp2(exponents),
        "subnormal": x * 1e-42,
        "pairs": pairs,
        "cancelling": x * (1e30 if seed % 2 else -1e30),
    }.get(recipe, x)


def problem_of(op: Op, recipe: str, shape: tuple[int, int], dtype: torch.dtype) -> Problem:
    inputs: dict[str, Tensor | None] = {}
    for number, operand in enumerate(op.operands):
        if operand.role == "data":
            inputs[operand.name] = rows(recipe, shape, number).to(dtype)
        else:
            offset = 1.0 if operand.role == "scale" else 0.0
            inputs[operand.name] = (offset + 0.3 * rows("randn", shape[-1:], 10 + number)).to(dtype)
    upstream = {name: rows("randn", shape, 20 + i).to(dtype) for i, name in enumerate(op.outputs)}
    return Problem(inputs, op.resolve({}), upstream, op.outputs + op.gradients)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", OPS)
def test_the_bounds_hold_on_hard_rows(name: str, recipe: str) -> None:
    op = get(name)
    float32, bfloat16 = torch.float32, torch.bfloat16
    for dtype, shape in (
        *((float32, (1, 1)), (float32, (4, 37)), (float32, (2, 300))),
        *((bfloat16, (3, 2)), (bfloat16, (4, 37))),
    ):
        problem = problem_of(op, recipe, shape, dtype)
        for result, fast in op.fast(problem).items():
            assert covered(op, problem, result, fast, 8), (result, dtype, shape)


@pytest.mark.parametrize("name", OPS)
def test_the_longest_row(name: str) -> None:
    """Of 65,537 elements for the norm that has all operands; the others have the same sums."""
    op = get(name)
    width = 65_537 if name == "layer_norm_residual_bias" else 8_193
    problem = problem_of(op, "mean 1e4", (1, width), torch.float32)
    for result, fast in op.fast(problem).items():
        assert covered(op, problem, result, fast, 3), result


@pytest.mark.parametrize("recipe", ["randn", "wide range"])
@pytest.mark.parametrize("name", ["layer_norm_residual_bias", "rms_norm", "linear"])
def test_sums_over_equal_rows_are_those_of_one_row_of_each(
    name: str, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit of 160, and the fast reference is as close as with few rows."""
    op, few = get(name), torch.arange(600) % 7
    problem = problem_of(op, recipe, (600, 2), torch.float32)
    if name == "linear":
        problem.inputs["weight"], problem.inputs["bias"] = torch.randn(2, 2), torch.randn(2)  # type: ignore[index]
        problem = replace(problem, params={"activation": "gelu"})
    inputs = {n: each[few] if each is not None and len(each) == 600 else each for n, each in problem.inputs.items()}
    sums = [result for result in op.gradients if inputs[result[1:]].ndim == 1 or result == "dweight"]  # type: ignore
    problem = replace(problem, inputs=inputs, results=tuple(sums))
    data = [operand.name for operand in op.operands if operand.role == "data"]
    assert len(merged(problem, data).upstream["y"]) < 100
    plain = replace(problem, kept=Kept(exact={"merged": None}))
    assert sums and merged(plain, data) is plain
    for result in sums:
        together, apart = (op.points(each, result, [0, 1]) for each in (problem, plain))
        for one, other in zip(together, apart, strict=True):
            assert abs(one.mp(PREC) - other.mp(PREC)) <= mp.ldexp(abs(other.mp(PREC)), 8 - PREC)
            assert one.arb(PREC).overlaps(other.arb(PREC))  # type: ignore[misc]
        if name != "linear":
            assert covered(op, problem, result)


def naive_layer_norm(x: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = x.square().mean(-1, keepdim=True) - mean.square()
    return (x - mean) / torch.sqrt(variance.clamp(min=0) + 1e-5)


def test_the_closeness_check_sees_naive_moments() -> None:
    """Seeded bug: E[x^2] - E[x]^2 in plain float64 is some 1e8 units off at a mean of 1e4."""
    op = get("layer_norm")
    x = rows("near constant", (3, 40), 1)
    problem = Problem({"x": x, "weight": None, "bias": None}, op.resolve({}))
    good = op.fast(problem)["y"]
    assert covered(op, problem, "y", good)
    assert not covered(op, problem, "y", replace(good, value=naive_layer_norm(x)))


def test_layer_norm_by_hand() -> None:
    """Rows whose answer is rational: +-1, a constant row, and weight and bias on top."""
    op = get("layer_norm")
    x = torch.tensor([[-3.0, 3.0], [1000.0, 1000.0]])
    inputs = {"x": x, "weight": torch.tensor([2.0, 4.0]), "bias": torch.tensor([0.5, -4.0])}
    zero_eps = Problem(inputs, op.resolve({"eps": 0.0}))
    some_eps = Problem(inputs, op.resolve({}))
    first = [point.mp(100) for point in op.points(zero_eps, "y", range(4))]
    assert first[:2] == [mp.mpf(-1.5), mp.zero]
    assert mp.isnan(first[2]) and mp.isnan(first[3])
    assert [point.mp(100) for point in op.points(some_eps, "y", [2, 3])] == [0.5, -4]
    assert op.fast(some_eps)["y"].value[1].tolist() == [0.5, -4.0]
    assert op.fast(zero_eps)["y"].value[1].isnan().all()


def test_a_constant_row_is_exactly_at_its_mean() -> None:
    """Its scale is 0 too, so any bound but 0 would leave every element of a run of such rows to exact arithmetic."""
    op = get("layer_norm")
    inputs = {"x": torch.full((3, 257), 1000.1), "weight": torch.ones(257), "bias": None}
    problem = Problem(inputs, op.resolve({}), {"y": torch.randn(3, 257)}, ("y", "dweight"))
    for fast in op.fast(problem).values():
        assert not fast.value.any() and not fast.bound.any()


def test_the_sum_is_exact_and_y_belongs_to_the_unrounded_sum() -> None:
    """1e30 + 1 - 1e30 is 1, and a sum that rounds to a constant row in float32 is not one."""
    op = get("layer_norm_residual_bias")
    inputs = {
        "x": torch.tensor([[1e30, 1.0]]),
        "residual": torch.tensor([[1.0, 2.0**-40]]),
        "input_bias": torch.tensor([-1e30, 0.0]),
        "weight": None,
        "bias": None,
    }
    problem = Problem(inputs, op.resolve({}), results=("y", "s"))
    s = op.points(problem, "s", [0, 1])
    assert [point.mp(100) for point in s] == [1, 1 + mp.ldexp(1, -40)]
    assert covered(op, problem, "s")
    half = 2.0**-41
    expected = half / math.sqrt(half * half + 1e-5)
    assert covered(op, problem, "y")
    assert float(op.points(problem, "y", [1])[0].mp(100)) == pytest.approx(expected, rel=1e-15, abs=0)


def test_a_mean_that_large_elements_hide_counts_beside_small_ones() -> None:
    """2^100 and 2^40 cancel, 2^-40 is left: the mean is 2^-43, the root of the variance 2^99. Hunts find such rows."""
    op = get("layer_norm")
    x = torch.tensor([[2.0**100, -(2.0**40), -(2.0**100), 0.0, 2.0**40, 0.0, 2.0**-40, 0.0]])
    inputs = {"x": torch.cat([x, torch.arange(16.0).view(2, 8)]), "weight": torch.ones(8), "bias": torch.zeros(8)}
    problem = Problem(inputs, op.resolve({}), {"y": torch.tensor([[1.0], [0.0], [0.0]]).expand(3, 8)}, ("y", "dweight"))
    fast = op.fast(problem)
    expected = [-(2.0**-142), -(2.0**-142), 7 * 2.0**-142, -(2.0**-142)]
    for found in (fast["y"].value[0], fast["dweight"].value):
        assert [found[column].item() for column in (3, 5, 6, 7)] == pytest.approx(expected, rel=1e-15, abs=0)
    assert op.points(problem, "y", [3])[0].mp(100) == pytest.approx(-(2.0**-142), rel=1e-15, abs=0)


def test_rms_norm_by_hand() -> None:
    op = get("rms_norm")
    x = torch.tensor([[3.0, 4.0, 0.0, 0.0]])
    problem = Problem({"x": x, "weight": None}, op.resolve({"eps": 0.0}))
    values = [point.mp(100) for point in op.points(problem, "y", range(4))]
    with mp.workprec(120):
        wanted = [mp.mpf(6) / 5, mp.mpf(8) / 5, mp.zero, mp.zero]
        assert all(abs(a - b) <= mp.ldexp(1, -98) for a, b in zip(values, wanted, strict=True))


def test_softmax_by_hand() -> None:
    """Equal inputs, a masked element, a row that is all masked, and equal upstream gradients."""
    op = get("softmax")
    x = torch.tensor([[2.0, 2.0, -math.inf], [-math.inf] * 3, [1.0, math.inf, 0.0]])
    upstream = torch.tensor([[1.0, 3.0, 5.0], [1.0] * 3, [1.0] * 3])
    problem = Problem({"x": x}, {}, {"y": upstream}, ("y", "dx"))
    y = [point.mp(100) for point in op.points(problem, "y", range(9))]
    dx = [point.mp(100) for point in op.points(problem, "dx", range(9))]
    assert y[:3] == [0.5, 0.5, 0] and all(map(mp.isnan, y[3:]))
    assert dx[:3] == [-0.5, 0.5, 0] and all(map(mp.isnan, dx[3:]))
    fast = op.fast(problem)
    assert fast["y"].value[0].tolist() == [0.5, 0.5, 0.0] and fast["y"].value[1:].isnan().all()
    assert fast["dx"].value[0].tolist() == [-0.5, 0.5, 0.0]
    equal = Problem({"x": torch.randn(1, 5)}, {}, {"y": torch.full((1, 5), 0.3)}, ("dx",))
    assert all(abs(point.mp(100)) < 2.0**-1000 for point in op.points(equal, "dx", range(5)))


def test_softmax_keeps_what_the_difference_to_the_maximum_rounds_away() -> None:
    """-87.33 - 3e-9 needs 59 bits; its rounding alone would cost some 40 units."""
    op = get("softmax")
    tops = torch.arange(1.0, 9.0).view(8, 1) * 3.1e-9
    problem = Problem({"x": torch.cat([tops - 87.33, tops], -1)}, {})
    assert (problem.inputs["x"].double().diff(dim=-1) > 87).all()  # type: ignore[union-attr]
    assert covered(op, problem, "y")


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("name", OPS)
def test_fast_and_exact_agree_about_what_is_not_finite(name: str, value: float) -> None:
    """One bad element, then one bad row, in each operand and each upstream gradient in turn."""
    op = get(name)
    places = [operand.name for operand in op.operands] + ["up " + name for name in op.outputs]
    for place in places:
        problem = problem_of(op, "randn", (3, 4), torch.float32)
        tensor = problem.upstream[place[3:]] if place[:3] == "up " else problem.inputs[place]
        assert tensor is not None
        tensor[..., 1] = (
            torch.where(torch.arange(tensor[..., 1].numel()) == 1, value, 0.5).view_as(tensor[..., 1])
            if tensor.ndim == 2
            else value
        )
        if tensor.ndim == 2:
            tensor[2] = value
        assert spoiled(op, problem), place


def test_a_row_of_huge_numbers_costs_no_exponential_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Any]()
    monkeypatch.setitem(FUNCTIONS, "exp", replace(FUNCTIONS["exp"], arb=lambda x: (asked.append(x), x.exp())[1]))
    x = torch.linspace(-3e30, 3e30, 2048, dtype=torch.float32)[None]
    problem = Problem(inputs={"x": x}, params=get("softmax").resolve({}))
    ball = get("softmax").points(problem, "y", [2047])[0].arb(20_480)
    with arb_bits(20_480):
        assert abs(ball - 1) < flint.arb(2) ** -20_000
    assert len(asked) < 8
