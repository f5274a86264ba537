"""PyTorch's own casts to float8 and back.

    verify run examples/casts.py

Beyond 448, the largest number of e4m3fn, PyTorch 2.13 casts to 448 on a CPU, and earlier versions to NaN: `largest=`
leaves that open.
"""

from __future__ import annotations

import functools

import torch

import verify

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
cast = functools.partial(verify.kernel, dtypes=["bfloat16", "float16", "float32"], gradients=False)


@cast(like=lambda x: x.to(E4M3), output_dtypes={"y": E4M3}, largest=448.0)
def to_e4m3(x):
    """float8_e4m3fn."""
    return x.to(E4M3)


@cast(like=lambda x: x.to(E5M2), output_dtypes={"y": E5M2})
def to_e5m2(x):
    """float8_e5m2, with infinities beyond 57,344."""
    return x.to(E5M2)


@cast(like=lambda x: x.float(), dtypes=["float8_e4m3fn", "float8_e5m2"], output_dtypes={"y": "float32"})
def from_float8(x):
    """float32 from both."""
    return x.float()
