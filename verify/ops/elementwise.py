"""Builds an elementwise `Op` from scalar formulas: `unary` from a curve, `pointwise` from any formulas.

An output at position i is `formula(values at i)`. A gradient is that times the upstream gradient at i. The product is
exact, so the accuracy is that of the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from verify.ops.elements import pick, to_mp
from verify.ops.formula import Curve, Formula
from verify.ops.geometry import Elementwise, Params
from verify.ops.op import Fast, Op, Operand, Point, Problem
from verify.ops.precision import exact_product

if TYPE_CHECKING:
    from torch import Tensor

Formulas = Callable[[Params], Mapping[str, Formula]]


def scalar_point(formula: Formula, values: Sequence[float], upstream: float | None) -> Point:
    """Returns the exact value of `formula(*values) * upstream`, or of the formula alone if upstream is None."""

    def by_mp(prec: int) -> Any:
        result = formula.mp(*[to_mp(value) for value in values], prec=prec)
        return result if upstream is None else exact_product(to_mp(upstream), result)

    return Point(mp=by_mp)


def apply_upstream(formula: Formula, values: Sequence[Tensor], upstream: Tensor | None) -> Fast:
    """Evaluates `formula(*values) * upstream` in float64 for whole tensors; see `scalar_point`."""
    fast = formula.fast(*values)
    if upstream is None:
        return fast
    gradient = upstream.to(torch.float64)
    return Fast(gradient * fast.value, gradient.abs() * fast.scale)


def pointwise(
    name: str,
    operands: tuple[Operand, ...],
    formulas: Formulas,
    baseline: Callable[..., Any],
    **options: Any,
) -> Op:
    """Returns an op whose operands share one shape.

    `formulas(params)` maps "y" and each "d" + operand to its formula. `options` are other fields of the op.
    """
    names = [operand.name for operand in operands]

    def fast(problem: Problem) -> dict[str, Fast]:
        table = formulas(problem.params)
        values = [_required(problem, each).to(torch.float64) for each in names]
        return {
            result: apply_upstream(table[result], values, _upstream_of(problem, result)) for result in problem.results
        }

    def points(problem: Problem, result: str, indices: Sequence[int]) -> list[Point]:
        formula = formulas(problem.params)[result]
        columns = [pick(_required(problem, each), indices) for each in names]
        upstream = _upstream_of(problem, result)
        factors = [None] * len(indices) if upstream is None else pick(upstream, indices)
        rows = zip(*columns, strict=True)
        return [scalar_point(formula, row, factor) for row, factor in zip(rows, factors, strict=True)]

    return Op(
        name=name,
        geometry=Elementwise(),
        operands=operands,
        outputs=("y",),
        fast=fast,
        points=points,
        baseline=baseline,
        **options,
    )


def unary(
    name: str,
    curve: Callable[[Params], Curve],
    baseline: Callable[..., Any],
    **options: Any,
) -> Op:
    """Returns an op of one operand `x`: y = curve(x), dx = dy * curve'(x)."""

    def formulas(params: Params) -> dict[str, Formula]:
        chosen = curve(params)
        return {"y": chosen.value, "dx": chosen.slope}

    return pointwise(name, (Operand("x"),), formulas, baseline, **options)


def _required(problem: Problem, name: str) -> Tensor:
    tensor = problem.inputs[name]
    if tensor is None:
        raise ValueError(f"operand {name} is required")
    return tensor


def _upstream_of(problem: Problem, result: str) -> Tensor | None:
    """Returns the upstream gradient that multiplies `result`; None if `result` is the output."""
    return None if result == "y" else problem.upstream["y"]
