"""What the fused linear kernels promise. Figures are ULP of the scale: the summed magnitudes |x| |weight| + |bias|,
carried through the activation. An error of one rounding per term would grow with K; these stay below it."""

from __future__ import annotations

import pytest
import torch

import verify
from kernels import linear_act as triton_linear
from kernels import linear_geglu as triton_linear_geglu

# In float32 the a-priori bound of a sum of K products is K 2^-24 of the scale, which is up to K units: 128 for the 128
# that hunts search. The rows measured on an H200 stay below 17; hunts there reached 113 (in the tail of GELU), on the
# interpreter 56. In 16 bits half an ulp of rounding, and what the matrix units drop, which shows in float16 below
# 6.1e-5, where an ulp is 2^-24 whatever the result: they align the 16 products of a step and the sum so far to the
# largest exponent and cut off all bits below 2^-25 of it (bit-exact models of the H100: Khattak and Mikaitis,
# arXiv:2512.07004; on older GPUs Fasi et al., PeerJ CS 7:e330). A subnormal operand counts there with exponent -14:
# 16 times 2^-24 is 2^-20, but aligned as 2^-10 it cuts every product beside it at 2^-35. 136 such cuts (K = 128) are
# 0.07 ulp, so 0.5 becomes 0.57. The rule gives the 0.549 of the published hunt to its last digit, the exact sum 0.451.
# Operands up to 256, which were declared at first, give up to 1.06 ulp: 0.66 was found, and 0.80 with GELU.
# Of extreme float32 nothing is promised with an activation: an upstream gradient below 2^-100 times a slope may be
# subnormal, and has lost bits that an x or a weight of 2^20 shows (157 units at 2^-135).
# A weight's gradient sums rows, of which hunts take up to 65,537. As one chain it reached 13,301 units in float32
# (equal rows) and 1.142 ulp in float16. Its levels (kernels/linear_weight.py) are chains of 128 rows, of 128 such
# blocks, and float64: 257 2^-24 of the scale at most, for any number of rows. That is beyond 128 only where more than
# half of the roundings err by nearly half a unit to one side of a sum that hardly grows: equal rows, whose sums do
# grow, stay below 3/8 of it, 97 (the worst of 200,000 is 56). Where x and dy are 10^-21 and float32 holds no product,
# sums of more than one block are made in float64: 15,059 units were found. In float16 (bfloat16) parts of 2^14 (2^17)
# rows are cut by 1.25 ulp at most, and for equal rows by 3/8 of that: 0.5 becomes 0.97.
HALVES = {"bfloat16": 1, "float16": 1}
FLOAT32 = {"float32": {"ordinary": 128, "extreme": None}}
ALL = HALVES | {"float32": 128}
# Sums are float32: with operands up to here 128 products and their activation stay in its range and, in float16, in
# that of the result. Beyond, a sum may overflow whose exact value does not.
HALVES_TO = {"bfloat16": 2.0**24, "float16": 2.0**4}
SQUARED_TO = HALVES_TO | {"float16": 1.0}
FLOAT32_TO = {"float32": 2.0**24}
ALL_TO = HALVES_TO | FLOAT32_TO


@verify.kernel(
    op="linear", params={"activation": "id"}, dtypes=[*ALL], max_ulp=ALL, gradients=True, refuses=False, largest=ALL_TO
)
def linear(x, weight, bias):
    """The Triton kernel without activation."""
    return triton_linear.linear_act(x, weight, bias, activation="id")


# With an activation, a 16-bit backward pass reads a pre-activation that was rounded to 16 bits: its gradients are
# those of another point than the exact function's, by design of every fused layer. Only the forward is promised;
# docs/kernels.md bounds what the rounding adds to the gradients.


@verify.kernel(
    op="linear",
    params={"activation": "gelu"},
    dtypes=[*HALVES],
    max_ulp=HALVES,
    gradients=False,
    refuses=False,
    largest=HALVES_TO,
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
)
def linear_geglu_float32(x, weight, bias):
    """The same in float32, with its gradients."""
    return triton_linear_geglu.linear_geglu(x, weight, bias)


@verify.kernel(op="linear", params={"activation": "gelu"}, dtypes=[*ALL], peer=True)
def torch_linear_gelu(x, weight, bias):
    """PyTorch eager: linear, then GELU."""
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias))


# Every law but accuracy compares bits of several calls. These have a test of their own subject: rows alone and among
# others, saved tensors and a second backward pass, autocast and operators in tests/kernels/test_linear_act.py and
# test_linear_geglu.py, layouts of operands and of upstream gradients in test_linear_layouts.py, compiled calls in
# test_composition.py, new values in launches that are repeated in test_plans.py. Slow runs try them too.
TESTED = ["determinism", "batch invariance", "many rows", "nothing overwritten", "no stale results"]
TESTED += ["layout independence", "upstream layout independence", "compiled", "custom operators", "autocast"]
test_linear = verify.laws_for(linear, dtypes=["bfloat16"], without=TESTED)
test_linear_tested = pytest.mark.slow(verify.laws_for(linear, dtypes=["bfloat16"], laws=TESTED))
test_linear_geglu_float32 = verify.laws_for(linear_geglu_float32, without=TESTED)
# Of the same kernel with an activation, which is applied to each sum, what an activation can change.
FORWARD = ["accuracy", "special values", "memory bounds", "initialised memory", "mixed dtypes"]
test_linear_gelu = verify.laws_for(linear_gelu, dtypes=["float16"], laws=FORWARD)
