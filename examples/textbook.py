"""The formulas as textbooks and tutorials write them, evaluated one operation at a time in the tensor's own dtype.

They are measured for comparison (`peer=True`): `verify bench` of a kernel's file and this one shows what a kernel
gains over the line of code that it replaces.
"""

from __future__ import annotations

import math

import torch

import verify


def _exponential_tanh(a: torch.Tensor) -> torch.Tensor:
    """tanh by its definition: inf/inf from a = 44 on in float32 and bfloat16, from 5.6 on in float16."""
    e = torch.exp(2 * a)
    return (e - 1) / (e + 1)


def _inner(x: torch.Tensor) -> torch.Tensor:
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


@verify.kernel(op="gelu", peer=True)
def textbook_gelu(x):
    """x/2 (1 + erf(x / sqrt 2))."""
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


@verify.kernel(op="gelu", params={"approximate": "tanh"}, peer=True)
def textbook_gelu_tanh(x):
    """x/2 (1 + tanh(...))."""
    return 0.5 * x * (1 + torch.tanh(_inner(x)))


@verify.kernel(op="gelu", params={"approximate": "tanh"}, peer=True)
def textbook_gelu_exponentials(x):
    """The same with tanh spelled out in exponentials."""
    return 0.5 * x * (1 + _exponential_tanh(_inner(x)))


@verify.kernel(op="geglu", peer=True)
def textbook_geglu(x):
    """x1 times the textbook GELU of x2."""
    x1, x2 = x.chunk(2, -1)
    return x1 * (0.5 * x2 * (1 + torch.erf(x2 / math.sqrt(2))))


@verify.kernel(op="silu", peer=True)
def textbook_silu(x):
    """x / (1 + exp(-x))."""
    return x / (1 + torch.exp(-x))


@verify.kernel(op="swiglu_split", peer=True)
def textbook_swiglu_split(x1, x2):
    """x1 times the textbook SiLU of x2."""
    return x1 * (x2 / (1 + torch.exp(-x2)))


@verify.kernel(op="softmax", peer=True)
def textbook_softmax(x):
    """exp(x) / sum(exp(x)), without taking the maximum off."""
    e = torch.exp(x)
    return e / e.sum(-1, keepdim=True)


@verify.kernel(op="layer_norm", peer=True)
def textbook_layer_norm(x, weight, bias, *, eps):
    """Mean and variance of each row, in two passes."""
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps) * weight + bias


@verify.kernel(op="layer_norm", peer=True)
def textbook_layer_norm_one_pass(x, weight, bias, *, eps):
    """The variance as E[x^2] - E[x]^2, which cancels where the mean is large."""
    mean = x.mean(-1, keepdim=True)
    variance = x.square().mean(-1, keepdim=True) - mean.square()
    return (x - mean) * torch.rsqrt(variance + eps) * weight + bias


@verify.kernel(op="rms_norm", peer=True)
def textbook_rms_norm(x, weight, *, eps):
    """x over the root of its mean square."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


@verify.kernel(op="linear", params={"activation": "gelu"}, peer=True)
def textbook_linear_gelu(x, weight, bias):
    """A matrix product, then the textbook GELU."""
    pre = x @ weight.t() + bias
    return 0.5 * pre * (1 + torch.erf(pre / math.sqrt(2)))
