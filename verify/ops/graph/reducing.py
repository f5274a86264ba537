"""Defines the steps that add up: reductions, products of matrices, scattered sums and cumulative sums."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verify.ops.graph import spans
from verify.ops.graph.arithmetic import Arithmetic
from verify.ops.graph.elementwise import Map
from verify.ops.graph.steps import ABSENT, NOTHING, Places, Run, Step, offsets, rows_of, strides_of


@dataclass(eq=False)
class Reduce(Step):
    """A reduction over dimensions: "sum", "amax", "amin", "product" (of one dimension) or "any" (of booleans)."""

    function: str = "sum"
    dims: tuple[int, ...] = ()
    keep: bool = False

    @property
    def reads(self) -> tuple[Step, ...]:
        """Returns the inputs, but for a sum of exponentials the exponents.

        Most terms of such a sum are too small to change any bit of it, and need not be evaluated.
        """
        [a] = self.inputs
        return a.inputs if self.function == "sum" and isinstance(a, Map) and a.function == "exp" else self.inputs

    def span(self, run: Run, given: Sequence[Any]) -> Any:
        [a] = given
        if not self.dims:
            return a
        if self.function == "sum":
            return spans.total(a, self.dims, self.keep)
        if self.function == "product":
            found = spans.product(a, self.dims[0])
            return found.moved(lambda end: end.unsqueeze(self.dims[0])) if self.keep else found
        found = super().span(run, given)  # an extreme selects a number
        unknown = spans.unknown_of(a) if self.real else None
        if unknown is None:
            return found
        unknown = unknown.sum(self.dims, self.keep) > 0
        return spans.Span(found.lo.masked_fill(unknown, -math.inf), found.hi.masked_fill(unknown, math.inf))

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        [a] = given
        if not self.dims:
            return a
        if self.function == "any":
            return a.sum(self.dims, self.keep) > 0
        if self.function == "product":
            return a.prod(self.dims[0], self.keep)
        made: Tensor = getattr(torch, self.function)(a, self.dims, self.keep)
        return made

    def least_read(self, count: int) -> int:
        return count * math.prod(self.inputs[0].shape[dim] for dim in self.dims)

    def sources(self, run: Run, wanted: Places) -> list[Places]:
        shape = self.inputs[0].shape
        kept = [dim for dim in range(len(shape)) if dim not in self.dims]
        outer = tuple(shape[dim] for dim in kept)
        inner = tuple(shape[dim] for dim in self.dims)
        strides = strides_of(shape)
        base = offsets(wanted, outer, [strides[dim] for dim in kept])
        step = offsets(np.arange(math.prod(inner)), inner, [strides[dim] for dim in self.dims])
        return [base[:, None] + step[None, :]]

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        rows = rows_of(given[0], len(wanted))
        if self.function == "sum":
            total = arithmetic.total if self.reads is self.inputs else arithmetic.total_of_exponentials
            return [total(row) for row in rows]
        if self.function == "any":
            return [True in row for row in rows]
        if self.function == "product":
            return [reduce(arithmetic.multiply, row) if row else arithmetic.finite(1.0) for row in rows]
        return [arithmetic.extreme_of(row, self.function == "amax") if row else arithmetic.finite(1.0) for row in rows]


@dataclass(eq=False)
class Contract(Step):
    """A product of batches of matrices, (b, m, k) @ (b, k, n)."""

    def span(self, run: Run, given: Sequence[Any]) -> spans.Span:
        return spans.contract(*given)

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        return given[0] @ given[1]

    def _lines(self, wanted: Places) -> tuple[Places, Places, Places, Places]:
        """Returns the needed rows and columns, each once, and for each element the numbers of its row and column."""
        _, rows, _ = self.inputs[0].shape
        columns = self.inputs[1].shape[2]
        row, column = np.divmod(wanted, columns)
        first, of_first = np.unique(row, return_inverse=True)
        second, of_second = np.unique(row // rows * columns + column, return_inverse=True)
        return first, second, of_first, of_second

    def sources(self, run: Run, wanted: Places) -> list[Places]:
        _, inner, columns = self.inputs[1].shape
        first, second, _, _ = self._lines(wanted)
        each = np.arange(inner)[None, :]
        of, column = np.divmod(second, columns)
        return [first[:, None] * inner + each, (of[:, None] * inner + each) * columns + column[:, None]]

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        if not self.inputs[0].shape[2]:
            return [arithmetic.finite(0.0)] * len(wanted)
        rows, columns, of_rows, of_columns = self._lines(wanted)
        lines = rows_of(given[0], len(rows)), rows_of(given[1], len(columns))
        return arithmetic.dots(*lines, list(zip(of_rows.tolist(), of_columns.tolist(), strict=True)))


@dataclass(eq=False)
class Spread(Step):
    """The transpose of a `Move`: adds each element of the input to one place of the result.

    `places(fixed)` returns the place for each element; a negative place drops it. If there is a second input, its
    elements are the start of the sums.
    """

    places: Callable[[list[Tensor]], Tensor] = lambda fixed: fixed[0]
    by: tuple[Step, ...] = ()  # the steps whose integers `places` receives
    kept: int = 0  # number of leading dimensions over which it repeats; `places` does not have them
    whole: bool = False  # whole slices move, by the first of `by`: the dimensions after that one stay as they are

    def _destination(self, run: Run) -> Tensor:
        """Returns the flat place in the result of each element of the input."""
        inner = self.places([run.fixed(each) for each in self.by]).reshape(-1)
        outer, size = math.prod(self.shape[: self.kept]), math.prod(self.shape[self.kept :])
        if outer == 1:
            return inner
        starts = torch.arange(outer, device=inner.device)[:, None] * size
        return torch.where(inner < 0, inner, starts + inner).reshape(-1)

    def span(self, run: Run, given: Sequence[Any]) -> spans.Span:
        a = given[0]
        where, size = self._destination(run), math.prod(self.shape)
        most = int(torch.bincount(where[where >= 0], minlength=size).max()) if size and where.numel() else 0
        sizes = self.gathered(run, a.size())
        slack = sizes * (most * 2.0**-52) if most > 1 else torch.zeros_like(sizes)
        lo = self.gathered(run, a.lo)
        hi = lo if a.is_point else self.gathered(run, a.hi)
        strange = ~torch.isfinite(sizes)
        found = spans.Span((lo - slack).masked_fill(strange, -math.inf), (hi + slack).masked_fill(strange, math.inf))
        return spans.add(given[1], found) if len(given) > 1 else found

    def gathered(self, run: Run, values: Tensor) -> Tensor:
        """Adds up the values that go to each place, in float64."""
        size, where = math.prod(self.shape), self._destination(run)
        where = torch.where(where < 0, size, where)
        room = torch.zeros(size + 1, dtype=torch.float64, device=values.device)
        return room.index_add_(0, where, values.reshape(-1))[:size].reshape(self.shape)

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        made = self.gathered(run, given[0])
        return made + given[1] if len(given) > 1 else made

    def _lists(self, run: Run) -> tuple[Places, Places]:
        """Returns the places of the input sorted by destination, and where each destination's part begins."""
        if id(self) not in run.maps:
            where = self._destination(run).cpu().numpy()
            order = np.argsort(where, kind="stable")
            starts = np.searchsorted(where[order], np.arange(math.prod(self.shape) + 1))
            run.maps[id(self)] = (order, starts)
        return run.maps[id(self)]  # type: ignore[no-any-return]

    def sources(self, run: Run, wanted: Places) -> list[Places]:
        order, starts = self._lists(run)
        counts = starts[wanted + 1] - starts[wanted]
        most = int(counts.max()) if len(counts) else 0
        at = starts[wanted][:, None] + np.arange(most)[None, :]
        mine = np.arange(most)[None, :] < counts[:, None]
        rows = np.where(mine, order[np.where(mine, at, 0)] if len(order) else 0, NOTHING)
        return [rows, wanted] if len(self.inputs) > 1 else [rows]

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        rows = rows_of(given[0], len(wanted))
        sums = [arithmetic.total([value for value in row if value is not ABSENT]) for row in rows]
        if len(given) > 1:
            sums = [arithmetic.add(first, each) for first, each in zip(given[1], sums, strict=True)]
        return sums


