"""Searches: edits the worst inputs so far, and adds fresh ones every few generations.

Two runs with the same seed go through the same candidates. A time budget only stops earlier, between two generations.
So `--evaluations N` repeats a timed hunt of N evaluations.

One call judges thousands of candidates. The figure of a candidate is the largest error of its elements, by the figure
that the op gates. If the kernel returns a NaN or an infinity and the answer is a number, the error is infinite: nothing
is worse. The counts of all calls stay on the device; they travel to the host only at the end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from verify.errors import SPENT, KernelError
from verify.measure.call import run_tensors
from verify.measure.counting import Counts, counts_of
from verify.measure.judge import JudgedBy
from verify.measure.tally import Tally
from verify.ops.op import Problem
from verify.search.hunt.draws import Draws
from verify.search.hunt.edits import edit, fresh, fresh_shared
from verify.search.hunt.requests import Settings
from verify.search.hunt.space import Candidates, SearchSpace, joined, one_of, size_of
from verify.truth.fast import evaluate
from verify.truth.ulp import bits_of


@dataclass(frozen=True)
class Assessed:
    """Holds the figures of candidates, in the candidates' order."""

    figure: Tensor
    element: Tensor  # index of the element that had the error, within the candidate
    got: Tensor  # bits that the kernel returned for that element


NOTHING_WORSE = "a NaN or an infinity where the answer is a number, or the reverse: nothing is worse"
INTERRUPTED = "interrupted"
CLIMB, CLIMB_CHANGING = 4, 1  # generations of a climb; the second if sizes or integers change with it
POOL = 1 << 12  # candidates that are kept as parents
ELITE = 16  # candidates that are judged exactly at the end

# Numbers of the largest operand in one call, by the scale of the backend.
_NUMBERS = {"large": 1 << 22, "small": 1 << 13}
_NUMBERS_OF_FUNCTION = {"large": 1 << 18, "small": 1 << 12}  # the truth of a PyTorch function has many steps
_EXACT = {"large": 1 << 11, "small": 1 << 9}  # in a float64 call each number is evaluated exactly
_CALLS = 8  # calls of one generation if each candidate has a call of its own


@dataclass(frozen=True)
class Elite:
    """Holds one of the worst candidates of the search, judged by the fast truth and not yet by exact arithmetic."""

    figure: float
    candidate: Candidates
    shared: Candidates
    element: int
    got: int  # bits, signed as in a tensor


