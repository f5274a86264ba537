"""RMS norm in Triton, forward and backward: layer norm's kernels without a mean, with one rounding per output.

>>> y = rms_norm(x, weight, eps=1e-6)
>>> y, s = rms_norm_residual(x, residual, weight)  # s = x + residual

Each row v of N numbers (v = x, or the sum s *before* it is rounded to the residual's dtype) gives

    rstd = 1 / sqrt(sum(v^2) / N + eps)         xhat = v rstd         y = xhat weight

and, for upstream gradients dy (of y) and ds (of s), with g = dy weight and c2 = sum(g xhat) / N,

    dx = dresidual = rstd (g - xhat c2) + ds                dweight = sum over rows of dy xhat

The kernels are those of layer_norm/, compiled with CENTRE = 0: the choice of paths, hard rows, column sums, orders of
sums and rules for layouts are explained there. Rounding points, in ulps of |weight xhat|, of
rstd (|g| + |xhat| mean|g xhat|) and of sum|dy xhat|:

- A sum of squares has positive terms alone and is a float64 sum: it is off by less than N 2^-53 of itself, rstd by half
  of that. No row is hard because of its mean; 16-bit sums that leave float32 are done in float64 pairs.
- FAST (16 bits): v up, a power of two, is exact; rstd, times it, times weight round to 24 bits: 0.5 + 2^-11.4 at worst
  for float16, 2^-14.4 for bfloat16. With a residual v is rounded to 24 bits once more. The backward pass: backward.py.
- EXACT (float32 rows): float64 throughout, one rounding at the output. PAIRED: backward_paired.py, without C.
- WIDE (float64): the squares are added up with an error-free cut, rows are scaled by a power of two; then v up rstd
  weight has three roundings, rstd two: below 4.

Layouts: bit for bit the results of contiguous operands (layer_norm/launch.py). Derivatives of any order.
"""

from __future__ import annotations

import functools
import math
import struct

import torch
import triton
from torch import Tensor

from kernels.launch import check_device, direct, on_device_of
from kernels.layer_norm import _checked
from kernels.layer_norm.backward import backward_kernel, row_sums_kernel
from kernels.layer_norm.backward_paired import backward_paired_kernel
from kernels.layer_norm.columns import columns_kernel
from kernels.layer_norm.forward import forward_kernel
from kernels.layer_norm.forward_blocks import forward_blocks_kernel
from kernels.layer_norm.launch import _shared_memory, as_rows
from kernels.layer_norm.plan import Call, backward_plan, forward_plan
from kernels.layouts import dense

__all__ = ["rms_norm", "rms_norm_residual"]

Maybe = Tensor | None


# --- launchers: what does not depend on values and addresses is made once for each size and dtype ---


def _bits(value: float) -> int:
    """The bits of a float64 as a signed integer: Triton passes a Python float as float32."""
    return struct.unpack("<q", struct.pack("<d", value))[0]


def _limited(maxnreg: int | None) -> dict[str, int]:
    return {} if maxnreg is None else {"maxnreg": maxnreg}


@functools.lru_cache(maxsize=4096)
def _forward_launch(m, n, x, residual, weight, eps, nvidia):
    """(kernel for a grid, its scalars, its constants) of a call of these sizes and dtypes."""
    plan = forward_plan(Call(m, n, x, residual, weight=weight, centre=False), prefetches=nvidia)
    constants = {
        "BLOCK": plan.block, "HAS_R": int(residual is not None), "HAS_I": 0, "HAS_W": int(weight is not None),
        "HAS_B": 0, "CENTRE": 0, "num_warps": plan.warps, **_limited(plan.maxnreg),
    }  # fmt: skip
    if plan.path in ("wide", "long"):
        constants |= {"SIGMA": 16.0 * triton.next_power_of_2(n), "WIDE": int(plan.path == "wide")}
        return forward_blocks_kernel[(m,)], (n, _bits(eps), _bits(1.0 / n)), constants
    constants |= {
        "FULL": int(plan.block == n), "FAST": int(plan.path == "fast"), "MARK": 0, "PACKED": int(plan.packed),
        "LATER": plan.later, "AGAIN": int(plan.again),
    }  # fmt: skip
    return forward_kernel[(m,)], (n, _bits(eps), _bits(1.0 / n)), constants


