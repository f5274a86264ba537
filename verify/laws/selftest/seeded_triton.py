"""Defines SiLU behind a Triton autotuner, for `verify selftest`. The bug fixes a block of 64 in the offsets."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


def _kernel(  # type: ignore[no-untyped-def]
    x_ptr,  # input, contiguous
    y_ptr,  # output, contiguous
    n,
    BLOCK: tl.constexpr,
    BAKED: tl.constexpr,
):
    step = 64 if BAKED else BLOCK
    offset = tl.program_id(0).to(tl.int64) * step + tl.arange(0, BLOCK)
    mask = offset < n
    x = tl.load(x_ptr + offset, mask=mask, other=0.0).to(tl.float64)
    low = tl.maximum(x, -800.0)
    y = tl.where(x > 0.0, x, low) / (1.0 + tl.exp(-low))
    tl.store(y_ptr + offset, y.to(tl.float32).to(y_ptr.dtype.element_ty), mask=mask)


_CONFIGS = [triton.Config({"BLOCK": 64}, num_warps=4), triton.Config({"BLOCK": 128}, num_warps=4)]
_tuned: Any = triton.autotune(configs=_CONFIGS, key=["n"])(triton.jit(_kernel))


def silu(x: Tensor, bug: str) -> Tensor:
    """Returns SiLU of x. With a bug, it is right for the first configuration only."""
    x = x.contiguous()  # the kernel handles adjacent elements only
    y = torch.empty_like(x)
    n = x.numel()
    if n:
        _tuned[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n, BAKED=bool(bug))
    return y
