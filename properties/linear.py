"""What the fused linear kernels promise. Figures are ULP of the scale: the summed magnitudes |x| |weight| + |bias|,
carried through the activation. An error of one rounding per term would grow with K; these stay below it."""

from __future__ import annotations

import torch

import verify
from kernels import linear_act as triton_linear
from kernels import linear_geglu as triton_linear_geglu

# Half an ulp of rounding in 16 bits. In float32 the a-priori bound of a sum of K products is K/2 units, half an ulp for
# each: 64 for the 128 that hunts search. The rows measured on an H200 stay below 17; the worst row that a hunt found on
# the interpreter reached 56. PyTorch's sums are other sums with the same bound.
HALVES = {"bfloat16": 0.6, "float16": 0.6}
FLOAT32 = {"float32": 64}
ALL = HALVES | FLOAT32
# Sums are float32: with operands up to here 4,096 products and their activation stay in its range, and its rounding
# stays below half an ulp of the largest float16. Beyond, a sum may overflow whose exact value does not.
HALVES_TO = {"bfloat16": 2.0**24, "float16": 2.0**8}
FLOAT32_TO = {"float32": 2.0**24}
ALL_TO = HALVES_TO | FLOAT32_TO


@verify.kernel(op="linear", params={"activation": "id"}, dtypes=[*ALL], max_ulp=ALL, gradients=True, largest=ALL_TO)
def linear(x, weight, bias):
    """The Triton kernel without activation."""
    return triton_linear.linear_act(x, weight, bias, activation="id")


# With an activation, a 16-bit backward pass reads a pre-activation that was rounded to 16 bits: its gradients are
# those of another point than the exact function's, by design of every fused layer. Only the forward is promised;
# docs/kernels.md bounds what the rounding adds to the gradients.


@verify.kernel(
    op="linear", params={"activation": "gelu"}, dtypes=[*HALVES], max_ulp=HALVES, gradients=False, largest=HALVES_TO
)
def linear_gelu(x, weight, bias):
    """The Triton kernel with GELU in the epilogue."""
    return triton_linear.linear_act(x, weight, bias, activation="gelu")


@verify.kernel(
    op="linear", params={"activation": "gelu"}, dtypes=[*FLOAT32], max_ulp=FLOAT32, gradients=True, largest=FLOAT32_TO
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
    largest=HALVES_TO,
)
def linear_squared_relu(x, weight, bias):
    """The Triton kernel with the squared ReLU in the epilogue."""
    return triton_linear.linear_act(x, weight, bias, activation="squared_relu")


@verify.kernel(
    op="linear", params={"activation": "geglu"}, dtypes=[*HALVES], max_ulp=HALVES, gradients=False, largest=HALVES_TO
)
def linear_geglu(x, weight, bias):
    """The Triton kernel of the whole GEGLU layer."""
    return triton_linear_geglu.linear_geglu(x, weight, bias)


@verify.kernel(
    op="linear", params={"activation": "geglu"}, dtypes=[*FLOAT32], max_ulp=FLOAT32, gradients=True, largest=FLOAT32_TO
)
def linear_geglu_float32(x, weight, bias):
    """The same in float32, with its gradients."""
    return triton_linear_geglu.linear_geglu(x, weight, bias)


@verify.kernel(op="linear", params={"activation": "gelu"}, dtypes=[*ALL], peer=True)
def torch_linear_gelu(x, weight, bias):
    """PyTorch eager: linear, then GELU."""
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias))


test_linear = verify.laws_for(linear, dtypes=["bfloat16"])
test_linear_gelu = verify.laws_for(linear_gelu, dtypes=["float16"])
test_linear_geglu_float32 = verify.laws_for(linear_geglu_float32)
