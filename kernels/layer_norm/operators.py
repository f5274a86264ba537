"""The two registered operators of both norms and their derivatives. Second derivatives are torch operations in float64.

RMS norm is centre=False, without input_bias and bias. A gate is RMS norm's alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..gelu_autograd import derivatives
from ..operators import operator
from .launch import launch_backward, launch_forward, new_backward, new_forward

Maybe = Tensor | None


@operator("verify_kernels::layer_norm", visible=True)
def forward_op(
    x: Tensor, residual: Maybe, input_bias: Maybe, weight: Maybe, bias: Maybe, eps: float, centre: bool,
    gate: Maybe = None, form: str = "once",
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns y, s and stats; s is None without a residual, stats holds the statistics of moments.py."""
    if x.numel() == 0:
        return new_forward(x, residual, input_bias, weight, bias, eps, centre)
    return launch_forward(x, residual, input_bias, weight, bias, eps, centre, gate, form=form)


forward_op.register_fake(new_forward)


@operator("verify_kernels::layer_norm_backward", visible=True)
def backward_op(
    dy: Tensor, ds: Maybe, x: Tensor, residual: Maybe, input_bias: Maybe, weight: Maybe, bias: Maybe, stats: Tensor,
    eps: float, need_w: bool, need_b: bool, need_i: bool, centre: bool, gate: Maybe = None,
    form: str = "once",
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns dx, dresidual, dinput_bias, dweight and dbias, None for each that is not needed.

    dresidual is also None if it equals dx: both have one dtype. With a gate, its gradient takes the place of dresidual.
    """
    if x.numel() == 0:
        empty: Any = new_backward(x, residual, gate, (input_bias, weight, bias), (need_i, need_w, need_b))
        return tuple(None if t is None else t.zero_() for t in empty)  # type: ignore[return-value]
    need = need_w, need_b, need_i
    return launch_backward(dy, ds, x, residual, input_bias, weight, bias, stats, eps, need, centre, gate, form)


backward_op.register_fake(
    lambda dy, ds, x, residual, i, w, b, stats, eps, need_w, need_b, need_i, centre, gate=None, form="once": (
        new_backward(x, residual, gate, (i, w, b), (need_i, need_w, need_b))
    )
)


def _setup_forward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, residual, input_bias, weight, bias, ctx.eps, ctx.centre, gate, ctx.form = inputs
    ctx.save_for_backward(x, residual, input_bias, weight, bias, output[2], gate)
    ctx.set_materialize_grads(False)


def _differentiate_forward(ctx: Any, dy: Tensor | None, ds: Tensor | None, _: Any = None) -> tuple[Any, ...]:
    x, residual, input_bias, weight, bias, stats, gate = ctx.saved_tensors
    if dy is None:
        dy = torch.zeros_like(x)
    if residual is None:
        ds = None
    need_i, need_w, need_b = ctx.needs_input_grad[2:5]
    dx, dr, di, dw, db = backward_op.checked(
        None, dy, ds, x, residual, input_bias, weight, bias, stats, ctx.eps, need_w, need_b, need_i, ctx.centre, gate,
        ctx.form,
    )  # fmt: skip
    if residual is not None and residual.dtype == x.dtype:
        dr = dx
    of_vectors = di if need_i else None, dw if need_w else None, db if need_b else None
    return dx, None if residual is None else dr, *of_vectors, None, None, None if gate is None else dr, None


def _setup_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    dy, ds, x, residual, input_bias, weight, bias, _, ctx.eps, *ctx.need, ctx.centre, gate, ctx.form = inputs
    ctx.save_for_backward(dy, ds, x, residual, input_bias, weight, bias, gate)
    ctx.set_materialize_grads(False)


def _differentiate_backward(ctx: Any, *upstream: Tensor | None) -> tuple[Any, ...]:
    """Returns gradients of the backward operator: torch differentiates its formulas in float64."""
    given, further = ctx.saved_tensors, torch.is_grad_enabled()
    with torch.enable_grad():
        leaves: Any = [
            t if t is None else (t if t.requires_grad else t.detach()).double().requires_grad_() for t in given
        ]
        dy, ds, x, residual, input_bias, weight, _, gate = leaves
        v = sum((t for t in (input_bias, residual) if t is not None), start=x)
        d = v - v.mean(-1, keepdim=True) if ctx.centre else v
        rstd = (d.square().mean(-1, keepdim=True) + ctx.eps).rsqrt()
        xhat = d * rstd
        value, slope = (1.0, 0.0) if gate is None else derivatives(gate, "silu")[:2]
        w = 1.0 if weight is None else weight + 1.0 if ctx.form.endswith("gemma") else weight
        u = dy * value
        g = u * w
        dx = g - xhat * (g * xhat).mean(-1, keepdim=True)
        dx = rstd * (dx - g.mean(-1, keepdim=True) if ctx.centre else dx) + (0.0 if ds is None else ds)
        # a column sum times its upstream gradient is the sum of its terms times that
        results = dx, dx if gate is None else dy * xhat * w * slope, dx, u * xhat, u
        total = dy.sum() * 0.0
        for result, t in zip(results, upstream, strict=True):
            if t is not None and t.numel():  # an absent result is empty
                total = total + (result * t.double()).sum()
    wanted = [t for t in leaves if t is not None]
    found = iter(torch.autograd.grad(total, wanted, create_graph=further, allow_unused=True))
    grads = [None if t is None else next(found) for t in leaves]
    *of_operands, of_gate = (None if a is None else a.to(t.dtype) for a, t in zip(grads, given, strict=True))
    return *of_operands, *(None,) * 6, of_gate, None


forward_op.register_autograd(_differentiate_forward, setup_context=_setup_forward, hidden=1)
backward_op.register_autograd(_differentiate_backward, setup_context=_setup_backward)
