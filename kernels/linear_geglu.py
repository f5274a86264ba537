"""A linear layer to 2 d features and GEGLU in one kernel: p1 * gelu(p2), rounded once.

    linear_geglu(x, weight, bias)     p = x @ weight.T + bias;  p[..., :d] * gelu(p[..., d:])

Mathematics (x: [..., K], W: [2d, K], b: [2d], y: [..., d]), with p = x @ W^T + b and its halves p1, p2:

    y = p1 gelu(p2)        dp1 = dy gelu(p2)        dp2 = dy p1 gelu'(p2)
    gelu(a) = a Phi(a) ("none") or a sigmoid(2 sqrt(2/pi) (a + 0.044715 a^3)) ("tanh")

Rounding points. Products are exact (16 bits) or fused (float32, float64). A sum is one chain in the order of k, float32
(float64 for float64), and does not depend on the tile shape, the strides or the number of rows. A tile holds the same
columns of both halves. So bias, gelu and the product are applied to the unrounded sums, and y is rounded once. float32
is IEEE float32 throughout; with `allow_tf32=True` the matrix units drop 13 bits of x and W. In bfloat16 gelu(p2) and
gelu'(p2) reach down to 2^-252, far below float32, because a large factor can bring the product back into range.

Launches. On Hopper, hopper_product.py computes 16-bit products. The second 128 rows of B's tile are the same features
of the second half, and 32 rows of tiles stay together, which is faster than 8. At M, K, 2d = 8192, 4096, 22016 the
forward pass takes 0.998 (bfloat16) and 0.989 (float16) of the time of cuBLAS's bare product on an H200.

Backward. One kernel writes dp1 and dp2 into one packed [M, 2d] tensor and sums its columns (db). dx = dp @ W is a
product of its own. So is dW = dp^T @ x, a sum over rows in two or three levels (linear_weight.py). p is stored, or
computed again with recompute=True. Every sum has a fixed order, so a dy that is not contiguous or starts off a multiple
of 16 bytes is copied first.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from . import hopper_product
from .arithmetic import narrowed
from .checks import MODEL, Contract, check_approximate, rounds_as_model, under
from .eager_math import eager_gated, eager_gated_gradients
from .gelu_autograd import derivatives
from .gelu_of_sums import gelu_slope, times_gelu, unlifted
from .hopper_product import halves, send
from .launch import of_any_alignment, overlapping, wait_for_previous
from .linear_act import make_differentiable
from .linear_layers import (
    Config,
    activation_gradient,
    autocast,
    check_layer,
    check_operands,
    choose,
    configs_of,
    few,
    in_sixteens,
    matrix,
    tile_of,
    wants_gradient,
)
from .operators import operator
from .plans import run

# A kernel's MODE: 1 GEGLU with erf, 2 GEGLU with tanh; plus this or not
SAVE: tl.constexpr = tl.constexpr(4)  # also store the rounded pre-activation
ROUNDED: tl.constexpr = tl.constexpr(8)  # contract="model": round p and gelu(p2), as a layer of three operators does


# -------------------------------------------------------------------------- the kernel for any device


@triton.jit(do_not_specialize=["M"])
def _tile_kernel(
    a_ptr,  # [M, K], any strides; with BOXES a descriptor
    b_ptr,  # [2N, K], any strides; with BOXES a descriptor
    bias_ptr,  # [2N], contiguous; only with HAS_BIAS
    y_ptr,  # [M, N], contiguous
    pre_ptr,  # [M, 2N], contiguous: the rounded pre-activation; only with SAVE
    M, N, K, stride_am, stride_ak, stride_bn, stride_bk,
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
    first = tl.zeros((BM, BN), wide)  # the sums of both halves
    second = tl.zeros((BM, BN), wide)
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
        first = tl.dot(a, b, first, input_precision=PRECISION, out_dtype=wide)
        if BOXES:
            b = b_ptr.load([k, tile_n * BN + N]) if B_T else b_ptr.load([tile_n * BN + N, k]).T
        else:
            b = tl.load(b_at + gap * stride_bn, mask=b_mask, other=0.0)
        second = tl.dot(a, b, second, input_precision=PRECISION, out_dtype=wide)
    mask = (rows < M)[:, None] & (cols < N)[None, :]
    if HAS_BIAS:
        first += tl.load(bias_ptr + cols, mask=cols < N, other=0.0).to(wide)[None, :]
        second += tl.load(bias_ptr + N + cols, mask=cols < N, other=0.0).to(wide)[None, :]
    if SAVE & MODE:
        at = rows[:, None] * (2 * N) + cols[None, :]
        tl.store(pre_ptr + at, first.to(out), mask=mask)
        tl.store(pre_ptr + at + N, second.to(out), mask=mask)
    if ROUNDED & MODE:
        y = eager_gated(narrowed(first, out), narrowed(second, out), MODE % 4, out)
    elif out == tl.float32:
        y = times_gelu(first.to(tl.float64), second.to(tl.float64), MODE % 4 == 2, False)
    else:
        y = times_gelu(first, second, MODE % 4 == 2, out == tl.bfloat16)
    tl.store(y_ptr + rows[:, None] * N + cols[None, :], y.to(out), mask=mask)


_strided_tile_kernel = of_any_alignment(_tile_kernel)

# ---------------------------------------------------------- the FINISH of hopper_product.py, 16 bits


@gluon.jit
def _finish(
    x, row, col, y_desc, pre_desc, extra, out_bufs, M, N,
    WG: gl.constexpr, LATE: gl.constexpr, PART: gl.constexpr, MODE: gl.constexpr,
):  # fmt: skip
    """Finishes 64 x 64 results: GEGLU of the two halves in x."""
    if PART == 0:
        lo, hi = halves(x)
        at = col + 64 * LATE
        if ROUNDED & MODE:
            v = eager_gated(narrowed(lo, y_desc.dtype), narrowed(hi, y_desc.dtype), MODE % 4, y_desc.dtype)
        else:
            v = times_gelu(lo, hi, MODE % 4 == 2, y_desc.dtype == gl.bfloat16)
        send(v, y_desc, out_bufs.index(2 * WG + LATE), row, at)
        if SAVE & MODE:
            send(lo, pre_desc, out_bufs.index(2 * WG + 1 - LATE), row, at)
            send(hi, extra, out_bufs.index(2 * WG + LATE), row, at)


# -------------------------------------------------------------------- gradient of p, and column sums


@triton.jit(do_not_specialize=["M"])
def _gradient_kernel(
    dy_ptr,  # [M, N]; this and all pointers here: contiguous, at a multiple of 16 bytes (see dense)
    pre_ptr,  # [M, 2N], contiguous
    dp_ptr,  # [M, 2N], contiguous: both halves, rounded once; only with STORE
    part_ptr,  # [ceil(M / ROWS), 2N], float32 or float64: column sums of ROWS rows, unrounded; only with SUM
    M, N,
    TANH: tl.constexpr, STORE: tl.constexpr, SUM: tl.constexpr, ROWS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    MODEL: tl.constexpr = False,  # contract="model": the sums are of rounded numbers too
    OVERLAP: tl.constexpr = False,
):  # fmt: skip
    wait_for_previous(OVERLAP)
    tiles_n = tl.cdiv(N, BN)
    part = (tl.program_id(0) // tiles_n).to(tl.int64)
    cols = (tl.program_id(0) % tiles_n).to(tl.int64) * BN + tl.arange(0, BN)
    out: tl.constexpr = dy_ptr.dtype.element_ty
    wide: tl.constexpr = tl.float64 if out == tl.float64 else tl.float32
    # float32 gradients are computed in float64 and rounded once, 16-bit ones in float32 except for one product
    math: tl.constexpr = tl.float64 if out == tl.float32 else wide
    sum1 = tl.zeros((BM, BN), wide)
    sum2 = tl.zeros((BM, BN), wide)
    for r in range(0, ROWS, BM):
        rows = part * ROWS + r + tl.arange(0, BM)
        mask = (rows < M)[:, None] & (cols < N)[None, :]
        dy = tl.load(dy_ptr + rows[:, None] * N + cols[None, :], mask=mask, other=0.0).to(math)
        at = rows[:, None] * (2 * N) + cols[None, :]
        p1 = tl.load(pre_ptr + at, mask=mask, other=0.0).to(math)
        p2 = tl.load(pre_ptr + at + N, mask=mask, other=0.0).to(math)
        if MODEL:
            d1, d2 = eager_gated_gradients(dy, p1, p2, 1 + TANH, out)
            d1, d2 = narrowed(d1, out), narrowed(d2, out)
        else:
            d1 = times_gelu(dy, p2, TANH, out == tl.bfloat16)
            slope = gelu_slope(p2, TANH, True)
            if out == tl.bfloat16:  # dy p1 may leave float32's range; both products are exact in float64
                d2 = dy.to(tl.float64) * p1.to(tl.float64) * slope.to(tl.float64)
                d2 = unlifted(d2, p2, TANH, True).to(tl.float32)
            else:
                d2 = unlifted(dy * p1, p2, TANH, True) * slope
        if STORE:
            tl.store(dp_ptr + at, d1.to(out), mask=mask)
            tl.store(dp_ptr + at + N, d2.to(out), mask=mask)
        if SUM:
            sum1 += d1.to(wide)
            sum2 += d2.to(wide)
    if SUM:
        at = part_ptr + part * (2 * N) + cols
        tl.store(at, tl.sum(sum1, 0), mask=cols < N)
        tl.store(at + N, tl.sum(sum2, 0), mask=cols < N)


# ---------------------------------------------------------------------------------------- launchers


_CONFIGS = {
    "float64": [(64, 64, 16, 4, 2)],
    "float32": [(64, 64, 16, 8, 3), (128, 64, 16, 8, 2)],
    "tf32": [(128, 64, 32, 8, 3), (64, 64, 32, 4, 4)],
    "16 bits": [(128, 128, 64, 8, 3), (64, 128, 64, 4, 3)],
}


def _configs(dtype: torch.dtype, allow_tf32: bool) -> list[Config]:
    return configs_of(_CONFIGS, dtype, allow_tf32)


def _launch_tiles(
    a: Tensor, b: Tensor, bias: Tensor | None, y: Tensor, pre: Tensor | None, mode: int, allow_tf32: bool
) -> None:
    """Writes y = GEGLU of a @ b^T + bias; a [M, K] and b [2N, K] have any strides."""
    (m, k), n = a.shape, y.shape[1]
    if m == 0 or n == 0:
        return
    has_bias = bias is not None
    # each argument must be a tensor, even if the mode does not read it
    bias, pre = (y if t is None else t for t in (bias, pre))
    with torch.cuda.device_of(a):  # which may differ from the current device
        transposed = hopper_product.transposed_operands(a, b, n)
        if transposed is not None:
            units = hopper_product.units_of(a.device)
            bm, bn, bk, warps, stages = config = hopper_product.tile(m, 2 * n, k, units)
            if config != hopper_product.PERSISTENT or k <= 128:
                bn //= 2  # of each half
                run(
                    _tile_kernel, (triton.cdiv(m, bm) * triton.cdiv(n, bn),),
                    hopper_product.described(a, transposed[0], bm, bk),
                    hopper_product.described(b, transposed[1], bn, bk), bias, y, pre, m, n, k, 0, 0, 0, 0,
                    MODE=mode, HAS_BIAS=has_bias, PRECISION="ieee", BM=bm, BN=bn, BK=bk, GROUP=8,
                    BOXES=True, A_T=transposed[0], B_T=transposed[1], num_warps=warps, num_stages=stages,
                    **overlapping(a.device),
                )  # fmt: skip
                return
            tiles = triton.cdiv(m, 128) * triton.cdiv(n, 128)
            first, second = (pre[:, :n], pre[:, n:]) if mode & SAVE.value else (y, y)
            hopper_product.launch(
                a, b, transposed, y, first, hopper_product.boxes(second, 64, 64), bias, tiles, units,
                gap=n, mode=mode, has_bias=has_bias, step=128, group=32, finish=_finish,
            )  # fmt: skip
            return
        precision = "tf32" if allow_tf32 and a.dtype == torch.float32 else "ieee"
        kernel = _tile_kernel if in_sixteens(a, b, bias, y, pre) else _strided_tile_kernel

        def launch(config: Config) -> None:
            bm, bn, bk, warps, stages = config
            run(
                kernel, (triton.cdiv(m, bm) * triton.cdiv(n, bn),),
                a, b, bias, y, pre, m, n, k, *a.stride(), *b.stride(),
                MODE=mode, HAS_BIAS=has_bias, PRECISION=precision,
                BM=bm, BN=bn, BK=bk, GROUP=8, num_warps=warps, num_stages=stages,
            )  # fmt: skip

        major = (a.stride(1) == 1, b.stride(1) == 1)
        key = ("linear_geglu", a.device, a.dtype, precision, m.bit_length(), n, k, major, mode, has_bias)
        launch(choose(key, few(m * n, _configs(a.dtype, allow_tf32)), launch))


# ------------------------------------------------------------------------------------- custom ops


def _layer_outputs(
    x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str, save_pre: bool, allow_tf32: bool
) -> tuple[Tensor, Any]:
    """Returns memory for the result, and for p if `save_pre`, else None."""
    y = x.new_empty((*x.shape[:-1], weight.shape[0] // 2))
    return y, x.new_empty((*x.shape[:-1], weight.shape[0])) if save_pre else None


@operator("verify_kernels::linear_geglu")
def _linear_geglu(
    x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str, save_pre: bool, allow_tf32: bool
) -> tuple[Tensor, Tensor]:
    """Returns GEGLU of p = x @ weight^T + bias, and p if `save_pre`, else None."""
    y, pre = _layer_outputs(x, weight, bias, approximate, save_pre, allow_tf32)
    mode = (2 if approximate.endswith("tanh") else 1) + (SAVE.value if save_pre else 0)
    mode += ROUNDED.value * rounds_as_model(approximate, x.dtype)
    bias = None if bias is None else bias.contiguous()
    _launch_tiles(matrix(x), weight, bias, matrix(y), matrix(pre) if save_pre else None, mode, allow_tf32)
    return y, pre


_linear_geglu.register_fake(_layer_outputs)


@operator("verify_kernels::linear_geglu_gradient")
def _gradient(dy: Tensor, pre: Tensor, approximate: str, total: bool) -> tuple[Tensor, Tensor]:
    """Returns dp, [M, 2d] with both halves in one tensor, and its column sums if `total`, else None."""
    columns = 2 * dy.shape[1]
    tanh, model = approximate.endswith("tanh"), rounds_as_model(approximate, dy.dtype)
    return activation_gradient(
        _gradient_kernel, (8, 128, 4), dy, pre, columns, True, total, TANH=tanh, MODEL=model
    )  # fmt: skip


@_gradient.register_fake
def _(dy: Tensor, pre: Tensor, approximate: str, total: bool) -> Any:
    m, n = dy.shape
    return dy.new_empty((m, 2 * n)), dy.new_empty((2 * n,)) if total else None


# ----------------------------------------------------------------------------------------- autograd


def _gradient_of(call: Any, dy: Tensor, pre: Tensor, approximate: str, total: bool) -> tuple[Any, Any]:
    return call(_gradient)(dy, pre, approximate, total)


_backward = make_differentiable(_linear_geglu, "verify_kernels::linear_geglu_backward", _gradient_of)


def _differentiate_gradient(ctx: Any, u: Tensor | None, ub: Tensor | None) -> tuple[Any, ...]:
    """Returns the gradients of dy and of the pre-activation, in float64.

    With upstream u of dp, to which the upstream of db is added: d dy = u1 gelu + u2 p1 gelu', and so on.
    """
    (dy, pre), (approximate, total) = ctx.saved_tensors, ctx.values
    if total and ub is not None:
        u = ub.expand(pre.shape) if u is None else u + ub
    if u is None:
        return None, None, None, None
    (u1, u2), (p1, p2), d = u.double().chunk(2, -1), pre.double().chunk(2, -1), dy.double()
    value, slope, curve = derivatives(p2, approximate.removeprefix(MODEL))
    of_dy = u1 * value + u2 * p1 * slope
    of_pre = torch.cat((u2 * d * slope, d * (u1 * slope + u2 * p1 * curve)), -1)
    return of_dy.to(dy.dtype), of_pre.to(pre.dtype), None, None


_gradient.register_autograd(_differentiate_gradient)

# --------------------------------------------------------------------------------- public functions


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str, save_pre: bool, allow_tf32: bool) -> None:
    check_approximate("linear_geglu", approximate)
    check_operands("linear_geglu", "x", x, (("weight", weight), ("bias", bias)))
    if weight.dim() == 2 and weight.shape[0] % 2:
        n = weight.shape[0]
        raise ValueError(f"linear_geglu: weight must have an even number of output features, two halves, got {n}")
    check_layer("linear_geglu", x, weight, bias)


def linear_geglu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    approximate: str = "none",
    recompute: bool = False,
    allow_tf32: bool = False,
    contract: Contract = "once",
) -> Tensor:
    """Returns p1 * gelu(p2), rounded once, with p = x @ weight.T + bias and its halves p1, p2.

    x: [..., K] and weight: [2d, K] may have any strides. The result is [..., d]. If a gradient is needed, p is stored,
    rounded to x's dtype. recompute=True stores nothing and computes p again. contract="model" rounds p and gelu(p2)
    too, as p1 * torch.nn.functional.gelu(p2) does.
    """
    how = under(contract, "linear_geglu", approximate)
    x, weight, bias = autocast(x, weight, bias)
    save = not recompute and wants_gradient(x, weight, bias)
    return _linear_geglu.checked(_check, x, weight, bias, how, save, allow_tf32)[0]
