"""Dequantisers of torchao: MXFP8, MXFP6 and MXFP4 by `to_dtype`, NVFP4, integers with zero points.

    pip install --no-deps torchao
    verify run examples/public/torchao_dequantisers.py

The package is imported in the functions, so that other kernels run without it.
"""

from __future__ import annotations

import functools

import torch

import verify

PACKED = {"packed": "low first"}
torchao = functools.partial(
    verify.kernel, like=lambda w: w, shapes={"w": "n k"}, requires="torchao", dtypes=["float32"], gradients=False
)


def declared(name, kind, data, **layout):
    encoding = verify.quantised(data, block=(1, 32), scale="e8m0", **layout)

    def dequantise(w_codes, w_scales):
        """`to_dtype` in blocks of 32."""
        from torchao.prototype.mx_formats.mx_tensor import to_dtype

        return to_dtype(w_codes, w_scales.view(torch.float8_e8m0fnu), kind, 32, torch.float32)

    return torchao(operands={"w": encoding}, name=name)(dequantise)


from_mxfp8 = declared("from_mxfp8", torch.float8_e4m3fn, "e4m3")
from_mxfp8_e5m2 = declared("from_mxfp8_e5m2", torch.float8_e5m2, "e5m2")
from_mxfp6_e2m3 = declared("from_mxfp6_e2m3", "fp6_e2m3", "e2m3")
from_mxfp6_e3m2 = declared("from_mxfp6_e3m2", "fp6_e3m2", "e3m2")
from_mxfp4 = declared("from_mxfp4", torch.float4_e2m1fn_x2, "e2m1", **PACKED)


def of_nvfp4(codes, scales, second, swizzled):
    """`NVFP4Tensor.dequantize`."""
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor

    whole = NVFP4Tensor(
        codes, scales, 16, torch.float32, per_tensor_scale=second.reshape(()), is_swizzled_scales=swizzled
    )
    return whole.dequantize(torch.float32)


NVFP4 = {"block": (1, 16), "scale": "e4m3", "second": "float32", **PACKED}


@torchao(operands={"w": verify.quantised("e2m1", **NVFP4)})
def from_nvfp4(w_codes, w_scales, w_second):
    """NVFP4 with scales in the order of the blocks."""
    return of_nvfp4(w_codes, w_scales, w_second, False)


@torchao(operands={"w": verify.quantised("e2m1", swizzle="128x4", **NVFP4)})
def from_nvfp4_tiled(w_codes, w_scales, w_second):
    """NVFP4 with scales in tiles of 128 x 4."""
    return of_nvfp4(w_codes, w_scales, w_second, True)


def affine(codes, scales, zeros, columns, kind, last):
    from torchao.quantization.quant_primitives import dequantize_affine

    return dequantize_affine(codes, (1, columns), scales, zeros, kind, *last, output_dtype=torch.float32)


@torchao(operands={"w": verify.quantised("int8", block=(1, 0), scale="float32", zero_point="int8")})
def from_int8_rows(w_codes, w_scales, w_zeros):
    """INT8 with a scale and a zero point for each row, by `dequantize_affine`."""
    return affine(w_codes, w_scales, w_zeros, w_codes.shape[1], torch.int8, (-128, 127))


@torchao(operands={"w": verify.quantised("uint4", block=(1, 32), scale="bfloat16", zero_point="uint4")})
def from_uint4_groups(w_codes, w_scales, w_zeros):
    """UINT4 with zero points in groups of 32, by `dequantize_affine`."""
    return affine(w_codes, w_scales, w_zeros, 32, torch.uint8, (0, 15))