@functools.lru_cache(maxsize=4096)
def _backward_launch(m, n, x, residual, weight, dy, ds, need_w, shared_memory):
    """(plan, constants of the sums of rows, of the main kernel, of the column sums)."""
    call = Call(m, n, x, residual, weight=weight, dy=dy, ds=ds, need_weight=need_w, centre=False)
    plan = backward_plan(call, shared_memory)
    fast, wide, two = plan.path == "fast", plan.path == "wide", residual not in (None, x)
    w = {"HAS_W": int(weight is not None), "CENTRE": 0}
    has = w | {"HAS_R": int(residual is not None), "HAS_I": 0}
    main = {"BLOCK": plan.block, "NEED_W": int(need_w), "NEED_B": 0, "AHEAD": plan.ahead, "num_warps": plan.warps}
    main |= _limited(plan.maxnreg)
    if plan.path == "paired":
        main |= {"PARTS": 8, "FULL": int(8 * plan.block == n), **w}
    else:
        main |= {
            "FULL": int(n % plan.block == 0), "WHOLE": int(plan.whole), "FAST": int(fast), "WIDE": int(wide),
            "TOP": plan.top, "HAS_DS": int(ds is not None), "HAS_DR": int(two), "NEED_I": 0,
            "REDO": int(plan.redo == "inside"), **has,
        }  # fmt: skip
    sums = {"BLOCK": min(call.block, 2048), "WIDE": int(wide), "num_warps": 8, **has}
    columns = {
        "REDO": int(plan.redo != "never"), "HAS_DS": int(ds is not None), "NEED_W": int(need_w), "NEED_B": 0,
        "NEED_I": 0, "ROWS": plan.column_depth, "BLOCK": plan.column_block, "num_warps": 4, **has,
    }  # fmt: skip
    return plan, sums, main, columns


def _rows(t: Tensor, n: int) -> tuple[Tensor, int]:
    """t, whose last dimension has n elements, as consecutive rows, and the distance between them."""
    if t.is_contiguous() and not t.data_ptr() % 16:
        return t, n
    t = as_rows(t)
    return t, t.stride(0)


def _dtype(t: Maybe) -> torch.dtype | None:
    return None if t is None else t.dtype


