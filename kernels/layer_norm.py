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
- 16-bit rows take k = 0. If mean^2 / var <= 2^20, var loses 20 bits of 53. If it is larger, the
  values share nearly one binade, their squares have 16 (bfloat16) or 22 (float16) bits, and both
  sums are exact.
Squares of float32 numbers neither overflow nor underflow in float64: 1e30 and 1e-38 are no special
cases. eps reaches the kernel as the bits of a float64 (Triton passes Python floats as float32).

**Rounding points, forward**, in ulps of |weight xhat| + |bias|:
- EXACT (float32 rows, residuals, float64 weights): v - mean, times rstd, times weight plus bias in
  float64; y is rounded to float32 and, for 16-bit outputs, once more: 0.5 + 2^-13.
- FAST (16-bit rows): the row's statistics become float32 pairs, scaled by `up`, a power of two (1
  unless rstd is outside 2^-40..2^40) that keeps rows near 1e38 or 1e-40 in range; three float32
  FMAs, then the output's rounding: 0.502 (float16), 0.5002 (bfloat16).
- WIDE (x, residual or input_bias in float64): sums as float64 pairs, scaled to [1, 2) by a power of
  two, S1 and S2 = sum((v - mean)^2) compensated (error-free extraction); then the mean's two parts,
  rstd, weight and bias: below 4.

**Rounding points, backward**, in ulps of rstd (|g| + mean|g| + |xhat| mean|g xhat|) for dx, of
sum|dy xhat| for dweight, sum|dy| for dbias:
- EXACT and WIDE: float64 throughout, one rounding at the output; column sums in float64.
- FAST (rows and vectors of 16 bits): float32 throughout, far below a 16-bit ulp; a float32 column
  sum takes at most 1,024 rows, sums of these are float64.
- PAIRED (float32 rows of 4,097 to 8,192 columns, whose float64 intermediates do not fit in the
  registers of a multiprocessor): c1 and c2 from float64 sums. With d = v - mean_high, g + g_low =
  dy weight exactly and, as float32 pairs, r = rstd, B = rstd^2 c2, C = B mean_low - rstd c1,
      dx = g r + (-d B + (C + low)),      low = all products with a low part.
  Roundings: d (1 ulp of the xhat term), C + low, the inner and the outer FMA (1/2 each, not all at
  once): below 2, 0.53 measured on random data. dbias is summed in float64; dweight in float32 over
  at most 64 rows, then in float64: 0.1 on random data, 16 at worst if all 64 rows are the same.

**Order.** Every sum has an order fixed by (M, N, dtypes): no atomics; results depend neither on
scheduling nor on the number of multiprocessors. A row's y, s and dx do not depend on M. Each of a
fixed number of programs sums the columns over its own rows; a second kernel adds these partial sums
in float64. The same bits come out of a faithful interpreter except for the order inside a block's
sum and rsqrt of float64 (1 ulp), both about 2^-52 before a rounding to 24 bits or fewer.

**Memory.** Rows that fit in registers are loaded and stored once, and the next row is loaded while
the present one is reduced (backward). Longer rows are read twice, from L2 if they fit there. Row
strides are free. A last dimension of stride other than 1, and leading dimensions that do not
collapse to one row stride, are made contiguous first (a copy); so are strided vectors.

