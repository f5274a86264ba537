"""The forward kernel for float64 rows and for rows of more than 16,384 columns: one row per program, block by block.

Rounding points of WIDE, in ULP of |weight xhat| + |bias|: the differences from the row's first element are float64
pairs, scaled by a power of two that brings the largest element into [1, 2). S1 is cut twice (error-free extraction). It
is good to about N^3 2^-147 of the largest difference, so the mean's two parts hold even if large differences cancel.
S2, the squares of the differences from the mean, is cut once. Then follow the mean's two parts, rstd, weight and bias:
below 4 in float64. The stored mean is that of the differences.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..arithmetic import exponent, float64_of, power_of_two
from ..float_pairs import cut, two_sum
from .moments import lifted_xhat, store_stats, sums, xhat_of
from .operands import affine, pair_from_first, rounded, value_pair


@triton.jit
def _exponent_of(largest):
    """Returns floor(log2(largest)), also of a subnormal number; at most 1022."""
    return tl.minimum(tl.where(largest < 2.0**-900, exponent(largest * 2.0**200) - 200, exponent(largest)), 1022)


@triton.jit(do_not_specialize=["eps_bits", "inv_bits"])
def forward_blocks_kernel(
    x_ptr,  # [M, N] rows of stride x_stride
    r_ptr,  # [M, N] residual, rows of stride r_stride; only with HAS_R
    i_ptr,  # [N] input bias; only with HAS_I
    w_ptr,  # [N] weight; only with HAS_W
    b_ptr,  # [N] bias; only with HAS_B
    y_ptr,  # [M, N] contiguous, out
    s_ptr,  # [M, N] contiguous, out: the summed input; only with HAS_R
    stats_ptr,  # out: the statistics of moments.py
    x_stride, r_stride, n_cols, eps_bits, inv_bits,
    SIGMA: tl.constexpr,  # a power of two >= 16 n_cols
    BLOCK: tl.constexpr, HAS_R: tl.constexpr, HAS_I: tl.constexpr, HAS_W: tl.constexpr, HAS_B: tl.constexpr,
    CENTRE: tl.constexpr = 1,  # 0: RMS norm
):  # fmt: skip
    """Computes one row per program, block by block."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_stride
    r_ptr += row * r_stride
    n = row.to(tl.float64) * 0.0 + n_cols
    inv = float64_of(inv_bits)
    eps = float64_of(eps_bits)
    acc = tl.zeros((BLOCK,), tl.float64)
    acc_low = tl.zeros((BLOCK,), tl.float64)
    first, first_low = value_pair(x_ptr, r_ptr, i_ptr, 0, True, HAS_R, HAS_I)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        v, low = value_pair(x_ptr, r_ptr, i_ptr, cols, cols < n_cols, HAS_R, HAS_I)
        acc = tl.maximum(acc, tl.abs(v))
        acc_low = tl.maximum(acc_low, tl.where(cols < n_cols, tl.abs(v - first) + tl.abs(low - first_low), 0.0))
    # The row is scaled by 2^-k: to [1, 2), or so that eps is about 1 if that is the larger.
    top = _exponent_of(tl.max(acc, 0))
    k = tl.maximum(tl.maximum(top, -1000), tl.where(eps > 0, exponent(eps) >> 1, -1000))
    up = power_of_two(-k)
    if CENTRE:
        top = _exponent_of(tl.max(acc_low, 0))
    size = power_of_two(tl.maximum(top - k, -1000))  # the power of two of the largest number in the sums
    acc_low = tl.zeros((BLOCK,), tl.float64)
    mean = inv * 0.0
    mean_low = inv * 0.0
    if CENTRE:
        fine = SIGMA * SIGMA * size * 2.0**-53
        acc = tl.zeros((BLOCK,), tl.float64)
        acc_mid = tl.zeros((BLOCK,), tl.float64)
        for start in range(0, n_cols, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            v, low = pair_from_first(x_ptr, r_ptr, i_ptr, cols, cols < n_cols, up, HAS_R, HAS_I)
            v = tl.where(cols < n_cols, v, 0.0)
            low = tl.where(cols < n_cols, low, 0.0)
            high, v = cut(v, SIGMA * size)
            acc += high
            high, v = cut(v, fine)
            acc_mid += high
            acc_low += v
            high, low = cut(low, fine)
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
        if CENTRE:
            v, low = pair_from_first(x_ptr, r_ptr, i_ptr, cols, cols < n_cols, up, HAS_R, HAS_I)
            d = (v - mean) + (low - mean_low)
        else:
            d = value_pair(x_ptr, r_ptr, i_ptr, cols, cols < n_cols, HAS_R, HAS_I)[0] * up
        d = tl.where(cols < n_cols, d, 0.0)
        sq = d * d
        high, rest = cut(sq, SIGMA * size * size)
        rest += tl.fma(d, d, -sq)
        if not CENTRE:  # the cut of an infinity would be inf - inf, NaN
            high = tl.where(sq == float("inf"), sq, high)
            rest = tl.where(sq == float("inf"), 0.0, rest)
        acc += high
        acc_low += rest
    s2, s2_low = sums(acc, acc_low)
    var = (s2 + s2_low) * inv
    # If eps up^2 underflows and var is 0, rstd would be infinite and xhat 0 * inf: such a row is not scaled.
    back = tl.where(var + (eps * up) * up == 0, power_of_two(k), 1.0)
    mean *= back
    mean_low *= back
    up *= back
    rstd = 1.0 / tl.sqrt(var + (eps * up) * up)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        v, low = value_pair(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R, HAS_I)
        if CENTRE:
            d, d_low = pair_from_first(x_ptr, r_ptr, i_ptr, cols, mask, up, HAS_R, HAS_I)
            y = xhat_of(d, d_low, 1.0, mean, mean_low, rstd, 1)
            y = affine(y, w_ptr, b_ptr, cols, mask, HAS_W, HAS_B)
        else:
            y = lifted_xhat(v, up, rstd)
            tiny = tl.abs(y) < 2.0**-300
            y = affine(tl.where(tiny, y, y * 2.0**-200), w_ptr, b_ptr, cols, mask, HAS_W, HAS_B)
            y = tl.where(tiny, y * 2.0**-200, y)
        tl.store(y_ptr + row * n_cols + cols, rounded(y, y_ptr), mask=mask)
        if HAS_R:
            tl.store(s_ptr + row * n_cols + cols, rounded(v, s_ptr), mask=mask)
    store_stats(stats_ptr, row, up, mean, mean_low, rstd, True, CENTRE)
