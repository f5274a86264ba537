"""The kernels of linear layers: a product whose tiles end with an activation or GEGLU, and the gradient of both.

linear_act.py and linear_geglu.py have the mathematics, the rounding points and the launches. A tile of GEGLU holds the
same columns of both halves of p, in two sums.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from . import hopper_product
from .arithmetic import narrowed
from .checks import MODEL, rounds_as_model
from .eager_math import eager_gated, eager_gated_gradients, eager_times_slope, eager_value
from .gelu_of_sums import gelu_slope, gelu_value, times_gelu, unlifted
from .hopper_product import halves, send
from .launch import INTERPRETED, of_any_alignment, overlapping, wait_for_previous
from .layouts import dense
from .linear_layers import (
    GATED_CONFIGS,
    PRODUCT_CONFIGS,
    WIDE,
    Config,
    added,
    choose,
    configs_of,
    few,
    in_sixteens,
    rows_of_part,
    tile_of,
)
from .plans import run

ACTIVATIONS = {"id": 0, "gelu": 1, "gelu_tanh": 2, "squared_relu": 3}
# A kernel's MODE is the number of the activation plus any of these.
GRAD: tl.constexpr = tl.constexpr(4)  # multiply the sum by act'(the saved pre-activation)
SAVE: tl.constexpr = tl.constexpr(8)  # also store the rounded pre-activation
ROUNDED: tl.constexpr = tl.constexpr(16)  # contract="model": round where a layer of several operators does
PAIRED: tl.constexpr = tl.constexpr(32)  # GEGLU: B and bias have two halves, and the result is p1 act(p2)
GATES = {"geglu_none": 1 + PAIRED.value, "geglu_tanh": 2 + PAIRED.value}


def mode_of(activation: str, dtype: torch.dtype) -> int:
    """Returns the MODE of an activation or gate, with ROUNDED if it is that of contract="model"."""
    return (ACTIVATIONS | GATES)[activation.removeprefix(MODEL)] + ROUNDED.value * rounds_as_model(activation, dtype)


@triton.jit
def _value(x, MODE: tl.constexpr, OUT: tl.constexpr):
    """Returns act(x) of a float32 or float64 sum, not yet rounded to OUT."""
    ACT: tl.constexpr = MODE % 4
    if ROUNDED & MODE:
        y = eager_value(narrowed(x, OUT), ACT)
    elif ACT == 0:
        y = x
    elif ACT == 3:
        r = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
        y = r * r
    elif tl.float32 == OUT:
        y = gelu_value(x.to(tl.float64), ACT == 2, False)
    else:
        y = gelu_value(x, ACT == 2, tl.bfloat16 == OUT)
    return y


@triton.jit
def _times_slope(m, x, MODE: tl.constexpr, OUT: tl.constexpr):
    """Returns m act'(x) of float32 or float64 numbers, not yet rounded to OUT."""
    ACT: tl.constexpr = MODE % 4
    if ROUNDED & MODE:
        y = eager_times_slope(narrowed(m, OUT), x, ACT)
    elif ACT == 0:
        y = m
    elif ACT == 3:
        y = m * (2.0 * tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL))
    elif tl.float32 == OUT:
        y = m.to(tl.float64) * gelu_slope(x.to(tl.float64), ACT == 2, False)
    else:
        y = unlifted(m, x, ACT == 2, tl.bfloat16 == OUT) * gelu_slope(x, ACT == 2, tl.bfloat16 == OUT)
    return y


@triton.jit
def _gated(first, second, MODE: tl.constexpr, OUT: tl.constexpr):
    """Returns p1 gelu(p2) of float32 or float64 sums, not yet rounded to OUT."""
    TANH: tl.constexpr = MODE % 4 == 2
    if ROUNDED & MODE:
        y = eager_gated(narrowed(first, OUT), narrowed(second, OUT), MODE % 4, OUT)
    elif tl.float32 == OUT:
        y = times_gelu(first.to(tl.float64), second.to(tl.float64), TANH, False)
    else:
        y = times_gelu(first, second, TANH, tl.bfloat16 == OUT)
    return y


