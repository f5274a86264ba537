"""Defines GEGLU, y = x1 * gelu(x2): packed (`geglu`, with x1, x2 = x.chunk(2, -1)) and on two tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from verify.ops import gelu
from verify.ops.gated import gated_packed, gated_split


def _split_baseline(x1: Tensor, x2: Tensor, *, approximate: str = "none") -> Tensor:
    return x1 * torch.nn.functional.gelu(x2, approximate=approximate)


def _packed_baseline(x: Tensor, *, approximate: str = "none") -> Tensor:
    x1, x2 = x.chunk(2, -1)
    return _split_baseline(x1, x2, approximate=approximate)


_OPTIONS: dict[str, Any] = {
    "params": gelu.PARAMS,
    "choices": gelu.CHOICES,
    "landmarks": gelu.LANDMARKS,
}
GEGLU = gated_packed("geglu", gelu.curve, _packed_baseline, summary="x1 * gelu(x2) on packed [..., 2d]", **_OPTIONS)
GEGLU_SPLIT = gated_split(
    "geglu_split", gelu.curve, _split_baseline, summary="x1 * gelu(x2) on two tensors", **_OPTIONS
)
