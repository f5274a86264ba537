"""Which elements of a row are the largest, in which order, and where."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verify.ops.graph.arithmetic import Arithmetic, Number
from verify.ops.graph.spans import Span
from verify.ops.graph.steps import Places, Run, Step, Truths, rows_of


def _rows_of(step: Step, rows: Places) -> Places:
    """The places of all elements of some rows of the last dimension."""
    width = step.shape[-1]
    return (rows * width)[:, None] + np.arange(width)[None, :]


def _rows_around(step: Step, places: Places, width: int) -> Places:
    """The places of a step's rows in which places of a step as high lie, each row once."""
    return _rows_of(step, np.unique(places // width))


def _own_rows(values: list[Any], places: Places, width: int) -> Iterator[list[Any]]:
    """For each place the values of its row, from what `_rows_around` has asked for."""
    rows, own = np.unique(places // width, return_inverse=True)
    lines = rows_of(values, len(rows))
    return (lines[row] for row in own.tolist())


@dataclass(eq=False)
class IsExtreme(Step):
    """Which elements of the last dimension are the largest, or the smallest: the inputs are the elements.

    Of equal ones `first` answers with the first alone, as an index does; else all are. Where several are equal a
    derivative may belong to any of them.
    """

    largest: bool = True
    first: bool = False

    def span(self, run: Run, given: Sequence[Any]) -> Truths:
        [a] = given
        value = self.value(run, [a.mid()])
        if run.opens == "face":
            return Truths(value)
        doubt, several = candidates(a, self.largest), candidates(run.blurred(self.inputs[0], a), self.largest)
        exactly = ((a.lo == a.hi) | ~doubt).all(-1, True)
        doubt = doubt & ~exactly
        if bool(several.any()):
            run.met_tie = True
            if run.opens == "ties" or (run.opens and not a.given):
                doubt = several
        return Truths(value, doubt if bool(doubt.any()) else None)

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        best = given[0] if self.largest else -given[0]
        value = torch.where(torch.isnan(best).any(-1, True), torch.isnan(best), best == best.amax(-1, True))
        return value & (value.cumsum(-1) == 1) if self.first else value

    def sources(self, run: Run, wanted: Places) -> list[Places]:
        return [_rows_around(self.inputs[0], wanted, self.shape[-1])]

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        found: list[bool | None] = []
        width, worse = self.shape[-1], -1 if self.largest else 1
        leading: dict[int, Number] = {}  # one of each row that no other was found to beat
        for at, row in zip(wanted.tolist(), _own_rows(given[0], wanted, width), strict=True):
            number, place = divmod(at, width)
            if number not in leading:
                best = row[0]
                for value in row[1:]:
                    best = value if _order(arithmetic, best, value, -worse) == worse else best
                leading[number] = best
            if _order(arithmetic, row[place], leading[number], -worse) == worse:
                found.append(False)
                continue
            orders = [0 if at == place else _order(arithmetic, row[place], b, -worse) for at, b in enumerate(row)]
            if worse in orders:
                found.append(False)
                continue
            equal = [at for at, order in enumerate(orders) if order == 0]
            found.append(None if None in orders else not self.first or equal[0] == place)
        return found


def _order(arithmetic: Arithmetic, a: Number, b: Number, of_nan: int) -> int | None:
    """Which of two is larger, with NaN above (1) or below (-1) all numbers, as PyTorch has it."""
    order = arithmetic.order(a, b)
    if order != 2:
        return order
    return (_is_nan(a) - _is_nan(b)) * of_nan


def _is_nan(value: Number) -> bool:
    return isinstance(value, float) and value != value


def candidates(a: Span, largest: bool) -> Tensor:
    """The elements that may be the largest, where there is more than one."""
    low, high = (a.lo, a.hi) if largest else (-a.hi, -a.lo)
    candidate = high >= low.amax(-1, True)
    return candidate & (candidate.sum(-1, True) > 1)


@dataclass(eq=False)
class WhereExtreme(Step):
    """The index of the largest, or the smallest, element of the last dimension."""

    largest: bool = True

    def span(self, run: Run, given: Sequence[Any]) -> Truths:
        [a] = given
        several = candidates(run.blurred(self.inputs[0], a), self.largest).any(-1)
        return _seen(run, self.value(run, [a.mid()]), several)

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        return given[0].argmax(-1) if self.largest else given[0].argmin(-1)

    def sources(self, run: Run, wanted: Places) -> list[Places]:
        return [_rows_of(self.inputs[0], wanted)]

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        found: list[int | None] = []
        for row in rows_of(given[0], len(wanted)):
            best = 0
            sure = True
            for place in range(1, len(row)):
                order = _order(arithmetic, row[place], row[best], 1 if self.largest else -1)
                sure = sure and order not in (None, 0)
                if order == (1 if self.largest else -1):
                    best, sure = place, True
            found.append(best if sure else None)
        return found


def _seen(run: Run, value: Tensor, several: Tensor) -> Truths:
    """Positions, some of which could be others."""
    if not bool(several.any()):
        return Truths(value)
    run.met_tie = True
    return Truths(value, None if run.opens == "face" else several)


@dataclass(eq=False)
class Ranked(Step):
    """The `rank` largest (smallest) elements of the last dimension in order: order statistics of ends enclose them."""

    largest: bool = True

    def span(self, run: Run, given: Sequence[Any]) -> Span:
        [a] = given
        count = self.shape[-1]
        lo = a.lo.topk(count, -1, self.largest).values
        hi = lo if a.is_point else a.hi.topk(count, -1, self.largest).values
        return Span(lo, hi, a.given)

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        return given[0].topk(self.shape[-1], -1, self.largest).values

    def sources(self, run: Run, wanted: Places) -> list[Places]:
        return [_rows_around(self.inputs[0], wanted, self.shape[-1])]

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        rows = wanted // self.shape[-1]
        deepest: dict[int, int] = {}
        for row, rank in zip(rows.tolist(), (wanted % self.shape[-1]).tolist(), strict=True):
            deepest[row] = max(rank, deepest.get(row, 0))
        known: dict[int, list[Number]] = {}
        for row, values in zip(rows.tolist(), _own_rows(given[0], wanted, self.shape[-1]), strict=True):
            if row not in known:
                known[row] = self._in_order(arithmetic, values, deepest[row])
        return [known[row][rank] for row, rank in zip(rows.tolist(), (wanted % self.shape[-1]).tolist(), strict=True)]

    def _in_order(self, arithmetic: Arithmetic, row: Sequence[Number], deepest: int) -> list[Number]:
        """A row in order, at least as far as a rank."""
        strange = [value for value in row if _order(arithmetic, value, value, 1) is not None and value != value]
        ordered = [value for value in row if not any(value is each for each in strange)]

        def compared(a: Number, b: Number) -> int:
            order = arithmetic.order(a, b)
            if order is None:
                raise _Undecided
            return -order if self.largest else order

        try:
            ordered.sort(key=cmp_to_key(compared))
        except _Undecided:  # a selection by extremes works on balls that overlap, too
            for end in range(min(deepest + 1, len(ordered))):
                for place in range(len(ordered) - 1, end, -1):
                    pair = ordered[place - 1], ordered[place]
                    ordered[place - 1] = arithmetic.extreme(*pair, self.largest)
                    ordered[place] = arithmetic.extreme(*pair, not self.largest)
        return strange + ordered if self.largest else ordered + strange


class _Undecided(Exception):
    """Two numbers of a row overlap."""


@dataclass(eq=False)
class RankIndex(Step):
    """The places in the last dimension of its largest (smallest) elements, in order."""

    largest: bool = True

    def span(self, run: Run, given: Sequence[Any]) -> Truths:
        [a] = given
        value = self.value(run, [a.mid()])
        low, high = a.lo.gather(-1, value), a.hi.gather(-1, value)
        doubt = ((rivals(run.blurred(self.inputs[0], a)).gather(-1, value)) > 1) & ~torch.isnan(low + high)
        return _seen(run, value, doubt)

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        return given[0].topk(self.shape[-1], -1, self.largest).indices

    def sources(self, run: Run, wanted: Places) -> list[Places]:
        return [_rows_around(self.inputs[0], wanted, self.shape[-1])]

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        known: dict[int, list[int | None]] = {}
        found: list[int | None] = []
        for at, row in zip(wanted.tolist(), _own_rows(given[0], wanted, self.shape[-1]), strict=True):
            number, rank = divmod(at, self.shape[-1])
            if number not in known:
                known[number] = [_rank(arithmetic, row, place, self.largest) for place in range(len(row))]
            found.append(known[number].index(rank) if rank in known[number] else None)
        return found


def rivals(a: Span, *, exact: bool = True) -> Tensor:
    """How many elements of its row, itself included, each cannot be told apart from; equal ones only where `exact`."""
    overlap = (a.lo.unsqueeze(-1) <= a.hi.unsqueeze(-2)) & (a.lo.unsqueeze(-2) <= a.hi.unsqueeze(-1))
    if not exact:
        wide = a.lo != a.hi
        overlap = (overlap & (wide.unsqueeze(-1) | wide.unsqueeze(-2))) | torch.eye(
            wide.shape[-1], dtype=torch.bool, device=wide.device
        )
    return overlap.sum(-1)


def _rank(arithmetic: Arithmetic, row: Sequence[Number], place: int, largest: bool) -> int | None:
    """How many elements come before one; None where it has an equal, or where that is not decided."""
    orders = [_order(arithmetic, other, row[place], 1) for at, other in enumerate(row) if at != place]
    if None in orders or 0 in orders:
        return None
    return orders.count(1 if largest else -1)


@dataclass(eq=False)
class AtRank(Step):
    """For each element of the first input's last dimension what the second holds for its rank, else the third's.

    What `scatter` to the places of a `topk` makes. Elements that have an equal may have what any rank, or none, has.
    """

    largest: bool = True

    def span(self, run: Run, given: Sequence[Any]) -> Span:
        values, source, base = given
        count = source.lo.shape[-1]
        at = values.mid().topk(count, -1, self.largest).indices
        lo, hi = (base_end.scatter(-1, at, end) for base_end, end in ((base.lo, source.lo), (base.hi, source.hi)))
        doubt = rivals(run.blurred(self.inputs[0], values)) > 1
        if bool(doubt.any()) and run.opens != "face":
            run.met_tie = True
            least = torch.minimum(source.lo.amin(-1, True), base.lo)
            most = torch.maximum(source.hi.amax(-1, True), base.hi)
            least, most = (
                least.masked_fill(torch.isnan(least), -math.inf),
                most.masked_fill(torch.isnan(most), math.inf),
            )
            if run.opens != "ties" and (values.given or not run.opens):
                doubt = rivals(values, exact=False) > 1
            lo, hi = torch.where(doubt, least, lo), torch.where(doubt, most, hi)
        return Span(lo, hi)

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        values, source, base = given
        return base.scatter(-1, values.topk(source.shape[-1], -1, self.largest).indices, source)

    def sources(self, run: Run, wanted: Places) -> list[Places]:
        values, source, _ = self.inputs
        return [*(_rows_around(each, wanted, self.shape[-1]) for each in (values, source)), wanted]

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        found = []
        rows, sources = (_own_rows(each, wanted, self.shape[-1]) for each in given[:2])
        for place, row, source, base in zip((wanted % self.shape[-1]).tolist(), rows, sources, given[2], strict=True):
            rank = _rank(arithmetic, row, place, self.largest)
            if rank is not None:
                found.append(source[rank] if rank < len(source) else base)
                continue
            either = base
            for value in source:
                either = arithmetic.union(either, value)
            found.append(either)
        return found
