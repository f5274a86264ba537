"""Defines softmax over the last dimension: y_i = exp(x_i) / Z with Z = sum_j exp(x_j).

The gradient is y_i (g_i - sum_j g_j y_j). Its terms cancel without limit if one element dominates the row.

An input of -inf among finite ones is a masked element (y = 0). A row has no limit if it holds +inf or NaN, or -inf
alone. The gradient of a row has no limit if an upstream gradient of the row is not finite.
"""

from __future__ import annotations

import torch
from torch import Tensor

from verify.ops.compensated import tree_sum, two_sum
from verify.ops.geometry import Rowwise
from verify.ops.graph.baseline import exact_points
from verify.ops.op import Fast, Op, Operand, Problem


def _sum(values: Tensor) -> Tensor:
    """Returns the sum over the last dimension, rounded about once."""
    high, low = tree_sum(values, -1)
    total: Tensor = high + low
    return total


def _fast(problem: Problem) -> dict[str, Fast]:
    x = problem.inputs["x"]
    if x is None:
        raise ValueError("operand x is required")
    if x.numel() == 0:
        zero = x.to(torch.float64)
        return {result: Fast(zero, zero) for result in problem.results}
    wide = x.to(torch.float64)
    largest = wide.amax(-1, keepdim=True)
    difference, rest = two_sum(wide, -largest)
    rest = torch.where(torch.isfinite(difference), rest, 0.0)
    # The last factor corrects the rounding of x - max: up to 100 units of 2^-53 where y is not zero yet.
    weights = torch.exp(difference) * (1.0 + rest)
    y = (weights / _sum(weights)).masked_fill(~torch.isfinite(largest), torch.nan)
    results = {}
    for result in problem.results:
        if result == "y":
            results[result] = Fast(y, y)
            continue
        upstream = problem.upstream["y"].to(torch.float64)
        lost = ~torch.isfinite(upstream.abs().amax(-1, keepdim=True))
        product = upstream * y
        value = (y * (upstream - _sum(product))).masked_fill(lost, torch.nan)
        scale = y * (upstream.abs() + product.abs().sum(-1, keepdim=True))
        results[result] = Fast(value, scale)
    return results


def _baseline(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


SOFTMAX = Op(
    name="softmax",
    geometry=Rowwise(),
    operands=(Operand("x"),),
    outputs=("y",),
    fast=_fast,
    points=exact_points(["x"], ("y",), _baseline, _fast),
    baseline=_baseline,
    gate="scaled",
    summary="exp(x) / sum(exp(x)) over the last dimension",
)
