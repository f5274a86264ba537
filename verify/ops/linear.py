"""Defines a linear layer with an activation: pre = x @ weight^T + bias, y = act(pre).

x is [M, K], weight [N, K], bias [N]. For the gated activations, weight is [2N, K], bias is [2N], and y = p1 * gelu(p2)
with p1, p2 = pre.chunk(2, -1). Let dpre be the gradient of pre: dy act'(pre), for both halves of a gated layer, plus
the upstream gradient of "pre" if that is an output. Then

    dx = dpre @ weight,      dweight = dpre^T @ x,      dbias = sum over rows of dpre.

Exact values: a dot product of floats is an integer times a power of two. So the activation is evaluated at the exact
pre-activation.

Scales: pre has the scale S = |x| @ |weight|^T + |bias|. Then y has |act'| S + |y|, and dpre has
|dy| (|act''| S + the terms of act'). If the products cancel, the error of pre may exceed pre. So act' and act'' are the
largest values within REACH S of pre, where REACH is the error of a float32 sum of 4,096 products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from mpmath import mp
from torch import Tensor

from verify.ops import gelu
from verify.ops.dyadic import Dyadics, dot, dyadic, dyadics
from verify.ops.elements import pick, to_mp
from verify.ops.formula import Curve, Formula
from verify.ops.geometry import Contraction
from verify.ops.op import Fast, Op, Operand, Point, Problem
from verify.ops.precision import exact_product, mp_bits, summed
from verify.ops.rowwise import merged

# ---------------------------------------------------------------------------------- the activations


def _identity_fast(x: Tensor) -> Fast:
    return Fast(x, x.abs())


IDENTITY = Curve(
    value=Formula(mp=lambda x, prec: x, fast=_identity_fast),
    slope=Formula(
        mp=lambda x, prec: mp.one,
        fast=lambda x: Fast(torch.ones_like(x), torch.ones_like(x)),
    ),
    bend=torch.zeros_like,
)


def _squared_relu_mp(x: Any, *, prec: int) -> Any:
    if mp.isnan(x) or x > 0:
        return exact_product(x, x)
    return mp.zero


def _squared_relu_slope_mp(x: Any, *, prec: int) -> Any:
    if mp.isnan(x) or x > 0:
        return exact_product(mp.mpf(2), x)
    return mp.zero


def _squared_relu_fast(x: Tensor) -> Fast:
    value = x.clamp(min=0.0).square()
    return Fast(value, value)


def _squared_relu_slope_fast(x: Tensor) -> Fast:
    value = 2.0 * x.clamp(min=0.0)
    return Fast(value, value)


SQUARED_RELU = Curve(
    value=Formula(mp=_squared_relu_mp, fast=_squared_relu_fast),
    slope=Formula(mp=_squared_relu_slope_mp, fast=_squared_relu_slope_fast),
    bend=lambda x: torch.full_like(x, 2.0),
)
_CURVES = {
    "id": IDENTITY,
    "gelu": gelu.ERF,
    "gelu_tanh": gelu.TANH,
    "squared_relu": SQUARED_RELU,
    "geglu": gelu.ERF,
    "geglu_tanh": gelu.TANH,
}
_GATED = ("geglu", "geglu_tanh")

# ----------------------------------------------------------------------------------- exact elements

STEP = 128  # bits to which a precision is rounded up, so that cached terms serve several precisions


@dataclass(frozen=True)
class Layer:
    """One problem of a linear layer; evaluates exact elements and caches them in the problem."""

    problem: Problem

    @property
    def gated(self) -> bool:
        return self.problem.params["activation"] in _GATED

    @property
    def curve(self) -> Curve:
        return _CURVES[self.problem.params["activation"]]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """M, K and the number of rows of the weight."""
        x, weight = self.tensor("x"), self.tensor("weight")
        return int(x.shape[0]), int(x.shape[1]), int(weight.shape[0])

    @property
    def width(self) -> int:
        """N, the number of columns of y."""
        rows = self.sizes[2]
        return rows // 2 if self.gated else rows

    def tensor(self, name: str) -> Tensor:
        tensor = self.problem.inputs[name]
        if tensor is None:
            raise ValueError(f"operand {name} is required")
        return tensor

    def line(self, name: str, index: int) -> list[float]:
        """Returns row `index` of x or weight."""
        inner = self.sizes[1]
        key = ("line", name, index)
        if key not in self.problem.cache:
            self.problem.cache[key] = pick(self.tensor(name), range(index * inner, (index + 1) * inner))
        values: list[float] = self.problem.cache[key]
        return values

    def pre(self, row: int, column: int) -> Any:
        """Returns the exact pre-activation as an mpf, or an infinity or NaN."""
        key = ("pre", row, column)
        if key not in self.problem.cache:
            bias = self.problem.inputs.get("bias")
            offset = 0.0 if bias is None else pick(bias, [column])[0]
            left, right = self.integers("x", row), self.integers("weight", column)
            if left is None or right is None or not isfinite(offset):
                total = exact_dot(self.line("x", row), self.line("weight", column), offset)
            else:
                total = _dot(left, right, offset)
            self.problem.cache[key] = total
        return self.problem.cache[key]

    def integers(self, name: str, index: int) -> Dyadics | None:
        """Returns row `index` of x or weight in integers, cached for many products; None if it is not finite."""
        key = ("integers", name, index)
        if key not in self.problem.cache:
            line = self.line(name, index)
            self.problem.cache[key] = dyadics(line) if all(map(isfinite, line)) else None
        found: Dyadics | None = self.problem.cache[key]
        return found

    def upstream(self, output: str, row: int, column: int, width: int) -> float:
        tensor = self.problem.upstream.get(output)
        return 0.0 if tensor is None else pick(tensor, [row * width + column])[0]

    def output_mp(self, row: int, column: int, prec: int) -> Any:
        """Returns an element of y."""
        if not self.gated:
            return self.curve.value.mp(self.pre(row, column), prec=prec)
        gate = self.curve.value.mp(self.pre(row, column + self.width), prec=prec)
        return exact_product(self.pre(row, column), gate)

    def back_mp(self, row: int, column: int, prec: int) -> list[Any]:
        """Returns the terms of dpre at one element of pre, cached: a whole row of dx or dweight needs them."""
        prec = -(-prec // STEP) * STEP
        key = ("back", row, column, prec)
        if key not in self.problem.cache:
            self.problem.cache[key] = self._back(row, column, prec)
        found: list[Any] = self.problem.cache[key]
        return found

    def _back(self, row: int, column: int, prec: int) -> list[Any]:
        """Returns the terms of dpre at one element of pre: dy act'(pre), and the upstream of pre if it is not 0."""
        width = self.width
        dy = to_mp(self.upstream("y", row, column % width, width))
        direct = to_mp(self.upstream("pre", row, column, self.sizes[2]))
        curve = self.curve
        if not self.gated:
            term = exact_product(dy, curve.slope.mp(self.pre(row, column), prec=prec))
        elif column < width:
            term = exact_product(dy, curve.value.mp(self.pre(row, column + width), prec=prec))
        else:
            slope = curve.slope.mp(self.pre(row, column), prec=prec)
            term = exact_product(dy, self.pre(row, column - width), slope)
        return [term] if direct == 0 else [term, direct]


