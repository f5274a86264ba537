"""Column sums (dweight, dbias, dinput_bias) from the partial sums of the backward kernels' programs.

Each of a fixed number of programs sums the columns over its own rows. columns_kernel adds these partial sums in
float64, in a fixed order. Float64 sums over all of a program's rows replace its partial sums if one of its rows was
hard.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.layer_norm.moments import load_stats, xhat_of
from kernels.layer_norm.operands import rounded, value_pair


@triton.jit
def _hard_columns(
    dy_ptr, ds_ptr, x_ptr, r_ptr, i_ptr, w_ptr, stats_ptr, sums_ptr, hard_ptr,
    dy_stride, ds_stride, x_stride, r_stride, n_rows, programs, columns, n_cols, which, all_rows,
    HAS_R: tl.constexpr, HAS_I: tl.constexpr, HAS_W: tl.constexpr, HAS_DS: tl.constexpr,
    NEED_W: tl.constexpr, NEED_B: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, CENTRE: tl.constexpr,
):  # fmt: skip
    """Returns the sum number `which` of these columns over all rows of programs with hard rows, or all rows if
    all_rows.
    """
    cols = columns[None, :]
    acc = tl.zeros((ROWS, BLOCK), tl.float64)
    for start in range(0, n_rows, ROWS):
        r = start + tl.arange(0, ROWS)[:, None].to(tl.int64)
        hard = tl.where(r < n_rows, tl.load(hard_ptr + r % programs, mask=r < n_rows, other=0) + all_rows, 0)
        if tl.max(tl.max(hard, 1), 0) > 0:
            here = hard > 0
            mask = here & (cols < n_cols)
            term = tl.load(dy_ptr + r * dy_stride + cols, mask=mask, other=0.0).to(tl.float64)
            v, low = value_pair(x_ptr + r * x_stride, r_ptr + r * r_stride, i_ptr + r * 0, cols, mask, HAS_R, HAS_I)
            up, mean, mean_low, rstd = load_stats(stats_ptr + r * 4, here)
            xhat = xhat_of(v, low, up, mean, mean_low, rstd, 1, CENTRE)
            several = (up * 0.0 + n_cols > 1).to(tl.float64)
            if CENTRE:
                xhat *= several  # as in one_column; NaN stays
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
def columns_kernel(
    part_ptr,  # [K, programs, N]
    dw_ptr,  # [N] out; only with NEED_W
    db_ptr,  # [N] out; only with NEED_B
    di_ptr,  # [N] out; only with NEED_I
    dy_ptr,  # this and all below only with REDO: [M, N] rows of stride dy_stride
    ds_ptr,  # [M, N] rows of stride ds_stride: upstream gradient of s; only with HAS_DS
    x_ptr,  # [M, N] rows of stride x_stride
    r_ptr,  # [M, N] residual, rows of stride r_stride; only with HAS_R
    i_ptr,  # [N] input bias; only with HAS_I
    w_ptr,  # [N] weight; only with HAS_W
    stats_ptr,  # [M, 4] float64: the statistics of moments.py
    sums_ptr,  # [M, 2] float64: c1, c2
    hard_ptr,  # [programs] int32: number of rows redone
    dy_stride,
    ds_stride,
    x_stride,
    r_stride,
    n_rows,
    programs,
    n_cols,
    REDO: tl.constexpr,
    FLOAT16: tl.constexpr,  # REDO: float16 pass, so large partial sums are redone
    LIFT: tl.constexpr,  # the partial sums of dweight are multiplied by 2^LIFT
    HAS_R: tl.constexpr,
    HAS_I: tl.constexpr,
    HAS_W: tl.constexpr,
    HAS_DS: tl.constexpr,
    NEED_W: tl.constexpr,
    NEED_B: tl.constexpr,
    NEED_I: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    CENTRE: tl.constexpr = 1,
):
    """Adds the partial column sums in float64, in a fixed order.

    REDO: sums of programs with hard rows are computed again. FLOAT16: a whole block is computed again if the magnitudes
    of a column's partial sums add up to 2^17 or more. float16's ulp does not grow above 2^15, so the float32 error of
    larger sums shows if they cancel. Rows that cancel within one program (up to 1,024 rows) are not detected.
    """
    which = tl.program_id(1)
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rows = tl.arange(0, ROWS)[:, None].to(tl.int64)
    # (In nested conditions the outer one is decided when the kernel is compiled.)
    acc = tl.zeros((ROWS, BLOCK), tl.float64)
    size = tl.zeros((ROWS, BLOCK), tl.float32)  # sums of magnitudes, in half the registers
    hard = tl.zeros((ROWS, 1), tl.int32)
    part_ptr += which.to(tl.int64) * programs * n_cols
    for start in range(0, programs, ROWS):
        r = rows + start
        mask = (cols < n_cols)[None, :] & (r < programs)
        part = tl.load(part_ptr + r * n_cols + cols[None, :], mask=mask, other=0.0)
        acc += part.to(tl.float64)
        if REDO:
            hard = tl.maximum(hard, tl.load(hard_ptr + r, mask=r < programs, other=0))
        if FLOAT16:
            size += tl.abs(part).to(tl.float32)
    down = tl.where(which < NEED_W, tl.full((), 2.0**-LIFT, tl.float64), 1.0)
    total = tl.sum(acc, 0) * down
    if REDO:
        large = which * 0
        if FLOAT16:
            large = (tl.max(tl.sum(size, 0), 0) * down >= 2.0**17).to(tl.int32)
        if tl.max(tl.max(hard, 1), 0) + large > 0:
            acc = tl.zeros((ROWS, BLOCK), tl.float64)
            for start in range(0, programs, ROWS):
                r = rows + start
                mask = (cols < n_cols)[None, :] & (r < programs)
                mask = mask & (tl.load(hard_ptr + r, mask=r < programs, other=0) + large == 0)
                acc += tl.load(part_ptr + r * n_cols + cols[None, :], mask=mask, other=0.0).to(tl.float64)
            total = tl.sum(acc, 0) * down + _hard_columns(
                dy_ptr, ds_ptr, x_ptr, r_ptr, i_ptr, w_ptr, stats_ptr, sums_ptr, hard_ptr,
                dy_stride, ds_stride, x_stride, r_stride, n_rows, programs, cols, n_cols, which, large,
                HAS_R, HAS_I, HAS_W, HAS_DS, NEED_W, NEED_B, ROWS=16, BLOCK=BLOCK, CENTRE=CENTRE,
            )  # fmt: skip
    if NEED_W:  # noqa: SIM102
        if which == 0:
            tl.store(dw_ptr + cols, rounded(total, dw_ptr), mask=cols < n_cols)
    if NEED_B:  # noqa: SIM102
        if which == NEED_W:
            tl.store(db_ptr + cols, rounded(total, db_ptr), mask=cols < n_cols)
    if NEED_I:  # noqa: SIM102
        if which == NEED_W + NEED_B:
            tl.store(di_ptr + cols, rounded(total, di_ptr), mask=cols < n_cols)
