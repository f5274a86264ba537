"""Row normalisation, the part that layer norm and RMS norm share: y = xhat * weight + bias.

The row s is the exact sum of its summands (x, a residual, a broadcast bias). With the mean m (zero
when the op does not centre), c = s - m, var = mean(c^2), r = 1 / sqrt(var + eps) and xhat = c r,

    y  = xhat w + b,                      g  = w dy, ds = r (g - mean(g) - xhat mean(g xhat)) +
    upstream of s     (no mean(g) when it does not centre), dw = sum over rows of dy xhat,        db
    = sum over rows of dy,

and ds is the gradient of every summand (summed over rows for the broadcast bias). Truth: eps is the
exact value of the Python float; s and y both belong to the exact, unrounded sum.

The scale of y is |w| size + |b| and that of dw the sum of |dy| size; size is |xhat| when the op does not centre. When
it does, an element at the mean of its row is what is left of cancelled terms, an exact 0 even, and a scale of |xhat|
would ask for digits of it that nobody's mean has. So size = max(|xhat|, u rms): rms = sqrt(var) r is the root mean
square of the row's xhat, at most 1, and u = 2^-24 (2^-53 for float64 data) the unit roundoff of float32 (float64). One
ulp of u rms in that format is at least u^2 rms: what a mean in two of its words leaves (docs/reductions.md).

A row with an infinity or a NaN has no xhat (NaN throughout), with one exception: where nothing is centred, a number
beside an infinity has the limit 0. The infinity itself stands for infinity / infinity, which has no value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from verify.ops.compensated import Pair, add, deviations, divide, tree_sum
from verify.ops.normalize_exact import Normalization, column_point, element_point
from verify.ops.op import Fast, Op, Operand, Point, Problem
from verify.ops.rowwise import Rows, rowwise

# Rows are scaled by a power of two into this range of exponents of their largest element, so that
# squares neither overflow nor, as far as eps matters, vanish.
_LOWEST, _HIGHEST = -400, 1000
# Elements that are nearer to their row's mean than that, relative to the row's largest, are not left to a mean of 100
# bits: where large elements cancel, nothing of it need be right.
_CLOSE = 2.0**-40
# The part of its row's deviation below which an element is judged as if it were that large.
_LEAST, _LEAST_FLOAT64 = 2.0**-24, 2.0**-53


def _mean(values: Tensor, dim: int = -1) -> Tensor:
    """The mean over the last dimension, kept; rounded about once."""
    high, low = divide(tree_sum(values, dim), values.shape[dim])
    return high + low


def _column_sum(values: Tensor) -> Tensor:
    """The sum over all dimensions but the last, rounded about once."""
    high, low = tree_sum(values.reshape(-1, values.shape[-1]), 0)
    return (high + low).squeeze(0)


def _columns(value: Tensor, scale: Tensor) -> Fast:
    flat = scale.reshape(-1, scale.shape[-1])
    return Fast(_column_sum(value), flat.sum(0))


class _Row:
    """The rows of a problem in float64: s, xhat, rstd, and `size`, what stands for |xhat| in a scale."""

    def __init__(self, problem: Problem, centre: bool, summands: tuple[str, ...]) -> None:
        parts = [_operand(problem, name) for name in summands]
        pair: Pair = (parts[0], torch.zeros_like(parts[0]))
        for part in parts[1:]:
            pair = add(pair, (part.expand_as(pair[0]), torch.zeros_like(pair[0])))
        plain = sum(parts[1:], parts[0])
        rounded = pair[0] + pair[1]
        self.sum = torch.where(torch.isfinite(rounded), rounded, plain)
        self.sum_scale = sum((part.abs() for part in parts[1:]), parts[0].abs())

        largest = self.sum.abs().amax(-1, keepdim=True)
        exponent = torch.frexp(largest).exponent.clamp(_LOWEST, _HIGHEST)
        factor = torch.ldexp(torch.ones_like(largest), -exponent)
        high, low = pair[0] * factor, pair[1] * factor
        if centre:
            mean = divide(tree_sum((high, low), -1), high.shape[-1])
            high, low = add((high, low), (-mean[0], -mean[1]))
        centred = high + low
        if centre:
            close = centred.abs() < _CLOSE * factor * largest
            rows = close.any(-1)
            if bool(rows.any()):
                again = deviations([part.expand_as(centred)[rows] for part in parts]) * factor[rows]
                centred[rows] = torch.where(close[rows], again, centred[rows])
        eps = float(problem.params["eps"]) * factor * factor
        variance = _mean(centred * centred)
        rstd = 1.0 / torch.sqrt(variance + eps)
        lost = ~torch.isfinite(largest)
        xhat = (centred * rstd).masked_fill(lost, torch.nan)
        if not centre:
            # beside an infinity every number is divided by one: 0, with its sign; the infinity itself by itself: NaN
            beside = torch.isinf(largest) & torch.isfinite(self.sum)
            xhat = torch.where(beside, torch.copysign(torch.zeros_like(xhat), self.sum), xhat)
        self.xhat, self.size = xhat, xhat.abs()
        if centre:
            given = [problem.inputs[name] for name in summands]
            wide = any(each is not None and each.dtype == torch.float64 for each in given)
            least = torch.sqrt(variance) * rstd * (_LEAST_FLOAT64 if wide else _LEAST)
            self.size = torch.maximum(self.size, least)
        self.rstd = (rstd * factor).masked_fill(lost, torch.nan)


def _operand(problem: Problem, name: str) -> Tensor:
    tensor = problem.inputs[name]
    if tensor is None:
        raise ValueError(f"operand {name} is required")
    return tensor.to(torch.float64)


def _optional(problem: Problem, name: str) -> Tensor | None:
    tensor = problem.inputs.get(name)
    return None if tensor is None else tensor.to(torch.float64)


def _forward(problem: Problem, row: _Row) -> Fast:
    weight, bias = _optional(problem, "weight"), _optional(problem, "bias")
    value = row.xhat if weight is None else row.xhat * weight
    scale = row.size if weight is None else row.size * weight.abs()
    return Fast(value, scale) if bias is None else Fast(value + bias, scale + bias.abs())


def _row_gradient(problem: Problem, row: _Row, centre: bool) -> Fast:
    """ds: the gradient that reaches every summand."""
    upstream = problem.upstream.get("y")
    added = problem.upstream.get("s")
    value, scale = torch.zeros_like(row.sum), torch.zeros_like(row.sum)
    if upstream is not None:
        weight = _optional(problem, "weight")
        grown = upstream.to(torch.float64)
        grown = grown if weight is None else grown * weight
        product = grown * row.xhat
        # both sums as one: small rows cost by the call
        mean, *means = _mean(torch.stack([product, grown] if centre else [product]))
        value = grown - row.xhat * mean
        scale = grown.abs() + row.xhat.abs() * product.abs().mean(-1, keepdim=True)
        if centre:
            value = value - means[0]
            scale = scale + grown.abs().mean(-1, keepdim=True)
        lost = ~torch.isfinite(grown.abs().amax(-1, keepdim=True))
        value = (row.rstd * value).masked_fill(lost, torch.nan)
        scale = row.rstd * scale
    if added is not None:
        more = added.to(torch.float64)
        value, scale = value + more, scale + more.abs()
    return Fast(value, scale)


def _empty(problem: Problem, summands: tuple[str, ...]) -> dict[str, Fast]:
    """All results of a problem without elements: sums over nothing."""
    x = _operand(problem, summands[0])
    vectors = ("dweight", "dbias", "dinput_bias")
    shapes = {name: x.shape[-1:] if name in vectors else x.shape for name in problem.results}
    return {name: Fast(x.new_zeros(shape), x.new_zeros(shape)) for name, shape in shapes.items()}


def _fast(problem: Problem, centre: bool, summands: tuple[str, ...]) -> dict[str, Fast]:
    if _operand(problem, summands[0]).numel() == 0:
        return _empty(problem, summands)
    row = _Row(problem, centre, summands)
    dy = problem.upstream.get("y")
    dy = torch.zeros_like(row.sum) if dy is None else dy.to(torch.float64)
    gradient: Fast | None = None
    results = {}
    for result in problem.results:
        if result == "y":
            results[result] = _forward(problem, row)
        elif result == "s":
            results[result] = Fast(row.sum, row.sum_scale)
        elif result == "dweight":
            results[result] = _columns(dy * row.xhat, dy.abs() * row.size)
        elif result == "dbias":
            results[result] = _columns(dy, dy.abs())
        else:
            gradient = gradient or _row_gradient(problem, row, centre)
            broadcast = result == "dinput_bias"
            results[result] = _columns(gradient.value, gradient.scale) if broadcast else gradient
    return results


def normalization(
    name: str,
    operands: tuple[Operand, ...],
    *,
    centre: bool,
    eps: float,
    baseline: Callable[..., Any],
    summary: str,
) -> Op:
    """A row normalisation of the sum of all operands but `weight` and `bias`.

    With more than one summand the sum itself is the second output, `s`.
    """
    summands = tuple(each.name for each in operands if each.name not in ("weight", "bias"))

    def element(rows: Rows, result: str, row: int, column: int) -> Point:
        return element_point(Normalization(rows, centre, summands), result, row, column)

    def column(rows: Rows, result: str, column: int) -> Point:
        return column_point(Normalization(rows, centre, summands), result, column)

    return rowwise(
        name,
        operands,
        ("y",) if len(summands) == 1 else ("y", "s"),
        fast=lambda problem: _fast(problem, centre, summands),
        element=element,
        column=column,
        baseline=baseline,
        params={"eps": eps},
        summary=summary,
    )
