"""Promises of the fused linear kernels. Figures are ULP of the scale.

The scale is |x| |weight| + |bias|, carried through the activation. One rounding per term would give an error that grows
with K; the kernels stay below that.
"""

from __future__ import annotations

import pytest

import verify
from kernels import linear_act as triton_linear
from kernels import linear_geglu as triton_linear_geglu

# float32: the a-priori bound of a sum of K products is K 2^-24 of the scale, up to K units: 128 for the K = 128 that
# hunts use. Measured rows stay below 17 on an H200. Hunts reached 113 there (in the tail of GELU), 56 on the
# interpreter. With an activation extreme inputs have no limit: an upstream gradient below 2^-100 times a slope may be
# subnormal, and an x or a weight of 2^20 shows its lost bits (157 units at 2^-135). 16 bits: half an ULP for the
# rounding, and the bits that the matrix units drop. They align the 16 products of a step and the sum so far to the
# largest exponent and cut off all bits below 2^-25 of it (bit-exact models of the H100: Khattak and Mikaitis,
# arXiv:2512.07004; older GPUs: Fasi et al., PeerJ CS 7:e330). This shows in float16 below 6.1e-5, where an ULP is
# always 2^-24. A subnormal operand counts with exponent -14. So 16 times 2^-24, which is 2^-20, is aligned as 2^-10 and
# cuts every other product at 2^-35. 136 such cuts (K = 128) are 0.07 ULP: 0.5 becomes 0.57. The rule reproduces the
# 0.549 of the published hunt to its last digit; the exact sum gives 0.451. Operands up to 256 would give up to 1.06
# ULP. Weight gradients: hunts sum up to 65,537 rows. kernels/linear_weight.py sums 128 rows in a chain, then 128
# blocks, then parts in float64: at most 257 2^-24 of the scale for any number of rows. It exceeds 128 only if more than
# half of the roundings err by nearly half a unit to one side and the sum hardly grows. Sums of equal rows grow and stay
# below 3/8 of the bound, 97. Sums of products that float32 cannot hold are computed in float64. In float16 (bfloat16)
# parts of 2^14 (2^17) rows lose at most 1.25 ULP, equal rows 3/8 of that: 0.5 becomes 0.97.
HALVES = {"bfloat16": 1, "float16": 1}
FLOAT32 = {"float32": {"ordinary": 128, "extreme": None}}
ALL = HALVES | {"float32": 128}
# Sums are float32. With operands up to these limits, 128 products and their activation stay in its range and, in
# float16, in the result's. Beyond, a sum may overflow although its exact value does not.
HALVES_TO = {"bfloat16": 2.0**24, "float16": 2.0**4}
SQUARED_TO = HALVES_TO | {"float16": 1.0}
FLOAT32_TO = {"float32": 2.0**24}
ALL_TO = HALVES_TO | FLOAT32_TO
BITS = ["rows", "position"]  # the order of a sum depends on no tile and no number of rows: linear_act.py


@verify.kernel(
    op="linear",
    params={"activation": "id"},
    dtypes=[*ALL],
    max_ulp=ALL,
    gradients=True,
    refuses=False,
    largest=ALL_TO,
    same_bits=BITS,
)
def linear(x, weight, bias):
    """The Triton kernel without activation."""
    return triton_linear.linear_act(x, weight, bias, activation="id")


# With an activation, a 16-bit backward pass reads a pre-activation that was rounded to 16 bits, so its gradients belong
# to another point than the exact function's. Every fused layer does this. Only the forward pass is promised;
# docs/kernels.md bounds the effect of the rounding on the gradients.


@verify.kernel(
    op="linear",
    params={"activation": "gelu"},
    dtypes=[*HALVES],
    max_ulp=HALVES,
    gradients=False,
    refuses=False,
    largest=HALVES_TO,
    same_bits=BITS,
)
def linear_gelu(x, weight, bias):
    """The Triton kernel with GELU in the epilogue."""
    return triton_linear.linear_act(x, weight, bias, activation="gelu")


@verify.kernel(
    op="linear",
    params={"activation": "gelu"},
    dtypes=[*FLOAT32],
    max_ulp=FLOAT32,
    gradients=True,
    refuses=False,
    largest=FLOAT32_TO,
    same_bits=BITS,
)
def linear_gelu_float32(x, weight, bias):
    """The same in float32, with its gradients."""
    return triton_linear.linear_act(x, weight, bias, activation="gelu")


@verify.kernel(
    op="linear",
    params={"activation": "squared_relu"},
    dtypes=[*HALVES],
    max_ulp=HALVES,
    gradients=False,
    refuses=False,
    largest=SQUARED_TO,
    same_bits=BITS,
)
def linear_squared_relu(x, weight, bias):
    """The Triton kernel with the squared ReLU in the epilogue."""
    return triton_linear.linear_act(x, weight, bias, activation="squared_relu")


@verify.kernel(
    op="linear",
    params={"activation": "geglu"},
    dtypes=[*HALVES],
    max_ulp=HALVES,
    gradients=False,
    refuses=False,
    largest=SQUARED_TO,
    same_bits=BITS,
    vacuous={"y": "1% of a product of two sums may be less than an ULP of the magnitudes of their terms"},
)
def linear_geglu(x, weight, bias):
    """The Triton kernel of the whole GEGLU layer."""
    return triton_linear_geglu.linear_geglu(x, weight, bias)


@verify.kernel(
    op="linear",
    params={"activation": "geglu"},
    dtypes=[*FLOAT32],
    max_ulp=FLOAT32,
    gradients=True,
    refuses=False,
    largest=FLOAT32_TO,
    same_bits=BITS,
)
def linear_geglu_float32(x, weight, bias):
    """The same in float32, with its gradients."""
    return triton_linear_geglu.linear_geglu(x, weight, bias)


# These laws have a test of their own in tests/kernels, so only slow runs try them here. test_linear_act.py tests
# rows alone and among others, saved tensors and a second backward pass, autocast and
# operators. test_linear_layouts.py tests layouts of operands and upstream gradients, test_composition.py compiled
# calls, test_plans.py new values in repeated launches.
TESTED = ["determinism", "batch invariance", "same bits", "many rows", "nothing overwritten", "no stale results"]
TESTED += ["layout independence", "upstream layout independence", "compiled", "autocast"]
test_linear = verify.laws_for(linear, dtypes=["bfloat16"], without=TESTED)
test_linear_tested = pytest.mark.slow(verify.laws_for(linear, dtypes=["bfloat16"], laws=TESTED))
# tests/kernels/test_linear.py compares gradients of the whole layer with those of the formula.
# Its memory is surrounded by guard bands under "initialised memory" too.
OTHERS = ["memory bounds"]
test_linear_geglu_float32 = verify.laws_for(linear_geglu_float32, without=[*TESTED, *OTHERS])
test_linear_geglu_others = pytest.mark.slow(verify.laws_for(linear_geglu_float32, laws=OTHERS))
# The same kernel with an activation gets the laws that an activation, applied to each sum, can affect.
FORWARD = ["accuracy", "special values", "memory bounds", "initialised memory", "mixed dtypes"]
test_linear_gelu = verify.laws_for(linear_gelu, dtypes=["float16"], laws=FORWARD)
