"""The gate curves (gelu in both forms, silu) on the whole real line: routes, limits, regimes."""

from __future__ import annotations

import math
from typing import Any

import flint
import pytest
import torch
from mpmath import mp

from tests.ops import solving
from tests.ops.exactly import mpf_to_arb
from tests.ops.formulas import ERF, SILU, TANH, Curve, Function
from tests.ops.test_op_routes import inside
from verify.ops import Problem, get
from verify.ops.elements import arb_bits
from verify.ops.graph.functions import FUNCTIONS
from verify.ops.op import Point

CURVES = {"erf": (ERF, "gelu", {"approximate": "none"}), "silu": (SILU, "silu", {})}
CURVES["tanh"] = (TANH, "gelu", {"approximate": "tanh"})
each_curve = pytest.mark.parametrize("name", sorted(CURVES))
PREC = 200
HUGE = [sign * value for value in (1e5, 1e10, 1e30, 3.4e38, 1e100, 1e154, 1e308) for sign in (1, -1)]
MIDDLE = [
    *(-150.0, -120.0, -104.0, -88.5, -40.0, -37.6, -33.0, -32.0, -31.9, -25.0, -21.5, -19.0),
    *(-18.7, -16.0, -15.9, -14.36, -13.0, -10.77, -9.0, -7.5, -5.0, -3.0, -1.5, -1.0, -0.5),
    *(-0.1, -1e-5, -1e-20, -1e-45, -1e-300, 0.0, 5e-324, 1e-40, 1e-9, 0.25, 0.9, 2.0, 5.5),
    *(9.0, 17.0, 30.0, 38.0, 90.0, 710.0, 1000.0),
]


def points_of(name: str) -> list[float]:
    """Everywhere, and the neighbours of every boundary, the derivative's zero among them."""
    _, op, params = CURVES[name]
    near = []
    for boundary in get(op).landmarks.boundaries(params):
        near += [boundary, math.nextafter(boundary, -math.inf), math.nextafter(boundary, math.inf)]
        near.append(float(torch.tensor(boundary, dtype=torch.float32)))
    return MIDDLE + HUGE + near


def functions(curve: Curve) -> tuple[Function, Function]:
    return curve.value, curve.slope


def points_at(name: str, values: list[float]) -> dict[str, list[Point]]:
    """Exact values by both routes, mpmath and Arb: the program of PyTorch's function."""
    _, op, params = CURVES[name]
    x = torch.tensor(values, dtype=torch.float64)
    problem = Problem({"x": x}, params, {"y": torch.ones_like(x)}, ("y", "dx"))
    return {result: get(op).points(problem, result, range(len(values))) for result in problem.results}


def agree(value: Any, ball: Any) -> bool:
    """The value of mpmath is in Arb's ball, which is narrow, or below every format."""
    with arb_bits(8 * PREC):
        exact = mpf_to_arb(value)
        if value == 0:
            return bool(ball.is_zero())
        if ball.contains(exact) and ball.abs_upper() < flint.arb((1, -1300)):
            return True
        return bool((abs(ball - exact) / abs(exact)).abs_upper() < flint.arb((1, 8 - PREC)))


@each_curve
def test_routes_agree_everywhere(name: str) -> None:
    values = points_of(name)
    for result, points in points_at(name, values).items():
        for x, point in zip(values, points, strict=True):
            assert agree(point.mp(PREC), point.arb(PREC)), (result, x)


def test_anchors() -> None:
    """Published digits: Phi(1), Phi(-10), the minimum of gelu, the minimum of silu."""
    with mp.workprec(PREC):
        assert mp.almosteq(ERF.value(mp.one, prec=PREC), mp.mpf("0.84134474606854294858"), 1e-20)
        tail = ERF.value(mp.mpf(-10), prec=PREC) / -10
        assert mp.almosteq(tail, mp.mpf("7.6198530241605260660e-24"), 1e-19)
        root = mp.findroot(lambda t: ERF.slope(t, prec=PREC), -0.75)
        assert mp.almosteq(root, mp.mpf("-0.75179152469356445746"), 1e-20)
        lowest = mp.findroot(lambda t: SILU.slope(t, prec=PREC), -1.28)
        assert mp.almosteq(lowest, -1 - mp.lambertw(mp.exp(-1)).real, 1e-40)


