"""The backward kernels: dx of a row, and column sums, EXACT, WIDE or FAST.

Rounding points, in ULP of rstd (|g| + mean|g| + |xhat| mean|g xhat|) for dx, of sum|dy xhat| for dweight, and of
sum|dy| for dbias:

- EXACT and WIDE: float64 throughout, one rounding at the output; column sums in float64. EXACT computes dx of marked
  rows again from pairs, and the column sums of each program that had a marked row.
- One column: xhat = g - c1 = 0 in every path, NaN if the row is not finite. So dx = ds.
- FAST (rows and vectors of 16 bits, up to 8,192 columns): float32 throughout, far below a 16-bit ULP. A float32 column
  sum adds at most 1,024 rows; float64 adds these sums. xhat is multiplied by 2^64, so it is not subnormal if a large dy
  brings it back into range. float32 is not enough if terms leave its range, or if they are so large that the output's
  ulp no longer grows with them. Such rows are computed again in float64 (hard_rows.py): rstd |g| >= 2^17 (float16) or
  2^116 (bfloat16), |dy| or |g| >= 2^40, both sums below 2^-60, or hard in the forward pass. The kernel detects them by
  their sums: it scales one sum by a power of two at which it overflows for such a row.
- FAST RMS norm: no c1 is subtracted, and an xhat may be far below 1. So dx = g rstd - v b with b = rstd^3 sum(g v) / N.
  Only the last sum and products can underflow, at the size of dx. Eight roundings of 2^-24: g, rstd, their product,
  rstd^3, b, 1 / N, the sum over the row, the fused one. Rows are computed again by the other conditions above, if |b|
  is outside 2^-100..2^120 or |sum(g v)| / N < 2^-100 (unless all v are 0), and if rstd is outside 2^-40..2^40, because
  float32 cannot hold both v and v up.

Rows of more than 4,096 columns (FAST: 8,192), and all WIDE rows, are processed in blocks of columns. row_sums_kernel
computes their c1 and c2 first.

Memory: rows that fit into registers are loaded and stored once. The next rows are loaded into shared memory or
registers while the present row is reduced (AHEAD). Longer rows are read twice, from L2 if they fit there.

Column sums (dweight, dbias, dinput_bias): each of a fixed number of programs sums the columns over its own rows.
columns_kernel adds these partial sums in float64, in a fixed order. Float64 sums over all of a program's rows replace
its partial sums if one of its rows was hard.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..arithmetic import exponent, power_of_two, power_of_two_32
from .hard_rows import redo_rows
from .moments import FAR, lifted_xhat, load_stats, one_column, sums, xhat_of
from .operands import (
    factor,
    half_pair,
    of_sum,
    pair_from_first,
    rounded,
    summed,
    value_pair,
    weighted,
    with_weight_term,
)


@triton.jit
def row_sums_kernel(
    dy_ptr,  # [M, N] rows of stride dy_stride
    x_ptr,  # [M, N] rows of stride x_stride
    r_ptr,  # [M, N] residual, rows of stride r_stride; only with HAS_R
    i_ptr,  # [N] input bias; only with HAS_I
    w_ptr,  # [N] weight; only with HAS_W
    stats_ptr,  # the statistics of moments.py
    sums_ptr,  # [M, 2] float64, out: c1, c2; then, if WIDE, [M]: the power of two that multiplies them
    dy_stride, x_stride, r_stride, n_cols,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    HAS_R: tl.constexpr, HAS_I: tl.constexpr, HAS_W: tl.constexpr,
    CENTRE: tl.constexpr = 1,  # 0: RMS norm, whose c1 is 0
):  # fmt: skip
    """Computes c1 and c2 of one row per program, block by block.

    WIDE: the sums of a row with small gradients are stored times 2^512, because a large rstd would magnify the rounding
    of subnormal numbers. RMS norm: c2 is stored times 2^712, because xhat may be subnormal next to large ones.
    """
    row = tl.program_id(0).to(tl.int64)
    up, mean, mean_low, rstd = load_stats(stats_ptr, row, True, CENTRE)
    acc1 = tl.zeros((BLOCK,), tl.float64)
    acc2 = tl.zeros((BLOCK,), tl.float64)
    lifted1 = tl.zeros((BLOCK,), tl.float64)
    lifted2 = tl.zeros((BLOCK,), tl.float64)
    top = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        if WIDE and CENTRE:
            of_x, of_r = x_ptr + row * x_stride, r_ptr + row * r_stride
            v, low = pair_from_first(of_x, of_r, i_ptr, cols, mask, up, HAS_R, HAS_I)
        else:
            v, low = value_pair(x_ptr + row * x_stride, r_ptr + row * r_stride, i_ptr, cols, mask, HAS_R, HAS_I)
        dy = tl.load(dy_ptr + row * dy_stride + cols, mask=mask, other=0.0).to(tl.float64)
        g = dy
        if HAS_W:
            w = tl.load(w_ptr + cols, mask=mask, other=0.0)
            g = weighted(dy, w, dy_ptr, HAS_W)
        if WIDE and not CENTRE:
            lifted_x = tl.where(mask, lifted_xhat(v, up, rstd), 0.0)
            xhat = lifted_x * 2.0**-200
        else:
            xhat = tl.where(mask, xhat_of(v, low, 1.0 if WIDE else up, mean, mean_low, rstd, WIDE, CENTRE), 0.0)
            lifted_x = xhat
        acc1 += g
        acc2 = tl.fma(g, xhat, acc2)
        if WIDE:
            lifted = (g if HAS_W == 2 else dy) * 2.0**512
            if HAS_W == 1 or HAS_W == 3:
                lifted *= factor(w, lifted, HAS_W)
            top = tl.maximum(top, tl.abs(lifted))
            lifted1 += lifted
            lifted2 = tl.fma(lifted, lifted_x, lifted2)
    s1, s2 = sums(acc1, acc2)
    if WIDE:
        LARGEST: tl.constexpr = 2.0**112 if CENTRE else 2.0**602  # 2^912 |g xhat| is finite for N < 2^40
        small = (tl.max(top, 0) < LARGEST) & (up >= 2.0**-500)  # 2^-512 up is exact
        l1, l2 = sums(lifted1, lifted2)
        s1 = tl.where(small, l1, s1)
        s2 = tl.where(small, l2, s2)
        rows = row * 0 + tl.num_programs(0)
        tl.store(sums_ptr + rows * 2 + row, power_of_two(tl.where(small, row * 0 + 512, 0)))
    n = row.to(tl.float64) * 0.0 + n_cols
    tl.store(sums_ptr + row * 2, s1 / n)
    tl.store(sums_ptr + row * 2 + 1, s2 / n)


@triton.jit
def _read(
    dy_ptr, ds_ptr, x_ptr, r_ptr, dy_stride, ds_stride, x_stride, r_stride, row, cols, mask,
    HAS_R: tl.constexpr, HAS_DS: tl.constexpr,
):  # fmt: skip
    """Returns x, dy, residual and ds of a row, with x and dy for those that are absent."""
    x = tl.load(x_ptr + row * x_stride + cols, mask=mask, other=0.0)
    dy = tl.load(dy_ptr + row * dy_stride + cols, mask=mask, other=0.0)
    r = tl.load(r_ptr + row * r_stride + cols, mask=mask, other=0.0) if HAS_R else x
    ds = tl.load(ds_ptr + row * ds_stride + cols, mask=mask, other=0.0) if HAS_DS else dy
    return x, dy, r, ds


@triton.jit(do_not_specialize=["n_rows", "eps_bits"])
def backward_kernel(
    dy_ptr,  # [M, N] rows of stride dy_stride
    ds_ptr,  # [M, N] rows of stride ds_stride: upstream gradient of s
    x_ptr,  # [M, N] rows of stride x_stride
    r_ptr,  # [M, N] residual, rows of stride r_stride; only with HAS_R
    i_ptr,  # [N] input bias; only with HAS_I
    w_ptr,  # [N] weight; only with HAS_W
    stats_ptr,  # the statistics of moments.py
    sums_ptr,  # as row_sums_kernel stores it; if WHOLE: [M, 2], out, with NEED_I
    hard_ptr,  # REDO: [programs] int32, out: number of rows redone
    suspect_ptr,  # FAST: [M] int32, out: 0; 1 for a row to redo; 2 for a row to redo unless dy = 0
    dx_ptr,  # [M, N] contiguous, out, in x's dtype
    dr_ptr,  # [M, N] contiguous, out, in the residual's dtype
    part_ptr,  # [NEED_W + NEED_B + NEED_I, programs, N] out: partial column sums
    dy_stride, ds_stride, x_stride, r_stride, n_rows, n_cols, eps_bits,
    BLOCK: tl.constexpr,
    FULL: tl.constexpr,
    WHOLE: tl.constexpr,  # a block holds the whole row, so this kernel computes c1 and c2
    FAST: tl.constexpr,
    WIDE: tl.constexpr,
    TOP: tl.constexpr,  # FAST: float32 is enough for rows with rstd |g| < 2^TOP
    HAS_R: tl.constexpr, HAS_I: tl.constexpr, HAS_W: tl.constexpr, HAS_DS: tl.constexpr, HAS_DR: tl.constexpr,
    NEED_W: tl.constexpr, NEED_B: tl.constexpr, NEED_I: tl.constexpr,
    REDO: tl.constexpr,  # this kernel redoes hard rows: FAST or marked rows, all columns in one block
    AHEAD: tl.constexpr,  # next rows in flight: 0 none, 1 one in registers, k > 1: k - 1 in shared memory
    CENTRE: tl.constexpr = 1,  # 0: RMS norm
    LIFT: tl.constexpr = 0,  # FAST: xhat and the partial sums of dweight are multiplied by 2^LIFT
):  # fmt: skip
    """Computes dx of rows p, p + P, p + 2P, ... in one block of columns, and their column sums.

    REDO: then computes hard rows again, in float64 pairs. columns_kernel computes the column sums again of each program
    that had a hard row.
    """
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
    # The next row's data and statistics are loaded while this row is reduced. Otherwise each row waits for memory twice
    # (0.74 of copy instead of 0.94 at N = 4096). The loop's pipeline fills shared memory. Unaligned rows and GPUs with
    # little shared memory use registers.
    if AHEAD == 1:
        x_next, dy_next, r_next, ds_next = _read(
            dy_ptr, ds_ptr, x_ptr, r_ptr, dy_stride, ds_stride, x_stride, r_stride, pid, cols, mask & (pid < n_rows),
            FAST and HAS_R, FAST and HAS_DS,
        )  # fmt: skip
    if AHEAD > 0:
        up_n, mean_n, low_n, rstd_n = load_stats(stats_ptr, pid, pid < n_rows, CENTRE)
    seen = programs * 0
    for row_ in tl.range(pid, n_rows, programs, num_stages=max(AHEAD, 1)):
        row = pid * 0 + row_  # 64 bits, also on the interpreter
        nxt = row + programs
        # (loads first: the compiler keeps this order)
        if AHEAD > 0:
            up64, mean64, low64, rstd64 = up_n, mean_n, low_n, rstd_n
            up_n, mean_n, low_n, rstd_n = load_stats(stats_ptr, nxt, nxt < n_rows, CENTRE)
        else:
            up64, mean64, low64, rstd64 = load_stats(stats_ptr, row, True, CENTRE)
        if AHEAD == 1:
            x_raw, dy_raw, r_raw, ds_raw = x_next, dy_next, r_next, ds_next
            x_next, dy_next, r_next, ds_next = _read(
                dy_ptr, ds_ptr, x_ptr, r_ptr, dy_stride, ds_stride, x_stride, r_stride, nxt, cols,
                mask & (nxt < n_rows), FAST and HAS_R, FAST and HAS_DS,
            )  # fmt: skip
        else:
            x_raw, dy_raw, r_raw, ds_raw = _read(
                dy_ptr, ds_ptr, x_ptr, r_ptr, dy_stride, ds_stride, x_stride, r_stride, row, cols, mask, HAS_R, HAS_DS
            )
        up = up64.to(T)
        mean = mean64.to(T)
        mean_low = low64.to(T)
        rstd = rstd64.to(T)
        if FAST:
            e = exponent(rstd64) + exponent(up64)
            far = (e > TOP - 4) | (e < -118)
            if HAS_R and CENTRE:
                far = far | (tl.abs(mean64) * rstd64 > FAR)
            if not CENTRE:
                far = far | (up64 != 1)
        v = x_raw.to(T)
        low = v
        if WIDE and CENTRE:
            of_x, of_r = x_ptr + row * x_stride, r_ptr + row * r_stride
            v, low = pair_from_first(of_x, of_r, i_ptr, cols, mask, up, HAS_R, HAS_I)
        elif WIDE:
            v, low = value_pair(x_ptr + row * x_stride, r_ptr + row * r_stride, i_ptr, cols, mask, HAS_R, HAS_I)
        elif FAST:
            if HAS_R:
                v, low = half_pair(x_raw, i_raw if HAS_I else x_raw, r_raw, HAS_I, HAS_R)
        else:
            if HAS_R and AHEAD == 1:
                r_raw = tl.load(r_ptr + row * r_stride + cols, mask=mask, other=0.0)
            i_row = tl.load(i_ptr + cols, mask=mask, other=0.0) if HAS_I else x_raw
            v = summed(x_raw, r_raw, i_row, HAS_R, HAS_I)
        if WIDE and not CENTRE:
            xhat = lifted_xhat(v, up, rstd)
        else:
            scale = 1.0 if WIDE else up
            xhat = xhat_of(v, low, scale, mean, mean_low, rstd * 2.0**LIFT, WIDE or (FAST and HAS_R), CENTRE)
        if not FULL:
            xhat = tl.where(mask, xhat, 0.0)
        dy = dy_raw.to(T)
        if NEED_W:
            acc_w = with_weight_term(acc_w, dy, xhat, dy_ptr, HAS_W, 200 if WIDE and not CENTRE else LIFT)
        if NEED_B:
            acc_b += dy
        g = weighted(dy, w_raw, dy_ptr, HAS_W) if HAS_W else dy
        if FAST:
            # 2^lift makes float32 overflow if |dy| or |g| reaches 2^TOP / rstd or 2^40; the sum is then inf or NaN.
            lift = tl.minimum(tl.maximum(128 - TOP + e + 1, 88), 126)
            lifted = dy * power_of_two_32(lift)
            if HAS_W:
                lifted *= factor(w_raw, lifted, HAS_W)
            c1, c2 = sums(lifted, g * xhat if CENTRE else g * v)
            c1 *= power_of_two_32(-lift)
            if CENTRE:
                c2 *= 2.0**-LIFT
            size = tl.abs(c1) + tl.abs(c2)
            c1 *= inv
            c2 *= inv
        elif WHOLE and CENTRE:
            c1, c2 = sums(g, g * xhat)
            c1 *= inv
            c2 *= inv
        elif WHOLE:
            c1, c2 = inv, tl.sum(g * xhat, 0) * inv
        else:
            c1 = tl.load(sums_ptr + row * 2)
            c2 = tl.load(sums_ptr + row * 2 + 1)
            if WIDE:
                lift = tl.load(sums_ptr + (row * 0 + n_rows) * 2 + row)
                g = (g if HAS_W == 2 else dy) * lift
                if HAS_W == 1 or HAS_W == 3:
                    g *= factor(w_raw, g, HAS_W)
                if CENTRE:
                    up *= 1.0 / lift
        if REDO and not FAST:
            seen = tl.maximum(seen, (up != 1).to(tl.int32))
        xhat, g = one_column(xhat, g, c1, BLOCK == 1, CENTRE)
        # (The scalar c2 is negated, not a row. Triton's -c2 would be a subtraction, 0 - c2.)
        if WIDE and not CENTRE:
            # if c2 carries 2^712: 2^912 dx, which is finite for every finite dx
            lifted = tl.fma(xhat, c2 * -1.0, g * 2.0**400)
            lifted = (((lifted * 2.0**-456) * rstd) * up) * 2.0**-456
            dx = tl.where(lift != 1, lifted, (tl.fma(xhat * 2.0**-200, c2 * -1.0, g) * rstd) * up)
        elif FAST and not CENTRE:
            b = c2 * (rstd64 * rstd64 * rstd64).to(T)  # this factor is ready before c2
            dx = tl.fma(v, b * -1.0, g * rstd)
        else:
            dx = tl.fma(xhat, c2 * -(2.0**-LIFT), g)
            dx = (dx * rstd) * up if WIDE else dx * (rstd * up)
        dx = of_sum(dx, dx_ptr, HAS_R)
        if HAS_DS:
            if AHEAD == 1 and not FAST:
                ds_raw = tl.load(ds_ptr + row * ds_stride + cols, mask=mask, other=0.0)
            dx += ds_raw.to(T)
        if NEED_I:
            acc_i += of_sum(dx, dx_ptr, HAS_R)
            if WHOLE and not WIDE:
                tl.store(sums_ptr + row * 2, c1.to(tl.float64))
                tl.store(sums_ptr + row * 2 + 1, c2.to(tl.float64))
        tl.store(dx_ptr + row * n_cols + cols, rounded(dx, dx_ptr), mask=mask)
        if HAS_DR:
            tl.store(dr_ptr + row * n_cols + cols, rounded(dx, dr_ptr), mask=mask)
        if FAST:  # decided here, where nothing waits for it
            usual = (size >= 2.0**-60) & (size < float("inf"))
            if not CENTRE:  # mean64 is 0 for a row of zeros
                held = (tl.abs(c2) >= 2.0**-100) & (tl.abs(b) >= 2.0**-100) & (tl.abs(b) < 2.0**120)
                usual = (held | (mean64 == 0)) & (size < float("inf"))
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
        redo_rows(
            dy_ptr, ds_ptr, x_ptr, r_ptr, i_ptr, w_ptr, stats_ptr, sums_ptr, hard_ptr, suspect_ptr, dx_ptr, dr_ptr,
            dy_stride, ds_stride, x_stride, r_stride, n_rows, n_cols, eps_bits, seen, MARKED=not FAST,
            BLOCK=min(BLOCK, 512), HAS_R=HAS_R, HAS_I=HAS_I, HAS_W=HAS_W, HAS_DS=HAS_DS, HAS_DR=HAS_DR, CENTRE=CENTRE,
        )  # fmt: skip


@triton.jit
def _hard_columns(
    dy_ptr, ds_ptr, x_ptr, r_ptr, i_ptr, w_ptr, stats_ptr, sums_ptr, hard_ptr,
    dy_stride, ds_stride, x_stride, r_stride, n_rows, programs, columns, n_cols, which, all_rows,
    HAS_R: tl.constexpr, HAS_I: tl.constexpr, HAS_W: tl.constexpr, HAS_DS: tl.constexpr,
    NEED_W: tl.constexpr, NEED_B: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, CENTRE: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Returns the sum number `which` of these columns over all rows of programs with hard rows, or all rows if
    all_rows.
    """
    cols = columns[None, :]
    acc = tl.zeros((ROWS, BLOCK), tl.float64)
    for start in range(0, n_rows, ROWS):
        r = start + tl.arange(0, ROWS)[:, None].to(tl.int64)
        hard = tl.where(r < n_rows, tl.load(hard_ptr + r // TILE % programs, mask=r < n_rows, other=0) + all_rows, 0)
        if tl.max(tl.max(hard, 1), 0) > 0:
            here = hard > 0
            mask = here & (cols < n_cols)
            term = tl.load(dy_ptr + r * dy_stride + cols, mask=mask, other=0.0).to(tl.float64)
            v, low = value_pair(x_ptr + r * x_stride, r_ptr + r * r_stride, i_ptr + r * 0, cols, mask, HAS_R, HAS_I)
            up, mean, mean_low, rstd = load_stats(stats_ptr, r, here, CENTRE)
            xhat = xhat_of(v, low, up, mean, mean_low, rstd, 1, CENTRE)
            several = (up * 0.0 + n_cols > 1).to(tl.float64)
            if CENTRE:
                xhat *= several  # as in one_column; NaN stays
            g = term
            if HAS_W:
                g = weighted(g, tl.load(w_ptr + cols, mask=cols < n_cols, other=0.0), dy_ptr, HAS_W)
            c1 = tl.load(sums_ptr + r * 2, mask=here, other=0.0)
            c2 = tl.load(sums_ptr + r * 2 + 1, mask=here, other=0.0)
            dx = of_sum((tl.fma(-xhat, c2, (g - c1) * several) * rstd) * up, x_ptr, HAS_R)
            if HAS_DS:
                dx += tl.load(ds_ptr + r * ds_stride + cols, mask=mask, other=0.0).to(tl.float64)
            dx = of_sum(dx, x_ptr, HAS_R)
            first = with_weight_term(tl.zeros_like(term), term, xhat, dy_ptr, HAS_W)
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
    stats_ptr,  # the statistics of moments.py
    sums_ptr,  # [M, 2] float64: c1, c2
    hard_ptr,  # [programs] int32: number of rows redone
    dy_stride, ds_stride, x_stride, r_stride, n_rows, programs, n_cols,
    REDO: tl.constexpr,
    FLOAT16: tl.constexpr,  # REDO: float16 pass, so large partial sums are redone
    LIFT: tl.constexpr,  # the partial sums of dweight are multiplied by 2^LIFT
    HAS_R: tl.constexpr, HAS_I: tl.constexpr, HAS_W: tl.constexpr, HAS_DS: tl.constexpr,
    NEED_W: tl.constexpr, NEED_B: tl.constexpr, NEED_I: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    CENTRE: tl.constexpr = 1,
    TILE: tl.constexpr = 1,  # REDO: rows that a program has at once
):  # fmt: skip
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
                HAS_R, HAS_I, HAS_W, HAS_DS, NEED_W, NEED_B, ROWS=16, BLOCK=BLOCK, CENTRE=CENTRE, TILE=TILE,
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
