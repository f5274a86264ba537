"""Judges thousands of candidates by one call: runs the kernel, evaluates the fast truth, takes the error of each
candidate.

The figure of a candidate is the largest error of its elements, by the figure that the op gates. If the kernel returns a
NaN or an infinity and the answer is a number, the error is infinite: nothing is worse. The counts of all calls stay on
the device; they travel to the host only at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from verify.errors import KernelError
from verify.measure.call import run_tensors
from verify.measure.counting import Counts, counts_of
from verify.measure.judge import JudgedBy
from verify.measure.tally import Tally
from verify.ops.op import Problem
from verify.search.hunt.space import Candidates, SearchSpace, one_of, size_of
from verify.truth.fast import evaluate
from verify.truth.ulp import bits_of


@dataclass(frozen=True)
class Assessed:
    """Holds the figures of candidates, in the candidates' order."""

    figure: Tensor
    element: Tensor  # index of the element that had the error, within the candidate
    got: Tensor  # bits that the kernel returned for that element


class Assessor:
    """Judges populations of one space and counts all judged elements.

    Candidates lie on `device`, and are judged there. The kernel runs on `kernel_device`.
    """

    def __init__(self, space: SearchSpace, device: str, kernel_device: str = "") -> None:
        self.space = space
        self.kernel_device = kernel_device or device
        self.params = space.kernel.op.resolve(space.kernel.params)
        self.device = device
        self._counts: Counts | None = None

    def assess(self, population: Candidates, shared: Candidates) -> Assessed:
        """Judges every candidate: all by one call, or by one call each if `space.alone`."""
        if not self.space.alone:
            return self._call(population, shared)
        each = [self._call(one_of(population, line), shared) for line in range(size_of(population))]
        return Assessed(*(torch.cat([getattr(one, name) for one in each]) for name in ("figure", "element", "got")))

    def _call(self, population: Candidates, shared: Candidates) -> Assessed:
        """Judges a population by one call of the kernel, and counts its elements."""
        space, candidates = self.space, size_of(population)
        inputs, upstream = space.tensors(population, shared)
        problem = Problem(inputs=inputs, params=self.params, upstream=upstream, results=(space.result,))
        there = {name: None if value is None else value.to(self.kernel_device) for name, value in inputs.items()}
        arriving = {name: value.to(self.kernel_device) for name, value in upstream.items()}
        found = run_tensors(space.kernel, there, space.kernel.params, arriving)
        if space.result not in found:
            raise KernelError(f"{space.kernel.name} gave {space.result} once and not again: autograd has no path to it")
        got = found[space.result].to(self.device)
        problem = space.kernel.op.meaning.chosen(problem, {space.result: got})
        truth = evaluate(space.kernel.op, problem, {space.result: space.fmt})[space.result]
        if got.shape != truth.value.shape:
            raise KernelError(
                f"{space.kernel.name} must return {space.result} of shape {tuple(truth.value.shape)}; "
                f"it returned {tuple(got.shape)}"
            )
        by = JudgedBy(space.kernel.op, problem, space.result, truth, space.fmt, space.kernel.policy, floor=space.floor)
        _, judged = by.with_noise_beside(got).compared(got)
        counts = counts_of(judged)
        self._counts = counts if self._counts is None else self._counts.plus(counts)
        figure = torch.where(torch.isnan(judged.deciding), torch.inf, judged.deciding)
        each = space.per_candidate(figure, candidates)
        worst, element = _first_max(each)
        bits = space.per_candidate(bits_of(got.detach().reshape(-1)), candidates).gather(1, element[:, None])[:, 0]
        return Assessed(worst, element, bits)

    def tally(self) -> Tally:
        """Returns the counts of all calls, without maxima: maxima need exact judgement."""
        return Tally() if self._counts is None else self._counts.tallies()[0]


def _first_max(table: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the maximum of each line and its first position. Both are the same on every device."""
    best = table.amax(1)
    width = table.shape[1]
    place = torch.where(table == best[:, None], torch.arange(width, device=table.device)[None, :], width)
    return best, place.amin(1)
