"""Block quantisers of torchao: MXFP8, MXFP6 and MXFP4 by each of its four rules, and NVFP4 with and without tiles.

    pip install --no-deps torchao
    verify run examples/public/torchao_quantisers.py

The package is imported in the functions, so that other kernels run without it.
"""

from __future__ import annotations

import functools

import torch

import verify

E4M3, E5M2, E2M1 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float4_e2m1fn_x2
torchao = functools.partial(verify.kernel, requires="torchao", dtypes=["bfloat16", "float32"])


def to_mx(x, kind, rule, swizzled=False):
    """Codes and scales by torchao's `to_mx`, in blocks of 32."""
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    scales, codes = to_mx(x, kind, 32, ScaleCalculationMode(rule), swizzled)
    return codes, scales


def declared(name, kind, data, rule, **layout):
    encoding = verify.quantised(data, block=(1, 32), scale="e8m0", rule=rule, **layout)

    def quantise(x):
        """`to_mx` with one of its rules for the scale."""
        return to_mx(x, kind, rule, bool(layout.get("swizzle")))

    return torchao(quantise=encoding, name=name)(quantise)


PACKED = {"packed": "low first"}
mxfp8_floor = declared("mxfp8_floor", E4M3, "e4m3", "floor")
mxfp8_rceil = declared("mxfp8_rceil", E4M3, "e4m3", "rceil")
mxfp8_ceil = declared("mxfp8_ceil", E4M3, "e4m3", "ceil")
mxfp8_even = declared("mxfp8_even", E4M3, "e4m3", "even")
mxfp8_e5m2_floor = declared("mxfp8_e5m2_floor", E5M2, "e5m2", "floor")
mxfp8_tiled = declared("mxfp8_tiled", E4M3, "e4m3", "floor", swizzle="128x4")
mxfp6_e2m3_floor = declared("mxfp6_e2m3_floor", "fp6_e2m3", "e2m3", "floor")
mxfp6_e3m2_floor = declared("mxfp6_e3m2_floor", "fp6_e3m2", "e3m2", "floor")
mxfp4_floor = declared("mxfp4_floor", E2M1, "e2m1", "floor", **PACKED)
mxfp4_even = declared("mxfp4_even", E2M1, "e2m1", "even", **PACKED)

LEAST = 2.0**-6  # torchao's least e4m3 scale: its smallest normal number


@torchao(quantise=verify.quantised("e2m1", block=(1, 16), scale="e4m3", least_scale=LEAST, **PACKED))
def nvfp4_one_level(x):
    """`nvfp4_quantize` without a scale of the tensor."""
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize

    scales, codes = nvfp4_quantize(x)
    return codes, scales


@torchao(quantise=verify.quantised("e2m1", block=(1, 16), scale="e4m3", second="float32", least_scale=LEAST, **PACKED))
def nvfp4(x):
    """`nvfp4_quantize` with the scale of the tensor that torchao derives from its amax."""
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

    second = per_tensor_amax_to_scale(x.float().abs().max())
    second = torch.where(second == 0, 1.0, second)
    scales, codes = nvfp4_quantize(x, per_tensor_scale=second)
    return codes, scales, second.reshape(1)
