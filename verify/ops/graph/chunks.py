"""Evaluates a sum part by part if its terms do not fit into memory together.

`Chunked` replaces a sum, a largest or smallest element, or a product of matrices. Each of its parts is a program for
some of the terms. Steps that all parts need alike, such as the mean that a variance subtracts, are inputs of `Chunked`.
They are evaluated once, and are `Known` in the parts.

Two routes lead to the result. Intervals of the parts add up to an interval. The float64 values of the parts add up to a
number, which has to lie in the interval. Arb checks some terms. TruthError is raised if routes disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verify.errors import BeyondEffort, TruthError
from verify.ops.graph.boxes import digits_of
from verify.ops.graph.program import Program, undisturbed
from verify.ops.graph.reducing import Reduce
from verify.ops.graph.single import ElementEvaluator, Shared
from verify.ops.graph.spans import Span
from verify.ops.graph.steps import Move, Places, Run, Step

PART = "part"  # name of the result of each part
_CHECKED = 8  # terms of the first part that Arb checks
_BITS = 160  # precision of this check
_FOLLOWED = 1 << 24  # most elements of a move that is followed for this check
_LOST = 2.0**-40  # float64 may lose this part of the terms, a bound far above its errors


@dataclass(eq=False)
class Known(Step):
    """A step that a part does not evaluate. `Run.maps` holds its interval or its value."""

    def span(self, run: Run, given: Sequence[Any]) -> Any:
        return run.maps[id(self)]

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        held = run.maps[id(self)]
        return held.mid() if isinstance(held, Span) else held

    def sources(self, run: Run, wanted: Places) -> list[Places]:
        raise BeyondEffort(f"{self.origin} has an interval alone, no exact value")


@dataclass
class Totals:
    """The parts of one long sum, and its results. All chosen elements of a case share them."""

    step: Step  # the sum in one piece
    shape: tuple[int, ...]  # of the elements of it that are needed
    parts: Sequence[Callable[[], tuple[Program, Run]]]
    inputs: tuple[Step, ...]  # steps that all parts need alike
    boxes: tuple[tuple[NDArray[np.int64], ...], ...]  # the elements of them that the parts need
    known: tuple[Known, ...]  # stand for them in the parts
    work: float  # numbers that all parts evaluate
    bytes: float  # memory of the largest part
    value: Tensor | None = None  # in float64; set by the noise
    deviation: Tensor | None = None  # its noise, without that of the inputs
    size: Tensor | float = 0.0  # at least the sum of the terms' magnitudes
    enclosed: Span | None = None

    @property
    def last(self) -> Reduce:
        """The step that joins the results of the parts, stacked."""
        return Reduce(self.shape, (), function=getattr(self.step, "function", "sum"), dims=(0,))

    def chunked(self, given: Sequence[Any]) -> Chunked:
        """Returns the step that evaluates the sum from `inputs`, part by part."""
        return Chunked(self.shape, tuple(given), self.step.real, self.step.origin, totals=self)

    def each(self, given: Sequence[Any]) -> Iterator[tuple[Program, Run]]:
        """Yields the parts. `given` holds the intervals or the values of `inputs`."""
        for make in self.parts:
            program, run = make()
            run.maps |= {id(known): value for known, value in zip(self.known, given, strict=True)}
            yield program, run

    def span(self, run: Run, given: Sequence[Any]) -> Span:
        """Returns the interval. Raises TruthError if it lacks the float64 value."""
        if self.enclosed is None:
            parts = list[Span]()
            for program, own in self.each(given):
                parts.append(program.spans(own, [PART])[PART])
                if len(parts) == 1:
                    _check_terms(program, own)
            lo = torch.stack([part.lo for part in parts])
            points = all(part.is_point for part in parts)
            hi = lo if points else torch.stack([part.hi for part in parts])
            found: Span = self.last.span(run, [Span(lo, hi)])
            self._check(found)
            self.enclosed = found
        return self.enclosed

    def _check(self, found: Span) -> None:
        if self.value is None:
            return
        room = (self.value.abs() + self.size) * _LOST
        inside = (self.value >= found.lo - room) & (self.value <= found.hi + room)
        if bool((~inside & torch.isfinite(found.lo) & torch.isfinite(found.hi)).any()):
            raise TruthError(f"{self.step.origin}: the float64 value of a sum is outside of its interval")


def _check_terms(program: Program, run: Run) -> None:
    """Raises TruthError if the exact value of a seeded term is outside of its interval."""
    random = np.random.default_rng(0)
    for step in program.results[PART].inputs:
        terms = replace(program, results={PART: step}, needed={})
        steps = terms.needed_for([PART])
        moves = [each for each in steps if isinstance(each, Move) and not each.view]
        sizes = [np.prod(each.shape) for move in moves for each in (move, *move.inputs)]
        if not step.real or max(sizes, default=0) > _FOLLOWED:
            continue
        span: Span = terms.spans(run, [PART])[PART]
        places = random.integers(0, span.lo.numel(), _CHECKED)
        at = tuple(map(torch.from_numpy, digits_of(places, step.shape)))
        lows, highs = (end[at].expand(_CHECKED).tolist() for end in (span.lo, span.hi))
        evaluator = ElementEvaluator(terms, run, PART, places.tolist(), Shared())
        for position, (lo, hi) in enumerate(zip(lows, highs, strict=True)):
            try:
                ball = evaluator.ball(position, _BITS)
            except BeyondEffort:
                return
            if ball < lo or ball > hi:
                raise TruthError(f"{step.origin}: Arb finds a term of a sum outside of its interval {lo!r}..{hi!r}")


@dataclass(eq=False)
class Chunked(Step):
    """A sum, a largest or smallest element, or a product of matrices, evaluated part by part."""

    totals: Totals = None  # type: ignore[assignment]

    def span(self, run: Run, given: Sequence[Any]) -> Span:
        return self.totals.span(run, given)

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        if not given and self.totals.value is not None:
            return self.totals.value

        made = list[Tensor]()
        for program, own in self.totals.each(given):
            made.append(program.values(own, [PART], undisturbed(own))[PART])
        return self.totals.last.value(run, [torch.stack(made)])

    def sources(self, run: Run, wanted: Places) -> list[Places]:
        raise BeyondEffort(f"{self.origin} adds up too many terms for an exact value")
