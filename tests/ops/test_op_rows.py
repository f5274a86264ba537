"""Row-wise ops where they are hard: large means, constant rows, outliers, extremes, infinities."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from mpmath import mp
from torch import Tensor

from tests.ops.test_op_routes import PREC, covered, spoiled
from verify.ops import Op, Problem, get
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
    for dtype, shape in ((torch.float32, (4, 37)), (torch.float32, (2, 300)), (torch.bfloat16, (3, 2))):
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
