"""Hard rows: rows that the fast arithmetic cannot hold, computed again in float64 pairs, block by block.

Forward: marked rows (moments.py), float32 rows with a sum next to their mean (is_near), and rows of 16-bit sums with
|mean| rstd > 2^14 or a sum that leaves float32.

Backward: marked rows, and suspect rows: backward.py (FAST) and backward_paired.py find that one of their terms may
leave float32. A suspect row with dy = 0 is skipped: sums of zeros are right. Large sums of many small terms are
suspect too; their result stays right and takes longer.

The roundings are WIDE's (forward_blocks.py, backward.py). columns_kernel computes the column sums again of each
program that had a hard row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..arithmetic import float64_of, narrowed
from ..eager_math import eager_value
from ..silu_math import silu_times
from .moments import (
    is_outlier,
    load_stats,
    moments,
    one_column,
    scaled_stats,
    store_stats,
    sums,
    xhat_of,
)
from .operands import affine, of_sum, rounded, value_pair, weighted


@triton.jit
def moments_around(
    mean, mean_low, x_ptr, r_ptr, i_ptr, n_cols, n, inv, BLOCK: tl.constexpr, HAS_R: tl.constexpr, HAS_I: tl.constexpr
):  # fmt: skip
    """Returns the mean (a pair) and variance of a row from sums around a pair close to its mean, block by block."""
    acc1 = tl.zeros((BLOCK,), tl.float64)
    acc2 = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        v, low = value_pair(x_ptr, r_ptr, i_ptr, cols, cols < n_cols, HAS_R, HAS_I)
        d = tl.where(cols < n_cols, (v - mean) + (low - mean_low), 0.0)
        acc1 += d
        acc2 = tl.fma(d, d, acc2)
    s1, s2 = sums(acc1, acc2)
    mean, rest, var = moments(s1, s2, mean, n, inv)
    return mean, mean_low + rest, var


@triton.jit
def forward_hard_row(
    x_ptr, i_ptr, r_ptr, w_ptr, b_ptr, y_ptr, s_ptr, stats_ptr, row, n_cols, eps, inv,
    BLOCK: tl.constexpr, HAS_R: tl.constexpr, HAS_I: tl.constexpr, HAS_W: tl.constexpr, HAS_B: tl.constexpr,
    CENTRE: tl.constexpr = 1, GATED: tl.constexpr = 0,
):  # fmt: skip
    """Computes one row in float64 pairs, block by block. All pointers but stats_ptr point to the row; r_ptr to the gate
    if GATED, which is 2 if y and silu are rounded as in the eager layer.
    """
    n = inv * 0.0 + n_cols
    acc1 = tl.zeros((BLOCK,), tl.float64)
    acc2 = tl.zeros((BLOCK,), tl.float64)
    if CENTRE:
        shift, shift_low = value_pair(x_ptr, r_ptr, i_ptr, 0, True, HAS_R, HAS_I)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        v, low = value_pair(x_ptr, r_ptr, i_ptr, cols, cols < n_cols, HAS_R, HAS_I)
        d = tl.where(cols < n_cols, (v - shift) + (low - shift_low) if CENTRE else v, 0.0)
        acc1 += d
        acc2 = tl.fma(d, d, acc2)
    if CENTRE:
        s1, s2 = sums(acc1, acc2)
        mean, mean_low, var = moments(s1, s2, shift, n, inv)
        mean_low += shift_low
        if is_outlier(shift, mean, var):
            mean, mean_low, var = moments_around(
                mean, mean_low, x_ptr, r_ptr, i_ptr, n_cols, n, inv, BLOCK, HAS_R, HAS_I
            )
    else:
        mean, mean_low, var = inv * 0.0, inv * 0.0, tl.sum(acc2, 0) * inv
    rstd = tl.rsqrt(var + eps)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        v, low = value_pair(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R, HAS_I)
        y = ((v - mean) + (low - mean_low)) * rstd if CENTRE else v * rstd
        y = affine(y, w_ptr, b_ptr, cols, mask, HAS_W, HAS_B)
        if GATED == 2:
            gate = tl.load(r_ptr + cols, mask=mask, other=0.0)
            y = narrowed(y.to(tl.float32), gate.dtype) * eager_value(gate.to(tl.float32), 4)
        elif GATED:
            y = silu_times(y.to(tl.float32), tl.load(r_ptr + cols, mask=mask, other=0.0))
        tl.store(y_ptr + cols, rounded(y, y_ptr), mask=mask)
        if HAS_R:
            tl.store(s_ptr + cols, rounded(v, s_ptr), mask=mask)
    if CENTRE:  # marked. The mean may not fit in float32; the backward pass finds these rows hard too.
        store_stats(stats_ptr, row, 0.5, mean * 0.5, mean_low * 0.5, rstd * 2.0, True, 1)
    else:
        up, mean, mean_low, rstd = scaled_stats(mean, mean_low, rstd)
        mark = tl.where((up == 1) & (var > 0), 0.5, 1.0)
        up = tl.where((var == 0) & (up == 1), 0.0, up * mark)
        store_stats(stats_ptr, row, up, mean, mean_low, rstd / mark, True, 0)


@triton.jit
def _backward_hard_row(
    dy_ptr, ds_ptr, x_ptr, r_ptr, i_ptr, w_ptr, stats_ptr, row, sums_ptr, dx_ptr, dr_ptr, n_cols, eps,
    BLOCK: tl.constexpr, HAS_R: tl.constexpr, HAS_I: tl.constexpr, HAS_W: tl.constexpr,
    HAS_DS: tl.constexpr, HAS_DR: tl.constexpr, CENTRE: tl.constexpr = 1,
):  # fmt: skip
    """Computes dx, c1 and c2 of one row in float64, block by block. All pointers but stats_ptr point to the row."""
    up, mean, mean_low, rstd = load_stats(stats_ptr, row, True, CENTRE)
    if not CENTRE:  # the stored rstd is float32's: too coarse if g cancels xhat c2
        squares = tl.zeros((BLOCK,), tl.float64)
        for start in range(0, n_cols, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            v, low = value_pair(x_ptr, r_ptr, i_ptr, cols, cols < n_cols, HAS_R, HAS_I)
            squares = tl.fma(v, v, squares)
        up = tl.full((), 1.0, tl.float64)
        rstd = tl.rsqrt(tl.sum(squares, 0) / (up * n_cols) + eps)
    acc1 = tl.zeros((BLOCK,), tl.float64)
    acc2 = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        v, low = value_pair(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R, HAS_I)
        g = tl.load(dy_ptr + cols, mask=mask, other=0.0).to(tl.float64)
        if HAS_W:
            g = weighted(g, tl.load(w_ptr + cols, mask=mask, other=0.0), dy_ptr, HAS_W)
        xhat = tl.where(mask, xhat_of(v, low, up, mean, mean_low, rstd, 1, CENTRE), 0.0)
        acc1 += g
        acc2 = tl.fma(g, xhat, acc2)
    c1, c2 = sums(acc1, acc2)
    n = up * 0.0 + n_cols
    c1 /= n
    c2 /= n
    tl.store(sums_ptr, c1)
    tl.store(sums_ptr + 1, c2)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        v, low = value_pair(x_ptr, r_ptr, i_ptr, cols, mask, HAS_R, HAS_I)
        g = tl.load(dy_ptr + cols, mask=mask, other=0.0).to(tl.float64)
        if HAS_W:
            g = weighted(g, tl.load(w_ptr + cols, mask=mask, other=0.0), dy_ptr, HAS_W)
        xhat = xhat_of(v, low, up, mean, mean_low, rstd, 1, CENTRE)
        xhat, g = one_column(xhat, g, c1, BLOCK == 1, CENTRE)
        dx = of_sum((tl.fma(-xhat, c2, g) * rstd) * up, dx_ptr, HAS_R)
        if HAS_DS:
            dx += tl.load(ds_ptr + cols, mask=mask, other=0.0).to(tl.float64)
        tl.store(dx_ptr + cols, rounded(dx, dx_ptr), mask=mask)
        if HAS_DR:
            tl.store(dr_ptr + cols, rounded(dx, dr_ptr), mask=mask)


@triton.jit
def _is_hard(dy_ptr, stats_ptr, suspect_ptr, n_cols, MARKED: tl.constexpr, BLOCK: tl.constexpr):
    """True if a row must be computed again: a marked one, or a suspect one unless only dy = 0 made it suspect."""
    if MARKED:
        hard = (tl.load(stats_ptr) != 1).to(tl.int32)
    else:
        hard = tl.load(suspect_ptr)
    if hard == 2:  # if all terms are 0, the sums of 0 are right
        top = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, n_cols, BLOCK):
            cols = first + tl.arange(0, BLOCK)
            dy = tl.load(dy_ptr + cols, mask=cols < n_cols, other=0.0)
            top = tl.maximum(top, tl.abs(dy.to(tl.float32)))
        hard = (tl.max(top, 0) > 0).to(tl.int32)
    return hard


@triton.jit
def redo_rows(
    dy_ptr, ds_ptr, x_ptr, r_ptr, i_ptr, w_ptr, stats_ptr, sums_ptr, hard_ptr, suspect_ptr, dx_ptr, dr_ptr,
    dy_stride, ds_stride, x_stride, r_stride, n_rows, n_cols, eps_bits, seen,
    MARKED: tl.constexpr, BLOCK: tl.constexpr, HAS_R: tl.constexpr, HAS_I: tl.constexpr, HAS_W: tl.constexpr,
    HAS_DS: tl.constexpr, HAS_DR: tl.constexpr, CENTRE: tl.constexpr = 1, TILE: tl.constexpr = 1,
):  # fmt: skip
    """Computes dx, c1 and c2 of this program's hard rows in float64 pairs, and stores how many there are.

    Args:
        seen: 0 if none of its rows can be hard
        TILE: the program has the rows of tiles p, p + P, ..., of so many rows each
    """
    pid = tl.program_id(0).to(tl.int64)
    programs = tl.num_programs(0)
    redone = programs * 0
    if seen > 0:
        tl.debug_barrier()  # other threads stored the data that is read and overwritten here
        for k in range(tl.cdiv(n_rows - pid * TILE, programs * TILE) * TILE):
            row = (pid + k // TILE * programs) * TILE + k % TILE
            hard = programs * 0
            if row < n_rows:
                hard = _is_hard(
                    dy_ptr + row * dy_stride, stats_ptr + row * 4, suspect_ptr + row, n_cols, MARKED=MARKED, BLOCK=BLOCK
                )
            if hard > 0:
                redone += 1
                _backward_hard_row(
                    dy_ptr + row * dy_stride, ds_ptr + row * ds_stride, x_ptr + row * x_stride,
                    r_ptr + row * r_stride, i_ptr, w_ptr, stats_ptr, row, sums_ptr + row * 2,
                    dx_ptr + row * n_cols, dr_ptr + row * n_cols, n_cols, float64_of(eps_bits),
                    BLOCK=BLOCK, HAS_R=HAS_R, HAS_I=HAS_I, HAS_W=HAS_W, HAS_DS=HAS_DS, HAS_DR=HAS_DR, CENTRE=CENTRE,
                )  # fmt: skip
    tl.store(hard_ptr + pid, redone)


@triton.jit(do_not_specialize=["n_rows"])
def marked_rows_kernel(
    dy_ptr, ds_ptr, x_ptr, r_ptr, i_ptr, w_ptr, stats_ptr, sums_ptr, hard_ptr, dx_ptr, dr_ptr,
    dy_stride, ds_stride, x_stride, r_stride, n_rows, programs, n_cols,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
    HAS_R: tl.constexpr, HAS_I: tl.constexpr, HAS_W: tl.constexpr, HAS_DS: tl.constexpr, HAS_DR: tl.constexpr,
):  # fmt: skip
    """Does the work of redo_rows for marked rows if several programs share a row. hard_ptr must hold zeros."""
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
                    r_ptr + row * r_stride, i_ptr, w_ptr, stats_ptr, row, sums_ptr + row * 2,
                    dx_ptr + row * n_cols, dr_ptr + row * n_cols, n_cols, 0.0,
                    BLOCK=BLOCK, HAS_R=HAS_R, HAS_I=HAS_I, HAS_W=HAS_W, HAS_DS=HAS_DS, HAS_DR=HAS_DR,
                )  # fmt: skip