GPUs with few float64 units will run EXACT and WIDE much slower than an H200 does.
"""

import math
import struct

import torch
import triton
import triton.language as tl

__all__ = ["layer_norm", "layer_norm_residual", "layer_norm_residual_bias"]

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
def _exponent(value):
    """floor(log2(value)) of a positive normal float64; 1024 for inf and NaN, -1023 below normal."""
    return ((value.to(tl.int64, bitcast=True) >> 52) & 0x7FF) - 1023


@triton.jit
def _power_of_two(exponent):
    """2.0**exponent for -1022 <= exponent <= 1023."""
    return ((exponent + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def _float64(bits):
    """The float64 with these bits: Triton would pass a Python float as float32."""
    return bits.to(tl.int64).to(tl.float64, bitcast=True)


@triton.jit
def _rounded(value, pointer):
    """`value` as float32, unless `pointer` holds float64; the store rounds float32 to 16 bits."""
    if pointer.dtype.element_ty == tl.float64:
        return value.to(tl.float64)
    else:
        return value.to(tl.float32)


@triton.jit
def _value(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R: tl.constexpr, HAS_I: tl.constexpr):
    """x [+ input_bias] [+ residual] in float64: exact unless exponents are 29 binades apart."""
    v = tl.load(x_ptr + cols, mask=mask, other=0.0).to(tl.float64)
    if HAS_I:
        v += tl.load(i_ptr + cols, mask=mask, other=0.0).to(tl.float64)
    if HAS_R:
        v += tl.load(r_ptr + cols, mask=mask, other=0.0).to(tl.float64)
    return v


@triton.jit
def _value_pair(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R: tl.constexpr, HAS_I: tl.constexpr):
    """x [+ input_bias] [+ residual] as a float64 pair, for float64 operands."""
    v = tl.load(x_ptr + cols, mask=mask, other=0.0).to(tl.float64)
    low = v * 0.0
    plain = v
    if HAS_I:
        term = tl.load(i_ptr + cols, mask=mask, other=0.0).to(tl.float64)
        plain += term
        v, e = _two_sum(v, term)
        low += e
    if HAS_R:
        term = tl.load(r_ptr + cols, mask=mask, other=0.0).to(tl.float64)
        plain += term
        v, e = _two_sum(v, term)
        v, low = _two_sum(v, low + e)  # v is the rounded sum, also where the terms cancel
    # an infinite sum has no error term: inf - inf would make it NaN
    infinite = tl.abs(plain) == float("inf")
    v = tl.where(infinite, plain, v)
    low = tl.where(infinite, 0.0, low)
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
    k = tl.where((k >= -40) & (k <= 40), 0, tl.minimum(tl.maximum(k, -126), 126))
    up = _power_of_two(k)
    m = (mean * up).to(tl.float32).to(tl.float64)
    return up, m, (mean * up - m) + mean_low * up, rstd * _power_of_two(-k)


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
def _affine(y, w_ptr, b_ptr, cols, mask, HAS_W: tl.constexpr, HAS_B: tl.constexpr):
    """y weight + bias, one rounding in y's dtype."""
    if HAS_B:
        b = tl.load(b_ptr + cols, mask=mask, other=0.0).to(y.dtype)
    if HAS_W:
        w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(y.dtype)
        y = tl.fma(y, w, b) if HAS_B else y * w
    elif HAS_B:
        y = y + b
    return y


