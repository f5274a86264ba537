"""Defines row normalisation, the common part of layer norm and RMS norm: y = xhat * weight + bias.

The row s is the exact sum of its summands (x, a residual, a broadcast bias). Let m be its mean, or 0 if the op does not
centre. Let c = s - m, var = mean(c^2), r = 1 / sqrt(var + eps) and xhat = c r. Then

    y  = xhat w + b,
    ds = r (g - mean(g) - xhat mean(g xhat)) + upstream of s,    where g = w dy,
    dw = sum over rows of dy xhat,
    db = sum over rows of dy.

Without centring, mean(g) is absent. ds is the gradient of every summand, summed over rows for the broadcast bias. The
truth takes the exact value of the Python float eps. s and y both belong to the exact, unrounded sum.

The scale of y is |w| size + |b|, and that of dw is the sum of |dy| size. Without centring, size = |xhat|. With
centring, terms cancel in an element near the mean of its row, even to an exact 0. A scale of |xhat| would demand digits
that no computed mean has. So size = max(|xhat|, u rms). Here rms = sqrt(var) r is the root mean square of the row's
xhat, at most 1, and u is the unit roundoff of float32, 2^-24, or of float64 for float64 data, 2^-53. One ulp of u rms
in that format is at least u^2 rms, which is the error of a mean in two words of the format (docs/reductions.md).

A row with an infinity or a NaN has no xhat: all its elements are NaN. There is one exception: without centring, a
finite number beside an infinity has the limit 0. The infinity itself would be infinity / infinity, which has no value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verify.ops.compensated import (
    Pair,
    Values,
    add,
    at_hand,
    deviations,
    divide,
    is_exact,
    library,
    tensor_of,
    tree_sum,
)
from verify.ops.geometry import Rowwise
from verify.ops.graph.baseline import exact_points
from verify.ops.op import Fast, Landmarks, Op, Operand, Problem

# Each row is scaled by a power of two, so that squares neither overflow nor underflow. The exponent of the row's
# largest element is clamped to this range first: from _LOWEST with a positive eps, which exceeds smaller squares, and
# from _LOWEST_ALONE for eps = 0.
_LOWEST, _LOWEST_ALONE, _HIGHEST = -400, -1000, 1000
# `deviations` recomputes elements that are closer to the mean of their row than this, relative to the row's largest. A
# mean of 100 bits may have no right digit there, if large elements cancel.
_CLOSE = 2.0**-40
# u: an element smaller than this part of its row's deviation is judged as if it were that large.
_LEAST, _LEAST_FLOAT64 = 2.0**-24, 2.0**-53


def _mean(values: Values, dim: int = -1) -> Values:
    """Returns the mean over a dimension, which is kept; rounded about once."""
    high, low = divide(tree_sum(values, dim), values.shape[dim])
    return high + low


def _by_torch(function: Callable[[Tensor], Tensor], values: Values) -> Values:
    """Calls a function of torch for arrays too: NumPy may differ in the last bits, and the certificate is for torch."""
    found = function(tensor_of(values))
    return found.numpy() if library(values) is np else found


def _largest(values: Values) -> Values:
    """Returns the largest element of each row; the dimension is kept."""
    return values.max(-1, keepdims=True) if isinstance(values, np.ndarray) else values.amax(-1, keepdim=True)


def _stacked(values: list[Values]) -> Values:
    return np.array(values) if isinstance(values[0], np.ndarray) else torch.stack(values)


def _plain_mean(values: Values) -> Values:
    """Returns the mean over the last dimension, which is kept, by torch's plain sum: accurate enough for a scale."""
    return _by_torch(lambda tensor: tensor.mean(-1, keepdim=True), values)


def _columns(pairs: Sequence[tuple[Values, Values]]) -> list[Fast]:
    """Sums pairs of values and scales over all dimensions but the last. Sums of values are rounded about once."""
    if len(pairs) > 1 and library(pairs[0][0]) is torch:
        return [_columns([pair])[0] for pair in pairs]
    width = pairs[0][0].shape[-1]
    values = [value.reshape(-1, width) for value, _ in pairs]
    # one call for all small arrays, because calls cost most
    high, low = tree_sum(np.concatenate(values, 1) if len(values) > 1 else values[0], 0)
    sums = (high + low).reshape(len(values), width)
    scales = [tensor_of(scale.reshape(-1, width)) for _, scale in pairs]
    return [
        Fast(tensor_of(value), scale.sum(0), root=scale.square().sum(0).sqrt())
        for value, scale in zip(sums, scales, strict=True)
    ]


