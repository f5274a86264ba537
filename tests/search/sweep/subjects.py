"""Kernels that sweeps are tried on: right ones, and ones with one fault each."""

from __future__ import annotations

import os
import time

import torch

import verify
from kernels import geglu as triton_geglu
from kernels import gelu as triton_gelu

WIDE = ["bfloat16", "float16", "float32"]


@verify.kernel(op="gelu", dtypes=WIDE, max_ulp=1, gradients=True)
def good(x):
    return triton_gelu.gelu(x)


@verify.kernel(op="gelu", dtypes=WIDE)
def naive(x):
    return x * 0.5 * (1.0 + torch.erf(x * 0.7071067811865476))


@verify.kernel(op="silu", dtypes=WIDE)
def silu(x):
    return torch.nn.functional.silu(x)


@verify.kernel(op="silu", dtypes=WIDE, gradients=False)
def nan_at_one(x):
    """NaN at a single input."""
    return torch.where(x == 1, torch.nan, torch.nn.functional.silu(x))


@verify.kernel(op="silu", dtypes=WIDE, gradients=False)
def in_place(x):
    """Changes its input."""
    return x.sigmoid_().mul_(2)


@verify.kernel(op="silu", dtypes=WIDE, gradients=False)
def wide_output(x):
    return torch.nn.functional.silu(x.float())


@verify.kernel(op="silu", dtypes=WIDE)
def detached(x):
    """Has no gradient."""
    return torch.nn.functional.silu(x.detach())


@verify.kernel(op="geglu", dtypes=["bfloat16", "float16"], max_ulp=0.51, gradients=True)
def geglu(x):
    return triton_geglu.geglu(x)


@verify.kernel(op="geglu_split", dtypes=["bfloat16", "float16"])
def split(x1, x2):
    return x1 * torch.nn.functional.gelu(x2)


@verify.kernel(op="softmax", dtypes=["float32"])
def softmax(x):
    return torch.softmax(x, -1)


@verify.kernel(op="silu", dtypes=WIDE, gradients=False)
def patient(x):
    """Waits in large calls for as long as the file that VERIFY_TEST_GATE names is missing."""
    while x.numel() > 100_000 and not os.path.exists(os.environ.get("VERIFY_TEST_GATE", "/")):
        time.sleep(0.05)
    return torch.nn.functional.silu(x)
