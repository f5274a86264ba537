"""The forward kernel for rows that fit into registers: one row per program, EXACT or FAST.

Rounding points, in ULP of |weight xhat| + |bias|:

- EXACT (rows or residuals in float32, float64 weights): v - mean, times rstd, times weight plus bias are float64
  operations. y is rounded to float32 and, for 16-bit outputs, once more: 0.5 + 2^-13.
- FAST (16-bit rows): the row's statistics become float32 pairs, scaled by `up`, a power of two. `up` is 1 unless rstd
  is outside 2^-40..2^40; it keeps rows near 1e38 or 1e-40 in range. Then follow three float32 FMAs and the output's
  rounding: 0.502 (float16), 0.5002 (bfloat16). Without a residual, y's rstd is off by 2^-22. With a residual, v is a
  float32 pair. d = (high - mean_high) + (low - mean_low) is rounded to 24 bits and off by 2^-48 |mean| more. Rows with
  |mean| rstd > 2^14, rows with a sum that leaves float32, and those that half_square excludes are computed in float64
  pairs (hard_rows.py).

Memory: a row is loaded and stored once. weight and bias are loaded first if registers are free for them (EARLY):
otherwise their latency follows that of the row. float32 rows of 1,024 columns and more are converted twice, from 8,192
on also read twice, the second time from L1 (AGAIN).
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..arithmetic import float64_of
from .hard_rows import forward_hard_row, moments_around
from .moments import (
    FAR,
    half_square,
    half_stats,
    is_near,
    is_outlier,
    mark_of,
    moments,
    scaled_stats,
    store_stats,
    sums,
    weighted_xhat,
    xhat_of,
)
from .operands import half_pair, kept, operands, rounded, scale_and_shift, summed, vectors


@triton.jit
def _packed(pointer, zero, BLOCK: tl.constexpr):
    """Returns BLOCK bfloat16 numbers as float32. Loads two in one int32: they share a register until they are used.

    Args:
        zero: a 0 that the compiler does not know: it keeps the compiler from separating the pairs early
    """
    pairs = tl.load(pointer.to(tl.pointer_type(tl.int32), bitcast=True) + tl.arange(0, BLOCK // 2))
    low = (pairs << (16 + zero)).to(tl.float32, bitcast=True)
    high = (pairs & (-65536 + zero)).to(tl.float32, bitcast=True)
    return tl.reshape(tl.join(low, high), (BLOCK,))


@triton.jit
def _read_row(pointer, cols, mask, BLOCK: tl.constexpr, PACKED: tl.constexpr):
    """Returns the 16-bit numbers of a row. If PACKED, they are converted to float32."""
    if PACKED:
        return _packed(pointer, 0, BLOCK)
    else:
        return tl.load(pointer + cols, mask=mask, other=0.0)


@triton.jit(do_not_specialize=["eps_bits", "inv_bits"])
def forward_kernel(
    x_ptr,  # [M, N] rows of stride x_stride
    r_ptr,  # [M, N] residual, rows of stride r_stride
    i_ptr,  # [N] input bias
    w_ptr,  # [N] weight
    b_ptr,  # [N] bias
    y_ptr,  # [M, N] contiguous, out
    s_ptr,  # [M, N] contiguous, out: the summed input
    stats_ptr,  # out: the statistics of moments.py
    x_stride, r_stride, n_cols, eps_bits,
    inv_bits,  # 1 / n_cols
    BLOCK: tl.constexpr,
    FULL: tl.constexpr,  # n_cols == BLOCK
    FAST: tl.constexpr,
    MARK: tl.constexpr,  # FAST, backward adds in float64: mark rows; RMS norm: square both parts of a sum
    PACKED: tl.constexpr,  # FAST with HAS_R: rows are FULL, all operands and vectors bfloat16
    EARLY: tl.constexpr,  # FAST: weight and bias are loaded before the row's sums, which their latency would follow
    AGAIN: tl.constexpr,  # plain float32 rows are converted twice, as float64 fills registers; 1: and loaded, from L1
    HAS_R: tl.constexpr, HAS_I: tl.constexpr, HAS_W: tl.constexpr, HAS_B: tl.constexpr,
    CENTRE: tl.constexpr = 1,  # 0: RMS norm, whose rows have no mean
):  # fmt: skip
    """Computes one row per program, held in registers (except with AGAIN)."""
    LIGHT: tl.constexpr = FAST and not (CENTRE or HAS_R or HAS_I or MARK)
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = tl.full((BLOCK,), True, tl.int1) if FULL else cols < n_cols
    x_ptr += row * x_stride
    r_ptr += row * r_stride
    if FAST:
        x = _read_row(x_ptr, cols, mask, BLOCK, PACKED)
        if EARLY:
            w, b = vectors(w_ptr, b_ptr, cols, mask, HAS_W, HAS_B)
        shift = 0.0
        if HAS_R:
            r = _read_row(r_ptr, cols, mask, BLOCK, PACKED)
            i = x
            if HAS_I:
                i = _read_row(i_ptr, cols, mask, BLOCK, PACKED)
            x, low = half_pair(x, i, r, HAS_I, HAS_R)
            shift_low = 0.0
            if CENTRE:
                i0 = tl.load(i_ptr) if HAS_I else 0.0
                shift, shift_low = half_pair(tl.load(x_ptr), i0, tl.load(r_ptr), HAS_I, HAS_R)
            # Stored now, so the sum needs no registers besides the pair. forward_hard_row writes it again.
            tl.store(s_ptr + row * n_cols + cols, x, mask=mask)
            if CENTRE:
                shift = shift.to(tl.float64)
                d = (x.to(tl.float64) - shift) + (low - shift_low).to(tl.float64)
            else:
                d = x.to(tl.float64)
                if MARK:
                    d += low.to(tl.float64)
            if not FULL:
                d = tl.where(mask, d, 0.0)
        else:
            x = x.to(tl.float32)
            d = x.to(tl.float64)
    else:
        # All loads first. Weight and bias too if the additions give them time to arrive and registers are free.
        x, r, i = operands(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R, HAS_I)
        x0, r0, i0 = operands(x_ptr, r_ptr, i_ptr, 0, True, HAS_R, HAS_I)
        if HAS_R and not HAS_I:
            w, b = vectors(w_ptr, b_ptr, cols, mask, HAS_W, HAS_B)
        v = summed(x, r, i, HAS_R, HAS_I)
        if HAS_R:
            tl.store(s_ptr + row * n_cols + cols, rounded(v, s_ptr), mask=mask)
        if CENTRE:
            shift = summed(x0, r0, i0, HAS_R, HAS_I)
            d = v - shift if FULL else tl.where(mask, v - shift, 0.0)
        else:
            d = v  # 0 beyond the row, as loaded
    if CENTRE:
        s1, s2 = sums(d, d * d)
        n = row.to(tl.float64) * 0.0 + n_cols  # Triton makes n_cols = 1 a plain number, no tensor
        mean, mean_low, var = moments(s1, s2, shift, n, float64_of(inv_bits))
        if not FAST:  # noqa: SIM102 (decided when the kernel is compiled)
            if is_outlier(shift, mean, var):
                mean, mean_low, var = moments_around(
                    mean, mean_low, x_ptr, r_ptr, i_ptr, n_cols, n, float64_of(inv_bits), min(BLOCK, 512), HAS_R, HAS_I
                )
        if HAS_R or MARK or not FAST:
            rstd = tl.rsqrt(var + float64_of(eps_bits))
    elif LIGHT:
        up, rstd = half_square(x, float64_of(inv_bits), float64_of(eps_bits), 0)
        mean, mean_low = up, up
    else:
        var = tl.sum(d * d, 0) * float64_of(inv_bits)
        mean, mean_low = tl.zeros_like(var), tl.zeros_like(var)
        rstd = tl.rsqrt(var + float64_of(eps_bits))
    if FAST and HAS_R:
        # The pairs hold 48 bits of v. If they are NaN or infinite, a sum left float32, or the row has inf or NaN.
        if CENTRE:
            mean_low += shift_low.to(tl.float64)  # a constant row has v - mean = 0 exactly
            near = tl.abs(mean) * rstd <= FAR
        else:
            near = var < float("inf")
        hard = near == 0
        if near:
            mark = mark_of(mean, var) if MARK and CENTRE else 1.0
            up, mean, mean_low, rstd = scaled_stats(mean, mean_low, rstd)
            # before y, which needs their registers
            kept_up = up * mark if CENTRE else tl.where(var == 0, 0.0, up)
            store_stats(stats_ptr, row, kept_up, mean * mark, mean_low * mark, rstd / mark, True, CENTRE)
            stats = (up.to(tl.float32), mean.to(tl.float32), mean_low.to(tl.float32), rstd.to(tl.float32))
            y = xhat_of(x, low, stats[0], stats[1], stats[2], stats[3], 1) if CENTRE else x
            if PACKED:
                w = _packed(w_ptr, n_cols >> 31, BLOCK) if HAS_W else 1.0
                b = _packed(b_ptr, n_cols >> 31, BLOCK) if HAS_B else 0.0
            else:
                w, b = vectors(w_ptr, b_ptr, cols, mask, HAS_W, HAS_B)
            if CENTRE:
                y = scale_and_shift(y, w, b, HAS_W, HAS_B)
            else:
                y = weighted_xhat(y, stats[0], stats[3], w, y_ptr, HAS_W)
            tl.store(y_ptr + row * n_cols + cols, y, mask=mask)
    else:
        if FAST:
            if MARK:
                up, mean, mean_low, rstd = scaled_stats(mean, mean_low, rstd)
                r = rstd.to(tl.float32)
            elif CENTRE:
                up, mean, mean_low, rstd, r = half_stats(mean, mean_low, var, float64_of(eps_bits))
            if CENTRE:
                d = tl.fma(x, up.to(tl.float32), -mean.to(tl.float32))
                y = tl.fma(d, r, -mean_low.to(tl.float32) * r)
            else:
                y = x
        else:
            up = mark_of(mean, var) if HAS_R and CENTRE else 1.0
            if AGAIN == 2:
                v = kept(x).to(tl.float64)
            elif AGAIN:
                v = tl.load(x_ptr + cols, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float64)
            y = ((v - mean) - mean_low) * rstd if CENTRE else v * rstd
            if HAS_R and CENTRE:
                up = tl.where(is_near(y, mean, rstd, mask), 0.5, up)
        if (FAST and not EARLY) or (not FAST and (HAS_I or not HAS_R)):
            w, b = vectors(w_ptr, b_ptr, cols, mask, HAS_W, HAS_B)
        if FAST and not CENTRE:
            scale = tl.full((), 1.0, tl.float32) if LIGHT else up.to(tl.float32)
            y = weighted_xhat(y, scale, rstd.to(tl.float32), w, y_ptr, HAS_W)
        else:
            y = scale_and_shift(y, w, b, HAS_W, HAS_B)
        tl.store(y_ptr + row * n_cols + cols, rounded(y, y_ptr), mask=mask, cache_modifier=".cs" if AGAIN else "")
        store_stats(stats_ptr, row, up, mean, mean_low, rstd, True, CENTRE)
        hard = up < 0 if LIGHT else up < 1
    if LIGHT or (HAS_R and (FAST or CENTRE)):  # noqa: SIM102
        if hard:
            tl.debug_barrier()  # other threads store the row first
            forward_hard_row(
                x_ptr, i_ptr, r_ptr, w_ptr, b_ptr, y_ptr + row * n_cols, s_ptr + row * n_cols, stats_ptr, row,
                n_cols, float64_of(eps_bits), float64_of(inv_bits),
                BLOCK=min(BLOCK, 512), HAS_R=HAS_R, HAS_I=HAS_I, HAS_W=HAS_W, HAS_B=HAS_B, CENTRE=CENTRE,
            )  # fmt: skip
