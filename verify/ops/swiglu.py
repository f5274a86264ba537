"""Defines SwiGLU, y = x1 * silu(x2): packed (`swiglu`, with x1, x2 = x.chunk(2, -1)) and on two tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from verify.ops import silu
from verify.ops.gated import gated_packed, gated_split


def _split_baseline(x1: Tensor, x2: Tensor) -> Tensor:
    return x1 * torch.nn.functional.silu(x2)


def _packed_baseline(x: Tensor) -> Tensor:
    x1, x2 = x.chunk(2, -1)
    return _split_baseline(x1, x2)


_OPTIONS: dict[str, Any] = {"landmarks": silu.LANDMARKS}
SWIGLU = gated_packed("swiglu", silu.curve, _packed_baseline, summary="x1 * silu(x2) on packed [..., 2d]", **_OPTIONS)
SWIGLU_SPLIT = gated_split(
    "swiglu_split", silu.curve, _split_baseline, summary="x1 * silu(x2) on two tensors", **_OPTIONS
)
