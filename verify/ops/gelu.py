"""Defines GELU: x * Phi(x) ("none", the erf form), and its tanh approximation ("tanh").

The tanh form is x * logistic(2u) with u = sqrt(2/pi) (x + 0.044715 x^3). The truth uses the decimal number 0.044715 and
the real number sqrt(2/pi).

Formulas. Let Phi be the normal distribution function and phi its density:

    gelu(x) = x Phi(x) = x erfc(-x / sqrt 2) / 2,    gelu'(x) = Phi(x) + x phi(x).

For the tanh form, let v = 2u and s = 1 / (1 + exp(-v)):

    gelu(x) = x s = x (1 + tanh u) / 2,    gelu'(x) = s + x v' s (1 - s).

float64 uses forms that do not cancel in the left tail.
"""

from __future__ import annotations

import math

import torch
from mpmath import mp
from torch import Tensor

from verify.ops.elementwise import unary
from verify.ops.formula import Curve
from verify.ops.geometry import Params
from verify.ops.op import Fast, Landmarks
from verify.ops.precision import (
    mp_bits,
)
from verify.ops.thresholds import Thresholds

_CUBIC_NUMERATOR, _CUBIC_DENOMINATOR = 44715, 1000000
_LONG_BITS, _SHORT = 1_024, 64  # mp.erfc is faster for fewer bits, and for an x with a longer mantissa

# -------------------------------------------------------------------------------- erf form, float64

# 1 / sqrt 2 as a head of 26 bits and a tail. The product of the head and a float32 number is exact.
_RSQRT2_HEAD = math.ldexp(round(math.ldexp(math.sqrt(0.5), 26)), -26)
with mp_bits(200):
    _RSQRT2_TAIL = float(mp.sqrt(mp.mpf(1) / 2) - _RSQRT2_HEAD)
    _RSQRT_2PI = float(1 / mp.sqrt(2 * mp.pi))
    _LINEAR = float(mp.sqrt(8 / mp.pi))
    _CUBIC = float(mp.sqrt(8 / mp.pi) * _CUBIC_NUMERATOR / _CUBIC_DENOMINATOR)
# Beyond this, Phi leaves the normal range of float64. The argument is clamped, so that a finite x never gives an exact
# zero: times an infinite upstream gradient, the result must be infinite. The range of float32 ends long before.
_ERF_EDGE = 37.5


def _cdf(x: Tensor) -> Tensor:
    """Returns Phi(x) = erfc(t) / 2 with t = -x / sqrt 2, for |x| <= _ERF_EDGE.

    The constant is split into a head of 26 bits, whose product with x is exact, and a tail. t is the rounded sum of
    both products, and its error dt is known almost exactly. dt changes erfc(t) by 2 t dt relative to itself, by up to
    158 units of 2^-53 at x = -14. The last factor corrects this. For an erfc of k ULP, x Phi(x) is off by at most 2k +
    3 units.
    """
    head, tail = x * -_RSQRT2_HEAD, x * -_RSQRT2_TAIL
    t = head + tail
    dt = (head - t) + tail
    tail_area: Tensor = torch.special.erfc(t)
    return 0.5 * tail_area * (1.0 - 2.0 * t.clamp(min=0.0) * dt)


def _erf_value(x: Tensor) -> Fast:
    value = x.clamp(min=-_ERF_EDGE) * _cdf(x.clamp(-_ERF_EDGE, _ERF_EDGE))
    value = value.masked_fill(x == -math.inf, -0.0)
    return Fast(value, value.abs())


def _erf_slope(x: Tensor) -> Fast:
    inner = x.clamp(-_ERF_EDGE, _ERF_EDGE)
    cdf = _cdf(inner)
    term = inner * (torch.exp(-0.5 * inner * inner) * _RSQRT_2PI)
    value = (cdf + term).masked_fill(x == -math.inf, 0.0)
    return Fast(value, cdf + term.abs())


def _erf_bend(x: Tensor) -> Tensor:
    inner = x.clamp(-_ERF_EDGE, _ERF_EDGE)
    return torch.exp(-0.5 * inner * inner) * _RSQRT_2PI * (2.0 + inner * inner)


# ---------------------------------------------------------------------------------------- tanh form

# Beyond this, exp(v) leaves the normal range of float64; see _ERF_EDGE.
_TANH_EDGE = 21.0


