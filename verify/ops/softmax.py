"""Defines softmax over the last dimension: y_i = exp(x_i) / Z with Z = sum_j exp(x_j).

The gradient is y_i (g_i - sum_j g_j y_j). Its terms cancel without limit if one element dominates the row, so its scale
is y_i (|g_i| + sum_j |g_j y_j|). Nothing cancels in y.

An input of -inf among finite ones is a masked element (y = 0). A row has no limit if it holds +inf or NaN, or -inf
alone. The gradient of a row has no limit if an upstream gradient of the row is not finite.
"""

from __future__ import annotations

import torch
from torch import Tensor

from verify.ops.geometry import Rowwise
from verify.ops.graph.shipped import Scales, Shipped
from verify.ops.op import Operand, Problem


def _softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1) if x.numel() else x


def _scales(problem: Problem) -> Scales:
    x = problem.inputs["x"]
    if "dx" not in problem.results or x is None:
        return {}
    y, g = _softmax(x.double()), problem.upstream["y"].double().abs()
    return {"dx": (y * (g + (g * y).sum(-1, keepdim=True)), None)}


SOFTMAX = Shipped(_softmax, (Operand("x"),), scales=_scales).op(
    "softmax",
    Rowwise(),
    gate="scaled",
    normalised=("x",),
    summary="exp(x) / sum(exp(x)) over the last dimension",
)