@triton.jit
def _gated_gradients(dy, p1, p2, MODE: tl.constexpr, OUT: tl.constexpr):
    """Returns dy gelu(p2) and dy p1 gelu'(p2), not yet rounded to OUT.

    float32 gradients are computed in float64, 16-bit ones in float32 except for one product.
    """
    TANH: tl.constexpr = MODE % 4 == 2
    if ROUNDED & MODE:
        d1, d2 = eager_gated_gradients(dy, p1, p2, MODE % 4, OUT)
    else:
        if tl.float32 == OUT:
            dy, p1, p2 = dy.to(tl.float64), p1.to(tl.float64), p2.to(tl.float64)
        d1 = times_gelu(dy, p2, TANH, tl.bfloat16 == OUT)
        slope = gelu_slope(p2, TANH, True)
        if tl.bfloat16 == OUT:  # dy p1 may leave float32's range; both products are exact in float64
            d2 = dy.to(tl.float64) * p1.to(tl.float64) * slope.to(tl.float64)
            d2 = unlifted(d2, p2, TANH, True).to(tl.float32)
        else:
            d2 = unlifted(dy * p1, p2, TANH, True) * slope
    return d1, d2


# -------------------------------------------------------------------------- the kernel for any device


@triton.jit(do_not_specialize=["M"])
def _tile_kernel(
    a_ptr,  # [M, K], any strides; with BOXES a descriptor
    b_ptr,  # [N, K], PAIRED [2N, K], any strides; with BOXES a descriptor
    bias_ptr,  # [N], PAIRED [2N], contiguous; only with HAS_BIAS
    gate_ptr,  # [M, N], laid out as y: the pre-activation whose slope multiplies the sum; only with GRAD
    y_ptr,  # [M, N], rows of neighbouring numbers
    pre_ptr,  # [M, N], laid out as y, PAIRED [M, 2N], contiguous: the rounded pre-activation; only with SAVE
    M, N, K, stride_am, stride_ak, stride_bn, stride_bk, stride_ym,
    MODE: tl.constexpr, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, GROUP: tl.constexpr,
    BOXES: tl.constexpr = False,  # a_ptr and b_ptr are tensor descriptors, of the transposes where A_T and B_T
    A_T: tl.constexpr = False,
    B_T: tl.constexpr = False,
    OVERLAP: tl.constexpr = False,
):  # fmt: skip
    wait_for_previous(OVERLAP)
    tile_m, tile_n = tile_of(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP)
    rows = tile_m.to(tl.int64) * BM + tl.arange(0, BM)
    cols = tile_n.to(tl.int64) * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK).to(tl.int64)
    out: tl.constexpr = y_ptr.dtype.element_ty
    wide: tl.constexpr = tl.float64 if out == tl.float64 else tl.float32
    acc = tl.zeros((BM, BN), wide)
    second = tl.zeros((BM, BN), wide)  # PAIRED: the sums of the second half
    gap = tl.cast(N, tl.int64)  # Triton makes N = 1 a plain number, which has no N.to
    for k in range(0, K, BK):
        if BOXES:
            a = a_ptr.load([k, tile_m * BM]).T if A_T else a_ptr.load([tile_m * BM, k])
            b = b_ptr.load([k, tile_n * BN]) if B_T else b_ptr.load([tile_n * BN, k]).T
        else:
            at = k + ks
            a_mask = (rows < M)[:, None] & (at < K)[None, :]
            b_mask = (cols < N)[None, :] & (at < K)[:, None]
            a = tl.load(a_ptr + rows[:, None] * stride_am + at[None, :] * stride_ak, mask=a_mask, other=0.0)
            b_at = b_ptr + cols[None, :] * stride_bn + at[:, None] * stride_bk
            b = tl.load(b_at, mask=b_mask, other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=wide)
        if PAIRED & MODE:
            if BOXES:
                b = b_ptr.load([k, tile_n * BN + N]) if B_T else b_ptr.load([tile_n * BN + N, k]).T
            else:
                b = tl.load(b_at + gap * stride_bn, mask=b_mask, other=0.0)
            second = tl.dot(a, b, second, input_precision=PRECISION, out_dtype=wide)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + cols, mask=cols < N, other=0.0).to(wide)[None, :]
        if PAIRED & MODE:
            second += tl.load(bias_ptr + N + cols, mask=cols < N, other=0.0).to(wide)[None, :]
    at = rows[:, None] * stride_ym + cols[None, :]
    mask = (rows < M)[:, None] & (cols < N)[None, :]
    if SAVE & MODE:
        if PAIRED & MODE:
            pre_at = rows[:, None] * (2 * N) + cols[None, :]
            tl.store(pre_ptr + pre_at + N, second.to(out), mask=mask)
        else:
            pre_at = at
        tl.store(pre_ptr + pre_at, acc.to(out), mask=mask)
    if PAIRED & MODE:
        y = _gated(acc, second, MODE, out)
    elif GRAD & MODE:
        y = _times_slope(acc, tl.load(gate_ptr + at, mask=mask, other=0.0).to(wide), MODE, out)
    else:
        y = _value(acc, MODE, out)
    tl.store(y_ptr + at, y.to(out), mask=mask)


