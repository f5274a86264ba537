"""Evaluates some elements of a large result, and answers for them all questions that judging has.

The elements come from boxes of the result. Each box is evaluated by the part of the program that it needs
(`verify.ops.graph.slices`). The elements are numbered one after the other. `places` gives their places in the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verify.ops.graph.boxes import Box, Line, places_in
from verify.ops.graph.slices import Cut
from verify.ops.op import Fast, Kept, Meaning, Op, Point, Problem


@dataclass
class Sample(Meaning):
    """Some elements of one result. Serves as the `meaning` of an op whose result has these elements alone.

    Its reference is looked up already, and `explained` returns a sample with other choices, so the methods for both
    return what they get. A box has the operands of one function only.
    """

    result: str
    places: Line  # flat indices of the elements in the result
    total: int  # number of elements of the result
    parts: list[tuple[Any, Problem]]  # for each box, its meaning and its problem
    box: Line  # for each element, the number of its box
    spot: Line  # for each element, its place in the box
    reference: Fast | None  # None until it is evaluated
    device: torch.device  # of the elements: that of the result, or the host
    alone: bool  # True: judging them needs no tensors of the whole result

    def fast(self, problem: Problem) -> dict[str, Fast]:
        """Returns the reference of the elements."""
        if self.reference is None:
            self.reference = _join([_evaluated(*part, self.result) for part in self.parts], self.box, self.spot)
        return {self.result: self.reference}

    def moved(self, cuts: Sequence[Cut]) -> Sample:
        """Returns the sample in host memory. `cuts` are its boxes again, for a run there."""
        pairs = zip(self.parts, cuts, strict=False)
        parts = [(meaning.of_part(cut), _without_tensors(own)) for (meaning, own), cut in pairs]
        return replace(
            self,
            parts=parts,
            reference=self.fast(self.parts[0][1])[self.result].cpu(),
            device=torch.device("cpu"),
            alone=True,
        )

    def op(self, whole: Op) -> Op:
        """Returns an op whose result has the elements of the sample alone."""
        return replace(whole, meaning=self, remembered=None)

    def of(self, tensor: Tensor) -> Tensor:
        """Returns the elements of the sample of a tensor that is shaped like the result."""
        return tensor.detach().reshape(-1)[torch.from_numpy(self.places).to(tensor.device)].to(self.device)

    def points(self, problem: Problem, result: str, indices: Sequence[int]) -> list[Point]:
        """Returns the exact values. Each box evaluates its elements together, because they share steps."""
        found: dict[int, Point] = {}
        for number, (meaning, own) in enumerate(self.parts):
            mine = [index for index in indices if self.box[index] == number]
            if mine:
                points = meaning.points(own, result, self.spot[mine].tolist())
                found |= dict(zip(mine, points, strict=True))
        return [found[index] for index in indices]

    def program(self, problem: Problem) -> tuple[Any, Any]:
        """Returns the part of the program for the first box."""
        meaning, own = self.parts[0]
        return meaning.program(own)  # type: ignore[no-any-return]

    def named(self, label: str) -> str:
        """Returns the name of the op of the whole function."""
        return str(self.parts[0][0].named(label))

    def explained(self, got: Tensor) -> Sample:
        """Returns the sample with the choices at ties that explain a kernel's elements best, box by box."""
        line, parts = got.detach().reshape(-1), list[tuple[Any, Problem]]()
        for number, (meaning, own) in enumerate(self.parts):
            program, _ = meaning.program(own)
            shape, mine = program.results[self.result].shape, self.box == number
            if not (program.decides or meaning.draws) or not mine.any():
                parts.append((meaning, own))
                continue
            base = meaning.fast(own)[self.result].value
            whole = base.to(line.device).to(line.dtype).clone(memory_format=torch.contiguous_format).reshape(-1)
            whole[torch.from_numpy(self.spot[mine])] = line[torch.from_numpy(mine).to(line.device)]
            parts.append((meaning, meaning.chosen(own, {self.result: whole.reshape(shape)})))
        if all(new is old for (_, new), (_, old) in zip(parts, self.parts, strict=True)):
            return self
        return replace(self, parts=parts, reference=None)

    def deviation(self, problem: Problem, result: str) -> Tensor:
        """Returns the noise of each element, from more runs than `fast` takes."""
        boxes = [meaning.deviation(own, result).reshape(-1) for meaning, own in self.parts]
        return torch.cat(boxes)[_among(boxes, self.box, self.spot)]


