"""SiLU in Triton, right, and with one memory bug at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import triton
import triton.language as tl

_BLOCK = 64


@triton.jit
def _forward_kernel(x_ptr, y_ptr, n: tl.int32, BUG: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    y = x / (1.0 + tl.exp(-x))
    written = at < n
    if BUG == "writes past the end":
        written = at < n + 3
    if BUG == "writes before the beginning":
        tl.store(y_ptr - 1, 0.0)
    if BUG == "last element not written":
        written = at < n - 1
    if BUG == "writes its operand":
        tl.store(x_ptr + at, y, mask=at < n)
    tl.store(y_ptr + at, y, mask=written)


@triton.jit
def _backward_kernel(dy_ptr, x_ptr, dx_ptr, n, BUG: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    s = 1.0 / (1.0 + tl.exp(-x))
    dx = dy * (s + x * s * (1.0 - s))
    written = at < n
    if BUG == "gradient past the end":
        written = at < n + 3
    if BUG == "gradient over the saved tensor":
        tl.store(x_ptr + at, dx, mask=at < n)
    tl.store(dx_ptr + at, dx, mask=written)


@triton.jit
def _doubled_kernel(x_ptr, y_ptr, n, BUG: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    seldom = ((x.to(tl.int32, bitcast=True) & 511) == 7) & ((tl.program_id(0) + 1) * BLOCK > n)
    tl.store(y_ptr + at, tl.where(seldom & BUG, 2 * x * (1 + 2.0**-22), 2 * x), mask=at < n)


def doubled(x, bug=True):
    """Doubles numbers. With the bug, one number in 512 has other last bits in a block that is not full."""
    flat = x.contiguous()
    y = torch.empty_like(flat)
    _doubled_kernel[(triton.cdiv(x.numel(), 4 * _BLOCK),)](flat, y, x.numel(), BUG=bug, BLOCK=4 * _BLOCK)
    return y


class _Silu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bug):
        flat = x.contiguous()
        if bug == "gradient over the saved tensor":
            flat = flat.clone()  # not the operand, which would show by itself
        y = torch.empty_like(flat)
        if x.numel():
            _forward_kernel[(triton.cdiv(x.numel(), _BLOCK),)](flat, y, x.numel(), BUG=bug, BLOCK=_BLOCK)
        ctx.save_for_backward(flat)
        ctx.bug = bug
        return y

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        dx = torch.empty_like(x)
        if x.numel():
            grid = (triton.cdiv(x.numel(), _BLOCK),)
            _backward_kernel[grid](dy.contiguous(), x, dx, x.numel(), BUG=ctx.bug, BLOCK=_BLOCK)
        return dx, None


def silu(x: torch.Tensor, bug: str = "") -> torch.Tensor:
    """SiLU of x."""
    return _Silu.apply(x, bug)


@torch.library.custom_op("verify_tests::silu_in_an_operator", mutates_args=())
def silu_in_an_operator(x: torch.Tensor, bug: str) -> torch.Tensor:
    """The same behind a custom operator, where a dispatch mode does not look by itself."""
    y = torch.empty_like(x)
    if x.numel():
        _forward_kernel[(triton.cdiv(x.numel(), _BLOCK),)](x, y, x.numel(), BUG=bug, BLOCK=_BLOCK)
    return y


@silu_in_an_operator.register_fake
def _(x, bug):
    return torch.empty_like(x)


@functools.cache  # to register it imports PyTorch's compiler, for seconds
def silu_in_a_triton_op() -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns the same behind an operator whose fake result is made by the function itself, launches included."""

    @torch.library.triton_op("verify_tests::silu_in_a_triton_op", mutates_args=())
    def operator(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        if x.numel():
            launched = torch.library.wrap_triton(_forward_kernel)[(triton.cdiv(x.numel(), _BLOCK),)]
            launched(x, y, x.numel(), BUG="", BLOCK=_BLOCK)
        return y

    return operator
