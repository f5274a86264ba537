"""Device functions that read the operands of a row and add, scale, shift and round them.

v is x, or the exact sum s of x, input_bias and residual *before* it is rounded to the residual's dtype.

- float64 sums (summed, value_of): exact for 16-bit and float32 operands unless their exponents lie more than 29
  binades apart; then off by 2^-53 |v|. For sums of 16-bit operands v - k is the float64 sum of the differences of
  their two parts.
- float64 pairs (value_pair): for float64 operands and for rows that are computed again. Three operands that need more
  than 106 bits are not exact.
- float32 pairs (half_pair) of 16-bit operands: error-free sums; with three operands off by 2^-48 of the largest.

contract="model" rounds to the dtype T of all operands, where the eager layer does. The constants of the kernels:

    HAS_R   1: v is the exact sum    2: v is the sum of T, rounded after each addition; dx is rounded before ds is added
    HAS_W   1: xhat weight    2: R(xhat) weight, as in Llama; also R(dy weight) and R(dy R(xhat))
            3: xhat (1 + weight), as in Gemma
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..arithmetic import narrowed
from ..float_pairs import two_sum


@triton.jit
def rounded(value, pointer):
    """Returns `value` as float64 if `pointer` holds float64, else as float32; the store rounds float32 to 16 bits."""
    if pointer.dtype.scalar.element_ty == tl.float64:
        return value.to(tl.float64)
    else:
        return value.to(tl.float32)


@triton.jit
def kept(x):
    """Returns x unknown to the compiler, which then converts it again instead of keeping its float64 in registers."""
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=False, pack=1)


@triton.jit
def _sum_of_three(x, i, r):
    """Returns x + i + r to 2^-52 of the sum, even if r cancels a large x that hid a small i."""
    v, e = two_sum(x, i)
    return (v + r) + tl.where(e == e, e, 0.0)  # the error term of an infinite v is inf - inf, NaN


@triton.jit
def _rounded_sum(x, i, r, HAS_I: tl.constexpr):
    """Returns x [+ input_bias] + residual in float32, rounded after each addition."""
    T: tl.constexpr = tl.bfloat16 if r.dtype == tl.float32 else r.dtype  # float32: a row that forward.py unpacked
    v = x.to(tl.float32)
    if HAS_I:
        v = narrowed(v + i.to(tl.float32), T)
    return narrowed(v + r.to(tl.float32), T)


@triton.jit
def operands(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R: tl.constexpr, HAS_I: tl.constexpr):
    """Returns x, residual and input_bias, with x for each that is absent."""
    x = tl.load(x_ptr + cols, mask=mask, other=0.0)
    r = tl.load(r_ptr + cols, mask=mask, other=0.0) if HAS_R else x
    i = tl.load(i_ptr + cols, mask=mask, other=0.0) if HAS_I else x
    return x, r, i


@triton.jit
def summed(x, r, i, HAS_R: tl.constexpr, HAS_I: tl.constexpr):
    """Returns x [+ input_bias] [+ residual] in float64: exact unless exponents are 29 binades apart."""
    v = x.to(tl.float64)
    if HAS_R == 2:
        v = _rounded_sum(x, i, r, HAS_I).to(tl.float64)
    elif HAS_I:
        v = _sum_of_three(v, i.to(tl.float64), r.to(tl.float64)) if HAS_R else v + i.to(tl.float64)
    elif HAS_R:
        v += r.to(tl.float64)
    return v


@triton.jit
def value_of(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R: tl.constexpr, HAS_I: tl.constexpr):
    """Reads the operands and returns their float64 sum."""
    x, r, i = operands(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R, HAS_I)
    return summed(x, r, i, HAS_R, HAS_I)


@triton.jit
def value_pair(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R: tl.constexpr, HAS_I: tl.constexpr):
    """Returns x [+ input_bias] [+ residual] as a float64 pair, for float64 operands and rows computed again."""
    if HAS_R == 2:
        v = value_of(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R, HAS_I)
        return v, tl.zeros_like(v)
    v = tl.load(x_ptr + cols, mask=mask, other=0.0).to(tl.float64)
    low = v * 0.0
    plain = v
    if HAS_I:
        term = tl.load(i_ptr + cols, mask=mask, other=0.0).to(tl.float64)
        if HAS_R:
            # Operands of opposite signs first, so no partial sum overflows unless the whole sum does.
            other = tl.load(r_ptr + cols, mask=mask, other=0.0).to(tl.float64)
            same = (v < 0) == (term < 0)
            last = tl.where(same, term, other)
            term = tl.where(same, other, term)
        plain += term
        v, e = two_sum(v, term)
        low += e
    if HAS_R:
        if not HAS_I:
            last = tl.load(r_ptr + cols, mask=mask, other=0.0).to(tl.float64)
        plain += last
        v, e = two_sum(v, last)
        v, low = two_sum(v, low + e)  # v is the rounded sum, even if the terms cancel
    # the error term of an infinite sum would be inf - inf, NaN
    infinite = tl.abs(plain) == float("inf")
    v = tl.where(infinite, plain, v)
    low = tl.where(infinite, 0.0, low)
    return v, low


@triton.jit
def pair_from_first(x_ptr, r_ptr, i_ptr, cols, mask, up, HAS_R: tl.constexpr, HAS_I: tl.constexpr):
    """Returns `up` times the difference of value_pair from that of the row's first element, off by 2^-104 of itself.

    So even a row that varies by less than 2^-106 of its largest operand keeps its differences. A constant row gives 0.
    """
    v, low = value_pair(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R, HAS_I)
    first, first_low = value_pair(x_ptr, r_ptr, i_ptr, 0, True, HAS_R, HAS_I)
    v, e = two_sum(v * up, -first * up)
    low, rest = two_sum(low * up, -first_low * up)
    v, low = two_sum(v, low)
    return v, low + (e + rest)


@triton.jit
def half_pair(x, i, r, HAS_I: tl.constexpr, HAS_R: tl.constexpr):
    """Returns x [+ i] [+ r] of 16-bit numbers as a float32 pair; NaN if a sum leaves float32.

    Exact for two operands. With three, the low parts are added with one rounding, 2^-48 of the largest.
    """
    v = x.to(tl.float32)
    low = v * 0.0
    if HAS_R == 2:
        v = _rounded_sum(x, i, r, HAS_I)
        return v, tl.zeros_like(v)
    if HAS_I:
        v, low = two_sum(v, i.to(tl.float32))
    if HAS_R:
        v, e = two_sum(v, r.to(tl.float32))
        if HAS_I:
            # v becomes the rounded sum. If h and r cancel, v is 0 or more than ulp(h) >= |low + e|, so these
            # three operations are exact.
            low += e
            h = v
            v = h + low
            low -= v - h
        else:
            low = e
    return v, low


@triton.jit
def vectors(w_ptr, b_ptr, cols, mask, HAS_W: tl.constexpr, HAS_B: tl.constexpr):
    """Returns weight and bias, 1 and 0 for absent ones."""
    w = tl.load(w_ptr + cols, mask=mask, other=0.0) if HAS_W else 1.0
    b = tl.load(b_ptr + cols, mask=mask, other=0.0) if HAS_B else 0.0
    return w, b


@triton.jit
def row_vector(pointer, n_cols, BLOCK: tl.constexpr):
    """Returns n_cols numbers as one row [1, BLOCK].

    They are loaded as [BLOCK]: the layout of a load of [1, BLOCK] would be that of the rows too, which spreads each row
    over all warps of a program.
    """
    cols = tl.arange(0, BLOCK)
    return tl.load(pointer + cols, mask=cols < n_cols, other=0.0)[None, :]


@triton.jit
def factor(w, like, HAS_W: tl.constexpr):
    """Returns the factor of a weight, w or 1 + w, in the precision of `like`."""
    return w.to(like.dtype) + 1.0 if HAS_W == 3 else w.to(like.dtype)


@triton.jit
def weighted(dy, w, dy_ptr, HAS_W: tl.constexpr):
    """Returns g, dy times the weight's factor."""
    g = dy * factor(w, dy, HAS_W)
    return narrowed(g, dy_ptr.dtype.scalar.element_ty) if HAS_W == 2 else g


