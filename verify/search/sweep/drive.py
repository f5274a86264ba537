"""A whole sweep from the parent's side: spaces shared out in spans of chunks, merged, kept, recorded.

The parent imports no torch. A worker gets its share of the unfinished chunks and returns its findings after two
seconds. Off the fused route the time of a chunk is not known before: the first span of a space is one chunk, the next
ones grow while quick. The parent only counts chunks; partial results are merged where the record is made. A worker that
finds no chunk left makes the records, result by result, so that all workers end together.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from verify.backends import named
from verify.declare.requests import declared_by
from verify.declare.target import Declared, Target
from verify.errors import SPENT, UsageError
from verify.measure.source import NoResult, Source, Work, collect, crashes
from verify.records.merge import together
from verify.records.part_store import SETTINGS, PartStore
from verify.records.record import Gap, KernelRun, Run
from verify.search.sweep.partial import Outline, Partial
from verify.search.sweep.requests import ListSpaces, RecordSweep, Spaces, SweepChunks
from verify.search.sweep.space import Space, left_over, merged
from verify.workers.pool import Pool
from verify.workers.process import START_SECONDS
from verify.workers.requests import About

SPAN_SECONDS = 2.0  # after which a worker hands over what it has done
MOST = 1024  # chunks in a span
GROWTH = 8  # a span that proved quick is followed by one up to so many times as long
VERSION = 2  # of partial results
ANOTHER = "rerun without --resume, or name another file"
KEPT = 16  # partial results of a space that are kept apart
# of the environment: no bit of a result hangs on them
_VOLATILE = ("platform", "cpu", "python", "numpy", "probes", "commit", "dirty")


@dataclass(kw_only=True)
class SweepSettings(Work):
    """Settings of a sweep. `jobs` 0: one on a GPU, one per core on the interpreter."""

    spaces: ListSpaces  # which there are to be
    curve: bool = True
    contain: bool = False
    progress: Callable[[Space, int, int], None] = lambda space, done, total: None  # points of this space


class InterruptedSweepError(KeyboardInterrupt):
    """Ctrl-C. `path` is the file that holds what was done."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path


Span = tuple[int, int]  # chunks of a space: the first, and the first that is not taken


@dataclass(eq=False)
class _SweptSpace:
    """One space: what of it is done, what is at workers and what is left."""

    space: Space
    reference: str
    pending: list[Span] = field(default_factory=list)
    flying: dict[Span, int] = field(default_factory=dict)  # spans at workers, with the chunks still to do
    found: list[bytes] = field(default_factory=list)  # partial results, encoded
    chunks: list[Span] = field(default_factory=list)  # that they cover
    recorded: dict[str, KernelRun | None] = field(default_factory=dict)  # by result; None while it is made
    failed: NoResult | None = None  # why it is given up
    seconds: float = 0.0
    most: int = 0  # chunks taken at a time, by any worker

    def __post_init__(self) -> None:
        self.most = self.most or (MOST if self.reference.startswith("fused") else 1)

    @property
    def done(self) -> int:
        """Points covered."""
        return sum(self.space.chunk(high - 1)[1] - self.space.chunk(low)[0] for low, high in self.chunks)

    @property
    def unfinished(self) -> int:
        """Chunks that are not done yet."""
        return 0 if self.failed else sum(high - low for low, high in self.pending) + sum(self.flying.values())

    def take(self, share: int) -> Span | None:
        """The next span, if any is left. What would be left of it is taken too, where that is little."""
        if self.failed or not self.pending:
            return None
        low, high = self.pending.pop(0)
        share = min(share, self.most)
        end = high if high - low <= share + share // 4 else low + share
        if end < high:
            self.pending.insert(0, (end, high))
        self.flying[low, end] = end - low
        return low, end

    def land(self, span: Span, found: bytes, seconds: float) -> None:
        """Keep what came of a span after some seconds; the chunks that it leaves out are pending again."""
        outline, (low, high) = Outline.decode(found), span
        end = max((stop for _, stop in outline.chunks), default=low)
        if outline.chunks != [(low, end)] or not low < end <= high:
            raise RuntimeError(f"asked for the chunks {low} to {high - 1}, a worker answered with {outline.chunks}")
        self.chunks = merged([*self.chunks, (low, end)])
        self.found.append(found)
        if len(self.found) > KEPT:
            self.found = [self.whole().encode()]
        if end < high:
            self.pending.insert(0, (end, high))
        if self.most < MOST:
            within = int(SPAN_SECONDS * (end - low) / max(seconds, 1e-3))
            self.most = max(1, min(within, GROWTH * (end - low), MOST))

    def whole(self) -> Partial:
        """Everything found, as one."""
        whole, *others = (Partial.decode(item) for item in self.found)
        for other in others:
            whole = whole.merge(other)
        return whole

    def next_result(self) -> str | None:
        """A result whose record can be made and is not yet."""
        if self.failed or self.pending or self.flying:
            return None
        return next((name for name in self.space.results if name not in self.recorded), None)