# -------------------------------------------------------------------------------- forward kernels


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
    HAS_R: tl.constexpr,
    HAS_I: tl.constexpr,
    HAS_W: tl.constexpr,
    HAS_B: tl.constexpr,
):
    """One row per program, held in registers."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = tl.full((BLOCK,), True, tl.int1) if FULL else cols < n_cols
    x_ptr += row * x_stride
    r_ptr += row * r_stride
    if FAST:
        x = tl.load(x_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        d = x.to(tl.float64)
        shift = 0.0
    else:
        v = _value(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R, HAS_I)
        shift = _value(x_ptr, r_ptr, i_ptr, 0, True, HAS_R, HAS_I)
        d = v - shift if FULL else tl.where(mask, v - shift, 0.0)
    s1, s2 = _sums(d, d * d)
    n = row.to(tl.float64) * 0.0 + n_cols  # n_cols itself is no tensor when it is 1
    mean, mean_low, var = _moments(s1, s2, shift, n, _float64(inv_bits))
    rstd = tl.rsqrt(var + _float64(eps_bits))
    if FAST:
        up, mean, mean_low, rstd = _scaled(mean, mean_low, rstd)
        d = tl.fma(x, up.to(tl.float32), -mean.to(tl.float32))
        y = tl.fma(d, rstd.to(tl.float32), (-mean_low * rstd).to(tl.float32))
    else:
        up = 1.0
        y = ((v - mean) - mean_low) * rstd
    y = _affine(y, w_ptr, b_ptr, cols, mask, HAS_W, HAS_B)
    tl.store(y_ptr + row * n_cols + cols, _rounded(y, y_ptr), mask=mask)
    if HAS_R:
        tl.store(s_ptr + row * n_cols + cols, _rounded(v, s_ptr), mask=mask)
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
        for start in range(0, n_cols, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            v, low = _value_pair(x_ptr, r_ptr, i_ptr, cols, cols < n_cols, HAS_R, HAS_I)
            acc = tl.maximum(acc, tl.abs(v))
        # The row is scaled by 2^-k: to [1, 2), or so that eps is about 1 if that is the larger.
        top = tl.minimum(tl.maximum(_exponent(tl.max(acc, 0)), -1000), 1022)
        k = tl.maximum(top, tl.where(eps > 0, _exponent(eps) >> 1, -1000))
        up = _power_of_two(-k)
        size = _power_of_two(tl.maximum(top - k, -1000))
        acc = tl.zeros((BLOCK,), tl.float64)
        for start in range(0, n_cols, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            v, low = _value_pair(x_ptr, r_ptr, i_ptr, cols, cols < n_cols, HAS_R, HAS_I)
            v *= up
            high = (v + SIGMA * size) - SIGMA * size  # multiples of SIGMA size 2^-53: exact sums
            acc += high
            acc_low += (v - high) + low * up
        s1, s1_low = _sums(acc, acc_low)
        mean = (s1 + s1_low) * inv
        mean = tl.fma(tl.fma(-mean, n, s1) + s1_low, inv, mean)
        mean_low = (tl.fma(-mean, n, s1) + s1_low) * inv
        acc = tl.zeros((BLOCK,), tl.float64)
        acc_low = tl.zeros((BLOCK,), tl.float64)
        for start in range(0, n_cols, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            v, low = _value_pair(x_ptr, r_ptr, i_ptr, cols, cols < n_cols, HAS_R, HAS_I)
            d = tl.fma(v, up, -mean) + tl.fma(low, up, -mean_low)
            d = tl.where(cols < n_cols, d, 0.0)
            sq = d * d
            high = (sq + SIGMA * size * size) - SIGMA * size * size
            acc += high
            acc_low += (sq - high) + tl.fma(d, d, -sq)
        s2, s2_low = _sums(acc, acc_low)
        var = (s2 + s2_low) * inv
        # A constant row needs no scale; eps up^2 could underflow and leave 0 * inf.
        back = tl.where(var == 0, _power_of_two(k), 1.0)
        mean *= back
        mean_low *= back
        up *= back
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
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        v, low = _value_pair(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R, HAS_I)
        y = (tl.fma(v, up, -mean) + tl.fma(low, up, -mean_low)) * rstd
        y = _affine(y, w_ptr, b_ptr, cols, mask, HAS_W, HAS_B)
        tl.store(y_ptr + row * n_cols + cols, _rounded(y, y_ptr), mask=mask)
        if HAS_R:
            tl.store(s_ptr + row * n_cols + cols, _rounded(v, s_ptr), mask=mask)
    _store_stats(stats_ptr + row * 4, up, mean, mean_low, rstd)


# ------------------------------------------------------------------------------- backward kernels


@triton.jit
def _xhat(v, low, up, mean, mean_low, rstd, WIDE: tl.constexpr):
    """(v up - mean - mean_low) rstd in v's dtype; two roundings, three if WIDE."""
    if WIDE:
        return (tl.fma(v, up, -mean) + tl.fma(low, up, -mean_low)) * rstd
    else:
        return tl.fma(tl.fma(v, up, -mean), rstd, -mean_low * rstd)


