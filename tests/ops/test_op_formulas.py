"""The program of every shipped op against a second formula, in all regimes, every gradient.

Both arithmetics of a run evaluate the same steps of the program. So it takes a formula written by hand to show that
these are the steps of the op.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from mpmath import mp

from tests.ops.cases import build, variants
from tests.ops.formulas import formula
from verify.cases import counter
from verify.cases.case import Case
from verify.ops import Problem, get, names
from verify.ops.op import Op, Point
from verify.truth.exact import digits

PREC = 110
ELEMENTWISE = ("gelu", "silu", "geglu", "swiglu", "geglu_split", "swiglu_split")
ROW_OPS = ("softmax", *(name for name in names() if "norm" in name))
ROWS = ("randn", "mean 1e4", "nearly constant", "outlier", "huge 1e30", "spread")
MATRICES = ("randn", "mean 1e3", "outlier", "spread")


def same(value: Any, expected: Any) -> bool:
    if not mp.isfinite(expected) or not mp.isfinite(value):
        return bool(mp.isnan(value) and mp.isnan(expected)) or bool(value == expected)
    with mp.workprec(2 * PREC):
        return bool(abs(value - expected) <= mp.ldexp(abs(expected), 12 - PREC) or abs(expected) < mp.ldexp(1, -1300))


def compared(op: Op, problem: Problem, most: int, seed: int = 0) -> int:
    """Compares up to `most` elements of each result and returns how many."""
    count = 0
    for result, fast in op.fast(problem).items():
        size = fast.value.numel()
        places = range(size) if size <= most else sorted(set(counter.below(seed, result, most, size).tolist()))
        for place, point in zip(places, op.points(problem, result, places), strict=True):
            expected = formula(op.name, problem, result, place)(PREC)
            assert same(point.mp(PREC), expected), (op.name, problem.params, result, place)
            count += 1
    return count


def problem_of(op: Op, params: dict[str, Any], dims: tuple[int, ...], fill: str, seed: int, dtype: str) -> Problem:
    case = Case(seed=seed, params=params, dtype=dtype, dims=dims, fill=fill, upstream="normal")
    return build(op, case)


def elementwise(name: str, elements: int, seed: int) -> int:
    op, count = get(name), 0
    for params in variants(op):
        for fill, dtype in (("mixed", "float32"), ("near", "float32"), ("mixed", "bfloat16"), ("normal", "float64")):
            problem = problem_of(op, params, (elements // 64, 64), fill, seed, dtype)
            count += compared(op, problem, elements)
    return count


def rows(name: str, seed: int, most: int) -> int:
    op = get(name)
    dims = [(3, width) for width in (1, 2, 31, 64)]
    cases = [(fill, shape) for fill in ROWS for shape in dims]
    return sum(compared(op, problem_of(op, {}, shape, fill, seed, "float32"), most) for fill, shape in cases)


def layers(seed: int, most: int, dtypes: tuple[str, ...] = ("float32", "bfloat16")) -> int:
    op = get("linear")
    return sum(
        compared(op, problem_of(op, params, (5, 9, 4), fill, seed, dtype), most)
        for params in variants(op)
        for fill in MATRICES
        for dtype in dtypes
    )


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_an_elementwise_program_is_its_formula(name: str) -> None:
    assert elementwise(name, 128, seed=0) >= 800


@pytest.mark.parametrize("name", ROW_OPS)
def test_a_program_of_rows_is_its_formula(name: str) -> None:
    assert rows(name, seed=0, most=30) >= 700


def test_the_program_of_a_linear_layer_is_its_formula() -> None:
    assert layers(seed=0, most=8, dtypes=("float32",)) >= 600


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ELEMENTWISE, *ROW_OPS, "linear"])
def test_a_hundred_thousand_elements_of_each_op(name: str) -> None:
    count = seed = 0
    while count < 100_000:
        seed += 1
        if name in ROW_OPS:
            count += rows(name, seed, 200)
        else:
            count += layers(seed, 20) if name == "linear" else elementwise(name, 4_096, seed)


@pytest.mark.parametrize("name", ["gelu", "silu", "geglu_split", "swiglu"])
def test_infinite_operands_have_the_limit(name: str) -> None:
    """Where the program itself has NaN, as -inf * 0; also beside infinite gradients and other operands."""
    op = get(name)
    special = [0.0, math.inf, -math.inf, math.nan, 3.4e38, -3.4e38, 1.0, -0.75, -100.0]
    names = [operand.name for operand in op.operands]
    width = 2 if name == "swiglu" else 1
    columns = torch.cartesian_prod(*[torch.tensor(special)] * (width * len(names)), torch.tensor(special[:6]))
    inputs = {each: columns[:, place * width : (place + 1) * width] for place, each in enumerate(names)}
    problem = Problem(inputs, op.resolve({}), {"y": columns[:, -1:]}, ("y", *op.gradients))
    assert compared(op, problem, 1_500) >= 100


@pytest.mark.parametrize(("x", "dtype"), [(-1.7e308, torch.float64), (-3.4e38, torch.float32)])
@pytest.mark.parametrize("params", variants(get("gelu")), ids=str)
def test_digits_below_every_format_are_right(x: float, dtype: torch.dtype, params: dict[str, Any]) -> None:
    """Reports print the truth of special values, though the verdict needs no digit of such a number."""
    op = get("gelu")
    problem = Problem({"x": torch.tensor([x], dtype=dtype)}, params, {}, ("y",))
    (point,) = op.points(problem, "y", [0])
    own = formula("gelu", problem, "y", 0)
    assert digits(point, 17) == digits(Point(own, point.arb), 17)
