"""Registers GELU's three operators with the compiler and autograd, for the Triton and the CUDA C++ kernels.

forward(x, approximate)          gelu(x)
backward(dy, x, approximate)     dy gelu'(x)
second(g, dy, x, approximate)    g dy gelu''(x)
"""

from __future__ import annotations

from typing import Any

import torch


def make_differentiable_twice(forward: Any, backward: Any, second: Any) -> None:
    """Registers the shapes and derivatives of three operators made by `operator` of operators.py."""
    forward.register_fake(lambda x, approximate: torch.empty_like(x))
    backward.register_fake(lambda dy, x, approximate: torch.empty_like(x))
    second.register_fake(lambda g, dy, x, approximate: torch.empty_like(x))

    def save_x(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.approximate = inputs
        ctx.save_for_backward(x)

    def differentiate_forward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
        (x,) = ctx.saved_tensors
        return backward(dy, x, ctx.approximate), None

    def save_dy_x(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        dy, x, ctx.approximate = inputs
        ctx.save_for_backward(dy, x)

    def differentiate_backward(ctx: Any, g: torch.Tensor) -> tuple[Any, ...]:
        dy, x = ctx.saved_tensors
        d_dy = backward(g, x, ctx.approximate) if ctx.needs_input_grad[0] else None
        d_x = second(g, dy, x, ctx.approximate) if ctx.needs_input_grad[1] else None
        return d_dy, d_x, None

    forward.register_autograd(differentiate_forward, setup_context=save_x)
    backward.register_autograd(differentiate_backward, setup_context=save_dy_x)
