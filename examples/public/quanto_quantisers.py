"""Quantisers and a dequantiser of optimum-quanto: INT8 and FP8 by rows, INT4 in groups with a shift.

    pip install optimum-quanto
    verify run examples/public/quanto_quantisers.py

The package is imported in the functions, so that other kernels run without it.
"""

from __future__ import annotations

import functools

import torch

import verify

theirs = functools.partial(verify.kernel, requires="optimum", gradients=False, dtypes=["float32"])
ROWS = {"block": (1, 0), "scale": "float32", "nan": "any"}


def by_row(x, kind):
    """Codes and scales by `AbsmaxOptimizer` and `quantize_symmetric`."""
    from optimum.quanto import AbsmaxOptimizer

    scale = AbsmaxOptimizer()(x, kind, 0)
    return torch.ops.quanto.quantize_symmetric(x, kind.dtype, 0, scale.reshape(-1, 1)), scale.reshape(-1, 1)


@theirs(quantise=verify.quantised("int8", **ROWS), where="m > 1")
def int8_rows(x):
    """INT8 with a scale for each row."""
    from optimum.quanto import qint8

    return by_row(x, qint8)


@theirs(quantise=verify.quantised("e4m3", **ROWS), where="m > 1")
def fp8_rows(x):
    """FP8 with a scale for each row."""
    from optimum.quanto import qfloat8_e4m3fn

    return by_row(x, qfloat8_e4m3fn)


@theirs(quantise=verify.quantised("uint4", block=(1, 32), scale="float32", zero_point="uint8", nan="any"))
def int4_groups(x):
    """Codes of 4 bits with a scale and a zero point for each group of 32, by `MaxOptimizer`."""
    from optimum.quanto import MaxOptimizer, qint4

    scale, shift = MaxOptimizer()(x, qint4, 0, 32, zeropoint=True)
    codes = torch.ops.quanto.quantize_affine(x, 4, 0, 32, scale, shift)
    grid = (x.shape[0], x.shape[1] // 32)
    return codes.reshape(x.shape), scale.reshape(grid), shift.reshape(grid)
