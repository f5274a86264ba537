"""Layer norm in Triton, forward and backward, with one rounding per output in practice.

>>> y = layer_norm(x, weight, bias, eps=1e-5)
>>> y, s = layer_norm_residual(x, residual, weight, bias)  # s = x + residual
>>> y, s = layer_norm_residual_bias(x, residual, input_bias)  # s = x + input_bias + residual

Each row v of N numbers (v = x, or the exact sum s *before* it is rounded to the residual's dtype)
gives

    mean = sum(v) / N      var = sum((v - mean)^2) / N      rstd = 1 / sqrt(var + eps)
    xhat = (v - mean) rstd                                  y = xhat weight + bias

and, for upstream gradients dy (of y) and ds (of s), with g = dy weight, c1 = sum(g) / N and
c2 = sum(g xhat) / N,

    dx = dresidual = rstd (g - c1 - xhat c2) + ds           dinput_bias = sum over rows of dx
    dweight = sum over rows of dy xhat                      dbias = sum over rows of dy

**Moments.** One reduction gives both sums in float64, S1 = sum(v - k) and S2 = sum((v - k)^2). Then
mean = k + S1/N as an unevaluated pair (the quotient is corrected by its FMA remainder, so that a
constant row has v - mean = 0 exactly), and N var = S2 - S1^2/N, with the pair and FMAs.
- float32 rows take k = v[0]. v - k is exact unless exponents lie more than 29 binades apart, and
  S2 / (N var) = 1 + (k - mean)^2 / var <= 1 + N because k is one of the N values. So var is off by
  less than about 8 N 2^-53: 2^-38 at N = 4,096, 2^-34 at N = 65,537.
- Sums of 16-bit operands likewise; v - k is the float64 sum of the differences of their two parts.
- Other sums are rounded to float64, off by 2^-53 |v|. Where mean^2 > 2^20 var, one operand may hide
  another: such rows are marked in the statistics and redone in float64 pairs by a kernel that
  follows. Constant rows are among them. Three operands that need more than 106 bits are not exact.
- Plain 16-bit rows take k = 0. If mean^2 / var <= 2^20, var loses 20 bits of 53. If it is larger, the
  values share nearly one binade, their squares have 16 (bfloat16) or 22 (float16) bits, and both
  sums are exact.
Squares of float32 numbers neither overflow nor underflow in float64: 1e30 and 1e-38 are no special
cases. eps reaches the kernel as the bits of a float64 (Triton passes Python floats as float32).

**Rounding points, forward**, in ulps of |weight xhat| + |bias|:
- EXACT (rows or residuals in float32, float64 weights): v - mean, times rstd, times weight plus bias in
  float64; y is rounded to float32 and, for 16-bit outputs, once more: 0.5 + 2^-13.
- FAST (16-bit rows): the row's statistics become float32 pairs, scaled by `up`, a power of two (1
  unless rstd is outside 2^-40..2^40) that keeps rows near 1e38 or 1e-40 in range; three float32
  FMAs, then the output's rounding: 0.502 (float16), 0.5002 (bfloat16). With a residual, v is a
  float32 pair (error-free sums; three operands leave 2^-48 of the largest), d = (high - mean_high) +
  (low - mean_low) is rounded to 24 bits of d and off by 2^-48 |mean| more. Rows with
  |mean| rstd > 2^14, or where a sum leaves float32, are done in float64 pairs as in WIDE.
- WIDE (x, residual or input_bias in float64): sums as float64 pairs, scaled to [1, 2) by a power of
  two. S1 is cut twice (error-free extraction), good to about N^3 2^-147 of the largest element, so that the
  mean's two parts hold where large elements cancel; S2 = sum((v - mean)^2) is cut once. Then the
  mean's two parts, rstd, weight and bias: below 4. A constant row is its own mean, low part included.

**Rounding points, backward**, in ulps of rstd (|g| + mean|g| + |xhat| mean|g xhat|) for dx, of
sum|dy xhat| for dweight, sum|dy| for dbias:
- EXACT and WIDE: float64 throughout, one rounding at the output; column sums in float64. EXACT: dx
  of marked rows is redone from pairs, and so are the column sums of programs that had such a row.
- One column: xhat = g - c1 = 0 in every path, NaN where a row is not finite; so dx = ds.
- FAST (rows and vectors of 16 bits, up to 8,192 columns): float32 throughout, far below a 16-bit
  ulp; a float32 column sum takes at most 1,024 rows, sums of these are float64. float32 is not
  enough where terms leave its range, or are so large that the ulp of the output stops growing with
  them: rows with rstd |g| >= 2^17 (float16) or 2^116 (bfloat16), |dy| or |g| >= 2^100, both sums below
  2^-60, or hard in the forward pass. They are found from the sums themselves (one of them is scaled
  by a power of two that makes it overflow) and redone in float64; so are the column sums of programs
  that had such a row. Rows with dy = 0 are not redone. Large sums of many small terms are redone,
  too: right, and slower.
- PAIRED (float32 rows of 4,097 to 8,192 columns, whose float64 intermediates do not fit in the
  registers of a multiprocessor): c1 and c2 from float64 sums. With d = v - mean_high, g + g_low =
  dy weight exactly and, as float32 pairs, r = rstd, B = rstd^2 c2, C = B mean_low - rstd c1,
      dx = g r + (-d B + (C + low)),      low = all products with a low part.
  Roundings: d (1 ulp of the xhat term), C + low, the inner and the outer FMA (1/2 each, not all at
  once): below 2, 0.53 measured on random data. dbias is summed in float64; dweight in float32 over
  at most 64 rows, then in float64: 0.1 on random data, 16 at worst if all 64 rows are the same.
  Rows that float32 may not hold (|dy| or |g| >= 2^92, rstd >= 2^24, c1 and c2 both below 2^-60,
  (|c1| + |c2|) min(1, rstd^2) below 2^-100 or rstd^2 times them beyond 2^120) are redone as in FAST.

**Order.** Every sum has an order fixed by (M, N, dtypes) and by which rows are hard: no atomics;
results depend neither on scheduling nor on the number of multiprocessors. A row's y, s and dx do not
depend on M. Each of a fixed number of programs sums the columns over its own rows; a second kernel
adds these partial sums in float64. The same bits come out of a faithful interpreter except for the
order inside a block's sum and rsqrt of float64 (1 ulp), both about 2^-52 before a rounding to 24 bits
or fewer.

**Memory.** Rows that fit in registers are loaded and stored once. The next rows are on their way while
the present one is reduced: into shared memory or registers (backward), into L2 (forward, 16 bits).
Longer rows are read twice, from L2 if they fit there; so are float32 rows of 8,192 columns (forward),
from L1.

**Layouts.** Results are bit for bit those of contiguous operands. A row stride is taken as it is where
Triton compiles the same kernel for it as for N: both are multiples of 16 or neither, and neither is 1.
All else is copied first: other row strides, a last dimension of stride other than 1, leading
dimensions that do not collapse to one row stride, strided vectors, and whatever does not start at a
multiple of 16 bytes.

GPUs with few float64 units will run EXACT and WIDE much slower than an H200 does.
"""

import math
import struct

import torch
import triton
import triton.language as tl

__all__ = ["layer_norm", "layer_norm_residual", "layer_norm_residual_bias"]

# 16-bit sums with |mean| rstd above this are worked on in float64
_FAR = tl.constexpr(2.0**14)
# sums worked on in float64 are redone in pairs where mean^2 exceeds this times the variance
_FAR_SQUARED = tl.constexpr(2.0**20)

# ------------------------------------------------------------------------------- pieces of kernels


@triton.jit
def _two_sum(a, b):
    """a + b as an unevaluated pair: RN(a + b) and its exact rounding error."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


@triton.jit
def _sums(a, b):
    """(sum(a), sum(b)) through one reduction, hence one pair of barriers instead of two."""
    v = tl.sum(tl.join(a, b), 0)
    first = tl.arange(0, 2) == 0
    return tl.sum(tl.where(first, v, 0.0), 0), tl.sum(tl.where(first, 0.0, v), 0)


@triton.jit
def _cut(value, unit):
    """`value` as a multiple of 2^-52 `unit` and the rest, both exact: n such multiples add up exactly.

    `unit` is a power of two, at least 4 n |value|."""
    high = (value + unit) - unit
    return high, value - high


@triton.jit
def _exponent(value):
    """floor(log2(value)) of a positive normal float64; 1024 for inf and NaN, -1023 below normal."""
    return ((value.to(tl.int64, bitcast=True) >> 52) & 0x7FF).to(tl.int32) - 1023


@triton.jit
def _power_of_two(exponent):
    """2.0**exponent for -1022 <= exponent <= 1023."""
    return ((exponent + 1023).to(tl.int64) << 52).to(tl.float64, bitcast=True)


@triton.jit
def _power_of_two_32(exponent):
    """2.0**exponent in float32 for -126 <= exponent <= 127."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _float64(bits):
    """The float64 with these bits: Triton would pass a Python float as float32."""
    return bits.to(tl.int64).to(tl.float64, bitcast=True)


@triton.jit
def _rounded(value, pointer):
    """`value` as float32, unless `pointer` holds float64; the store rounds float32 to 16 bits."""
    if pointer.dtype.scalar.element_ty == tl.float64:
        return value.to(tl.float64)
    else:
        return value.to(tl.float32)


@triton.jit
def _sum_of_three(x, i, r):
    """x + i + r to 2^-52 of the sum, also where r cancels what hid a small i."""
    v, e = _two_sum(x, i)
    return (v + r) + tl.where(e == e, e, 0.0)  # an infinite v has no error term: inf - inf is NaN


@triton.jit
def _operands(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R: tl.constexpr, HAS_I: tl.constexpr):
    """What is added up: x, residual, input_bias; x in the place of those that are absent."""
    x = tl.load(x_ptr + cols, mask=mask, other=0.0)
    r = tl.load(r_ptr + cols, mask=mask, other=0.0) if HAS_R else x
    i = tl.load(i_ptr + cols, mask=mask, other=0.0) if HAS_I else x
    return x, r, i


@triton.jit
def _sum(x, r, i, HAS_R: tl.constexpr, HAS_I: tl.constexpr):
    """x [+ input_bias] [+ residual] in float64: exact unless exponents are 29 binades apart."""
    v = x.to(tl.float64)
    if HAS_I:
        v = _sum_of_three(v, i.to(tl.float64), r.to(tl.float64)) if HAS_R else v + i.to(tl.float64)
    elif HAS_R:
        v += r.to(tl.float64)
    return v


@triton.jit
def _value(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R: tl.constexpr, HAS_I: tl.constexpr):
    x, r, i = _operands(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R, HAS_I)
    return _sum(x, r, i, HAS_R, HAS_I)


