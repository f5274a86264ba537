"""Kernels with one planted error each, right everywhere else: what a search can find, and what it cannot.

A file of its own that `verify hunt` can load too: the tests of the command line use it as a target.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

import verify

PATTERN = 0x2A5A5A  # a difference of mantissas that no recipe prefers


def silu(x: Tensor) -> Tensor:
    """Correctly rounded but for rare ties: computed in float64."""
    wide = x.double()
    return (wide / (1.0 + torch.exp(-wide))).to(x.dtype)


def exponent_of(x: Tensor) -> Tensor:
    return torch.frexp(x.double()).exponent


@verify.kernel(op="silu", dtypes=["float32"], gradients=False, max_ulp=1)
def right(x: Tensor) -> Tensor:
    return silu(x)


@verify.kernel(op="silu", dtypes=["float32"], gradients=False)
def one_exponent(x: Tensor) -> Tensor:
    """Off by 1e-6 relative in the binade of 2^-9 alone, and more the nearer to its upper end."""
    y = silu(x)
    inside = (exponent_of(x) == -9) & (x > 0)
    slope = (x.double() * 2.0**10 - 1.0).clamp(0, 1)
    return torch.where(inside, (y.double() * (1.0 + 1e-6 + 1e-4 * slope**8)).to(x.dtype), y)


@verify.kernel(op="silu", dtypes=["float32"], gradients=False, max_ulp=1)
def one_pattern(x: Tensor) -> Tensor:
    """Wrong on a single input in the middle of nowhere: no neighbour tells."""
    return torch.where(x == 1.2345678806304932, torch.full_like(x, 5.0), silu(x))


@verify.kernel(op="silu", dtypes=["float32"], gradients=False)
def nan_somewhere(x: Tensor) -> Tensor:
    """NaN beyond 2^100: overflow of an intermediate."""
    return torch.where(x > 2.0**100, torch.full_like(x, torch.nan), silu(x))


@verify.kernel(op="geglu_split", dtypes=["float32"], gradients=False)
def one_pair(x1: Tensor, x2: Tensor) -> Tensor:
    """Wrong where the mantissas of both operands differ by one pattern; the more low bits of it, the wronger."""
    # the stable form: torch's own float64 gelu is zero below -9
    y = (x1.double() * x2.double() * torch.special.erfc(-x2.double() / 2**0.5) / 2).to(x1.dtype)
    off = (x1.view(torch.int32) ^ x2.view(torch.int32) ^ PATTERN).long() & 0x7FFFFF
    agreed = sum(((off & ((1 << places) - 1)) == 0).double() for places in range(1, 24))
    return (y.double() * (1.0 + 2.0**-22 * (torch.exp2(agreed / 2) - 1.0))).to(x1.dtype)


@verify.kernel(op="layer_norm", dtypes=["float32", "float64"], gradients=False)
def one_pass(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """The variance as E[x^2] - E[x]^2 in the kernel's own dtype: cancels where the mean is large."""
    mean = x.mean(-1, keepdim=True)
    variance = (x * x).mean(-1, keepdim=True) - mean * mean
    return (x - mean) / torch.sqrt(variance.clamp(min=0) + eps) * weight + bias


@verify.kernel(op="softmax", dtypes=["float32"])
def eager_softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


@verify.kernel(op="linear", params={"activation": "id"}, dtypes=["float32"], gradients=False)
def naive_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """One rounding per term, from the first to the last: the order of a naive loop."""
    total = torch.zeros(x.shape[0], weight.shape[0], dtype=x.dtype, device=x.device)
    for place in range(x.shape[1]):
        total = total + x[:, place : place + 1] * weight[None, :, place]
    return total + bias


class _Norm(torch.autograd.Function):
    """RMS norm in float64, but for dweight: one rounding per row, from the first to the last."""

    @staticmethod
    def forward(ctx, x, weight, eps):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        ctx.eps = eps
        return torch.nn.functional.rms_norm(x.double(), x.shape[-1:], weight.double(), eps).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        terms = dy.double() * torch.nn.functional.rms_norm(x.double(), x.shape[-1:], eps=ctx.eps)
        total = torch.zeros(terms.shape[-1], device=terms.device)
        for term in terms:
            total = total + term.float()
        return None, total.to(x.dtype), None


@verify.kernel(op="rms_norm", dtypes=["float32"], gradients=["dweight"])
def row_by_row(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    return _Norm.apply(x, weight, eps)


@verify.kernel(op="silu", dtypes=["float32", "float64"], gradients=False)
def neighbourly(x: Tensor) -> Tensor:
    """Looks at its neighbours: the more there are, the wronger, and alone it is right."""
    y = silu(x)
    return y if x.numel() < 100 else (y.double() * (1.0 + 1e-5)).to(x.dtype)


@verify.kernel(op="silu", dtypes=["float32"], gradients=False)
def aborts(x: Tensor) -> Tensor:
    """Takes the process down once it has been asked a few times."""
    aborts_calls.append(1)
    if len(aborts_calls) > 4:
        os.abort()
    return silu(x)


@verify.kernel(op="silu", dtypes=["float32"], gradients=False)
def refuses(x: Tensor) -> Tensor:
    raise RuntimeError("no such unit")


@verify.kernel(op="silu", dtypes=["float32"], gradients=False, peer=True)
def compared(x: Tensor) -> Tensor:
    """A peer that is far off: measured, never judged."""
    return silu(x) * 1.5


@verify.kernel(op="silu", dtypes=["bfloat16", "float16"], gradients=False)
def sixteen_bits(x: Tensor) -> Tensor:
    return silu(x)


aborts_calls: list[int] = []
