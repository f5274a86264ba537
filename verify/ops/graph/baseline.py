"""Gives a shipped op its exact values: the traced program of its PyTorch baseline, in Arb and in mpmath.

Where an operand is infinite, a program may have NaN, as in `-inf * 0`. A shipped op has the limit there. Its float64
reference names it, and the program's values at far finite numbers confirm it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from mpmath import mp
from torch import Tensor

from verify.ops.elements import to_arb
from verify.ops.equal_rows import merged
from verify.ops.geometry import Shape
from verify.ops.graph.program import Program, trace
from verify.ops.graph.single import FAR, ElementEvaluator, Shared, far_run
from verify.ops.graph.steps import Leaf, Run
from verify.ops.op import Fast, Op, Point, Problem
from verify.ops.precision import GUARD

_HOLDS = 32  # programs kept: one for each set of shapes

Baseline = Callable[..., Any]


def exact_points(
    operands: Sequence[str],
    outputs: tuple[str, ...],
    baseline: Baseline,
    fast: Callable[[Problem], dict[str, Fast]],
    summed: Sequence[str] = (),
    data: Sequence[str] = ("x",),
) -> Callable[[Problem, str, Sequence[int]], list[Point]]:
    """Returns `points` of an op whose exact values are those of its baseline's program.

    `summed` names results that add up over the rows of the operands `data`. For these, equal rows are merged into one.
    """

    @lru_cache(maxsize=_HOLDS)
    def program(
        params: tuple[tuple[str, Any], ...], shapes: tuple[tuple[str, Shape], ...], gradients: tuple[str, ...]
    ) -> Program:
        examples = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes}
        function = _called_with(baseline, operands, list(examples), dict(params))
        return trace(function, examples, outputs=outputs, differentiable=gradients)

    def points(problem: Problem, result: str, indices: Sequence[int]) -> list[Point]:
        problem = merged(problem, data) if result in summed else problem
        device = next(value.device for value in problem.inputs.values() if value is not None)
        if ("program", device) not in problem.cache:
            present, gradients = operands_of(problem)
            shapes = tuple((name, tuple(value.shape)) for name, value in present.items())
            made = program(tuple(sorted(problem.params.items())), shapes, gradients)
            run = run_of(made, problem)
            finite = all(bool(torch.isfinite(value.double()).all()) for value in run.leaves.values())
            # no budget, because a shipped op promises exact values for rows of any length
            problem.cache["program", device] = made, run, Shared(math.inf), finite
        made, run, shared, finite = problem.cache["program", device]
        evaluator = ElementEvaluator(made, run, result, list(indices), shared)
        if not finite:
            own = Limits(evaluator, fast, problem)
            return [own.point(place) for place in range(len(indices))]
        return [_sharper(evaluator.point(place)) for place in range(len(indices))]

    return points


def _sharper(point: Point) -> Point:
    """Returns the point with more bits than requested, so that the first ball settles most questions."""
    return Point(lambda prec: point.mp(prec + 2 * GUARD), lambda prec: point.arb(prec + 2 * GUARD))


@dataclass(frozen=True)
class Limits:
    """The exact values of a problem with operands that are not finite: limits where the program has no number."""

    evaluator: ElementEvaluator
    fast: Callable[[Problem], dict[str, Fast]]  # the float64 reference, which has these limits
    problem: Problem

    def point(self, place: int) -> Point:
        """Returns the exact value of an element, or its limit."""
        point = _sharper(self.evaluator.point(place))
        return Point(
            lambda prec: self._chosen(place, point, prec).mp(prec),
            lambda prec: self._chosen(place, point, prec).arb(prec),
        )

    def _chosen(self, place: int, point: Point, prec: int) -> Point:
        """Returns the point itself if it has a number, else the point of the limit."""
        if point.arb(prec).is_finite() or not self._is_special(place):
            return point
        number = float(self._reference.reshape(-1)[self.evaluator.indices[place]])
        limit = Point(lambda prec: mp.mpf(number), lambda prec: to_arb(number))
        if not math.isfinite(number):
            return limit
        # The reference is rounded: a limit such as dy * x1 may have more digits than float64.
        near, far = (_sharper(each.point(place)) for each in self._far)
        ball = far.arb(prec)
        vanishes = number == 0 and abs(ball) * 2**50 < abs(near.arb(prec))
        return limit if vanishes or ball.contains(to_arb(number)) else far

    def _is_special(self, place: int) -> bool:
        """True if an element depends on an infinity or NaN. Otherwise it only needs more bits."""
        program, run = self.evaluator.program, self.evaluator.run
        needed = program.places(run, self.evaluator.result, [self.evaluator.indices[place]], {})
        for step in program.steps:
            if isinstance(step, Leaf) and id(step) in needed:
                some = run.leaves[step.name].reshape(-1)[torch.as_tensor(needed[id(step)][0], device=run.device)]
                if not bool(torch.isfinite(some.double()).all()):
                    return True
        return False

    @cached_property
    def _reference(self) -> Tensor:
        return self.fast(self.problem)[self.evaluator.result].value

    @cached_property
    def _far(self) -> list[ElementEvaluator]:
        """The same elements, with two large numbers in place of each infinity."""
        own, shared = self.evaluator, (Shared(math.inf), Shared(math.inf))
        return [
            ElementEvaluator(own.program, far_run(own.run, size), own.result, own.indices, each)
            for size, each in zip(FAR, shared, strict=True)
        ]


def _called_with(
    baseline: Baseline, operands: Sequence[str], names: Sequence[str], params: Mapping[str, Any]
) -> Callable[..., Any]:
    """Returns a baseline as a function of the operands `names`, in that order. The other operands are absent."""

    def function(*values: Tensor) -> Any:
        given = dict(zip(names, values, strict=True))
        return baseline(*(given.get(name) for name in operands), **params)

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
    function = _called_with(op.baseline, [each.name for each in op.operands], list(present), problem.params)
    program = trace(function, examples, outputs=op.outputs, differentiable=gradients)
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
