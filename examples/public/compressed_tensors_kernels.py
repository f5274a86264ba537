"""Quantisers and dequantisers of compressed-tensors: INT8 and FP8 by token, INT4 in groups, MXFP4, NVFP4.

    pip install --no-deps compressed-tensors && pip install loguru pydantic transformers
    verify run examples/public/compressed_tensors_kernels.py

The package is imported in the functions, so that other kernels run without it.
"""

from __future__ import annotations

import functools

import torch

import verify

theirs = functools.partial(verify.kernel, requires="compressed_tensors", gradients=False)
dequantiser = functools.partial(theirs, like=lambda w: w, shapes={"w": "n k"}, dtypes=["float32"])


def arguments(bits=8, kind="int", symmetric=True, **others):
    from compressed_tensors.quantization import QuantizationArgs

    return QuantizationArgs(num_bits=bits, type=kind, symmetric=symmetric, **others)


def by_token(x, args, dtype):
    """Codes, scales and zero points with a scale for each row."""
    from compressed_tensors.quantization.lifecycle.forward import quantize
    from compressed_tensors.quantization.utils import calculate_qparams

    scales, zeros = calculate_qparams(x.amin(-1, keepdim=True), x.amax(-1, keepdim=True), args)
    return quantize(x, scales, zeros, args, dtype=dtype), scales, zeros


ROWS = {"block": (1, 0), "scale": "float32", "nan": "any"}


@theirs(quantise=verify.quantised("int8", zero_point="int8", **ROWS), dtypes=["float32"])
def int8_asymmetric(x):
    """INT8 with a zero point for each row."""
    codes, scales, zeros = by_token(x, arguments(symmetric=False, strategy="channel"), torch.int8)
    return codes, scales, zeros.to(torch.int8)


@theirs(quantise=verify.quantised("e4m3", **ROWS), dtypes=["float32"])
def fp8_rows(x):
    """FP8 with a scale for each row."""
    return by_token(x, arguments(kind="float", strategy="channel"), torch.float8_e4m3fn)[:2]


@dequantiser(operands={"w": verify.quantised("int8", block=(1, 0), scale="float32", zero_point="int8")})
def from_int8_rows(w_codes, w_scales, w_zeros):
    """INT8 with a scale and a zero point for each row."""
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    return dequantize(w_codes, w_scales, w_zeros, arguments(symmetric=False, strategy="channel"), torch.float32)


@dequantiser(
    operands={"w": verify.quantised("int4", block=(1, 32), scale="float32", packed="low first")}, where="k % 8 == 0"
)
def from_int4_groups(w_codes, w_scales):
    """INT4 in groups of 32, eight in a word: the codes are stored plus 8."""
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    shape = torch.Size((w_codes.shape[0], 2 * w_codes.shape[1]))
    codes = unpack_from_int32((w_codes ^ 0x88).contiguous().view(torch.int32), 4, shape)
    return dequantize(codes, w_scales, None, arguments(bits=4, strategy="group", group_size=32), torch.float32)


@dequantiser(operands={"w": verify.quantised("e2m1", block=(1, 32), scale="e8m0", packed="low first")})
def from_mxfp4(w_codes, w_scales):
    """MXFP4: codes by `unpack_fp4_from_uint8`, scales by `decompress_mx_scale`."""
    from compressed_tensors.compressors.mx_utils import decompress_mx_scale
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8

    numbers = unpack_fp4_from_uint8(w_codes, w_codes.shape[0], 2 * w_codes.shape[1], torch.float32)
    return numbers * decompress_mx_scale(w_scales).float().repeat_interleave(32, 1)
