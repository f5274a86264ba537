"""Defines SiLU: y = x s with s = 1 / (1 + exp(-x)), and y' = s + x s (1 - s)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from verify.ops.elementwise import unary
from verify.ops.formula import Curve
from verify.ops.geometry import Params
from verify.ops.op import Fast, Landmarks
from verify.ops.thresholds import Thresholds

# Beyond this, exp(-x) leaves the range of float64. The argument is clamped, so that a finite x never gives an exact
# zero. The range of float32 ends long before.
_EDGE = 700.0


def _value(x: Tensor) -> Fast:
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


def _slope(x: Tensor) -> Fast:
    inner, left, right = _logistics(x)
    term = inner * left * right
    value = (left + term).masked_fill(x == -math.inf, 0.0)
    return Fast(value, left + term.abs())


def _bend(x: Tensor) -> Tensor:
    inner, left, right = _logistics(x)
    return left * right * (2.0 + inner.abs())


CURVE = Curve(
    value=_value,
    slope=_slope,
    bend=_bend,
)
_THRESHOLDS = Thresholds(
    root=-1.2784645427610737,
    peak=2.39935728051572,
    vanishing=(-108.66030361932556, -97.46117630196233, -20.34133451118791),
    subnormal=(-91.85677532459547, -91.85677532459547, -12.20598165888704),
    saturated=(17.32867948419631, 6.236369590203704, 8.31752199628717),
    tail=-16.0,
)


def curve(params: Params) -> Curve:
    """Returns the curve. There are no parameters."""
    return CURVE


LANDMARKS = Landmarks(regimes=lambda params: _THRESHOLDS.regimes, boundaries=lambda params: _THRESHOLDS.boundaries)


def _baseline(x: Tensor) -> Tensor:
    return torch.nn.functional.silu(x)


SILU = unary(
    "silu",
    curve,
    _baseline,
    landmarks=LANDMARKS,
    summary="x * logistic(x)",
)
