"""Reading and adding up what a row is made of, scaling and shifting it, rounding it: device functions.

v is x, or the exact sum s of x, input_bias and residual *before* it is rounded to the residual's dtype.
- float64 sums (summed, value_of): exact for 16-bit and float32 operands unless their exponents lie more than 29
  binades apart; then off by 2^-53 |v|. For sums of 16-bit operands v - k is the float64 sum of the differences of
  their two parts.
- float64 pairs (value_pair): for float64 operands and for rows that are redone. Three operands that need more than
  106 bits are not exact.
- float32 pairs (half_pair) of 16-bit operands: error-free sums; three operands leave 2^-48 of the largest.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.float_pairs import two_sum


@triton.jit
def rounded(value, pointer):
    """`value` as float32, unless `pointer` holds float64; the store rounds float32 to 16 bits."""
    if pointer.dtype.scalar.element_ty == tl.float64:
        return value.to(tl.float64)
    else:
        return value.to(tl.float32)


@triton.jit
def _sum_of_three(x, i, r):
    """x + i + r to 2^-52 of the sum, also where r cancels what hid a small i."""
    v, e = two_sum(x, i)
    return (v + r) + tl.where(e == e, e, 0.0)  # an infinite v has no error term: inf - inf is NaN


@triton.jit
def operands(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R: tl.constexpr, HAS_I: tl.constexpr):
    """What is added up: x, residual, input_bias; x in the place of those that are absent."""
    x = tl.load(x_ptr + cols, mask=mask, other=0.0)
    r = tl.load(r_ptr + cols, mask=mask, other=0.0) if HAS_R else x
    i = tl.load(i_ptr + cols, mask=mask, other=0.0) if HAS_I else x
    return x, r, i


@triton.jit
def summed(x, r, i, HAS_R: tl.constexpr, HAS_I: tl.constexpr):
    """x [+ input_bias] [+ residual] in float64: exact unless exponents are 29 binades apart."""
    v = x.to(tl.float64)
    if HAS_I:
        v = _sum_of_three(v, i.to(tl.float64), r.to(tl.float64)) if HAS_R else v + i.to(tl.float64)
    elif HAS_R:
        v += r.to(tl.float64)
    return v


@triton.jit
def value_of(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R: tl.constexpr, HAS_I: tl.constexpr):
    x, r, i = operands(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R, HAS_I)
    return summed(x, r, i, HAS_R, HAS_I)


@triton.jit
def value_pair(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R: tl.constexpr, HAS_I: tl.constexpr):
    """x [+ input_bias] [+ residual] as a float64 pair, for float64 operands and for rows that are redone."""
    v = tl.load(x_ptr + cols, mask=mask, other=0.0).to(tl.float64)
    low = v * 0.0
    plain = v
    if HAS_I:
        term = tl.load(i_ptr + cols, mask=mask, other=0.0).to(tl.float64)
        if HAS_R:
            # Operands of opposite signs first: no partial sum overflows where the whole does not.
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
        v, low = two_sum(v, low + e)  # v is the rounded sum, also where the terms cancel
    # an infinite sum has no error term: inf - inf would make it NaN
    infinite = tl.abs(plain) == float("inf")
    v = tl.where(infinite, plain, v)
    low = tl.where(infinite, 0.0, low)
    return v, low


@triton.jit
def pair_from_first(x_ptr, r_ptr, i_ptr, cols, mask, up, HAS_R: tl.constexpr, HAS_I: tl.constexpr):
    """`up` times the difference of value_pair from that of the row's first element, off by 2^-104 of itself.

    So a row is known that varies by less than 2^-106 of its largest operand; one that does not vary is 0."""
    v, low = value_pair(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R, HAS_I)
    first, first_low = value_pair(x_ptr, r_ptr, i_ptr, 0, True, HAS_R, HAS_I)
    v, e = two_sum(v * up, -first * up)
    low, rest = two_sum(low * up, -first_low * up)
    v, low = two_sum(v, low)
    return v, low + (e + rest)


@triton.jit
def half_pair(x, i, r, HAS_I: tl.constexpr, HAS_R: tl.constexpr):
    """x [+ i] [+ r] of 16-bit numbers as a float32 pair; NaN where a sum leaves float32.

    Exact for two operands. The low parts of three are added with one rounding, 2^-48 of the largest."""
    v = x.to(tl.float32)
    low = v * 0.0
    if HAS_I:
        v, low = two_sum(v, i.to(tl.float32))
    if HAS_R:
        v, e = two_sum(v, r.to(tl.float32))
        if HAS_I:
            # v is to be the rounded sum. Where h and r cancel, v is 0 or more than ulp(h) >= |low + e|:
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
    """weight and bias, whatever is there in the place of an absent one."""
    w = tl.load(w_ptr + cols, mask=mask, other=0.0) if HAS_W else 1.0
    b = tl.load(b_ptr + cols, mask=mask, other=0.0) if HAS_B else 0.0
    return w, b


@triton.jit
def scale_and_shift(y, w, b, HAS_W: tl.constexpr, HAS_B: tl.constexpr):
    """y weight + bias, one rounding in y's dtype."""
    if HAS_W:
        y = tl.fma(y, w.to(y.dtype), b.to(y.dtype)) if HAS_B else y * w.to(y.dtype)
    elif HAS_B:
        y = y + b.to(y.dtype)
    return y


@triton.jit
def affine(y, w_ptr, b_ptr, cols, mask, HAS_W: tl.constexpr, HAS_B: tl.constexpr):
    """y weight + bias, one rounding in y's dtype."""
    w, b = vectors(w_ptr, b_ptr, cols, mask, HAS_W, HAS_B)
    return scale_and_shift(y, w, b, HAS_W, HAS_B)