_strided_tile_kernel = of_any_alignment(_tile_kernel)

# ---------------------------------------------------------- FINISH of hopper_product.py, 16 bits


@gluon.jit
def _finish(
    x, row, col, y_desc, pre_desc, extra, out_bufs, M, N,
    WG: gl.constexpr, LATE: gl.constexpr, PART: gl.constexpr, MODE: gl.constexpr,
):  # fmt: skip
    """Finishes 64 x 64 of a tile's sums: activation or slope, rounding, store."""
    out: gl.constexpr = y_desc.dtype
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    lo, hi = halves(x)
    if PART == 0:
        v = lo
    else:
        v = hi
    col += 128 * PART + 64 * LATE
    if SAVE & MODE:
        send(v, pre_desc, out_bufs.index(2 * WG + 0), row, col)
    if GRAD & MODE:
        rows = row + gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
        cols = col + gl.arange(0, 64, layout=gl.SliceLayout(0, layout))
        at = rows.to(gl.int64)[:, None] * N + cols[None, :]
        gate = gl.load(extra + at, mask=(rows < M)[:, None] & (cols < N)[None, :], other=0.0)
        v = _times_slope(v, gate.to(gl.float32), MODE, out)
    else:
        v = _value(v, MODE, out)
    if SAVE & MODE:
        send(v, y_desc, out_bufs.index(2 * WG + 1), row, col)
    else:
        send(v, y_desc, out_bufs.index(2 * WG + PART), row, col)


@gluon.jit
def _gated_finish(
    x, row, col, y_desc, pre_desc, extra, out_bufs, M, N,
    WG: gl.constexpr, LATE: gl.constexpr, PART: gl.constexpr, MODE: gl.constexpr,
):  # fmt: skip
    """Finishes 64 x 64 results: GEGLU of the two halves in x."""
    if PART == 0:
        lo, hi = halves(x)
        at = col + 64 * LATE
        v = _gated(lo, hi, MODE, y_desc.dtype)
        send(v, y_desc, out_bufs.index(2 * WG + LATE), row, at)
        if SAVE & MODE:
            send(lo, pre_desc, out_bufs.index(2 * WG + 1 - LATE), row, at)
            send(hi, extra, out_bufs.index(2 * WG + LATE), row, at)


# --------------------------------------------------------- gradient of the activation, and column sums


