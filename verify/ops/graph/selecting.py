"""Defines the steps that select the largest elements of a row, order them, or move by positions that they compute."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cmp_to_key
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verify.ops.graph.arithmetic import Arithmetic, Number
from verify.ops.graph.reducing import Spread
from verify.ops.graph.spans import Span
from verify.ops.graph.steps import Move, Places, Plain, Run, Step, Truths, rows_of


def _rows_of(step: Step, rows: Places) -> Places:
    """Returns the places of all elements in some rows of the last dimension, one row for each."""
    width = step.shape[-1]
    return (rows * width)[:, None] + np.arange(width)[None, :]


def _rows_around(step: Step, places: Places, width: int) -> Places:
    """Returns the places of all elements in the rows of `step` with the same numbers as the rows of `places`.

    `places` belong to a step with rows of `width` elements. Each row occurs once.
    """
    return _rows_of(step, np.unique(places // width))


def _own_rows(values: list[Any], places: Places, width: int) -> Iterator[list[Any]]:
    """Yields the values of the row of each place. `values` are the values at the places of `_rows_around`."""
    rows, own = np.unique(places // width, return_inverse=True)
    lines = rows_of(values, len(rows))
    return (lines[row] for row in own.tolist())


@dataclass(eq=False)
class IsExtreme(Step):
    """A mask of the largest (or smallest) elements along the last dimension.

    If several are equal, a derivative may belong to any of them.
    """

    largest: bool = True
    first: bool = False  # True: of equal elements only the first counts, as for an index; else all count

    def span(self, run: Run, given: Sequence[Any]) -> Truths:
        [a] = given
        value = self.value(run, [a.mid()])
        if run.opens == "face":
            return Truths(value)
        doubt, several = self.several(a), self.several(run.blurred(self.inputs[0], a))
        doubt = doubt & ~self.exactly(a, doubt)
        if bool(several.any()):
            run.met_tie = True
            if run.opens == "ties" or (run.opens and not a.given):
                doubt = several
        return Truths(value, doubt if bool(doubt.any()) else None)

    def several(self, a: Span) -> Tensor:
        """Returns a mask of the elements that an interval leaves undecided, points included."""
        return candidates(a, self.largest)

    def exactly(self, a: Span, doubt: Tensor) -> Tensor:
        """Returns a mask of the elements whose answer is decided because all numbers in question are points."""
        return ((a.lo == a.hi) | ~doubt).all(-1, True)

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        best = given[0] if self.largest else -given[0]
        value = torch.where(torch.isnan(best).any(-1, True), torch.isnan(best), best == best.amax(-1, True))
        return value & (value.cumsum(-1) == 1) if self.first else value

    def sources(self, run: Run, wanted: Places) -> list[Places]:
        return [_rows_around(self.inputs[0], wanted, self.shape[-1])]

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        found: list[bool | None] = []
        width, worse = self.shape[-1], -1 if self.largest else 1
        leading: dict[int, Number] = {}  # row -> an element that no other is known to exceed
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


@dataclass(eq=False)
class AgainstRank(IsExtreme):
    """A comparison of each element with the element of one rank in its row, such as x >= x.topk(2).values[..., -1:].

    The element of that rank is compared with itself. Its rank decides, because no interval shows that it is equal.
    """

    rank: int = 0  # in descending order, or in ascending order if not `largest`
    comparison: str = "ge"

    def several(self, a: Span) -> Tensor:
        lo, hi = self._limit(a.lo), self._limit(a.hi)
        return (a.lo <= hi) & (lo <= a.hi) & (rivals(a) > 1)

    def exactly(self, a: Span, doubt: Tensor) -> Tensor:
        return (a.lo == a.hi) & (self._limit(a.lo) == self._limit(a.hi))

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        compare: Callable[[Tensor, Tensor], Tensor] = getattr(torch, self.comparison)
        return compare(given[0], self._limit(given[0]))

    def _limit(self, values: Tensor) -> Tensor:
        return values.topk(self.rank + 1, -1, self.largest).values[..., -1:]

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        width = self.shape[-1]
        rows = _own_rows(given[0], wanted, width)
        return [self._answer(arithmetic, row, at) for at, row in zip((wanted % width).tolist(), rows, strict=True)]

    def _answer(self, arithmetic: Arithmetic, row: Sequence[Number], place: int) -> bool | None:
        """Returns the answer for one element, from the numbers before, equal to and after it in its row."""
        strange = sum(map(_is_nan, row))
        rank = self.rank - (strange if self.largest else 0)  # NaN is the largest number in every order of PyTorch
        if _is_nan(row[place]) or not 0 <= rank < len(row) - strange:
            return False
        orders = [arithmetic.order(b, row[place]) for at, b in enumerate(row) if at != place and not _is_nan(b)]
        before, equal, open_ = orders.count(1 if self.largest else -1), orders.count(0), orders.count(None)
        if self.comparison in (("ge", "lt") if self.largest else ("le", "gt")):  # at the rank, or before it
            least, most, wanted = before, before + open_, self.comparison in ("ge", "le")
        else:  # before the rank, and not equal to its element
            least, most, wanted = before + equal + 1, before + equal + open_ + 1, self.comparison in ("gt", "lt")
        if most <= rank:
            return wanted
        return None if least <= rank else not wanted


def _order(arithmetic: Arithmetic, a: Number, b: Number, of_nan: int) -> int | None:
    """Returns the order of two numbers as -1, 0 or 1, with NaN above (of_nan=1) or below (-1) all others.

    Returns None if it is not decided.
    """
    order = arithmetic.order(a, b)
    if order != 2:
        return order
    return (_is_nan(a) - _is_nan(b)) * of_nan


def _is_nan(value: Number) -> bool:
    return isinstance(value, float) and value != value


def candidates(a: Span, largest: bool) -> Tensor:
    """Returns a mask of the elements that may be the largest (or smallest), in rows with more than one such element."""
    low, high = (a.lo, a.hi) if largest else (-a.hi, -a.lo)
    candidate = high >= low.amax(-1, True)
    return candidate & (candidate.sum(-1, True) > 1)


@dataclass(eq=False)
class WhereExtreme(Step):
    """The index of the largest (or smallest) element along the last dimension."""

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
    """Returns positions that are open where `several`, and notes in the run that an open decision exists."""
    if not bool(several.any()):
        return Truths(value)
    run.met_tie = True
    return Truths(value, None if run.opens == "face" else several)


@dataclass(eq=False)
class Ranked(Step):
    """The first elements of the last dimension, in descending (or ascending) order.

    The order statistics of the lower and of the upper ends enclose them.
    """

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
        """Returns a row in order, at least up to the rank `deepest`."""
        strange = [value for value in row if _order(arithmetic, value, value, 1) is not None and value != value]
        ordered = [value for value in row if not any(value is each for each in strange)]

        def compared(a: Number, b: Number) -> int:
            order = arithmetic.order(a, b)
            if order is None:
                raise _Undecided
            return -order if self.largest else order

        try:
            ordered.sort(key=cmp_to_key(compared))
        except _Undecided:  # balls overlap: selecting by extremes encloses the results still
            for end in range(min(deepest + 1, len(ordered))):
                for place in range(len(ordered) - 1, end, -1):
                    pair = ordered[place - 1], ordered[place]
                    ordered[place - 1] = arithmetic.extreme(*pair, self.largest)
                    ordered[place] = arithmetic.extreme(*pair, not self.largest)
        return strange + ordered if self.largest else ordered + strange


class _Undecided(Exception):
    """Raised if the balls of two numbers of a row overlap."""


@dataclass(eq=False)
class RankIndex(Step):
    """The positions of the largest (or smallest) elements along the last dimension, in order.

    Equal elements may have any order, unless the order is `stable`.
    """

    largest: bool = True
    stable: bool = False

    def span(self, run: Run, given: Sequence[Any]) -> Truths:
        [a] = given
        value = self.value(run, [a.mid()])
        low, high = a.lo.gather(-1, value), a.hi.gather(-1, value)
        near = rivals(run.blurred(self.inputs[0], a), exact=not self.stable)
        return _seen(run, value, (near.gather(-1, value) > 1) & ~torch.isnan(low + high))

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        if self.stable:
            return given[0].sort(dim=-1, descending=self.largest, stable=True).indices
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
    """Counts, for each element, the elements of its row whose interval overlaps its own, itself included.

    With exact=False, equal points do not count. The number is that of all intervals that begin below or at its end,
    less that of all intervals that end below its beginning.
    """
    nan, wide = torch.isnan(a.lo), a.lo != a.hi
    lo, hi = (end.masked_fill(nan, math.inf).contiguous() for end in (a.lo, a.hi))
    begin, end = lo.sort(-1).values, hi.sort(-1).values
    found = torch.searchsorted(begin, hi, right=True) - torch.searchsorted(end, lo)
    found = torch.where(hi == math.inf, found - nan.sum(-1, True), found)
    if not exact:  # equal points do not count
        equal = lo.masked_fill(wide, math.inf).sort(-1).values
        alike = torch.searchsorted(equal, lo, right=True) - torch.searchsorted(equal, lo)
        alike = torch.where(lo == math.inf, ((lo == math.inf) & ~wide).sum(-1, True), alike)
        found = torch.where(wide, found, found - alike + 1)
    return found.masked_fill(nan, 0 if exact else 1)


def _rank(arithmetic: Arithmetic, row: Sequence[Number], place: int, largest: bool) -> int | None:
    """Returns how many elements of a row come before one; None if one is equal to it, or if it is not decided."""
    orders = [_order(arithmetic, other, row[place], 1) for at, other in enumerate(row) if at != place]
    if None in orders or 0 in orders:
        return None
    return orders.count(1 if largest else -1)


@dataclass(eq=False)
class AtRank(Step):
    """A scatter to the positions of a `topk`, along the last dimension.

    The inputs are the values that are ranked, the scattered numbers (one for each rank), and the base. An element gets
    the number of its rank, or the element of the base if its rank is too low. An element that has an equal may get the
    number of any rank, or the base.
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


