"""Defines layer norm over the last dimension: plain, after a residual sum, and after residual and bias.

`layer_norm` normalises x. `layer_norm_residual` normalises x + residual. `layer_norm_residual_bias` normalises
x + residual + input_bias. The last two also return the sum as `s`. `normalize` has the formulas.
"""

from __future__ import annotations

import torch
from torch import Tensor

from verify.ops.normalize import normalization
from verify.ops.op import Operand

_WEIGHT = Operand("weight", role="scale", optional=True)
_BIAS = Operand("bias", role="shift", optional=True)
_EPS = 1e-5


def _baseline(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = _EPS) -> Tensor:
    weight = None if weight is None else weight.to(x.dtype)
    bias = None if bias is None else bias.to(x.dtype)
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def _residual_baseline(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = _EPS,
) -> tuple[Tensor, Tensor]:
    s = x + residual
    return _baseline(s, weight, bias, eps=eps), s


def _residual_bias_baseline(
    x: Tensor,
    residual: Tensor,
    input_bias: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = _EPS,
) -> tuple[Tensor, Tensor]:
    s = x + residual + input_bias
    return _baseline(s, weight, bias, eps=eps), s


LAYER_NORM = normalization(
    "layer_norm",
    (Operand("x"), _WEIGHT, _BIAS),
    centre=True,
    eps=_EPS,
    baseline=_baseline,
    summary="(x - mean) / sqrt(var + eps) * weight + bias",
)
LAYER_NORM_RESIDUAL = normalization(
    "layer_norm_residual",
    (Operand("x"), Operand("residual"), _WEIGHT, _BIAS),
    centre=True,
    eps=_EPS,
    baseline=_residual_baseline,
    summary="layer norm of s = x + residual, and s",
)
LAYER_NORM_RESIDUAL_BIAS = normalization(
    "layer_norm_residual_bias",
    (Operand("x"), Operand("residual"), Operand("input_bias", role="shift"), _WEIGHT, _BIAS),
    centre=True,
    eps=_EPS,
    baseline=_residual_bias_baseline,
    summary="layer norm of s = x + residual + input_bias, and s",
)