@each_curve
def test_limits_at_infinity(name: str) -> None:
    curve, op, params = CURVES[name]
    for formula, right in ((curve.value, mp.inf), (curve.slope, mp.one)):
        assert formula(mp.ninf, prec=PREC) == 0
        assert formula(mp.inf, prec=PREC) == right
        assert mp.isnan(formula(mp.nan, prec=PREC))
    x = torch.tensor([-math.inf, math.inf, math.nan, -3e38, 3e38])
    problem = Problem({"x": x}, params, {"y": torch.ones(5)}, ("y", "dx"))
    for result, right in (("y", mp.inf), ("dx", mp.one)):
        balls = [point.arb(PREC) for point in get(op).points(problem, result, range(5))]
        assert balls[0].is_zero() and balls[1] == mpf_to_arb(right) and balls[2].is_nan(), result
        assert balls[3].is_finite() and balls[4].is_finite()
    fast = get(op).fast(problem)
    assert fast["y"].value[:2].tolist() == [0.0, math.inf]
    assert fast["dx"].value[:2].tolist() == [0.0, 1.0]
    assert fast["y"].value[2].isnan() and fast["dx"].value[2].isnan()
    assert fast["y"].bound[:3].tolist() == fast["dx"].bound[:3].tolist() == [0.0] * 3


def float32_values() -> list[float]:
    generator = torch.Generator().manual_seed(3)
    wide = torch.rand(500, generator=generator, dtype=torch.float64) * 130 - 110
    tail = torch.rand(500, generator=generator, dtype=torch.float64) * 15 - 15
    close = torch.randn(300, generator=generator, dtype=torch.float64) * 4
    tiny = torch.exp2(-torch.arange(1, 150, dtype=torch.float64))
    found = torch.cat([wide, tail, close, tiny, -tiny]).float().double()
    return [float(value) for value in found.tolist()]


@pytest.mark.parametrize("x", [0.5, -3.0, 1e-30, -1e-40, 64.0, -64.0, 100.5, 5e-324])
@pytest.mark.parametrize("bits", [1_200, 20_480])
def test_both_routes_have_a_short_way_to_phi_at_many_bits(x: float, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arb's erfc, which neither uses there, is the check of both."""
    if x * x < bits:
        monkeypatch.setattr(mp, "erfc", None)  # takes half a second for an element near a tie
    with mp.workprec(bits + 64):
        series = FUNCTIONS["ndtr"].mp(mp.mpf(x))
    with arb_bits(bits + 128):
        phi = (flint.arb(-x) / flint.arb(2).sqrt()).erfc() / 2
        assert abs(mpf_to_arb(series) - phi) < abs(phi) * flint.arb(2) ** -bits
        short = FUNCTIONS["ndtr"].arb(flint.arb(x))
        assert short.overlaps(phi) and short.rel_accuracy_bits() > bits


@each_curve
def test_the_bounds_hold_in_every_regime(name: str) -> None:
    curve, op, params = CURVES[name]
    values = float32_values()
    found = get(op).fast(Problem({"x": torch.tensor(values)}, params, {"y": torch.ones(len(values))}, ("y", "dx")))
    for formula, fast in zip((curve.value, curve.slope), found.values(), strict=True):
        for x, value, bound in zip(values, fast.value.tolist(), fast.bound.tolist(), strict=True):
            assert inside(value, bound, formula(mp.mpf(x), prec=120)), x
        assert float((fast.bound / fast.value.abs().clamp(min=1e-45)).max()) < 2.0**-30


@each_curve
def test_landmarks_are_where_the_formula_has_them(name: str) -> None:
    """Underflow of each format, its smallest normal number, saturation, and the slope's zero and maximum."""
    curve, op, params = CURVES[name]
    tail, far = (-16.0, -150.0) if name == "silu" else (-5.0, -24.0)
    found = solving.solved(curve, far, tail)
    assert get(op).landmarks.boundaries(params) == found.boundaries
    assert get(op).landmarks.regimes(params) == found.regimes
