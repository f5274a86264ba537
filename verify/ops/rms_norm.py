"""Defines RMS norm over the last dimension, y = x / sqrt(mean(x^2) + eps) * weight.

`rms_norm` normalises x. `rms_norm_residual` normalises s = x + residual and also returns s.
"""

from __future__ import annotations

import torch
from torch import Tensor

from verify.ops.normalize import normalization
from verify.ops.op import Operand

_EPS = 1e-6


def _baseline(x: Tensor, weight: Tensor | None = None, *, eps: float = _EPS) -> Tensor:
    weight = None if weight is None else weight.to(x.dtype)
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


def _residual_baseline(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, *, eps: float = _EPS
) -> tuple[Tensor, Tensor]:
    s = x + residual
    return _baseline(s, weight, eps=eps), s


_WEIGHT = Operand("weight", role="scale", optional=True)

RMS_NORM = normalization(
    "rms_norm",
    (Operand("x"), _WEIGHT),
    centre=False,
    eps=_EPS,
    baseline=_baseline,
    summary="x / sqrt(mean(x^2) + eps) * weight",
)
RMS_NORM_RESIDUAL = normalization(
    "rms_norm_residual",
    (Operand("x"), Operand("residual"), _WEIGHT),
    centre=False,
    eps=_EPS,
    baseline=_residual_baseline,
    summary="RMS norm of s = x + residual, and s",
)
