"""Derivatives of the activations in torch operations; and GELU's operators registered with the compiler and autograd.

operators_of registers three operators, of the Triton or of the CUDA C++ kernels:

forward(x, approximate)          gelu(x)
backward(dy, x, approximate)     dy gelu'(x)
second(g, dy, x, approximate)    g dy gelu''(x)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .gelu_of_sums import RSQRT2, RSQRT_2PI, TANH_A, TANH_B
from .operators import operator


def derivatives(x: torch.Tensor, form: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns GELU ("none" or "tanh") or SiLU ("silu"), its first and its second derivative.

    They are differentiable torch operations in x's dtype, for gradients of gradients.
    """
    if form == "none":
        density = torch.exp(-0.5 * x * x) * RSQRT_2PI.value
        mass = 0.5 * torch.special.erfc(-x * RSQRT2.value)
        return x * mass, mass + x * density, (2.0 - x * x) * density
    w, w1, w2 = x, torch.ones_like(x), torch.zeros_like(x)  # the argument of the logistic function, and derivatives
    if form == "tanh":
        a, b = TANH_A.value, TANH_B.value
        w, w1, w2 = x * (a + b * x * x), a + 3.0 * b * x * x, 6.0 * b * x
    s = torch.sigmoid(w)
    s1 = s * (1.0 - s)
    return x * s, s + x * s1 * w1, s1 * (2.0 * w1 + x * (w2 + (1.0 - 2.0 * s) * w1 * w1))


def operators_of(namespace: str, launch: Callable[..., torch.Tensor]) -> tuple[Any, Any, Any]:
    """Returns the three operators with their shapes and derivatives.

    launch(x, approximate, *gradients) returns what the operator of these gradients returns: none, dy, or dy and g.
    """

    @operator(f"{namespace}::forward")
    def forward(x: torch.Tensor, approximate: str) -> torch.Tensor:
        return launch(x, approximate)

    @operator(f"{namespace}::backward")
    def backward(dy: torch.Tensor, x: torch.Tensor, approximate: str) -> torch.Tensor:
        return launch(x, approximate, dy)

    @operator(f"{namespace}::second")
    def second(g: torch.Tensor, dy: torch.Tensor, x: torch.Tensor, approximate: str) -> torch.Tensor:
        return launch(x, approximate, dy, g)

    forward.register_fake(lambda x, approximate: torch.empty_like(x))
    backward.register_fake(lambda dy, x, approximate: torch.empty_like(x))
    second.register_fake(lambda g, dy, x, approximate: torch.empty_like(x))

    def differentiate_forward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
        return backward.checked(None, dy, *ctx.saved_tensors, *ctx.values), None

    def differentiate_backward(ctx: Any, g: torch.Tensor) -> tuple[Any, ...]:
        dy, x = ctx.saved_tensors
        d_dy = backward(g, x, *ctx.values) if ctx.needs_input_grad[0] else None
        d_x = second(g, dy, x, *ctx.values) if ctx.needs_input_grad[1] else None
        return d_dy, d_x, None

    forward.register_autograd(differentiate_forward)
    backward.register_autograd(differentiate_backward)
    return forward, backward, second
