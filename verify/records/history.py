"""Lines up the figures of several records: for each result one row, with its figure in every record."""

from __future__ import annotations

import contextlib
import itertools
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from verify.errors import UsageError
from verify.records import files
from verify.records.figure import ordered
from verify.records.readings import APART, Reading, arch_of, leading, readings
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


class _Head(msgspec.Struct):
    """Holds what tells which records are read: the others of a folder cost a tenth of the time."""

    created: str
    backend: str
    environment: dict[str, Any]


def latest(folder: str | os.PathLike[str], now: Run, most: int) -> list[Run]:
    """Returns the latest records of a folder before a run, on its architecture, the oldest first. Skips other files."""
    heads = []
    for path in Path(folder).iterdir():
        if path.name.endswith((".json", ".json.gz")) and not path.name.startswith("."):
            with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError, zlib.error, RecursionError):
                head = msgspec.json.decode(files.expanded(path.read_bytes()), type=_Head)
                alike = (head.backend, head.environment.get("arch")) == (now.backend, now.environment.get("arch"))
                if alike and head.created < now.created:
                    heads.append((head.created, path))
    found: dict[tuple[str, str], Run] = {}  # a copy of a record counts once
    for _, path in sorted(heads, reverse=True):
        if len(found) == most:
            break
        with contextlib.suppress(UsageError):
            run = files.load(path)
            if run.id != now.id and arch_of(run) == arch_of(now):
                found.setdefault((run.created, run.id), run)
    return [found[at] for at in sorted(found)]


def _cases(reading: Reading) -> tuple[str, int | None]:
    return reading.properties, reading.basis.seed