def _tanh_parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the clamped x, v' there, s = 1 / (1 + exp(-v)) and 1 - s = 1 / (1 + exp(v))."""
    inner = x.clamp(-_TANH_EDGE, _TANH_EDGE)
    square = inner * inner
    exponent = inner * (_LINEAR + _CUBIC * square)
    left = 1.0 / (1.0 + torch.exp(-exponent))
    right = 1.0 / (1.0 + torch.exp(exponent))
    return inner, _LINEAR + 3.0 * _CUBIC * square, left, right


def _tanh_value(x: Tensor) -> Fast:
    """Returns x / (1 + exp(-v)) with v = x (c1 + c2 x^2).

    Errors in units of 2^-53: v has five roundings (of c2, x^2, their product, the sum, the product with x), so it is
    off by at most 5 |v|, as c1 is the smaller part for large v. For negative x that is the relative error of exp(-v).
    An exp of k ULP adds 2k, the sum and the quotient add 2. The smallest subnormal number of float32 is at |v| near
    106. For results below 2^-157, at |v| near 111, an absolute slack of 2^-200 covers the error. So at most 557 + 2k
    units matter. The slope has some 25 more, from a few roundings and the factor x v'.
    """
    inner = x.clamp(-_TANH_EDGE, _TANH_EDGE)
    exponent = inner * (_LINEAR + _CUBIC * (inner * inner))
    value = x.clamp(min=-_TANH_EDGE) / (1.0 + torch.exp(-exponent))
    value = value.masked_fill(x == -math.inf, -0.0)
    return Fast(value, value.abs())


def _tanh_slope(x: Tensor) -> Fast:
    inner, slope, left, right = _tanh_parts(x)
    term = inner * slope * left * right
    value = (left + term).masked_fill(x == -math.inf, 0.0)
    return Fast(value, left + term.abs())


def _tanh_bend(x: Tensor) -> Tensor:
    inner, slope, left, right = _tanh_parts(x)
    curvature = 6.0 * _CUBIC * inner * inner
    return left * right * (2.0 * slope + curvature + inner.abs() * slope * slope)


# ------------------------------------------------------------------------------------------- the op

ERF = Curve(
    value=_erf_value,
    slope=_erf_slope,
    bend=_erf_bend,
    steep=(-math.sqrt(2.0), math.sqrt(2.0)),  # gelu'' = phi(x) (2 - x^2)
)
TANH = Curve(
    value=_tanh_value,
    slope=_tanh_slope,
    bend=_tanh_bend,
    steep=(-1.4185040087908284, 1.4185040087908284),
)
PARAMS = {"approximate": "none"}
CHOICES = {"approximate": ("none", "tanh")}
_CURVES = {"none": ERF, "tanh": TANH}
_THRESHOLDS = {
    "none": Thresholds(
        root=-0.7517915246935645,
        peak=1.4142135623734167,
        vanishing=(-14.356067982158693, -13.561520443081282, -5.723854819963261),
        subnormal=(-13.146246717861361, -13.146246717861361, -4.17956713942291),
        saturated=(5.419983174916868, 2.8856349124267573, 3.4871041041144313),
        tail=-5.0,
    ),
    "tanh": Thresholds(
        root=-0.7524614220710163,
        peak=1.4185040087911482,
        vanishing=(-10.770868253746146, -10.333197547431512, -5.2886215275068444),
        subnormal=(-10.100637393537946, -10.100637393537946, -4.029301447894288),
        saturated=(5.061380380273073, 2.8609619268268607, 3.421384809285688),
        tail=-5.0,
    ),
}


def curve(params: Params) -> Curve:
    """Returns the curve of the form that `approximate` chooses."""
    return _CURVES[params.get("approximate", "none")]


LANDMARKS = Landmarks(
    regimes=lambda params: _THRESHOLDS[params.get("approximate", "none")].regimes,
    boundaries=lambda params: _THRESHOLDS[params.get("approximate", "none")].boundaries,
)


def _baseline(x: Tensor, *, approximate: str = "none") -> Tensor:
    return torch.nn.functional.gelu(x, approximate=approximate)


GELU = unary(
    "gelu",
    curve,
    _baseline,
    params=PARAMS,
    choices=CHOICES,
    landmarks=LANDMARKS,
    summary="x * Phi(x), or its tanh approximation",
)