def sweep(settings: SweepSettings, command: str) -> Run:
    """Sweep every kernel of every target; InterruptedSweepError on Ctrl-C."""
    return collect(_Sharing(settings), command)


def _declared(pool: Pool, targets: Sequence[str]) -> dict[str, Declared]:
    """What the sources of the targets declare, and PyTorch in the place of one of their kernels, by target."""
    parsed = [Target.parse(target) for target in targets]
    asked = dict.fromkeys(str(target) if target.stands_in else target.source for target in parsed)
    return {kernel.target: kernel for target in asked for kernel in declared_by(pool, target)}


def _spaces(pool: Pool, settings: SweepSettings) -> Spaces:
    """All spaces in order, and the digests of their sources."""
    found = pool.ask(settings.spaces, timeout=START_SECONDS)
    settings.usage += [f"not swept: {reason}" for reason in found.skipped]
    if not found.spaces:
        raise UsageError(
            "nothing to sweep: " + ("; ".join(found.skipped) or "no dtype of these kernels can be enumerated"),
            hint=next(
                filter(None, found.hints),
                "--pairs sweeps two operands in 16 bits, --dtype float32 a whole float32, also without a GPU",
            ),
        )
    return found


def keep(kept: PartStore, found: bytes) -> None:
    """Keeps a partial result, encoded; chunks cannot count twice, as what overlaps does not merge."""
    outline = Outline.decode(found)
    kept.keep(f"{outline.space} {outline.chunks}", msgspec.Raw(found))


def known_of(kept: PartStore) -> dict[str, Partial]:
    """Returns the kept partial results, merged by space. A span that overlaps another is done again."""
    known: dict[str, Partial] = {}
    for name, body in kept.parts.items():
        if name == SETTINGS:
            continue
        partial = Partial.decode(bytes(body))
        before = known.get(partial.space)
        if before is None:
            known[partial.space] = partial
        elif not any(a < d and c < b for a, b in before.chunks for c, d in partial.chunks):
            known[partial.space] = before.merge(partial)
    return known


class _Task(NamedTuple):
    """The work of one worker at a time: a span of chunks of a space, or the record of one of its results."""

    item: _SweptSpace
    span: Span | None = None
    result: str = ""

    @property
    def target(self) -> str:
        return self.item.space.target


