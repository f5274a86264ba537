"""Gives a shipped op its second route to exact values: Arb, through the traced program of its PyTorch baseline.

The op's own formulas, in mpmath, are the first route. The two share no code. The formulas also give the limit where an
operand is infinite, because a program has NaN or no value there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from verify.ops.elements import mpf_to_arb
from verify.ops.geometry import Shape
from verify.ops.graph.program import Program, trace
from verify.ops.graph.single import ElementEvaluator, Shared
from verify.ops.graph.steps import Run
from verify.ops.op import Op, Point, Problem
from verify.ops.precision import GUARD
from verify.ops.rowwise import merged

_HOLDS = 32  # programs kept: one for each set of shapes

Programs = Callable[[tuple[tuple[str, Any], ...], tuple[tuple[str, Shape], ...], tuple[str, ...]], Program]


def by_program(op: Op, summed: Sequence[str] = ()) -> Op:
    """Returns the op with Arb values from its baseline's program.

    `summed` names results that add up over rows. For these, equal rows of x are merged into one.
    """

    @lru_cache(maxsize=_HOLDS)
    def program(
        params: tuple[tuple[str, Any], ...], shapes: tuple[tuple[str, Shape], ...], gradients: tuple[str, ...]
    ) -> Program:
        examples = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes}
        baseline = _baseline_on(op, list(examples), dict(params))
        return trace(baseline, examples, outputs=op.outputs, differentiable=gradients)

    def points(problem: Problem, result: str, indices: Sequence[int]) -> list[Point]:
        own = op.points(problem, result, indices)
        evaluator, limits = _evaluator(
            program, merged(problem, ["x"]) if result in summed else problem, result, indices
        )
        return [replace(point, arb=partial(_ball, evaluator, at, point, limits)) for at, point in enumerate(own)]

    return replace(op, points=points)


def _baseline_on(op: Op, names: Sequence[str], params: Mapping[str, Any]) -> Callable[..., Any]:
    """Returns the op's baseline as a function of the operands `names`, in that order."""

    def function(*values: Tensor) -> Any:
        given = dict(zip(names, values, strict=True))
        return op.baseline(*(given.get(operand.name) for operand in op.operands), **params)

    return function


def operands_of(problem: Problem) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Returns the operands that are present, and those whose gradients the problem asks for."""
    present = {name: value for name, value in problem.inputs.items() if value is not None}
    return present, tuple(name for name in present if "d" + name in problem.results)


def program_of(op: Op, problem: Problem) -> tuple[Program, Run]:
    """Returns the program that defines an op (its own, or that of its baseline) and the run of the problem."""
    if op.meaning is not None:
        found: tuple[Program, Run] = op.meaning.program(problem)
        return found
    present, gradients = operands_of(problem)
    examples = {name: torch.zeros(value.shape, dtype=torch.float64) for name, value in present.items()}
    baseline = _baseline_on(op, list(present), problem.params)
    program = trace(baseline, examples, outputs=op.outputs, differentiable=gradients)
    return program, run_of(program, problem)


def run_of(program: Program, problem: Problem) -> Run:
    """Returns the tensors of a problem for a program's leaves; upstream gradients that it lacks are zero."""
    leaves, _ = operands_of(problem)
    device = next(iter(leaves.values())).device
    for name in (each for each in program.leaves if each.startswith("grad ")):
        output = name.removeprefix("grad ")
        zero = torch.zeros(program.results[output].shape, dtype=torch.float64)
        leaves[name] = problem.upstream.get(output, zero)
    return Run(leaves, device)


def _evaluator(
    programs: Programs, problem: Problem, result: str, indices: Sequence[int]
) -> tuple[ElementEvaluator, bool]:
    """Returns the evaluator of some elements, and True if some operand of the problem is not finite."""
    device = next(value.device for value in problem.inputs.values() if value is not None)
    if ("program", device) not in problem.cache:
        present, gradients = operands_of(problem)
        shapes = tuple((name, tuple(value.shape)) for name, value in present.items())
        program = programs(tuple(sorted(problem.params.items())), shapes, gradients)
        run = run_of(program, problem)
        limits = not all(bool(torch.isfinite(value.double()).all()) for value in run.leaves.values())
        # no budget, because the op's own formulas evaluate rows of any length too
        problem.cache["program", device] = program, run, Shared(math.inf), limits
    program, run, shared, limits = problem.cache["program", device]
    return ElementEvaluator(program, run, result, list(indices), shared), limits


def _ball(evaluator: ElementEvaluator, place: int, point: Point, limits: bool, prec: int) -> Any:
    """Returns the enclosure of an element; from the op's formulas if an operand and the ball are not finite."""
    ball = evaluator.enclosure(place, prec + 2 * GUARD)
    if limits and not ball.is_finite():
        return mpf_to_arb(point.mp(prec))
    return ball
