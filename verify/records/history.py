"""Follows figures over time, from the record files of a folder.

The record files are the source. Reading a record costs 1 to 60 ms, so the figures of each are kept in a small file
in the user's cache. These files can be deleted at any time: a missing, old or corrupt one is made again. A file
that is not a record is named and skipped.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from verify.errors import UsageError, WriteError
from verify.records import part_store
from verify.records.figure import ordered
from verify.records.files import LARGEST, decode, write_atomically
from verify.records.readings import Reading, arch_of, commit_of, inputs, leading, readings
from verify.records.record import SCHEMA, Basis, Run

LAYOUT = 3  # increased when `_Known` changes, so that two versions of verify never share files
EVERY = ""  # the regime of a whole result; its figure is that of the worst regime
SAID = 200  # files between two lines of progress
_NOTHING = (msgspec.Raw(msgspec.msgpack.encode([])),) * 2
RACY = 2_000_000_000  # ns; a file changed this shortly before it was read may change again within one tick of the clock


@dataclass(frozen=True, order=True)
class Series:
    """Identifies a series of comparable figures over time. `regime` is empty for the whole result."""

    arch: str
    kernel: str
    output: str
    dtype: str
    regime: str
    source: str
    gate: str


@dataclass(frozen=True)
class HistoryPoint:
    """Holds one figure of one record."""

    id: str  # digest of the record's file
    value: float
    misrounded: int
    n: int
    basis: Basis
    properties: str
    bits: str
    worst: str
    record: str
    created: str
    commit: str


@dataclass(frozen=True)
class Summary:
    """Summarises a series in one line: its last figure, the run since which it has that value, and the extremes."""

    series: Series
    last: HistoryPoint
    since: HistoryPoint  # the first of the latest runs in a row with exactly this figure
    before: HistoryPoint | None  # the last run with another figure
    count: int
    least: float
    most: float  # NaN if any run had NaN
    finite: float  # the largest finite figure; NaN if there is none
    beside: float  # if the last figure is not finite: the largest finite figure of the last run's regimes; else NaN
    recent: tuple[float, ...]


@dataclass(frozen=True)
class Event:
    """Holds two successive runs with different figures."""

    series: Series
    before: HistoryPoint
    after: HistoryPoint

    @property
    def other_question(self) -> bool:
        """True if the runs measured different things. Then their figures say nothing about a change of the kernel."""
        return self.before.properties != self.after.properties


@dataclass(frozen=True)
class Refresh:
    """Holds the number of files that were read again, and every file that is no record, with the reason."""

    read: int
    skipped: tuple[tuple[str, str], ...]


class _Figure(msgspec.Struct, array_like=True, frozen=True):
    """Holds a kept figure: the fields of `Series` and `HistoryPoint` that do not belong to the whole record."""

    line: tuple[str, str, str, str, str]  # output, dtype, regime, source, gate
    value: float
    misrounded: int
    n: int
    kind: str
    of: int
    seed: int | None
    properties: str
    bits: str
    worst: str


class _Known(msgspec.Struct, frozen=True):
    """Holds the cache entry of one file: the reason why it is no record, or its figures by kernel."""

    name: str
    stamp: str  # state of the file when it was read, by `_stamp`
    seen: int  # time of reading, in ns
    content: str = ""  # SHA-256 of the file
    problem: str = ""
    record: str = ""
    created: str = ""
    arch: str = ""
    commit: str = ""
    kernels: dict[str, tuple[msgspec.Raw, msgspec.Raw]] = {}  # figures of whole results, and of regimes


_Lines = dict[tuple[str, ...], list[tuple[_Known, _Figure]]]


class History:
    """Reads the records of one folder. `kernels` names the kernels whose figures are kept in memory (None: all)."""

    def __init__(
        self, folder: str | os.PathLike[str], *, kernels: Collection[str] | None = None, cache: Path | None = None
    ) -> None:
        self.folder = Path(folder)
        self._wanted = kernels
        if not self.folder.is_dir():
            raise UsageError(f"no folder of records at {self.folder}", hint="verify run --json reports/runs/NAME.json")
        name = hashlib.sha256(os.fsencode(self.folder.resolve())).hexdigest()[:16]
        self._cache = (cache or part_store.cache("history")) / f"{name}-{LAYOUT}-{SCHEMA}"
        self._records: list[_Known] = []
        self._lines: dict[tuple[str, bool], _Lines] = {}
        self.refreshed = Refresh(0, ())

    def refresh(self, progress: Callable[[str], None] = lambda text: None) -> Refresh:
        """Reads the files that changed since they were last read."""
        found, read = [], 0
        files = {_storable(entry.name): entry for entry in os.scandir(self.folder) if _may_be_record(entry)}
        for place, (name, entry) in enumerate(sorted(files.items())):
            if place % SAID == 0:
                progress(f"reading records: {place:,} of {len(files):,}")
            known = self._kept(name)
            if known is None or _stale(known, entry):
                known, read = self._take(name, entry), read + 1
            if known is not None:
                found.append(self._needed(known))
        self._forget(files)
        # A copy of a record counts once.
        self._records = list({known.content: known for known in reversed(found) if not known.problem}.values())
        self._lines.clear()
        self.refreshed = Refresh(read, tuple((known.name, known.problem) for known in found if known.problem))
        return self.refreshed

    def _path(self, name: str) -> Path:
        """Returns the path of the cache entry of a file."""
        return self._cache / hashlib.sha256(name.encode()).hexdigest()[:32]

    def _kept(self, name: str) -> _Known | None:
        """Returns the cache entry of a file; None if it is missing or corrupt."""
        try:
            known = msgspec.msgpack.decode(self._path(name).read_bytes(), type=_Known)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        return known if known.name == name else None

    def _needed(self, known: _Known) -> _Known:
        """Drops the figures of kernels that were not requested: a thousand nights would fill a gigabyte."""
        wanted = known.kernels if self._wanted is None else self._wanted
        kernels = {
            name: (raw[0].copy(), raw[1].copy()) if name in wanted else _NOTHING for name, raw in known.kernels.items()
        }
        return msgspec.structs.replace(known, kernels=kernels)

    def _take(self, name: str, entry: os.DirEntry[str]) -> _Known | None:
        """Reads one file, writes its cache entry and returns it. Returns None if the file is gone."""
        seen = time.time_ns()
        known = _Known(name, "", seen)
        try:
            # Stamp the very file that is read: it may have been replaced since the folder was listed.
            with open(entry.path, "rb") as stream:
                known = _Known(name, _stamp(os.fstat(stream.fileno())), seen)
                data = stream.read(LARGEST + 1)
            if len(data) > LARGEST:
                raise UsageError(f"{name} is larger than any record: more than {LARGEST:,} bytes")
            known = _figures_of(decode(data, source=name), known, hashlib.sha256(data).hexdigest())
        except FileNotFoundError:
            return None
        except OSError as error:
            known = msgspec.structs.replace(known, problem=f"{name} cannot be read: {error.strerror}")
        except UsageError as error:
            known = msgspec.structs.replace(known, problem=error.message)
        with contextlib.suppress(WriteError):  # if nothing can be written there, the next call reads the record again
            write_atomically(self._path(name), msgspec.msgpack.encode(known))
        return known

    def _forget(self, names: Iterable[str]) -> None:
        """Deletes the kept figures of files that are gone."""
        current = {self._path(name).name for name in names}
        with contextlib.suppress(OSError):
            for path in self._cache.iterdir():
                # a name with a dot is a file that another process is writing
                if path.name not in current and not path.name.startswith("."):
                    path.unlink(missing_ok=True)

    def kernels(self) -> list[tuple[str, int, str]]:
        """Returns every kernel with the number of its runs and the date of the last."""
        dates: dict[str, list[str]] = {}
        for known in self._records:
            for kernel in known.kernels:
                dates.setdefault(kernel, []).append(known.created)
        return [(kernel, len(found), max(found)) for kernel, found in sorted(dates.items())]

    def series(
        self, kernel: str, *, output: str = "", dtype: str = "", regime: str | None = EVERY, arch: str = ""
    ) -> list[Series]:
        """Returns the series of a kernel. `regime`: a name, "" for whole results, None for every regime."""
        both = [self._of(kernel, whole) for whole in (True, False) if regime is None or whole == (regime == EVERY)]
        return sorted(
            line
            for found in both
            for line in (Series(known.arch, kernel, *item.line) for [(known, item), *_] in found.values())
            if (not output or line.output == output)
            and (not dtype or line.dtype == dtype)
            and (not arch or line.arch == arch)
            and (regime is None or line.regime == regime)
        )

    def points(self, line: Series) -> list[HistoryPoint]:
        """Returns every figure of a series, the oldest first."""
        key = (line.arch, line.output, line.dtype, line.regime, line.source, line.gate)
        return [_point(known, item) for known, item in self._of(line.kernel, line.regime == EVERY)[key]]

    def summary(self, line: Series, recent: int = 24) -> Summary:
        """Summarises a series."""
        points = self.points(line)
        last, values = points[-1], [point.value for point in points]
        other = [place for place, value in enumerate(values) if not _same(value, last.value)]
        numbers = [value for value in values if not math.isnan(value)]
        return Summary(
            series=line,
            last=last,
            since=points[other[-1] + 1 if other else 0],
            before=points[other[-1]] if other else None,
            count=len(points),
            least=min(numbers, default=math.nan),
            most=max(values, key=ordered),
            finite=_largest(values),
            beside=math.nan if math.isfinite(last.value) or line.regime else self._largest_of_regimes(line, last),
            recent=tuple(values[-recent:]),
        )

    def _largest_of_regimes(self, line: Series, point: HistoryPoint) -> float:
        """Returns the largest finite figure of one run's regimes, for a result whose figure is NaN."""
        regimes = self.series(line.kernel, output=line.output, dtype=line.dtype, regime=None, arch=line.arch)
        alike = [other for other in regimes if other.regime and (other.source, other.gate) == (line.source, line.gate)]
        return _largest(each.value for other in alike for each in self.points(other) if each.id == point.id)

    def events(self, line: Series) -> list[Event]:
        """Returns every pair of successive runs with different figures, the oldest first."""
        points = self.points(line)
        return [
            Event(line, before, after)
            for before, after in itertools.pairwise(points)
            if not _same(before.value, after.value)
        ]

    def _of(self, kernel: str, whole: bool) -> _Lines:
        """Returns the figures of one kernel, of whole results or of regimes, by architecture and line. Oldest first."""
        if (kernel, whole) not in self._lines:
            found: _Lines = {}
            for known in sorted(self._records, key=lambda known: (known.created, known.content)):
                figures = known.kernels.get(kernel, _NOTHING)[0 if whole else 1]
                for item in msgspec.msgpack.decode(figures, type=list[_Figure]):
                    found.setdefault((known.arch, *item.line), []).append((known, item))
            self._lines[kernel, whole] = found
        return self._lines[kernel, whole]


