"""What the fused linear kernels promise. Figures are ULP of the scale: the summed magnitudes |x| |weight| + |bias|,
carried through the activation. An error of one rounding per term would grow with K; these stay below it."""

from __future__ import annotations

import torch

import verify
from kernels import linear_act as triton_linear
from kernels import linear_geglu as triton_linear_geglu

# float32 accumulation: half an ulp of rounding in 16 bits; in float32 the sum of K products itself. Its a-priori bound
# is K/2 to K units, 64 or more for the sums measured; 16.3 is the most seen (H200: dweight over 128 rows of which one
# is an outlier, so that every product rounds at its size; the same product inside PyTorch 11.8)
HALVES = {"bfloat16": 0.6, "float16": 0.6}
FLOAT32 = {"float32": 32}
ALL = HALVES | FLOAT32


@verify.kernel(op="linear", params={"activation": "id"}, dtypes=[*ALL], max_ulp=ALL, gradients=True)
def linear(x, weight, bias):
    """The Triton kernel without activation."""
    return triton_linear.linear_act(x, weight, bias, activation="id")


# With an activation, a 16-bit backward pass reads a pre-activation that was rounded to 16 bits: its gradients are
# those of another point than the exact function's, by design of every fused layer. Only the forward is promised;
# docs/kernels.md bounds what the rounding adds to the gradients.


@verify.kernel(op="linear", params={"activation": "gelu"}, dtypes=[*HALVES], max_ulp=HALVES, gradients=False)
def linear_gelu(x, weight, bias):
    """The Triton kernel with GELU in the epilogue."""
    return triton_linear.linear_act(x, weight, bias, activation="gelu")


@verify.kernel(op="linear", params={"activation": "gelu"}, dtypes=[*FLOAT32], max_ulp=FLOAT32, gradients=True)
def linear_gelu_float32(x, weight, bias):
    """The same in float32, with its gradients."""
    return triton_linear.linear_act(x, weight, bias, activation="gelu")


@verify.kernel(op="linear", params={"activation": "squared_relu"}, dtypes=[*HALVES], max_ulp=HALVES, gradients=False)
def linear_squared_relu(x, weight, bias):
    """The Triton kernel with the squared ReLU in the epilogue."""
    return triton_linear.linear_act(x, weight, bias, activation="squared_relu")


@verify.kernel(op="linear", params={"activation": "geglu"}, dtypes=[*HALVES], max_ulp=HALVES, gradients=False)
def linear_geglu(x, weight, bias):
    """The Triton kernel of the whole GEGLU layer."""
    return triton_linear_geglu.linear_geglu(x, weight, bias)


@verify.kernel(op="linear", params={"activation": "geglu"}, dtypes=[*FLOAT32], max_ulp=FLOAT32, gradients=True)
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