class _Row:
    """The rows of a problem in float64: the sum s, xhat, rstd = r, and `size`, which replaces |xhat| in scales.

    Rows are scaled by a power of two, so nothing overflows. Sums of double-doubles are off by at most 2^-104 log2(N) of
    the sum of |s|; so are the mean m, and s - m before it is rounded. The other errors, in units of 2^-53: s - m is
    rounded once (1), its square has 3, the mean of the squares 1 and + eps 1 more. The root halves them and adds 1, the
    reciprocal adds 1: 4.5 for r. xhat has 6.5, times w 7.5, plus b 8.5 units of |xhat w| + |b|. ds subtracts two means
    from w dy and multiplies by r: 25 units of its scale.

    The error of m is below one unit of s - m if |s - m| is above 2^-45 of the largest magnitude of the row. Below 2^-40
    of it (_CLOSE), `deviations` computes s - m again. Otherwise rows whose large elements cancel would have no right
    digit. xhat then has at most 13 units.
    """

    def __init__(self, problem: Problem, centre: bool, summands: tuple[str, ...]) -> None:
        first, *others = (_operand(problem, name) for name in summands)
        parts = [at_hand(first)]
        self.lib = lib = library(parts[0])
        parts += map(self.wide, others)
        self.weight, self.dy = self.wide(problem.inputs.get("weight")), self.wide(problem.upstream.get("y"))
        pair: Pair = (parts[0], 0.0)
        for part in parts[1:]:
            pair = add(pair, (lib.broadcast_to(part, pair[0].shape), 0.0))
        plain = sum(parts[1:], parts[0])
        rounded = pair[0] + pair[1]
        self.sum = lib.where(lib.isfinite(rounded), rounded, plain)
        self.sum_scale = sum((abs(part) for part in parts[1:]), abs(parts[0]))
        self.parts = parts

        largest = _largest(abs(self.sum))
        plain_eps = float(problem.params["eps"])
        exponent = lib.frexp(largest)[1].clip(_LOWEST if plain_eps > 0 else _LOWEST_ALONE, _HIGHEST)
        factor = lib.ldexp(lib.ones_like(largest), -exponent)
        # one summand has no low part
        high, low = pair[0] * factor, pair[1] * factor if others else 0.0
        if centre:
            mean = divide(tree_sum((high, low) if others else high, -1), high.shape[-1])
            high, low = add((high, low), (-mean[0], -mean[1]))
        centred = high + low
        if centre:
            close = abs(centred) < _CLOSE * factor * largest
            rows = close.any(-1)
            if bool(rows.any()):
                some = [tensor_of(lib.broadcast_to(part, centred.shape)[rows]) for part in parts]
                found = deviations(some)
                again = (found.numpy() if lib is np else found) * factor[rows]
                centred[rows] = lib.where(close[rows], again, centred[rows])
        eps = plain_eps * factor * factor
        variance = _mean(centred * centred)
        rstd = 1.0 / _by_torch(torch.sqrt, variance + eps)
        lost = ~lib.isfinite(largest)
        xhat = lib.where(lost, lib.nan, centred * rstd)
        if not centre:
            # a finite number over an infinite root is 0 with the sign of the number; an infinity over it is NaN
            beside = lib.isinf(largest) & lib.isfinite(self.sum)
            xhat = lib.where(beside, lib.copysign(lib.zeros_like(xhat), self.sum), xhat)
        self.xhat, self.size = xhat, abs(xhat)
        if centre:
            given = [problem.inputs[name] for name in summands]
            wide = any(each is not None and each.dtype == torch.float64 for each in given)
            least = _by_torch(torch.sqrt, variance) * rstd * (_LEAST_FLOAT64 if wide else _LEAST)
            self.size = lib.maximum(self.size, least)
        self.rstd = lib.where(lost, lib.nan, rstd * factor)

    def wide(self, tensor: Tensor | None) -> Values | None:
        """Converts a tensor of the problem to float64, and to an array if the rows are one."""
        if tensor is None:
            return None
        value = tensor.to(torch.float64)
        return at_hand(value) if self.lib is np else value


def _operand(problem: Problem, name: str) -> Tensor:
    """Returns an operand in float64."""
    tensor = problem.inputs[name]
    if tensor is None:
        raise ValueError(f"operand {name} is required")
    return tensor.to(torch.float64)


def _forward(problem: Problem, row: _Row) -> Fast:
    weight, bias = row.weight, row.wide(problem.inputs.get("bias"))
    value = row.xhat if weight is None else row.xhat * weight
    scale = row.size if weight is None else row.size * abs(weight)
    if bias is not None:
        value, scale = value + bias, scale + abs(bias)
    return Fast(tensor_of(value), tensor_of(scale))


