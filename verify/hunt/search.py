"""The search: generations of candidates, most of them changed copies of the worst so far, some fresh.

Two runs with the same seed go through the same candidates. A time budget only stops earlier, between two
generations, so that a hunt of N evaluations is repeated by asking for N evaluations.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from verify.errors import SPENT
from verify.hunt.archive import LEADING, Archive
from verify.hunt.assess import Assessor
from verify.hunt.draws import Draws
from verify.hunt.mutate import mutate
from verify.hunt.seeds import fresh, fresh_shared
from verify.hunt.settings import Settings
from verify.hunt.space import ROWS, Population, SearchSpace, joined, size_of
from verify.measure.tally import Tally

NOTHING_WORSE = "a NaN or an infinity where the answer is a number, or the reverse: nothing is worse"
INTERRUPTED = "interrupted"
FRESH = 8  # one candidate in so many is fresh
EPOCH = 16  # generations that share one weight and bias
ELITE = 16  # candidates that are judged exactly at the end

# lines of one call, by backend: elements of an elementwise call, numbers of all rows, rows of a contraction
_ELEMENTS = {"cuda": 1 << 22, "interpreter": 1 << 14}
_ROWS = {"cuda": 1 << 22, "interpreter": 1 << 13}
_PAIRS = {"cuda": 512, "interpreter": 24}
_CALLS = 8  # of a generation, where each candidate has one
_GRAPH = {"cuda": 1 << 18, "interpreter": 1 << 12}  # numbers of the largest operand of a PyTorch function
_EXACT = {"cuda": 1 << 11, "interpreter": 1 << 9}  # elements of a float64 call: each is evaluated exactly


@dataclass(frozen=True)
class State:
    """Where a search stands after a generation."""

    evaluations: int
    generations: int
    best: float
    seconds: float


@dataclass(frozen=True)
class Elite:
    """One of the worst candidates as the search saw it, by the fast truth and not yet by exact arithmetic."""

    fitness: float
    candidate: Population
    shared: Population
    element: int
    got: int


@dataclass(frozen=True)
class Searched:
    """What a search came to."""

    state: State
    elite: list[Elite]
    tally: Tally
    stopped: str  # why it ended: "" when the budget was spent


def population_of(space: SearchSpace, backend: str) -> int:
    """How many lines one call has."""
    if space.alone:
        return _CALLS
    if space.dtype == "float64":
        exact = _EXACT[backend]
        return math.isqrt(exact) if space.kind == "contraction" else max(2, exact // _length(space))
    if space.kind == "graph":
        return max(2, _GRAPH[backend] // _length(space))
    if space.kind == "contraction":
        return _PAIRS[backend]
    return _ROWS[backend] // space.width or 2 if space.kind == "rowwise" else _ELEMENTS[backend]


def _length(space: SearchSpace) -> int:
    if space.kind == "graph":
        return max(gene.size for gene in space.genes)
    return space.width if space.kind == "rowwise" else 1


class Search:
    """One search, a generation at a time."""

    def __init__(
        self, space: SearchSpace, settings: Settings, *, device: str, population: int, kernel_device: str = ""
    ) -> None:
        self.space, self.settings, self.device = space, settings, device
        self.population = population
        self.archive = Archive(space, device)
        self.assessor = Assessor(space, device, kernel_device)
        self.evaluations = self.generations = 0
        self.epochs: list[Population] = []
        self.landmarks = _landmarks(space, device)
        self._stretch: tuple[int, int] | None = None  # niche and the next ordinal in it
        self._tried: set[int] = set()

    def step(self) -> bool:
        """One generation. False when the evaluations or the generations are spent."""
        if self.settings.generations is not None and self.generations >= self.settings.generations:
            return False
        limit = self.settings.evaluations
        left = None if limit is None else limit - self.evaluations
        if left is not None and left <= 0:
            return False
        count = self.population if left is None else min(self.population, max(1, self.space.lines(left)))
        count = self.space.fits(count)
        draws = Draws(self.settings.seed, f"{self.generations}", self.device)
        if self.generations % EPOCH == 0 or self.space.changing:
            self.epochs.append(self._shared(draws))
        population, lineage = self._candidates(count, draws)
        count = size_of(population)
        seen = self.assessor.assess(population, self.epochs[-1])
        epoch = torch.full_like(seen.element, len(self.epochs) - 1)
        lineage = lineage[seen.origin]
        facts = torch.stack([lineage, epoch, seen.element, seen.got], dim=1)
        self.archive.insert(seen.population, lineage, seen.fitness, facts)
        self.evaluations += self.space.evaluations(count)
        self.generations += 1
        return True

    @property
    def best(self) -> float:
        """The largest figure so far."""
        return float(self.archive.fitness.max())

    def elite(self, count: int = ELITE) -> list[Elite]:
        """The worst candidates so far, the worst first."""
        return [
            Elite(fitness, candidate, self.epochs[epoch], element, got & ((1 << self.space.fmt.bits) - 1))
            for fitness, candidate, (_, epoch, element, got) in self.archive.best(count)
        ]

    def _shared(self, draws: Draws) -> Population:
        """The shared vectors of an epoch: from a recipe, or in every second one those of the best, changed.

        Of a sum over rows how many there are. Where they change in every generation, every third has those of the best.
        """
        epoch = len(self.epochs)
        if self.space.changing and epoch % 3 == 2 and self.settings.strategy == "hunt":
            return self.epochs[self.archive.best(1)[0][2][1]]
        if self.space.most_rows:
            return {ROWS: torch.tensor(self.space.rows(epoch - epoch // 3, draws))}
        made = fresh_shared(self.space, epoch // 2, draws)
        if not self.space.shared or epoch % 2 == 0 or self.settings.strategy == "random":
            return made
        _, _, (_, origin, _, _) = self.archive.best(1)[0]
        parent = {name: value.clone() for name, value in self.epochs[origin].items()}
        mutate(self.space.shared, parent, made, self.landmarks, draws)
        return parent

    def _candidates(self, count: int, draws: Draws) -> tuple[Population, Tensor]:
        if self.generations == 0 or self.settings.strategy == "random":
            return fresh(self.space, count, draws)
        if self.space.enumerable and self.generations % 2 == 0:
            stretch = self._next_stretch(count)
            if stretch is not None:
                return stretch
        new = count // FRESH
        parents, lineage = self.archive.parents(count - new, draws)
        mates, _ = self.archive.parents(count - new, draws)
        mutate(self.space.genes, parents, mates, self.landmarks, draws)
        if not new:
            return parents, lineage
        added, origin = fresh(self.space, new, draws)
        return joined([parents, added]), torch.cat([lineage, origin])

    def _next_stretch(self, count: int) -> tuple[Population, Tensor] | None:
        """Every number of the best niche that was not tried whole yet, one after the other."""
        gene = self.space.genes[0]
        shift = gene.fmt.bits - LEADING
        if self._stretch is None:
            niche = next((cell for cell in self.archive.ranked().tolist() if cell not in self._tried), None)
            if niche is None:
                return None
            self._stretch = (niche, 0)
        niche, start = self._stretch
        stop = start + self.space.fits(min(count, (1 << shift) - start))
        if stop == 1 << shift:
            self._tried.add(niche)
            self._stretch = None
        else:
            self._stretch = (niche, stop)
        side, leading = divmod(niche, 1 << (LEADING - 1))
        magnitude = torch.arange(start, stop, dtype=torch.int64, device=self.device) + (leading << shift)
        ordinals = gene.within(-magnitude if side else magnitude)
        return {gene.name: ordinals[:, None]}, torch.zeros_like(ordinals)


def _landmarks(space: SearchSpace, device: str) -> Tensor:
    """The op's landmarks and the plainest numbers, as ordinals."""
    fmt = space.genes[0].fmt
    op = space.kernel.op
    numbers = [0.0, 1.0, -1.0, *op.boundaries(op.resolve(space.kernel.params))]
    patterns = [fmt.round(Fraction(x)) for x in numbers if math.isfinite(x) and abs(x) <= fmt.max_finite]
    edges = [1, 1 << fmt.mantissa_bits, fmt.max_bits]
    ordinals = [*(fmt.ordinal(bits) for bits in patterns), *edges]
    return torch.tensor(ordinals, dtype=torch.int64, device=device)


def search(
    space: SearchSpace,
    settings: Settings,
    *,
    device: str,
    population: int,
    kernel_device: str = "",
    watch: Callable[[Search, State], None] = lambda search, state: None,
    stop: Callable[[], bool] = lambda: False,
) -> Searched:
    """Search until the budget is spent, `stop` returns true, or nothing worse can exist.

    `device` is where candidates are made and judged, `kernel_device` where the kernel runs, if that is another one.
    """
    settings.check()
    found = Search(space, settings, device=device, population=population, kernel_device=kernel_device)
    started = time.monotonic()
    stopped = ""
    while found.step():
        spent = time.monotonic() - started
        best = found.best
        watch(found, State(found.evaluations, found.generations, best, spent))
        if math.isinf(best):
            stopped = NOTHING_WORSE
            break
        if stop():
            stopped = INTERRUPTED
            break
        if settings.seconds is not None and spent >= settings.seconds:
            # what a count of generations would have found, the clock has cut
            cut = settings.generations is not None and found.generations < settings.generations
            stopped = SPENT if cut else ""
            break
    state = State(found.evaluations, found.generations, found.best, time.monotonic() - started)
    return Searched(state, found.elite(), found.assessor.tally(), stopped)
