"""A linear layer and its activation in one kernel: act(x @ W^T + b), rounded once.

    linear_act(x, weight, bias, activation="gelu")        act(x @ weight.T + bias)
    linear_data_grad(dy, weight, pre, activation)         (dy @ weight) * act'(pre)

Mathematics, with a = x @ W^T + b (x: [..., K], W: [N, K], b: [N]):

    "id"            a                          1
    "gelu"          a Phi(a)                   Phi(a) + a phi(a)
    "gelu_tanh"     a S(a)                     S(a) + a S'(a),  S(a) = sigmoid(2 sqrt(2/pi) (a + 0.044715 a^3))
    "squared_relu"  max(a, 0)^2                2 max(a, 0)

Rounding points. Products are exact (16 bits) or fused (float32, float64). A sum is one chain in the order of k, float32
(float64 for float64). It does not depend on the tile shape, the strides or the number of rows: a row gives the same
bits alone and among others. The kernel adds the bias to that sum, applies the activation and rounds once to the
output's dtype. A product followed by PyTorch's activation rounds twice. float32 is IEEE float32 throughout; with
`allow_tf32=True` the matrix units drop 13 bits of x and W. gelu_of_sums.py has the activations and their errors.

Launches. On Hopper, a persistent kernel computes 16-bit products (hopper_product.py). It computes half of a tile's
activations while the matrix units work on the next tile. A plain tiled kernel computes the same sums, bit for bit, on
other devices, for K <= 128, for small products, whose tiles it chooses by their sizes so that they fill the GPU, and
for shapes and strides that the copy engine cannot address. On Hopper it also computes the last few tiles, cut into tiny
ones, if the whole rounds of one tile per processor leave only few (_rounds). At M, K, N = 8192, 4096, 16384, where 4 of
4096 tiles remain, the forward pass then takes 1.000 (bfloat16) and 0.991 (float16) of the time of cuBLAS's bare
product on an H200; without it 1.027 and 1.019.

Backward. One pass computes g = dy * act'(pre) and db. Then dx = g @ W uses the kernels above. dW = g^T @ x is a sum
over rows in two or three levels (linear_weight.py). `pre` is the rounded pre-activation. The forward pass stores it if
a gradient is needed. With recompute=True it stores nothing and the backward pass computes it again: a fourth product.
Every sum has a fixed order, so a dy that is not contiguous or starts off a multiple of 16 bytes is copied first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from . import hopper_product
from .arithmetic import narrowed
from .checks import MODEL, Contract, rounds_as_model, under
from .eager_math import eager_times_slope, eager_value
from .gelu import second
from .gelu_autograd import derivatives
from .gelu_of_sums import gelu_slope, gelu_value, unlifted
from .hopper_product import halves, send
from .launch import of_any_alignment, overlapping, wait_for_previous
from .linear_layers import (
    PRODUCT_CONFIGS,
    Config,
    activation_gradient,
    autocast,
    check_layer,
    check_operands,
    check_weight,
    choose,
    configs_of,
    few,
    in_sixteens,
    matrix,
    rows_of_part,
    shaped,
    tile_of,
    wants_gradient,
)
from .linear_weight import weight_gradient
from .operators import launcher_of, operator
from .plans import run

_ACTIVATIONS = {"id": 0, "gelu": 1, "gelu_tanh": 2, "squared_relu": 3}
# A kernel's MODE is the number of the activation plus any of these.
GRAD: tl.constexpr = tl.constexpr(4)  # multiply the sum by act'(the saved pre-activation)
SAVE: tl.constexpr = tl.constexpr(8)  # also store the rounded pre-activation
ROUNDED: tl.constexpr = tl.constexpr(16)  # contract="model": round the sum first, as a layer of two operators does


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


# -------------------------------------------------------------------------- the kernel for any device


@triton.jit(do_not_specialize=["M"])
def _tile_kernel(
    a_ptr,  # [M, K], any strides; with BOXES a descriptor
    b_ptr,  # [N, K], any strides; with BOXES a descriptor
    bias_ptr,  # [N], contiguous; only with HAS_BIAS
    gate_ptr,  # [M, N], laid out as y: the pre-activation whose slope multiplies the sum; only with GRAD
    y_ptr,  # [M, N], rows of neighbouring numbers
    pre_ptr,  # [M, N], laid out as y: the rounded pre-activation; only with SAVE
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
    for k in range(0, K, BK):
        if BOXES:
            a = a_ptr.load([k, tile_m * BM]).T if A_T else a_ptr.load([tile_m * BM, k])
            b = b_ptr.load([k, tile_n * BN]) if B_T else b_ptr.load([tile_n * BN, k]).T
        else:
            at = k + ks
            a = tl.load(
                a_ptr + rows[:, None] * stride_am + at[None, :] * stride_ak,
                mask=(rows < M)[:, None] & (at < K)[None, :],
                other=0.0,
            )
            b = tl.load(
                b_ptr + cols[None, :] * stride_bn + at[:, None] * stride_bk,
                mask=(cols < N)[None, :] & (at < K)[:, None],
                other=0.0,
            )
        acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=wide)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + cols, mask=cols < N, other=0.0).to(wide)[None, :]
    offsets = rows[:, None] * stride_ym + cols[None, :]
    mask = (rows < M)[:, None] & (cols < N)[None, :]
    if SAVE & MODE:
        tl.store(pre_ptr + offsets, acc.to(out), mask=mask)
    if GRAD & MODE:
        y = _times_slope(acc, tl.load(gate_ptr + offsets, mask=mask, other=0.0).to(wide), MODE, out)
    else:
        y = _value(acc, MODE, out)
    tl.store(y_ptr + offsets, y.to(out), mask=mask)


_strided_tile_kernel = of_any_alignment(_tile_kernel)

# ---------------------------------------------------------- the FINISH of hopper_product.py, 16 bits


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


# --------------------------------------------------------- gradient of the activation, and column sums


@triton.jit(do_not_specialize=["M"])
def _gradient_kernel(
    dy_ptr,  # [M, N]; this and all pointers here: contiguous, at a multiple of 16 bytes (see dense)
    pre_ptr,  # [M, N], contiguous; not read if the activation is "id"
    g_ptr,  # [M, N], contiguous: dy * act'(pre), rounded once; only with STORE
    part_ptr,  # [ceil(M / ROWS), N], float32 or float64: sums of ROWS rows of g; only with SUM
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
    total = tl.zeros((BM, BN), wide)
    for r in range(0, ROWS, BM):
        rows = part * ROWS + r + tl.arange(0, BM)
        mask = (rows < M)[:, None] & (cols < N)[None, :]
        at = rows[:, None] * N + cols[None, :]
        g = tl.load(dy_ptr + at, mask=mask, other=0.0).to(wide)
        if MODE != 0:
            g = _times_slope(g, tl.load(pre_ptr + at, mask=mask, other=0.0).to(wide), MODE, out)
        if ROUNDED & MODE:
            g = narrowed(g, out)
        if STORE:
            tl.store(g_ptr + at, g.to(out), mask=mask)
        if SUM:
            total += g.to(wide)
    if SUM:
        tl.store(part_ptr + part * N + cols, tl.sum(total, 0), mask=cols < N)


# ---------------------------------------------------------------------------------------- launchers


def _mode(activation: str, dtype: torch.dtype) -> int:
    """Returns the MODE of an activation, with ROUNDED if it is that of contract="model"."""
    return _ACTIVATIONS[activation.removeprefix(MODEL)] + ROUNDED.value * rounds_as_model(activation, dtype)


def _configs(dtype: torch.dtype, allow_tf32: bool) -> list[Config]:
    return configs_of(PRODUCT_CONFIGS, dtype, allow_tf32)


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
    a: Tensor,
    b: Tensor,
    bias: Tensor,
    gate: Tensor,
    y: Tensor,
    pre: Tensor,
    mode: int,
    has_bias: bool,
    transposed: tuple[bool, bool],
) -> None:
    """Computes what _launch_tiles returns with the persistent kernel, and tiny tiles for the last few."""
    (m, k), n = a.shape, b.shape[0]
    tiles_m, tiles_n = triton.cdiv(m, 128), triton.cdiv(n, 256)
    units = hopper_product.units_of(a.device)
    bm, bn, bk = _TINY
    tiles, rest_m, rest_n = tiles_m * tiles_n, 0, 0
    # K must be a multiple of bk: else the last step would add more zeros than the Hopper kernel's step of 64, and zeros
    # can turn a sum of -0 into 0. A must not be transposed: the tile kernel would load it number by number. At K = 4096
    # a round takes 52 us and the second launch 8 us (H200). K >= 1024 is an estimate of where it pays.
    if k >= 1024 and k % bk == 0 and not transposed[0] and in_sixteens(a, b, bias, gate, y, pre):
        tiles, rest_m, rest_n = _rounds(tiles_m, tiles_n, units, _GROUP)
    hopper_product.launch(
        a, b, transposed, y, pre, gate, bias, tiles, units,
        gap=128, mode=mode, has_bias=has_bias, step=256, group=_GROUP, finish=_finish,
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


def _launch_tiles(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    gate: Tensor | None,
    y: Tensor,
    pre: Tensor | None,
    mode: int,
    allow_tf32: bool,
) -> None:
    """Writes y = act(a @ b^T + bias), or (a @ b^T) * act'(gate); a [M, K] and b [N, K] have any strides."""
    (m, k), n = a.shape, b.shape[0]
    if m == 0 or n == 0:
        return
    has_bias = bias is not None
    # each argument must be a tensor, even if the mode does not read it
    bias, gate, pre = (y if t is None else t for t in (bias, gate, pre))
    with torch.cuda.device_of(a):  # which may differ from the current device
        transposed = hopper_product.transposed_operands(a, b, n)
        if transposed is not None:
            config = hopper_product.tile(m, n, k, hopper_product.units_of(a.device))
            if config == hopper_product.PERSISTENT and k > 128:
                _launch_hopper(a, b, bias, gate, y, pre, mode, has_bias, transposed)
                return
            bm, bn, bk, warps, stages = config
            run(
                _tile_kernel, (triton.cdiv(m, bm) * triton.cdiv(n, bn),),
                hopper_product.described(a, transposed[0], bm, bk), hopper_product.described(b, transposed[1], bn, bk),
                bias, gate, y, pre, m, n, k, 0, 0, 0, 0, n, MODE=mode, HAS_BIAS=has_bias, PRECISION="ieee",
                BM=bm, BN=bn, BK=bk, GROUP=_GROUP, BOXES=True, A_T=transposed[0], B_T=transposed[1],
                num_warps=warps, num_stages=stages, **overlapping(a.device),
            )  # fmt: skip
            return
        precision = "tf32" if allow_tf32 and a.dtype == torch.float32 else "ieee"
        kernel = _tile_kernel if in_sixteens(a, b, bias, gate, y, pre) else _strided_tile_kernel

        def launch(config: Config) -> None:
            bm, bn, bk, warps, stages = config
            run(
                kernel, (triton.cdiv(m, bm) * triton.cdiv(n, bn),),
                a, b, bias, gate, y, pre, m, n, k, *a.stride(), *b.stride(), n,
                MODE=mode, HAS_BIAS=has_bias, PRECISION=precision,
                BM=bm, BN=bn, BK=bk, GROUP=_GROUP, num_warps=warps, num_stages=stages,
            )  # fmt: skip

        major = (a.stride(1) == 1, b.stride(1) == 1)
        key = ("linear_act", a.device, a.dtype, precision, m.bit_length(), n, k, major, mode, has_bias)
        launch(choose(key, few(m * n, _configs(a.dtype, allow_tf32)), launch))


