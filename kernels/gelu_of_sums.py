"""Device functions for GELU and its slope, applied to the sums of a product before their one rounding.

They cost less than gelu_math.py's formulas, because they must finish while the matrix units multiply. Their argument is
a float32 sum, not a 16-bit number. For 16-bit results they use float32 arithmetic with one exp2; the whole tail has a
relative error of 2^-12.6 (bfloat16) or 2^-18 (float16). Float32 and float64 results use float64 arithmetic.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

# 12 + log2 Phi(-u) on [0, cap]: minimax coefficients, lowest first. The tests compute them again. Past the cap
# u Phi(-u) rounds to zero in that format. The 12 keeps the exponential above the subnormals, which exp2 flushes to
# zero, and u 2^-12 is still exact for the smallest bfloat16.
CAP_FP16: tl.constexpr = tl.constexpr(5.9)
TAIL_FP16: tl.constexpr = tl.constexpr((
    11.00000469669497, -1.1512508399169978, -0.45846517167036066, -0.053959007763895436, 0.008507224618454278,
    -0.0009303158955865105, 6.156652382578551e-05, -1.832949408728355e-06,
))  # fmt: skip
CAP_BF16: tl.constexpr = tl.constexpr(13.7)
TAIL_BF16: tl.constexpr = tl.constexpr((
    10.999770697608785, -1.148537803976497, -0.463678418584505, -0.05019816820251243, 0.007221599073226762,
    -0.0007093304193676544, 4.425809196346769e-05, -1.567263761500613e-06, 2.3864744366851683e-08,
))  # fmt: skip
# Past the cap a large factor can still lift the function into range. These are log2 of gelu(-cap - t) / gelu(-cap), or
# the same of gelu', as t times a polynomial. It is minimax for x down to -19.5 (bfloat16) and -9.4 (float16). The last
# coefficient is below 0, so an infinite t gives 0.
FAR_BF16: tl.constexpr = tl.constexpr((-19.763910402274607, -0.7214095477670118))
FAR_SLOPE_BF16: tl.constexpr = tl.constexpr((
    -19.658522261169292, -0.7252716114578452, 0.00017509706234072032, -5.394052543257928e-06,
))  # fmt: skip
FAR_SLOPE_FP16: tl.constexpr = tl.constexpr((
    -8.25387503610203, -0.7448523369665518, 0.0024436885697398606, -0.0001554355960361235,
))  # fmt: skip
# Below these edges the functions return gelu and gelu' times 2^126, and the other factor is multiplied by 2^-126. The
# product may lie in float32's range although gelu alone, down to the square of the smallest float32, does not.
EDGE: tl.constexpr = tl.constexpr((-13.0, -10.0))  # erf, tanh
LIFT: tl.constexpr = tl.constexpr(126.0)
UNLIFT: tl.constexpr = tl.constexpr(2.0**-126)
UNSCALE: tl.constexpr = tl.constexpr(2.0**-12)
RSQRT2: tl.constexpr = tl.constexpr(0.7071067811865476)  # 1 / sqrt(2)
RSQRT_2PI: tl.constexpr = tl.constexpr(0.3989422804014327)  # 1 / sqrt(2 pi)
HALF_LOG2E: tl.constexpr = tl.constexpr(0.7213475204444817)  # log2(e) / 2
LOG2_RSQRT_2PI: tl.constexpr = tl.constexpr(-1.3257480647361595)  # log2(1 / sqrt(2 pi))
TANH_A: tl.constexpr = tl.constexpr(1.5957691216057308)  # 2 sqrt(2 / pi)
TANH_B: tl.constexpr = tl.constexpr(0.07135481627260025)  # 0.044715 A
TANH_A_LOG2E: tl.constexpr = tl.constexpr(2.3022081981443248)
TANH_B_LOG2E: tl.constexpr = tl.constexpr(0.1029432395800235)


@triton.jit
def _log_tail(u, BF16: tl.constexpr):
    """Returns 12 + log2 Phi(-u) for 0 <= u <= cap."""
    if BF16:
        p = u * TAIL_BF16[8] + TAIL_BF16[7]
        for i in tl.static_range(6, -1, -1):
            p = p * u + TAIL_BF16[i]
    else:
        p = u * TAIL_FP16[7] + TAIL_FP16[6]
        for i in tl.static_range(5, -1, -1):
            p = p * u + TAIL_FP16[i]
    return p


@triton.jit
def _tail(u, BF16: tl.constexpr):
    """Returns 2^12 Phi(-u) for 0 <= u <= cap: a polynomial and one exp2."""
    return tl.exp2(_log_tail(u, BF16))


@triton.jit
def _past(t, coefs: tl.constexpr, terms: tl.constexpr):
    """Returns t (coefs[0] + coefs[1] t + ...), of `terms` coefficients."""
    p = t * coefs[terms - 1] + coefs[terms - 2]
    for i in tl.static_range(terms - 3, -1, -1):
        p = p * t + coefs[i]
    return p * t


@triton.jit
def _clamped(x, LOW: tl.constexpr, HIGH: tl.constexpr):
    """Returns x clamped to [LOW, HIGH]; NaN stays NaN."""
    y = tl.maximum(x, LOW, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(y, HIGH, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def gelu_value(x, TANH: tl.constexpr, BF16: tl.constexpr):
    """Returns gelu(x). x is float64, or a float32 whose result will be rounded to 16 bits (BF16: to bfloat16)."""
    if x.dtype == tl.float64:
        if TANH:
            v = tl.maximum(x, -40.0, propagate_nan=tl.PropagateNan.ALL)  # -inf gives -0, not the NaN of -inf / inf
            y = v / (1.0 + libdevice.exp(-v * (TANH_A + TANH_B * v * v)))
        else:
            v = tl.maximum(x, -40.0, propagate_nan=tl.PropagateNan.ALL)
            y = (0.5 * v) * libdevice.erfc(-v * RSQRT2)
    else:
        if TANH:
            # numerator and denominator are scaled, so exp2 overflows only if y rounds to zero
            v = tl.maximum(x, -40.0, propagate_nan=tl.PropagateNan.ALL)
            t = v * (v * v * -TANH_B_LOG2E - TANH_A_LOG2E) - 12.0
            y = (v * UNSCALE) / (UNSCALE + tl.exp2(t))
        else:
            cap: tl.constexpr = CAP_BF16 if BF16 else CAP_FP16
            u = tl.minimum(tl.abs(x), cap, propagate_nan=tl.PropagateNan.ALL)
            y = tl.maximum(x, 0.0) - (u * UNSCALE) * _tail(u, BF16)
    return y


@triton.jit
def unlifted(m, x, TANH: tl.constexpr, BF16: tl.constexpr):
    """Returns m, times 2^-126 if gelu_slope(x) is lifted by 2^126.

    The choice is between two products. A choice between two factors would spill registers.
    """
    if BF16 and x.dtype == tl.float32:
        m = tl.where(x < EDGE[TANH], m * UNLIFT, m)
    return m


@triton.jit
def times_gelu(m, x, TANH: tl.constexpr, BF16: tl.constexpr):
    """Returns m gelu(x). A large m lifts the tail into range, so float16 uses the polynomial of bfloat16."""
    if BF16 and x.dtype == tl.float32:
        deep = x < EDGE[TANH]
        m = unlifted(m, x, TANH, True)
        if TANH:  # as in gelu_value; 2^126 is divided out of the denominator
            v = tl.maximum(x, -40.0, propagate_nan=tl.PropagateNan.ALL)
            t = v * (v * v * -TANH_B_LOG2E - TANH_A_LOG2E) - 12.0
            e = tl.exp2(tl.where(deep, t - LIFT, t))
            y = (v * UNSCALE) / tl.where(deep, e, UNSCALE + e)
        else:
            u = tl.minimum(tl.abs(x), CAP_BF16, propagate_nan=tl.PropagateNan.ALL)
            p = _log_tail(u, True) + _past(tl.abs(x) - u, FAR_BF16, 2)
            y = tl.maximum(x, 0.0) - (u * UNSCALE) * tl.exp2(tl.where(deep, p + LIFT, p))
    else:
        y = gelu_value(x, TANH, True)
        if x.dtype == tl.float32 and not TANH:
            y = tl.where(x < -CAP_BF16, y * 0.0, y)  # with the value at the cap 1e3 gelu(-20) would be -1e-37
    return m * y


@triton.jit
def gelu_slope(x, TANH: tl.constexpr, BF16: tl.constexpr):
    """Returns gelu'(x) as a factor, x as in gelu_value. In bfloat16 it is lifted: pass the other factor to unlifted."""
    if x.dtype == tl.float64:
        if TANH:
            v = _clamped(x, -21.0, 21.0)
            e = libdevice.exp(-v * (TANH_A + TANH_B * v * v))
            r = 1.0 / (1.0 + e)
            y = r * (1.0 + v * (TANH_A + 3.0 * TANH_B * v * v) * (e * r))
        else:
            v = _clamped(x, -40.0, 40.0)
            y = 0.5 * libdevice.erfc(-v * RSQRT2) + v * RSQRT_2PI * libdevice.exp(-0.5 * v * v)
    elif TANH:
        end: tl.constexpr = -13.3 if BF16 else -10.5
        v = _clamped(x, end, 10.5)  # outside, 0 and 1 in every 16-bit format
        t = v * (v * v * -TANH_B_LOG2E - TANH_A_LOG2E) - 24.0
        scale: tl.constexpr = UNSCALE * UNSCALE
        if BF16:
            deep = x < EDGE[1]
            e = tl.exp2(tl.where(deep, t - LIFT, t))
            r = 1.0 / tl.where(deep, e, scale + e)
        else:
            e = tl.exp2(t)
            r = 1.0 / (scale + e)
        y = (r * (1.0 + v * (TANH_A + 3.0 * TANH_B * v * v) * (e * r))) * scale
        y = tl.where(x < end, y * 0.0, y)
    else:
        cap: tl.constexpr = CAP_BF16 if BF16 else CAP_FP16
        u = tl.minimum(tl.abs(x), cap, propagate_nan=tl.PropagateNan.ALL)
        e = _past(tl.abs(x) - u, FAR_SLOPE_BF16 if BF16 else FAR_SLOPE_FP16, 4)
        if BF16:
            e = tl.where(x < EDGE[0], e + LIFT, e)
        density = tl.exp2((u * u * -HALF_LOG2E + (LOG2_RSQRT_2PI + 12.0)) + e)
        # gelu'(-u) = Phi(-u) - u phi(u)
        d = (tl.exp2(_log_tail(u, BF16) + e) - u * density) * UNSCALE
        y = tl.where(x < 0, d, 1.0 - d)  # gelu'(u) = 1 - gelu'(-u)
    return y