@dataclass(eq=False)
class Positioned(Step):
    """A step that moves or adds elements by positions that the program computes: the first input.

    `inner` does the moving. It reads the positions in place of its constant `stand`. If a position is not decided, a
    picked element may be any along the dimension `axis`. A sum at an undecided position may be any number. Single
    elements use the positions of float64.
    """

    inner: Move | Spread = field(default_factory=lambda: Move(()))
    stand: Plain = field(default_factory=lambda: Plain(()))
    size: int = 0  # of the dimension `axis`
    axis: int = 0  # the dimension that positions count in
    at: Callable[[], Tensor] | None = None  # for a pick: for each element, the flat place of its position; None: adds
    lines: bool = False  # for an addition, True: a position concerns elements of its own line along `axis` alone

    def span(self, run: Run, given: Sequence[Any]) -> Any:
        index, *rest = given
        positions, doubt = _positions(index)
        sub = self.positioned(run, positions)
        found: Any = self.inner.span(sub, rest)
        if doubt is None or run.opens in ("", "face"):
            return found
        if not self.real:
            return Truths(found.value, self._touched(doubt))
        touched = self._touched(doubt)
        if self.at is None:
            return Span(found.lo.masked_fill(touched, -math.inf), found.hi.masked_fill(touched, math.inf))
        [a] = rest
        least = a.lo.amin(self.axis, True).nan_to_num(-math.inf, math.inf, -math.inf).expand_as(a.lo)
        most = a.hi.amax(self.axis, True).nan_to_num(math.inf, math.inf, -math.inf).expand_as(a.hi)
        either = self.inner.span(sub, [Span(least, most)])
        return Span(torch.where(touched, either.lo, found.lo), torch.where(touched, either.hi, found.hi))

    def _touched(self, doubt: Tensor) -> Tensor:
        """Returns a mask of the elements that undecided positions may change."""
        if self.at is not None:
            return doubt.reshape(-1)[self.at().to(doubt.device)].reshape(self.shape)
        return (doubt.any(self.axis, True) if self.lines else doubt.any()).expand(self.shape)

    def positioned(self, run: Run, positions: Tensor) -> Run:
        """Returns a run that gives these positions to the inner step."""
        positions = positions.long()
        positions = torch.where(positions < 0, positions + self.size, positions).clamp(0, max(self.size - 1, 0))
        return replace(run, plain={**run.plain, id(self.stand): positions}, maps={})

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        return self.inner.value(self.positioned(run, given[0]), given[1:])

    def known(self, run: Run) -> tuple[Run, Places]:
        """Returns a run with the positions of float64, and for each element the place of its position."""
        if id(self) not in run.maps:
            face = replace(run, opens="face", maps={})
            places = np.zeros((math.prod(self.shape), 0), dtype=np.int64)
            if self.at is not None:
                places = self.at().reshape(-1, 1).numpy()
            run.maps[id(self)] = self.positioned(run, _positions(face.span_of(self.inputs[0]))[0]), places
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


def _positions(index: Any) -> tuple[Tensor, Tensor | None]:
    """Returns positions as integers and a mask of the undecided ones, from `Truths` or from a `Span` of integers."""
    if isinstance(index, Truths):
        return index.value, index.open
    doubt = index.lo != index.hi
    return index.mid().nan_to_num(0.0, 0.0, 0.0), doubt if bool(doubt.any()) else None
