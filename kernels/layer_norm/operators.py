"""The two registered operators of both norms and their derivatives. Second derivatives are torch operations in float64.

RMS norm is centre=False, without input_bias and bias.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from kernels.layer_norm.launch import launch_backward, launch_forward
from kernels.operators import operator

Maybe = Tensor | None


@operator("verify_kernels::layer_norm")
def forward_op(
    x: Tensor, residual: Maybe, input_bias: Maybe, weight: Maybe, bias: Maybe, eps: float, centre: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns y, s and stats; s is None without a residual, stats is float64 [rows, 4]."""
    if x.numel() == 0:
        return _forward_fake(x, residual, input_bias, weight, bias, eps, centre)
    return launch_forward(x, residual, input_bias, weight, bias, eps, centre)


@forward_op.register_fake
def _forward_fake(
    x: Tensor, residual: Maybe, input_bias: Maybe, weight: Maybe, bias: Maybe, eps: float, centre: bool
) -> tuple[Any, ...]:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    s = None if residual is None else torch.empty(x.shape, dtype=residual.dtype, device=x.device)
    return y, s, torch.empty((math.prod(x.shape[:-1]), 4), dtype=torch.float64, device=x.device)


@operator("verify_kernels::layer_norm_backward")
def backward_op(
    dy: Tensor,
    ds: Maybe,
    x: Tensor,
    residual: Maybe,
    input_bias: Maybe,
    weight: Maybe,
    bias: Maybe,
    stats: Tensor,
    eps: float,
    need_w: bool,
    need_b: bool,
    need_i: bool,
    centre: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns dx, dresidual, dinput_bias, dweight and dbias, None for each that is not needed.

    dresidual is also None if it equals dx: both have one dtype.
    """
    if x.numel() == 0:
        needs = need_w, need_b, need_i, centre
        fakes = _backward_fake(dy, ds, x, residual, input_bias, weight, bias, stats, eps, *needs)
        zeros: Any = tuple(None if t is None else t.zero_() for t in fakes)
        return zeros
    need = (need_w, need_b, need_i)
    return launch_backward(dy, ds, x, residual, input_bias, weight, bias, stats, need, centre)


@backward_op.register_fake
def _backward_fake(
    dy: Tensor,
    ds: Maybe,
    x: Tensor,
    residual: Maybe,
    input_bias: Maybe,
    weight: Maybe,
    bias: Maybe,
    stats: Tensor,
    eps: float,
    need_w: bool,
    need_b: bool,
    need_i: bool,
    centre: bool,
) -> tuple[Any, ...]:
    def vector(wanted: bool, like: Tensor | None) -> Any:
        dtype = x.dtype if like is None else like.dtype
        return torch.empty(x.shape[-1], dtype=dtype, device=x.device) if wanted else None

    other = None if residual is None or residual.dtype == x.dtype else residual.dtype
    dr = None if other is None else torch.empty(x.shape, dtype=other, device=x.device)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return dx, dr, vector(need_i, input_bias), vector(need_w, weight), vector(need_b, bias)


def _setup_forward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, residual, input_bias, weight, bias, ctx.eps, ctx.centre = inputs
    ctx.save_for_backward(x, residual, input_bias, weight, bias, output[2])
    ctx.set_materialize_grads(False)


def _differentiate_forward(ctx: Any, dy: Tensor | None, ds: Tensor | None, _: Any) -> tuple[Any, ...]:
    x, residual, input_bias, weight, bias, stats = ctx.saved_tensors
    if dy is None:
        dy = torch.zeros_like(x)
    if residual is None:
        ds = None
    need_i, need_w, need_b = ctx.needs_input_grad[2:5]
    dx, dr, di, dw, db = backward_op(
        dy, ds, x, residual, input_bias, weight, bias, stats, ctx.eps, need_w, need_b, need_i, ctx.centre
    )
    if residual is not None and residual.dtype == x.dtype:
        dr = dx
    return (
        dx,
        None if residual is None else dr,
        di if need_i else None,
        dw if need_w else None,
        db if need_b else None,
        None,
        None,
    )


def _setup_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    dy, ds, x, residual, input_bias, weight, bias, _, ctx.eps, *ctx.need, ctx.centre = inputs
    ctx.save_for_backward(dy, ds, x, residual, input_bias, weight, bias)
    ctx.set_materialize_grads(False)


def _differentiate_backward(
    ctx: Any, u: Tensor | None, ur: Tensor | None, ui: Tensor | None, uw: Tensor | None, ub: Tensor | None
) -> tuple[Any, ...]:
    """Returns gradients of the backward operator, in differentiable torch operations in float64.

    With P(a) = a - mean(a) - xhat mean(a xhat), the Jacobian of xhat is rstd P, and
    dx = rstd P(g). For upstream u of dx, q of dweight, t of dbias (rows: mean over columns):
      of dy:  rstd P(u) w + q xhat + t            of weight:  sum over rows of rstd P(u) dy
      of x:   rstd P(q dy - rstd (c2 u + mean(u xhat) g)) - rstd^2 xhat cov,
              cov = mean(u g) - mean(u) mean(g) - mean(u xhat) c2.
    RMS norm has no term with mean(a), mean(u) or mean(g).
    """
    dy, ds, x, residual, input_bias, weight, bias = ctx.saved_tensors
    n = x.shape[-1]
    need_w, need_b, _ = ctx.need
    terms = [t.double() for t in (u, ur) if t is not None and t.shape == x.shape]
    if ui is not None and ui.numel() == n:
        terms.append(ui.double().expand(x.shape))
    total: Any = sum(terms) if terms else torch.zeros_like(x, dtype=torch.float64)

    v = x.double()
    for other in (input_bias, residual):
        if other is not None:
            v = v + other.double()
    d = v - v.mean(-1, keepdim=True) if ctx.centre else v
    rstd = (d.square().mean(-1, keepdim=True) + ctx.eps).rsqrt()
    xhat = d * rstd
    upstream = dy.double()
    g = upstream if weight is None else upstream * weight.double()

    def mean(a: Tensor) -> Tensor:
        return a.mean(-1, keepdim=True)

    def project(a: Tensor) -> Tensor:
        rest = a - xhat * mean(a * xhat)
        return rest - mean(a) if ctx.centre else rest

    def columns(a: Tensor) -> Tensor:
        return a.reshape(-1, n).sum(0)

    c2, ux = mean(g * xhat), mean(total * xhat)
    pu = rstd * project(total)
    of_dy = pu if weight is None else pu * weight.double()
    inner = -rstd * (c2 * total + ux * g)
    if need_w and uw is not None:
        of_dy = of_dy + uw.double() * xhat
        inner = inner + uw.double() * upstream
    if need_b and ub is not None:
        of_dy = of_dy + ub.double()
    covariance = mean(total * g) - ux * c2
    if ctx.centre:
        covariance = covariance - mean(total) * mean(g)
    of_v = rstd * project(inner) - rstd.square() * xhat * covariance
    return (
        of_dy.to(dy.dtype),
        None if ds is None else total.to(ds.dtype),
        of_v.to(x.dtype),
        None if residual is None else of_v.to(residual.dtype),
        None if input_bias is None else columns(of_v).to(input_bias.dtype),
        None if weight is None else columns(pu * upstream).to(weight.dtype),
        *(None,) * 7,
    )


forward_op.register_autograd(_differentiate_forward, setup_context=_setup_forward)
backward_op.register_autograd(_differentiate_backward, setup_context=_setup_backward)
