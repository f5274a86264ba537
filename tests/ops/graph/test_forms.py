"""Honest kernels compute some steps in another form than the definition. The noise has that form's roundings too."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import verify


def _textbook(x: Tensor, approximate: str) -> Tensor:
    """GELU as x (1 + f) / 2 in float32."""
    if approximate == "none":
        share = torch.erf((x * math.sqrt(0.5)).double())
    else:
        share = torch.tanh(((x + 0.044715 * x * x * x) * math.sqrt(2 / math.pi)).double())
    return x * (0.5 * (1 + share.float()))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_as_one_plus_erf_is_right_while_half_of_its_digits_are_left(approximate: str) -> None:
    def gelu(x: Tensor) -> Tensor:
        return functional.gelu(x, approximate=approximate)

    x, tail = torch.linspace(-3, 3, 97), torch.linspace(-4, -3.8, 97)
    verify.assert_close(_textbook(x, approximate), like=gelu, inputs=(x,))
    for kernel, at in ((_textbook(tail, approximate), tail), (gelu(x.double()).float() * 1.001, x)):
        with pytest.raises(AssertionError, match="y is wrong"):
            verify.assert_close(kernel, like=gelu, inputs=(at,))


def gated(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    state, steps = torch.zeros(*q.shape[::2], v.shape[2], dtype=q.dtype), []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp()[..., None] + k[:, t, :, None] * v[:, t, None, :]
        steps.append((q[:, t, :, None] * state).sum(1))
    return torch.stack(steps, 1)


@pytest.mark.parametrize("length", [1, 2, 6])
def test_a_gate_may_have_its_gradient_by_the_next_state(length: int) -> None:
    """Kernels add up q dq - k dk from the end. That rounds also in the first step, whose gate nothing depends on."""
    source = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(2, length, size, generator=source) for size in (4, 4, 3))
    inputs = [q, k, v, -torch.rand(2, length, 4, generator=source)]
    asked = [each.clone().requires_grad_() for each in inputs]
    y = gated(*asked)
    upstream = torch.randn(y.shape, generator=source)
    y.backward(upstream)
    dq, dk, dv, _ = (each.grad for each in asked)
    by_the_next = (q * dq - k * dk).flip(1).cumsum(1).flip(1)
    assert bool(by_the_next[:, 0].any()), "no zero, though the first gate has no effect"

    def check(dg: Tensor) -> None:
        grads = (dq, dk, dv, dg)
        verify.assert_close(y.detach(), like=gated, inputs=tuple(inputs), upstream=upstream, grads=grads)

    check(by_the_next)
    for wrong in (by_the_next + 1e-4, by_the_next.roll(1, -1) if length > 1 else by_the_next - 1e-4):
        with pytest.raises(AssertionError, match="dg is wrong"):
            check(wrong)


def test_a_gate_of_16_bits_is_not_exact_by_the_choice_of_operands() -> None:
    """With powers of two, each state of the definition fits bfloat16. The numbers of q dq - k dk do not."""
    q, v, k = torch.full((2, 6, 4), 32.0), torch.full((2, 6, 3), 32.0), torch.full((2, 6, 4), 0.25)
    g = torch.zeros(2, 6, 4)
    inputs = [each.bfloat16() for each in (q, k, v, g)]
    asked = [each.double().requires_grad_() for each in inputs]
    y = gated(*asked)
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).bfloat16()
    y.backward(upstream.double())
    dq, dk, dv, _ = (each.grad.bfloat16() for each in asked)  # type: ignore[union-attr]
    dg = (q * dq - k * dk).flip(1).cumsum(1).flip(1)
    assert bool(dg[:, 0].any())

    def check(dg: Tensor) -> None:
        grads = (dq, dk, dv, dg.bfloat16())
        verify.assert_close(y.detach().bfloat16(), like=gated, inputs=tuple(inputs), upstream=upstream, grads=grads)

    check(dg)
    for wrong in (dg * 1.1, dg.roll(1, 1)):
        with pytest.raises(AssertionError, match="dg is wrong"):
            check(wrong)
