"""Device functions for unevaluated pairs high + low of one format, about twice as precise as one number.

Sums are exact (Knuth, Dekker). Products lose only the product of the two low parts. Both hold in float32 and float64 if
nothing overflows. The kernels of gelu.py and geglu.py compile with enable_fp_fusion=False: the compiler fuses no
other operation than the fused multiply-adds in the source.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .arithmetic import const, neg


@triton.jit
def fast_two_sum(a, b):
    """Returns s and error with a + b = s + error exactly, for |a| >= |b|."""
    s = a + b
    return s, (a - s) + b


@triton.jit
def two_sum(a, b):
    """Returns RN(a + b) and its exact rounding error."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


@triton.jit
def cut(value, unit):
    """Splits `value` into a multiple of 2^-52 `unit` and the rest, both exact. Sums of n such multiples are exact.

    `unit` must be a power of two and at least 4 n |value|.
    """
    high = (value + unit) - unit
    return high, value - high


@triton.jit
def mul_pair(ah, al, bh, bl):
    """Returns (ah + al)(bh + bl) as a pair, without the product of the two low parts."""
    p = ah * bh
    return p, tl.fma(ah, bl, tl.fma(al, bh, tl.fma(ah, bh, neg(p))))


@triton.jit
def reciprocal_pair(d, low):
    """Returns r and e with 1/(d + low) = r (1 + e): r is rounded, e its relative residual."""
    r = 1.0 / d
    return r, tl.fma(neg(r), low, tl.fma(neg(r), d, const(d, 1.0)))


@triton.jit
def sum_with_head(tau, coefs: tl.constexpr, low: tl.constexpr, degree: tl.constexpr):
    """Returns coefs[0] + low + tau (coefs[1] + tau (coefs[2] + ...)) as a pair; the last two additions are exact."""
    q = tl.full(tau.shape, coefs[degree], tl.float64)
    for i in tl.static_range(degree - 1, 1, -1):
        q = tl.fma(q, tau, const(tau, coefs[i]))
    z = q * tau
    h, e = two_sum(tl.full(tau.shape, coefs[1], tl.float64), z)
    rest = e + tl.fma(q, tau, neg(z))
    z = h * tau
    rest = tl.fma(rest, tau, tl.fma(h, tau, neg(z)))
    h, e = two_sum(tl.full(tau.shape, coefs[0], tl.float64), z)
    return h, (e + rest) + low


@triton.jit
def times_pair(m, h, low):
    """Returns m (h + low) with one rounding, or m h alone if that is 0, infinite or NaN."""
    p = m * h
    plain = (p == 0) | (tl.abs(p) == float("inf"))
    return tl.where(plain, p, tl.fma(m, h, m * low))