class _Sharing(Source[_Task, Any]):
    """The spans of all spaces shared out among workers, then the records."""

    profile = "sweep"
    depends_on: dict[str, Any]

    def __init__(self, settings: SweepSettings) -> None:
        super().__init__(settings)
        self.settings, self.kept = settings, settings.kept
        self.until = None  # a span that has begun ends by itself

    def open(self, pool: Pool) -> About:
        """Asks for all spaces, and what of them an earlier start has done."""
        pool.probe()
        self.declared = _declared(pool, self.settings.spaces.targets)
        found = _spaces(pool, self.settings)
        about = pool.about()
        place = {name: str(value) for name, value in about.environment.items() if name not in _VOLATILE}
        begun = {space.identity(): space.describe() for space in found.spaces}
        place = {**found.place, **place, "backend": about.backend}
        self.depends_on = {"inputs": begun, "version": VERSION, "references": found.references, **place}
        jobs = self.settings.jobs or (1 if named(about.backend).gpu else os.cpu_count() or 1)
        pool.grow(min(jobs, sum(space.chunks for space in found.spaces)))
        spaces = [_SweptSpace(*each) for each in zip(found.spaces, found.references, strict=True)]
        self.enqueue(spaces, len(pool.workers))
        return about

    def enqueue(self, spaces: list[_SweptSpace], workers: int) -> None:
        """Has the unfinished chunks of these spaces swept by so many workers."""
        self.spaces, self.workers = spaces, workers
        if self.kept is not None:
            self.kept.claim(self.depends_on, "sweep", ANOTHER)
        known = {} if self.kept is None else known_of(self.kept)
        for item in spaces:
            if (found := known.get(item.space.identity())) is not None:
                item.found, item.chunks = [found.encode()], found.chunks
            item.pending = left_over(item.space.chunks, item.chunks)

    def interrupted(self) -> bool:
        """Keeps the partial results, in a new file unless the caller named one."""
        if self.kept is None:
            name = "-".join(sorted({item.space.identity()[:6] for item in self.spaces})[:2])
            self.kept = PartStore(Path(f"verify-sweep-{name}.parts"))
            self.kept.claim(self.depends_on, "sweep", ANOTHER)
            known = known_of(self.kept)
            for item in self.spaces:
                for found in [] if item.space.identity() in known else item.found:
                    keep(self.kept, found)
        raise InterruptedSweepError(self.kept.path) from None

    def next(self, last: _Task | None) -> _Task | None:
        """A span, or the result to record; None while what others do may leave something: they hold less than all."""
        if self.settings.until is None or time.monotonic() < self.settings.until:
            item, span = self.next_span(None if last is None else last.item)
            if item is not None and span is not None:
                return _Task(item, span)
        for item in self.spaces:
            if (name := item.next_result()) is not None:
                item.recorded[name] = None
                return _Task(item, result=name)
        return None

    def next_span(self, last: _SweptSpace | None) -> tuple[_SweptSpace | None, Span | None]:
        """The next span for a worker: of the space it is at, else of one with few others at it.

        What a worker compiles and tabulates for a space is not made again by every other.
        """
        unfinished = sum(item.unfinished for item in self.spaces)
        # As much as each of the others has, so that all end together. Every span gathers its worst elements, however
        # short it is: few long ones are quicker than many short ones.
        share = max(1, min(MOST, -(-unfinished // self.workers)))
        for item in sorted(self.spaces, key=lambda item: (item is not last, len(item.flying))):
            span = item.take(share)
            if span is not None:
                return item, span
        return None, None

    def begin(self, task: _Task) -> SweepChunks | RecordSweep:
        """Returns the request for a span or for a record. Judging the worst exactly takes time: all workers do it."""
        item = task.item
        if task.span is not None:
            return SweepChunks(item.space, task.span, SPAN_SECONDS)
        seconds = item.seconds if task.result == item.space.results[0] else 0.0
        partials = [found.decode() for found in item.found]
        return RecordSweep(item.space, partials, task.result, seconds, self.settings.curve)

    def timeout(self, task: _Task) -> float:
        """A record is made of everything, however short a span is."""
        return self.settings.timeout if task.span else max(self.settings.timeout, START_SECONDS)

    def heard(self, task: _Task, text: str) -> None:
        """Counts the chunks of a span that are done."""
        item, count = task.item, int(text) if text.isdigit() else 0
        if task.span is None:
            return
        low, high = task.span
        part = item.space.chunk(low + count - 1)[1] - item.space.chunk(low)[0] if count else 0
        if task.span in item.flying:
            item.flying[task.span] = high - low - count
        self.settings.progress(item.space, item.done + part, item.space.points)

    def done(self, task: _Task, reply: Any, seconds: float) -> None:
        """Keeps the findings of a span, or the record."""
        item = task.item
        if task.span is None:
            item.recorded[task.result] = reply
            return
        del item.flying[task.span]
        item.land(task.span, reply.encode(), seconds)
        item.seconds += seconds
        if self.kept is not None:
            keep(self.kept, reply.encode())
        self.settings.progress(item.space, item.done, item.space.points)

    def failed(self, task: _Task, why: NoResult, seconds: float) -> None:
        """Gives up the space of the task: the others go on."""
        if task.span is None and why.kind is None:  # no kernel is called to make a record
            raise why.error
        if task.span is not None:
            del task.item.flying[task.span]
        task.item.failed = task.item.failed or why

    def record(self) -> tuple[list[KernelRun], list[Gap]]:
        """One entry for each kernel, of all its dtypes."""
        gaps = list(map(_gap, self.spaces))
        found = zip(self.spaces, gaps, strict=True)
        kernels = _together([each for item, gap in found if gap is None for each in _records(item, self.declared)])
        unasked = [Gap("other", line) for line in self.settings.usage]
        return kernels, [*unasked, *filter(None, gaps), *crashes(kernels)]


def _gap(item: _SweptSpace) -> Gap | None:
    """Why a space has no record, where no kernel is to blame."""
    name = f"sweep of {item.space.target} {item.space.dtype}"
    if item.failed and item.failed.kind:
        return Gap(item.failed.kind, f"{name}: {item.failed.message}", item.space.target)
    if not item.failed and item.unfinished:
        begun = "not finished" if item.chunks else "not begun"
        return Gap("out of time", f"{name}: {begun}: {SPENT}", item.space.target)
    return None


def _records(item: _SweptSpace, declared: Mapping[str, Declared]) -> list[KernelRun]:
    """The record of a space, result by result; or what came in its way."""
    made = [item.recorded.get(name) for name in item.space.results]
    records = [record for record in made if record is not None]
    if not item.failed and records:
        return records
    target, dtype, why = item.space.target, item.space.dtype, item.failed
    again = f"verify sweep {shlex.quote(target)} --dtype {dtype}"
    message = f"{dtype}: {why.message if why else 'nothing was swept'}"
    return [declared[target].run(why.status if why else "error", message, hint=again)]


def _together(runs: list[KernelRun]) -> list[KernelRun]:
    """One record per kernel, of all its dtypes."""
    merged: dict[str, KernelRun] = {}
    for item in runs:
        if (known := merged.get(item.target)) is not None:
            item = msgspec.structs.replace(together(known, item), notes=sorted({*known.notes, *item.notes}))
        merged[item.target] = item
    return list(merged.values())
