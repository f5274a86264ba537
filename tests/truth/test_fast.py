"""The fast truth: its bound is checked, and its float64 pairs reproduce the exact value."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import flint
import pytest
import torch
from mpmath import mp

from tests.truth.every_value import nearest
from verify import ops
from verify.errors import BeyondEffort, TruthError
from verify.measure.judge import JudgedBy, judge_by
from verify.ops.op import Point, Problem
from verify.truth.enclosure import Enclosure
from verify.truth.exact import judge, judge_known, settle
from verify.truth.fast import Truth, check_bound, evaluate
from verify.truth.formats import named
from verify.truth.ulp import Policy, bits_of, errors, from_bits

GELU = ops.get("gelu")


def gelu_problem(x: torch.Tensor) -> Problem:
    params = GELU.resolve({})
    return Problem(inputs={"x": x}, params=params, upstream={"y": torch.ones_like(x)}, results=("y", "dx"))


def normal(count: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(1))


# -- the check of the certificate ---------------------------------------------------------------


def truth_of(whole: Problem, result: str) -> Truth:
    kinds = {"y": named("float32"), "dx": named("float32")}
    return evaluate(GELU, whole, kinds)[result]


def moved(truth: Truth, index: int, units_of_bound: float) -> Truth:
    value = truth.value.clone()
    value[index] += units_of_bound * truth.bound[index]
    return replace(truth, value=value)


@pytest.mark.parametrize("result", ["y", "dx"])
def test_a_value_moved_beyond_its_bound_stops_the_run(result: str) -> None:
    whole = gelu_problem(normal(40))
    truth = truth_of(whole, result)
    everything = list(range(40))
    points = GELU.points(whole, result, everything)
    check_bound(points, truth, everything)
    check_bound(points, moved(truth, 7, 0.25), everything)
    for by in (2.0, -2.0):
        with pytest.raises(TruthError) as caught:
            check_bound(points, moved(truth, 7, by), everything)
        assert str(caught.value).startswith("the fast reference gives ")
        assert "further apart than the bound" in str(caught.value)


def test_a_truth_that_cancels_to_nothing_is_held_against_its_bound_at_few_bits() -> None:
    asked: list[int] = []

    def about_zero(bits: int) -> flint.arb:
        asked.append(bits)
        return flint.arb(0, flint.arb(2) ** -bits)  # to any precision: which side of zero is never known

    point = Point(mp=lambda bits: mp.zero, arb=about_zero)
    truth = truth_of(gelu_problem(normal(1)), "y")
    near = replace(truth, value=torch.tensor([1e-20]), bound=torch.tensor([2e-20]))
    check_bound([point], near, [0])
    assert asked == [160]
    with pytest.raises(TruthError, match="the fast reference gives"):
        check_bound([point], replace(near, bound=torch.tensor([0.5e-20])), [0])
    assert asked == [160] * 2


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_fast_value_that_is_not_finite_where_the_truth_is_stops_the_run(wrong: float) -> None:
    whole = gelu_problem(normal(5))
    truth = truth_of(whole, "y")
    value = truth.value.clone()
    value[2] = wrong
    with pytest.raises(TruthError, match="the fast reference gives"):
        check_bound(GELU.points(whole, "y", [2]), replace(truth, value=value), [2])


def test_a_finite_fast_value_where_the_truth_is_not_stops_the_run() -> None:
    whole = gelu_problem(torch.tensor([math.inf, math.nan, -math.inf]))
    truth = truth_of(whole, "y")
    points = GELU.points(whole, "y", [0, 1, 2])
    check_bound(points, truth, [0, 1, 2])
    for index in (0, 1):
        value = truth.value.clone()
        value[index] = 1.0
        with pytest.raises(TruthError, match="the fast reference gives 1.0"):
            check_bound(points, replace(truth, value=value), [0, 1, 2])


def float64_inputs() -> torch.Tensor:
    special = [0.0, -0.0, 5e-324, -5e-324, 1e-310, 2.3e-308, 1e-300, 1.0, -0.75, -38.4, -38.5]
    special += [-37.0, -1e3, -1e300, 1e3, 1.7e308, 8.3, math.inf, -math.inf, math.nan]
    spread = normal(120).double() * torch.logspace(-3, 1.3, 120, dtype=torch.float64)
    return torch.cat([torch.tensor(special, dtype=torch.float64), spread])


@pytest.mark.parametrize("result", ["y", "dx"])
def test_float64_pairs_reproduce_the_exact_rounding(result: str) -> None:
    """The rounding that the pair decides is the one of the exact judge; what it leaves open is marked."""
    fmt, x = named("float64"), float64_inputs()
    whole = gelu_problem(x)
    truth = evaluate(GELU, whole, {"y": fmt, "dx": fmt})[result]
    assert truth.certificate == "exact"
    points = GELU.points(whole, result, range(x.numel()))
    right = torch.tensor([to_signed(nearest(point, fmt)) for point in points])
    decided = 0
    for step in (-1, 0, 1):
        got = from_bits(torch.where(right.abs() > 3, right + step, right), fmt)
        found = errors(got, truth.value, fmt, low=truth.low, bound=truth.bound)
        patterns = (bits_of(got)).tolist()
        for place, point in enumerate(points):
            if found.undecided[place]:
                continue
            decided += 1
            verdict = judge(point, fmt, patterns[place] & ((1 << 64) - 1), both=False)
            assert bool(found.misrounded[place]) == verdict.misrounded, float(x[place])
            gap = abs(float(found.ulp[place]) - verdict.ulp) if math.isfinite(verdict.ulp) else 0.0
            assert gap <= float(found.width[place]) + 1e-12, float(x[place])
    assert decided > 350


def to_signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits


@pytest.mark.parametrize("result", ["y", "dx"])
def test_float64_pairs_lie_within_their_bound(result: str) -> None:
    fmt, x = named("float64"), float64_inputs()
    whole = gelu_problem(x)
    truth = evaluate(GELU, whole, {"y": fmt, "dx": fmt})[result]
    assert truth.low is not None
    for place, point in enumerate(GELU.points(whole, result, range(x.numel()))):
        value = float(truth.value[place])
        if not math.isfinite(value):
            assert math.isnan(value) or math.isinf(float(x[place]))
            assert float(truth.bound[place]) == 0.0
            continue
        enclosure, _, _ = settle(point, lambda e: e.high - e.low <= abs(e.low) / 2**200 or tiny(e))
        held = Fraction(value) + Fraction(float(truth.low[place]))
        middle = (enclosure.low + enclosure.high) / 2
        assert abs(held - middle) <= Fraction(float(truth.bound[place])), float(x[place])


def tiny(enclosure) -> bool:  # type: ignore[no-untyped-def]
    return max(abs(enclosure.low), abs(enclosure.high)) < Fraction(1, 2**1400)


def test_a_truth_below_the_smallest_float64_is_not_taken_for_an_exact_pair() -> None:
    """gelu(3 * 2^-1074) is 1.5 of the smallest number and a little more: no tie, and not exact."""
    fmt = named("float64")
    x = torch.tensor([3 * 5e-324], dtype=torch.float64)
    whole = gelu_problem(x)
    truth = evaluate(GELU, whole, {"y": fmt, "dx": fmt})["y"]
    for bits in (1, 2):
        got = from_bits(torch.tensor([bits]), fmt)
        found = errors(got, truth.value, fmt, low=truth.low, bound=truth.bound)
        assert bool(found.undecided[0])
    assert nearest(GELU.points(whole, "y", [0])[0], fmt) == 2


# -- every op: the bound in use holds on seeds the certificate has not seen ---------------------


@pytest.mark.parametrize("name", ["layer_norm_residual", "rms_norm_residual"])
def test_exact_sums_have_no_bound_and_their_ties_are_not_open(name: str) -> None:
    """bfloat16 sums lie between two bfloat16 numbers in the middle so often that each would be asked of Arb."""
    op, bf16 = ops.get(name), named("bfloat16")
    generator = torch.Generator().manual_seed(5)
    x, residual = (torch.randn(64, 33, generator=generator).bfloat16() for _ in range(2))
    x[0, 0], residual[0, 0] = 2.0**120, 2.0**-120  # a sum that float64 cannot hold
    inputs = {"x": x, "residual": residual, "weight": None, "bias": None}
    problem = Problem({operand.name: inputs[operand.name] for operand in op.operands}, op.resolve({}), results=("s",))
    truth = evaluate(op, problem, {"s": bf16})["s"]
    assert truth.bound.view(-1)[0] > 0
    assert not truth.bound.view(-1)[1:].any()
    judged = judge_by(JudgedBy(op, problem, "s", truth, bf16), x + residual)
    assert judged.escalated <= 20
    total = judged.tallies[0]
    assert (total.figures().misrounded, total.figures().max_ulp) == (0, 0.5)


def test_where_mpmath_is_too_much_arb_has_to_lie_within_the_interval() -> None:
    def too_much(precision: int) -> Any:
        raise BeyondEffort("too many numbers")

    fmt, one = named("float32"), torch.ones(1, dtype=torch.float64)
    truth = Truth(one, one, bound=one * 2.0**-40)
    got = 0x3F800001  # the number after 1
    by_arb = Point(too_much, lambda precision: flint.arb(1) + flint.arb(2) ** -41)
    judged = judge_known(by_arb, lambda: truth.interval(0), fmt, got, both=True, policy=Policy())
    assert judged.routes == 1 and judged.ulp == 1 - 2.0**-18 and judged.misrounded
    by_none = Point(too_much, too_much)
    judged = judge_known(by_none, lambda: truth.interval(0), fmt, got, both=True, policy=Policy())
    assert judged.routes == 0 and judged.enclosure == Enclosure(1 - Fraction(1, 1 << 40), 1 + Fraction(1, 1 << 40))
    elsewhere = Point(too_much, lambda precision: flint.arb(1) + flint.arb(2) ** -39)
    with pytest.raises(TruthError, match="two routes to one exact value disagree: float64 gives"):
        judge_known(elsewhere, lambda: truth.interval(0), fmt, got, both=True, policy=Policy())


@pytest.mark.parametrize(
    ("value", "bound", "kind"),
    [(math.nan, 0.0, "nan"), (math.inf, 0.0, "inf"), (-math.inf, 0.0, "-inf"), (0.0, math.inf, "real")],
)
def test_the_interval_of_an_element_without_a_number_or_a_bound(value: float, bound: float, kind: str) -> None:
    values, bounds = torch.tensor([value], dtype=torch.float64), torch.tensor([bound], dtype=torch.float64)
    found = Truth(values, bounds, bound=bounds).interval(0)
    assert found.kind == kind and found.low <= found.high
