"""Lines up the figures of several records: for each result one row, with its figure in every record."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from verify.records.figure import ordered
from verify.records.readings import APART, Reading, leading, readings
from verify.records.record import Run


@dataclass(frozen=True)
class Change:
    """Holds two figures of successive records that differ."""

    before: Reading
    after: Reading

    @property
    def other_cases(self) -> bool:
        """True if the records measured different cases. Then the figures say nothing about a change of the kernel."""
        return _cases(self.before) != _cases(self.after)

    @property
    def worse(self) -> bool:
        """True if the later error is larger. NaN is the largest."""
        return leading([self.before, self.after]) is self.after


@dataclass(frozen=True)
class Line:
    """Holds the largest error of one result in each record, without infinite and NaN inputs. None: not measured."""

    arch: str
    kernel: str
    output: str
    dtype: str
    source: str
    gate: str
    figures: tuple[Reading | None, ...]

    @property
    def measured(self) -> list[Reading]:
        """Returns the figures of the records that have this result."""
        return [figure for figure in self.figures if figure is not None]

    @property
    def changes(self) -> list[Change]:
        """Returns every pair of successive figures that differ, the oldest first. NaN equals NaN."""
        pairs = itertools.pairwise(self.measured)
        return [Change(one, two) for one, two in pairs if ordered(one.value) != ordered(two.value)]


def by_record(runs: Sequence[Run]) -> list[Line]:
    """Returns a line for each result of the records, in the order of these."""
    found: dict[tuple[str, str, str, str, str, str], dict[int, list[Reading]]] = {}
    for place, run in enumerate(runs):
        for item in readings(run):
            if not item.flaw and item.key.regime not in APART:
                line = (item.key.arch, item.key.kernel, item.key.output, item.key.dtype, item.source, item.gate)
                found.setdefault(line, {}).setdefault(place, []).append(item)
    places = range(len(runs))
    return [
        Line(*line, tuple(leading(items[place]) if place in items else None for place in places))
        for line, items in sorted(found.items())
    ]


def _cases(reading: Reading) -> tuple[str, int | None]:
    return reading.properties, reading.basis.seed