def _figures_of(run: Run, known: _Known, content: str) -> _Known:
    """Returns `known` with a run's figures: one for each regime, and for each whole result that of its worst regime."""
    groups: dict[tuple[str, ...], list[Reading]] = {}
    for item in readings(run):
        if not item.flaw:
            for regime in dict.fromkeys((item.key.regime, EVERY)):
                line = (item.key.kernel, item.key.output, item.key.dtype, regime, item.source, item.gate)
                groups.setdefault(line, []).append(item)
    kernels: dict[str, tuple[list[_Figure], list[_Figure]]] = {}
    for (kernel, *about), items in groups.items():
        item = leading(items)
        basis = (item.basis.kind, item.basis.n, item.basis.seed)
        figures = (item.value, item.figures.misrounded, item.figures.n)
        kernels.setdefault(kernel, ([], []))[0 if about[2] == EVERY else 1].append(
            _Figure(tuple(about), *figures, *basis, item.properties, item.bits, inputs(item.worst))  # type: ignore[arg-type]
        )
    return msgspec.structs.replace(
        known,
        content=content,
        record=run.id,
        created=run.created,
        arch=arch_of(run),
        commit=commit_of(run),
        kernels={name: (_packed(whole), _packed(regimes)) for name, (whole, regimes) in kernels.items()},
    )


