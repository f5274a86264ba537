"""The mathematics of SwiGLU as device functions: m silu(x), and both gradients of x1 silu(x), for each dtype.

With u = |x|, E = exp(-u) and r = 1 / (1 + E),

    silu(x)  = x - u E r  for x >= 0,  -u E r  for x < 0
    silu'(x) = 1 - D      for x >= 0,   D      for x < 0,      D = E r N,  N = 1 - u r

This is GELU's tanh form (gelu_math.py) with 2 z(u) = u. Only N cancels, at its zero u = 1.27846, where N' = -1. The
arithmetic is that of gelu_math.py: each function leaves one rounding, the store's. Its other errors in ULP:

- float32 in float64: E to 2^-30 for the value: below 0.02. For the slope E to 2^-52; its numerator 1 + E (1 + x) keeps
  2^-26 at the float32 next to the zero: below 0.3.
- float16 in float32: E is off by 2^-22, also at u = 72, the last u at which weight, upstream and 1 / rms of a gated
  norm can bring the product back into range (SwiGLU: 33). 1 / (1 + E) is off by 2^-23, each product by 2^-24: together
  below 0.01. Within 1/8 of the zero N is its Taylor polynomial in zero - u, off by 2^-20. Farther away 1 - u r
  loses 3 bits of 22.
- bfloat16 likewise, with three bits more to spare. A large x1 brings silu back from 2^-262, so E = h h and x1 h is
  formed first. A large dy x1 brings the slope back from 2^-390: gradients_bf scales its factors.
- float64 in pairs of float64, at the zero of the slope to 2^-58. The power of two is applied last.

Beyond the limits of u below, the tail is 0 for any finite factor. At -inf silu and its slope are 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .arithmetic import (
    MAGIC,
    at_most,
    const,
    exp2_approx,
    horner,
    neg,
    pow2_halves,
    product64,
    reciprocal64,
    reciprocal_approx,
    scaled64,
    times_pow2,
)
from .float_pairs import fast_two_sum, mul_pair, reciprocal_pair, times_pair, two_sum
from .gelu_math import (
    EXP2_6,
    EXP2_11,
    annulled_at_minus_inf,
    combine_bf,
    exp_pair,
    gradients_bf,
    minuend,
    one_minus,
    twelve,
    zero_at_minus_inf,
)

# The zero of N, and N / t in powers of t = zero - u.
NEG_LOG2E: tl.constexpr = tl.constexpr(-1.4426950408889634)
NEG_LOG2E_LO: tl.constexpr = tl.constexpr(-1.92596298909109e-08)  # beyond float32
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
ZERO32: tl.constexpr = tl.constexpr(1.2784645557403564)
ZERO32_LO: tl.constexpr = tl.constexpr(-1.2979282537628478e-08)
NEAR: tl.constexpr = tl.constexpr((1.0, -0.10890585286, -0.0488829323323, -0.00471870355595))
# Limits of u = |x|: from there on u exp(-u) is below half the smallest number divided by the largest factor.
LIMIT32: tl.constexpr = tl.constexpr(290.0)  # 2^-150 / 2^256
LIMIT_HALF: tl.constexpr = tl.constexpr(72.0)  # 2^-25 / 2^72: a gated norm has weight dy rstd
LIMIT_BF: tl.constexpr = tl.constexpr(188.0)  # 2^-134 / 2^128
LIMIT_BF_SLOPE: tl.constexpr = tl.constexpr(284.0)  # 2^-134 / 2^256
LIMIT64: tl.constexpr = tl.constexpr(2200.0)  # 2^-1075 / 2^2048


@triton.jit
def _exp32(w, degree: tl.constexpr):
    """Returns exp(-w) of a float64 |w| <= 290, by a polynomial of degree 6 (2^-30) or 11 (2^-52)."""
    shifted = tl.fma(w, const(w, NEG_LOG2E), const(w, MAGIC))
    f = tl.fma(w, const(w, NEG_LOG2E), MAGIC - shifted)
    if degree == 6:
        p = horner(f, EXP2_6, 6)
    else:
        p = horner(f, EXP2_11, 11)
    return times_pow2(p, shifted)


@triton.jit
def _parts32(x, degree: tl.constexpr):
    """Returns max(x, -290), that clamped to 290, exp(-x) and 1 / (1 + exp(-x)) in float64."""
    c = tl.where(x < -LIMIT32, -LIMIT32, x)
    w = at_most(c, LIMIT32).to(tl.float64)
    e = _exp32(w, degree)
    return c.to(tl.float64), w, e, reciprocal64(1.0 + e)


@triton.jit
def _tail(u):
    """Returns E and r in float32, by the hardware's approximations. E has a correction for its rounded argument."""
    t = u * NEG_LOG2E
    e = exp2_approx(t)
    rest = tl.fma(u, const(u, NEG_LOG2E_LO), tl.fma(u, const(u, NEG_LOG2E), neg(t)))
    e = tl.fma(e, rest * LN2, e)
    return e, reciprocal_approx(1.0 + e)


@triton.jit
def _numerator(u, r):
    """Returns N = 1 - u r in float32."""
    t = (ZERO32 - u) + ZERO32_LO
    return tl.where(tl.abs(t) < 0.125, t * horner(t, NEAR, 3), tl.fma(neg(u), r, const(u, 1.0)))


@triton.jit
def _times_half(m, x):
    """Returns m silu(x) for float16."""
    u = at_most(tl.abs(x), LIMIT_HALF)
    e, r = _tail(u)
    return m * zero_at_minus_inf(x, tl.fma(neg(u), e * r, minuend(x)))