@triton.jit(do_not_specialize=["M"])
def _gradient_kernel(
    dy_ptr,  # [M, N]; this and all pointers here: contiguous, at a multiple of 16 bytes (see dense)
    pre_ptr,  # [M, N], PAIRED [M, 2N]; not read if the activation is "id"
    g_ptr,  # like pre: the gradient of the pre-activation, rounded once; only with STORE
    part_ptr,  # [ceil(M / ROWS), N or 2N], float32 or float64: sums of ROWS rows of g; only with SUM
    M, N,
    MODE: tl.constexpr,  # the activation; with ROUNDED the sums are of g after its rounding, else of g before it
    STORE: tl.constexpr, SUM: tl.constexpr, ROWS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    OVERLAP: tl.constexpr = False,
):  # fmt: skip
    wait_for_previous(OVERLAP)
    tiles_n = tl.cdiv(N, BN)
    part = (tl.program_id(0) // tiles_n).to(tl.int64)
    cols = (tl.program_id(0) % tiles_n).to(tl.int64) * BN + tl.arange(0, BN)
    out: tl.constexpr = dy_ptr.dtype.element_ty
    wide: tl.constexpr = tl.float64 if out == tl.float64 else tl.float32
    WIDTH: tl.constexpr = 2 if PAIRED & MODE else 1  # columns of pre for one of dy
    total = tl.zeros((BM, BN), wide)
    second = tl.zeros((BM, BN), wide)
    for r in range(0, ROWS, BM):
        rows = part * ROWS + r + tl.arange(0, BM)
        mask = (rows < M)[:, None] & (cols < N)[None, :]
        at = rows[:, None] * (WIDTH * N) + cols[None, :]
        g = tl.load(dy_ptr + rows[:, None] * N + cols[None, :], mask=mask, other=0.0).to(wide)
        if MODE != 0:
            pre = tl.load(pre_ptr + at, mask=mask, other=0.0).to(wide)
        if PAIRED & MODE:
            g, h = _gated_gradients(g, pre, tl.load(pre_ptr + at + N, mask=mask, other=0.0).to(wide), MODE, out)
            if ROUNDED & MODE:
                h = narrowed(h, out)
            if STORE:
                tl.store(g_ptr + at + N, h.to(out), mask=mask)
            second += h.to(wide)
        elif MODE != 0:
            g = _times_slope(g, pre, MODE, out)
        if ROUNDED & MODE:
            g = narrowed(g, out)
        if STORE:
            tl.store(g_ptr + at, g.to(out), mask=mask)
        if SUM:
            total += g.to(wide)
    if SUM:
        part_ptr += part * (WIDTH * N) + cols
        tl.store(part_ptr, tl.sum(total, 0), mask=cols < N)
        if PAIRED & MODE:
            tl.store(part_ptr + N, tl.sum(second, 0), mask=cols < N)


# ---------------------------------------------------------------------------------------- launchers


def _configs(dtype: torch.dtype, allow_tf32: bool, paired: bool = False) -> list[Config]:
    return configs_of(GATED_CONFIGS if paired else PRODUCT_CONFIGS, dtype, allow_tf32)


_GROUP = 8  # rows of tiles that stay together
_TINY = (64, 32, 128)  # BM, BN, BK of the tiny tiles that replace the Hopper kernel's last round


def _rounds(tiles_m: int, tiles_n: int, units: int, group: int) -> tuple[int, int, int]:
    """Returns the tiles for the Hopper kernel, and the rows and columns of tiles left to the tile kernel.

    The Hopper kernel gives each unit one tile in a round, and a round with one tile lasts as long as a full one. If the
    tiles of the last round, cut into tiny ones, still have a unit each, the tile kernel computes them. Rows and columns
    are 0 if the Hopper kernel computes all tiles. Then there is no whole round, or the last tiles in the order of
    tile_of are not one rectangle in the lower right corner of the last group.
    """
    tiles = tiles_m * tiles_n
    left = tiles % units
    pieces = (128 // _TINY[0]) * (256 // _TINY[1])
    height = (tiles_m - 1) % group + 1  # rows of the last group; its columns come last in the order
    if 0 < left < tiles and left * pieces <= units:
        if left <= height:
            return tiles - left, left, 1
        if left % height == 0 and left // height <= tiles_n:
            return tiles - left, height, left // height
    return tiles, 0, 0


def _launch_hopper(
    a: Tensor, b: Tensor, bias: Tensor, gate: Tensor, y: Tensor, pre: Tensor, mode: int, has_bias: bool,
    transposed: tuple[bool, bool],
) -> None:  # fmt: skip
    """Computes what launch_tiles returns with the persistent kernel, and tiny tiles for the last few."""
    (m, k), n = a.shape, y.shape[1]
    units = hopper_product.units_of(a.device)
    tiles_m = triton.cdiv(m, 128)
    given: dict[str, Any] = {"mode": mode, "has_bias": has_bias}
    if mode & PAIRED.value:
        first, second = (pre[:, :n], pre[:, n:]) if mode & SAVE.value else (y, y)
        hopper_product.launch(
            a, b, transposed, y, first, hopper_product.boxes(second, 64, 64), bias, tiles_m * triton.cdiv(n, 128),
            units, gap=n, step=128, group=32, finish=_gated_finish, **given,
        )  # fmt: skip
        return
    tiles_n = triton.cdiv(n, 256)
    bm, bn, bk = _TINY
    tiles, rest_m, rest_n = tiles_m * tiles_n, 0, 0
    # K must be a multiple of bk: else the last step would add more zeros than the Hopper kernel's step of 64, and zeros
    # can turn a sum of -0 into 0. A must not be transposed: the tile kernel would load it number by number. At K = 4096
    # a round takes 52 us and the second launch 8 us (H200). K >= 1024 is an estimate of where it pays.
    if k >= 1024 and k % bk == 0 and not transposed[0] and in_sixteens(a, b, bias, gate, y, pre):
        tiles, rest_m, rest_n = _rounds(tiles_m, tiles_n, units, _GROUP)
    hopper_product.launch(
        a, b, transposed, y, pre, gate, bias, tiles, units, gap=128, step=256, group=_GROUP, finish=_finish, **given
    )  # fmt: skip
    if rest_m == 0:
        return
    row, col = (tiles_m - rest_m) * 128, (tiles_n - rest_n) * 256
    gate, y, pre = (t[row:, col:] for t in (gate, y, pre))
    bias = bias[col:] if has_bias else y
    a, b = a[row:], b[col:]
    run(
        _tile_kernel, (triton.cdiv(m - row, bm) * triton.cdiv(n - col, bn),),
        a, b, bias, gate, y, pre, m - row, n - col, k, *a.stride(), *b.stride(), n,
        MODE=mode, HAS_BIAS=has_bias, PRECISION="ieee", BM=bm, BN=bn, BK=bk, GROUP=_GROUP,
        num_warps=4, num_stages=4,
    )  # fmt: skip


def launch_tiles(
    a: Tensor, b: Tensor, bias: Tensor | None, gate: Tensor | None, y: Tensor, pre: Tensor | None, mode: int,
    allow_tf32: bool,
) -> None:  # fmt: skip
    """Writes y = act(a @ b^T + bias), or (a @ b^T) * act'(gate), or GEGLU; a [M, K] and b [N, K] have any strides."""
    (m, k), n = a.shape, y.shape[1]
    if m == 0 or n == 0:
        return
    has_bias, paired = bias is not None, mode & PAIRED.value > 0
    # each argument must be a tensor, even if the mode does not read it
    bias, gate, pre = (y if t is None else t for t in (bias, gate, pre))

    def launch(config: Config, kernel: Any, a: Any, b: Any, strides: tuple[int, ...], **more: Any) -> None:
        bm, bn, bk, warps, stages = config
        run(
            kernel, (triton.cdiv(m, bm) * triton.cdiv(n, bn),), a, b, bias, gate, y, pre, m, n, k, *strides, n,
            MODE=mode, HAS_BIAS=has_bias, BM=bm, BN=bn, BK=bk, GROUP=_GROUP, num_warps=warps, num_stages=stages, **more,
        )  # fmt: skip

    with torch.cuda.device_of(a):  # which may differ from the current device
        transposed = hopper_product.transposed_operands(a, b, n)
        if transposed is not None:
            config = hopper_product.tile(m, b.shape[0], k, hopper_product.units_of(a.device))
            if config == hopper_product.PERSISTENT and k > 128:
                _launch_hopper(a, b, bias, gate, y, pre, mode, has_bias, transposed)
                return
            bm, bn, bk, *others = config
            bn //= 1 + paired  # of each half
            launch(
                (bm, bn, bk, *others), _tile_kernel, hopper_product.described(a, transposed[0], bm, bk),
                hopper_product.described(b, transposed[1], bn, bk), (0, 0, 0, 0), PRECISION="ieee", BOXES=True,
                A_T=transposed[0], B_T=transposed[1], **overlapping(a.device),
            )  # fmt: skip
            return
        precision = "tf32" if allow_tf32 and a.dtype == torch.float32 else "ieee"
        kernel = _tile_kernel if in_sixteens(a, b, bias, gate, y, pre) else _strided_tile_kernel
        strides = *a.stride(), *b.stride()
        major = (a.stride(1) == 1, b.stride(1) == 1)
        key = ("linear", a.device, a.dtype, precision, m.bit_length(), n, k, major, mode, has_bias)
        plain = partial(launch, kernel=kernel, a=a, b=b, strides=strides, PRECISION=precision)
        plain(choose(key, few(m * n, _configs(a.dtype, allow_tf32, paired)), plain))


def activation_gradient(dy: Tensor, pre: Tensor, activation: str, store: bool, total: bool) -> tuple[Any, Any]:
    """Returns the gradient of a pre-activation if `store`, and its column sums if `total`, else None."""
    (m, n), rows, mode = dy.shape, rows_of_part(*dy.shape), mode_of(activation, dy.dtype)
    columns = 2 * n if mode & PAIRED.value else n
    # the fastest of twelve for 16 bits on an H100: 265 us become 218 for 8192 x 16384
    bm, bn, warps = (32, 64, 2) if rows == 32 else (8, 128, 4) if m * n >= 1 << 26 else (16, 128, 4)
    if mode & PAIRED.value:
        bm, bn, warps = 8, 128, 4
    if INTERPRETED:
        bm, bn = rows, 128
    g = dy.new_empty((m, columns)) if store else None
    wide = WIDE.get(dy.dtype, torch.float32)
    part = dy.new_empty((triton.cdiv(m, rows), columns), dtype=wide) if total else None
    if m > 0 and n > 0:
        upstream = dense(dy)
        pre = upstream if mode == 0 else dense(pre)
        with torch.cuda.device_of(dy):
            # each argument must be a tensor, even if the kernel does not write it
            run(
                _gradient_kernel, (triton.cdiv(m, rows) * triton.cdiv(n, bn),),
                upstream, pre, upstream if g is None else g, upstream if part is None else part, m, n, MODE=mode,
                STORE=store, SUM=total, ROWS=rows, BM=bm, BN=bn, num_warps=4 if dy.dtype.itemsize > 2 else warps,
                **overlapping(dy.device),
            )  # fmt: skip
    return g, None if part is None else added(part, dy.dtype)