# ------------------------------------------------------------------------------------- custom ops


def _layer_outputs(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, save_pre: bool, allow_tf32: bool
) -> tuple[Tensor, Any]:
    """Returns memory for the result, and for the pre-activation if `save_pre`, else None."""
    y = x.new_empty((*x.shape[:-1], weight.shape[0]))
    return y, torch.empty_like(y) if save_pre else None


@operator("verify_kernels::linear_act")
def _linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, save_pre: bool, allow_tf32: bool
) -> tuple[Tensor, Tensor]:
    """Returns act(x @ weight^T + bias), and the pre-activation if `save_pre`, else None."""
    y, pre = _layer_outputs(x, weight, bias, activation, save_pre, allow_tf32)
    mode = _mode(activation, x.dtype) + (SAVE.value if save_pre else 0)
    bias = None if bias is None else bias.contiguous()
    _launch_tiles(matrix(x), weight, bias, None, matrix(y), matrix(pre) if save_pre else None, mode, allow_tf32)
    return y, pre


_linear.register_fake(_layer_outputs)


@operator("verify_kernels::linear_act_data_grad")
def _data_grad(dy: Tensor, weight: Tensor, pre: Tensor, activation: str, allow_tf32: bool) -> Tensor:
    """Returns (dy @ weight) * act'(pre)."""
    dx = dy.new_empty((*dy.shape[:-1], weight.shape[1]))
    mode, pre = _mode(activation, dy.dtype) + GRAD.value, matrix(pre).contiguous()
    _launch_tiles(matrix(dy), weight.t(), None, pre, matrix(dx), None, mode, allow_tf32)
    return dx