@triton.jit
def with_weight_term(acc, dy, xhat, dy_ptr, HAS_W: tl.constexpr, LIFT: tl.constexpr = 0):
    """Returns acc + dy xhat, a sum for dweight. xhat and the sum are multiplied by 2^LIFT."""
    if HAS_W == 2:
        T: tl.constexpr = dy_ptr.dtype.scalar.element_ty
        return acc + narrowed(dy * narrowed(xhat * 2.0**-LIFT, T), T) * 2.0**LIFT
    else:
        return tl.fma(dy, xhat, acc)


@triton.jit
def of_sum(dx, pointer, HAS_R: tl.constexpr):
    """Returns dx as the gradient of a sum: rounded if the sum is."""
    return narrowed(dx, pointer.dtype.scalar.element_ty) if HAS_R == 2 else dx


@triton.jit
def scale_and_shift(y, w, b, HAS_W: tl.constexpr, HAS_B: tl.constexpr):
    """Returns y weight + bias with one rounding in y's dtype. With HAS_W = 2, y is rounded to w's dtype first."""
    if HAS_W == 2:
        y = narrowed(y, w.dtype)
    if HAS_W:
        w = factor(w, y, HAS_W)
        y = tl.fma(y, w, b.to(y.dtype)) if HAS_B else y * w
    elif HAS_B:
        y = y + b.to(y.dtype)
    return y


@triton.jit
def affine(y, w_ptr, b_ptr, cols, mask, HAS_W: tl.constexpr, HAS_B: tl.constexpr):
    """Reads weight and bias and returns y weight + bias with one rounding in y's dtype."""
    w, b = vectors(w_ptr, b_ptr, cols, mask, HAS_W, HAS_B)
    return scale_and_shift(y, w, b, HAS_W, HAS_B)
