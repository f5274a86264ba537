"""Fused multiply-add with one rounding, on numpy arrays, in every format; of float32 toward zero too.

float32, float16 and bfloat16: float64 holds the product of two 24-bit numbers exactly. Its sum with the third operand
is rounded to odd in float64 and then once to the format (see `rounding`).

float64: product and sum become error-free pairs (Veltkamp and Dekker; Knuth), on mantissas scaled into [1/2, 1), so
that no step overflows or underflows. Boldo and Melquiond prove that one rounding to odd combines the parts correctly. A
subnormal result is rounded a second time when it is scaled back. The exact residual shows where this second rounding
met a false tie, and corrects it.
"""

from functools import reduce

import numpy as np

from verify.backends.interpreter.casts import narrow, widen
from verify.backends.interpreter.rounding import F32, F64, Array, quiet, to_float32, to_odd, two_sum

_SPLITTER = 134217729.0  # 2^27 + 1: Veltkamp's constant for a 53-bit significand


@quiet
def fma(x: Array, y: Array, z: Array, name: str, direction: str = "rn") -> Array:
    """Returns x * y + z with one rounding, in the storage of the Triton type `name`."""
    if name == "fp64" and direction == "rn":
        return fma_float64(x, y, z)
    if name == "fp32" and direction == "rn":
        return _float32(x, y, z)
    wide = fma_odd(widen(x, name), widen(y, name), widen(z, name))
    if direction == "rn":
        return narrow(wide, name)
    if name != "fp32":
        raise NotImplementedError(f"fma: direction {direction} exists for fp32; got {name}")
    return to_float32(wide, direction)


def _float32(x: F32, y: F32, z: F32) -> F32:
    """Returns x * y + z in float32 with one rounding to nearest even.

    The float64 sum is nearly always inexact. Rounding it to float32 is wrong only if it lies exactly half-way between
    two float32 numbers (one element in 2^29) or is subnormal, where the half-ways lie elsewhere. Only these elements
    are rounded to odd first, which is 3 times faster than rounding all. A sum of zero, frequent in padding, is exact.
    """
    wide = np.multiply(x, y, dtype=np.float64)
    wide += z
    bits = wide.view(np.int64)
    doubtful = (bits & 0x1FFFFFFF) == 0x10000000
    tiny = np.abs(wide) < 2.0**-126
    if np.count_nonzero(tiny):
        doubtful |= tiny & (wide != 0)
    out = wide.astype(np.float32)
    if np.count_nonzero(doubtful):
        xb, yb, zb = (np.broadcast_to(a, wide.shape)[doubtful] for a in (x, y, z))
        out[doubtful] = fma_odd(xb, yb, zb).astype(np.float32)
    return out


@quiet
def fma_odd(x: Array, y: Array, z: Array) -> F64:
    """Returns x * y + z of values of at most 24 bits, as float64 rounded to odd."""
    product = x.astype(np.float64) * y.astype(np.float64)
    return to_odd(*two_sum(product, z.astype(np.float64)))


@quiet
def fma_float64(x: F64, y: F64, z: F64) -> F64:
    """Returns x * y + z in float64 with one rounding to nearest even, subnormals and overflow included."""
    sizes = [(np.abs(x), 2.0**400), (np.abs(y), 2.0**400), (np.abs(z), 2.0**800)]
    if all(_comfortable(size, limit) for size, limit in sizes):
        return _nearest(x, y, z)  # which splits each factor before it is broadcast
    easy = reduce(np.logical_and, [(a < limit) & ((a > 1 / limit) | (a == 0)) for a, limit in sizes])
    x, y, z = np.broadcast_arrays(x, y, z)
    if x.size / 2 < np.count_nonzero(easy) < x.size:
        out, hard = _nearest(*(np.where(easy, each, 1.0) for each in (x, y, z))), ~easy
        out[hard] = fma_float64(x[hard], y[hard], z[hard])  # few infinities do not slow down thousands of others
        return out
    return _scaled(x, y, z)


def _nearest(x: F64, y: F64, z: F64) -> F64:
    """Returns x * y + z rounded to nearest, for values far from overflow and underflow: the common case.

    s + rest is the sum to about 106 bits, so its float64 rounding is right unless it lies within 2^-52 |rest| of a tie.
    Changing rest slightly both ways finds these elements, and only they take the careful path.
    """
    product, error = _two_product(x, y)
    s, rest = two_sum(product, z)
    rest += error
    out = s + rest
    doubtful = (s + rest * (1.0 - 2.0**-51)) != (s + rest * (1.0 + 2.0**-51))
    zero = product == 0  # a factor is 0, as in padding: s is exact and has the sign of a zero sum
    np.copyto(out, s, where=zero)
    doubtful |= (out == 0) & ~zero
    if np.count_nonzero(doubtful):
        xd, yd, zd = (np.broadcast_to(a, out.shape)[doubtful] for a in (x, y, z))
        careful, _ = _sum_of_product(xd, yd, zd)
        out[doubtful] = np.where(careful == 0, xd * yd + zd, careful)
    return out


def _comfortable(size: F64, limit: float) -> bool:
    """True if no magnitude except zeros comes near overflow or underflow in an error-free product."""
    if np.count_nonzero(size < limit) < size.size:
        return False
    inside = np.count_nonzero(size > 1 / limit)
    return bool(inside == size.size or inside + np.count_nonzero(size == 0) == size.size)


def _sum_of_product(x: F64, y: F64, z: F64) -> tuple[F64, F64]:
    """Returns x * y + z rounded to nearest, and a rest with the sign of the exact remainder (0 if exact)."""
    high, low = _two_product(x, y)
    t_high, t_low = two_sum(z, low)
    v_high, v_low = two_sum(high, t_high)
    return two_sum(v_high, to_odd(*two_sum(t_low, v_low)))


def _two_product(x: F64, y: F64) -> tuple[F64, F64]:
    """Returns the rounded product x * y and its exact error."""
    p = x * y
    cx, cy = _SPLITTER * x, _SPLITTER * y
    xh, yh = cx - (cx - x), cy - (cy - y)
    xl, yl = x - xh, y - yh
    return p, ((xh * yh - p) + xh * yl + xl * yh) + xl * yl


def _scaled(x: F64, y: F64, z: F64) -> F64:
    """Returns x * y + z of any values, computed on mantissas and exponents."""
    mx, ex = np.frexp(x)
    my, ey = np.frexp(y)
    mz, ez = np.frexp(z)
    exponent = ex + ey
    distance = np.where(mz != 0, ez - exponent, 0)
    # Beyond 130 bits the smaller addend affects only the sign of the remainder, so the distance may be cut.
    exponent = np.where(distance > 130, ez - 130, exponent)
    nearest, rest = _sum_of_product(mx, my, np.ldexp(mz, np.clip(distance, -130, 130)))

    out = np.ldexp(nearest, exponent)
    lost = nearest - np.ldexp(out, -exponent)  # the exact error of scaling into the subnormal range
    # A false tie: ldexp met exactly half a step, but the rest lies on the other side than the even number.
    half_step = np.ldexp(0.5, -1074 - exponent)
    false_tie = (np.abs(lost) == half_step) & (lost * rest > 0)
    out = np.where(false_tie, np.nextafter(out, np.where(lost > 0, np.inf, -np.inf)), out)

    # A zero takes its sign from the plain sum; its product is exact in that case.
    plain = (mx == 0) | (my == 0) | (nearest == 0)
    finite = np.isfinite(x) & np.isfinite(y)
    out = np.where(finite & ~np.isfinite(z), z, out)
    return np.where((plain & np.isfinite(z)) | ~finite, x * y + z, out)
