"""Defines the steps that order the elements of a row, select among them, or move by positions that they compute.

An order and a place are decisions, which the run records (`verify.ops.graph.steps`). What is selected follows.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verify.ops.graph.arithmetic import Arithmetic
from verify.ops.graph.reducing import Spread
from verify.ops.graph.spans import Span
from verify.ops.graph.steps import ABSENT, NOTHING, Move, Places, Plain, Run, Step


@dataclass(eq=False)
class Order(Step):
    """The places of the first elements of each row (the last dimension), in descending or ascending order."""

    largest: bool = True
    sorts: bool = False  # True: all elements, as PyTorch sorts them; else the order of its topk
    stable: bool = False  # True: equal elements keep their order

    @property
    def decides(self) -> bool:
        return True

    @property
    def reads(self) -> tuple[Step | None, ...]:
        return (None,)

    def span(self, run: Run, given: Sequence[Any]) -> Tensor:
        return self.value(run, [given[0].mid()])

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        return run.decision(self, lambda: self.evaluated(given[0]))

    def evaluated(self, row: Tensor) -> Tensor:
        """Returns the order of float64 numbers."""
        if self.sorts:
            return row.sort(dim=-1, descending=self.largest, stable=self.stable).indices
        return row.topk(self.shape[-1], -1, self.largest).indices

    def sources(self, run: Run, wanted: Places) -> list[Places]:
        return [np.zeros((len(wanted), 0), dtype=np.int64)]

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        return run.decided_at(self, wanted)


@dataclass(eq=False)
class First(Order):
    """The place of the largest (or smallest) element of each row."""

    def evaluated(self, row: Tensor) -> Tensor:
        return row.argmax(-1) if self.largest else row.argmin(-1)


@dataclass(eq=False)
class AtOrder(Step):
    """The elements of each row of the first input at the places of an `Order`, the second input."""

    @property
    def reads(self) -> tuple[Step | None, ...]:
        return self.inputs[0], None

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        return given[0].gather(-1, given[1])

    def sources(self, run: Run, wanted: Places) -> list[Places]:
        rows = wanted // max(self.shape[-1], 1)
        places = np.asarray(run.decided_at(self.inputs[1], wanted), dtype=np.int64)
        return [rows * self.inputs[0].shape[-1] + places, wanted]

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        return list(given[0])


@dataclass(eq=False)
class ToOrder(Step):
    """The rows of a base with some elements replaced: those at the places of an `Order`, the first input.

    The other inputs are the replacements, one for each place, and the base.
    """

    @property
    def reads(self) -> tuple[Step | None, ...]:
        return None, *self.inputs[1:]

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        return given[2].scatter(-1, given[0], given[1])

    def sources(self, run: Run, wanted: Places) -> list[Places]:
        count, width = self.inputs[0].shape[-1], max(self.shape[-1], 1)
        rows, places = np.divmod(wanted, width)
        order = run.decided_rows(self.inputs[0], rows)
        met = order == places[:, None]
        rank = np.where(met.any(1), met.argmax(1), NOTHING)
        return [rows[:, None] * count + np.arange(count), np.where(rank < 0, NOTHING, rows * count + rank), wanted]

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        return [base if value is ABSENT else value for value, base in zip(given[1], given[2], strict=True)]


@dataclass(eq=False)
class Positioned(Step):
    """A step that moves or adds elements by positions that the program computes: the first input.

    `inner` does the moving. It reads the positions in place of its constant `stand`.
    """

    inner: Move | Spread = field(default_factory=lambda: Move(()))
    stand: Plain = field(default_factory=lambda: Plain(()))
    size: int = 0  # of the dimension that positions count in
    at: Callable[[], Tensor] | None = None  # for a pick: for each element, the flat place of its position; None: adds

    def span(self, run: Run, given: Sequence[Any]) -> Any:
        index, *rest = given
        return self.inner.span(self.positioned(run, _positions(index)), rest)

    def positioned(self, run: Run, positions: Tensor) -> Run:
        """Returns a run that gives these positions to the inner step."""
        positions = positions.long()
        positions = torch.where(positions < 0, positions + self.size, positions).clamp(0, max(self.size - 1, 0))
        return replace(run, plain={**run.plain, id(self.stand): positions}, maps={})

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        return self.inner.value(self.positioned(run, given[0].nan_to_num(0.0)), given[1:])

    def known(self, run: Run) -> tuple[Run, Places]:
        """Returns a run with the decided positions, and for each element the place of its position."""
        if id(self) not in run.maps:
            places = np.zeros((math.prod(self.shape), 0), dtype=np.int64)
            if self.at is not None:
                places = self.at().reshape(-1, 1).numpy()
            run.maps[id(self)] = self.positioned(run, _positions(run.span_of(self.inputs[0]))), places
        return run.maps[id(self)]  # type: ignore[no-any-return]

    @property
    def reads(self) -> tuple[Step | None, ...]:
        """None for the positions, which are not evaluated as single elements, then what `inner` reads."""
        return (None, *self.inner.reads)

    def sources(self, run: Run, wanted: Places) -> list[Places]:
        sub, places = self.known(run)
        return [places[wanted], *self.inner.sources(sub, wanted)]

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        return self.inner.elements(self.known(run)[0], arithmetic, wanted, given[1:])


def _positions(index: Any) -> Tensor:
    """Returns positions as integers, from integers or from the interval of whole numbers."""
    return index.mid().nan_to_num(0.0, 0.0, 0.0) if isinstance(index, Span) else index


def ranked(step: Order, x: Tensor) -> Tensor:
    """Returns numbers of which the larger ones come first. NaN is the largest number, and each extreme of its row."""
    nan, largest = torch.isnan(x), torch.finfo(x.dtype).max
    if isinstance(step, First):
        x = torch.where(nan.any(-1, True), nan.to(x.dtype) * (1 if step.largest else -1), x)
    x = x.clamp(-largest, largest).masked_fill(nan, math.inf)
    return x if step.largest else -x


def is_sorted(step: Order, x: Tensor, reach: Tensor, proposed: Tensor) -> Tensor:
    """Returns a mask of the rows where the places are those of a right order, if numbers move by `reach`."""
    line = ranked(step, x)
    places = proposed[..., None] if isinstance(step, First) else proposed
    taken, room = line.gather(-1, places), reach.gather(-1, places)
    rest = (line - reach).scatter(-1, places, -math.inf).amax(-1, True)
    later = torch.cat([taken - room, rest], -1).flip(-1).cummax(-1).values.flip(-1)[..., 1:]
    return (taken + room >= later).all(-1) & (places.sort(-1).values.diff(dim=-1) != 0).all(-1)


def in_order_of(step: Order, x: Tensor, scores: Tensor) -> Tensor:
    """Returns the order of numbers, equal ones by their scores."""
    first = scores.expand(x.shape).sort(dim=-1, descending=True, stable=True).indices
    ordered = ranked(step, x).gather(-1, first).sort(dim=-1, descending=True, stable=True).indices
    places = first.gather(-1, ordered)
    return places[..., 0] if isinstance(step, First) else places[..., : step.shape[-1]]


def scores_of(step: Order, x: Tensor, places: Tensor) -> Tensor:
    """Returns scores of numbers that put equal ones into the given order."""
    places = places[..., None] if isinstance(step, First) else places
    count = places.shape[-1]
    falling = torch.arange(count, 0, -1, dtype=torch.float64, device=x.device) / max(count, 1)
    return torch.full(x.shape, -1.0, dtype=torch.float64, device=x.device).scatter(
        -1, places, falling.expand(places.shape)
    )


_LEAST = 2.0**-8  # share of a dimension in what breaks ties: the steps along it stay well above float64's spacing
# signs by which ties are broken, errors point, and copies of one number come first; 0: not at all
_SIGNS = ((1, 1, 1), (-1, -1, -1), *product((1, -1), (0,), (1, -1)), *product((0,), (1, -1, 0), (1, -1)))
_SIGNS += (*product((1, -1), (1, -1), (1, -1)),)[1:-1]


def in_lines(kinds: Mapping[int, int], ramps: Mapping[int, Tensor]) -> Iterator[dict[int, Tensor]]:
    """Yields where numbers move if the first or the last of equal ones wins.

    Operands (kind 0) move to both sides, or all to one. Errors are of kind 1, scores of copies of kind 2. Rounded
    numbers (kind 3) move as operands do, against them, or not at all.
    """
    ways = (1, -1, 0) if 3 in kinds.values() else (1,)
    for way, above, (ties, errors, copies) in product(ways, (False, True), _SIGNS):
        if above and errors:
            continue
        found = {}
        for key, line in ramps.items():
            curve = line * line * (ties * ties * copies / 8)  # the middle of a line is its mean: on either side
            side = 1 + line * (1 - 2 / (line.numel() + 1))
            tied = ties * side if above else ties * line + curve
            found[key] = (tied, line * errors, line * copies, tied * way)[kinds[key]]
        yield found


def ramp(values: Tensor) -> Tensor:
    """Returns numbers between 1 and -1 that fall along each dimension, or one after the other if they are few."""
    if values.numel() <= 1 / _LEAST:
        return torch.linspace(1, -1, values.numel(), dtype=values.dtype, device=values.device).reshape(values.shape)
    found, share, shares = torch.zeros_like(values), 1.0, 0.0
    for dim, size in enumerate(values.shape):
        line = torch.linspace(share, -share, size, dtype=values.dtype, device=values.device)
        found = found + line.reshape([-1 if at == dim else 1 for at in range(values.ndim)])
        share, shares = max(share / max(size, 1), _LEAST), shares + share
    return found / max(shares, 1.0)
