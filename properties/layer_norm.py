"""Promises of the layer norm kernels. Limits are ULP of a scale (docs/reductions.md), y of |weight * xhat| + |bias|."""

from __future__ import annotations

import pytest

import verify
from kernels import layer_norm as triton_layer_norm

FLOATS = ["bfloat16", "float16", "float32", "float64"]
# 16 bits: half an ULP for the rounding. float32: one ULP more, for elements within 2^-24 deviations of their row's
# mean, which float64 sums do not resolve. Measured cases stay at 0.51; hunts found 1.39. float64: there is no wider
# format. y has compensated row sums, about four roundings and 2 ULP of the reciprocal root. A gradient has three times
# as many roundings and two plain sums: at worst 21 ULP for the rows of 16 numbers that hunts use. Hunts found 11.7;
# random rows reach 2.6. Extreme inputs have no limit: a weight of 2^40 shows the bits that subnormal numbers lack.
LIMITS = {"bfloat16": 0.51, "float16": 0.51, "float32": 1.5, "float64": {"ordinary": 24, "extreme": None}}
# Beyond, squares and the terms of gradients leave float64. A float64 pair holds the sum of three operands only if they
# lie within a factor of 2^100: 106 bits less the result's. (Of two operands, a constant one may be larger by any
# factor.)
LARGEST = {"float64": 2.0**40}
# Sums over thousands of rows are judged by the magnitude of their terms; 1% of a cancelled sum is below half an ULP.
CANCELLED = "1% of a sum over thousands of rows is less than half an ULP of its terms"
BITS = ["rows", "position"]  # y, s and dx of a row: sizes of rows and dtypes alone choose the order of its sums
LARGEST_OF_THREE = LARGEST | {"bfloat16": 2.0**60, "float32": 2.0**60}


@verify.kernel(
    op="layer_norm",
    dtypes=FLOATS,
    max_ulp=LIMITS,
    gradients=True,
    refuses=False,
    largest=LARGEST,
    same_bits=BITS,
    vacuous=dict.fromkeys(("dweight", "dbias"), CANCELLED),
)
def layer_norm(x, weight, bias, *, eps):
    """The Triton kernel."""
    return triton_layer_norm.layer_norm(x, weight, bias, eps=eps)


@verify.kernel(
    op="layer_norm",
    operands=["x"],
    dtypes=FLOATS,
    max_ulp=LIMITS,
    gradients=True,
    refuses=False,
    largest=LARGEST,
    same_bits=BITS,
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
    same_bits=BITS,
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
    same_bits=BITS,
    vacuous=dict.fromkeys(("dweight", "dbias", "dinput_bias"), CANCELLED),
)
def layer_norm_residual_bias(x, residual, input_bias, weight, bias, *, eps):
    """The Triton kernel of x + input_bias + residual; returns the sum too."""
    return triton_layer_norm.layer_norm_residual_bias(x, residual, input_bias, weight, bias, eps=eps)


# The plain kernel gets, in one dtype, the laws without a test of their own in tests/kernels. test_layer_norm.py tests
# rows alone and among others, repeated calls, kernels that layouts choose, and sums in every regime with
# and without weight, bias and residual. test_plans.py tests new values in repeated launches. The kernel with the most
# operands gets the laws about sums of three and memory in 16 bits, and about second derivatives: these have every
# term of the plain kernel's. test_layer_norm.py compares gradients of all dtypes with exact sums, of three operands
# too. Slow runs try the other laws, and float32.
LAYOUTS = ["layout independence", "upstream layout independence"]
TESTED = ["batch invariance", "no stale results", *LAYOUTS]
LONG = ["many rows", "determinism", "same bits"]
DIFFERENT = ["accuracy", "initialised memory"]
GRADIENTS = ["gradcheck", "gradgradcheck"]

test_layer_norm = verify.laws_for(layer_norm, dtypes=["bfloat16"], without=[*TESTED, *LONG, *DIFFERENT])
test_layer_norm_residual_bias = verify.laws_for(layer_norm_residual_bias, dtypes=["bfloat16"], laws=DIFFERENT)
test_layer_norm_residual = verify.laws_for(layer_norm_residual, dtypes=["bfloat16"], laws=LAYOUTS)
test_layer_norm_residual_bias_float64 = verify.laws_for(
    layer_norm_residual_bias, dtypes=["float64"], laws=["gradgradcheck"]
)
test_layer_norm_tested = pytest.mark.slow(
    verify.laws_for(layer_norm, dtypes=["bfloat16"], laws=[*TESTED, *LONG, *DIFFERENT])
)
test_layer_norm_residual_sums = pytest.mark.slow(
    verify.laws_for(layer_norm_residual, dtypes=["bfloat16"], laws=DIFFERENT)
)
test_layer_norm_residual_bias_tested = pytest.mark.slow(
    verify.laws_for(layer_norm_residual_bias, dtypes=["float32"], laws=[*TESTED, *DIFFERENT])
)
test_layer_norm_float64 = pytest.mark.slow(verify.laws_for(layer_norm, dtypes=["float64"], laws=GRADIENTS))
