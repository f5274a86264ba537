"""Quantisers and dequantisers of NVIDIA's Model Optimizer: MXFP8, MXFP4, NVFP4, FP8 and INT8 in blocks.

    pip install nvidia-modelopt
    verify run examples/public/modelopt_quantisers.py

The package is imported in the functions, so that other kernels run without it.
"""

from __future__ import annotations

import functools

import torch

import verify

theirs = functools.partial(verify.kernel, requires="modelopt", gradients=False)
dequantiser = functools.partial(theirs, like=lambda w: w, shapes={"w": "n k"}, dtypes=["float32"])
MXFP8 = {"block": (1, 32), "scale": "e8m0", "nan": "any"}
MXFP4 = {**MXFP8, "packed": "low first"}
NVFP4 = {"block": (1, 16), "scale": "e4m3", "second": "float32", "packed": "low first", "nan": "any"}


@theirs(quantise=verify.quantised("e4m3", rule="rceil", **MXFP8), dtypes=["bfloat16", "float32"])
def mxfp8(x):
    """`MXFP8QTensor.quantize`: the scale by ceil(log2(amax / 448)) in float32."""
    from modelopt.torch.quantization.qtensor import MXFP8QTensor

    made, scales = MXFP8QTensor.quantize(x)
    return made._quantized_data, scales


@theirs(quantise=verify.quantised("e2m1", rule="rceil", **MXFP4), dtypes=["bfloat16", "float32"])
def mxfp4(x):
    """`MXFP4QTensor.quantize`: the scale by ceil(log2(amax / 6)) in float32."""
    from modelopt.torch.quantization.qtensor import MXFP4QTensor

    made, scales = MXFP4QTensor.quantize(x, 32)
    return made._quantized_data, scales.reshape(x.shape[0], -1)


@theirs(quantise=verify.quantised("e2m1", least_scale=2.0**-9, **NVFP4), dtypes=["bfloat16", "float32"])
def nvfp4(x):
    """`NVFP4QTensor.quantize`, which derives the scale of the tensor from its amax."""
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    made, scales, second = NVFP4QTensor.quantize(x, 16)
    return made._quantized_data, scales, second.reshape(1)


@theirs(
    quantise=verify.quantised("e4m3", block=(1, 128), scale="float32", nan="any", overflow="nan"), dtypes=["float32"]
)
def fp8_blocks(x):
    """`FP8QTensor.quantize` in blocks of 128."""
    from modelopt.torch.quantization.qtensor import FP8QTensor

    made, scales = FP8QTensor.quantize(x, block_sizes={-1: 128})
    return made._quantized_data, scales


@theirs(quantise=verify.quantised("int8", block=(1, 128), scale="float32", nan="any"), dtypes=["float32"])
def int8_blocks(x):
    """`INT8QTensor.quantize` in blocks of 128."""
    from modelopt.torch.quantization.qtensor import INT8QTensor

    made, scales = INT8QTensor.quantize(x, block_sizes={-1: 128})
    return made._quantized_data, scales


@dequantiser(operands={"w": verify.quantised("e4m3", block=(1, 32), scale="e8m0")})
def from_mxfp8(w_codes, w_scales):
    """`MXFP8QTensor.dequantize`."""
    from modelopt.torch.quantization.qtensor import MXFP8QTensor

    return MXFP8QTensor(w_codes.shape, torch.float32, w_codes).dequantize(torch.float32, scale=w_scales)


@dequantiser(operands={"w": verify.quantised("e2m1", block=(1, 32), scale="e8m0", packed="low first")})
def from_mxfp4(w_codes, w_scales):
    """`MXFP4QTensor.dequantize`."""
    from modelopt.torch.quantization.qtensor import MXFP4QTensor

    shape = (w_codes.shape[0], 2 * w_codes.shape[1])
    return MXFP4QTensor(shape, torch.float32, w_codes).dequantize(torch.float32, scale=w_scales, block_sizes=[32])


@dequantiser(
    operands={"w": verify.quantised("e2m1", block=(1, 16), scale="e4m3", second="float32", packed="low first")}
)
def from_nvfp4(w_codes, w_scales, w_second):
    """`NVFP4QTensor.dequantize`."""
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    made = NVFP4QTensor((w_codes.shape[0], 2 * w_codes.shape[1]), torch.float32, w_codes)
    return made.dequantize(torch.float32, scale=w_scales, double_scale=w_second, block_sizes=[16])


@dequantiser(operands={"w": verify.quantised("int8", block=(1, 128), scale="float32")})
def from_int8_blocks(w_codes, w_scales):
    """`INT8QTensor.dequantize`."""
    from modelopt.torch.quantization.qtensor import INT8QTensor

    made = INT8QTensor(w_codes.shape, torch.float32, w_codes)
    return made.dequantize(torch.float32, scale=w_scales, block_sizes={-1: 128})
