"""Triton kernels of conch-triton-kernels, for inference: they have no gradients.

    pip install conch-triton-kernels
    verify run examples/public/conch_kernels.py

Several work in place by design; they are given copies here.
"""

from __future__ import annotations

import functools

import torch
from torch.nn import functional

import verify

conch = functools.partial(verify.kernel, requires="conch", gradients=False)
EPS = 1e-6


def rms_normalized(x, eps=EPS):
    """x over the root of its mean square."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def gated(activation, x):
    """The activated first half of a tensor times its second."""
    first, second = x.chunk(2, -1)
    return activation(first) * second


def rotated(query, table):
    """RoPE on halves, of heads 16 wide; the table has cosines, then sines."""
    cos, sin = (half[:, None] for half in table.chunk(2, -1))
    first, second = query.unflatten(-1, (-1, 16)).chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).flatten(-2)


@conch(op="rms_norm", layouts="contiguous")
def rms_norm(x, weight, *, eps):
    """RMS norm."""
    from conch.ops.normalization.rms_norm import rms_norm

    return rms_norm(x, weight, eps)


@conch(
    like=lambda x, residual, weight: (rms_normalized(x + residual) * weight, x + residual),
    shapes={"x": "n d", "residual": "n d", "weight": "d"},
    outputs=["y", "sum"],
    layouts="contiguous",
    largest={"float32": 1e18, "bfloat16": 1e18, "float16": 3e4},  # the sum has the dtype of the data
)
def add_rms_norm(x, residual, weight):
    """RMS norm of a sum, which is returned too."""
    from conch.ops.normalization.rms_norm import fused_add_rms_norm

    return fused_add_rms_norm(x.clone(), residual.clone(), weight, EPS)


@conch(
    like=lambda x, weight: rms_normalized(x) * (1 + weight), shapes={"x": "n d", "weight": "d"}, layouts="contiguous"
)
def gemma_rms_norm(x, weight):
    """RMS norm as Gemma has it."""
    from conch.ops.normalization.gemma_rms_norm import gemma_rms_norm

    return gemma_rms_norm(x.clone(), weight, EPS)


@conch(
    like=functools.partial(gated, functools.partial(functional.gelu, approximate="tanh")),
    shapes={"x": "n d"},
    where="d % 2 == 0",
    layouts="contiguous",
)
def gelu_tanh_and_mul(x):
    """GEGLU, tanh form, of the halves of one tensor."""
    from conch.ops.activation.gelu_tanh_and_mul import gelu_tanh_and_mul

    return gelu_tanh_and_mul(x)


@conch(like=functools.partial(gated, functional.silu), shapes={"x": "n d"}, where="d % 2 == 0", layouts="contiguous")
def silu_and_mul(x):
    """SwiGLU of the halves of one tensor."""
    from conch.ops.activation.silu_and_mul import silu_and_mul

    return silu_and_mul(x)


@conch(
    like=rotated,
    shapes={"query": "n d", "table": "n 16"},
    where="d % 16 == 0",
    domain={"table": "-1 <= table <= 1"},
    layouts="contiguous",
)
def rotary(query, table):
    """Rotary embedding, on halves, of heads 16 wide."""
    from conch.ops.embedding.rotary_embedding import rotary_embedding

    places = torch.arange(len(query), device=query.device)
    return rotary_embedding(places, query.clone(), query.clone(), 16, table)[0]