@dataclass(eq=False)
class Running(Step):
    """A cumulative sum over a dimension."""

    dim: int = 0

    def span(self, run: Run, given: Sequence[Any]) -> spans.Span:
        return spans.running(given[0], self.dim)

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        return given[0].cumsum(self.dim)

    def _stretches(self, wanted: Places) -> tuple[Places, Places, Places, int]:
        """Splits the lines of the wanted places into stretches, each from the place after the last wanted one.

        Returns the order of the wanted places, the first place and the length of each one's stretch, and the stride.
        """
        stride, count = strides_of(self.shape)[self.dim], self.shape[self.dim]
        along = wanted // stride % count
        lines = wanted - along * stride
        order = np.lexsort((along, lines))
        along, lines = along[order], lines[order]
        first = np.ones(len(order), dtype=bool)
        first[1:] = lines[1:] != lines[:-1]
        begins = np.where(first, 0, np.roll(along, 1) + 1)
        return order, lines + begins * stride, along + 1 - begins, stride

    def sources(self, run: Run, wanted: Places) -> list[Places]:
        _, begins, counts, stride = self._stretches(wanted)
        along = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        return [np.repeat(begins, counts) + along * stride]

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        order, begins, counts, stride = self._stretches(wanted)
        along = (begins // stride % self.shape[self.dim]).tolist()
        found: list[Any] = [None] * len(wanted)
        values, sums = iter(given[0]), list[Any]()
        for at, begin, count in zip(order.tolist(), along, counts.tolist(), strict=True):
            terms = list(itertools.islice(values, count))
            sums = [arithmetic.total(terms if begin == 0 else [*sums, *terms])]
            found[at] = sums[0]
        return found