def sample_of(
    meaning: Any, problem: Problem, result: str, cuts: Sequence[Cut], more: Callable[[], bool] | None
) -> Sample:
    """Evaluates the boxes of `cuts`, all of one result. After the first box, stops once `more()` is false.

    If `more` is None, all boxes are evaluated at the first use of the reference.
    """
    shape = cuts[0].program.results[result].shape
    parts, boxes, found = list[tuple[Any, Problem]](), list[Box](), list[Fast]()
    effort = problem.kept.effort / 2
    for cut in cuts:
        if found and more is not None and not more():
            break
        own = replace(problem, results=(result,), kept=Kept(effort / len(cuts)))
        boxes.append(cut.box)
        parts.append((meaning.of_part(cut), _without_tensors(own) if more is None else own))
        if more is not None:
            found.append(_evaluated(*parts[-1], result))
    spots = [_fresh(boxes[at], boxes[:at]) for at in range(len(boxes))]
    number = np.repeat(np.arange(len(boxes)), [len(line) for line in spots])
    spot = np.concatenate(spots)
    fast = _join(found, number, spot) if found else None
    places = np.concatenate([places_in(box, shape)[own] for box, own in zip(boxes, spots, strict=True)])
    return Sample(result, places, math.prod(shape), parts, number, spot, fast, cuts[0].run.device, more is None)


def _without_tensors(problem: Problem) -> Problem:
    """Returns the problem of a box without the operands, so that these are freed. Its program has all of its needs."""
    kept = problem.kept
    known = Kept(kept.effort, decisions=kept.decisions, choices=kept.choices)
    return replace(problem, inputs=dict.fromkeys(problem.inputs), upstream={}, kept=known)


def _fresh(box: Box, others: Sequence[Box]) -> Line:
    """Returns the places in a box of the elements that no other box has."""
    fresh = np.ones(tuple(map(len, box)), dtype=bool)
    for other in others:
        fresh[np.ix_(*(np.isin(line, known) for line, known in zip(box, other, strict=True)))] = False
    return np.flatnonzero(fresh)


def _evaluated(meaning: Any, problem: Problem, result: str) -> Fast:
    """Returns the reference of one box."""
    found: Fast = meaning.looked_up(problem, result, meaning.fast(problem)[result])
    return found


def _among(boxes: Sequence[Tensor], box: Line, spot: Line) -> Tensor:
    """Returns the places of elements among all elements of their boxes."""
    return torch.from_numpy(np.cumsum([0, *(each.numel() for each in boxes)])[box] + spot)


def _join(found: Sequence[Fast], box: Line, spot: Line) -> Fast:
    """Returns the reference of elements, given those of their boxes."""
    chosen = _among([each.value for each in found], box, spot).to(found[0].value.device)

    def joined(parts: Sequence[Tensor | None], missing: Callable[[Fast], Tensor]) -> Any:
        if all(part is None for part in parts):
            return None
        line = [missing(fast) if part is None else part for fast, part in zip(found, parts, strict=True)]
        whole = [part.expand(fast.value.shape).reshape(-1) for part, fast in zip(line, found, strict=True)]
        return torch.cat(whole)[chosen]

    missing: dict[str, Callable[[Fast], Tensor]] = {
        "unknown": lambda fast: torch.zeros_like(fast.value, dtype=torch.bool),
        "other": lambda fast: torch.full_like(fast.value, torch.nan),
    }
    names = [each.name for each in fields(Fast) if each.name != "together"]
    zeros = lambda fast: torch.zeros_like(fast.value)  # noqa: E731
    values = {name: joined([getattr(fast, name) for fast in found], missing.get(name, zeros)) for name in names}
    return Fast(**values, together=max(fast.together for fast in found))