def _packed(figures: list[_Figure]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(figures))


def _point(known: _Known, item: _Figure) -> HistoryPoint:
    basis = Basis(kind=item.kind, n=item.of, seed=item.seed)  # type: ignore[arg-type]
    figures = (item.value, item.misrounded, item.n, basis, item.properties, item.bits, item.worst)
    return HistoryPoint(known.content, *figures, known.record, known.created, known.commit)


def _largest(values: Iterable[float]) -> float:
    """Returns the largest finite number; NaN if there is none."""
    return max(filter(math.isfinite, values), default=math.nan)


def _same(first: float, second: float) -> bool:
    """True if two figures are equal; NaN equals NaN."""
    return first == second or (math.isnan(first) and math.isnan(second))


def _may_be_record(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.name.endswith((".json", ".json.gz")) and not entry.name.startswith(".") and entry.is_file()
    except OSError:
        return False


def _stale(known: _Known, entry: os.DirEntry[str]) -> bool:
    """True if a file changed since it was read, or may have.

    A change within the same tick of the clock leaves the stamp equal, so a file read right after a change is stale.
    """
    try:
        stamp = _stamp(entry.stat())
    except OSError:
        return True
    return known.stamp != stamp or int(stamp.split()[2]) > known.seen - RACY


def _stamp(status: os.stat_result) -> str:
    """Returns a text that differs after every change of the file."""
    # ctime cannot be set back, and a file that is replaced has another inode.
    return f"{status.st_mtime_ns} {status.st_size} {status.st_ctime_ns} {status.st_ino}"


def _storable(name: str) -> str:
    """Returns a file name as text that can be kept and printed, even if its bytes are not valid text."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
