"""The kernels that compute several rows in one program: short rows, gated RMS norm, RMS norm with an FP8 result.

A multiprocessor holds 32 programs. With one row of 128 columns each, they have 8 KiB in flight; the memory is busy with
six times as much. A program here has ROWS rows at once, in registers. N alone decides ROWS, so a row has the same bits
for every M.

Rounding points, in ULP of |weight xhat| + |bias| (times |silu(gate)|), of rstd (|g| + |xhat| mean|g xhat|) for dx, and
of the sums of magnitudes for column sums:

- FAST (16 bits, x alone): forward as in forward.py. Backward, for RMS norm, as FAST in backward.py, with the same
  conditions for rows that are computed again in float64. With a gate float32 throughout, and no row is computed again.
- Otherwise every operation is a float64 operation and each output is rounded to float32 and, for 16 bits, once more:
  0.5 + 2^-13. v = x + residual is exact unless exponents lie 29 binades apart. No operand of 32 bits leaves float64,
  so no row is hard. silu(gate) is silu_math.py's for float32, also for gates of 16 bits: 2^-30.
- FP8 (GROUP): y is rounded to float32. amax is the largest |y| of GROUP columns, at least LEAST. scale = amax / 448 and
  y / scale have one float32 rounding each. y / scale is then rounded to e4m3. NaN stays NaN; infinite y: no promise.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..arithmetic import float64_of, narrowed
from ..eager_math import eager_times_slope, eager_value
from ..silu_math import silu_gradients, silu_times
from .hard_rows import forward_hard_row, redo_rows
from .moments import (
    half_square,
    load_stats,
    moments,
    one_column,
    scaled_stats,
    store_stats,
    weighted_xhat,
    xhat_of,
)
from .operands import rounded, row_vector, scale_and_shift, value_of, weighted, with_weight_term

LEAST = tl.constexpr(1e-10)  # of amax: a row of zeros has a scale, and codes of 0
E4M3_LARGEST = tl.constexpr(448.0)


@triton.jit
def _store_e4m3(y, y_ptr, scale_ptr, row, n_rows, n_cols, ROWS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    """Stores y as codes of e4m3 and a scale for each GROUP columns. Columns beyond n_cols are 0 or NaN."""
    PARTS: tl.constexpr = BLOCK // GROUP
    y = tl.reshape(y.to(tl.float32), (ROWS, PARTS, GROUP))
    amax = tl.maximum(tl.max(tl.abs(y), 2), LEAST)  # both pass over NaN
    scale = tl.div_rn(amax, tl.full((ROWS, PARTS), E4M3_LARGEST, tl.float32))
    y = tl.div_rn(y, tl.broadcast_to(scale[:, :, None], (ROWS, PARTS, GROUP)))
    y = tl.where(y > E4M3_LARGEST, E4M3_LARGEST, tl.where(y < -E4M3_LARGEST, -E4M3_LARGEST, y))
    cols = tl.arange(0, BLOCK)[None, :]
    codes = tl.reshape(y, (ROWS, BLOCK)).to(tl.float8e4nv)
    tl.store(y_ptr + row * n_cols + cols, codes, mask=(row < n_rows) & (cols < n_cols))
    part = tl.arange(0, PARTS)[None, :]
    parts = tl.cdiv(n_cols, GROUP)
    tl.store(scale_ptr + row * parts + part, scale, mask=(row < n_rows) & (part < parts))


@triton.jit(do_not_specialize=["n_rows", "eps_bits", "inv_bits"])
def forward_rows_kernel(
    x_ptr,  # [M, N] rows of stride x_stride
    r_ptr,  # [M, N] rows of stride r_stride: the residual with HAS_R, the gate with GATED
    w_ptr,  # [N] weight
    b_ptr,  # [N] bias
    y_ptr,  # [M, N] contiguous, out; codes of e4m3 with GROUP
    s_ptr,  # [M, N] contiguous, out: x + residual; only with HAS_R
    stats_ptr,  # out: the statistics of moments.py; with GROUP [M, N / GROUP] float32, out: scales
    x_stride, r_stride, n_rows, n_cols, eps_bits,
    inv_bits,  # 1 / N
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
    FULL: tl.constexpr,  # n_cols == BLOCK
    FAST: tl.constexpr, HAS_R: tl.constexpr, GATED: tl.constexpr,
    GROUP: tl.constexpr,  # columns that share a scale; BLOCK: all; 0: y is not quantised
    HAS_W: tl.constexpr, HAS_B: tl.constexpr,
    CENTRE: tl.constexpr,  # 0: RMS norm, whose rows have no mean; 1 only with FAST
    MODEL: tl.constexpr = 0,  # y is rounded before it is gated or quantised: eager_math.py
):  # fmt: skip
    # 64-bit arithmetic for the first row alone: for each row it would be a seventh of all instructions
    first = tl.program_id(0).to(tl.int64) * ROWS
    row = tl.arange(0, ROWS)[:, None]
    n_rows -= first
    cols = tl.arange(0, BLOCK)[None, :]
    there = row < n_rows if FULL else (row < n_rows) & (cols < n_cols)
    inv, eps = float64_of(inv_bits), float64_of(eps_bits)
    x_ptr += first * x_stride
    r_ptr += first * r_stride
    y_ptr += first * n_cols
    if GATED:
        gate = tl.load(r_ptr + row.to(tl.int64) * r_stride + cols, mask=there, other=0.0)
    up = row.to(tl.float64) * 0.0 + 1.0
    mean, mean_low = up, up  # RMS norm stores neither
    if FAST:
        x = tl.load(x_ptr + row.to(tl.int64) * x_stride + cols, mask=there, other=0.0)
        # after x: a change of its layout waits for the weight, which would come before the request of x
        w = row_vector(w_ptr, n_cols, BLOCK) if HAS_W else 1.0
        b = row_vector(b_ptr, n_cols, BLOCK) if HAS_B else 0.0
        x = x.to(tl.float32)
        if CENTRE:
            d = x.to(tl.float64)
            both = tl.sum(tl.join(d, d * d), 1)
            one = (tl.arange(0, 2) == 0)[None, :]
            s1 = tl.sum(tl.where(one, both, 0.0), 1)[:, None]
            s2 = tl.sum(tl.where(one, 0.0, both), 1)[:, None]
            mean, mean_low, var = moments(s1, s2, 0.0, s1 * 0.0 + n_cols, inv)
            up, mean, mean_low, rstd = scaled_stats(mean, mean_low, tl.rsqrt(var + eps))
            d = tl.fma(x, up.to(tl.float32), -mean.to(tl.float32))
            y = tl.fma(d, rstd.to(tl.float32), (-mean_low * rstd).to(tl.float32))
            y = scale_and_shift(y, w, b, HAS_W, HAS_B)
        else:
            up, rstd = half_square(x, inv, eps, 1)
            up, rstd = up[:, None], rstd[:, None]
            y = weighted_xhat(x, tl.full((), 1.0, tl.float32), rstd, w, y_ptr, HAS_W)
    else:
        row64 = row.to(tl.int64)
        d = value_of(x_ptr + row64 * x_stride, r_ptr + row64 * r_stride, r_ptr, cols, there, HAS_R, 0)
        w = row_vector(w_ptr, n_cols, BLOCK) if HAS_W else 1.0
        b = row_vector(b_ptr, n_cols, BLOCK) if HAS_B else 0.0
        if HAS_R:
            tl.store(s_ptr + first * n_cols + row * n_cols + cols, rounded(d, s_ptr), mask=there)
        var = tl.sum(d * d, 1)[:, None] * inv
        rstd = tl.rsqrt(var + eps)
        y = scale_and_shift(d * rstd, w, b, HAS_W, HAS_B)
    if MODEL and (GATED or GROUP > 0):
        y = narrowed(y, x_ptr.dtype.element_ty)
    if GATED and MODEL:
        y *= eager_value(gate.to(tl.float32), 4)
    elif GATED:
        y = silu_times(y, gate if FAST else gate.to(tl.float32))
    if GROUP > 0:
        _store_e4m3(y, y_ptr, stats_ptr + first * tl.cdiv(n_cols, GROUP), row, n_rows, n_cols, ROWS, BLOCK, GROUP)
    else:
        tl.store(y_ptr + row * n_cols + cols, rounded(y, y_ptr), mask=there)
        store_stats(stats_ptr, first + row, up, mean, mean_low, rstd, row < n_rows, CENTRE)
        if FAST and not CENTRE:  # noqa: SIM102 (decided when the kernel is compiled)
            if tl.min(tl.min(tl.where(row < n_rows, up, 0.0), 1), 0) < 0:
                tl.debug_barrier()  # other threads stored the rows
                for k_ in range(tl.minimum(n_rows, ROWS)):
                    k = first * 0 + k_  # 64 bits
                    if tl.load(stats_ptr + (first + k) * 2) < 0:
                        forward_hard_row(
                            x_ptr + k * x_stride, r_ptr, r_ptr + k * r_stride, w_ptr, b_ptr, y_ptr + k * n_cols, s_ptr,
                            stats_ptr, first + k, n_cols, eps, inv, BLOCK=min(BLOCK, 512), HAS_R=0, HAS_I=0,
                            HAS_W=HAS_W, HAS_B=0, CENTRE=0, GATED=GATED * (1 + MODEL),
                        )  # fmt: skip


@triton.jit(do_not_specialize=["n_rows", "eps_bits"])
def backward_rows_kernel(
    dy_ptr,  # [M, N] rows of stride dy_stride
    x_ptr,  # [M, N] rows of stride x_stride
    gate_ptr,  # [M, N] rows of stride gate_stride; only with GATED
    w_ptr,  # [N] weight; only with HAS_W
    stats_ptr,  # the statistics of moments.py
    dx_ptr,  # [M, N] contiguous, out
    dgate_ptr,  # [M, N] contiguous, out; only with GATED
    part_ptr,  # [NEED_W + NEED_B, programs, N] float64, float32 with FAST, out: partial column sums
    sums_ptr,  # this and the next two only with LIGHT: [M, 2] float64, out: c1, c2 of rows computed again
    hard_ptr,  # [programs] int32, out: number of rows computed again
    suspect_ptr,  # [M] int32, out: 1 for a row to compute again
    dy_stride, x_stride, gate_stride, n_rows, n_cols, eps_bits,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
    FULL: tl.constexpr,  # n_cols == BLOCK
    FAST: tl.constexpr,  # float32 arithmetic
    GATED: tl.constexpr, HAS_W: tl.constexpr, NEED_W: tl.constexpr, NEED_B: tl.constexpr,
    AHEAD: tl.constexpr,  # AHEAD - 1 next tiles are in shared memory
    TOP: tl.constexpr,  # LIGHT: float32 is enough for rows with rstd |g| < 2^TOP
    LIFT: tl.constexpr,  # LIGHT: xhat and the partial sums of dweight are multiplied by 2^LIFT
    CENTRE: tl.constexpr = 1,  # 0: RMS norm
    MODEL: tl.constexpr = 0,
):  # fmt: skip
    """Computes dx of tiles p, p + P, ... of ROWS rows, and their column sums. A gate makes dy silu(gate) of dy.

    LIGHT (FAST without a gate): then computes again in float64 the rows that float32 does not hold.
    """
    LIGHT: tl.constexpr = FAST and not GATED
    pid = tl.program_id(0).to(tl.int64)
    programs = tl.num_programs(0)
    cols = tl.arange(0, BLOCK)[None, :]
    inside = cols < n_cols
    T: tl.constexpr = tl.float32 if FAST else tl.float64
    acc_w = tl.zeros((ROWS, BLOCK), T)
    acc_b = tl.zeros((ROWS, BLOCK), T)
    inv = (1.0 / (pid.to(tl.float64) * 0.0 + n_cols)).to(T)
    if HAS_W:
        w = row_vector(w_ptr, n_cols, BLOCK).to(T)
    # 64-bit arithmetic for the first row of a tile alone
    row = tl.arange(0, ROWS)[:, None]
    x_ptrs = x_ptr + (row.to(tl.int64) * x_stride + cols)
    dy_ptrs = dy_ptr + (row.to(tl.int64) * dy_stride + cols)
    gate_ptrs = gate_ptr + (row.to(tl.int64) * gate_stride + cols)
    seen = tl.zeros((ROWS, 1), tl.int32)
    for tile in tl.range(pid, tl.cdiv(n_rows, ROWS), programs, num_stages=AHEAD):
        first = (pid * 0 + tile) * ROWS
        inner = row < n_rows - first
        there = inner if FULL else inner & inside
        x = tl.load(x_ptrs + first * x_stride, mask=there, other=0.0).to(T)
        dy = tl.load(dy_ptrs + first * dy_stride, mask=there, other=0.0).to(T)
        up, mean, mean_low, rstd = load_stats(stats_ptr + first * (4 if CENTRE else 2), row, inner, CENTRE)
        up, mean, mean_low, rstd = up.to(T), mean.to(T), mean_low.to(T), rstd.to(T)
        at = first * n_cols + (row * n_cols + cols)
        if LIGHT:
            g = weighted(dy, w, dy_ptr, HAS_W) if HAS_W else dy
            largest = tl.max(tl.maximum(tl.abs(dy), tl.abs(g)), 1)[:, None]
            c2 = tl.sum(g * x, 1)[:, None] * inv
            b = c2 * (rstd * rstd * rstd)
            tl.store(dx_ptr + at, tl.fma(x, b * -1.0, g * rstd), mask=there)
            if NEED_W:
                acc_w = with_weight_term(acc_w, dy, x * (rstd * 2.0**LIFT), dy_ptr, HAS_W, LIFT)
            # mean is `up` as it is stored: 1, 0 for a row of zeros, another number if rstd is outside 2^-35..2^20
            held = (tl.minimum(tl.abs(c2), tl.abs(b)) >= 2.0**-100) | (largest == 0)
            held = tl.where(mean == 1, held, mean == 0)  # elsewhere x rstd 2^LIFT may be infinite, also with dy = 0
            suspect = tl.where(held & (largest * tl.maximum(rstd * 2.0**-TOP, 2.0**-40) < 1), 0, 1)
            tl.store(suspect_ptr + first + row, suspect, mask=inner)
            seen = tl.maximum(seen, suspect)
        else:
            xhat = xhat_of(x, x, up, mean, mean_low, rstd, 0, CENTRE)
            if not FULL:
                xhat = tl.where(there, xhat, 0.0)
            if GATED:
                gate = tl.load(gate_ptrs + first * gate_stride, mask=there, other=0.0)
                if MODEL:
                    y = narrowed(xhat, gate.dtype)
                    if HAS_W:
                        y = narrowed(scale_and_shift(y, w, 0.0, HAS_W, 0), gate.dtype)
                    gate32 = gate.to(tl.float32)
                    dgate = eager_times_slope(dy * y, gate32, 4)
                    dy = narrowed(dy * eager_value(gate32, 4), gate.dtype)
                else:
                    y = scale_and_shift(xhat, w, 0.0, HAS_W, 0) if HAS_W else xhat
                    dy, dgate = silu_gradients(dy, y, gate if FAST else gate.to(tl.float32))
                tl.store(dgate_ptr + at, rounded(dgate, dgate_ptr), mask=there)
            if NEED_W:
                acc_w = with_weight_term(acc_w, dy, xhat, dy_ptr, HAS_W)
            if NEED_B:
                acc_b += dy
            g = weighted(dy, w, dy_ptr, HAS_W) if HAS_W else dy
            c1 = tl.sum(g, 1)[:, None] if CENTRE else inv  # one reduction of both as in the forward kernel spills 70 KB
            c2 = tl.sum(g * xhat, 1)[:, None]
            xhat, g = one_column(xhat, g, c1 * inv, BLOCK == 1, CENTRE)
            dx = tl.fma(xhat, c2 * (inv * -1.0), g) * (rstd * up)
            tl.store(dx_ptr + at, rounded(dx, dx_ptr), mask=there)
    at = part_ptr + pid * n_cols + tl.arange(0, BLOCK)
    mask = tl.arange(0, BLOCK) < n_cols
    if NEED_W:
        tl.store(at, tl.sum(acc_w, 0), mask=mask)
    if NEED_B:
        tl.store(at + NEED_W * programs.to(tl.int64) * n_cols, tl.sum(acc_b, 0), mask=mask)
    if LIGHT:
        redo_rows(
            dy_ptr, dy_ptr, x_ptr, x_ptr, x_ptr, w_ptr, stats_ptr, sums_ptr, hard_ptr, suspect_ptr, dx_ptr, dx_ptr,
            dy_stride, dy_stride, x_stride, x_stride, n_rows, n_cols, eps_bits, tl.max(tl.max(seen, 1), 0),
            MARKED=0, BLOCK=BLOCK, HAS_R=0, HAS_I=0, HAS_W=HAS_W, HAS_DS=0, HAS_DR=0, CENTRE=CENTRE, TILE=ROWS,
        )  # fmt: skip
