"""RMS norm in Triton, forward and backward: layer norm's kernels without a mean, with one rounding per output.

>>> y = rms_norm(x, weight, eps=1e-6)
>>> y, s = rms_norm_residual(x, residual, weight)  # s = x + residual

Each row v of N numbers gives

    rstd = 1 / sqrt(sum(v^2) / N + eps)         xhat = v rstd         y = xhat weight

v is x, or the sum s *before* it is rounded to the residual's dtype. For upstream gradients dy (of y) and ds (of s),
with g = dy weight and c2 = sum(g xhat) / N, a row gives

    dx = dresidual = rstd (g - xhat c2) + ds                dweight = sum over rows of dy xhat

The kernels are those of layer_norm/, compiled with CENTRE = 0. Its modules explain the paths, hard rows, column sums,
orders of sums and layouts. Rounding points, in ULP of |weight xhat|, of rstd (|g| + |xhat| mean|g xhat|) and of
sum|dy xhat|:

- A sum of squares has only positive terms and is a float64 sum. It is off by less than N 2^-53 of itself, rstd by half
  of that. No row is hard because of its mean. 16-bit sums that leave float32 are computed in float64 pairs.
- FAST (16 bits): v up is exact, because `up` is a power of two. rstd, the product with it and the product with weight
  round to 24 bits: at worst 0.5 + 2^-11.4 for float16, 2^-14.4 for bfloat16. A residual adds one rounding of v to 24
  bits. backward.py has the backward pass.
- EXACT (float32 rows): float64 throughout, one rounding at the output. PAIRED: backward_paired.py, without C.
- WIDE (float64): the squares are added with an error-free cut, and rows are scaled by a power of two. Then v up rstd
  weight has three roundings, rstd two: below 4.

Layouts: results have the bits that contiguous operands give (layer_norm/launch.py). Derivatives of any order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels.layer_norm import _checks
from kernels.layer_norm.launch import launch_backward, launch_forward
from kernels.operators import operator

__all__ = ["rms_norm", "rms_norm_residual"]

Maybe = Tensor | None


@operator("verify_kernels::rms_norm")
def forward_op(x: Tensor, residual: Maybe, weight: Maybe, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Returns y, s and stats; s is None without a residual, stats is float64 [rows, 4]."""
    if x.numel() == 0:
        return _forward_fake(x, residual, weight, eps)
    return launch_forward(x, residual, None, weight, None, eps, centre=False)


@forward_op.register_fake
def _forward_fake(x: Tensor, residual: Tensor | None, weight: Tensor | None, eps: float) -> tuple[Any, ...]:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    s = None if residual is None else torch.empty(x.shape, dtype=residual.dtype, device=x.device)
    return y, s, torch.empty((math.prod(x.shape[:-1]), 4), dtype=torch.float64, device=x.device)


@operator("verify_kernels::rms_norm_backward")
def backward_op(
    dy: Tensor, ds: Maybe, x: Tensor, residual: Maybe, weight: Maybe, stats: Tensor, eps: float, need_w: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns dx, dresidual and dweight, None for each that is not needed.

    dresidual is also None if it equals dx: both have one dtype.
    """
    if x.numel() == 0:
        fakes = _backward_fake(dy, ds, x, residual, weight, stats, eps, need_w)
        zeros: Any = tuple(None if t is None else t.zero_() for t in fakes)
        return zeros
    need = (need_w, False, False)
    dx, dr, _, dw, _ = launch_backward(dy, ds, x, residual, None, weight, None, stats, need, centre=False)
    return dx, dr, dw


@backward_op.register_fake
def _backward_fake(
    dy: Tensor,
    ds: Tensor | None,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    stats: Tensor,
    eps: float,
    need_w: bool,
) -> tuple[Any, ...]:
    other = None if residual is None or residual.dtype == x.dtype else residual.dtype
    dr = None if other is None else torch.empty(x.shape, dtype=other, device=x.device)
    like = x if weight is None else weight
    dw = torch.empty(x.shape[-1], dtype=like.dtype, device=x.device) if need_w else None
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), dr, dw


def _setup_forward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, residual, weight, ctx.eps = inputs
    ctx.save_for_backward(x, residual, weight, output[2])
    ctx.set_materialize_grads(False)


def _differentiate_forward(ctx: Any, dy: Tensor | None, ds: Tensor | None, _: Any) -> tuple[Any, ...]:
    x, residual, weight, stats = ctx.saved_tensors
    dy = torch.zeros_like(x) if dy is None else dy
    need_w = ctx.needs_input_grad[2]
    dx, dr, dw = backward_op(dy, None if residual is None else ds, x, residual, weight, stats, ctx.eps, need_w)
    if residual is not None and residual.dtype == x.dtype:
        dr = dx
    return dx, None if residual is None else dr, dw if need_w else None, None


def _setup_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    dy, ds, x, residual, weight, _, ctx.eps, ctx.need_w = inputs
    ctx.save_for_backward(dy, ds, x, residual, weight)
    ctx.set_materialize_grads(False)


def _differentiate_backward(ctx: Any, u: Tensor | None, ur: Tensor | None, uw: Tensor | None) -> tuple[Any, ...]:
    """Returns gradients of the backward operator, in differentiable torch operations in float64.

    With P(a) = a - xhat mean(a xhat), the Jacobian of xhat is rstd P, and dx = rstd P(g). For upstream u of dx and q of
    dweight:
      of dy:  rstd P(u) w + q xhat            of weight:  sum over rows of rstd P(u) dy
      of x:   rstd P(q dy - rstd (c2 u + mean(u xhat) g)) - rstd^2 xhat (mean(u g) - mean(u xhat) c2).
    """
    dy, ds, x, residual, weight = ctx.saved_tensors
    terms = [t.double() for t in (u, ur) if t is not None and t.shape == x.shape]
    total: Any = sum(terms) if terms else torch.zeros_like(x, dtype=torch.float64)
    v = x.double() if residual is None else x.double() + residual.double()
    rstd = (v.square().mean(-1, keepdim=True) + ctx.eps).rsqrt()
    xhat, upstream = v * rstd, dy.double()
    g = upstream if weight is None else upstream * weight.double()

    def mean(a: Tensor) -> Tensor:
        return a.mean(-1, keepdim=True)

    def project(a: Tensor) -> Tensor:
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


forward_op.register_autograd(_differentiate_forward, setup_context=_setup_forward)
backward_op.register_autograd(_differentiate_backward, setup_context=_setup_backward)


def _check_as(name: str) -> Callable[..., None]:
    """Returns layer norm's check for RMS norm's arguments."""
    check = _checks(name)
    return lambda x, residual, weight, eps: check(x, residual, None, weight, None, eps)


_CHECK = {name: _check_as(name) for name in __all__}


def _call(name: str, x: Tensor, residual: Tensor | None, weight: Tensor | None, eps: float) -> Any:
    eps = float(eps) if isinstance(eps, int) else eps
    return forward_op.checked(_CHECK[name], x, residual, weight, eps)


def rms_norm(x: Tensor, weight: Maybe = None, *, eps: float = 1e-6) -> Tensor:
    """Returns the RMS norm of x over its last dimension, in x's dtype; weight has any dtype."""
    return _call("rms_norm", x, None, weight, eps)[0]


def rms_norm_residual(x: Tensor, residual: Tensor, weight: Maybe = None, *, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Returns y and s: s = x + residual in the residual's dtype, y the RMS norm of the unrounded sum."""
    return _call("rms_norm_residual", x, residual, weight, eps)[:2]