@_data_grad.register_fake
def _(dy: Tensor, weight: Tensor, pre: Tensor, activation: str, allow_tf32: bool) -> Any:
    return dy.new_empty((*dy.shape[:-1], weight.shape[1]))


@operator("verify_kernels::linear_act_gradient")
def _gradient(dy: Tensor, pre: Tensor, activation: str, store: bool, total: bool) -> tuple[Tensor, Tensor]:
    """Returns dy * act'(pre) if `store`, its column sums if `total`, else None. pre is not read for "id"."""
    m, n = dy.shape
    # the fastest of twelve for 16 bits on an H100: 265 us become 218 for 8192 x 16384
    tile = (32, 64, 2) if rows_of_part(m, n) == 32 else (8, 128, 4) if m * n >= 1 << 26 else (16, 128, 4)
    if dy.dtype.itemsize > 2:  # float64 has no registers for two warps
        tile = (*tile[:2], 4)
    mode = _mode(activation, dy.dtype)
    return activation_gradient(_gradient_kernel, tile, dy, dy if mode == 0 else pre, n, store, total, MODE=mode)


@_gradient.register_fake
def _(dy: Tensor, pre: Tensor, activation: str, store: bool, total: bool) -> Any:
    m, n = dy.shape
    return dy.new_empty((m, n)) if store else None, dy.new_empty((n,)) if total else None


