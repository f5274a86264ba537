"""The gradient of a linear layer's weight, g^T @ x: a sum over rows, possibly millions of them.

    weight_gradient(g, x, allow_tf32)        g.t() @ x, for g: [M, N] and x: [M, K]

Mathematics: dW[n, k] = g[0, n] x[0, k] + ... + g[M - 1, n] x[M - 1, k].

Rounding points. Products are exact (16 bits) or fused (float32, float64). Sums have two or three levels. Each level
ends at fixed rows, the same for every tile shape, layout and device:

    1.  rows in one chain, ascending: BLOCK = 128 of them; in 16 bits, and in float32 with allow_tf32, a whole part
    2.  the blocks of a part, one after the other, in the dtype of the chain: float32 (or float64). A part has
        PARTS[dtype] rows. In 16 bits it has fewer if more programs at once save time (rows_of_weight_part)
    3.  the parts in float64 (parts_added in linear_layers.py), rounded to float32 and, in 16 bits, once more

Up to 128 rows (in 16 bits up to one part) the result has the bits of the product in linear_act.py and linear_geglu.py.

Error of float32, in units of the scale |g|^T @ |x|. Levels 1 and 2 have 128 + 128 roundings and level 3 has one. Each
rounds by at most 2^-24 of the scale, half a unit to a whole one. So 257 units are a bound for any M. Equal products
round to the same side at every step, but early sums are small. At most 3/8 of the bound remain, 97 units, reached by
sums of 4/3 of a power of two. The worst of 200,000 such parts has 56. One chain of 65,537 rows has up to 15,033.

This holds for products in float32's range. Products below 2^-126 are rounded to multiples of 2^-149 as they are added,
half a unit of the smallest sums for each row: 65,537 products of 2^-140 were 15,059 units off. So _tiny_kernel computes
sums of more than one block below TINY again in float64. It skips a sum if the largest g times the largest x is larger
than TINY: then its terms cancel or are 0.

Error of 16 bits. A step of the matrix units aligns 16 products and the sum so far to the largest of them. It cuts off
the bits below 2^-25 of it, and cuts the result to float32: at most 5 float32 units a step, toward zero. The 1024 steps
of a float16 part of 2^14 rows lose at most 1.25 ULP of float16. Equal products lose 3/8 of that, 0.47, besides 0.5 for
the rounding. The worst part in a model of the units loses 0.33, one chain of 65,536 rows 1.33. A unit of bfloat16 is 8
times as large, and a part has 8 times the rows.

Cost, from counts (not timed). The end of a block is one addition and one move after 128 multiplications of each sum.
Parts are separate programs, which fill a GPU if the result is small. They store ceil(M / PARTS) N K numbers of 4 bytes
(float64: 8), which are read again.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import hopper_product
from .launch import INTERPRETED, of_any_alignment, overlapping, wait_for_previous
from .linear_layers import PRODUCT_CONFIGS, WIDE, Config, choose, configs_of, few, parts_added, tile_of
from .operators import operator
from .plans import run

BLOCK = 128  # rows in one chain of float32 or float64 additions
TINY = tl.constexpr(2.0**-108)  # for a larger sum 2^14 roundings to multiples of 2^-149 are less than 1/8 of a unit
PARTS = {torch.float64: 1 << 14, torch.float32: 1 << 14, torch.float16: 1 << 14, torch.bfloat16: 1 << 17}
LEAST_PART = 512  # rows
_GROUP = 8  # rows of tiles that stay together


def rows_of_weight_part(m: int, n: int, k: int, dtype: torch.dtype) -> int:
    """Returns the rows of a part. Sizes decide, not the device, so that dW has the same bits everywhere.

    In 16 bits it is the number with the least time on an H100, which has 132 units, if that saves an eighth of the time
    of one part. More parts are more programs, but their sums are written, read and added.
    """
    whole = PARTS[dtype]
    if dtype.itemsize > 2:
        return whole
    choices = [LEAST_PART]
    while choices[-1] < min(m, whole):
        choices.append(2 * choices[-1])

    def time(rows: int) -> float:
        parts = triton.cdiv(m, rows)
        product = hopper_product.time_and_tile(triton.cdiv(n, 64) * 64 * parts, k, min(m, rows), 132)[0]
        return product + (parts > 1) * (3 + 2e-6 * parts * n * k)  # 3 us for one launch more

    best = min(choices, key=time)
    return best if best < whole and time(best) < 0.88 * time(whole) else whole


# -------------------------------------------------------------------------- the kernel for any device


@triton.jit
def _hidden_zero(r, BLOCK: tl.constexpr):
    """Returns r % BLOCK, which is 0 where it is called, by an instruction that the compiler may not execute elsewhere.

    So the compiler keeps the branch around the call. Otherwise it would add at every step and select the old value: 32
    additions and 64 selections a thread for 512 multiplications. A barrier would keep the branch too, but end the
    pipeline of loads.
    """
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [r % BLOCK], tl.int32, is_pure=False, pack=1)


@triton.jit
def _loaded(g_ptr, x_ptr, ns, ks, at, M, N, K, stride_gm, stride_gn, stride_xm, stride_xk):
    """Loads the rows `at` of g, transposed, and of x: columns ns of g and ks of x. Returns 0 beyond the edges."""
    g = tl.load(
        g_ptr + ns[:, None] * stride_gn + at[None, :] * stride_gm,
        mask=(ns < N)[:, None] & (at < M)[None, :],
        other=0.0,
    )
    x = tl.load(
        x_ptr + ks[None, :] * stride_xk + at[:, None] * stride_xm,
        mask=(ks < K)[None, :] & (at < M)[:, None],
        other=0.0,
    )
    return g, x


@triton.jit
def _weight_kernel(
    g_ptr,  # [M, N], any strides; with BOXES a descriptor
    x_ptr,  # [M, K], any strides; with BOXES a descriptor
    w_ptr,  # the gradient, [N, K], contiguous; if M > PART the parts' sums, [parts, N, K], float32 or float64
    M, N, K, stride_gm, stride_gn, stride_xm, stride_xk,
    PRECISION: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,  # 0: a part is one chain
    BN: tl.constexpr,
    BK: tl.constexpr,
    BM: tl.constexpr,  # rows of a step; BLOCK and PART are multiples of it
    GROUP: tl.constexpr,
    BOXES: tl.constexpr = False,  # g_ptr and x_ptr are descriptors, of the transposes where G_T and X_T
    G_T: tl.constexpr = False,
    X_T: tl.constexpr = False,
    OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """Computes a tile of BN x BK sums over one part of the rows: levels 1 and 2 of the rounding points above."""
    wait_for_previous(OVERLAP)
    tiles_n = tl.cdiv(N, BN)
    tiles_k = tl.cdiv(K, BK)
    part = (tl.program_id(0) // (tiles_n * tiles_k)).to(tl.int64)
    tile_n, tile_k = tile_of(tl.program_id(0) % (tiles_n * tiles_k), tiles_n, tiles_k, GROUP)
    ns = tile_n.to(tl.int64) * BN + tl.arange(0, BN)
    ks = tile_k.to(tl.int64) * BK + tl.arange(0, BK)
    rows = part * PART + tl.arange(0, BM)
    wide: tl.constexpr = tl.float64 if w_ptr.dtype.element_ty == tl.float64 else tl.float32
    acc = tl.zeros((BN, BK), wide)  # the sum of a block
    total = tl.zeros((BN, BK), wide)  # the sum of the blocks before it
    length = tl.minimum(M - part * PART, PART).to(tl.int32)
    for r in range(0, length, BM):
        if BLOCK > 0:
            ended = (r % BLOCK == 0) & (r > 0)
            if ended:
                total += acc
                acc = tl.zeros((BN, BK), wide) + _hidden_zero(r, BLOCK).to(wide)
        if BOXES:
            row = part.to(tl.int32) * PART + r
            g = g_ptr.load([tile_n * BN, row]) if G_T else g_ptr.load([row, tile_n * BN]).T
            x = x_ptr.load([tile_k * BK, row]).T if X_T else x_ptr.load([row, tile_k * BK])
        else:
            g, x = _loaded(g_ptr, x_ptr, ns, ks, rows + r, M, N, K, stride_gm, stride_gn, stride_xm, stride_xk)
        acc = tl.dot(g, x, acc, input_precision=PRECISION, out_dtype=wide)
    if BLOCK > 0:
        several = length > BLOCK  # 0 + acc would turn the -0 of a single block into 0
        if several:
            acc += total
    offsets = (part * N + ns)[:, None] * K + ks[None, :]
    tl.store(w_ptr + offsets, acc.to(w_ptr.dtype.element_ty), mask=(ns < N)[:, None] & (ks < K)[None, :])


_strided_weight_kernel = of_any_alignment(_weight_kernel)


@triton.jit
def _exponent(top):
    """Returns e with 2^e <= top for each top > 0, and 1000 for 0, whose products need no correction."""
    return tl.where(top == 0, 1000, (top.to(tl.int32, bitcast=True) >> 23) - 127)


@of_any_alignment
@triton.jit
def _tiny_kernel(
    g_ptr,  # [M, N] float32, any strides
    x_ptr,  # [M, K] float32, any strides
    w_ptr,  # [parts, N, K] float32, contiguous: the sums of parts
    M, N, K, stride_gm, stride_gn, stride_xm, stride_xk,
    PART: tl.constexpr,
    SIDE: tl.constexpr,  # side of the square of sums that a program checks
    BM: tl.constexpr,
):  # fmt: skip
    """Computes sums below TINY again in float64, if no product of their columns is larger than TINY.

    See "Error of float32" above.
    """
    tiles_k = tl.cdiv(K, SIDE)
    tiles = tl.cdiv(N, SIDE) * tiles_k
    part = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    ns = (tile // tiles_k).to(tl.int64) * SIDE + tl.arange(0, SIDE)
    ks = (tile % tiles_k).to(tl.int64) * SIDE + tl.arange(0, SIDE)
    w_at = w_ptr + (part * N + ns)[:, None] * K + ks[None, :]
    tiny = tl.abs(tl.load(w_at, mask=(ns < N)[:, None] & (ks < K)[None, :], other=1.0)) < TINY
    if tl.max(tl.max(tiny.to(tl.int32), 1), 0) > 0:
        rows = part * PART + tl.arange(0, BM)
        length = tl.minimum(M - part * PART, PART).to(tl.int32)
        top_g = tl.zeros((SIDE,), tl.float32)
        top_x = tl.zeros((SIDE,), tl.float32)
        for r in range(0, length, BM):
            g, x = _loaded(g_ptr, x_ptr, ns, ks, rows + r, M, N, K, stride_gm, stride_gn, stride_xm, stride_xk)
            top_g = tl.maximum(top_g, tl.max(tl.abs(g), 1))
            top_x = tl.maximum(top_x, tl.max(tl.abs(x), 0))
        tiny = tiny & (_exponent(top_g)[:, None] + _exponent(top_x)[None, :] < -108)
        if tl.max(tl.max(tiny.to(tl.int32), 1), 0) > 0:
            acc = tl.zeros((SIDE, SIDE), tl.float64)
            for r in range(0, length, BM):
                g, x = _loaded(g_ptr, x_ptr, ns, ks, rows + r, M, N, K, stride_gm, stride_gn, stride_xm, stride_xk)
                acc = tl.dot(g.to(tl.float64), x.to(tl.float64), acc, input_precision="ieee", out_dtype=tl.float64)
            tl.store(w_at, acc.to(tl.float32), mask=tiny)


# ---------------------------------------------------------------------------------------- launchers


def _configs(dtype: torch.dtype, allow_tf32: bool) -> list[Config]:
    """Returns the launch configurations from which `choose` picks the fastest."""
    return configs_of(PRODUCT_CONFIGS, dtype, allow_tf32)


def _aligned(g: Tensor, x: Tensor, w: Tensor) -> bool:
    """True if all addresses, the sizes of the result and the strides other than 1 are multiples of 16.

    Then `_weight_kernel` applies, which Triton compiles for them. Otherwise `_strided_weight_kernel` does.
    """
    strides = all(min(t.stride()) == 1 and max(t.stride()) % 16 == 0 for t in (g, x))
    return strides and not any(size % 16 for size in w.shape) and all(t.data_ptr() % 16 == 0 for t in (g, x, w))


def _launch_weight(g: Tensor, x: Tensor, w: Tensor, sums: Tensor | None, allow_tf32: bool) -> None:
    """Writes w = g^T @ x.

    Args:
        sums: [parts, N, K] memory for the sums of parts; None: one part holds all rows
    """
    (m, n), k = g.shape, x.shape[1]
    part = rows_of_weight_part(m, n, k, g.dtype)
    parts = 1 if sums is None else len(sums)
    out = w if sums is None else sums
    with torch.cuda.device_of(g):  # which may differ from the current device
        transposed = hopper_product.transposed_operands(g.t(), x.t(), k)
        if transposed is not None:
            units = hopper_product.units_of(g.device)
            # the tiles of all parts are one grid, as if one part had so many times the rows of dW
            bn, bk, bm, warps, stages = config = hopper_product.tile(n * parts, k, min(m, part), units)
            if config == hopper_product.PERSISTENT and parts == 1 and m > 128:
                hopper_product.launch(
                    g.t(), x.t(), transposed, w, w, w, w, triton.cdiv(n, 128) * triton.cdiv(k, 256), units,
                    gap=128, mode=0, has_bias=False, step=256, group=_GROUP, finish=hopper_product.plain_finish,
                )  # fmt: skip
            else:
                g_t, x_t = (not t for t in transposed)
                run(
                    _weight_kernel, (triton.cdiv(n, bn) * triton.cdiv(k, bk) * parts,),
                    hopper_product.described(g, g_t, bm, bn), hopper_product.described(x, x_t, bm, bk), out,
                    m, n, k, 0, 0, 0, 0, PRECISION="ieee", PART=part, BLOCK=0, BN=bn, BK=bk, BM=bm, GROUP=_GROUP,
                    BOXES=True, G_T=g_t, X_T=x_t, num_warps=warps, num_stages=stages,
                    **overlapping(g.device),
                )  # fmt: skip
        else:
            tf32 = allow_tf32 and g.dtype == torch.float32
            block = BLOCK if g.dtype.itemsize > 2 and not tf32 else 0
            kernel = _weight_kernel if _aligned(g, x, w) else _strided_weight_kernel

            def launch(config: Config) -> None:
                bn, bk, bm, warps, stages = config
                run(
                    kernel, (triton.cdiv(n, bn) * triton.cdiv(k, bk) * parts,),
                    g, x, out, m, n, k, *g.stride(), *x.stride(),
                    PRECISION="tf32" if tf32 else "ieee", PART=part, BLOCK=block,
                    BN=bn, BK=bk, BM=bm, GROUP=_GROUP, num_warps=warps, num_stages=stages,
                )  # fmt: skip

            major = (g.stride(1) == 1, x.stride(1) == 1)
            key = ("linear_weight", g.device, g.dtype, tf32, m.bit_length(), n, k, major)
            launch(choose(key, few(n * k * parts, _configs(g.dtype, allow_tf32)), launch))
            if m > BLOCK and g.dtype == torch.float32 and not tf32:
                side, bm = 32, 1024 if INTERPRETED else 16
                run(
                    _tiny_kernel, (triton.cdiv(n, side) * triton.cdiv(k, side) * parts,),
                    g, x, out, m, n, k, *g.stride(), *x.stride(), PART=part, SIDE=side, BM=bm, num_warps=4,
                )  # fmt: skip
        if sums is not None:
            parts_added(sums, w)


# ------------------------------------------------------------------------------------- custom ops


@operator("verify_kernels::linear_weight_gradient")
def weight_gradient(g: Tensor, x: Tensor, allow_tf32: bool) -> Tensor:
    """Returns g^T @ x for g: [M, N] and x: [M, K] of any strides."""
    w = g.new_empty((g.shape[1], x.shape[1]))
    if w.numel() > 0:
        parts = triton.cdiv(len(g), rows_of_weight_part(len(g), g.shape[1], x.shape[1], g.dtype))
        sums = g.new_empty((parts, *w.shape), dtype=WIDE.get(g.dtype, torch.float32)) if parts > 1 else None
        _launch_weight(g, x, w, sums, allow_tf32)
    return w


@weight_gradient.register_fake
def _(g: Tensor, x: Tensor, allow_tf32: bool) -> Tensor:
    return g.new_empty((g.shape[1], x.shape[1]))


# ----------------------------------------------------------------------------------------- autograd


def _differentiate(ctx: Any, u: Tensor) -> tuple[Any, ...]:
    """Returns the gradients of g and x for the gradient u of the result: x @ u^T and g @ u, by `weight_gradient`."""
    g, x = ctx.saved_tensors
    of_g = weight_gradient(x.t(), u.t(), *ctx.values) if ctx.needs_input_grad[0] else None
    of_x = weight_gradient(g.t(), u, *ctx.values) if ctx.needs_input_grad[1] else None
    return of_g, of_x, None


weight_gradient.register_autograd(_differentiate)
