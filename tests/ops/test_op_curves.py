"""The gate curves (gelu in both forms, silu) on the whole real line: routes, limits, regimes."""

from __future__ import annotations

import flint
import pytest
from mpmath import mp

from tests.ops import solving
from tests.ops.exactly import mpf_to_arb
from tests.ops.formulas import ERF, SILU, TANH, Curve, Function
from verify.ops import get
from verify.ops.elements import arb_bits
from verify.ops.graph.functions import FUNCTIONS

CURVES = {"erf": (ERF, "gelu", {"approximate": "none"}), "silu": (SILU, "silu", {})}
CURVES["tanh"] = (TANH, "gelu", {"approximate": "tanh"})
each_curve = pytest.mark.parametrize("name", sorted(CURVES))
PREC = 200


def functions(curve: Curve) -> tuple[Function, Function]:
    return curve.value, curve.slope


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
def test_landmarks_are_where_the_formula_has_them(name: str) -> None:
    """Underflow of each format, its smallest normal number, saturation, and the slope's zero and maximum."""
    curve, op, params = CURVES[name]
    tail, far = (-16.0, -150.0) if name == "silu" else (-5.0, -24.0)
    found = solving.solved(curve, far, tail)
    assert get(op).landmarks.boundaries(params) == found.boundaries
    assert get(op).landmarks.regimes(params) == found.regimes