@triton.jit
def _value_pair(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R: tl.constexpr, HAS_I: tl.constexpr):
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
        v, e = _two_sum(v, term)
        low += e
    if HAS_R:
        if not HAS_I:
            last = tl.load(r_ptr + cols, mask=mask, other=0.0).to(tl.float64)
        plain += last
        v, e = _two_sum(v, last)
        v, low = _two_sum(v, low + e)  # v is the rounded sum, also where the terms cancel
    # an infinite sum has no error term: inf - inf would make it NaN
    infinite = tl.abs(plain) == float("inf")
    v = tl.where(infinite, plain, v)
    low = tl.where(infinite, 0.0, low)
    return v, low


@triton.jit
def _half_pair(x, i, r, HAS_I: tl.constexpr, HAS_R: tl.constexpr):
    """x [+ i] [+ r] of 16-bit numbers as a float32 pair; NaN where a sum leaves float32.

    Exact for two operands. The low parts of three are added with one rounding, 2^-48 of the largest."""
    v = x.to(tl.float32)
    low = v * 0.0
    if HAS_I:
        v, low = _two_sum(v, i.to(tl.float32))
    if HAS_R:
        v, e = _two_sum(v, r.to(tl.float32))
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
def _moments(s1, s2, shift, n, inv):
    """Mean as a pair, and variance, from the sums of v - shift and of its square."""
    m = s1 * inv
    m = tl.fma(tl.fma(-m, n, s1), inv, m)  # = RN(s1 / n): inv is RN(1 / n) (Markstein)
    m_low = tl.fma(-m, n, s1) * inv
    var = (tl.fma(-s1, m, s2) - s1 * m_low) * inv
    mean, e = _two_sum(shift, m)
    return mean, e + m_low, tl.where(var < 0, 0.0, var)  # keeps NaN, which maximum() would not


@triton.jit
def _scaled(mean, mean_low, rstd):
    """(up, up mean, up mean_low, rstd / up): up = 2^k is 1 unless rstd lies outside 2^-40..2^40.

    float32 arithmetic on up * v then neither overflows nor underflows. up * mean is rounded to
    float32 here, its remainder goes to the low part."""
    k = _exponent(rstd)
    k = tl.where((k >= -40) & (k <= 40), 0, tl.minimum(k, 125 - _exponent(mean)))  # constant rows: rstd is of eps
    k = tl.minimum(tl.maximum(k, -126), 126)
    up = _power_of_two(k)
    m = (mean * up).to(tl.float32).to(tl.float64)
    return up, m, (mean * up - m) + mean_low * up, rstd * _power_of_two(-k)


@triton.jit
def _mark(mean, var):
    """0.5 where the sums of a row may need pairs, else 1 (zero rows and NaN, too).

    A float64 sum is off by 2^-53 |mean|: where |mean| is at most 2^10 standard deviations, that is as
    little as the mean itself is off. `up` times the mark tells the kernels that redo such rows."""
    return tl.where(mean * mean > _FAR_SQUARED * var, 0.5, 1.0)


@triton.jit
def _store_stats(stats_ptr, up, mean, mean_low, rstd):
    tl.store(stats_ptr, up)
    tl.store(stats_ptr + 1, mean)
    tl.store(stats_ptr + 2, mean_low)
    tl.store(stats_ptr + 3, rstd)


@triton.jit
def _load_stats(stats_ptr, there):
    up = tl.load(stats_ptr, mask=there, other=0.0)
    mean = tl.load(stats_ptr + 1, mask=there, other=0.0)
    mean_low = tl.load(stats_ptr + 2, mask=there, other=0.0)
    rstd = tl.load(stats_ptr + 3, mask=there, other=0.0)
    return up, mean, mean_low, rstd


@triton.jit
def _xhat(v, low, up, mean, mean_low, rstd, PAIR: tl.constexpr):
    """(v up - mean - mean_low) rstd in v's dtype; two roundings, three if PAIR."""
    if PAIR:
        return (tl.fma(v, up, -mean) + tl.fma(low, up, -mean_low)) * rstd
    else:
        return tl.fma(tl.fma(v, up, -mean), rstd, -mean_low * rstd)


@triton.jit
def _one_column(xhat, g, c1, ONE: tl.constexpr):
    """(xhat, g - c1): both 0 where a row is ONE number, NaN where it is not finite.

    There g - c1 is not left to a subtraction: fused with g = dy weight, it gives that product's rounding
    error. Rows of 16-bit operands have a mean of 48 bits, their pair may have more."""
    if ONE:
        return xhat * 0.0, tl.abs(g) * 0.0
    else:
        return xhat, g - c1


@triton.jit
def _vectors(w_ptr, b_ptr, cols, mask, HAS_W: tl.constexpr, HAS_B: tl.constexpr):
    """weight and bias, whatever is there in the place of an absent one."""
    w = tl.load(w_ptr + cols, mask=mask, other=0.0) if HAS_W else 1.0
    b = tl.load(b_ptr + cols, mask=mask, other=0.0) if HAS_B else 0.0
    return w, b


@triton.jit
def _scale_and_shift(y, w, b, HAS_W: tl.constexpr, HAS_B: tl.constexpr):
    """y weight + bias, one rounding in y's dtype."""
    if HAS_W:
        y = tl.fma(y, w.to(y.dtype), b.to(y.dtype)) if HAS_B else y * w.to(y.dtype)
    elif HAS_B:
        y = y + b.to(y.dtype)
    return y


@triton.jit
def _affine(y, w_ptr, b_ptr, cols, mask, HAS_W: tl.constexpr, HAS_B: tl.constexpr):
    """y weight + bias, one rounding in y's dtype."""
    w, b = _vectors(w_ptr, b_ptr, cols, mask, HAS_W, HAS_B)
    return _scale_and_shift(y, w, b, HAS_W, HAS_B)


# -------------------------------------------------------------------------------- forward kernels


