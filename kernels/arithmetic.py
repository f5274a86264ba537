"""Device functions for arithmetic that triton.language lacks. Each states its precision and what NaN and -0 become.

    const, neg, at_most     constants in an operand's precision, an exact sign, a minimum that keeps NaN
    horner                  a polynomial by fused multiply-adds
    reciprocal_approx, reciprocal64, exp2_approx    the hardware's approximations, and one Newton step on the first
    times_pow2, pow2_halves, scaled64, product64, exponent, power_of_two, power_of_two_32
                            powers of two by exponent bits
    float64_of              a float64 argument, passed as its bits
    narrowed                a number rounded to another format

A float64 n + MAGIC (a float32 n + MAGIC32) has the integer n in its low bits. So the sum rounds to an integer, and a
shift moves the integer into the field of an exponent.
"""

from __future__ import annotations

import triton
import triton.language as tl

MAGIC: tl.constexpr = tl.constexpr(6755399441055744.0)  # 1.5 * 2^52: adding it rounds to an integer
MAGIC32: tl.constexpr = tl.constexpr(12582912.0)  # 1.5 * 2^23


@triton.jit
def const(like, c: tl.constexpr):
    """Returns c in the precision of `like`: tl.fma would take a bare Python float as float32."""
    return tl.full((), c, like.dtype)


@triton.jit
def neg(x):
    """Returns -x. Triton's unary minus is 0 - x, which loses the sign of zero and costs an addition."""
    return x * -1.0


@triton.jit
def at_most(x, limit: tl.constexpr):
    """Returns min(x, limit); NaN stays NaN."""
    return tl.minimum(x, const(x, limit), propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def horner(x, coefs: tl.constexpr, degree: tl.constexpr):
    """Returns the sum of coefs[i] x^i, by fused multiply-adds in the precision of x."""
    p = tl.full(x.shape, coefs[degree], x.dtype)
    for i in tl.static_range(degree - 1, -1, -1):
        p = tl.fma(p, x, const(x, coefs[i]))
    return p


@triton.jit
def reciprocal_approx(d):
    """Returns 1/d in float32 by the hardware's approximation, within 1 ULP; subnormal d counts as 0."""
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [d], tl.float32, is_pure=True, pack=1)


@triton.jit
def reciprocal64(d):
    """Returns 1/d to 2^-40: the hardware's 20-bit approximation and one Newton step."""
    r = tl.inline_asm_elementwise("rcp.approx.ftz.f64 $0, $1;", "=d,d", [d], tl.float64, is_pure=True, pack=1)
    return tl.fma(r, tl.fma(neg(d), r, const(d, 1.0)), r)


@triton.jit
def exp2_approx(x):
    """Returns 2^x to 2 ULP, and 0 for a subnormal result. The kernels keep their promises if it is off by 4."""
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def times_pow2(p, shifted):
    """Returns p * 2^n, n in the low bits of `shifted` = MAGIC + n, by an integer addition to the exponent."""
    bits = p.to(tl.int64, bitcast=True) + (shifted.to(tl.int64, bitcast=True) << 52)
    return bits.to(tl.float64, bitcast=True)


@triton.jit
def pow2_halves(shifted):
    """Returns 2^n as two factors, so that n down to -2000 stays representable; n as in times_pow2."""
    n = (shifted.to(tl.int64, bitcast=True) << 32) >> 32
    half = n >> 1
    a = ((half + 1023) << 52).to(tl.float64, bitcast=True)
    b = ((n - half + 1023) << 52).to(tl.float64, bitcast=True)
    return a, b


@triton.jit
def scaled64(v, n):
    """Returns v 2^n by three multiplications in one direction. Only the last can round, unless v 2^n vanishes."""
    third = n // 3
    step = ((third + 1023) << 52).to(tl.float64, bitcast=True)
    last = ((n - 2 * third + 1023) << 52).to(tl.float64, bitcast=True)
    return ((v * step) * step) * last


@triton.jit
def product64(a, b):
    """Returns m and e with a b = m 2^e; e is 1024 if two finite factors overflow float64, else 0."""
    m = a * b
    beyond = (tl.abs(m) == float("inf")) & (tl.abs(a) < float("inf")) & (tl.abs(b) < float("inf"))
    small = (a * 2.0**-512) * (b * 2.0**-512)
    return tl.where(beyond, small, m), tl.where(beyond, 1024, 0).to(tl.int64)


@triton.jit
def exponent(value):
    """Returns floor(log2(value)) of a positive normal float64, 1024 for inf and NaN, -1023 below normal."""
    return ((value.to(tl.int64, bitcast=True) >> 52) & 0x7FF).to(tl.int32) - 1023


@triton.jit
def power_of_two(n):
    """Returns 2.0**n for -1022 <= n <= 1023."""
    return ((n + 1023).to(tl.int64) << 52).to(tl.float64, bitcast=True)


@triton.jit
def power_of_two_32(n):
    """Returns 2.0**n in float32 for -126 <= n <= 127."""
    return ((n + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def float64_of(bits):
    """Returns the float64 with these bits: Triton would pass a Python float as float32."""
    return bits.to(tl.int64).to(tl.float64, bitcast=True)


@triton.jit
def narrowed(value, TYPE: tl.constexpr):
    """Returns `value` rounded to TYPE by way of float32, as PyTorch rounds to 16 bits, in its own format."""
    return value.to(tl.float32).to(TYPE).to(value.dtype)
