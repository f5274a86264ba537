"""The forward kernel for rows of any length and for all float64 rows: one row per program, block by block.

Rounding points, in ulps of |weight xhat| + |bias|:
- EXACT (more than 16,384 columns): as in forward.py. Rows are read twice, from L2 if they fit there.
- WIDE (x, residual or input_bias in float64): sums as float64 pairs, scaled to [1, 2) by a power of
  two. S1 is cut twice (error-free extraction), good to about N^3 2^-147 of the largest element, so that the
  mean's two parts hold where large elements cancel; S2 = sum((v - mean)^2) is cut once. Then the
  mean's two parts, rstd, weight and bias: below 4. A constant row is its own mean, low part included.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.arithmetic import exponent, float64_of, power_of_two
from kernels.float_pairs import cut, two_sum
from kernels.layer_norm.hard_rows import moments_around
from kernels.layer_norm.moments import (
    is_outlier,
    lifted_xhat,
    mark_of,
    mean_square,
    moments,
    store_stats,
    sums,
    xhat_of,
)
from kernels.layer_norm.operands import affine, rounded, value_of, value_pair


@triton.jit(do_not_specialize=["eps_bits", "inv_bits"])
def forward_blocks_kernel(
    x_ptr,  # [M, N] rows of stride x_stride
    r_ptr,  # [M, N] residual, rows of stride r_stride; only with HAS_R
    i_ptr,  # [N] input bias; only with HAS_I
    w_ptr,  # [N] weight; only with HAS_W
    b_ptr,  # [N] bias; only with HAS_B
    y_ptr,  # [M, N] contiguous, out
    s_ptr,  # [M, N] contiguous, out: the summed input; only with HAS_R
    stats_ptr,  # [M, 4] float64, out: the statistics of moments.py
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
    CENTRE: tl.constexpr = 1,  # 0: RMS norm
):
    """One row per program, read block by block: rows of any length, and all float64 rows."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_stride
    r_ptr += row * r_stride
    n = row.to(tl.float64) * 0.0 + n_cols
    inv = float64_of(inv_bits)
    eps = float64_of(eps_bits)
    acc = tl.zeros((BLOCK,), tl.float64)
    acc_low = tl.zeros((BLOCK,), tl.float64)
    if WIDE:
        first, first_low = value_pair(x_ptr, r_ptr, i_ptr, 0, True, HAS_R, HAS_I)
        varies = tl.zeros((BLOCK,), tl.int32)
        for start in range(0, n_cols, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            v, low = value_pair(x_ptr, r_ptr, i_ptr, cols, cols < n_cols, HAS_R, HAS_I)
            acc = tl.maximum(acc, tl.abs(v))
            varies |= ((cols < n_cols) & ((v != first) | (low != first_low))).to(tl.int32)
        # The row is scaled by 2^-k: to [1, 2), or so that eps is about 1 if that is the larger.
        largest = tl.max(acc, 0)
        top = tl.where(largest < 2.0**-900, exponent(largest * 2.0**200) - 200, exponent(largest))
        top = tl.minimum(top, 1022)
        k = tl.maximum(tl.maximum(top, -1000), tl.where(eps > 0, exponent(eps) >> 1, -1000))
        up = power_of_two(-k)
        size = power_of_two(tl.maximum(top - k, -1000))
        mean = inv * 0.0
        mean_low = inv * 0.0
        if CENTRE:
            fine = SIGMA * SIGMA * size * 2.0**-53
            acc = tl.zeros((BLOCK,), tl.float64)
            acc_mid = tl.zeros((BLOCK,), tl.float64)
            for start in range(0, n_cols, BLOCK):
                cols = start + tl.arange(0, BLOCK)
                v, low = value_pair(x_ptr, r_ptr, i_ptr, cols, cols < n_cols, HAS_R, HAS_I)
                v *= up
                high, v = cut(v, SIGMA * size)
                acc += high
                high, v = cut(v, fine)
                acc_mid += high
                acc_low += v
                if HAS_R or HAS_I:
                    high, low = cut(low * up, fine)
                    acc_mid += high
                    acc_low += low
            s1, s1_mid = sums(acc, acc_mid)
            s1, s1_mid = two_sum(s1, s1_mid)
            s1_low = tl.sum(acc_low, 0)
            mean = (s1 + s1_mid) * inv
            mean = tl.fma((tl.fma(-mean, n, s1) + s1_mid) + s1_low, inv, mean)
            mean_low = ((tl.fma(-mean, n, s1) + s1_mid) + s1_low) * inv
        acc = tl.zeros((BLOCK,), tl.float64)
        acc_low = tl.zeros((BLOCK,), tl.float64)
        for start in range(0, n_cols, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            v, low = value_pair(x_ptr, r_ptr, i_ptr, cols, cols < n_cols, HAS_R, HAS_I)
            d = tl.fma(v, up, -mean) + tl.fma(low, up, -mean_low) if CENTRE else v * up
            d = tl.where(cols < n_cols, d, 0.0)
            sq = d * d
            high, rest = cut(sq, SIGMA * size * size)
            rest += tl.fma(d, d, -sq)
            if not CENTRE:  # inf - inf would be NaN: numbers beside an infinity are 0 of its size
                high = tl.where(sq == float("inf"), sq, high)
                rest = tl.where(sq == float("inf"), 0.0, rest)
            acc += high
            acc_low += rest
        s2, s2_low = sums(acc, acc_low)
        var = (s2 + s2_low) * inv
        # Where eps up^2 underflows and the row is constant as far as var can tell, scaling would leave 0 * inf.
        back = tl.where(var + (eps * up) * up == 0, power_of_two(k), 1.0)
        mean *= back
        mean_low *= back
        up *= back
        # A constant row is its mean, also where low is too small to be in the mean above.
        if CENTRE:  # noqa: SIM102 (decided when the kernel is compiled)
            if tl.max(varies, 0) == 0:
                mean = first
                mean_low = first_low
                var = var * 0.0
                up = up * 0.0 + 1.0
        rstd = 1.0 / tl.sqrt(var + (eps * up) * up)
    else:
        up = inv * 0.0 + 1.0
        shift = value_of(x_ptr, r_ptr, i_ptr, 0, True, HAS_R, HAS_I) if CENTRE else 0.0
        for start in range(0, n_cols, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            v = value_of(x_ptr, r_ptr, i_ptr, cols, cols < n_cols, HAS_R, HAS_I)
            d = tl.where(cols < n_cols, v - shift, 0.0)
            acc += d
            acc_low = tl.fma(d, d, acc_low)
        if CENTRE:
            s1, s2 = sums(acc, acc_low)
            mean, mean_low, var = moments(s1, s2, shift, n, inv)
            if is_outlier(shift, mean, var):
                mean, mean_low, var = moments_around(
                    mean, mean_low, x_ptr, r_ptr, i_ptr, n_cols, n, inv, BLOCK, HAS_R, HAS_I
                )
        else:
            mean, mean_low, var = mean_square(acc_low, inv)
        rstd = tl.rsqrt(var + eps)
        if HAS_R and CENTRE:
            mark = mark_of(mean, var)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        v, low = value_pair(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R, HAS_I)
        if WIDE and not CENTRE:
            y = lifted_xhat(v, up, rstd)
            tiny = tl.abs(y) < 2.0**-300
            y = affine(tl.where(tiny, y, y * 2.0**-200), w_ptr, b_ptr, cols, mask, HAS_W, HAS_B)
            y = tl.where(tiny, y * 2.0**-200, y)
        else:
            y = xhat_of(v, low, up, mean, mean_low, rstd, 1, CENTRE)
            y = affine(y, w_ptr, b_ptr, cols, mask, HAS_W, HAS_B)
        tl.store(y_ptr + row * n_cols + cols, rounded(y, y_ptr), mask=mask)
        if HAS_R:
            tl.store(s_ptr + row * n_cols + cols, rounded(v, s_ptr), mask=mask)
    if HAS_R and CENTRE and not WIDE:
        up = mark
    store_stats(stats_ptr + row * 4, up, mean if CENTRE else var, mean_low, rstd)