@triton.jit
def _row_sums_kernel(
    dy_ptr,  # [M, N] rows of stride dy_stride
    x_ptr,
    r_ptr,
    i_ptr,
    w_ptr,
    stats_ptr,
    sums_ptr,  # [M, 2] float64, out: c1, c2
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
    """c1 and c2 of one row per program, read block by block."""
    row = tl.program_id(0).to(tl.int64)
    up, mean, mean_low, rstd = _load_stats(stats_ptr + row * 4, True)
    acc1 = tl.zeros((BLOCK,), tl.float64)
    acc2 = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        v, low = _value_pair(x_ptr + row * x_stride, r_ptr + row * r_stride, i_ptr, cols, mask, HAS_R, HAS_I)
        g = tl.load(dy_ptr + row * dy_stride + cols, mask=mask, other=0.0).to(tl.float64)
        if HAS_W:
            g *= tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float64)
        xhat = tl.where(mask, _xhat(v, low, up, mean, mean_low, rstd, WIDE), 0.0)
        acc1 += g
        acc2 = tl.fma(g, xhat, acc2)
    s1, s2 = _sums(acc1, acc2)
    n = row.to(tl.float64) * 0.0 + n_cols
    tl.store(sums_ptr + row * 2, s1 / n)
    tl.store(sums_ptr + row * 2 + 1, s2 / n)


@triton.jit
def _backward_kernel(
    dy_ptr,  # [M, N] rows of stride dy_stride
    ds_ptr,  # [M, N] rows of stride ds_stride: upstream gradient of s
    x_ptr,
    r_ptr,
    i_ptr,
    w_ptr,
    stats_ptr,
    sums_ptr,  # [M, 2] float64: c1, c2 (unless WHOLE)
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
    HAS_R: tl.constexpr,
    HAS_I: tl.constexpr,
    HAS_W: tl.constexpr,
    HAS_DS: tl.constexpr,
    HAS_DR: tl.constexpr,
    NEED_W: tl.constexpr,
    NEED_B: tl.constexpr,
    NEED_I: tl.constexpr,
):
    """dx of rows p, p + P, p + 2P, ... in one block of columns, and their column sums."""
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
    # The next row's data and statistics are loaded while this row is reduced: without it each
    # row waits for memory twice (0.74 of copy instead of 0.94 at N = 4096).
    x_next = tl.load(x_ptr + pid * x_stride + cols, mask=mask & (pid < n_rows), other=0.0)
    dy_next = tl.load(dy_ptr + pid * dy_stride + cols, mask=mask & (pid < n_rows), other=0.0)
    up_n, mean_n, low_n, rstd_n = _load_stats(stats_ptr + pid * 4, pid < n_rows)
    for row_ in range(pid, n_rows, programs):
        row = pid * 0 + row_  # 64 bits wide, interpreted too
        x_raw = x_next
        dy_raw = dy_next
        up = up_n.to(T)
        mean = mean_n.to(T)
        mean_low = low_n.to(T)
        rstd = rstd_n.to(T)
        nxt = row + programs
        x_next = tl.load(x_ptr + nxt * x_stride + cols, mask=mask & (nxt < n_rows), other=0.0)
        dy_next = tl.load(dy_ptr + nxt * dy_stride + cols, mask=mask & (nxt < n_rows), other=0.0)
        up_n, mean_n, low_n, rstd_n = _load_stats(stats_ptr + nxt * 4, nxt < n_rows)
        v = x_raw.to(T)
        low = v
        if WIDE:
            v, low = _value_pair(x_ptr + row * x_stride, r_ptr + row * r_stride, i_ptr, cols, mask, HAS_R, HAS_I)
        else:
            if HAS_I:
                v += tl.load(i_ptr + cols, mask=mask, other=0.0).to(T)
            if HAS_R:
                v += tl.load(r_ptr + row * r_stride + cols, mask=mask, other=0.0).to(T)
        xhat = _xhat(v, low, up, mean, mean_low, rstd, WIDE)
        if not FULL:
            xhat = tl.where(mask, xhat, 0.0)
        dy = dy_raw.to(T)
        if NEED_W:
            acc_w = tl.fma(dy, xhat, acc_w)
        if NEED_B:
            acc_b += dy
        g = dy * w_raw.to(T) if HAS_W else dy
        if WHOLE:
            c1, c2 = _sums(g, g * xhat)
            c1 *= inv
            c2 *= inv
        else:
            c1 = tl.load(sums_ptr + row * 2)
            c2 = tl.load(sums_ptr + row * 2 + 1)
        dx = (tl.fma(-xhat, c2, g - c1) * rstd) * up
        if HAS_DS:
            dx += tl.load(ds_ptr + row * ds_stride + cols, mask=mask, other=0.0).to(T)
        if NEED_I:
            acc_i += dx
        tl.store(dx_ptr + row * n_cols + cols, _rounded(dx, dx_ptr), mask=mask)
        if HAS_DR:
            tl.store(dr_ptr + row * n_cols + cols, _rounded(dx, dr_ptr), mask=mask)
    size = programs.to(tl.int64) * n_cols
    part_ptr += pid * n_cols
    if NEED_W:
        tl.store(part_ptr + cols, acc_w, mask=mask)
    if NEED_B:
        tl.store(part_ptr + NEED_W * size + cols, acc_b, mask=mask)
    if NEED_I:
        tl.store(part_ptr + (NEED_W + NEED_B) * size + cols, acc_i, mask=mask)