@triton.jit
def _gradients_half(dy, x1, x):
    """Returns dy silu(x) and dy x1 silu'(x) for float16; dy x1 is exact."""
    u = at_most(tl.abs(x), LIMIT_HALF)
    e, r = _tail(u)
    d = (e * r) * _numerator(u, r)
    d = zero_at_minus_inf(x, tl.where(x < 0, d, 1.0 - d))
    return dy * zero_at_minus_inf(x, tl.fma(neg(u), e * r, minuend(x))), (dy * x1) * d


@triton.jit
def _times_bf(m, x):
    """Returns m silu(x) for bfloat16."""
    u = at_most(tl.abs(x), LIMIT_BF)
    # exp2 flushes subnormal results, so the argument has 12 added; 0 for infinite x: see gelu_math.root_gauss_bf
    h = exp2_approx(tl.fma(u, const(u, NEG_LOG2E / 2), twelve(x))) * (1.0 / 4096.0)
    return combine_bf(m, x, h, u * reciprocal_approx(tl.fma(h, h, const(h, 1.0))), x, -1.0)


@triton.jit
def _gradients_bf(dy, x1, x):
    """Returns dy silu(x) and dy x1 silu'(x) for bfloat16; exp(-u) is q^4."""
    u = at_most(tl.abs(x), LIMIT_BF_SLOPE)
    q = exp2_approx(u * (NEG_LOG2E / 4))
    h = q * q
    r = reciprocal_approx(tl.fma(h, h, const(h, 1.0)))
    return gradients_bf(dy, x1, x, q, u * r, _numerator(u, r) * r)


@triton.jit
def _parts64(x):
    """Returns u; E = (p + q) 2^n as p, q and `shifted`, whose low bits are n; 2^n as two factors a, b; r (1 + low).

    a and b are 0 for u > 700, where E does not change 1 + E.
    """
    u = at_most(tl.abs(x), LIMIT64)
    p, q, shifted = exp_pair(neg(u), 0.0 * u)
    a, b = pow2_halves(shifted)
    a = tl.where(u > 700.0, 0.0, a)
    b = tl.where(u > 700.0, 0.0, b)
    d, low = fast_two_sum(const(u, 1.0), (p * a) * b)
    r, e = reciprocal_pair(d, low + (q * a) * b)
    return u, p, q, shifted, a, b, r, r * e


@triton.jit
def _lowered(m, e, p, q, shifted):
    """Returns m 2^e (p + q) 2^n, n in the low bits of `shifted`: the result leaves float64 before any factor does."""
    large = tl.abs(m) > 1
    size = tl.where(large, 2.0**-64, 1.0)
    n = ((shifted.to(tl.int64, bitcast=True) << 32) >> 32) + e + tl.where(large, 64, 0)
    return scaled64(times_pair(m, p * size, q * size), tl.maximum(n, -2700))


@triton.jit
def _value64(m, e, x):
    """Returns m 2^e silu(x). e is 0, or 1024 if |m| >= 1."""
    u, p, q, shifted, a, b, r, low = _parts64(x)
    p, q = mul_pair(p, q, r, low)
    p, q = mul_pair(p, q, neg(u), 0.0 * u)
    y = x * r
    y = times_pair(m, y, tl.fma(x, r, neg(y)) + x * low)
    y = tl.where(x < 0, _lowered(annulled_at_minus_inf(m, x), e, p, q, shifted), y)
    return tl.where(tl.abs(x) < 2.0**-900, (m * x) * r, y)  # x / 2 may round to 0, and m may be infinite


@triton.jit
def _slope64(m, e, x):
    """Returns m 2^e silu'(x). e is 0, or 1024 if |m| >= 1."""
    u, p, q, shifted, a, b, r, low = _parts64(x)
    h, rest = mul_pair(u, 0.0 * u, r, low)
    n, lost = two_sum(const(u, 1.0), neg(h))
    p, q = mul_pair(p, q, r, low)
    p, q = mul_pair(p, q, n, lost - rest)
    p, q = two_sum(p, q)  # near the zero, q holds all of the value
    h, rest = one_minus(p, q, a, b)
    d = times_pair(m, h, rest)
    d = tl.where(e == 0, d, (d * 2.0**512) * 2.0**512)
    return tl.where(x < 0, _lowered(annulled_at_minus_inf(m, x), e, p, q, shifted), d)


@triton.jit
def silu_times(m, x):
    """Returns m silu(x) before its one rounding to x's dtype."""
    if x.dtype == tl.float64:
        y = _value64(m, tl.zeros_like(x).to(tl.int64), x)
    elif x.dtype == tl.float32:
        c, w, e, r = _parts32(x, 6)
        y = m.to(tl.float64) * zero_at_minus_inf(x, c * r)
    elif x.dtype == tl.float16:
        y = _times_half(m.to(tl.float32), x.to(tl.float32))
    else:
        y = _times_bf(m.to(tl.float32), x.to(tl.float32))
    return y


@triton.jit
def silu_gradients(dy, x1, x):
    """Returns dy silu(x) and dy x1 silu'(x) before their roundings."""
    if x.dtype == tl.float64:
        m, e = product64(dy, x1)
        v = _value64(dy, tl.zeros_like(x).to(tl.int64), x)
        d = _slope64(m, e, x)
    elif x.dtype == tl.float32:
        c, w, decay, r = _parts32(x, 11)
        m = annulled_at_minus_inf(dy, x).to(tl.float64)
        v = m * (c * r)
        d = (m * x1.to(tl.float64)) * ((tl.fma(decay, 1.0 + w, const(w, 1.0)) * r) * r)
    elif x.dtype == tl.float16:
        v, d = _gradients_half(dy.to(tl.float32), x1.to(tl.float32), x.to(tl.float32))
    else:
        v, d = _gradients_bf(dy.to(tl.float32), x1.to(tl.float32), x.to(tl.float32))
    return v, d
