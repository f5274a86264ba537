"""What the RMS norm kernels promise. Figures are ULP of a scale, |weight * xhat| and likewise: docs/reductions.md."""

from __future__ import annotations

import pytest
import torch

import verify
from kernels import rms_norm as triton_rms_norm

FLOATS = ["bfloat16", "float16", "float32", "float64"]
COMPARED = ["bfloat16", "float16", "float32"]
# As layer norm's (properties/layer_norm.py), but no mean is subtracted: what float32 has beyond half an ulp is for many
# long rows, whose gradients are made of float32 pairs.
LIMITS = {"bfloat16": 0.51, "float16": 0.51, "float32": 1.5, "float64": {"ordinary": 24, "extreme": None}}
LARGEST = {"float64": 2.0**40}


@verify.kernel(op="rms_norm", dtypes=FLOATS, max_ulp=LIMITS, gradients=True, refuses=False, largest=LARGEST)
def rms_norm(x, weight, *, eps):
    """The Triton kernel."""
    return triton_rms_norm.rms_norm(x, weight, eps=eps)


@verify.kernel(
    op="rms_norm", operands=["x"], dtypes=FLOATS, max_ulp=LIMITS, gradients=True, refuses=False, largest=LARGEST
)
def rms_norm_bare(x, *, eps):
    """The Triton kernel without a weight."""
    return triton_rms_norm.rms_norm(x, eps=eps)


@verify.kernel(op="rms_norm_residual", dtypes=FLOATS, max_ulp=LIMITS, gradients=True, refuses=False, largest=LARGEST)
def rms_norm_residual(x, residual, weight, *, eps):
    """The Triton kernel of x + residual; returns the sum too."""
    return triton_rms_norm.rms_norm_residual(x, residual, weight, eps=eps)


@verify.kernel(op="rms_norm", dtypes=COMPARED, peer=True)
def torch_rms_norm(x, weight, *, eps):
    """PyTorch eager."""
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


# The kernels, their launcher, memory and layouts are layer norm's, and have its laws: here it is what has other
# formulas. Gradients are those of the residual kernel, which have every term of the plain one's. Sums, and that nothing
# given is written to, are in tests/kernels/test_rms_norm.py, and in slow runs here. `verify run --profile ci` takes
# every law to every dtype.
LAWS = ["special values", "shapes"]
OF_SUMS = ["accuracy", "nothing overwritten"]
GRADIENTS = ["gradcheck", "gradgradcheck"]

test_rms_norm = verify.laws_for(rms_norm, dtypes=["bfloat16"], laws=LAWS)
test_rms_norm_residual = pytest.mark.slow(verify.laws_for(rms_norm_residual, dtypes=["bfloat16"], laws=OF_SUMS))
test_rms_norm_residual_float64 = verify.laws_for(rms_norm_residual, dtypes=["float64"], laws=GRADIENTS)
