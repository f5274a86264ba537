"""Figures over time. The record files of a folder are the truth; an sqlite index beside the user's caches answers fast.

The index can be thrown away at any moment: what is missing, changed or corrupt is read again from the files. A file
that is not a record is named and skipped. One process at a time holds the index (a lock file), so that rebuilding it
takes nothing away from another.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from verify.errors import UsageError
from verify.records.files import decode
from verify.records.kept import cache
from verify.records.readings import Reading, inputs, leading, readings
from verify.records.record import SCHEMA, Basis, Run

INDEX = 1  # raised when the tables change: the old index is left to the old version
EVERY = ""  # the regime of a whole result: its worst figure, wherever it is
BATCH = 200  # files per transaction: a run that is killed loses at most these
LARGEST = 1 << 28  # bytes: nothing that is larger is a record
RACY = 2_000_000_000  # ns: a file changed this shortly before it was read may change again within one tick

_Line = tuple[str, ...]  # arch, kernel, output, dtype, regime, source, gate

_TABLES = """
CREATE TABLE IF NOT EXISTS files (
    name TEXT PRIMARY KEY, stamp TEXT NOT NULL, seen INTEGER NOT NULL, content BLOB NOT NULL, problem TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS files_content ON files (content);
CREATE TABLE IF NOT EXISTS records (
    id INTEGER PRIMARY KEY, content BLOB UNIQUE NOT NULL, record TEXT NOT NULL, created TEXT NOT NULL,
    revision TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS series (
    id INTEGER PRIMARY KEY, arch TEXT NOT NULL, kernel TEXT NOT NULL, output TEXT NOT NULL, dtype TEXT NOT NULL,
    regime TEXT NOT NULL, source TEXT NOT NULL, gate TEXT NOT NULL,
    UNIQUE (kernel, arch, output, dtype, regime, source, gate)
);
CREATE TABLE IF NOT EXISTS points (
    series INTEGER NOT NULL, created TEXT NOT NULL, record INTEGER NOT NULL, value REAL, misrounded INTEGER NOT NULL,
    n INTEGER NOT NULL, kind TEXT NOT NULL, seed INTEGER, of INTEGER NOT NULL, properties TEXT NOT NULL,
    bits TEXT NOT NULL, worst TEXT NOT NULL,
    PRIMARY KEY (series, created, record)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS points_record ON points (record);
"""

_FINITE = "max(CASE WHEN value < 1e999 THEN value END)"  # a NaN is stored as NULL, 1e999 is infinity


@dataclass(frozen=True)
class Series:
    """What a line of figures is about; `regime` is empty for the whole result."""

    id: int
    arch: str
    kernel: str
    output: str
    dtype: str
    regime: str
    source: str
    gate: str


@dataclass(frozen=True)
class Point:
    """One figure of one record. A NaN is a NaN here too."""

    id: int  # of the record, in this index
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
    """A series in one line: its last figure, since when it is that, and the extremes."""

    series: Series
    last: Point
    since: Point  # the first of the latest runs with this very figure
    before: Point | None  # the last run with another figure
    count: int
    least: float
    most: float  # NaN if there ever was one
    finite: float  # the largest that is a number; NaN if none is
    beside: float  # the largest number among the regimes of the last run, where its figure is none; else NaN
    recent: tuple[float, ...]


@dataclass(frozen=True)
class Event:
    """A run whose figure differs from the run before."""

    series: Series
    before: Point
    after: Point

    @property
    def other_question(self) -> bool:
        """Whether something else was measured, so that the figures say nothing about the kernel."""
        return self.before.properties != self.after.properties


@dataclass(frozen=True)
class Refresh:
    """What bringing the index up to date did."""

    read: int
    removed: int
    skipped: tuple[tuple[str, str], ...]  # every file that is no record, with the reason
    rebuilt: str = ""  # why the old index was thrown away


class History:
    """The records of one folder. Use as a context: the index is locked while it is open."""

    def __init__(self, folder: str | os.PathLike[str], *, cache: Path | None = None) -> None:
        self.folder = Path(folder)
        self._cache = cache
        self._stack = contextlib.ExitStack()
        self._path: Path | None = None
        self._known: dict[_Line, int] = {}
        self.refreshed = Refresh(0, 0, ())

    def __enter__(self) -> History:
        if not self.folder.is_dir():
            raise UsageError(f"no folder of records at {self.folder}", hint="verify run --json reports/runs/NAME.json")
        with contextlib.ExitStack() as stack:
            self._path = self._locked(stack)
            self._db = self._connect(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # -- the index --------------------------------------------------------------------------------------

    def _locked(self, stack: contextlib.ExitStack) -> Path | None:
        """The path of the index, locked until the stack is closed; None where no file can be kept."""
        name = hashlib.sha256(os.fsencode(self.folder.resolve())).hexdigest()[:16]
        path = (self._cache or cache_folder()) / f"{name}-{INDEX}-{SCHEMA}.sqlite"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(path.with_suffix(".lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            return None
        return path

    def _connect(self, stack: contextlib.ExitStack) -> sqlite3.Connection:
        """An index with the right tables; a corrupt one is replaced, and no place to keep one is no reason to fail."""
        if self._path is not None:
            for attempt in (1, 2):
                try:
                    return stack.enter_context(contextlib.closing(_open(self._path)))
                except (sqlite3.DatabaseError, OSError):
                    if attempt == 1:
                        _remove(self._path)
        self._path = None
        return stack.enter_context(contextlib.closing(_open(None)))

    def refresh(self, progress: Callable[[str], None] = lambda text: None) -> Refresh:
        """Bring the index up to date with the files; a corrupt index is built again from nothing."""
        try:
            self.refreshed = self._refresh(progress)
        except sqlite3.DatabaseError as error:
            self._rebuild()
            done = self._refresh(progress)
            self.refreshed = Refresh(done.read, done.removed, done.skipped, rebuilt=str(error))
        return self.refreshed

    def _rebuild(self) -> None:
        """Start from an empty index, on disk if that works."""
        self._db.close()
        if self._path is not None:
            _remove(self._path)
        self._db = self._connect(self._stack)
        self._known.clear()

    def _refresh(self, progress: Callable[[str], None]) -> Refresh:
        present = {name: (stamp, path) for name, stamp, path in self._scan()}
        known = {name: (stamp, seen) for name, stamp, seen in self._db.execute("SELECT name, stamp, seen FROM files")}
        gone = [name for name in known if name not in present]
        stale = [
            name
            for name, (stamp, _) in present.items()
            if name not in known or known[name][0] != stamp or _racy(stamp, known[name][1])
        ]
        if gone:
            with self._transaction():
                self._db.executemany("DELETE FROM files WHERE name = ?", [(name,) for name in gone])
        for start in range(0, len(stale), BATCH):
            progress(f"reading records: {start:,} of {len(stale):,}")
            with self._transaction():
                for name in stale[start : start + BATCH]:
                    self._take(name, *present[name])
        if gone or stale:
            self._drop_orphans()
        skipped = self._db.execute("SELECT name, problem FROM files WHERE problem <> '' ORDER BY name").fetchall()
        return Refresh(len(stale), len(gone), tuple(skipped))

    def _scan(self) -> Iterator[tuple[str, str, str]]:
        """The files that may be records: name, all that changes when their content does, path."""
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith((".json", ".json.gz")) and not entry.name.startswith("."):
                    with contextlib.suppress(OSError):  # removed meanwhile, or a link to nothing
                        if entry.is_file():
                            yield _storable(entry.name), _stamp(entry.stat()), entry.path

    def _take(self, name: str, stamp: str, path: str) -> None:
        """Read one file. Content that is known already is not decoded again."""
        problem, content, seen = "", b"", time.time_ns()
        try:
            # of the very bytes that are read: the file may have been replaced since the scan
            with open(path, "rb") as stream:
                stamp = _stamp(os.fstat(stream.fileno()))
                data = stream.read(LARGEST + 1)
            if len(data) > LARGEST:
                raise UsageError(f"larger than any record: more than {LARGEST:,} bytes")
            content = hashlib.sha256(data).digest()
            if self._db.execute("SELECT 1 FROM records WHERE content = ?", (content,)).fetchone() is None:
                self._store(content, decode(data, source=name))
        except FileNotFoundError:
            return
        except OSError as error:
            problem = f"{name} cannot be read: {error.strerror}"
        except UsageError as error:
            problem = error.message
        self._db.execute(
            "INSERT INTO files VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET "
            "stamp = excluded.stamp, seen = excluded.seen, content = excluded.content, problem = excluded.problem",
            (name, stamp, seen, content, problem),
        )

    def _store(self, content: bytes, run: Run) -> None:
        found = list(readings(run))
        commit = found[0].commit if found else ""
        rows: list[tuple[object, ...]] = []
        cursor = self._db.execute(
            "INSERT INTO records (content, record, created, revision) VALUES (?, ?, ?, ?)",
            (content, run.id, run.created, commit),
        )
        record = cursor.lastrowid
        for names, item in _lines(found).items():
            figures = item.figures
            rows.append(
                (
                    self._series(names),
                    run.created,
                    record,
                    _stored(item.value),
                    figures.misrounded,
                    figures.n,
                    item.basis.kind,
                    item.basis.seed,
                    item.basis.n,
                    item.properties,
                    item.bits,
                    inputs(item.worst),
                )
            )
        self._db.executemany(f"INSERT OR REPLACE INTO points VALUES ({', '.join('?' * 12)})", rows)

    def _series(self, names: _Line) -> int:
        columns = "arch, kernel, output, dtype, regime, source, gate"
        if not self._known:
            for place, *known in self._db.execute(f"SELECT id, {columns} FROM series"):
                self._known[tuple(known)] = place
        found = self._known.get(names)
        if found is None:
            cursor = self._db.execute(f"INSERT INTO series ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", names)
            assert cursor.lastrowid is not None
            found = self._known[names] = cursor.lastrowid
        return found

    def _drop_orphans(self) -> None:
        """Forget records that no file holds any more."""
        with self._transaction():
            orphans = self._db.execute(
                "SELECT id FROM records WHERE content NOT IN (SELECT content FROM files)"
            ).fetchall()
            self._db.executemany("DELETE FROM points WHERE record = ?", orphans)
            self._db.executemany("DELETE FROM records WHERE id = ?", orphans)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._known.clear()  # lines that were added with the transaction are gone with it
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    # -- questions --------------------------------------------------------------------------------------

    def kernels(self) -> list[tuple[str, int, str]]:
        """Every kernel with the number of its runs and the date of the last."""
        query = (
            "SELECT kernel, count(DISTINCT record), max(created) FROM series JOIN points ON series.id = points.series "
            "WHERE regime = '' GROUP BY kernel ORDER BY kernel"
        )
        return [(kernel, count, created) for kernel, count, created in self._db.execute(query)]

    def series(
        self, kernel: str, *, output: str = "", dtype: str = "", regime: str | None = EVERY, arch: str = ""
    ) -> list[Series]:
        """The lines of a kernel. `regime`: a name, "" for whole results, None for every regime."""
        query = "SELECT id, arch, kernel, output, dtype, regime, source, gate FROM series WHERE kernel = ?"
        values: list[object] = [kernel]
        for name, wanted in (("output", output or None), ("dtype", dtype or None), ("arch", arch or None)):
            if wanted is not None:
                query += f" AND {name} = ?"
                values.append(wanted)
        if regime is not None:
            query += " AND regime = ?"
            values.append(regime)
        query += " AND EXISTS (SELECT 1 FROM points WHERE series = series.id)"
        return [
            Series(*row) for row in self._db.execute(f"{query} ORDER BY arch, output, dtype, regime, source", values)
        ]

    def summary(self, line: Series, recent: int = 24) -> Summary:
        """A line in short."""
        last, *rest = self._points(line, "", (), f"ORDER BY points.created DESC, points.record DESC LIMIT {recent:d}")
        latest = "ORDER BY points.created DESC, points.record DESC LIMIT 1"
        other = self._points(line, "AND value IS NOT ?", (_stored(last.value),), latest)
        before = other[0] if other else None
        after = "" if before is None else "AND (points.created, points.record) > (?, ?)"
        edge = () if before is None else (before.created, before.id)
        [since] = self._points(line, after, edge, "ORDER BY points.created, points.record LIMIT 1")
        count, least, most, broken, finite = self._db.execute(
            f"SELECT count(*), min(value), max(value), count(*) - count(value), {_FINITE} FROM points WHERE series = ?",
            (line.id,),
        ).fetchone()
        return Summary(
            series=line,
            last=last,
            since=since,
            before=before,
            count=count,
            least=math.nan if least is None else least,
            most=math.nan if broken or most is None else most,
            finite=math.nan if finite is None else finite,
            beside=math.nan if math.isfinite(last.value) or line.regime else self._largest_of_regimes(line, last),
            recent=tuple(item.value for item in reversed([last, *rest])),
        )

    def _largest_of_regimes(self, line: Series, point: Point) -> float:
        """The largest number that any regime of one run has: one NaN takes the place of the whole figure."""
        (found,) = self._db.execute(
            f"SELECT {_FINITE} FROM points JOIN series ON series.id = points.series WHERE points.record = ?"
            " AND regime != ? AND kernel = ? AND arch = ? AND output = ? AND dtype = ? AND source = ? AND gate = ?",
            (point.id, EVERY, line.kernel, line.arch, line.output, line.dtype, line.source, line.gate),
        ).fetchone()
        return math.nan if found is None else float(found)

    def events(self, line: Series) -> list[Event]:
        """Every run whose figure differs from the one before, the oldest first."""
        found: list[Event] = []
        before: Point | None = None
        for point in self.points(line):
            if before is not None and not _same(before.value, point.value):
                found.append(Event(line, before, point))
            before = point
        return found

    def first(self, line: Series) -> Point:
        """The oldest figure of a line."""
        return self._points(line, "", (), "ORDER BY points.created, points.record LIMIT 1")[0]

    def points(self, line: Series) -> list[Point]:
        """Every figure of a line, the oldest first."""
        return self._points(line, "", (), "ORDER BY points.created, points.record")

    def _points(self, line: Series, where: str, values: Iterable[object], order: str) -> list[Point]:
        query = (
            "SELECT points.record, value, misrounded, n, kind, of, seed, properties, bits, worst, "
            "records.record, points.created, revision FROM points JOIN records ON records.id = points.record "
            "WHERE series = ? "
        )
        found = []
        for row in self._db.execute(f"{query} {where} {order}", (line.id, *values)):
            place, value, misrounded, n, kind, of, seed, *rest = row
            number = math.nan if value is None else value
            found.append(Point(place, number, misrounded, n, Basis(kind=kind, n=of, seed=seed), *rest))
        return found


def cache_folder() -> Path:
    """Where indexes are kept: they are caches, and stay out of the project."""
    return cache("history")


def _lines(found: Iterable[Reading]) -> dict[_Line, Reading]:
    """Readings by line; each result has one more line, of its worst regime."""
    groups: dict[_Line, list[Reading]] = {}
    for item in found:
        if item.flaw:
            continue
        key = item.key
        for regime in dict.fromkeys((key.regime, EVERY)):
            name = (key.arch, key.kernel, key.output, key.dtype, regime, item.source, item.gate)
            groups.setdefault(name, []).append(item)
    return {name: leading(items) for name, items in groups.items()}


def _open(path: Path | None) -> sqlite3.Connection:
    """A connection with the tables of this version. Raises sqlite3.DatabaseError when the file is not such an index."""
    database = sqlite3.connect(":memory:" if path is None else path, timeout=30.0, isolation_level=None)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.executescript(_TABLES)
        database.execute("SELECT name, stamp, seen, content, problem FROM files LIMIT 1").fetchone()
    except BaseException:
        database.close()
        raise
    return database


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(OSError):
            os.unlink(f"{path}{suffix}")


def _stamp(status: os.stat_result) -> str:
    # ctime cannot be set back, and a file that is replaced has another inode
    return f"{status.st_mtime_ns} {status.st_size} {status.st_ctime_ns} {status.st_ino}"


def _racy(stamp: str, seen: int) -> bool:
    """Whether the file was read so soon after its last change that one more change would not show in the stamp."""
    return int(stamp.split()[2]) > seen - RACY


def _storable(name: str) -> str:
    """A file name as text that sqlite takes, whatever bytes it has."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _stored(value: float) -> float | None:
    """As sqlite keeps it: it has no NaN."""
    return None if math.isnan(value) else value


def _same(first: float, second: float) -> bool:
    return first == second or (math.isnan(first) and math.isnan(second))
