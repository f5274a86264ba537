"""Elementary and special functions in float64, to about one ULP: what the GPU's approximations stand for.

The interpreter evaluates a float32 function here and rounds once, so its result is the correctly rounded one
but for about one case in 2^27 where the float64 error straddles a rounding boundary. Exceptions with a
larger, still invisible error in float32 are named where they are defined. Against 200-bit mpmath, on the
ranges of the tests, every function below stays within 2 float64-ULP, erfcx, erfcinv and normcdfinv within 4;
lgamma loses relative accuracy next to its zeros on the negative axis.

numpy covers what C's libm has; PyTorch's float64 kernels cover erf and its relatives; gamma, for which
neither has a float64 of this quality, goes through mpmath one element at a time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from verify.backends.interpreter.fma import fma_float64
from verify.backends.interpreter.rounding import F64

Unary = Callable[[F64], F64]
_SQRT_HALF = math.sqrt(0.5)
#: sqrt(1/2) - _SQRT_HALF, so that x / sqrt(2) is known to twice the precision.
_SQRT_HALF_LOW = -4.833646656726457e-17
_TWO_OVER_SQRT_PI = 1.1283791670955126


def _torch(name: str) -> Unary:
    """A float64 function of torch or torch.special, on numpy arrays."""

    def call(x: F64) -> F64:
        import torch

        fn = getattr(torch.special, name)
        out: F64 = fn(torch.from_numpy(np.ascontiguousarray(x))).numpy()
        return out

    call.__name__ = name
    return call


erf = _torch("erf")
erfc = _torch("erfc")
erfinv = _torch("erfinv")
_erfcx = _torch("erfcx")
_ndtri = _torch("ndtri")
lgamma = _torch("gammaln")


def erfcx(x: F64) -> F64:
    """exp(x^2) erfc(x), with the exact square in the exponent; PyTorch's erfcx where x is large.

    PyTorch's own function is 8 ULP off near 0 and 400 ULP at -24 (it squares with one rounding).
    """
    square = x * x
    rest = fma_float64(x, x, -square)
    grown = np.exp(square)
    product = grown * erfc(x)
    product = product + np.where(np.isfinite(product), product * rest, 0.0)
    return np.where(x < 4.0, product, _erfcx(x))


def normcdf(x: F64) -> F64:
    """The normal distribution function erfc(-x / sqrt 2) / 2.

    The rounding of the argument alone would cost x^2 / 2 ULP (700 at -37), so its error is carried as a
    first-order correction: d/dt erfc(t) = -2/sqrt(pi) exp(-t^2).
    """
    t = -x * _SQRT_HALF
    t_low = fma_float64(-x, np.full_like(x, _SQRT_HALF), -t) - x * _SQRT_HALF_LOW
    slope = _TWO_OVER_SQRT_PI * np.exp(-t * t)
    correction = np.where(np.isfinite(t_low), slope * t_low, 0.0)
    return 0.5 * (erfc(t) - correction)


def normcdfinv(p: F64) -> F64:
    """The inverse of normcdf; one Newton step from PyTorch's ndtri, on the smaller tail."""
    upper = p > 0.5
    tail = np.where(upper, 1.0 - p, p)  # exact for p in [1/2, 1]
    x = _ndtri(tail)
    density = np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    step = (normcdf(x) - tail) / density
    x = x - np.where(np.isfinite(step), step, 0.0)
    return np.where(upper, -x, x)


def erfcinv(y: F64) -> F64:
    """The inverse of erfc on (0, 2): -normcdfinv(y / 2) / sqrt 2, and erfinv(1 - y) where that is exact."""
    middle = (y > 0.5) & (y < 1.5)
    out = np.where(middle, erfinv(1.0 - y), -normcdfinv(0.5 * y) * _SQRT_HALF)
    return np.where(y < 0, np.nan, out)  # half of the smallest negative number is -0


def exp10(x: F64) -> F64:
    return np.power(10.0, x)


def rsqrt(x: F64) -> F64:
    return 1.0 / np.sqrt(x)