def exact_dot(a: Sequence[float], b: Sequence[float], offset: float) -> Any:
    """Returns sum a_i b_i + offset exactly; by IEEE rules if a number is not finite."""
    if not (all(map(isfinite, a)) and all(map(isfinite, b)) and isfinite(offset)):
        terms = [exact_product(to_mp(p), to_mp(q)) for p, q in zip(a, b, strict=True)]
        return mp.fsum([*terms, to_mp(offset)])
    return _dot(dyadics(a), dyadics(b), offset)


def _dot(left: Dyadics, right: Dyadics, offset: float) -> Any:
    """Returns the exact dot product of two rows in integers, plus an offset."""
    product, place, added = dot(left.integers, right.integers), left.exponent + right.exponent, dyadic(offset)
    low = min(place, added.exponent)
    total = (product << (place - low)) + (added.integer << (added.exponent - low))
    with mp_bits(max(53, total.bit_length())):
        return mp.mpf((total, low))


def _point(layer: Layer, result: str, index: int) -> Point:
    """Returns the exact value of one element of a result."""
    rows, inner, columns = layer.sizes
    if result == "pre":
        pre = layer.pre(*divmod(index, columns))
        return Point(mp=lambda prec: pre)
    if result == "y":
        row, column = divmod(index, layer.width)
        return Point(mp=lambda prec: layer.output_mp(row, column, prec))
    # A gradient is a sum of dpre times a factor over the rows or over the columns of pre.
    row, column = (index, index) if result == "dbias" else divmod(index, inner)

    def by_mp(prec: int) -> Any:
        if result == "dx":
            places = [(row, each) for each in range(columns)]
            factors = pick(layer.tensor("weight"), [each * inner + column for each in range(columns)])
        else:
            places = [(each, row) for each in range(rows)]
            factors = [1.0] * rows
        if result == "dweight":
            factors = pick(layer.tensor("x"), [each * inner + column for each in range(rows)])

        def terms(bits: int) -> list[Any]:
            return [
                exact_product(to_mp(factor), term)
                for place, factor in zip(places, factors, strict=True)
                for term in layer.back_mp(*place, bits)
            ]

        return summed(terms, prec)

    return Point(mp=by_mp)


