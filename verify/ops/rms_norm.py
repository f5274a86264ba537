"""RMS norm over the last dimension: y = x / sqrt(mean(x^2) + eps) * weight."""

from __future__ import annotations

import torch
from torch import Tensor

from verify.ops.normalize import normalization
from verify.ops.op import Operand

_EPS = 1e-6


def _baseline(x: Tensor, weight: Tensor | None = None, *, eps: float = _EPS) -> Tensor:
    weight = None if weight is None else weight.to(x.dtype)
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


RMS_NORM = normalization(
    "rms_norm",
    (Operand("x"), Operand("weight", role="scale", optional=True)),
    centre=False,
    eps=_EPS,
    baseline=_baseline,
    summary="x / sqrt(mean(x^2) + eps) * weight",
)