@triton.jit
def _backward_paired_kernel(
    dy_ptr,  # float32; as in _backward_kernel
    x_ptr,
    w_ptr,
    stats_ptr,
    dx_ptr,
    part_ptr,  # [NEED_W + NEED_B, programs, N] float64, out
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
):
    """_backward_kernel for long float32 rows: float32 pairs where they matter, fewer registers.

    The row lives in PARTS blocks, worked on one after the other to keep few temporaries alive: 0.94
    of copy, where float64 throughout spills registers and reaches 0.60."""
    pid = tl.program_id(0).to(tl.int64)
    programs = tl.num_programs(0)
    cols = tl.arange(0, BLOCK)
    F: tl.constexpr = tl.float32
    D: tl.constexpr = tl.float64
    every = tl.full((BLOCK,), True, tl.int1)
    inv = 1.0 / (pid.to(D) * 0.0 + n_cols)
    acc_w = ()
    acc_b = ()
    x_next = ()
    dy_next = ()
    for k in tl.static_range(PARTS):
        there = (every if FULL else cols + k * BLOCK < n_cols) & (pid < n_rows)
        at = cols + k * BLOCK
        acc_w = acc_w + (tl.zeros((BLOCK,), F),)
        acc_b = acc_b + (tl.zeros((BLOCK,), D),)
        x_next = x_next + (tl.load(x_ptr + pid * x_stride + at, mask=there, other=0.0),)
        dy_next = dy_next + (tl.load(dy_ptr + pid * dy_stride + at, mask=there, other=0.0),)
    up_n, mean_n, low_n, rstd_n = _load_stats(stats_ptr + pid * 4, pid < n_rows)
    for row_ in range(pid, n_rows, programs):
        row = pid * 0 + row_
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
            d = tl.fma(x_next[k], up, -mean)
            if not FULL:
                d = tl.where(mask, d, 0.0)
            g = dy_next[k]
            xhat = tl.fma(d, r, tl.fma(d, r_low, shift))
            new_w = new_w + (tl.fma(g, xhat, acc_w[k]),)
            new_b = new_b + (acc_b[k] + g.to(D),)
            if HAS_W:
                g *= tl.load(w_ptr + cols + k * BLOCK, mask=mask, other=0.0)
            s1 += g.to(D)
            s2 = tl.fma(g.to(D), d.to(D), s2)
        acc_w = new_w
        acc_b = new_b
        x_raw = x_next
        dy_raw = dy_next
        x_next = ()
        dy_next = ()
        s1, s2 = _sums(s1, s2)
        b = (s2 - low64 * s1) * (rstd * rstd * rstd * inv)
        c = b * low64 - s1 * (inv * rstd)
        b_high = b.to(F)
        b_low = (b - b_high.to(D)).to(F)
        c_high = c.to(F)
        c_low = (c - c_high.to(D)).to(F)
        for k in tl.static_range(PARTS):
            mask = every if FULL else cols + k * BLOCK < n_cols
            there = mask & (nxt < n_rows)
            at = cols + k * BLOCK
            d = tl.fma(x_raw[k], up, -mean)
            g = dy_raw[k]
            g_low = g * 0.0
            if HAS_W:
                w = tl.load(w_ptr + at, mask=mask, other=0.0)
                g = dy_raw[k] * w
                g_low = tl.fma(dy_raw[k], w, -g)
            x_next = x_next + (tl.load(x_ptr + nxt * x_stride + at, mask=there, other=0.0),)
            dy_next = dy_next + (tl.load(dy_ptr + nxt * dy_stride + at, mask=there, other=0.0),)
            low = tl.fma(g, r_low, tl.fma(g_low, r, tl.fma(-d, b_low, c_low)))
            dx = tl.fma(g, r, tl.fma(-d, b_high, c_high + low)) * up
            tl.store(dx_ptr + row * n_cols + at, dx, mask=mask)
    size = programs.to(tl.int64) * n_cols
    for k in tl.static_range(PARTS):
        mask = every if FULL else cols + k * BLOCK < n_cols
        out = part_ptr + pid * n_cols + cols + k * BLOCK
        if NEED_W:
            tl.store(out, acc_w[k].to(D), mask=mask)
        if NEED_B:
            tl.store(out + NEED_W * size, acc_b[k], mask=mask)