def _points(problem: Problem, result: str, indices: Sequence[int]) -> list[Point]:
    layer = Layer(merged(problem, ["x"]) if result in ("dweight", "dbias") else problem)
    return [_point(layer, result, index) for index in indices]


# ------------------------------------------------------------------------------------------ float64

# Largest expected error of a computed pre-activation, in units of S. Within this distance the slope of an activation
# may differ much from the slope at pre: gelu is 0 left of -40 and the identity right of 40.
REACH = 2.0**-12


def _within(function: Callable[[Tensor], Tensor], pre: Tensor, size: Tensor, tops: tuple[float, ...]) -> Tensor:
    """Returns the largest value of a function within REACH * size of pre. Its local maxima are at `tops`."""
    low, high = pre - REACH * size, pre + REACH * size
    largest = torch.maximum(function(low), function(high))
    for top in tops:
        largest = torch.maximum(largest, function(torch.full_like(pre, top).clamp(low, high)))
    return largest


def _output(curve: Curve, pre: Tensor, size: Tensor) -> Fast:
    """Returns act(pre) and its scale, given the scale `size` of pre."""
    fast = curve.value.fast(pre)
    steepest = _within(lambda x: curve.slope.fast(x).value.abs(), pre, size, curve.steep)
    return Fast(fast.value, fast.scale + steepest * size)


def _slope(curve: Curve, pre: Tensor, size: Tensor) -> Fast:
    """Returns act'(pre) and its scale, given the scale `size` of pre."""
    fast = curve.slope.fast(pre)
    return Fast(fast.value, fast.scale + _within(curve.bend, pre, size, (0.0,)) * size)


