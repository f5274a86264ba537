"""Builds an elementwise `Op` from float64 formulas: `unary` from a curve, `pointwise` from any formulas.

An output at position i is `formula(values at i)`. A gradient is that times the upstream gradient at i. The exact values
are those of PyTorch's function (`verify.ops.graph.baseline`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from verify.ops.formula import Curve, Formula
from verify.ops.geometry import Elementwise, Params
from verify.ops.graph.baseline import exact_points
from verify.ops.op import Fast, Op, Operand, Problem

if TYPE_CHECKING:
    from torch import Tensor

Formulas = Callable[[Params], Mapping[str, Formula]]


def apply_upstream(formula: Formula, values: Sequence[Tensor], upstream: Tensor | None) -> Fast:
    """Evaluates `formula(*values) * upstream` in float64 for whole tensors; the formula alone if upstream is None."""
    fast = formula(*values)
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
        upstream = problem.upstream.get("y")
        return {
            result: apply_upstream(table[result], values, None if result == "y" else upstream)
            for result in problem.results
        }

    return Op(
        name=name,
        geometry=Elementwise(),
        operands=operands,
        outputs=("y",),
        fast=fast,
        points=exact_points(names, ("y",), baseline, fast),
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
