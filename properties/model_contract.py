"""Promises of contract="model": the bits of the eager layer that a kernel replaces (docs/kernels.md).

    verify run properties/model_contract.py

`rounds="as like"` is the promise. `verify run` does not take this file by default: kernels and launches are those of
the other files, and a night is long enough. Float32 has one contract.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F  # noqa: N812

import verify
from kernels import geglu as gates
from kernels import layer_norm as layer_norms
from kernels import linear_act as linears
from kernels import linear_geglu as linear_gates
from kernels import rms_norm as norms
from kernels import rope as ropes
from kernels import swiglu as swiglus
from properties.rope import PARTS, rotated

EPS = 1e-6
ROWS = {"x": "m k", "weight": "k"}
SUMS = {"x": "m k", "residual": "m k", "weight": "k"}
PAIR = {"x1": "m k", "x2": "m k"}
LAYER = {"x": "m k", "weight": "n k", "bias": "n"}
model = functools.partial(verify.kernel, dtypes=["bfloat16", "float16"], rounds="as like", gradients=True)


def normed(x):
    """xhat of a row in float32."""
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)


def llama(x, weight):
    return weight * normed(x).to(x.dtype)


def gemma(x, weight):
    return (normed(x) * (1.0 + weight.float())).to(x.dtype)


def olmo(x, weight):
    return (weight * normed(x)).to(x.dtype)


def llama_of_sum(x, residual, weight):
    s = residual + x
    return llama(s, weight), s


def gemma_of_sum(x, residual, weight):
    s = residual + x
    return gemma(s, weight), s


def olmo_of_sum(x, residual, weight):
    s = residual + x
    return olmo(s, weight), s


def layer_norm_of_sum(x, residual, weight, bias):
    """PyTorch's on a GPU: on a CPU it stores mean and rstd in 16 bits for its backward pass."""
    s = residual + x
    return F.layer_norm(s.float(), s.shape[-1:], weight.float(), bias.float(), EPS).to(x.dtype), s


def gelu(x):
    """torch.nn.functional.gelu by its formula, whose losses in the tail belong to the contract."""
    wide = x.float()
    return (wide * 0.5 * (1.0 + torch.erf(wide * math.sqrt(0.5)))).to(x.dtype)


def gelu_tanh(x):
    wide = x.float()
    return (wide * 0.5 * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))).to(x.dtype)


def gated(x, gate, weight):
    return (llama(x, weight) * F.silu(gate.float())).to(x.dtype)


@model(like=llama, shapes=ROWS)
def rms_norm_llama(x, weight):
    """Llama's order: xhat is rounded before its product with the weight."""
    return norms.rms_norm(x, weight, eps=EPS, contract="model", convention="llama")


@model(like=gemma, shapes=ROWS)
def rms_norm_gemma(x, weight):
    """Gemma's: 1 + weight, one rounding."""
    return norms.rms_norm(x, weight, eps=EPS, contract="model", convention="gemma")


@model(like=olmo, shapes=ROWS)
def rms_norm_olmo(x, weight):
    """OLMo 2's order: the weight before the one rounding."""
    return norms.rms_norm(x, weight, eps=EPS, contract="model", convention="olmo")


@model(like=llama_of_sum, shapes=SUMS)
def rms_norm_residual_llama(x, residual, weight):
    """The sum is rounded before the norm."""
    return norms.rms_norm_residual(x, residual, weight, eps=EPS, contract="model", convention="llama")


@model(like=gemma_of_sum, shapes=SUMS)
def rms_norm_residual_gemma(x, residual, weight):
    return norms.rms_norm_residual(x, residual, weight, eps=EPS, contract="model", convention="gemma")


@model(like=olmo_of_sum, shapes=SUMS)
def rms_norm_residual_olmo(x, residual, weight):
    return norms.rms_norm_residual(x, residual, weight, eps=EPS, contract="model", convention="olmo")


@model(like=layer_norm_of_sum, shapes=SUMS | {"bias": "k"})
def layer_norm_residual(x, residual, weight, bias):
    """The sum is rounded before the norm, which rounds once."""
    return layer_norms.layer_norm_residual(x, residual, weight, bias, eps=EPS, contract="model")


@model(like=gated, shapes={"x": "m k", "gate": "m k", "weight": "k"}, refuses=True)  # rows of more than 16,384
def rms_norm_gated(x, gate, weight):
    """Qwen3-Next's gated norm."""
    return norms.rms_norm_gated(x, gate, weight, eps=EPS, contract="model")


@model(like=lambda x1, x2: F.silu(x2) * x1, shapes=PAIR)
def swiglu(x1, x2):
    """silu is rounded before the product."""
    return swiglus.swiglu_split(x1, x2, contract="model")


@model(like=lambda x1, x2: gelu(x2) * x1, shapes=PAIR)
def geglu(x1, x2):
    """gelu is rounded before the product."""
    return gates.geglu_split(x1, x2, contract="model")


@model(like=lambda x1, x2: gelu_tanh(x2) * x1, shapes=PAIR)
def geglu_tanh(x1, x2):
    return gates.geglu_split(x1, x2, "tanh", contract="model")


@model(like=lambda x, weight, bias: gelu(F.linear(x, weight, bias)), shapes=LAYER)
def linear_gelu(x, weight, bias):
    """The sum is rounded before the activation."""
    return linears.linear_act(x, weight, bias, activation="gelu", contract="model")


def linear_then_geglu(x, weight, bias):
    p1, p2 = F.linear(x, weight, bias).chunk(2, -1)
    return p1 * gelu(p2)


@model(like=linear_then_geglu, shapes=LAYER, where="n % 2 == 0")
def linear_geglu(x, weight, bias):
    """Both halves and gelu are rounded before the product."""
    return linear_gates.linear_geglu(x, weight, bias, contract="model")


@model(like=rotated, **PARTS | {"gradients": ["q", "k"]})
def rope(q, k, cos, sin):
    """Both products are rounded before their sum."""
    return ropes.rope(q, k, cos.detach(), sin.detach(), contract="model")