def reciprocal(x: F64) -> F64:
    return 1.0 / x


def rcbrt(x: F64) -> F64:
    return 1.0 / np.cbrt(x)


def rhypot(x: F64, y: F64) -> F64:
    return _reciprocal_length(x, y)


def norm3d(x: F64, y: F64, z: F64) -> F64:
    """sqrt(x^2 + y^2 + z^2) without overflow on the way."""
    return np.hypot(np.hypot(x, y), z)


def rnorm3d(x: F64, y: F64, z: F64) -> F64:
    return _reciprocal_length(x, y, z)


def norm4d(x: F64, y: F64, z: F64, w: F64) -> F64:
    return np.hypot(np.hypot(x, y), np.hypot(z, w))


def rnorm4d(x: F64, y: F64, z: F64, w: F64) -> F64:
    return _reciprocal_length(x, y, z, w)


def _reciprocal_length(*parts: F64) -> F64:
    """1 / sqrt(sum of squares), also where the length itself would overflow."""
    length, quarter = (functools.reduce(np.hypot, [s * p for p in parts]) for s in (1.0, 0.25))
    return np.where(np.isinf(length), 0.25 / quarter, 1.0 / length)


def _turns(x: F64) -> tuple[F64, F64]:
    """x modulo 2 as (quadrant of half turns 0..3, rest in [-1/4, 1/4]), both exact."""
    r = np.fmod(x, 2.0)
    quadrant = np.rint(2.0 * r)
    return np.mod(quadrant, 4.0), r - 0.5 * quadrant


def sinpi(x: F64) -> F64:
    """sin(pi x), exact at the zeros; the sign of an exact zero is that of x."""
    quadrant, rest = _turns(x)
    s, c = np.sin(np.pi * rest), np.cos(np.pi * rest)
    out = np.choose(np.where(np.isfinite(x), quadrant, 0).astype(np.int64), [s, c, -s, -c])
    return np.where(out == 0, np.copysign(0.0, x), out)


def cospi(x: F64) -> F64:
    """cos(pi x), exact at the zeros, which are +0."""
    quadrant, rest = _turns(x)
    s, c = np.sin(np.pi * rest), np.cos(np.pi * rest)
    out = np.choose(np.where(np.isfinite(x), quadrant, 0).astype(np.int64), [c, -s, -c, s])
    return np.where(out == 0, 0.0, out)


def tgamma(x: F64) -> F64:
    """The gamma function by mpmath, an element at a time (about 20 us each)."""
    import mpmath

    def one(v: float) -> float:
        if math.isnan(v) or v == -math.inf or (v < 0 and v == math.floor(v)):
            return math.nan
        if v == 0 or v == math.inf:
            return math.copysign(math.inf, v)
        if v > 180:
            return math.inf
        with mpmath.workprec(80):
            return float(mpmath.gamma(v)) if v > -190 else math.copysign(0.0, -(math.floor(v) % 2))

    return np.array([one(v) for v in x.ravel().tolist()]).reshape(x.shape)


def fmod(x: F64, y: F64) -> F64:
    return np.fmod(x, y)


def remainder(x: F64, y: F64) -> F64:
    """IEEE remainder: x - n y with n the integer nearest x / y, ties to even; exact."""
    size = np.abs(y)
    r = np.fmod(np.abs(x), 2.0 * size)
    r = np.where(np.isfinite(2.0 * size), r, np.abs(x))
    big = r > 1.5 * size
    middle = (r > 0.5 * size) & ~big
    # The quotient of the part below 2|y| is 0, 1 or 2; on its ties (1/2, 3/2) the even one is 0 and 2.
    middle = middle & ~(r == 0.5 * size)
    big = big | (r == 1.5 * size)
    middle = middle & ~big
    out = np.where(big, (r - size) - size, np.where(middle, r - size, r))
    out = np.where(np.isinf(y) & np.isfinite(x), np.abs(x), out)
    out = np.where(np.signbit(x), -out, out)
    return np.where((y == 0) | ~np.isfinite(x) | np.isnan(y), np.nan, out)
