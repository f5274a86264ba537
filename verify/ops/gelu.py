"""Defines GELU: x * Phi(x) ("none", the erf form), and its tanh approximation ("tanh").

The tanh form is x * logistic(2u) with u = sqrt(2/pi) (x + 0.044715 x^3). The truth uses the decimal number 0.044715 and
the real number sqrt(2/pi).

Formulas. Let Phi be the normal distribution function and phi its density:

    gelu(x) = x Phi(x) = x erfc(-x / sqrt 2) / 2,    gelu'(x) = Phi(x) + x phi(x).

For the tanh form, let v = 2u and s = 1 / (1 + exp(-v)):

    gelu(x) = x s = x (1 + tanh u) / 2,    gelu'(x) = s + x v' s (1 - s).

mpmath and float64 use forms that do not cancel in the left tail. `verify.ops.graph.second` adds the Arb route: the
traced program of PyTorch's gelu.
"""

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
from verify.ops.precision import (
    GUARD,
    exact_product,
    magnitude,
    mp_bits,
    summed,
)
from verify.ops.thresholds import gate_landmarks

_CUBIC_NUMERATOR, _CUBIC_DENOMINATOR = 44715, 1000000
_LONG_BITS, _SHORT = 1_024, 64  # mp.erfc is faster for fewer bits, and for an x with a longer mantissa

# --------------------------------------------------------------------------------- erf form, mpmath


def _density(x: Any) -> Any:
    """Returns phi(x). The square is exact, because the exponential would amplify its rounding by x^2 / 2."""
    return mp.exp(exact_product(x, x, mp.mpf(-0.5))) / mp.sqrt(2 * mp.pi)


def _mills(x: Any, bits: int) -> Any:
    """Returns Phi(x) |x| / phi(x) for far negative x, as 1 - 1/x^2 + 3/x^4 - ...

    The terms alternate in sign, so the error is below the first omitted term. They shrink to about exp(-x^2 / 2) before
    they grow again. So call this only if `_far(x, bits)`.
    """
    square = x * x
    term = total = mp.one
    n = 0
    tiny = mp.ldexp(1, -bits - 8)
    while abs(term) > tiny:
        n += 1
        term = -term * (2 * n - 1) / square
        total += term
    return total


def _far(x: Any, bits: int) -> bool:
    """True if exp(-x^2 / 2) < 2^-(bits + 16)."""
    return bool(abs(x) > math.sqrt(2 * math.log(2) * (bits + 16)))


