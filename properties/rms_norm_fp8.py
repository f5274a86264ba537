"""Promises of RMS norm with an FP8 result: every code and every scale is right (docs/low-precision.md).

    verify run properties/rms_norm_fp8.py

Quantisers have no bounds, so `verify run` does not take this file by default.
"""

from __future__ import annotations

import functools

import torch

import verify
from kernels import rms_norm as norms

FLOATS = ["bfloat16", "float16", "float32"]
EPS = 1e-6
ROWS = {"x": "m k", "residual": "m k", "weight": "k"}
# amax is at least 1e-10. A NaN makes its whole row NaN, as in the norm.
FP8_ROWS = verify.quantised("e4m3", block=(1, 0), scale="float32", by="division", least=1e-10)
FP8_BLOCKS = verify.quantised("e4m3", block=(1, 128), scale="float32", by="division", least=1e-10)
fp8 = functools.partial(verify.kernel, dtypes=FLOATS)


def of_norm(x, weight):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, EPS)


def of_sum(x, residual, weight):
    return of_norm(x + residual, weight)


@fp8(quantise=FP8_ROWS, like=of_norm, shapes={"x": "m k", "weight": "k"})
def rms_norm_fp8_rows(x, weight):
    """The Triton kernel with a scale for each row."""
    return norms.rms_norm_fp8(x, weight, eps=EPS)


@fp8(quantise=FP8_BLOCKS, like=of_norm, shapes={"x": "m k", "weight": "k"}, where="k % 128 == 0")
def rms_norm_fp8_blocks(x, weight):
    """The Triton kernel with a scale for 128 columns."""
    return norms.rms_norm_fp8(x, weight, group=128, eps=EPS)


@fp8(quantise=FP8_ROWS, like=of_sum, shapes=ROWS)
def rms_norm_residual_fp8_rows(x, residual, weight):
    """The Triton kernel of x + residual with a scale for each row. Tests compare the sum that it returns too."""
    return norms.rms_norm_fp8(x, weight, residual, eps=EPS)[:2]


@fp8(quantise=FP8_BLOCKS, like=of_sum, shapes=ROWS, where="k % 128 == 0")
def rms_norm_residual_fp8_blocks(x, residual, weight):
    """The Triton kernel of x + residual with a scale for 128 columns."""
    return norms.rms_norm_fp8(x, weight, residual, group=128, eps=EPS)[:2]