def _row_gradient(problem: Problem, row: _Row, centre: bool) -> tuple[Values, Values]:
    """Returns ds, the gradient of every summand, and its scale."""
    lib = row.lib
    upstream, added = row.dy, row.wide(problem.upstream.get("s"))
    value: Values = 0.0
    scale: Values = 0.0
    if upstream is not None:
        grown = upstream if row.weight is None else upstream * row.weight
        product = grown * row.xhat
        # one call for both sums, because calls cost most on small rows
        mean, *means = _mean(_stacked([product, grown] if centre else [product]))
        value = grown - row.xhat * mean
        scale = abs(grown) + abs(row.xhat) * _plain_mean(abs(product))
        if centre:
            value = value - means[0]
            scale = scale + _plain_mean(abs(grown))
        lost = ~lib.isfinite(_largest(abs(grown)))
        value = lib.where(lost, lib.nan, row.rstd * value)
        scale = row.rstd * scale
    if added is not None:
        return value + added, scale + abs(added)
    return (lib.zeros_like(row.sum),) * 2 if upstream is None else (value, scale)


def _empty(problem: Problem, summands: tuple[str, ...]) -> dict[str, Fast]:
    """Returns the results of a problem without elements: empty tensors, and sums equal to 0."""
    x = problem.inputs[summands[0]]
    assert x is not None
    vectors = ("dweight", "dbias", "dinput_bias")
    shapes = {name: x.shape[-1:] if name in vectors else x.shape for name in problem.results}
    nothing = {name: x.new_zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
    return {name: Fast(zeros, zeros) for name, zeros in nothing.items()}


def _fast(problem: Problem, centre: bool, summands: tuple[str, ...]) -> dict[str, Fast]:
    x = problem.inputs[summands[0]]
    if x is not None and x.numel() == 0:
        return _empty(problem, summands)
    with np.errstate(all="ignore"):
        return _evaluated(problem, _Row(problem, centre, summands), centre)


def _evaluated(problem: Problem, row: _Row, centre: bool) -> dict[str, Fast]:
    """Returns the requested results in float64."""
    dy = row.lib.zeros_like(row.sum) if row.dy is None else row.dy
    slopes: tuple[Values, Values] | None = None
    results: dict[str, Fast] = {}
    sums: dict[str, tuple[Values, Values]] = {}
    given = [each for each in (*problem.inputs.values(), *problem.upstream.values()) if each is not None]
    digits = max(1 - int(math.log2(torch.finfo(each.dtype).eps)) for each in given)
    for result in problem.results:
        if result == "y":
            results[result] = _forward(problem, row)
        elif result == "s":
            parts = row.lib.stack([row.lib.broadcast_to(part, row.sum.shape) for part in row.parts])
            exact = tensor_of(is_exact(parts, digits, 0))
            results[result] = Fast(tensor_of(row.sum), tensor_of(row.sum_scale), exact=exact)
        elif result == "dweight":
            sums[result] = dy * row.xhat, abs(dy) * row.size
        elif result == "dbias":
            sums[result] = dy, abs(dy)
        else:
            slopes = slopes or _row_gradient(problem, row, centre)
            if result == "dinput_bias":
                sums[result] = slopes
            else:
                value, scale = map(tensor_of, slopes)
                results[result] = Fast(value, scale)
    if sums:
        results |= zip(sums, _columns(list(sums.values())), strict=True)
    if "dbias" in results:
        exact = tensor_of(is_exact(dy.reshape(-1, dy.shape[-1]), digits, 0))
        results["dbias"] = replace(results["dbias"], exact=exact)
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
    """Returns an op that normalises the sum of all operands except `weight` and `bias`.

    With more than one summand, the sum is the second output, `s`.
    """
    summands = tuple(each.name for each in operands if each.name not in ("weight", "bias"))

    outputs = ("y",) if len(summands) == 1 else ("y", "s")
    data = [each.name for each in operands if each.role == "data"]
    vectors = ["d" + each.name for each in operands if each.role != "data"]  # their gradients add up over the rows
    fast = partial(_fast, centre=centre, summands=summands)

    return Op(
        name=name,
        geometry=Rowwise(),
        operands=operands,
        outputs=outputs,
        fast=fast,
        points=exact_points([each.name for each in operands], outputs, baseline, fast, vectors, data),
        baseline=baseline,
        params={"eps": eps},
        gate="scaled",
        landmarks=Landmarks(of="x"),
        symmetry="norm",
        summary=summary,
    )