def population_of(space: SearchSpace, scale: str) -> int:
    """Returns the number of candidates of one call."""
    if space.alone:
        return _CALLS
    numbers = _NUMBERS_OF_FUNCTION if space.kernel.op.geometry.named else _NUMBERS
    numbers = _EXACT if space.dtype == "float64" else numbers
    return max(2, numbers[scale] // max(variable.size for variable in space.variables))


class Pool:
    """Holds the worst candidates among those that share a weight and bias, the worst first.

    Its content does not depend on the order in which a device does its work.
    """

    def __init__(self, shared: Candidates) -> None:
        self.shared = shared
        self.population: Candidates = {}
        self.seen: Assessed | None = None

    def add(self, population: Candidates, seen: Assessed) -> None:
        """Adds candidates and keeps the POOL worst.

        Of candidates with the same figure it keeps the first one only, because most of them are the same candidate.
        """
        facts = [seen.figure, seen.element, seen.got]
        if self.seen is not None:
            population = joined([self.population, population])
            facts = [torch.cat(pair) for pair in zip(vars(self.seen).values(), facts, strict=True)]
        order = torch.argsort(facts[0], descending=True, stable=True)
        figure = facts[0][order]
        known = torch.nn.functional.pad(figure[1:] == figure[:-1], (1, 0))
        order = order[~known][:POOL]
        self.population = {name: value[order] for name, value in population.items()}
        self.seen = Assessed(*(fact[order] for fact in facts))

    def parents(self, count: int, draws: Draws) -> Candidates:
        """Draws candidates by rank, every octave of rank equally likely."""
        size = size_of(self.population)
        rank = torch.floor(float(size) ** draws.uniform(count)).to(torch.int64) - 1
        return {name: value[rank.clamp(0, size - 1)] for name, value in self.population.items()}

    def elite(self, count: int) -> list[Elite]:
        """Returns the worst `count` candidates."""
        if self.seen is None:
            return []
        facts = zip(*(fact[:count].tolist() for fact in vars(self.seen).values()), strict=True)
        return [
            Elite(figure, one_of(self.population, line), self.shared, element, got)
            for line, (figure, element, got) in enumerate(facts)
        ]


class Search:
    """Runs one search, a generation at a time.

    Candidates are made and judged on `device`. The kernel runs on `kernel_device`.
    """

    def __init__(
        self, space: SearchSpace, settings: Settings, *, device: str, population: int, kernel_device: str
    ) -> None:
        self.space, self.settings, self.device = space, settings, device
        self.population = population
        self.kernel_device = kernel_device
        self.params = space.kernel.op.resolve(space.kernel.params)
        self._counts: Counts | None = None
        self.evaluations = self.generations = 0
        self.seconds = 0.0
        self.stopped = ""  # why it ended; "" if the budget was spent
        self.climb = CLIMB_CHANGING if space.changing else CLIMB
        self.pool = Pool({})
        self._earlier: list[Elite] = []  # the worst candidates of earlier pools
        self._landmarks = _landmarks(space, device)

    def run(self, watch: Callable[[Search], None], stop: Callable[[], bool]) -> None:
        """Searches until the budget is spent, `stop` returns true, or nothing worse can exist.

        Calls `watch` after each generation.
        """
        settings, started = self.settings, time.monotonic()
        while self.step():
            self.seconds = time.monotonic() - started
            watch(self)
            if math.isinf(self.best):
                self.stopped = NOTHING_WORSE
            elif stop():
                self.stopped = INTERRUPTED
            elif settings.seconds is not None and self.seconds >= settings.seconds:
                # The clock ended a hunt that counts generations: report that it is incomplete.
                cut = settings.generations is not None and self.generations < settings.generations
                self.stopped = SPENT if cut else ""
                return
            if self.stopped:
                return

    def step(self) -> bool:
        """Runs one generation. Returns False if the evaluations or the generations are spent."""
        limit, most = self.settings.evaluations, self.settings.generations
        if (most is not None and most <= self.generations) or (limit is not None and limit <= self.evaluations):
            return False
        count = self.population if limit is None else min(self.population, limit - self.evaluations)
        count = self.space.fits(count)
        draws = Draws(self.settings.seed, f"{self.generations}", self.device)
        begins = self.generations % self.climb == 0
        if begins and (self.space.shared or self.space.changing):
            self._earlier = self.elite()
            self.pool = Pool(self._shared(draws))
        population = self._candidates(count, draws, begins)
        self.pool.add(population, self.assess(population, self.pool.shared))
        self.evaluations += count
        self.generations += 1
        return True

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
        # the first position of the maximum, which `max` does not promise: the same on every device
        worst, width = each.amax(1), each.shape[1]
        element = torch.where(each == worst[:, None], torch.arange(width, device=each.device)[None, :], width).amin(1)
        bits = space.per_candidate(bits_of(got.detach().reshape(-1)), candidates).gather(1, element[:, None])[:, 0]
        return Assessed(worst, element, bits)

    def tally(self) -> Tally:
        """Returns the counts of all calls, without maxima: maxima need exact judgement."""
        return Tally() if self._counts is None else self._counts.tallies()[0]

    @property
    def best(self) -> float:
        """Returns the largest figure so far, or -1."""
        return max((member.figure for member in self.elite(1)), default=-1.0)

    def elite(self, count: int = ELITE) -> list[Elite]:
        """Returns the worst candidates so far, the worst first."""
        found = [*self._earlier, *self.pool.elite(count)]
        return sorted(found, key=lambda member: -member.figure)[:count]

    def _shared(self, draws: Draws) -> Candidates:
        """Returns the shared variables of the next climb. Every second climb edits the worst candidate's."""
        climb = self.generations // self.climb
        if climb % 2 == 0 or self.settings.strategy == "random":
            return fresh_shared(self.space, climb - climb // 2, draws)
        shared = {name: value.clone() for name, value in self._earlier[0].shared.items()}
        if self.space.shared:
            edit(self.space.shared, shared, fresh_shared(self.space, climb, draws), self._landmarks, draws)
        return shared

    def _candidates(self, count: int, draws: Draws, begins: bool) -> Candidates:
        """Returns the candidates of one generation: edits of the worst so far.

        At the start of a climb half of them are fresh. All are fresh if there is no candidate yet, or with strategy
        "random".
        """
        none = not self._earlier and self.pool.seen is None
        if none or self.settings.strategy == "random":
            return fresh(self.space, count, draws)
        edited = (count + 1) // 2 if begins else count
        parents, mates = self._parents(edited, draws), self._parents(edited, draws)
        edit(self.space.variables, parents, mates, self._landmarks, draws)
        return joined([parents, fresh(self.space, count - edited, draws)]) if begins else parents

    def _parents(self, count: int, draws: Draws) -> Candidates:
        """Draws parents from the pool, or from the elite of earlier pools if the pool is empty."""
        if self.pool.seen is not None:
            return self.pool.parents(count, draws)
        chosen = draws.below(count, len(self._earlier))
        return {name: value[chosen] for name, value in joined([each.candidate for each in self._earlier]).items()}


def _landmarks(space: SearchSpace, device: str) -> Tensor:
    """Returns the op's landmarks and the plainest numbers, as ordinals."""
    fmt = space.variables[0].fmt
    numbers = [0.0, 1.0, -1.0, *space.landmarks]
    patterns = [fmt.round(Fraction(x)) for x in numbers if math.isfinite(x) and abs(x) <= fmt.max_finite]
    edges = [1, 1 << fmt.mantissa_bits, fmt.max_bits]
    ordinals = [*(fmt.ordinal(bits) for bits in patterns), *edges]
    return torch.tensor(ordinals, dtype=torch.int64, device=device)
