"""Unevaluated pairs high + low of one format, about twice as precise as one number, as device functions.

Sums are exact (Knuth, Dekker), products lose only the product of the two low parts: in float32 and float64 alike, as
long as nothing overflows. The kernels of gelu.py and geglu.py forbid the compiler to fuse what is not written as a
fused multiply-add.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.arithmetic import const, neg


@triton.jit
def fast_two_sum(a, b):
    """a + b = s + error exactly, for |a| >= |b|."""
    s = a + b
    return s, (a - s) + b


@triton.jit
def two_sum(a, b):
    """a + b as an unevaluated pair: RN(a + b) and its exact rounding error."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


@triton.jit
def cut(value, unit):
    """`value` as a multiple of 2^-52 `unit` and the rest, both exact: n such multiples add up exactly.

    `unit` is a power of two, at least 4 n |value|."""
    high = (value + unit) - unit
    return high, value - high


@triton.jit
def mul_pair(ah, al, bh, bl):
    """(ah + al)(bh + bl) as a pair, without the product of the two low parts."""
    p = ah * bh
    return p, tl.fma(ah, bl, tl.fma(al, bh, tl.fma(ah, bh, neg(p))))


@triton.jit
def reciprocal_pair(d, low):
    """1/(d + low) = r (1 + e): r is rounded, e its relative residual."""
    r = 1.0 / d
    return r, tl.fma(neg(r), low, tl.fma(neg(r), d, const(d, 1.0)))


@triton.jit
def sum_with_head(tau, coefs: tl.constexpr, low: tl.constexpr, degree: tl.constexpr):
    """coefs[0] + low + tau (coefs[1] + tau (coefs[2] + ...)) as a pair, and the two innermost sums as pairs."""
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
    """m (h + low) with one rounding; m h alone where that is 0, infinite or NaN."""
    p = m * h
    plain = (p == 0) | (tl.abs(p) == float("inf"))
    return tl.where(plain, p, tl.fma(m, h, m * low))
