"""The forward kernel for short rows of 16 bits, x alone: a warp computes several rows as forward.py's FAST path does.

A multiprocessor holds 32 programs. With one row of 256 columns each, their loads in flight are 16 KiB, a third of what
the memory's speed needs. The sums of a row have forward.py's order: the same lanes hold the same columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.arithmetic import float64_of
from kernels.layer_norm.moments import moments, scaled_stats, weighted_xhat
from kernels.layer_norm.operands import scale_and_shift, vectors


@triton.jit(do_not_specialize=["n_rows", "eps_bits", "inv_bits"])
def forward_rows_kernel(
    x_ptr,  # [M, N] rows of stride x_stride
    w_ptr,  # [N] weight
    b_ptr,  # [N] bias
    y_ptr,  # [M, N] contiguous, out
    stats_ptr,  # [M, 4] float64, out: up, up mean (pair), rstd / up
    x_stride,
    n_rows,
    eps_bits,
    inv_bits,  # 1 / N
    ROWS: tl.constexpr,
    N: tl.constexpr,
    HAS_W: tl.constexpr,
    HAS_B: tl.constexpr,
    CENTRE: tl.constexpr,  # 0: RMS norm, whose rows have no mean
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, N)[None, :]
    there = row < n_rows
    x = tl.load(x_ptr + row * x_stride + cols, mask=there, other=0.0).to(tl.float32)
    inv = float64_of(inv_bits)
    zero = row.to(tl.float64) * 0.0
    d = x.to(tl.float64)
    if CENTRE:
        both = tl.sum(tl.join(d, d * d), 1)
        first = (tl.arange(0, 2) == 0)[None, :]
        s1 = tl.sum(tl.where(first, both, 0.0), 1)[:, None]
        s2 = tl.sum(tl.where(first, 0.0, both), 1)[:, None]
        mean, mean_low, var = moments(s1, s2, 0.0, zero + N, inv)
    else:
        mean, mean_low, var = zero, zero, tl.sum(d * d, 1)[:, None] * inv
    up, mean, mean_low, rstd = scaled_stats(mean, mean_low, tl.rsqrt(var + float64_of(eps_bits)))
    if CENTRE:
        d = tl.fma(x, up.to(tl.float32), -mean.to(tl.float32))
        y = tl.fma(d, rstd.to(tl.float32), (-mean_low * rstd).to(tl.float32))
    w, b = vectors(w_ptr, b_ptr, cols, cols < N, HAS_W, HAS_B)
    if CENTRE:
        y = scale_and_shift(y, w, b, HAS_W, HAS_B)
    else:
        y = weighted_xhat(x, up.to(tl.float32), rstd.to(tl.float32), w, y_ptr, HAS_W)
    tl.store(y_ptr + row * N + cols, y, mask=there)
    at = stats_ptr + row * 4
    tl.store(at, up, mask=there)
    tl.store(at + 1, mean if CENTRE else var, mask=there)
    tl.store(at + 2, mean_low, mask=there)
    tl.store(at + 3, rstd, mask=there)