@triton.jit
def _columns_kernel(
    part_ptr,  # [K, programs, N]
    dw_ptr,  # [N] out
    db_ptr,
    di_ptr,
    programs,
    n_cols,
    NEED_W: tl.constexpr,
    NEED_B: tl.constexpr,
    NEED_I: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The partial column sums added up, in float64 and in a fixed order."""
    which = tl.program_id(1)
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rows = tl.arange(0, ROWS)[:, None].to(tl.int64)
    # (nested conditions: the outer one is decided when the kernel is compiled)
    acc = tl.zeros((ROWS, BLOCK), tl.float64)
    part_ptr += which.to(tl.int64) * programs * n_cols
    for start in range(0, programs, ROWS):
        r = rows + start
        mask = (cols < n_cols)[None, :] & (r < programs)
        acc += tl.load(part_ptr + r * n_cols + cols[None, :], mask=mask, other=0.0).to(tl.float64)
    total = tl.sum(acc, 0)
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


def _rows(tensor):
    """`tensor` as [rows, columns] with column stride 1: a view where strides allow, else a copy."""
    n = tensor.shape[-1]
    if tensor.stride(-1) == 1 or n == 1:
        try:
            return tensor.view(-1, n)
        except RuntimeError:  # leading dimensions with more than one stride
            pass
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
    weight_, bias_, input_bias_ = (x2 if t is None else t.contiguous() for t in (weight, bias, input_bias))
    common = (x2, r2, input_bias_, weight_, bias_, y, s, stats, x2.stride(0), r2.stride(0), n)
    scalars = (_bits(float(eps)), _bits(1.0 / n))
    flags = {
        "HAS_R": int(residual is not None),
        "HAS_I": int(input_bias is not None),
        "HAS_W": int(weight is not None),
        "HAS_B": int(bias is not None),
    }
    with _Device(x):
        if wide or block > 16384:
            _forward_loop_kernel[(m,)](
                *common, *scalars, SIGMA=16.0 * block, BLOCK=min(block, 2048), WIDE=int(wide),
                **flags, num_warps=8,
            )  # fmt: skip
        else:
            fast = residual is None and _is_half(x) and not _is_wide(weight, bias)
            warps = max(1 if fast or block < 1024 else 2, min(16, block // 1024))
            # 64 registers: a quarter more rows in flight than the 79 the compiler would take
            limit = {"maxnreg": 64} if fast and block >= 2048 else {}
            _forward_kernel[(m,)](
                *common, *scalars, BLOCK=block, FULL=int(block == n), FAST=int(fast),
                **flags, num_warps=warps, **limit,
            )  # fmt: skip
    return y, s, stats


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
    block = triton.next_power_of_2(n)
    plain = residual is None and input_bias is None
    wide = _is_wide(x, residual, input_bias)
    fast = plain and block <= 8192 and all(_is_half(t) for t in (x, weight, bias))
    paired = plain and 4096 < block <= 8192 and m >= _PAIRED_ROWS and ds is None
    paired = paired and all(t is None or t.dtype == torch.float32 for t in (x, weight, bias))
    whole = not wide and (fast or block <= 4096)
    columns = 1
    if paired:
        waves = triton.cdiv(m, _PAIRED_PROGRAMS * _PAIRED_SUM)
        programs, warps = _PAIRED_PROGRAMS * waves, 16
    elif fast:
        programs = max(_PROGRAMS * 1024 // max(block, 1024), triton.cdiv(m, 1024))
        warps = max(1, min(16, block // 512))
    elif whole:
        programs = _PROGRAMS // 2 * 1024 // max(block, 1024)
        warps = max(1, min(16, block // 256))
    else:
        block = min(block, 1024)
        columns = triton.cdiv(n, block)
        programs, warps = max(_PROGRAMS // 64, triton.cdiv(_PROGRAMS, columns)), 4
    programs = max(1, min(m, programs))
    kinds = need_w + need_b + need_i
    part = torch.empty((kinds, programs, n), dtype=torch.float32 if fast else torch.float64, device=x.device)
    weight_, input_bias_ = (x2 if t is None else t.contiguous() for t in (weight, input_bias))
    needs = {"NEED_W": need_w, "NEED_B": need_b}
    has = {
        "HAS_R": int(residual is not None),
        "HAS_I": int(input_bias is not None),
        "HAS_W": int(weight is not None),
    }
    with _Device(x):
        if paired:
            _backward_paired_kernel[(programs,)](
                dy2, x2, weight_, stats, dx, part, dy2.stride(0), x2.stride(0), m, n,
                BLOCK=block // 8, PARTS=8, FULL=int(block == n), HAS_W=has["HAS_W"], **needs,
                num_warps=warps,
            )  # fmt: skip
        else:
            sums = stats
            if not whole:
                sums = torch.empty((m, 2), dtype=torch.float64, device=x.device)
                _row_sums_kernel[(m,)](
                    dy2, x2, r2, input_bias_, weight_, stats, sums,
                    dy2.stride(0), x2.stride(0), r2.stride(0), n,
                    BLOCK=min(triton.next_power_of_2(n), 2048), WIDE=int(wide), **has, num_warps=8,
                )  # fmt: skip
            _backward_kernel[(programs, columns)](
                dy2, ds2, x2, r2, input_bias_, weight_, stats, sums, dx, dr, part,
                dy2.stride(0), ds2.stride(0), x2.stride(0), r2.stride(0), m, n,
                BLOCK=block, FULL=int(n % block == 0), WHOLE=int(whole), FAST=int(fast),
                WIDE=int(wide), **has, HAS_DS=int(ds is not None), HAS_DR=int(two),
                **needs, NEED_I=need_i, num_warps=warps,
            )  # fmt: skip
        if kinds:
            width, depth = (32 if n <= 8192 else 128), 64
            if programs > 132:  # deeper and narrower blocks keep more loads in flight
                width, depth = 16, 256
            _columns_kernel[(triton.cdiv(n, width), kinds)](
                part, dw, db, di, programs, n, **needs, NEED_I=need_i, ROWS=depth, BLOCK=width, num_warps=4,
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
