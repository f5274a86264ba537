"""The backward kernel for float32 rows of 4,097 to 8,192 columns: PAIRED.

The float64 intermediates of such rows do not fit into the registers of a multiprocessor. c1 and c2 come from float64
sums. With d = v - mean_high, g + g_low = dy weight exactly and, as float32 pairs, r = rstd, B = rstd^2 c2 and
C = B mean_low - rstd c1,

    dx = g r + (-d B + (C + low)),      low = all products with a low part

Rounding points, in the units of backward.py: d (1 ULP of the xhat term), C + low, the inner and the outer FMA (1/2
each, not all at once): below 2, 0.53 measured on random data. dbias is summed in float64. dweight is summed in float32
over at most 64 rows, then in float64: 0.1 on random data, at worst 16, if all 64 rows are the same. dweight uses
2^64 xhat, which is not subnormal if a large dy brings it back into range. Of FEW rows the rounding of xhat would show
in dweight (2 ULP): their xhat and sums are float64. dx is the same, so a row's dx depends on no number of rows.

Rows that float32 may not hold are computed again (hard_rows.py): |dy| or |g| >= 2^40, rstd >= 2^24, c1 and c2 both
below 2^-60, (|c1| + |c2|) min(1, rstd^2) below 2^-100, or rstd^2 (|c1| + |c2|) beyond 2^120. In RMS norm, also rows
with rstd < 2^-40.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .hard_rows import redo_rows
from .moments import load_stats, scaled_stats, sums


@triton.jit(do_not_specialize=["n_rows", "eps_bits"])
def backward_paired_kernel(
    dy_ptr,  # [M, N] float32, as all of this kernel's operands; rows of stride dy_stride
    x_ptr,  # [M, N] rows of stride x_stride
    w_ptr,  # [N] weight; only with HAS_W
    stats_ptr,  # the statistics of moments.py
    dx_ptr,  # [M, N] contiguous, out
    part_ptr,  # [NEED_W + NEED_B, programs, N] float64, out
    sums_ptr,  # [M, 3] float64, out: c1, c2 of redone rows
    hard_ptr,  # [programs] int32, out: number of rows redone
    suspect_ptr,  # [M] int32, out, as in backward_kernel
    dy_stride, x_stride, n_rows, n_cols, eps_bits,
    BLOCK: tl.constexpr,  # columns of each of the PARTS
    PARTS: tl.constexpr,
    FULL: tl.constexpr,  # n_cols == BLOCK * PARTS
    HAS_W: tl.constexpr, NEED_W: tl.constexpr, NEED_B: tl.constexpr,
    FEW: tl.constexpr,  # dweight is computed in float64
    AHEAD: tl.constexpr,  # AHEAD - 1 next rows are in shared memory
    CENTRE: tl.constexpr = 1,  # 0: RMS norm
):  # fmt: skip
    """Computes what backward_kernel does, for long float32 rows: float32 pairs only for values that need them.

    The row lives in PARTS blocks, processed one after the other, so that few temporaries are alive. weight stays in
    registers.
    """
    pid = tl.program_id(0).to(tl.int64)
    programs = tl.num_programs(0)
    cols = tl.arange(0, BLOCK)
    F: tl.constexpr = tl.float32
    D: tl.constexpr = tl.float64
    LIFT: tl.constexpr = 64
    every = tl.full((BLOCK,), True, tl.int1)
    inv = 1.0 / (pid.to(D) * 0.0 + n_cols)
    acc_w = ()
    acc_b = ()
    w_row = ()
    for k in tl.static_range(PARTS):
        acc_w = acc_w + (tl.zeros((BLOCK,), D if FEW else F),)
        acc_b = acc_b + (tl.zeros((BLOCK,), D),)
        if HAS_W:
            mask = every if FULL else cols + k * BLOCK < n_cols
            w_row = w_row + (tl.load(w_ptr + cols + k * BLOCK, mask=mask, other=0.0),)
    up_n, mean_n, low_n, rstd_n = load_stats(stats_ptr, pid, pid < n_rows, CENTRE)
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
        up64, mean64, low64, rstd = scaled_stats(mean_n if CENTRE else low_n, low_n, rstd_n)
        up = up64.to(F)
        mean = mean64.to(F)
        r = rstd.to(F)
        r_low = (rstd - r.to(D)).to(F)
        shift = (-low64 * rstd).to(F)
        nxt = row + programs
        up_n, mean_n, low_n, rstd_n = load_stats(stats_ptr, nxt, nxt < n_rows, CENTRE)
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
            if FEW:
                xhat = ((x_raw[k].to(D) * up64 - mean64) - low64) * (rstd * 2.0**LIFT)
            else:
                xhat = tl.fma(d, r * 2.0**LIFT, tl.fma(d, r_low * 2.0**LIFT, shift * 2.0**LIFT))
            new_w = new_w + (tl.fma(g.to(xhat.dtype), xhat, acc_w[k]),)
            new_b = new_b + (acc_b[k] + g.to(D),)
            g *= 2.0**88  # overflows where |dy| or |g| reaches 2^40: s1 is inf or NaN
            if HAS_W:
                g *= w_row[k]
            s1 += g.to(D)
            s2 = tl.fma(g.to(D), d.to(D), s2)
        acc_w = new_w
        acc_b = new_b
        s1, s2 = sums(s1, s2)
        s1 *= 2.0**-88
        s2 *= 2.0**-88
        b = (s2 - low64 * s1) * (rstd * rstd * rstd * inv)
        c = b * low64 - s1 * (inv * rstd) if CENTRE else low64
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
        # (Decided here, where nothing waits for it.) b d may be of ordinary size if b is not.
        # With |g| < 2^40, rstd < 2^24 gives rstd |g| < 2^116.
        size = (tl.abs(s1) + tl.abs(s2) * rstd) * inv
        usual = (size * tl.minimum(rstd * rstd, 1.0) >= 2.0**-100) & (size >= 2.0**-60) & (size < 2.0**120)
        usual = usual & (size * rstd * rstd < 2.0**120) & (rstd * up64 < 2.0**24)
        if not CENTRE:  # without c1, both parts of b must be normal numbers
            usual = usual & ((tl.abs(b) >= 2.0**-76) | (b == 0)) & (up64 == 1)
        suspect = tl.where(usual, 0, 1)
        suspect = tl.where(size == 0, suspect * 2, suspect)
        tl.store(suspect_ptr + row, suspect)
        seen = tl.maximum(seen, suspect)
    size = programs.to(tl.int64) * n_cols
    for k in tl.static_range(PARTS):
        mask = every if FULL else cols + k * BLOCK < n_cols
        out = part_ptr + pid * n_cols + cols + k * BLOCK
        if NEED_W:
            tl.store(out, acc_w[k].to(D) * 2.0**-LIFT, mask=mask)
        if NEED_B:
            tl.store(out + NEED_W * size, acc_b[k], mask=mask)
    redo_rows(
        dy_ptr, dy_ptr, x_ptr, x_ptr, x_ptr, w_ptr, stats_ptr, sums_ptr, hard_ptr, suspect_ptr, dx_ptr, dx_ptr,
        dy_stride, dy_stride, x_stride, x_stride, n_rows, n_cols, eps_bits, seen, MARKED=0, BLOCK=512,
        HAS_R=0, HAS_I=0, HAS_W=HAS_W, HAS_DS=0, HAS_DR=0, CENTRE=CENTRE,
    )  # fmt: skip
