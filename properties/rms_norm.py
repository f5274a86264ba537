"""Promises of the RMS norm kernels. Figures are ULP of a scale, |weight * xhat| for y (docs/reductions.md)."""

from __future__ import annotations

import functools

import pytest
import torch

import verify
from kernels import rms_norm as triton_rms_norm

FLOATS = ["bfloat16", "float16", "float32", "float64"]
COMPARED = ["bfloat16", "float16", "float32"]
# The limits of layer norm (properties/layer_norm.py). No mean is subtracted; float32's allowance above half an ULP is
# for many long rows, whose gradients are computed in float32 pairs.
LIMITS = {"bfloat16": 0.51, "float16": 0.51, "float32": 1.5, "float64": {"ordinary": 24, "extreme": None}}
LARGEST = {"float64": 2.0**40}
BITS = ["rows", "position"]  # y, s and dx of a row, as in layer norm


of_norms = functools.partial(
    verify.kernel, dtypes=FLOATS, max_ulp=LIMITS, gradients=True, refuses=False, largest=LARGEST, same_bits=BITS
)


@of_norms(op="rms_norm")
def rms_norm(x, weight, *, eps):
    """The Triton kernel."""
    return triton_rms_norm.rms_norm(x, weight, eps=eps)


@verify.kernel(
    op="rms_norm",
    where="64 <= n and n <= 256 and n % 16 == 0",
    dtypes=COMPARED,
    max_ulp={"bfloat16": 0.51, "float16": 0.51, "float32": 1.0},
    gradients=True,
    refuses=False,
    same_bits=BITS,
)
def rms_norm_heads(x, weight, *, eps):
    """The Triton kernel on rows as long as a head of attention, as norms of queries and keys have them."""
    return triton_rms_norm.rms_norm(x, weight, eps=eps)


@of_norms(op="rms_norm", operands=["x"])
def rms_norm_bare(x, *, eps):
    """The Triton kernel without a weight."""
    return triton_rms_norm.rms_norm(x, eps=eps)


@of_norms(op="rms_norm_residual")
def rms_norm_residual(x, residual, weight, *, eps):
    """The Triton kernel of x + residual; returns the sum too."""
    return triton_rms_norm.rms_norm_residual(x, residual, weight, eps=eps)


def of_gated(x, gate, weight):
    """What the gated kernel computes."""
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6) * torch.nn.functional.silu(gate)


@verify.kernel(
    like=of_gated,
    shapes={"x": "m k", "gate": "m k", "weight": "k"},
    dtypes=COMPARED,
    # float32 holds products of three ordinary bfloat16 numbers, not of three near its own limits
    max_ulp={"bfloat16": {"ordinary": 0.51, "extreme": None}, "float16": 0.51, "float32": 1.0},
    gradients=True,
    refuses=True,  # rows of more than 16,384
    same_bits=BITS,
)
def rms_norm_gated(x, gate, weight):
    """The Triton kernel of a norm times silu(gate)."""
    return triton_rms_norm.rms_norm_gated(x, gate, weight, eps=1e-6)


# Kernels, launcher, memory and layouts are layer norm's, whose laws test them. Here are the laws about the formulas.
# The residual kernel's gradients contain every term of the plain kernel's. tests/kernels/test_rms_norm.py tests the
# sums, gradients in float64, and that operands are not written to; here only slow runs do. test_rms_norm_fused.py
# compares gated rows alone and among others. `verify run --profile ci` tries every law in every dtype.
LAWS = ["special values"]
OF_SUMS = ["accuracy", "nothing overwritten"]

test_rms_norm = verify.laws_for(rms_norm, dtypes=["bfloat16"], laws=LAWS)
test_rms_norm_residual = pytest.mark.slow(verify.laws_for(rms_norm_residual, dtypes=["bfloat16"], laws=OF_SUMS))
test_rms_norm_residual_float64 = verify.laws_for(rms_norm_residual, dtypes=["float64"], laws=["gradgradcheck"])
test_rms_norm_gated = verify.laws_for(rms_norm_gated, dtypes=["bfloat16"], laws=["special values"])
