"""Gives probabilities the meaning of draws, for `@verify.kernel(draws=...)`.

A kernel returns a number for each row of probabilities. Its result counts as a row with a one there and zeros beside it
(`measure.form.outputs_of`). Each number with a probability above 0 is a choice, as at a tie: the reference has the ones
of the kernel, except where the exact probability is 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from verify.errors import UsageError
from verify.ops.elements import point_of
from verify.ops.graph.like import Like
from verify.ops.op import Fast, Op, Point, Problem


@dataclass
class Drawn(Like):
    """The meaning of a PyTorch function whose results `draws` are probabilities that a kernel draws from."""

    draws: tuple[str, ...] = ()

    def named(self, label: str) -> str:
        """Returns the name of an op that draws."""
        return f"{super().named(label)} drawn"

    def probabilities(self, problem: Problem, result: str, seen: Tensor, calls: int) -> Fast:
        """Returns the probabilities under the choice at ties that comes closest to the frequencies seen in calls."""
        chosen = super().chosen(problem, {result: seen}, calls)
        return super().looked_up(chosen, result, super().fast(chosen)[result])

    def chosen(self, problem: Problem, got: Mapping[str, Tensor], calls: int | None = None) -> Problem:
        """Returns the problem with the kernel's own draws."""
        problem = super().chosen(problem, got, calls)
        own = {name: got[name] for name in self.draws if name in got}
        return replace(problem, kept=replace(problem.kept, drawn=own))

    def fast(self, problem: Problem) -> dict[str, Fast]:
        """Returns the references, those of draws with the ones that the kernel may have."""
        found = super().fast(problem)
        for name in problem.kept.drawn.keys() & found.keys():
            of, got = found[name], problem.kept.drawn[name].to(found[name].value)
            possible = ~(of.value.abs() + of.bound <= 0)  # NaN, and what is not known, is possible too
            value = torch.where(possible, got.reshape(of.value.shape), 0.0)
            found[name] = Fast(value, torch.ones_like(value), torch.zeros_like(value))
        return found

    def points(self, problem: Problem, result: str, indices: Sequence[int]) -> list[Point]:
        """Returns the exact values of single elements, which are 0 and 1 in draws."""
        if result not in problem.kept.drawn:
            return super().points(problem, result, indices)
        line = self.fast(problem)[result].value.reshape(-1)
        return list(map(point_of, line[list(indices)].tolist()))


def drawn(about: str, op: Op, draws: Mapping[str, str]) -> Op:
    """Returns the op with results that are drawn from its probabilities. Raises UsageError if these have no rows."""
    meaning = op.meaning
    assert isinstance(meaning, Like)
    for name in draws:
        if name in op.integers or not all(map(len, _shapes(meaning, name))):
            raise UsageError(
                f"{about}: draws names results that like= returns the probabilities of, in the last dimension; {name} "
                "has none",
                hint="like=lambda logits: logits.softmax(-1)",
            )
    given = {each.name: getattr(meaning, each.name) for each in fields(meaning)}

    def baseline(*operands: Any, **params: Any) -> Any:
        made = op.baseline(*operands, **params)
        items = dict(zip(op.all_outputs, made if isinstance(made, tuple | list) else (made,), strict=False))
        return tuple(item.argmax(-1) if name in draws else item for name, item in items.items())

    return replace(
        op,
        meaning=Drawn(**given, draws=tuple(draws)),
        baseline=baseline,
        integers=(*op.integers, *draws),
        summary=f"draws from the probabilities that {meaning.callee.name} denotes",
    )


def _shapes(meaning: Like, name: str) -> list[tuple[int, ...]]:
    return [program.results[name].shape for program in meaning.programs.values()]
