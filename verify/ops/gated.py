"""Builds gated ops y = x1 * g(x2) from a curve g: on two tensors, or on one packed [..., 2d] tensor.

Both ops have the same three formulas. The packed op has x1 = x[..., :d] and x2 = x[..., d:]. Its dx holds the gradients
of both halves in the same places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from verify.ops.elementwise import pointwise
from verify.ops.formula import Curve, Formula
from verify.ops.geometry import Elementwise, Params
from verify.ops.graph.baseline import exact_points
from verify.ops.op import Fast, Landmarks, Op, Operand, Problem

if TYPE_CHECKING:
    from torch import Tensor

_SMALLEST = 2.0**-1074


def _times_first(factor: Formula) -> Formula:
    """Returns the formula x1 * factor(x2)."""

    def product(x1: Tensor, x2: Tensor) -> Fast:
        fast = factor(x2)
        product = x1 * fast.value
        # A product that underflows must not become zero: times an infinite upstream gradient it is infinite.
        vanished = (product == 0) & (x1 != 0) & (fast.value != 0)
        tiny = torch.copysign(torch.full_like(product, _SMALLEST), product)
        return Fast(torch.where(vanished, tiny, product), x1.abs() * fast.scale)

    return product


def _formulas(curve: Curve) -> dict[str, Formula]:
    return {
        "y": _times_first(curve.value),
        "dx1": lambda x1, x2: curve.value(x2),  # a NaN in x1 has no effect
        "dx2": _times_first(curve.slope),
    }


def gated_split(
    name: str, curve: Callable[[Params], Curve], baseline: Callable[..., Any], landmarks: Landmarks, **options: Any
) -> Op:
    """Returns the op y = x1 * g(x2) on two tensors of one shape. `landmarks` belong to g."""
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


def _halves(problem: Problem) -> Problem:
    """Converts a problem of the packed op to one of the op on two tensors."""
    x1, x2 = _packed_input(problem).chunk(2, -1)
    results = tuple(half for each in problem.results for half in (("dx1", "dx2") if each == "dx" else (each,)))
    return replace(problem, inputs={"x1": x1, "x2": x2}, results=results)


def _gate_values(problem: Problem, result: str) -> Tensor:
    """Returns x2 for every element of the result."""
    second = _packed_input(problem).chunk(2, -1)[1]
    return second if result == "y" else torch.cat([second, second], -1)


def gated_packed(
    name: str, curve: Callable[[Params], Curve], baseline: Callable[..., Any], landmarks: Landmarks, **options: Any
) -> Op:
    """Returns the op y = x1 * g(x2) with x1, x2 = x.chunk(2, -1). `landmarks` belong to g."""
    split = gated_split(name, curve, baseline, landmarks, **options)

    def fast(problem: Problem) -> dict[str, Fast]:
        found = split.fast(_halves(problem))
        if "dx" in problem.results:
            parts = found.pop("dx1"), found.pop("dx2")
            value, scale = (torch.cat([getattr(part, name) for part in parts], -1) for name in ("value", "scale"))
            found["dx"] = Fast(value, scale)
        return found

    return replace(
        split,
        geometry=Elementwise(halves=2),
        operands=(Operand("x"),),
        fast=fast,
        points=exact_points(["x"], ("y",), baseline, fast),
        baseline=baseline,
        landmarks=replace(landmarks, values=_gate_values),
    )