def _fast(problem: Problem) -> dict[str, Fast]:
    """Evaluates the requested results in float64, with their scales.

    A float64 sum of n products is off by at most n units of 2^-53 of S, in any order (Higham, Accuracy and Stability of
    Numerical Algorithms, section 3.1).
    """
    layer = Layer(problem)
    x, weight = (layer.tensor(name).to(torch.float64) for name in ("x", "weight"))
    bias = problem.inputs.get("bias")
    pre, size = x @ weight.mT, x.abs() @ weight.abs().mT
    if bias is not None:
        offset = bias.to(torch.float64)
        pre, size = pre + offset, size + offset.abs()
    curve, width = layer.curve, layer.width
    p1, p2 = pre[:, :width], pre[:, width:]
    results = {}
    if "pre" in problem.results:
        results["pre"] = Fast(pre, size)
    # Below the normal numbers, errors of products and sums are absolute. So S is at least the smallest normal number.
    smallest = torch.finfo(torch.float64 if layer.tensor("x").dtype == torch.float64 else torch.float32).tiny
    size = size.clamp_min(smallest)
    s1, s2 = size[:, :width], size[:, width:]
    # At an infinite pre-activation the limit is exact, without rounding errors of terms.
    s1, s2, size = (each.masked_fill(~torch.isfinite(each), 0.0) for each in (s1, s2, size))
    if "y" in problem.results:
        if layer.gated:
            gate = _output(curve, p2, s2)
            scale = (p1.abs() + REACH * s1) * gate.scale + gate.value.abs() * s1
            results["y"] = Fast(p1 * gate.value, scale)
        else:
            results["y"] = _output(curve, pre, size)
    if not {"dx", "dweight", "dbias"} & set(problem.results):
        return results

    back = torch.zeros_like(pre)
    back_scale = torch.zeros_like(pre)
    if "y" in problem.upstream:
        dy = problem.upstream["y"].to(torch.float64)
        if layer.gated:
            gate, slope = _output(curve, p2, s2), _slope(curve, p2, s2)
            back = torch.cat([dy * gate.value, dy * p1 * slope.value], -1)
            second = (p1.abs() + REACH * s1) * slope.scale + s1 * slope.value.abs()
            back_scale = torch.cat([dy.abs() * gate.scale, dy.abs() * second], -1)
        else:
            slope = _slope(curve, pre, size)
            back, back_scale = dy * slope.value, dy.abs() * slope.scale
    if curve is not IDENTITY:
        # The gradient of the pre-activation is a number of the dtype. If it is subnormal, its error is absolute, and
        # the sums below magnify it (gradual underflow: Higham, section 2.2).
        back_scale = back_scale.clamp_min(float(torch.finfo(problem.inputs["x"].dtype).tiny))  # type: ignore[union-attr]
    if "pre" in problem.upstream:
        direct = problem.upstream["pre"].to(torch.float64)
        back, back_scale = back + direct, back_scale + direct.abs()
    if "dx" in problem.results:
        results["dx"] = Fast(back @ weight, back_scale @ weight.abs())
    if "dweight" in problem.results:
        results["dweight"] = Fast(back.mT @ x, back_scale.mT @ x.abs())
    if "dbias" in problem.results:
        results["dbias"] = Fast(back.sum(0), back_scale.sum(0))
    return results


# ------------------------------------------------------------------------------------------- the op


def _baseline(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str = "id"
) -> tuple[Tensor, Tensor]:
    functional = torch.nn.functional
    pre = functional.linear(x, weight, bias)
    approximate = "tanh" if activation.endswith("tanh") else "none"
    if activation in _GATED:
        p1, p2 = pre.chunk(2, -1)
        return p1 * functional.gelu(p2, approximate=approximate), pre
    if activation == "squared_relu":
        return functional.relu(pre).square(), pre
    return (pre if activation == "id" else functional.gelu(pre, approximate=approximate)), pre


LINEAR = Op(
    name="linear",
    geometry=Contraction(factor=lambda params: 2 if params.get("activation") in _GATED else 1),
    operands=(
        Operand("x"),
        Operand("weight", role="matrix"),
        Operand("bias", role="shift", optional=True),
    ),
    outputs=("y", "pre"),
    optional_outputs=("pre",),
    fast=_fast,
    points=_points,
    baseline=_baseline,
    params={"activation": "id"},
    choices={"activation": tuple(_CURVES)},
    gate="scaled",
    symmetry="linear",
    summary="act(x @ weight^T + bias)",
)
