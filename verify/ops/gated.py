"""Builds gated ops y = x1 * g(x2) from a curve g: on two tensors, or one packed [..., 2d] tensor.

Both have the same three formulas; the packed op only finds its two halves at other positions:
x1 = x[..., :d], x2 = x[..., d:], and dx holds the gradients of both halves in the same places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from verify.ops.elements import pick
from verify.ops.elementwise import apply_upstream, pointwise, scalar_point
from verify.ops.formula import Curve, Formula
from verify.ops.geometry import Elementwise, Params
from verify.ops.op import Fast, Landmarks, Op, Operand, Point, Problem
from verify.ops.precision import exact_product

if TYPE_CHECKING:
    from torch import Tensor

_SMALLEST = 2.0**-1074


def _times_first(factor: Formula) -> Formula:
    """x1 * factor(x2)."""

    def by_mp(x1: Any, x2: Any, *, prec: int) -> Any:
        return exact_product(x1, factor.mp(x2, prec=prec))

    def by_float(x1: Tensor, x2: Tensor) -> Fast:
        fast = factor.fast(x2)
        product = x1 * fast.value
        # A product that underflows is not zero: an infinite upstream gradient would show it.
        vanished = (product == 0) & (x1 != 0) & (fast.value != 0)
        tiny = torch.copysign(torch.full_like(product, _SMALLEST), product)
        return Fast(torch.where(vanished, tiny, product), x1.abs() * fast.scale)

    return Formula(mp=by_mp, fast=by_float)


def _second_alone(factor: Formula) -> Formula:
    """factor(x2): the gradient of the product with respect to x1. A NaN in x1 stays out of it."""

    def by_mp(x1: Any, x2: Any, *, prec: int) -> Any:
        return factor.mp(x2, prec=prec)

    def by_float(x1: Tensor, x2: Tensor) -> Fast:
        return factor.fast(x2)

    return Formula(mp=by_mp, fast=by_float)


def _formulas(curve: Curve) -> dict[str, Formula]:
    return {
        "y": _times_first(curve.value),
        "dx1": _second_alone(curve.value),
        "dx2": _times_first(curve.slope),
    }


def gated_split(
    name: str, curve: Callable[[Params], Curve], baseline: Callable[..., Any], landmarks: Landmarks, **options: Any
) -> Op:
    """y = x1 * g(x2) on two tensors of one shape. `landmarks` are those of g."""
    return pointwise(
        name,
        (Operand("x1"), Operand("x2")),
        lambda params: _formulas(curve(params)),
        baseline,
        landmarks=replace(landmarks, of="x2"),
        symmetry="gate",
        **options,
    )


def _packed_input(problem: Problem) -> Tensor:
    x = problem.inputs["x"]
    if x is None or x.ndim == 0 or x.shape[-1] % 2:
        received = "nothing" if x is None else f"shape {tuple(x.shape)}"
        raise ValueError(f"x is packed as [..., 2d], so its last dimension is even; got {received}")
    return x


def _packed_fast(problem: Problem, formulas: Mapping[str, Formula]) -> dict[str, Fast]:
    halves = _packed_input(problem).to(torch.float64).chunk(2, -1)
    results = {}
    for result in problem.results:
        if result == "y":
            results[result] = apply_upstream(formulas["y"], halves, None)
            continue
        upstream = problem.upstream["y"]
        parts = [apply_upstream(formulas[half], halves, upstream) for half in ("dx1", "dx2")]
        results[result] = Fast(
            torch.cat([part.value for part in parts], -1),
            torch.cat([part.scale for part in parts], -1),
        )
    return results


def _packed_points(
    problem: Problem, formulas: Mapping[str, Formula], result: str, indices: Sequence[int]
) -> list[Point]:
    x = _packed_input(problem)
    width = x.shape[-1] // 2
    stride = width if result == "y" else 2 * width
    rows = [index // stride for index in indices]
    columns = [index % stride for index in indices]
    first = [2 * width * row + column % width for row, column in zip(rows, columns, strict=True)]
    values = zip(pick(x, first), pick(x, [at + width for at in first]), strict=True)
    if result == "y":
        return [scalar_point(formulas["y"], pair, None) for pair in values]
    upstream = pick(
        problem.upstream["y"],
        [width * row + column % width for row, column in zip(rows, columns, strict=True)],
    )
    return [
        scalar_point(formulas["dx1" if column < width else "dx2"], pair, factor)
        for column, pair, factor in zip(columns, values, upstream, strict=True)
    ]


def _gate_values(problem: Problem, result: str) -> Tensor:
    """x2 for every element of the result."""
    second = _packed_input(problem).chunk(2, -1)[1]
    return second if result == "y" else torch.cat([second, second], -1)


def gated_packed(
    name: str, curve: Callable[[Params], Curve], baseline: Callable[..., Any], landmarks: Landmarks, **options: Any
) -> Op:
    """y = x1 * g(x2) with x1, x2 = x.chunk(2, -1). `landmarks` are those of g."""
    return Op(
        name=name,
        geometry=Elementwise(halves=2),
        operands=(Operand("x"),),
        outputs=("y",),
        fast=lambda problem: _packed_fast(problem, _formulas(curve(problem.params))),
        points=lambda problem, result, indices: _packed_points(
            problem, _formulas(curve(problem.params)), result, indices
        ),
        baseline=baseline,
        landmarks=replace(landmarks, values=_gate_values),
        symmetry="gate",
        **options,
    )
