"""A product of 16-bit matrices, A @ B^T, on Hopper: one warp loads, two warp groups multiply and finish.

The two warp groups own the upper and the lower 64 rows of a 128 x 256 tile. The copy engine fills STAGES buffers of 64
steps of k; `ready` and `free` are their barriers. A warp group finishes half of a tile's columns (every other 64) at
once. It keeps the sums of the other half in registers and finishes them while the matrix units work on the next tile.

FINISH, a function of the caller, turns sums into results. It runs twice for each half of a tile:

    FINISH(x, row, col, y_desc, pre_desc, extra, out_bufs, M, N, WG, LATE, PART, MODE)

x holds the float32 sums of 64 rows from `row` on, and of 64 columns of each of the tile's two blocks of B. halves(x)
separates the two. LATE is 0 for the first 64 columns of each block, 1 for the last. PART is 0 in the first call for
this x, then 1. FINISH rounds to the result's dtype and hands 64 x 64 numbers to the copy engine by `send`.

A sum is one float32 chain in the order of k, with the same bits as the tile kernels in linear_tiles.py and
linear_weight.py.

Small products leave most processors without a tile of 128 x 256. The tile kernels compute them, in tiles whose shape
`tile` chooses by the sizes. Their operands are tensor descriptors too (`described`).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor as TileDescriptor

from .launch import INTERPRETED
from .linear_layers import Config, tile_of
from .plans import run


@gluon.jit
def _fetch(
    a_desc, b_desc, a_bufs, b_bufs, ready, free, M, N, K, tiles, gap,
    STEP: gl.constexpr, A_T: gl.constexpr, B_T: gl.constexpr,
    GROUP: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Loads the tiles of A and B: the loading warp. B's tile is two blocks of 128 rows, `gap` rows apart."""
    tiles_m = gl.cdiv(M, 128)
    tiles_n = gl.cdiv(N, STEP)
    i = 0
    for t in range(gl.program_id(0), tiles, gl.num_programs(0)):
        tile_m, tile_n = tile_of(t, tiles_m, tiles_n, GROUP)
        row = tile_m * 128
        col = tile_n * STEP
        for k in range(0, K, 64):
            s = i % STAGES
            mbarrier.wait(free.index(s), ((i // STAGES) & 1) ^ 1)
            bar = ready.index(s)
            mbarrier.expect(bar, (128 + 256) * 64 * 2)
            if A_T:
                tma.async_copy_global_to_shared(a_desc, [k, row], bar, a_bufs.index(s))
            else:
                tma.async_copy_global_to_shared(a_desc, [row, k], bar, a_bufs.index(s))
            if B_T:
                lo = b_bufs.index(s).slice(0, 128, 1)
                hi = b_bufs.index(s).slice(128, 128, 1)
                tma.async_copy_global_to_shared(b_desc, [k, col], bar, lo)
                tma.async_copy_global_to_shared(b_desc, [k, col + gap], bar, hi)
            else:
                lo = b_bufs.index(s).slice(0, 128, 0)
                hi = b_bufs.index(s).slice(128, 128, 0)
                tma.async_copy_global_to_shared(b_desc, [col, k], bar, lo)
                tma.async_copy_global_to_shared(b_desc, [col + gap, k], bar, hi)
            i += 1


@gluon.jit
def _multiply(
    acc, i, a_bufs, b_bufs, ready,
    FIRST: gl.constexpr, WG: gl.constexpr, A_T: gl.constexpr, B_T: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Starts the products of buffer i: 64 rows, 256 columns, 64 steps of k."""
    s = i % STAGES
    mbarrier.wait(ready.index(s), (i // STAGES) & 1)
    a = a_bufs.index(s)
    b = b_bufs.index(s)
    if A_T:
        a = a.permute((1, 0))
    if not B_T:
        b = b.permute((1, 0))
    return warpgroup_mma(a.slice(WG * 64, 64, 0), b, acc, use_acc=not FIRST, is_async=True)


@gluon.jit
def halves(x):
    """Returns columns [0, n/2) and [n/2, n). No data moves, because each thread holds columns of both."""
    m: gl.constexpr = x.shape[0]
    n: gl.constexpr = x.shape[1] // 2
    lo, hi = gl.split(gl.permute(gl.reshape(x, [m, 2, n]), (0, 2, 1)))
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, n, 16])
    return gl.convert_layout(lo, layout), gl.convert_layout(hi, layout)


@gluon.jit
def _quarters(acc):
    """Returns columns 0-63 and 128-191 of a tile, and columns 64-127 and 192-255, as two 64 x 128."""
    x = gl.permute(gl.reshape(acc, [64, 2, 2, 64]), (0, 1, 3, 2))
    early, late = gl.split(x)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    early = gl.convert_layout(gl.reshape(early, [64, 128]), layout)
    return early, gl.convert_layout(gl.reshape(late, [64, 128]), layout)


@gluon.jit
def send(y, desc, buf, row, col):
    """Hands 64 x 64 results to the copy engine. Waits until the buffer of two calls ago is free again."""
    tma.store_wait(1)
    buf.store(y.to(desc.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(desc, [row, col], buf)


@gluon.jit
def plain_finish(
    x, row, col, y_desc, pre_desc, extra, out_bufs, M, N,
    WG: gl.constexpr, LATE: gl.constexpr, PART: gl.constexpr, MODE: gl.constexpr,
):  # fmt: skip
    """Rounds the sums and sends them: the FINISH of a plain product."""
    lo, hi = halves(x)
    if PART == 0:
        v = lo
    else:
        v = hi
    send(v, y_desc, out_bufs.index(2 * WG + PART), row, col + 128 * PART + 64 * LATE)


@gluon.jit
def _consume(
    y_desc, pre_desc, extra, bias_ptr, a_bufs, b_bufs, out_bufs, ready, free, M, N, K,
    tiles, gap, bias_size, WG: gl.constexpr, MODE: gl.constexpr, HAS_BIAS: gl.constexpr,
    STEP: gl.constexpr, A_T: gl.constexpr, B_T: gl.constexpr, GROUP: gl.constexpr,
    STAGES: gl.constexpr, FINISH: gl.constexpr,
):  # fmt: skip
    """Multiplies and finishes tiles: one of the two warp groups. Needs K > 128: each tile has three steps or more."""
    tiles_m = gl.cdiv(M, 128)
    tiles_n = gl.cdiv(N, STEP)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16])
    zeros = gl.zeros([64, 256], gl.float32, layout)
    early, late = _quarters(zeros)
    row = tiles_m * 128  # before the first tile `late` holds nothing: the copy engine drops rows past M
    col = 0
    i = 0
    for t in range(gl.program_id(0), tiles, gl.num_programs(0)):
        acc = _multiply(zeros, i, a_bufs, b_bufs, ready, True, WG, A_T, B_T, STAGES)
        acc = _multiply(acc, i + 1, a_bufs, b_bufs, ready, False, WG, A_T, B_T, STAGES)
        # `late` is an argument of the waits; else the compiler would move FINISH before the products
        acc, late = warpgroup_mma_wait(1, deps=[acc, late])
        mbarrier.arrive(free.index(i % STAGES))
        FINISH(late, row, col, y_desc, pre_desc, extra, out_bufs, M, N, WG, 1, 0, MODE)
        acc = _multiply(acc, i + 2, a_bufs, b_bufs, ready, False, WG, A_T, B_T, STAGES)
        acc, late = warpgroup_mma_wait(1, deps=[acc, late])
        mbarrier.arrive(free.index((i + 1) % STAGES))
        FINISH(late, row, col, y_desc, pre_desc, extra, out_bufs, M, N, WG, 1, 1, MODE)
        i += 3
        tile_m, tile_n = tile_of(t, tiles_m, tiles_n, GROUP)
        col = tile_n * STEP
        if HAS_BIAS:
            j = gl.arange(0, 256, layout=gl.SliceLayout(0, layout))
            j += col + gl.where(j < 128, 0, gap - 128)
            j = gl.max_contiguous(gl.multiple_of(j, 2), 2)  # gap is even
            bias = gl.load(bias_ptr + j, mask=j < bias_size, other=0.0)
        for _k in range(192, K, 64):
            acc = _multiply(acc, i, a_bufs, b_bufs, ready, False, WG, A_T, B_T, STAGES)
            acc = warpgroup_mma_wait(1, deps=[acc])
            mbarrier.arrive(free.index((i - 1) % STAGES))
            i += 1
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(free.index((i - 1) % STAGES))
        if HAS_BIAS:
            acc += bias.to(gl.float32)[None, :]
        row = tile_m * 128 + WG * 64
        early, late = _quarters(acc)
        FINISH(early, row, col, y_desc, pre_desc, extra, out_bufs, M, N, WG, 0, 0, MODE)
        FINISH(early, row, col, y_desc, pre_desc, extra, out_bufs, M, N, WG, 0, 1, MODE)
    FINISH(late, row, col, y_desc, pre_desc, extra, out_bufs, M, N, WG, 1, 0, MODE)
    FINISH(late, row, col, y_desc, pre_desc, extra, out_bufs, M, N, WG, 1, 1, MODE)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["M", "K", "tiles"])
def hopper_kernel(
    a_desc,  # A, [M, K] in boxes of 128 x 64; its transpose in boxes of 64 x 128 where A_T
    b_desc,  # B, [N, K] likewise
    y_desc,  # the result in boxes of 64 x 64
    pre_desc,  # the rounded pre-activation, if saved
    extra,  # one more operand of FINISH: a pointer or a matrix in boxes of 64 x 64
    bias_ptr,  # [bias_size], contiguous; only with HAS_BIAS
    M,
    N,
    K,
    tiles,  # number of tiles to compute, in the order of tile_of
    gap,  # rows of B between the two halves of a tile
    bias_size,
    MODE: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    STEP: gl.constexpr,  # rows of B from one tile to the next
    A_T: gl.constexpr,
    B_T: gl.constexpr,
    GROUP: gl.constexpr,  # rows of tiles that stay together
    STAGES: gl.constexpr,
    FINISH: gl.constexpr,  # the caller's epilogue: see the module's docstring
):
    dtype: gl.constexpr = a_desc.dtype
    a_shape: gl.constexpr = [STAGES, 64, 128] if A_T else [STAGES, 128, 64]
    b_shape: gl.constexpr = [STAGES, 64, 256] if B_T else [STAGES, 256, 64]
    a_bufs = gl.allocate_shared_memory(dtype, a_shape, a_desc.layout)
    b_bufs = gl.allocate_shared_memory(dtype, b_shape, b_desc.layout)
    out_bufs = gl.allocate_shared_memory(dtype, [4, 64, 64], y_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(ready.index(s), count=1)
        mbarrier.init(free.index(s), count=2)  # both multiplying groups
    fence_async_shared()
    gl.warp_specialize(
        [
            (_consume, (y_desc, pre_desc, extra, bias_ptr, a_bufs, b_bufs, out_bufs, ready, free,
                        M, N, K, tiles, gap, bias_size, 0, MODE, HAS_BIAS, STEP, A_T, B_T, GROUP, STAGES, FINISH)),
            (_consume, (y_desc, pre_desc, extra, bias_ptr, a_bufs, b_bufs, out_bufs, ready, free,
                        M, N, K, tiles, gap, bias_size, 1, MODE, HAS_BIAS, STEP, A_T, B_T, GROUP, STAGES, FINISH)),
            (_fetch, (a_desc, b_desc, a_bufs, b_bufs, ready, free, M, N, K, tiles, gap,
                      STEP, A_T, B_T, GROUP, STAGES)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def _copyable(t: Tensor) -> bool | None:
    """Returns how the copy engine can read a matrix: False directly, True transposed, None not at all."""
    for transposed in (False, True):
        rows, cols = t.stride()[:: -1 if transposed else 1]
        if cols == 1 and rows * t.element_size() % 16 == 0 and t.data_ptr() % 16 == 0 and rows > 0:
            return transposed
    return None


_SHARED = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)


def boxes(t: Tensor, rows: int, cols: int) -> Any:
    """Returns the tensor descriptor of a matrix, in boxes of rows x cols."""
    return TensorDescriptor(t, list(t.shape), list(t.stride()), [rows, cols], _SHARED)


def transposed_operands(a: Tensor, b: Tensor, n: int) -> tuple[bool, bool] | None:
    """Returns (A is read transposed, B is), or None if the copy engine cannot read or write this product."""
    if INTERPRETED or a.element_size() != 2 or n % 8 or a.shape[1] == 0:
        return None
    if torch.cuda.get_device_capability(a.device)[0] != 9:
        return None
    a_t, b_t = _copyable(a), _copyable(b)
    return None if a_t is None or b_t is None else (a_t, b_t)


# Tiles of the tile kernels, and microseconds of a round where each processor has one tile, of K = 4096 on an H100.
# The last entry is the persistent kernel's.
_ROUNDS: tuple[tuple[Config, float], ...] = (
    ((64, 64, 128, 4, 6), 9.3),
    ((64, 128, 128, 4, 4), 14.2),
    ((128, 64, 128, 4, 4), 14.8),
    ((128, 128, 64, 8, 6), 23.5),
    ((128, 256, 64, 8, 4), 44.7),
)
PERSISTENT = _ROUNDS[-1][0]
SHORT = 128  # up to this K a product is bound by its stores, which overlap if a processor has several small tiles


def units_of(device: torch.device) -> int:
    """Returns the number of multiprocessors."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def time_and_tile(m: int, n: int, k: int, units: int) -> tuple[float, Config]:
    """Returns the least time of a product, in microseconds without the launch, and the tile shape that takes it.

    PERSISTENT means the persistent kernel. All shapes give the same bits. A step through k has 128 numbers only if
    K is a multiple of 128, because zeros that fill a longer last step could turn a sum of -0 into 0.
    """
    least, chosen = float("inf"), PERSISTENT
    for config, microseconds in _ROUNDS:
        bm, bn = config[:2]
        if (k <= SHORT and bm * bn > 64 * 128) or (bn == 128 and bm == 64 < m <= 128):  # the latter reads B twice
            continue
        rounds, left = divmod(triton.cdiv(m, bm) * triton.cdiv(n, bn), units)
        cut = config == PERSISTENT and rounds > 0 and 16 * left <= units  # linear_tiles._rounds: a fifth of a round
        time = (rounds + (0.2 if cut and left else left > 0)) * microseconds * k / 4096
        if time <= least:
            least, chosen = time, config
    if chosen == PERSISTENT:
        return least, chosen
    bm, bn, bk, warps, stages = chosen
    if k % bk:
        bk, stages = 64, stages + 3 * (bk == 128)
    return least, (bm, bn, bk, warps, min(stages, triton.cdiv(k, bk)))


def tile(m: int, n: int, k: int, units: int) -> Config:
    """Returns the tile shape of a product: see time_and_tile."""
    return time_and_tile(m, n, k, units)[1]


def described(t: Tensor, transposed: bool, rows: int, cols: int) -> Any:
    """Returns the descriptor that a tile kernel reads boxes of rows x cols by, of the transpose if `transposed`."""
    t, box = (t.t(), [cols, rows]) if transposed else (t, [rows, cols])
    return TileDescriptor(t, list(t.shape), list(t.stride()), box)


def launch(
    a: Tensor,
    b: Tensor,
    transposed: tuple[bool, bool],
    y: Tensor,
    pre: Tensor,
    extra: Any,
    bias: Tensor,
    tiles: int,
    units: int,
    *,
    gap: int,
    mode: int,
    has_bias: bool,
    step: int,
    group: int,
    finish: Any,
) -> None:
    """Computes the first `tiles` tiles of y = finish(a @ b^T + bias) on `units` multiprocessors; y is [M, N]."""
    (m, k), n = a.shape, y.shape[1]
    a_t, b_t = transposed
    # all rounds are equally full; more programs would idle in the last round and draw power
    run(
        hopper_kernel, (triton.cdiv(tiles, triton.cdiv(tiles, units)),),
        boxes(a.t(), 64, 128) if a_t else boxes(a, 128, 64),
        boxes(b.t(), 64, 128) if b_t else boxes(b, 128, 64),
        boxes(y, 64, 64), boxes(pre, 64, 64), extra, bias, m, n, k, tiles, gap, b.shape[0],
        MODE=mode, HAS_BIAS=has_bias, STEP=step, A_T=a_t, B_T=b_t, GROUP=group, STAGES=4, FINISH=finish,
        num_warps=4,
    )  # fmt: skip