# ----------------------------------------------------------------------------------------- autograd


_OF_GELU = {"gelu": "none", "gelu_tanh": "tanh"}  # the forms of gelu.py


def _times_curvature(u: Tensor, m: Tensor, pre: Tensor, act: str) -> Tensor:
    """Returns u m act''(pre) in differentiable operations, for second derivatives."""
    x, act = pre.double(), act.removeprefix(MODEL)
    if act in _OF_GELU:
        bend = derivatives(x, _OF_GELU[act])[2]
    else:
        bend = 2.0 * (x > 0) if act == "squared_relu" else torch.zeros_like(x)
    return (u.double() * m.double() * bend).to(pre.dtype)


def make_differentiable(layer: Any, name: str, gradient_of: Callable[..., tuple[Any, Any]]) -> Any:
    """Registers the derivatives of a layer, an operator with the arguments and results of `_linear`.

    Args:
        name: of the operator that computes a whole backward pass, for gradients that are not differentiated again
        gradient_of: gradient_of(call, dy, pre, how, total) returns the gradient of the pre-activation, and its column
            sums or None; it calls an operator as call(operator)(...)

    Returns:
        the operator of the backward pass
    """

    def gradients(
        dy: Tensor | None, dpre: Tensor | None, x: Tensor, weight: Tensor, bias: Tensor | None, pre: Tensor | None,
        how: str, need_x: bool, need_w: bool, need_b: bool, allow_tf32: bool, call: Callable[[Any], Any],
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        """Returns dx, dweight and dbias, None for each that is not needed. dpre: gradient of the saved pre-activation.

        If `call` returns the operators themselves, which are differentiable, the results are differentiable.
        """
        linear, shape, x = call(_linear), x.shape, matrix(x)
        g = db = None
        if dy is not None:
            g = matrix(dy).contiguous()  # one copy serves three readers
            if how != "id":
                pre = linear(x, weight, bias, "id", False, allow_tf32)[0] if pre is None else matrix(pre)
            g, db = gradient_of(call, g, pre, how, need_b)
        if dpre is not None:  # in a second derivative
            dpre = matrix(dpre)
            more = call(_gradient)(dpre, dpre, "id", False, True)[1] if need_b else None
            g = dpre if g is None else g + dpre
            db = more if db is None or more is None else db + more
        if g is None:
            return None, None, None
        dx = shaped(linear(g, weight.t(), None, "id", False, allow_tf32)[0], shape) if need_x else None
        dw = call(weight_gradient)(g, x, allow_tf32) if need_w else None
        return dx, dw, db

    @operator(name)
    def backward(
        dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, pre: Tensor | None, how: str,
        need_x: bool, need_w: bool, need_b: bool, allow_tf32: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        return gradients(dy, None, x, weight, bias, pre, how, need_x, need_w, need_b, allow_tf32, launcher_of)

    @backward.register_fake
    def _(dy: Tensor, x: Tensor, weight: Tensor, bias: Any, pre: Any, how: str, *flags: bool) -> Any:
        shapes = x.shape, weight.shape, weight.shape[:1]
        return tuple(x.new_empty(shape) if need else None for need, shape in zip(flags[:3], shapes, strict=True))

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, weight, bias, ctx.how, ctx.saved_pre, ctx.allow_tf32 = inputs
        ctx.save_for_backward(x, weight, bias, output[1] if ctx.saved_pre else None)
        ctx.set_materialize_grads(False)

    def differentiate(ctx: Any, dy: Tensor | None, dpre: Tensor | None) -> tuple[Any, ...]:
        x, weight, bias, pre = ctx.saved_tensors
        need_x, need_w, need_b = ctx.needs_input_grad[:3]
        needs = need_x, need_w, need_b and bias is not None
        arguments = (x, weight, bias, pre, ctx.how, *needs, ctx.allow_tf32)
        dpre = dpre if ctx.saved_pre else None
        again = dy is None or dpre is not None or torch.is_grad_enabled()
        if again or (type(dy) is Tensor and dy.numel() == 0):
            found = gradients(dy, dpre, *arguments, call=lambda operator: operator)
        else:
            found = backward(dy, *arguments)
        dx, dw, db = (t if need else None for t, need in zip(found, needs, strict=True))
        return dx, dw, db, None, None, None

    layer.register_autograd(differentiate, setup_context=save)
    return backward


def _gradient_of(call: Any, dy: Tensor, pre: Tensor, activation: str, total: bool) -> tuple[Any, Any]:
    if activation != "id":
        return call(_gradient)(dy, pre, activation, True, total)
    return dy, call(_gradient)(dy, dy, "id", False, True)[1] if total else None


_backward = make_differentiable(_linear, "verify_kernels::linear_act_backward", _gradient_of)


def _data_gradients(
    call: Callable[[Any], Any], u: Tensor, dy: Tensor, weight: Tensor, pre: Tensor, act: str, need_dy: bool,
    need_w: bool, need_pre: bool, allow_tf32: bool,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Returns the gradients of dy, weight and pre for the gradient u of dx, None for each that is not needed.

    If `call` returns the operators themselves, which are differentiable, the results are differentiable.
    """
    linear, shapes = call(_linear), (dy.shape, pre.shape)
    u, dy, pre = matrix(u), matrix(dy), matrix(pre).contiguous()
    of_dy = of_w = of_pre = None
    if need_dy or need_w:
        v = u if act == "id" else call(_gradient)(u, pre, act, True, False)[0]
        of_dy = shaped(linear(v, weight, None, "id", False, allow_tf32)[0], shapes[0]) if need_dy else None
        of_w = call(weight_gradient)(dy, v, allow_tf32) if need_w else None
    if need_pre:
        product = linear(dy, weight.t(), None, "id", False, allow_tf32)[0]
        form = _OF_GELU.get(act.removeprefix(MODEL))
        if call is launcher_of and form:
            of_pre = call(second)(u, product, pre, form)
        else:
            of_pre = _times_curvature(u, product, pre, act)
        of_pre = shaped(of_pre, shapes[1])
    return of_dy, of_w, of_pre


@operator("verify_kernels::linear_act_data_grad_backward")
def _data_grad_backward(
    u: Tensor, dy: Tensor, weight: Tensor, pre: Tensor, act: str, need_dy: bool, need_w: bool, need_pre: bool,
    allow_tf32: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _data_gradients(launcher_of, u, dy, weight, pre, act, need_dy, need_w, need_pre, allow_tf32)


@_data_grad_backward.register_fake
def _(u: Tensor, dy: Tensor, weight: Tensor, pre: Tensor, act: str, *flags: bool) -> Any:
    return tuple(t.new_empty(t.shape) if need else None for need, t in zip(flags, (dy, weight, pre), strict=False))


def _differentiate_data_grad(ctx: Any, u: Tensor) -> tuple[Any, ...]:
    needs, (act, allow_tf32) = ctx.needs_input_grad[:3], ctx.values
    arguments = (u, *ctx.saved_tensors, act, *needs, allow_tf32)
    if torch.is_grad_enabled() or (
        needs[2] and act.removeprefix(MODEL) not in _OF_GELU
    ):  # not launches alone, which have a plan
        found = _data_gradients(lambda operator: operator, *arguments)
    else:
        found = _data_grad_backward(*arguments)
    return *(t if need else None for t, need in zip(found, needs, strict=True)), None, None


def _differentiate_gradient(ctx: Any, u: Tensor | None, ub: Tensor | None) -> tuple[Any, ...]:
    (dy, pre), (act, store, total) = ctx.saved_tensors, ctx.values
    u = u if store else None
    ub = ub.expand(dy.shape) if total and ub is not None else None
    if u is None and ub is None:
        return None, None, None, None, None
    both: Any = ub if u is None else u if ub is None else u + ub
    of_dy = both if act == "id" else _gradient(both, pre, act, True, False)[0]
    of_pre = _times_curvature(both, dy, pre, act) if ctx.needs_input_grad[1] and act != "id" else None
    return of_dy, of_pre, None, None, None


_data_grad.register_autograd(_differentiate_data_grad)
_gradient.register_autograd(_differentiate_gradient)

# --------------------------------------------------------------------------------- public functions


def _check_activation(op: str, activation: str) -> None:
    activation = activation.removeprefix(MODEL)
    if activation not in _ACTIVATIONS:
        names = ", ".join(_ACTIVATIONS)
        raise ValueError(f"{op}: activation must be one of {names}, got {activation!r}")


def _check_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, save_pre: bool, allow_tf32: bool
) -> None:
    _check_activation("linear_act", activation)
    check_operands("linear_act", "x", x, (("weight", weight), ("bias", bias)))
    check_layer("linear_act", x, weight, bias)


def _check_data_grad(dy: Tensor, weight: Tensor, pre: Tensor, activation: str, allow_tf32: bool) -> None:
    op = "linear_data_grad"
    _check_activation(op, activation)
    check_operands(op, "dy", dy, (("weight", weight), ("pre", pre)))
    check_weight(op, "dy", dy, weight)
    n, k = weight.shape
    if dy.shape[-1] != n:
        raise ValueError(f"{op}: weight has {n} output features, dy has {dy.shape[-1]}")
    if pre.shape != (*dy.shape[:-1], k):
        raise ValueError(f"{op}: pre must have shape {(*dy.shape[:-1], k)}, got {tuple(pre.shape)}")


def linear_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "id",
    return_pre: bool = False,
    recompute: bool = False,
    allow_tf32: bool = False,
    contract: Contract = "once",
) -> Tensor | tuple[Tensor, Tensor]:
    """Returns act(x @ weight.T + bias), rounded once. return_pre=True adds the rounded pre-activation.

    x: [..., K] and weight: [N, K] may have any strides; weight.t() of a [K, N] matrix is read in place. If a gradient
    is needed, the pre-activation is stored, rounded to x's dtype. recompute=True stores nothing and computes it again.
    contract="model" rounds the pre-activation before its activation too, as act(torch.nn.functional.linear(...)) does.
    """
    how = under(contract, "linear_act", activation) if activation != "id" else activation
    x, weight, bias = autocast(x, weight, bias)
    wanted = not recompute and activation != "id" and wants_gradient(x, weight, bias)
    y, pre = _linear.checked(_check_linear, x, weight, bias, how, return_pre or wanted, allow_tf32)
    return (y, pre) if return_pre else y


def linear_data_grad(
    dy: Tensor, weight: Tensor, pre: Tensor, activation: str, *, allow_tf32: bool = False, contract: Contract = "once"
) -> Tensor:
    """Returns (dy @ weight) * act'(pre) in one kernel: the gradient that the previous layer needs.

    dy: [..., N], weight: [N, K]; pre: [..., K], the pre-activation whose activation was this layer's input.
    """
    how = under(contract, "linear_data_grad", activation) if activation != "id" else activation
    return _data_grad.checked(_check_data_grad, dy, weight, pre, how, allow_tf32)