def _taylor(x: Any, bits: int) -> Any:
    """Returns Phi(x) with an absolute error below 2^-bits, by the Taylor series of Phi - 1/2.

    Each term has the factor x^2 / 2, which is a short integer and a shift for a short x. mp.erfc multiplies by all bits
    of x / sqrt 2 and takes ten times as long at 20,000 bits. A rounding error changes all later terms. The sum of these
    changes alternates, so it is at most that error.
    """
    places = bits + 64
    square, shift = x.man * x.man, 1 - 2 * x.exp
    term = total = x.man << places + x.exp if places + x.exp >= 0 else x.man >> -places - x.exp
    n = 0
    while term:
        n += 1
        term = (term * square >> shift if shift >= 0 else term * square << -shift) // n
        total += -(term // (2 * n + 1)) if n % 2 else term // (2 * n + 1)
    with mp_bits(places):
        half, part = mp.mpf(0.5), mp.ldexp(mp.mpf(total), -places) / mp.sqrt(2 * mp.pi)
        return half + part if x > 0 else half - part


def _cdf(x: Any, bits: int) -> Any:
    """Returns Phi(x) with a relative accuracy of `bits` bits, at this working precision."""
    if _far(x, bits):
        return mp.one if x > 0 else -_density(x) / x * _mills(x, bits)
    if bits >= _LONG_BITS and x and x.man.bit_length() <= _SHORT:
        return _taylor(x, bits if x > 0 else bits + int(x * x) + 2 * max(0, magnitude(x)) + 8)
    with mp_bits(bits + 2 * max(0, magnitude(x)) + 8):
        # Here |x| is below about 30. Rounding the argument of erfc costs 2 log2|x| bits.
        return mp.erfc(-x / mp.sqrt(2)) / 2


def _erf_value_mp(x: Any, *, prec: int) -> Any:
    if not mp.isfinite(x):
        return mp_limit(x, mp.zero, x)
    bits = prec + GUARD
    with mp_bits(bits):
        if x < 0 and _far(x, bits):
            return -_density(x) * _mills(x, bits)
        return x * _cdf(x, bits)


def _erf_slope_mp(x: Any, *, prec: int) -> Any:
    if not mp.isfinite(x):
        return mp_limit(x, mp.zero, mp.one)
    return summed(lambda bits: (_cdf(x, bits), x * _density(x)), prec)


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


def _cdf_fast(x: Tensor) -> Tensor:
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


def _erf_value_fast(x: Tensor) -> Fast:
    value = x.clamp(min=-_ERF_EDGE) * _cdf_fast(x.clamp(-_ERF_EDGE, _ERF_EDGE))
    value = value.masked_fill(x == -math.inf, -0.0)
    return Fast(value, value.abs())


def _erf_slope_fast(x: Tensor) -> Fast:
    inner = x.clamp(-_ERF_EDGE, _ERF_EDGE)
    cdf = _cdf_fast(inner)
    term = inner * (torch.exp(-0.5 * inner * inner) * _RSQRT_2PI)
    value = (cdf + term).masked_fill(x == -math.inf, 0.0)
    return Fast(value, cdf + term.abs())


def _erf_bend(x: Tensor) -> Tensor:
    inner = x.clamp(-_ERF_EDGE, _ERF_EDGE)
    return torch.exp(-0.5 * inner * inner) * _RSQRT_2PI * (2.0 + inner * inner)


# ---------------------------------------------------------------------------------------- tanh form


def _exponent_mp(x: Any, bits: int) -> tuple[Any, Any]:
    """Returns -v = -2u and v' = dv/dx, with an absolute error of v below 2^-bits.

    It returns -v, because mpmath would round a later negation of v to the caller's precision, which is lower.
    """
    with mp_bits(bits + max(0, 3 * magnitude(x)) + 8):
        slope = mp.sqrt(8 / mp.pi)
        cubic = mp.mpf(_CUBIC_NUMERATOR) / _CUBIC_DENOMINATOR
        square = x * x
        return -slope * x * (1 + cubic * square), slope * (1 + 3 * cubic * square)


def _tanh_value_mp(x: Any, *, prec: int) -> Any:
    if not mp.isfinite(x):
        return mp_limit(x, mp.zero, x)
    bits = prec + GUARD
    with mp_bits(bits):
        negated, _ = _exponent_mp(x, bits)
        return x / (1 + mp.exp(negated))


def _tanh_slope_mp(x: Any, *, prec: int) -> Any:
    if not mp.isfinite(x):
        return mp_limit(x, mp.zero, mp.one)

    def terms(bits: int) -> tuple[Any, Any]:
        negated, slope = _exponent_mp(x, bits)
        grown = mp.exp(negated)
        logistic = 1 / (1 + grown)
        return logistic, x * slope * logistic * grown / (1 + grown)

    return summed(terms, prec)


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


def _tanh_value_fast(x: Tensor) -> Fast:
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


def _tanh_slope_fast(x: Tensor) -> Fast:
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
    value=Formula(mp=_erf_value_mp, fast=_erf_value_fast),
    slope=Formula(mp=_erf_slope_mp, fast=_erf_slope_fast),
    bend=_erf_bend,
    steep=(-math.sqrt(2.0), math.sqrt(2.0)),  # gelu'' = phi(x) (2 - x^2)
)
TANH = Curve(
    value=Formula(mp=_tanh_value_mp, fast=_tanh_value_fast),
    slope=Formula(mp=_tanh_slope_mp, fast=_tanh_slope_fast),
    bend=_tanh_bend,
    steep=(-1.4185040087908284, 1.4185040087908284),
)
PARAMS = {"approximate": "none"}
CHOICES = {"approximate": ("none", "tanh")}
_CURVES = {"none": ERF, "tanh": TANH}
# |y| is below 2^-200 at _FAR in both forms. The regime of the left tail begins at _TAIL.
_FAR, _TAIL = -24.0, -5.0


def curve(params: Params) -> Curve:
    """Returns the curve of the form that `approximate` chooses."""
    return _CURVES[params.get("approximate", "none")]


LANDMARKS = gate_landmarks(curve, _FAR, _TAIL)


def _baseline(x: Tensor, *, approximate: str = "none") -> Tensor:
    return torch.nn.functional.gelu(x, approximate=approximate)


GELU = unary(
    "gelu",
    curve,
    _baseline,
    params=PARAMS,
    choices=CHOICES,
    landmarks=LANDMARKS,
    symmetry="odd part",
    summary="x * Phi(x), or its tanh approximation",
)