def launch_forward(x: Tensor, residual: Maybe, weight: Maybe, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(y, s, statistics); s is empty without a residual."""
    n = x.shape[-1]
    if not x.numel():
        return tuple(torch.empty_like(t) for t in _forward_fake(x, residual, weight, eps))
    check_device("rms_norm", "x", x)
    m = x.numel() // n
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    s = y[:0] if residual is None else torch.empty(x.shape, dtype=residual.dtype, device=x.device)
    stats = torch.empty((m, 4), dtype=torch.float64, device=x.device)
    x2, x_stride = _rows(x, n)
    r2, r_stride = (x2, x_stride) if residual is None else _rows(residual, n)
    w = x2 if weight is None else dense(weight)  # a pointer that a kernel does not read still has to be a tensor
    nvidia = x.is_cuda and torch.version.cuda is not None
    kernel, scalars, constants = _forward_launch(m, n, x.dtype, _dtype(residual), _dtype(weight), eps, nvidia)
    with on_device_of(x):
        kernel(x2, r2, x2, w, x2, y, s, stats, x_stride, r_stride, *scalars, **constants)
    return y, s, stats


def launch_backward(
    dy: Tensor, ds: Maybe, x: Tensor, residual: Maybe, weight: Maybe, stats: Tensor, eps: float, need_w: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """(dx, dresidual, dweight), empty where not wanted, dresidual also where it equals dx: both have one dtype."""
    if not x.numel():
        return tuple(torch.zeros_like(t) for t in _backward_fake(dy, ds, x, residual, weight, stats, eps, need_w))
    n = x.shape[-1]
    m = x.numel() // n
    shared = _shared_memory(x.device) if x.is_cuda else None
    plan, sums_of, main_of, columns_of = _backward_launch(
        m, n, x.dtype, _dtype(residual), _dtype(weight), dy.dtype, _dtype(ds), need_w, shared
    )
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    two = residual is not None and residual.dtype != x.dtype
    dr = torch.empty(x.shape, dtype=residual.dtype, device=x.device) if two else dx[:0]
    dw = torch.empty(n if need_w else 0, dtype=x.dtype if weight is None else weight.dtype, device=x.device)
    part, hard, sums = dw, dw, stats
    if need_w:
        fast = plan.path == "fast"
        part = torch.empty((plan.programs, n), dtype=torch.float32 if fast else torch.float64, device=x.device)
    if plan.separate_sums:
        sums = torch.empty((m, 3), dtype=torch.float64, device=x.device)
    if plan.redo != "never":  # by the kernel itself: no row is marked
        hard = torch.empty(plan.programs + m, dtype=torch.int32, device=x.device)
    (dy2, dy_stride), (x2, x_stride) = _rows(dy, n), _rows(x, n)
    r2, r_stride = (x2, x_stride) if residual is None else _rows(residual, n)
    ds2, ds_stride = (dy2, dy_stride) if ds is None else _rows(ds, n)
    w = x2 if weight is None else dense(weight)
    strides = (dy_stride, ds_stride, x_stride, r_stride)
    suspect = hard[plan.programs :]
    with on_device_of(x):
        if plan.path == "paired":
            backward_paired_kernel[(plan.programs,)](
                dy2, x2, w, stats, dx, part, sums, hard, suspect, dy_stride, x_stride, m, n, **main_of
            )
        else:
            if not plan.whole:
                row_sums_kernel[(m,)](dy2, x2, r2, x2, w, stats, sums, dy_stride, x_stride, r_stride, n, **sums_of)
            backward_kernel[(plan.programs, plan.blocks)](
                dy2, ds2, x2, r2, x2, w, stats, sums, hard, suspect, dx, dr, part, *strides, m, n, **main_of
            )
        if need_w:
            columns_kernel[(triton.cdiv(n, plan.column_block), 1)](
                part, dw, dw, dw, dy2, ds2, x2, r2, x2, w, stats, sums, hard, *strides, m, plan.programs, n,
                **columns_of,
            )  # fmt: skip
    return dx, dr, dw


# --- the operators that the compiler sees, and derivatives of any order ---


@torch.library.custom_op("verify_kernels::rms_norm", mutates_args=())
def forward_op(x: Tensor, residual: Maybe, weight: Maybe, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(y, s, statistics); s is empty without a residual, statistics are float64 [rows, 4]."""
    y, s, stats = launch_forward(x, residual, weight, eps)
    return y, torch.empty_like(s) if residual is None else s, stats


@forward_op.register_fake
def _forward_fake(x, residual, weight, eps):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    nothing = (0,) + tuple(x.shape[1:])
    s = torch.empty(nothing if residual is None else x.shape, dtype=(x if residual is None else residual).dtype,
                    device=x.device)  # fmt: skip
    return y, s, torch.empty((math.prod(x.shape[:-1]), 4), dtype=torch.float64, device=x.device)


@torch.library.custom_op("verify_kernels::rms_norm_backward", mutates_args=())
def backward_op(
    dy: Tensor, ds: Maybe, x: Tensor, residual: Maybe, weight: Maybe, stats: Tensor, eps: float, need_w: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As launch_backward."""
    dx, dr, dw = launch_backward(dy, ds, x, residual, weight, stats, eps, need_w)
    return dx, dr if dr.numel() else torch.empty_like(dr), dw


@backward_op.register_fake
def _backward_fake(dy, ds, x, residual, weight, stats, eps, need_w):
    two = residual is not None and residual.dtype != x.dtype
    dr = torch.empty(
        x.shape if two else (0,) + tuple(x.shape[1:]), dtype=residual.dtype if two else x.dtype, device=x.device
    )
    dw = torch.empty(x.shape[-1] if need_w else 0, dtype=x.dtype if weight is None else weight.dtype, device=x.device)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), dr, dw


def _save(ctx, x, residual, weight, eps, stats):
    ctx.eps = eps
    ctx.save_for_backward(x, residual, weight, stats)
    ctx.set_materialize_grads(False)


def _differentiate_forward(ctx, dy, ds, _=None):
    """Launched directly, unless the result has to be differentiated itself or the compiler looks on."""
    x, residual, weight, stats = ctx.saved_tensors
    dy = torch.zeros_like(x) if dy is None else dy
    ds = None if residual is None else ds
    need_w = ctx.needs_input_grad[2]
    alone = not torch.is_grad_enabled() and direct(dy, ds, x, residual, weight)
    run = launch_backward if alone else backward_op
    dx, dr, dw = run(dy, ds, x, residual, weight, stats, ctx.eps, need_w)
    if residual is not None and residual.dtype == x.dtype:
        dr = dx
    return dx, None if residual is None else dr, dw if need_w else None, None


def _setup_backward(ctx, inputs, output):
    dy, ds, x, residual, weight, _, ctx.eps, ctx.need_w = inputs
    ctx.save_for_backward(dy, ds, x, residual, weight)
    ctx.set_materialize_grads(False)


def _differentiate_backward(ctx, u, ur, uw):
    """Gradients of the backward operator in differentiable torch operations in float64.

    With P(a) = a - xhat mean(a xhat), the Jacobian of xhat is rstd P, and dx = rstd P(g). For upstream u of dx and q of
    dweight:
      of dy:  rstd P(u) w + q xhat            of weight:  sum over rows of rstd P(u) dy
      of x:   rstd P(q dy - rstd (c2 u + mean(u xhat) g)) - rstd^2 xhat (mean(u g) - mean(u xhat) c2)."""
    dy, ds, x, residual, weight = ctx.saved_tensors
    terms = [t.double() for t in (u, ur) if t is not None and t.shape == x.shape]
    total = sum(terms) if terms else torch.zeros_like(x, dtype=torch.float64)
    v = x.double() if residual is None else x.double() + residual.double()
    rstd = (v.square().mean(-1, keepdim=True) + ctx.eps).rsqrt()
    xhat, upstream = v * rstd, dy.double()
    g = upstream if weight is None else upstream * weight.double()

    def mean(a):
        return a.mean(-1, keepdim=True)

    def project(a):
        return a - xhat * mean(a * xhat)

    c2, ux = mean(g * xhat), mean(total * xhat)
    pu = rstd * project(total)
    of_dy = pu if weight is None else pu * weight.double()
    inner = -rstd * (c2 * total + ux * g)
    if ctx.need_w and uw is not None:
        of_dy, inner = of_dy + uw.double() * xhat, inner + uw.double() * upstream
    of_v = rstd * project(inner) - rstd.square() * xhat * (mean(total * g) - ux * c2)
    of_w = None if weight is None else (pu * upstream).reshape(-1, x.shape[-1]).sum(0).to(weight.dtype)
    return (
        of_dy.to(dy.dtype),
        None if ds is None else total.to(ds.dtype),
        of_v.to(x.dtype),
        None if residual is None else of_v.to(residual.dtype),
        of_w,
        *(None,) * 3,
    )


forward_op.register_autograd(
    _differentiate_forward, setup_context=lambda ctx, inputs, output: _save(ctx, *inputs, output[2])
)
backward_op.register_autograd(_differentiate_backward, setup_context=_setup_backward)


class _Direct(torch.autograd.Function):
    """The same for ordinary tensors, without the dispatcher."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps):
        y, s, stats = launch_forward(x, residual, weight, eps)
        _save(ctx, x, residual, weight, eps, stats)
        return y if residual is None else (y, s)

    @staticmethod
    def backward(ctx, dy, ds=None):
        return _differentiate_forward(ctx, dy, ds)


def rms_norm(x: Tensor, weight: Maybe = None, *, eps: float = 1e-6) -> Tensor:
    """RMS norm of x over its last dimension, in x's dtype; weight of any dtype."""
    eps = _checked("rms_norm", x, None, (("weight", weight),), eps)
    return _Direct.apply(x, None, weight, eps) if direct(x, weight) else forward_op(x, None, weight, eps)[0]


def rms_norm_residual(x: Tensor, residual: Tensor, weight: Maybe = None, *, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """(y, s): s = x + residual in the residual's dtype, y the RMS norm of the unrounded sum."""
    eps = _checked("rms_norm_residual", x, residual, (("weight", weight),), eps)
    if direct(x, residual, weight):
        return _Direct.apply(x, residual, weight, eps)
    return forward_op(x, residual, weight, eps)[:2]
