"""Kernels that round to one side, each beside a twin that rounds to nearest.

Every element of these mutants is within an ULP of the exact answer, so no single element is wrong. What is wrong is the
direction: added to a residual stream again and again, the errors add up. Stores that cut off digits have lost 9% of a
stream after 72 layers. `tests/measure/test_bias.py` runs them all with the default settings.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

import verify
from mutants.pairs import pair

ROWS = {"x": "r n", "r": "r n"}
WIDTH = {torch.bfloat16: 16, torch.float16: 13}  # digits of float32 that a store cuts off, for normal numbers


def stored(y: Tensor, dtype: torch.dtype, *, right: bool, away: bool = False) -> Tensor:
    """Stores float32 numbers: to nearest, or (a mutant) toward zero or away from it."""
    if right:
        return y.to(dtype)
    bits, last = y.contiguous().view(torch.int32), (1 << WIDTH[dtype]) - 1
    return ((bits + last if away else bits) & ~last).view(torch.float32).to(dtype)


def add_norm(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The RMS norm of a residual stream to which x is added, and the stream."""
    h = x + r
    return functional.rms_norm(h, h.shape[-1:], w, 1e-6), h


@pair("the residual stream and its norm are cut off", like=add_norm, shapes={**ROWS, "w": "n"}, dtypes=["bfloat16"],
      outputs=["y", "stream"], where="n >= 1")  # fmt: skip
def stream(x, r, w, *, right):
    h = x.float() + r.float()
    y = functional.rms_norm(h, h.shape[-1:], w.float(), 1e-6)
    return stored(y, x.dtype, right=right), stored(h, x.dtype, right=right)


@pair("a residual addition is cut off", like=torch.add, operands=["input", "other"], dtypes=["bfloat16"],
      shapes={"input": "r n", "other": "r n"})  # fmt: skip
def residual(input, other, *, right):
    return stored(input.float() + other.float(), input.dtype, right=right)


@pair("the result is cut off", like=functional.silu, operands=["input"], dtypes=["bfloat16"], shapes={"input": "n"})
def silu(input, *, right):
    return stored(functional.silu(input.float()), input.dtype, right=right)


def gated(x: Tensor, r: Tensor) -> Tensor:
    """SwiGLU's product."""
    return functional.silu(x) * r


@pair("the product is cut off", like=gated, shapes=ROWS, dtypes=["bfloat16"])
def swiglu(x, r, *, right):
    return stored(functional.silu(x.float()) * r.float(), x.dtype, right=right)


@pair("the gate is cut off before the product", like=gated, shapes=ROWS, dtypes=["bfloat16"])
def swiglu_inside(x, r, *, right):
    gate = functional.silu(x.float())
    return ((gate if right else stored(gate, x.dtype, right=False).float()) * r.float()).to(x.dtype)


def soft(x: Tensor) -> Tensor:
    """The softmax of rows."""
    return functional.softmax(x, -1)


@pair("the probabilities are cut off", like=soft, shapes={"x": "r n"}, where="n >= 1", dtypes=["bfloat16"])
def softmax(x, *, right):
    return stored(functional.softmax(x.float(), -1), x.dtype, right=right)


def normed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Layer norm of rows."""
    return functional.layer_norm(x, x.shape[-1:], w, b)


@pair("the result is rounded away from zero", like=normed, shapes={"x": "r n", "w": "n", "b": "n"}, where="n >= 2",
      dtypes=["bfloat16"])  # fmt: skip
def layer_norm(x, w, b, *, right):
    y = functional.layer_norm(x.float(), x.shape[-1:], w.float(), b.float())
    return stored(y, x.dtype, right=right, away=True)


def turned(x: Tensor, r: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """The first half of a rotary embedding."""
    return x * c - r * s


@pair("the rotated half is cut off", like=turned, shapes={**ROWS, "c": "n", "s": "n"}, dtypes=["bfloat16"])
def rope(x, r, c, s, *, right):
    return stored(x.float() * c.float() - r.float() * s.float(), x.dtype, right=right)


@pair("a float16 result is rounded away from zero", like=functional.softplus, operands=["input"], dtypes=["float16"],
      shapes={"input": "n"}, largest=8.0)  # fmt: skip
def softplus(input, *, right):
    return stored(functional.softplus(input.float()), input.dtype, right=right, away=True)


class Cut(torch.autograd.Function):
    """x * sigmoid(x), whose gradient alone may be cut off."""

    @staticmethod
    def forward(ctx, x, right):
        """Returns the rounded product."""
        ctx.save_for_backward(x)
        ctx.right = right
        return functional.silu(x.float()).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        """Returns the gradient, rounded to nearest or cut off."""
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x.float())
        slope = s * (1 + x.float() * (1 - s))
        return stored(dy.float() * slope, x.dtype, right=ctx.right), None


@pair("the gradient is cut off", like=functional.silu, operands=["input"], dtypes=["bfloat16"], gradients=True,
      shapes={"input": "r n"})  # fmt: skip
def silu_gradient(input, *, right):
    return Cut.apply(input, right)


@verify.kernel(like=functional.silu, operands=["input"], shapes={"input": "n"}, dtypes=["bfloat16"], max_bias=0.6)
def silu_declared(input):
    """Cuts off its result, and says so."""
    return stored(functional.silu(input.float()), input.dtype, right=False)
