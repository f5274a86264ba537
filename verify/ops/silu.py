"""Defines SiLU: y = x s with s = 1 / (1 + exp(-x)), and y' = s + x s (1 - s)."""

from __future__ import annotations

import math
from typing import Any

import torch
from mpmath import mp
from torch import Tensor

from verify.ops.elementwise import unary
from verify.ops.formula import Curve, Formula
from verify.ops.geometry import Params
from verify.ops.limits import mp_limit
from verify.ops.op import Fast
from verify.ops.precision import GUARD, mp_bits, summed
from verify.ops.thresholds import gate_landmarks


def _negated(x: Any) -> Any:
    """Returns -x exactly; mpmath's minus sign rounds to the working precision."""
    return mp.fneg(x, exact=True)


def _value_mp(x: Any, *, prec: int) -> Any:
    if not mp.isfinite(x):
        return mp_limit(x, mp.zero, x)
    with mp_bits(prec + GUARD):
        return x / (1 + mp.exp(_negated(x)))


def _slope_mp(x: Any, *, prec: int) -> Any:
    if not mp.isfinite(x):
        return mp_limit(x, mp.zero, mp.one)

    def terms(bits: int) -> tuple[Any, Any]:
        grown = mp.exp(_negated(x))
        logistic = 1 / (1 + grown)
        return logistic, x * logistic * grown / (1 + grown)

    return summed(terms, prec)


# Beyond this, exp(-x) leaves the range of float64. The argument is clamped, so that a finite x never gives an exact
# zero. The range of float32 ends long before.
_EDGE = 700.0


def _value_fast(x: Tensor) -> Fast:
    """Returns x / (1 + exp(-x)).

    x is exact, so an exp of k ULP makes an error of at most 2k + 2 units of 2^-53.
    """
    value = x.clamp(min=-_EDGE) / (1.0 + torch.exp(-x.clamp(min=-_EDGE)))
    value = value.masked_fill(x == -math.inf, -0.0)
    return Fast(value, value.abs())


def _logistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the clamped x, s and 1 - s."""
    inner = x.clamp(-_EDGE, _EDGE)
    return inner, 1.0 / (1.0 + torch.exp(-inner)), 1.0 / (1.0 + torch.exp(inner))


def _slope_fast(x: Tensor) -> Fast:
    inner, left, right = _logistics(x)
    term = inner * left * right
    value = (left + term).masked_fill(x == -math.inf, 0.0)
    return Fast(value, left + term.abs())


def _bend(x: Tensor) -> Tensor:
    inner, left, right = _logistics(x)
    return left * right * (2.0 + inner.abs())


CURVE = Curve(
    value=Formula(mp=_value_mp, fast=_value_fast),
    slope=Formula(mp=_slope_mp, fast=_slope_fast),
    bend=_bend,
)
# |y| is below 2^-200 at _FAR. The regime of the left tail begins at _TAIL.
_FAR, _TAIL = -150.0, -16.0


def curve(params: Params) -> Curve:
    """Returns the curve. There are no parameters."""
    return CURVE


LANDMARKS = gate_landmarks(curve, _FAR, _TAIL)


def _baseline(x: Tensor) -> Tensor:
    return torch.nn.functional.silu(x)


SILU = unary(
    "silu",
    curve,
    _baseline,
    landmarks=LANDMARKS,
    symmetry="odd part",
    summary="x * logistic(x)",
)
