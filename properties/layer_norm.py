"""What the layer norm kernels promise. Figures are ULP of a scale, |weight * xhat| + |bias| and likewise:
docs/reductions.md."""

from __future__ import annotations

import pytest
import torch

import verify
from kernels import layer_norm as triton_layer_norm

FLOATS = ["bfloat16", "float16", "float32", "float64"]
COMPARED = ["bfloat16", "float16", "float32"]
# Half an ulp of rounding. In float32 one more where an element lies within 2^-24 deviations of its row's mean, which
# float64 sums do not resolve: every regime measured stays at 0.51, hunts found 1.39, and 1.56 in a row that begins with
# an outlier, whose sums are made once more around its mean since. float64 has no wider format to compute in. Row sums
# of y are compensated: about four roundings and the reciprocal root's two units. A gradient has three times as many and
# two plain sums: 21 units at worst for rows of 16 numbers, as hunts have them, which found 11.7; random rows reach 2.6.
# Of extreme float64 nothing is promised: what is subnormal has lost bits that a weight of 2^40 shows.
LIMITS = {"bfloat16": 0.51, "float16": 0.51, "float32": 1.5, "float64": {"ordinary": 24, "extreme": None}}
# Beyond, squares and the terms of gradients leave float64, and a pair of float64 holds no sum of three operands that
# lie further apart than 2^100: 106 bits less the result's. (A constant one of two may be larger by any factor: a hunt
# found 1.5e9 ULP when a row's mean was that of its numbers, not of their differences.)
LARGEST = {"float64": 2.0**40}
# Sums over thousands of rows are judged by the magnitude of their terms: 1% of what is left is below half an ulp.
CANCELLED = "1% of a sum over thousands of rows is less than half an ULP of its terms"
LARGEST_OF_THREE = LARGEST | {"bfloat16": 2.0**60, "float32": 2.0**60}


@verify.kernel(
    op="layer_norm",
    dtypes=FLOATS,
    max_ulp=LIMITS,
    gradients=True,
    refuses=False,
    largest=LARGEST,
    vacuous=dict.fromkeys(("dweight", "dbias"), CANCELLED),
)
def layer_norm(x, weight, bias, *, eps):
    """The Triton kernel."""
    return triton_layer_norm.layer_norm(x, weight, bias, eps=eps)


@verify.kernel(
    op="layer_norm", operands=["x"], dtypes=FLOATS, max_ulp=LIMITS, gradients=True, refuses=False, largest=LARGEST
)
def layer_norm_bare(x, *, eps):
    """The Triton kernel without weight and bias."""
    return triton_layer_norm.layer_norm(x, eps=eps)


@verify.kernel(
    op="layer_norm_residual",
    dtypes=FLOATS,
    max_ulp=LIMITS,
    gradients=True,
    refuses=False,
    largest=LARGEST,
    vacuous=dict.fromkeys(("dweight", "dbias"), CANCELLED),
)
def layer_norm_residual(x, residual, weight, bias, *, eps):
    """The Triton kernel of x + residual; returns the sum too."""
    return triton_layer_norm.layer_norm_residual(x, residual, weight, bias, eps=eps)


@verify.kernel(
    op="layer_norm_residual_bias",
    dtypes=FLOATS,
    max_ulp=LIMITS,
    gradients=True,
    refuses=False,
    largest=LARGEST_OF_THREE,
    vacuous=dict.fromkeys(("dweight", "dbias", "dinput_bias"), CANCELLED),
)
def layer_norm_residual_bias(x, residual, input_bias, weight, bias, *, eps):
    """The Triton kernel of x + input_bias + residual; returns the sum too."""
    return triton_layer_norm.layer_norm_residual_bias(x, residual, input_bias, weight, bias, eps=eps)


@verify.kernel(op="layer_norm", dtypes=COMPARED, peer=True)
def torch_layer_norm(x, weight, bias, *, eps):
    """PyTorch eager."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


# The plain kernel in one dtype has the laws that no test in tests/kernels is about. test_layer_norm.py there tests rows
# alone and among others, calls that repeat, layouts of inputs and of upstream gradients, and sums in every regime with
# and without weight, bias and residual; test_plans.py tests new values in launches that are repeated. The kernel with
# most operands has the sums of three, memory, and gradients in float64. Slow runs try the other laws too.
TESTED = ["batch invariance", "no stale results", "layout independence", "upstream layout independence"]
LONG = ["many rows", "determinism"]
DIFFERENT = ["accuracy", "initialised memory"]
GRADIENTS = ["gradcheck", "gradgradcheck"]

test_layer_norm = verify.laws_for(layer_norm, dtypes=["bfloat16"], without=[*TESTED, *LONG, "initialised memory"])
test_layer_norm_float64 = verify.laws_for(layer_norm, dtypes=["float64"], laws=GRADIENTS)
test_layer_norm_residual_bias = verify.laws_for(layer_norm_residual_bias, dtypes=["float32"], laws=DIFFERENT)
test_layer_norm_residual_bias_float64 = verify.laws_for(layer_norm_residual_bias, dtypes=["float64"], laws=GRADIENTS)
test_layer_norm_tested = pytest.mark.slow(
    verify.laws_for(layer_norm, dtypes=["bfloat16"], laws=[*TESTED, *LONG, "initialised memory"])
)
test_layer_norm_residual = pytest.mark.slow(
    verify.laws_for(layer_norm_residual, dtypes=["bfloat16"], laws=["accuracy", "initialised memory"])
)
test_layer_norm_residual_bias_tested = pytest.mark.slow(
    verify.laws_for(layer_norm_residual_bias, dtypes=["float32"], laws=TESTED)
)
