"""Kernels that compute and quantise in one pass, in plain PyTorch: a norm, SwiGLU, and the epilogue of a product.

    verify run examples/fused_quantisers.py

The numbers before they are quantised are intervals around the exact ones: docs/low-precision.md.
"""

from __future__ import annotations

import functools

import torch

import verify
from examples import quantisers

MXFP8 = verify.quantised("e4m3", block=(1, 32), scale="e8m0")
FP8_ROWS = verify.quantised("e4m3", block=(1, 0), scale="float32", least=1e-10)
INT8_ROWS = verify.quantised("int8", block=(1, 0), scale="float32", least=1e-10)
fused = functools.partial(verify.kernel, dtypes=["bfloat16"])


def of_norm(x, weight):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps=1e-6)


@fused(quantise=MXFP8, like=of_norm, shapes={"x": "m k", "weight": "k"}, where="k % 32 == 0")
def norm_mxfp8(x, weight):
    """RMSNorm whose float32 result goes to MXFP8 without a rounding to bfloat16."""
    x = x.float()
    scaled = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight.float()
    return quantisers.mx(scaled, "e4m3", "floor")


@fused(quantise=FP8_ROWS, like=of_norm, shapes={"x": "m k", "weight": "k"})
def norm_fp8_rows(x, weight):
    """RMSNorm in bfloat16, then FP8 with a scale for each row: vLLM's two passes."""
    return quantisers.scaled8(of_norm(x, weight), 1, 0, 1e-10)


SAME = {"gate": "m k", "up": "m k"}  # beyond -88, silu in float32 is 0 where the exact one is 1e-37


def of_swiglu(gate, up):
    return torch.nn.functional.silu(gate) * up


@fused(quantise=MXFP8, like=of_swiglu, shapes=SAME, where="k % 32 == 0", largest=32.0)
def swiglu_mxfp8(gate, up):
    """SwiGLU in float32, then MXFP8."""
    return quantisers.mx(of_swiglu(gate.float(), up.float()), "e4m3", "floor")


@fused(quantise=INT8_ROWS, like=of_swiglu, shapes=SAME, largest=32.0)
def swiglu_int8(gate, up):
    """SwiGLU in float32, then INT8 with a scale for each row."""
    return quantisers.integers(of_swiglu(gate.float(), up.float()), 0, 127, 1e-10)


def of_linear(x, w, bias):
    return torch.relu(x @ w.mT + bias)


SHAPES = {"x": "m k", "w": "n k", "bias": "n"}


@fused(quantise=MXFP8, like=of_linear, shapes=SHAPES, where="n % 32 == 0", largest=8.0)
def linear_mxfp8(x, w, bias):
    """A product whose epilogue adds the bias, applies ReLU and quantises to MXFP8."""
    return quantisers.mx(torch.relu(x.float() @ w.float().mT + bias.float()), "e4m3", "floor")