@triton.jit
def _packed(pointer, zero, BLOCK: tl.constexpr):
    """BLOCK bfloat16 numbers as float32, read two to an int32: they share a register until they are taken apart.

    A `zero` that the compiler does not know keeps it from doing that early."""
    pairs = tl.load(pointer.to(tl.pointer_type(tl.int32), bitcast=True) + tl.arange(0, BLOCK // 2))
    low = (pairs << (16 + zero)).to(tl.float32, bitcast=True)
    high = (pairs & (-65536 + zero)).to(tl.float32, bitcast=True)
    return tl.reshape(tl.join(low, high), (BLOCK,))


@triton.jit
def _read_row(pointer, cols, mask, BLOCK: tl.constexpr, PACKED: tl.constexpr):
    """16-bit numbers; as float32 if they are PACKED."""
    if PACKED:
        return _packed(pointer, 0, BLOCK)
    else:
        return tl.load(pointer + cols, mask=mask, other=0.0)


@triton.jit
def _prefetch(pointers):
    """Ask for these addresses to be read into the second-level cache: no registers, no waiting."""
    code: tl.constexpr = "prefetch.global.L2 [$1]; mov.b32 $0, 0;"
    tl.inline_asm_elementwise(code, "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _forward_hard_row(
    x_ptr, i_ptr, r_ptr, w_ptr, b_ptr, y_ptr, s_ptr, stats_ptr, n_cols, eps, inv,
    BLOCK: tl.constexpr, HAS_I: tl.constexpr, HAS_W: tl.constexpr, HAS_B: tl.constexpr,
):  # fmt: skip
    """One row of sums in float64 pairs, read block by block: the pointers are those of the row."""
    n = inv * 0.0 + n_cols
    acc1 = tl.zeros((BLOCK,), tl.float64)
    acc2 = tl.zeros((BLOCK,), tl.float64)
    shift, shift_low = _value_pair(x_ptr, r_ptr, i_ptr, 0, True, 1, HAS_I)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        v, low = _value_pair(x_ptr, r_ptr, i_ptr, cols, cols < n_cols, 1, HAS_I)
        d = tl.where(cols < n_cols, (v - shift) + (low - shift_low), 0.0)
        acc1 += d
        acc2 = tl.fma(d, d, acc2)
    s1, s2 = _sums(acc1, acc2)
    mean, mean_low, var = _moments(s1, s2, shift, n, inv)
    mean_low += shift_low
    rstd = tl.rsqrt(var + eps)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        v, low = _value_pair(x_ptr, r_ptr, i_ptr, cols, mask, 1, HAS_I)
        y = _affine(((v - mean) + (low - mean_low)) * rstd, w_ptr, b_ptr, cols, mask, HAS_W, HAS_B)
        tl.store(y_ptr + cols, _rounded(y, y_ptr), mask=mask)
        tl.store(s_ptr + cols, _rounded(v, s_ptr), mask=mask)
    # marked; the mean may be no float32, the backward pass finds these rows hard, too
    _store_stats(stats_ptr, 0.5, mean * 0.5, mean_low * 0.5, rstd * 2.0)


@triton.jit(do_not_specialize=["eps_bits", "inv_bits", "n_rows"])
def _forward_hard_rows_kernel(
    x_ptr, r_ptr, i_ptr, w_ptr, b_ptr, y_ptr, s_ptr, stats_ptr, x_stride, r_stride, n_cols, eps_bits, inv_bits, n_rows,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, HAS_R: tl.constexpr, HAS_I: tl.constexpr, HAS_W: tl.constexpr,
    HAS_B: tl.constexpr,
):  # fmt: skip
    """The marked rows of a forward kernel that added up residuals in float64, in float64 pairs."""
    start = tl.program_id(0).to(tl.int64) * ROWS
    rows = start + tl.arange(0, ROWS)
    if tl.min(tl.load(stats_ptr + rows * 4, mask=rows < n_rows, other=1.0), 0) < 1:
        for k in range(ROWS):
            row = start + k
            if tl.load(stats_ptr + row * 4, mask=row < n_rows, other=1.0) < 1:
                _forward_hard_row(
                    x_ptr + row * x_stride, i_ptr, r_ptr + row * r_stride, w_ptr, b_ptr, y_ptr + row * n_cols,
                    s_ptr + row * n_cols, stats_ptr + row * 4, n_cols, _float64(eps_bits), _float64(inv_bits),
                    BLOCK=BLOCK, HAS_I=HAS_I, HAS_W=HAS_W, HAS_B=HAS_B,
                )  # fmt: skip


@triton.jit(do_not_specialize=["eps_bits", "inv_bits"])
def _forward_kernel(
    x_ptr,  # [M, N] rows of stride x_stride
    r_ptr,  # [M, N] residual, rows of stride r_stride
    i_ptr,  # [N] input bias
    w_ptr,  # [N] weight
    b_ptr,  # [N] bias
    y_ptr,  # [M, N] contiguous, out
    s_ptr,  # [M, N] contiguous, out: the summed input
    stats_ptr,  # [M, 4] float64, out: up, up mean (pair), rstd / up
    x_stride,
    r_stride,
    n_cols,
    eps_bits,
    inv_bits,  # 1 / n_cols
    BLOCK: tl.constexpr,
    FULL: tl.constexpr,  # n_cols == BLOCK
    FAST: tl.constexpr,
    MARK: tl.constexpr,  # FAST: the backward pass adds up in float64
    PACKED: tl.constexpr,  # FAST with HAS_R: FULL, and all operands and vectors are bfloat16
    LATER: tl.constexpr,  # FAST, FULL: the row so many programs later is asked for as well, unless 0
    AGAIN: tl.constexpr,  # x is read twice, the second time from the first-level cache: float64 takes the registers
    HAS_R: tl.constexpr,
    HAS_I: tl.constexpr,
    HAS_W: tl.constexpr,
    HAS_B: tl.constexpr,
):
    """One row per program, held in registers (but see AGAIN)."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = tl.full((BLOCK,), True, tl.int1) if FULL else cols < n_cols
    x_ptr += row * x_stride
    r_ptr += row * r_stride
    if FAST:
        x = _read_row(x_ptr, cols, mask, BLOCK, PACKED)
        if LATER > 0:  # noqa: SIM102 (decided when the kernel is compiled)
            if row + LATER < tl.num_programs(0):
                STEP: tl.constexpr = 16 if HAS_R else 32  # columns for each thread
                line = tl.arange(0, BLOCK // STEP) * STEP
                _prefetch(x_ptr + LATER * x_stride + line)
                if HAS_R:
                    _prefetch(r_ptr + LATER * r_stride + line)
        shift = 0.0
        if HAS_R:
            r = _read_row(r_ptr, cols, mask, BLOCK, PACKED)
            i = x
            if HAS_I:
                i = _read_row(i_ptr, cols, mask, BLOCK, PACKED)
            x, low = _half_pair(x, i, r, HAS_I, HAS_R)
            i0 = tl.load(i_ptr) if HAS_I else 0.0
            shift, shift_low = _half_pair(tl.load(x_ptr), i0, tl.load(r_ptr), HAS_I, HAS_R)
            # stored now, the sum takes no registers beside the pair; rows that are redone write it again
            tl.store(s_ptr + row * n_cols + cols, x, mask=mask)
            shift = shift.to(tl.float64)
            d = (x.to(tl.float64) - shift) + (low - shift_low).to(tl.float64)
            if not FULL:
                d = tl.where(mask, d, 0.0)
        else:
            x = x.to(tl.float32)
            d = x.to(tl.float64)
    else:
        # All loads first; weight and bias, too, where adding up leaves them time to arrive and registers are left.
        x, r, i = _operands(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R, HAS_I)
        x0, r0, i0 = _operands(x_ptr, r_ptr, i_ptr, 0, True, HAS_R, HAS_I)
        if HAS_R and not HAS_I:
            w, b = _vectors(w_ptr, b_ptr, cols, mask, HAS_W, HAS_B)
        v = _sum(x, r, i, HAS_R, HAS_I)
        if HAS_R:
            tl.store(s_ptr + row * n_cols + cols, _rounded(v, s_ptr), mask=mask)
        shift = _sum(x0, r0, i0, HAS_R, HAS_I)
        d = v - shift if FULL else tl.where(mask, v - shift, 0.0)
    s1, s2 = _sums(d, d * d)
    n = row.to(tl.float64) * 0.0 + n_cols  # n_cols itself is no tensor when it is 1
    mean, mean_low, var = _moments(s1, s2, shift, n, _float64(inv_bits))
    rstd = tl.rsqrt(var + _float64(eps_bits))
    if FAST and HAS_R:
        mean_low += shift_low.to(tl.float64)  # a constant row has v - mean = 0 exactly
        # the pairs hold 48 bits of v; NaN: a sum left float32, or the row has inf or NaN
        if tl.abs(mean) * rstd <= _FAR:
            mark = _mark(mean, var) if MARK else 1.0
            up, mean, mean_low, rstd = _scaled(mean, mean_low, rstd)
            # before y is made, which needs their registers
            _store_stats(stats_ptr + row * 4, up * mark, mean * mark, mean_low * mark, rstd / mark)
            y = _xhat(x, low, up.to(tl.float32), mean.to(tl.float32), mean_low.to(tl.float32), rstd.to(tl.float32), 1)
            if PACKED:
                w = _packed(w_ptr, n_cols >> 31, BLOCK) if HAS_W else 1.0
                b = _packed(b_ptr, n_cols >> 31, BLOCK) if HAS_B else 0.0
            else:
                w, b = _vectors(w_ptr, b_ptr, cols, mask, HAS_W, HAS_B)
            y = _scale_and_shift(y, w, b, HAS_W, HAS_B)
            tl.store(y_ptr + row * n_cols + cols, y, mask=mask)
        else:
            tl.debug_barrier()  # other threads store these elements of s
            _forward_hard_row(
                x_ptr, i_ptr, r_ptr, w_ptr, b_ptr, y_ptr + row * n_cols, s_ptr + row * n_cols, stats_ptr + row * 4,
                n_cols, _float64(eps_bits), _float64(inv_bits),
                BLOCK=min(BLOCK, 512), HAS_I=HAS_I, HAS_W=HAS_W, HAS_B=HAS_B,
            )  # fmt: skip
    else:
        if FAST:
            up, mean, mean_low, rstd = _scaled(mean, mean_low, rstd)
            d = tl.fma(x, up.to(tl.float32), -mean.to(tl.float32))
            y = tl.fma(d, rstd.to(tl.float32), (-mean_low * rstd).to(tl.float32))
        else:
            up = _mark(mean, var) if HAS_R else 1.0
            if AGAIN:
                v = tl.load(x_ptr + cols, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float64)
            y = ((v - mean) - mean_low) * rstd
        if FAST or HAS_I or not HAS_R:
            w, b = _vectors(w_ptr, b_ptr, cols, mask, HAS_W, HAS_B)
        y = _scale_and_shift(y, w, b, HAS_W, HAS_B)
        tl.store(y_ptr + row * n_cols + cols, _rounded(y, y_ptr), mask=mask, cache_modifier=".cs" if AGAIN else "")
        _store_stats(stats_ptr + row * 4, up, mean, mean_low, rstd)


@triton.jit(do_not_specialize=["eps_bits", "inv_bits"])
def _forward_loop_kernel(
    x_ptr,  # as in _forward_kernel
    r_ptr,
    i_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    s_ptr,
    stats_ptr,
    x_stride,
    r_stride,
    n_cols,
    eps_bits,
    inv_bits,
    SIGMA: tl.constexpr,  # WIDE: a power of two >= 16 n_cols
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    HAS_R: tl.constexpr,
    HAS_I: tl.constexpr,
    HAS_W: tl.constexpr,
    HAS_B: tl.constexpr,
):
    """One row per program, read block by block: rows of any length, and all float64 rows."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_stride
    r_ptr += row * r_stride
    n = row.to(tl.float64) * 0.0 + n_cols
    inv = _float64(inv_bits)
    eps = _float64(eps_bits)
    acc = tl.zeros((BLOCK,), tl.float64)
    acc_low = tl.zeros((BLOCK,), tl.float64)
    if WIDE:
        first, first_low = _value_pair(x_ptr, r_ptr, i_ptr, 0, True, HAS_R, HAS_I)
        varies = tl.zeros((BLOCK,), tl.int32)
        for start in range(0, n_cols, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            v, low = _value_pair(x_ptr, r_ptr, i_ptr, cols, cols < n_cols, HAS_R, HAS_I)
            acc = tl.maximum(acc, tl.abs(v))
            varies |= ((cols < n_cols) & ((v != first) | (low != first_low))).to(tl.int32)
        # The row is scaled by 2^-k: to [1, 2), or so that eps is about 1 if that is the larger.
        largest = tl.max(acc, 0)
        top = tl.where(largest < 2.0**-900, _exponent(largest * 2.0**200) - 200, _exponent(largest))
        top = tl.minimum(top, 1022)
        k = tl.maximum(tl.maximum(top, -1000), tl.where(eps > 0, _exponent(eps) >> 1, -1000))
        up = _power_of_two(-k)
        size = _power_of_two(tl.maximum(top - k, -1000))
        fine = SIGMA * SIGMA * size * 2.0**-53
        acc = tl.zeros((BLOCK,), tl.float64)
        acc_mid = tl.zeros((BLOCK,), tl.float64)
        for start in range(0, n_cols, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            v, low = _value_pair(x_ptr, r_ptr, i_ptr, cols, cols < n_cols, HAS_R, HAS_I)
            v *= up
            high, v = _cut(v, SIGMA * size)
            acc += high
            high, v = _cut(v, fine)
            acc_mid += high
            acc_low += v
            if HAS_R or HAS_I:
                high, low = _cut(low * up, fine)
                acc_mid += high
                acc_low += low
        s1, s1_mid = _sums(acc, acc_mid)
        s1, s1_mid = _two_sum(s1, s1_mid)
        s1_low = tl.sum(acc_low, 0)
        mean = (s1 + s1_mid) * inv
        mean = tl.fma((tl.fma(-mean, n, s1) + s1_mid) + s1_low, inv, mean)
        mean_low = ((tl.fma(-mean, n, s1) + s1_mid) + s1_low) * inv
        acc = tl.zeros((BLOCK,), tl.float64)
        acc_low = tl.zeros((BLOCK,), tl.float64)
        for start in range(0, n_cols, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            v, low = _value_pair(x_ptr, r_ptr, i_ptr, cols, cols < n_cols, HAS_R, HAS_I)
            d = tl.fma(v, up, -mean) + tl.fma(low, up, -mean_low)
            d = tl.where(cols < n_cols, d, 0.0)
            sq = d * d
            high, rest = _cut(sq, SIGMA * size * size)
            acc += high
            acc_low += rest + tl.fma(d, d, -sq)
        s2, s2_low = _sums(acc, acc_low)
        var = (s2 + s2_low) * inv
        # Where eps up^2 underflows and the row is constant as far as var can tell, scaling would leave 0 * inf.
        back = tl.where(var + (eps * up) * up == 0, _power_of_two(k), 1.0)
        mean *= back
        mean_low *= back
        up *= back
        # A constant row is its mean, also where low is too small to be in the mean above.
        if tl.max(varies, 0) == 0:
            mean = first
            mean_low = first_low
            var = var * 0.0
            up = up * 0.0 + 1.0
        rstd = 1.0 / tl.sqrt(var + (eps * up) * up)
    else:
        up = inv * 0.0 + 1.0
        shift = _value(x_ptr, r_ptr, i_ptr, 0, True, HAS_R, HAS_I)
        for start in range(0, n_cols, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            v = _value(x_ptr, r_ptr, i_ptr, cols, cols < n_cols, HAS_R, HAS_I)
            d = tl.where(cols < n_cols, v - shift, 0.0)
            acc += d
            acc_low = tl.fma(d, d, acc_low)
        s1, s2 = _sums(acc, acc_low)
        mean, mean_low, var = _moments(s1, s2, shift, n, inv)
        rstd = tl.rsqrt(var + eps)
        if HAS_R:
            mark = _mark(mean, var)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        v, low = _value_pair(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R, HAS_I)
        y = (tl.fma(v, up, -mean) + tl.fma(low, up, -mean_low)) * rstd
        y = _affine(y, w_ptr, b_ptr, cols, mask, HAS_W, HAS_B)
        tl.store(y_ptr + row * n_cols + cols, _rounded(y, y_ptr), mask=mask)
        if HAS_R:
            tl.store(s_ptr + row * n_cols + cols, _rounded(v, s_ptr), mask=mask)
    if HAS_R and not WIDE:
        up = mark
    _store_stats(stats_ptr + row * 4, up, mean, mean_low, rstd)


# ------------------------------------------------------------------------------- backward kernels


@triton.jit
def _row_sums_kernel(
    dy_ptr,  # [M, N] rows of stride dy_stride
    x_ptr,
    r_ptr,
    i_ptr,
    w_ptr,
    stats_ptr,
    sums_ptr,  # [M, 2] float64, out: c1, c2; then, if WIDE, [M]: the power of two they are multiplied by
    dy_stride,
    x_stride,
    r_stride,
    n_cols,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    HAS_R: tl.constexpr,
    HAS_I: tl.constexpr,
    HAS_W: tl.constexpr,
):
    """c1 and c2 of one row per program, read block by block.

    WIDE: those of rows of small gradients times 2^512, because rstd may be far above 1 and would magnify
    the rounding of subnormal numbers."""
    row = tl.program_id(0).to(tl.int64)
    up, mean, mean_low, rstd = _load_stats(stats_ptr + row * 4, True)
    acc1 = tl.zeros((BLOCK,), tl.float64)
    acc2 = tl.zeros((BLOCK,), tl.float64)
    lifted1 = tl.zeros((BLOCK,), tl.float64)
    lifted2 = tl.zeros((BLOCK,), tl.float64)
    top = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        v, low = _value_pair(x_ptr + row * x_stride, r_ptr + row * r_stride, i_ptr, cols, mask, HAS_R, HAS_I)
        dy = tl.load(dy_ptr + row * dy_stride + cols, mask=mask, other=0.0).to(tl.float64)
        g = dy
        if HAS_W:
            w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float64)
            g *= w
        xhat = tl.where(mask, _xhat(v, low, up, mean, mean_low, rstd, WIDE), 0.0)
        acc1 += g
        acc2 = tl.fma(g, xhat, acc2)
        if WIDE:
            lifted = dy * 2.0**512
            if HAS_W:
                lifted *= w
            top = tl.maximum(top, tl.abs(lifted))
            lifted1 += lifted
            lifted2 = tl.fma(lifted, xhat, lifted2)
    s1, s2 = _sums(acc1, acc2)
    if WIDE:
        small = (tl.max(top, 0) < 2.0**112) & (up >= 2.0**-500)  # 2^-512 up is exact
        l1, l2 = _sums(lifted1, lifted2)
        s1 = tl.where(small, l1, s1)
        s2 = tl.where(small, l2, s2)
        rows = row * 0 + tl.num_programs(0)
        tl.store(sums_ptr + rows * 2 + row, _power_of_two(tl.where(small, row * 0 + 512, 0)))
    n = row.to(tl.float64) * 0.0 + n_cols
    tl.store(sums_ptr + row * 2, s1 / n)
    tl.store(sums_ptr + row * 2 + 1, s2 / n)


@triton.jit
def _backward_hard_row(
    dy_ptr, ds_ptr, x_ptr, r_ptr, i_ptr, w_ptr, stats_ptr, sums_ptr, dx_ptr, dr_ptr, n_cols,
    BLOCK: tl.constexpr, HAS_R: tl.constexpr, HAS_I: tl.constexpr, HAS_W: tl.constexpr,
    HAS_DS: tl.constexpr, HAS_DR: tl.constexpr,
):  # fmt: skip
    """dx, c1 and c2 of one row in float64, read block by block; the pointers are those of the row."""
    up, mean, mean_low, rstd = _load_stats(stats_ptr, True)
    acc1 = tl.zeros((BLOCK,), tl.float64)
    acc2 = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        v, low = _value_pair(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R, HAS_I)
        g = tl.load(dy_ptr + cols, mask=mask, other=0.0).to(tl.float64)
        if HAS_W:
            g *= tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float64)
        xhat = tl.where(mask, _xhat(v, low, up, mean, mean_low, rstd, 1), 0.0)
        acc1 += g
        acc2 = tl.fma(g, xhat, acc2)
    c1, c2 = _sums(acc1, acc2)
    n = up * 0.0 + n_cols
    c1 /= n
    c2 /= n
    tl.store(sums_ptr, c1)
    tl.store(sums_ptr + 1, c2)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        v, low = _value_pair(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R, HAS_I)
        g = tl.load(dy_ptr + cols, mask=mask, other=0.0).to(tl.float64)
        if HAS_W:
            g *= tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float64)
        xhat = _xhat(v, low, up, mean, mean_low, rstd, 1)
        xhat, g = _one_column(xhat, g, c1, BLOCK == 1)
        dx = (tl.fma(-xhat, c2, g) * rstd) * up
        if HAS_DS:
            dx += tl.load(ds_ptr + cols, mask=mask, other=0.0).to(tl.float64)
        tl.store(dx_ptr + cols, _rounded(dx, dx_ptr), mask=mask)
        if HAS_DR:
            tl.store(dr_ptr + cols, _rounded(dx, dr_ptr), mask=mask)


@triton.jit
def _is_hard(dy_ptr, stats_ptr, suspect_ptr, n_cols, MARKED: tl.constexpr, BLOCK: tl.constexpr):
    """Whether a row is to be redone: a marked one, or a suspect one, unless only dy = 0 made it suspect."""
    if MARKED:
        hard = (tl.load(stats_ptr) != 1).to(tl.int32)
    else:
        hard = tl.load(suspect_ptr)
    if hard == 2:  # sums of 0 are right where all terms are 0
        top = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, n_cols, BLOCK):
            cols = first + tl.arange(0, BLOCK)
            dy = tl.load(dy_ptr + cols, mask=cols < n_cols, other=0.0)
            top = tl.maximum(top, tl.abs(dy.to(tl.float32)))
        hard = (tl.max(top, 0) > 0).to(tl.int32)
    return hard


@triton.jit
def _redo_rows(
    dy_ptr, ds_ptr, x_ptr, r_ptr, i_ptr, w_ptr, stats_ptr, sums_ptr, hard_ptr, suspect_ptr, dx_ptr, dr_ptr,
    dy_stride, ds_stride, x_stride, r_stride, n_rows, n_cols, seen,
    MARKED: tl.constexpr, BLOCK: tl.constexpr, HAS_R: tl.constexpr, HAS_I: tl.constexpr, HAS_W: tl.constexpr,
    HAS_DS: tl.constexpr, HAS_DR: tl.constexpr,
):  # fmt: skip
    """dx, c1 and c2 of this program's hard rows in float64 pairs, and how many there are.

    seen: 0 if none of its rows can be hard."""
    pid = tl.program_id(0).to(tl.int64)
    programs = tl.num_programs(0)
    redone = programs * 0
    if seen > 0:
        tl.debug_barrier()  # other threads stored what is read and overwritten here
        for row_ in range(pid, n_rows, programs):
            row = pid * 0 + row_
            hard = _is_hard(
                dy_ptr + row * dy_stride, stats_ptr + row * 4, suspect_ptr + row, n_cols, MARKED=MARKED, BLOCK=BLOCK
            )
            if hard > 0:
                redone += 1
                _backward_hard_row(
                    dy_ptr + row * dy_stride, ds_ptr + row * ds_stride, x_ptr + row * x_stride,
                    r_ptr + row * r_stride, i_ptr, w_ptr, stats_ptr + row * 4, sums_ptr + row * 2,
                    dx_ptr + row * n_cols, dr_ptr + row * n_cols, n_cols,
                    BLOCK=BLOCK, HAS_R=HAS_R, HAS_I=HAS_I, HAS_W=HAS_W, HAS_DS=HAS_DS, HAS_DR=HAS_DR,
                )  # fmt: skip
    tl.store(hard_ptr + pid, redone)


@triton.jit(do_not_specialize=["n_rows"])
def _backward_kernel(
    dy_ptr,  # [M, N] rows of stride dy_stride
    ds_ptr,  # [M, N] rows of stride ds_stride: upstream gradient of s
    x_ptr,
    r_ptr,
    i_ptr,
    w_ptr,
    stats_ptr,
    sums_ptr,  # as _row_sums_kernel leaves it (if WHOLE: [M, 2], out, with NEED_I)
    hard_ptr,  # REDO: [programs] int32, out: how many rows were redone
    suspect_ptr,  # FAST: [M] int32, out: 0, or 1 if the row is to be redone, 2 if only unless dy = 0
    dx_ptr,  # [M, N] contiguous, out, in x's dtype
    dr_ptr,  # [M, N] contiguous, out, in the residual's dtype
    part_ptr,  # [NEED_W + NEED_B + NEED_I, programs, N] out: partial column sums
    dy_stride,
    ds_stride,
    x_stride,
    r_stride,
    n_rows,
    n_cols,
    BLOCK: tl.constexpr,
    FULL: tl.constexpr,
    WHOLE: tl.constexpr,  # a block holds the whole row: c1 and c2 are computed here
    FAST: tl.constexpr,
    WIDE: tl.constexpr,
    TOP: tl.constexpr,  # FAST: rows with rstd |g| < 2^TOP are worked on in float32
    HAS_R: tl.constexpr,
    HAS_I: tl.constexpr,
    HAS_W: tl.constexpr,
    HAS_DS: tl.constexpr,
    HAS_DR: tl.constexpr,
    NEED_W: tl.constexpr,
    NEED_B: tl.constexpr,
    NEED_I: tl.constexpr,
    REDO: tl.constexpr,  # FAST or with marked rows, columns all in one block: hard rows are redone here
    AHEAD: tl.constexpr,  # the next rows: 0 there are none, 1 one in registers, k > 1 k - 1 in shared memory
):
    """dx of rows p, p + P, p + 2P, ... in one block of columns, and their column sums.

    REDO: hard rows once more, in float64 pairs, after the others. The column sums of programs that had
    such rows are redone by the kernel that follows."""
    pid = tl.program_id(0).to(tl.int64)
    programs = tl.num_programs(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = tl.full((BLOCK,), True, tl.int1) if FULL else cols < n_cols
    T: tl.constexpr = tl.float32 if FAST else tl.float64
    acc_w = tl.zeros((BLOCK,), T)
    acc_b = tl.zeros((BLOCK,), T)
    acc_i = tl.zeros((BLOCK,), T)
    inv = (1.0 / (pid.to(tl.float64) * 0.0 + n_cols)).to(T)
    if HAS_W:
        w_raw = tl.load(w_ptr + cols, mask=mask, other=0.0)
    if FAST and HAS_I:
        i_raw = tl.load(i_ptr + cols, mask=mask, other=0.0)
    # The next row's data and statistics are loaded while this row is reduced: without it each
    # row waits for memory twice (0.74 of copy instead of 0.94 at N = 4096). Shared memory, filled by the
    # loop's pipeline, has room for two rows; registers are what unaligned rows and small GPUs have.
    there = mask & (pid < n_rows)
    if AHEAD == 1:
        x_next = tl.load(x_ptr + pid * x_stride + cols, mask=there, other=0.0)
        dy_next = tl.load(dy_ptr + pid * dy_stride + cols, mask=there, other=0.0)
        r_next = x_next
        ds_next = dy_next
        if FAST and HAS_R:
            r_next = tl.load(r_ptr + pid * r_stride + cols, mask=there, other=0.0)
        if FAST and HAS_DS:
            ds_next = tl.load(ds_ptr + pid * ds_stride + cols, mask=there, other=0.0)
    if AHEAD > 0:
        up_n, mean_n, low_n, rstd_n = _load_stats(stats_ptr + pid * 4, pid < n_rows)
    seen = programs * 0
    for row_ in tl.range(pid, n_rows, programs, num_stages=max(AHEAD, 1)):
        row = pid * 0 + row_  # 64 bits wide, interpreted too
        nxt = row + programs
        # (loads before what waits for them: the compiler keeps this order)
        if AHEAD > 0:
            up64, mean64, low64, rstd64 = up_n, mean_n, low_n, rstd_n
            up_n, mean_n, low_n, rstd_n = _load_stats(stats_ptr + nxt * 4, nxt < n_rows)
        else:
            up64, mean64, low64, rstd64 = _load_stats(stats_ptr + row * 4, True)
        if AHEAD == 1:
            x_raw = x_next
            dy_raw = dy_next
            r_raw = r_next
            ds_raw = ds_next
            there = mask & (nxt < n_rows)
            x_next = tl.load(x_ptr + nxt * x_stride + cols, mask=there, other=0.0)
            dy_next = tl.load(dy_ptr + nxt * dy_stride + cols, mask=there, other=0.0)
            if FAST and HAS_R:
                r_next = tl.load(r_ptr + nxt * r_stride + cols, mask=there, other=0.0)
            if FAST and HAS_DS:
                ds_next = tl.load(ds_ptr + nxt * ds_stride + cols, mask=there, other=0.0)
        else:
            x_raw = tl.load(x_ptr + row * x_stride + cols, mask=mask, other=0.0)
            dy_raw = tl.load(dy_ptr + row * dy_stride + cols, mask=mask, other=0.0)
            r_raw = x_raw
            ds_raw = dy_raw
            if HAS_R:
                r_raw = tl.load(r_ptr + row * r_stride + cols, mask=mask, other=0.0)
            if HAS_DS:
                ds_raw = tl.load(ds_ptr + row * ds_stride + cols, mask=mask, other=0.0)
        up = up64.to(T)
        mean = mean64.to(T)
        mean_low = low64.to(T)
        rstd = rstd64.to(T)
        if FAST:
            e = _exponent(rstd64) + _exponent(up64)
            far = (e > TOP - 4) | (e < -118)
            if HAS_R:
                far = far | (tl.abs(mean64) * rstd64 > _FAR)
        v = x_raw.to(T)
        low = v
        if WIDE:
            v, low = _value_pair(x_ptr + row * x_stride, r_ptr + row * r_stride, i_ptr, cols, mask, HAS_R, HAS_I)
        elif FAST:
            if HAS_R:
                v, low = _half_pair(x_raw, i_raw if HAS_I else x_raw, r_raw, HAS_I, HAS_R)
        else:
            if HAS_R and AHEAD == 1:
                r_raw = tl.load(r_ptr + row * r_stride + cols, mask=mask, other=0.0)
            i_row = tl.load(i_ptr + cols, mask=mask, other=0.0) if HAS_I else x_raw
            v = _sum(x_raw, r_raw, i_row, HAS_R, HAS_I)
        xhat = _xhat(v, low, up, mean, mean_low, rstd, WIDE or (FAST and HAS_R))
        if not FULL:
            xhat = tl.where(mask, xhat, 0.0)
        dy = dy_raw.to(T)
        if NEED_W:
            acc_w = tl.fma(dy, xhat, acc_w)
        if NEED_B:
            acc_b += dy
        g = dy * w_raw.to(T) if HAS_W else dy
        if FAST:
            # 2^lift makes float32 overflow where |dy| or |g| reaches 2^TOP / rstd or 2^100: then the
            # sum is inf or NaN.
            lift = tl.minimum(tl.maximum(128 - TOP + e + 1, 28), 126)
            lifted = dy * _power_of_two_32(lift)
            if HAS_W:
                lifted *= w_raw.to(T)
            c1, c2 = _sums(lifted, g * xhat)
            c1 *= _power_of_two_32(-lift)
            size = tl.abs(c1) + tl.abs(c2)
            c1 *= inv
            c2 *= inv
        elif WHOLE:
            c1, c2 = _sums(g, g * xhat)
            c1 *= inv
            c2 *= inv
        else:
            c1 = tl.load(sums_ptr + row * 2)
            c2 = tl.load(sums_ptr + row * 2 + 1)
            if WIDE:
                lift = tl.load(sums_ptr + (row * 0 + n_rows) * 2 + row)
                g = dy * lift
                if HAS_W:
                    g *= w_raw.to(T)
                up *= 1.0 / lift
        if REDO and not FAST:
            seen = tl.maximum(seen, (up != 1).to(tl.int32))
        xhat, g = _one_column(xhat, g, c1, BLOCK == 1)
        # (one number is negated, not a row; -c2 would be 0 - c2, which is no free change of sign)
        dx = tl.fma(xhat, c2 * -1.0, g)
        dx = (dx * rstd) * up if WIDE else dx * (rstd * up)
        if HAS_DS:
            if AHEAD == 1 and not FAST:
                ds_raw = tl.load(ds_ptr + row * ds_stride + cols, mask=mask, other=0.0)
            dx += ds_raw.to(T)
        if NEED_I:
            acc_i += dx
            if WHOLE and not WIDE:
                tl.store(sums_ptr + row * 2, c1.to(tl.float64))
                tl.store(sums_ptr + row * 2 + 1, c2.to(tl.float64))
        tl.store(dx_ptr + row * n_cols + cols, _rounded(dx, dx_ptr), mask=mask)
        if HAS_DR:
            tl.store(dr_ptr + row * n_cols + cols, _rounded(dx, dr_ptr), mask=mask)
        if FAST:  # asked here, where nothing waits for the answer
            usual = (size >= 2.0**-60) & (size < float("inf"))
            suspect = tl.where(far | (usual == 0), 1, 0)
            suspect = tl.where(size == 0, suspect * 2, suspect)
            tl.store(suspect_ptr + row, suspect)
            seen = tl.maximum(seen, suspect)
    size = programs.to(tl.int64) * n_cols
    part_ptr += pid * n_cols
    if NEED_W:
        tl.store(part_ptr + cols, acc_w, mask=mask)
    if NEED_B:
        tl.store(part_ptr + NEED_W * size + cols, acc_b, mask=mask)
    if NEED_I:
        tl.store(part_ptr + (NEED_W + NEED_B) * size + cols, acc_i, mask=mask)
    if REDO:
        _redo_rows(
            dy_ptr, ds_ptr, x_ptr, r_ptr, i_ptr, w_ptr, stats_ptr, sums_ptr, hard_ptr, suspect_ptr, dx_ptr, dr_ptr,
            dy_stride, ds_stride, x_stride, r_stride, n_rows, n_cols, seen, MARKED=not FAST, BLOCK=min(BLOCK, 512),
            HAS_R=HAS_R, HAS_I=HAS_I, HAS_W=HAS_W, HAS_DS=HAS_DS, HAS_DR=HAS_DR,
        )  # fmt: skip


@triton.jit(do_not_specialize=["n_rows"])
def _marked_rows_kernel(
    dy_ptr, ds_ptr, x_ptr, r_ptr, i_ptr, w_ptr, stats_ptr, sums_ptr, hard_ptr, dx_ptr, dr_ptr,
    dy_stride, ds_stride, x_stride, r_stride, n_rows, programs, n_cols,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
    HAS_R: tl.constexpr, HAS_I: tl.constexpr, HAS_W: tl.constexpr, HAS_DS: tl.constexpr, HAS_DR: tl.constexpr,
):  # fmt: skip
    """What _redo_rows does, where several programs share a row: of marked rows; hard_ptr was 0."""
    start = tl.program_id(0).to(tl.int64) * ROWS
    rows = start + tl.arange(0, ROWS)
    marks = (tl.load(stats_ptr + rows * 4, mask=rows < n_rows, other=1.0) != 1).to(tl.int32)
    if tl.max(marks, 0) > 0:
        for k in range(ROWS):
            row = start + k
            if tl.load(stats_ptr + row * 4, mask=row < n_rows, other=1.0) != 1:
                tl.store(hard_ptr + row % programs, 1)
                _backward_hard_row(
                    dy_ptr + row * dy_stride, ds_ptr + row * ds_stride, x_ptr + row * x_stride,
                    r_ptr + row * r_stride, i_ptr, w_ptr, stats_ptr + row * 4, sums_ptr + row * 2,
                    dx_ptr + row * n_cols, dr_ptr + row * n_cols, n_cols,
                    BLOCK=BLOCK, HAS_R=HAS_R, HAS_I=HAS_I, HAS_W=HAS_W, HAS_DS=HAS_DS, HAS_DR=HAS_DR,
                )  # fmt: skip


@triton.jit(do_not_specialize=["n_rows"])
def _backward_paired_kernel(
    dy_ptr,  # float32; as in _backward_kernel
    x_ptr,
    w_ptr,
    stats_ptr,
    dx_ptr,
    part_ptr,  # [NEED_W + NEED_B, programs, N] float64, out
    sums_ptr,
    hard_ptr,
    suspect_ptr,  # [M] int32, out, as in _backward_kernel
    dy_stride,
    x_stride,
    n_rows,
    n_cols,
    BLOCK: tl.constexpr,  # columns of each of the PARTS
    PARTS: tl.constexpr,
    FULL: tl.constexpr,  # n_cols == BLOCK * PARTS
    HAS_W: tl.constexpr,
    NEED_W: tl.constexpr,
    NEED_B: tl.constexpr,
    AHEAD: tl.constexpr,  # this row and the next ones: AHEAD - 1 rows in shared memory
):
    """_backward_kernel for long float32 rows: float32 pairs where they matter, fewer registers.

    The row lives in PARTS blocks, worked on one after the other to keep few temporaries alive. weight stays in
    registers."""
    pid = tl.program_id(0).to(tl.int64)
    programs = tl.num_programs(0)
    cols = tl.arange(0, BLOCK)
    F: tl.constexpr = tl.float32
    D: tl.constexpr = tl.float64
    every = tl.full((BLOCK,), True, tl.int1)
    inv = 1.0 / (pid.to(D) * 0.0 + n_cols)
    acc_w = ()
    acc_b = ()
    w_row = ()
    for k in tl.static_range(PARTS):
        acc_w = acc_w + (tl.zeros((BLOCK,), F),)
        acc_b = acc_b + (tl.zeros((BLOCK,), D),)
        if HAS_W:
            mask = every if FULL else cols + k * BLOCK < n_cols
            w_row = w_row + (tl.load(w_ptr + cols + k * BLOCK, mask=mask, other=0.0),)
    up_n, mean_n, low_n, rstd_n = _load_stats(stats_ptr + pid * 4, pid < n_rows)
    seen = programs * 0
    for row_ in tl.range(pid, n_rows, programs, num_stages=AHEAD):
        row = pid * 0 + row_
        x_raw = ()
        dy_raw = ()
        for k in tl.static_range(PARTS):
            mask = every if FULL else cols + k * BLOCK < n_cols
            at = cols + k * BLOCK
            x_raw = x_raw + (tl.load(x_ptr + row * x_stride + at, mask=mask, other=0.0),)
            dy_raw = dy_raw + (tl.load(dy_ptr + row * dy_stride + at, mask=mask, other=0.0),)
        up64, mean64, low64, rstd = _scaled(mean_n, low_n, rstd_n)
        up = up64.to(F)
        mean = mean64.to(F)
        r = rstd.to(F)
        r_low = (rstd - r.to(D)).to(F)
        shift = (-low64 * rstd).to(F)
        nxt = row + programs
        up_n, mean_n, low_n, rstd_n = _load_stats(stats_ptr + nxt * 4, nxt < n_rows)
        s1 = tl.zeros((BLOCK,), D)
        s2 = tl.zeros((BLOCK,), D)
        new_w = ()
        new_b = ()
        for k in tl.static_range(PARTS):
            mask = every if FULL else cols + k * BLOCK < n_cols
            d = tl.fma(x_raw[k], up, -mean)
            if not FULL:
                d = tl.where(mask, d, 0.0)
            g = dy_raw[k]
            xhat = tl.fma(d, r, tl.fma(d, r_low, shift))
            new_w = new_w + (tl.fma(g, xhat, acc_w[k]),)
            new_b = new_b + (acc_b[k] + g.to(D),)
            g *= 2.0**36  # overflows where |dy| or |g| reaches 2^92: s1 is inf or NaN
            if HAS_W:
                g *= w_row[k]
            s1 += g.to(D)
            s2 = tl.fma(g.to(D), d.to(D), s2)
        acc_w = new_w
        acc_b = new_b
        s1, s2 = _sums(s1, s2)
        s1 *= 2.0**-36
        s2 *= 2.0**-36
        b = (s2 - low64 * s1) * (rstd * rstd * rstd * inv)
        c = b * low64 - s1 * (inv * rstd)
        b_high = b.to(F)
        b_low = (b - b_high.to(D)).to(F)
        c_high = c.to(F)
        c_low = (c - c_high.to(D)).to(F)
        for k in tl.static_range(PARTS):
            mask = every if FULL else cols + k * BLOCK < n_cols
            d = tl.fma(x_raw[k], up, -mean)
            g = dy_raw[k]
            g_low = g * 0.0
            if HAS_W:
                g = dy_raw[k] * w_row[k]
                g_low = tl.fma(dy_raw[k], w_row[k], g * -1.0)
            low = tl.fma(g, r_low, tl.fma(g_low, r, tl.fma(d, b_low * -1.0, c_low)))
            dx = tl.fma(g, r, tl.fma(d, b_high * -1.0, c_high + low)) * up
            tl.store(dx_ptr + row * n_cols + cols + k * BLOCK, dx, mask=mask)
        # (Asked here, where nothing waits for the answer.) b d is of ordinary size where b may not be.
        # rstd < 2^24: rstd |g| < 2^116
        size = (tl.abs(s1) + tl.abs(s2) * rstd) * inv
        usual = (size * tl.minimum(rstd * rstd, 1.0) >= 2.0**-100) & (size >= 2.0**-60) & (size < 2.0**120)
        usual = usual & (size * rstd * rstd < 2.0**120) & (rstd * up64 < 2.0**24)
        suspect = tl.where(usual, 0, 1)
        suspect = tl.where(size == 0, suspect * 2, suspect)
        tl.store(suspect_ptr + row, suspect)
        seen = tl.maximum(seen, suspect)
    size = programs.to(tl.int64) * n_cols
    for k in tl.static_range(PARTS):
        mask = every if FULL else cols + k * BLOCK < n_cols
        out = part_ptr + pid * n_cols + cols + k * BLOCK
        if NEED_W:
            tl.store(out, acc_w[k].to(D), mask=mask)
        if NEED_B:
            tl.store(out + NEED_W * size, acc_b[k], mask=mask)
    _redo_rows(
        dy_ptr, dy_ptr, x_ptr, x_ptr, x_ptr, w_ptr, stats_ptr, sums_ptr, hard_ptr, suspect_ptr, dx_ptr, dx_ptr,
        dy_stride, dy_stride, x_stride, x_stride, n_rows, n_cols, seen, MARKED=0, BLOCK=512,
        HAS_R=0, HAS_I=0, HAS_W=HAS_W, HAS_DS=0, HAS_DR=0,
    )  # fmt: skip


@triton.jit
def _hard_columns(
    dy_ptr, ds_ptr, x_ptr, r_ptr, i_ptr, w_ptr, stats_ptr, sums_ptr, hard_ptr,
    dy_stride, ds_stride, x_stride, r_stride, n_rows, programs, columns, n_cols, which,
    HAS_R: tl.constexpr, HAS_I: tl.constexpr, HAS_W: tl.constexpr, HAS_DS: tl.constexpr,
    NEED_W: tl.constexpr, NEED_B: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What all rows of the programs with hard rows add to the sum number `which` of these columns."""
    cols = columns[None, :]
    acc = tl.zeros((ROWS, BLOCK), tl.float64)
    for start in range(0, n_rows, ROWS):
        r = start + tl.arange(0, ROWS)[:, None].to(tl.int64)
        hard = tl.load(hard_ptr + r % programs, mask=r < n_rows, other=0)
        if tl.max(tl.max(hard, 1), 0) > 0:
            here = hard > 0
            mask = here & (cols < n_cols)
            term = tl.load(dy_ptr + r * dy_stride + cols, mask=mask, other=0.0).to(tl.float64)
            v, low = _value_pair(x_ptr + r * x_stride, r_ptr + r * r_stride, i_ptr + r * 0, cols, mask, HAS_R, HAS_I)
            up, mean, mean_low, rstd = _load_stats(stats_ptr + r * 4, here)
            xhat = _xhat(v, low, up, mean, mean_low, rstd, 1)
            several = (up * 0.0 + n_cols > 1).to(tl.float64)
            xhat *= several  # as in _one_column; NaN stays
            g = term
            if HAS_W:
                g *= tl.load(w_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float64)
            c1 = tl.load(sums_ptr + r * 2, mask=here, other=0.0)
            c2 = tl.load(sums_ptr + r * 2 + 1, mask=here, other=0.0)
            dx = (tl.fma(-xhat, c2, (g - c1) * several) * rstd) * up
            if HAS_DS:
                dx += tl.load(ds_ptr + r * ds_stride + cols, mask=mask, other=0.0).to(tl.float64)
            first = term * xhat
            term = tl.where(which < NEED_W, first, tl.where(which < NEED_W + NEED_B, term, dx))
            acc += tl.where(mask, term, 0.0)
    return tl.sum(acc, 0)


@triton.jit(do_not_specialize=["n_rows"])
def _columns_kernel(
    part_ptr,  # [K, programs, N]
    dw_ptr,  # [N] out
    db_ptr,
    di_ptr,
    dy_ptr,  # the rest as in _backward_kernel, for REDO
    ds_ptr,
    x_ptr,
    r_ptr,
    i_ptr,
    w_ptr,
    stats_ptr,
    sums_ptr,
    hard_ptr,
    dy_stride,
    ds_stride,
    x_stride,
    r_stride,
    n_rows,
    programs,
    n_cols,
    REDO: tl.constexpr,
    HAS_R: tl.constexpr,
    HAS_I: tl.constexpr,
    HAS_W: tl.constexpr,
    HAS_DS: tl.constexpr,
    NEED_W: tl.constexpr,
    NEED_B: tl.constexpr,
    NEED_I: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The partial column sums added up, in float64 and in a fixed order.

    REDO: those of programs with hard rows are redone."""
    which = tl.program_id(1)
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rows = tl.arange(0, ROWS)[:, None].to(tl.int64)
    # (nested conditions: the outer one is decided when the kernel is compiled)
    acc = tl.zeros((ROWS, BLOCK), tl.float64)
    hard = tl.zeros((ROWS, 1), tl.int32)
    part_ptr += which.to(tl.int64) * programs * n_cols
    for start in range(0, programs, ROWS):
        r = rows + start
        mask = (cols < n_cols)[None, :] & (r < programs)
        acc += tl.load(part_ptr + r * n_cols + cols[None, :], mask=mask, other=0.0).to(tl.float64)
        if REDO:
            hard = tl.maximum(hard, tl.load(hard_ptr + r, mask=r < programs, other=0))
    total = tl.sum(acc, 0)
    if REDO:  # noqa: SIM102
        if tl.max(tl.max(hard, 1), 0) > 0:
            acc = tl.zeros((ROWS, BLOCK), tl.float64)
            for start in range(0, programs, ROWS):
                r = rows + start
                mask = (cols < n_cols)[None, :] & (r < programs)
                mask = mask & (tl.load(hard_ptr + r, mask=r < programs, other=0) == 0)
                acc += tl.load(part_ptr + r * n_cols + cols[None, :], mask=mask, other=0.0).to(tl.float64)
            total = tl.sum(acc, 0) + _hard_columns(
                dy_ptr, ds_ptr, x_ptr, r_ptr, i_ptr, w_ptr, stats_ptr, sums_ptr, hard_ptr,
                dy_stride, ds_stride, x_stride, r_stride, n_rows, programs, cols, n_cols, which,
                HAS_R, HAS_I, HAS_W, HAS_DS, NEED_W, NEED_B, ROWS=16, BLOCK=BLOCK,
            )  # fmt: skip
    if NEED_W:  # noqa: SIM102
        if which == 0:
            tl.store(dw_ptr + cols, _rounded(total, dw_ptr), mask=cols < n_cols)
    if NEED_B:  # noqa: SIM102
        if which == NEED_W:
            tl.store(db_ptr + cols, _rounded(total, db_ptr), mask=cols < n_cols)
    if NEED_I:  # noqa: SIM102
        if which == NEED_W + NEED_B:
            tl.store(di_ptr + cols, _rounded(total, di_ptr), mask=cols < n_cols)


# -------------------------------------------------------------------------------------- launchers


def _bits(value):
    """The bits of a float64 as a signed integer."""
    return struct.unpack("<q", struct.pack("<d", value))[0]


def _aligned(tensor):
    """`tensor`, contiguous or not, or a copy if it does not start at a multiple of 16 bytes."""
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone(memory_format=torch.contiguous_format)


def _vector(tensor):
    return _aligned(tensor.contiguous())


def _rows(tensor):
    """`tensor` as [rows, columns] with column stride 1: a view where strides allow, else a copy.

    Triton compiles one kernel for pointers and strides that are multiples of 16 and another for those
    that are not, and strides of 1 apart. Their loads have other widths, hence their sums another order.
    So a view has the address and the stride of its contiguous copy as far as these classes go."""
    n = tensor.shape[-1]
    if tensor.stride(-1) == 1 or n == 1:
        try:
            rows = tensor.view(-1, n)
        except RuntimeError:  # leading dimensions with more than one stride
            rows = tensor.contiguous().view(-1, n)
        stride = rows.stride(0)
        if stride != n:
            if rows.shape[0] == 1:
                rows = rows.as_strided((1, n), (n, 1))
            elif (stride % 16 == 0) != (n % 16 == 0) or 1 in (stride, n):
                rows = rows.contiguous()
        return _aligned(rows)
    return tensor.contiguous().view(-1, n)


def _is_half(tensor):
    return tensor is None or tensor.dtype in (torch.float16, torch.bfloat16)


def _is_wide(*tensors):
    return any(t is not None and t.dtype == torch.float64 for t in tensors)


class _Device:
    """Launches go to the tensor's device, which need not be the current one."""

    def __init__(self, tensor):
        if not (tensor.is_cuda or hasattr(_forward_kernel, "rewriter")):
            raise RuntimeError(
                "layer_norm: it runs on CUDA tensors, or under Triton's interpreter; "
                f"x is on {tensor.device}: set TRITON_INTERPRET=1 before Triton is imported"
            )
        self.guard = torch.cuda.device(tensor.device) if tensor.is_cuda else None

    def __enter__(self):
        if self.guard is not None:
            self.guard.__enter__()

    def __exit__(self, *exception):
        if self.guard is not None:
            self.guard.__exit__(*exception)


def _launch_forward(x, residual, input_bias, weight, bias, eps):
    x2 = _rows(x)
    m, n = x2.shape
    r2 = x2 if residual is None else _rows(residual)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    s = torch.empty_like(y[:0] if residual is None else y, dtype=r2.dtype)
    stats = torch.empty((m, 4), dtype=torch.float64, device=x.device)
    wide = _is_wide(x, residual, input_bias)
    block = triton.next_power_of_2(n)
    weight_, bias_, input_bias_ = (x2 if t is None else _vector(t) for t in (weight, bias, input_bias))
    common = (x2, r2, input_bias_, weight_, bias_, y, s, stats, x2.stride(0), r2.stride(0), n)
    scalars = (_bits(float(eps)), _bits(1.0 / n))
    flags = {
        "HAS_R": int(residual is not None),
        "HAS_I": int(input_bias is not None),
        "HAS_W": int(weight is not None),
        "HAS_B": int(bias is not None),
    }
    half = _is_half(x) and _is_half(residual) and _is_half(input_bias)
    redo = residual is not None and not wide
    with _Device(x):
        if wide or block > 16384:
            _forward_loop_kernel[(m,)](
                *common, *scalars, SIGMA=16.0 * block, BLOCK=min(block, 2048), WIDE=int(wide),
                **flags, num_warps=8,
            )  # fmt: skip
        else:
            fast = half and not _is_wide(weight, bias)
            redo = redo and not fast  # by the kernel itself
            mark = block > 8192 or not (_is_half(weight) and _is_half(bias))
            warps = max(1 if fast or block < 1024 else 2, min(16, block // 1024))
            if fast and residual is not None:
                warps = max(1, min(16, block // 512))
            # 64 registers: a quarter more rows in flight than the 79 the compiler would take
            limit = {"maxnreg": 64} if fast and (block >= 2048 or residual is not None) else {}
            full = fast and block == n >= 2048
            operands = (x, residual, input_bias, weight, bias)
            packed = full and residual is not None and all(t is None or t.dtype == torch.bfloat16 for t in operands)
            later = 0
            if full and x.is_cuda and torch.version.cuda is not None:
                # half as many rows later as an H200 works on at a time, or a quarter where two operands are read
                later = (264 if residual is None else 132) * 8192 // block
            if not fast and residual is not None and block <= 4096:
                warps, limit = max(1, block // (256 if input_bias is None else 512)), {"maxnreg": 64}
            # in float64 a row would leave a multiprocessor room for two; three wait less for each other
            again = not fast and residual is None and input_bias is None and block == n == 8192
            if again:
                warps, limit = 16, {"maxnreg": 40}
            _forward_kernel[(m,)](
                *common, *scalars, BLOCK=block, FULL=int(block == n), FAST=int(fast), MARK=int(mark),
                PACKED=int(packed), LATER=later, AGAIN=int(again), **flags, num_warps=warps, **limit,
            )  # fmt: skip
        if redo:
            _forward_hard_rows_kernel[(triton.cdiv(m, 32),)](
                *common, *scalars, m, ROWS=32, BLOCK=min(block, 512), **flags, num_warps=4
            )
    return y, s, stats


def _ahead(rows, block, stages):
    """`stages` if shared memory has room for one block less of all operands, else 1 (AHEAD in _backward_kernel)."""
    if not rows[0].is_cuda:
        return stages
    room = getattr(torch.cuda.get_device_properties(rows[0].device), "shared_memory_per_block_optin", 0)
    return stages if sum((stages - 1) * block * t.element_size() for t in rows) + 16384 <= room else 1


# Programs that an H200 holds at once (rows of up to 1,024 columns in 16 bits); a constant, so that
# results do not depend on the device.
_PROGRAMS = 1056
# The same for the paired kernel; the rows that one program sums in float32; and the rows from which
# it is used: with few terms the rounding of xhat shows in dweight (2 ulp).
_PAIRED_PROGRAMS, _PAIRED_SUM, _PAIRED_ROWS = 132, 64, 1024


def _launch_backward(dy, ds, x, residual, input_bias, weight, bias, stats, need):
    """need: whether the gradients of weight, bias and input_bias are wanted."""
    x2, dy2 = _rows(x), _rows(dy)
    m, n = x2.shape
    r2 = x2 if residual is None else _rows(residual)
    ds2 = dy2 if ds is None else _rows(ds)
    new = {"dtype": x.dtype, "device": x.device}
    dx = torch.empty(x.shape, **new)
    two = residual is not None and residual.dtype != x.dtype
    dr = torch.empty_like(dx if two else dx[:0], dtype=r2.dtype)
    dw, db, di = (
        torch.empty(n if wanted else 0, dtype=x.dtype if t is None else t.dtype, device=x.device)
        for wanted, t in zip(need, (weight, bias, input_bias), strict=True)
    )
    need_w, need_b, need_i = (int(wanted) for wanted in need)
    kinds = need_w + need_b + need_i
    block = triton.next_power_of_2(n)
    plain = residual is None and input_bias is None
    wide = _is_wide(x, residual, input_bias)
    fast = block <= 8192 and all(_is_half(t) for t in (x, residual, input_bias, weight, bias))
    paired = plain and 4096 < block <= 8192 and m >= _PAIRED_ROWS and ds is None
    paired = paired and all(t is None or t.dtype == torch.float32 for t in (x, weight, bias))
    whole = not wide and (fast or block <= 4096)
    aligned = n % 16 == 0  # strides and addresses are, too (_rows)
    columns = 1
    if paired:
        waves = triton.cdiv(m, _PAIRED_PROGRAMS * _PAIRED_SUM)
        programs, warps = _PAIRED_PROGRAMS * waves, 8
    elif whole and not kinds:  # nothing to sum over rows: one row per program
        programs, warps = m, max(1, min(16, block // (1024 if fast and plain else 512)))
    elif fast and plain:
        programs = max(_PROGRAMS * 1024 // max(block, 1024), triton.cdiv(m, 1024))
        warps = max(1, min(16, block // 512))
    elif fast:  # four rows are read, half as many programs have as much of them in flight
        programs = max(_PROGRAMS // 2 * 1024 // max(block, 1024), _PROGRAMS // 8, triton.cdiv(m, 1024))
        warps = max(1, min(16, block // (512 if aligned else 256)))
    elif whole:
        programs = _PROGRAMS // 2 * 1024 // max(block, 1024)
        warps = max(1, min(16, block // (512 if aligned and need_i else 256)))
    else:
        block = min(block, 1024)
        columns = triton.cdiv(n, block)
        programs, warps = max(_PROGRAMS // 64, triton.cdiv(_PROGRAMS, columns)), 4
    programs = max(1, min(m, programs))
    part = torch.empty((kinds, programs, n), dtype=torch.float32 if fast else torch.float64, device=x.device)
    marked = residual is not None and not wide and not fast
    redo = fast or paired or marked
    once = redo and columns > 1  # by a kernel of its own
    sums = stats if whole and not redo else torch.empty((m, 3), dtype=torch.float64, device=x.device)
    flags = torch.zeros if once else torch.empty
    hard = flags(programs + (0 if marked else m) if redo else 0, dtype=torch.int32, device=x.device)
    suspect = hard[programs:]
    # no dx of 2^17 is a float16; a bfloat16 may have 2^127, the terms of its sum need room
    top = 17 if torch.float16 in (x.dtype, r2.dtype) else 116
    weight_, input_bias_ = (x2 if t is None else _vector(t) for t in (weight, input_bias))
    needs = {"NEED_W": need_w, "NEED_B": need_b}
    has = {
        "HAS_R": int(residual is not None),
        "HAS_I": int(input_bias is not None),
        "HAS_W": int(weight is not None),
    }
    rows = [x2, dy2, *(t for t, there in ((r2, residual), (ds2, ds)) if there is not None)]
    if input_bias is not None and not fast:  # read with every row, too
        rows.append(input_bias_)
    ahead = int(programs < m)
    if ahead and whole and aligned:
        ahead = _ahead(rows, block, 4 if fast and plain and block > 4096 else 3)
    # Sixteen warps on a multiprocessor, or eight that add up several operands. Said also where the compiler
    # arrives at this by itself: if told, it does not park the next row's statistics in uniform registers,
    # for which it waits in the middle of this row (float32, N = 4096: 248 us instead of 207).
    limit = {"maxnreg": 128} if fast or (whole and kinds) else {}
    if limit and aligned and not plain and warps <= 8:
        limit = {"maxnreg": 200 if fast else 255 if need_i else 128}
    with _Device(x):
        if paired:
            _backward_paired_kernel[(programs,)](
                dy2, x2, weight_, stats, dx, part, sums, hard, suspect, dy2.stride(0), x2.stride(0), m, n,
                BLOCK=block // 8, PARTS=8, FULL=int(block == n), HAS_W=has["HAS_W"], **needs,
                AHEAD=_ahead(rows, block, 3), num_warps=warps, maxnreg=255,
            )  # fmt: skip
        else:
            if not whole:
                _row_sums_kernel[(m,)](
                    dy2, x2, r2, input_bias_, weight_, stats, sums,
                    dy2.stride(0), x2.stride(0), r2.stride(0), n,
                    BLOCK=min(triton.next_power_of_2(n), 2048), WIDE=int(wide), **has, num_warps=8,
                )  # fmt: skip
            _backward_kernel[(programs, columns)](
                dy2, ds2, x2, r2, input_bias_, weight_, stats, sums, hard, suspect, dx, dr, part,
                dy2.stride(0), ds2.stride(0), x2.stride(0), r2.stride(0), m, n,
                BLOCK=block, FULL=int(n % block == 0), WHOLE=int(whole), FAST=int(fast),
                WIDE=int(wide), TOP=top, **has, HAS_DS=int(ds is not None), HAS_DR=int(two),
                **needs, NEED_I=need_i, REDO=int(redo and not once), AHEAD=ahead, num_warps=warps, **limit,
            )  # fmt: skip
        if once:
            _marked_rows_kernel[(triton.cdiv(m, 32),)](
                dy2, ds2, x2, r2, input_bias_, weight_, stats, sums, hard, dx, dr,
                dy2.stride(0), ds2.stride(0), x2.stride(0), r2.stride(0), m, programs, n,
                ROWS=32, BLOCK=min(block, 512), **has, HAS_DS=int(ds is not None),
                HAS_DR=int(two), num_warps=4,
            )  # fmt: skip
        if kinds:
            width, depth = (128, 64) if n > 8192 else (16, 256) if programs > 256 else (32, 64)
            _columns_kernel[(triton.cdiv(n, width), kinds)](
                part, dw, db, di, dy2, ds2, x2, r2, input_bias_, weight_, stats, sums, hard,
                dy2.stride(0), ds2.stride(0), x2.stride(0), r2.stride(0), m, programs, n,
                REDO=int(redo), **has, HAS_DS=int(ds is not None), **needs, NEED_I=need_i,
                ROWS=depth, BLOCK=width, num_warps=4,
            )  # fmt: skip
    return dx, dr, di, dw, db


# -------------------------------------------------------------------------------- torch operators

Tensor = torch.Tensor
_Maybe = Tensor | None


@torch.library.custom_op("verify_kernels::layer_norm", mutates_args=())
def _forward_op(
    x: Tensor, residual: _Maybe, input_bias: _Maybe, weight: _Maybe, bias: _Maybe, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, s, stats); s is empty without a residual, stats is float64 [rows, 4]."""
    if x.numel() == 0:
        return tuple(torch.empty_like(t) for t in _forward_fake(x, residual, input_bias, weight, bias, eps))
    return _launch_forward(x, residual, input_bias, weight, bias, eps)


@_forward_op.register_fake
def _forward_fake(x, residual, input_bias, weight, bias, eps):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    s = torch.empty((0,) + tuple(x.shape[1:]), dtype=x.dtype, device=x.device)
    if residual is not None:
        s = torch.empty(x.shape, dtype=residual.dtype, device=x.device)
    return y, s, torch.empty((math.prod(x.shape[:-1]), 4), dtype=torch.float64, device=x.device)


@torch.library.custom_op("verify_kernels::layer_norm_backward", mutates_args=())
def _backward_op(
    dy: Tensor,
    ds: _Maybe,
    x: Tensor,
    residual: _Maybe,
    input_bias: _Maybe,
    weight: _Maybe,
    bias: _Maybe,
    stats: Tensor,
    eps: float,
    need_w: bool,
    need_b: bool,
    need_i: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(dx, dresidual, dinput_bias, dweight, dbias), empty where not wanted.

    dresidual is empty also where it equals dx, that is where both have one dtype."""
    if x.numel() == 0:
        fakes = _backward_fake(dy, ds, x, residual, input_bias, weight, bias, stats, eps, need_w, need_b, need_i)
        return tuple(torch.zeros_like(t) for t in fakes)
    need = (need_w, need_b, need_i)
    return _launch_backward(dy, ds, x, residual, input_bias, weight, bias, stats, need)


@_backward_op.register_fake
def _backward_fake(dy, ds, x, residual, input_bias, weight, bias, stats, eps, need_w, need_b, need_i):
    def vector(wanted, like):
        dtype = x.dtype if like is None else like.dtype
        return torch.empty(x.shape[-1] if wanted else 0, dtype=dtype, device=x.device)

    two = residual is not None and residual.dtype != x.dtype
    shape = x.shape if two else (0,) + tuple(x.shape[1:])
    dr = torch.empty(shape, dtype=x.dtype if residual is None else residual.dtype, device=x.device)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return dx, dr, vector(need_i, input_bias), vector(need_w, weight), vector(need_b, bias)


def _setup_forward(ctx, inputs, output):
    x, residual, input_bias, weight, bias, ctx.eps = inputs
    ctx.save_for_backward(x, residual, input_bias, weight, bias, output[2])
    ctx.set_materialize_grads(False)


def _differentiate_forward(ctx, dy, ds, _):
    x, residual, input_bias, weight, bias, stats = ctx.saved_tensors
    if dy is None:
        dy = torch.zeros_like(x)
    if residual is None:
        ds = None
    _, _, need_i, need_w, need_b, _ = ctx.needs_input_grad
    dx, dr, di, dw, db = _backward_op(
        dy, ds, x, residual, input_bias, weight, bias, stats, ctx.eps, need_w, need_b, need_i
    )
    if residual is not None and residual.dtype == x.dtype:
        dr = dx
    return (
        dx,
        None if residual is None else dr,
        di if need_i else None,
        dw if need_w else None,
        db if need_b else None,
        None,
    )


def _setup_backward(ctx, inputs, output):
    dy, ds, x, residual, input_bias, weight, bias, _, ctx.eps, *ctx.need = inputs
    ctx.save_for_backward(dy, ds, x, residual, input_bias, weight, bias)
    ctx.set_materialize_grads(False)


def _differentiate_backward(ctx, u, ur, ui, uw, ub):
    """Gradients of the backward op, written in differentiable torch operations in float64.

    With P(a) = a - mean(a) - xhat mean(a xhat), the Jacobian of xhat is rstd P, and
    dx = rstd P(g). For upstream u of dx, q of dweight, t of dbias (rows: mean over columns):
      of dy:  rstd P(u) w + q xhat + t            of weight:  sum over rows of rstd P(u) dy
      of x:   rstd P(q dy - rstd (c2 u + mean(u xhat) g)) - rstd^2 xhat cov,
              cov = mean(u g) - mean(u) mean(g) - mean(u xhat) c2."""
    dy, ds, x, residual, input_bias, weight, bias = ctx.saved_tensors
    n = x.shape[-1]
    need_w, need_b, _ = ctx.need
    terms = [t.double() for t in (u, ur) if t is not None and t.shape == x.shape]
    if ui is not None and ui.numel() == n:
        terms.append(ui.double().expand(x.shape))
    total = sum(terms) if terms else torch.zeros_like(x, dtype=torch.float64)

    v = x.double()
    for other in (input_bias, residual):
        if other is not None:
            v = v + other.double()
    d = v - v.mean(-1, keepdim=True)
    rstd = (d.square().mean(-1, keepdim=True) + ctx.eps).rsqrt()
    xhat = d * rstd
    upstream = dy.double()
    g = upstream if weight is None else upstream * weight.double()

    def mean(a):
        return a.mean(-1, keepdim=True)

    def project(a):
        return a - mean(a) - xhat * mean(a * xhat)

    def columns(a):
        return a.reshape(-1, n).sum(0)

    c2, ux = mean(g * xhat), mean(total * xhat)
    pu = rstd * project(total)
    of_dy = pu if weight is None else pu * weight.double()
    inner = -rstd * (c2 * total + ux * g)
    if need_w and uw is not None:
        of_dy = of_dy + uw.double() * xhat
        inner = inner + uw.double() * upstream
    if need_b and ub is not None:
        of_dy = of_dy + ub.double()
    covariance = mean(total * g) - mean(total) * mean(g) - ux * c2
    of_v = rstd * project(inner) - rstd.square() * xhat * covariance
    return (
        of_dy.to(dy.dtype),
        None if ds is None else total.to(ds.dtype),
        of_v.to(x.dtype),
        None if residual is None else of_v.to(residual.dtype),
        None if input_bias is None else columns(of_v).to(input_bias.dtype),
        None if weight is None else columns(pu * upstream).to(weight.dtype),
        None,
        None,
        None,
        None,
        None,
        None,
    )


_forward_op.register_autograd(_differentiate_forward, setup_context=_setup_forward)
_backward_op.register_autograd(_differentiate_backward, setup_context=_setup_backward)

# ------------------------------------------------------------------------------- public functions

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def _checked(name, x, residual, vectors, eps):
    """Raises where the arguments do not fit together."""
    if x.dim() == 0:
        raise ValueError(f"{name}: x needs a last dimension to normalise; x has 0 dimensions")
    if not (isinstance(eps, (int, float)) and 0 <= eps < math.inf):
        raise ValueError(f"{name}: eps is a finite number >= 0; it is {eps!r}")
    n = x.shape[-1]
    for label, t in (("x", x), ("residual", residual), *vectors):
        if t is None:
            continue
        if t.dtype not in _DTYPES:
            names = ", ".join(str(d).removeprefix("torch.") for d in _DTYPES)
            raise TypeError(f"{name}: {label} is one of {names}; it is {str(t.dtype).removeprefix('torch.')}")
        if t.device != x.device:
            raise ValueError(f"{name}: {label} is on {t.device}, x is on {x.device}")
    if residual is not None and residual.shape != x.shape:
        raise ValueError(f"{name}: residual has shape {tuple(residual.shape)}, x has {tuple(x.shape)}")
    for label, t in vectors:
        if t is None:
            continue
        if t.dim() != 1:
            raise ValueError(f"{name}: {label} has 1 dimension; its shape is {tuple(t.shape)}")
        if t.shape[0] != n:
            raise ValueError(f"{name}: {label} has {t.shape[0]} elements, x's last dimension is {n}")
    return float(eps)


def layer_norm(x, weight=None, bias=None, *, eps=1e-5):
    """Layer norm of x over its last dimension, in x's dtype; weight and bias of any dtype."""
    eps = _checked("layer_norm", x, None, (("weight", weight), ("bias", bias)), eps)
    return _forward_op(x, None, None, weight, bias, eps)[0]


def layer_norm_residual(x, residual, weight=None, bias=None, *, eps=1e-5):
    """(y, s): s = x + residual in the residual's dtype, y the layer norm of the unrounded sum."""
    vectors = (("weight", weight), ("bias", bias))
    eps = _checked("layer_norm_residual", x, residual, vectors, eps)
    return _forward_op(x, residual, None, weight, bias, eps)[:2]


def layer_norm_residual_bias(x, residual, input_bias, weight=None, bias=None, *, eps=1e-5):
    """(y, s): s = x + input_bias + residual, otherwise as layer_norm_residual."""
    vectors = (("input_bias", input_bias), ("weight", weight), ("bias", bias))
    eps = _checked("layer_norm_residual_bias", x, residual, vectors, eps)
    return _forward_op(x, residual, input_bias, weight, bias, eps)[:2]
