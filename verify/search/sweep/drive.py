"""Drives a whole sweep from the parent: divides spaces into spans of chunks, merges and keeps findings, makes the
record.

The parent imports no torch. A worker gets a span of a few unfinished chunks, so that findings are soon kept and all
workers end together. After the last span of a space, workers make its records, result by result.
"""

import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from verify.backends import named
from verify.declare.requests import declared_by
from verify.declare.target import Declared, Target
from verify.errors import SPENT, UsageError
from verify.measure.source import NoResult, Source, SourceSettings, collect, crashes
from verify.records.merge import by_kernel
from verify.records.part_store import SETTINGS, PartStore
from verify.records.record import Gap, KernelRun, Run
from verify.search.sweep.requests import ListSpaces, RecordSweep, SweepChunks
from verify.search.sweep.space import Partial, Space, left_over
from verify.workers.machine import usable_cores
from verify.workers.pool import Pool
from verify.workers.process import START_SECONDS
from verify.workers.requests import About

SPAN, SPAN_CPU = 16, 1  # chunks of a span: some 0.3 s of a GPU, and 2 s of a core
VERSION = 4  # of the form of partial results
ANOTHER = "rerun without --resume, or name another file"
# Entries of the environment on which no bit of a result depends.
_VOLATILE = ("platform", "cpu", "python", "numpy", "probes", "commit", "dirty")


@dataclass(kw_only=True)
class SweepSettings(SourceSettings):
    """Holds the settings of a sweep. `jobs` 0: one process on a GPU, one per core on the interpreter."""

    spaces: ListSpaces  # which spaces to sweep
    curve: bool = True
    contain: bool = False
    # receives the points done and the points in all of this space
    progress: Callable[[Space, int, int], None] = lambda space, done, total: None


class InterruptedSweepError(KeyboardInterrupt):
    """Reports Ctrl-C. `path` is the file that holds the finished chunks."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path


Span = tuple[int, int]  # chunks of a space: the first, and one past the last


@dataclass(eq=False)
class _SweptSpace:
    """Holds one space with its findings and records."""

    space: Space
    left: int = 0  # spans without findings
    found: Partial | None = None
    recorded: dict[str, KernelRun] = field(default_factory=dict)  # by result
    failed: NoResult | None = None  # why the space is given up
    seconds: float = 0.0

    @property
    def chunks(self) -> list[Span]:
        """Returns the finished chunks."""
        return [] if self.found is None else self.found.chunks

    @property
    def done(self) -> int:
        """Returns the number of finished points."""
        return sum(self.space.chunk(high - 1)[1] - self.space.chunk(low)[0] for low, high in self.chunks)


def sweep(settings: SweepSettings, command: str) -> Run:
    """Sweeps every kernel of every target. Raises InterruptedSweepError on Ctrl-C."""
    return collect(_Sharing(settings), command)


def keep(kept: PartStore, found: Partial) -> None:
    """Keeps a partial result. No chunk can count twice, because overlapping partials do not merge."""
    kept.keep(f"{found.space} {found.chunks}", found)


def known_of(kept: PartStore) -> dict[str, Partial]:
    """Returns the kept partial results, merged by space. A span that overlaps another is dropped and swept again."""
    known: dict[str, Partial] = {}
    for name, body in kept.parts.items():
        if name == SETTINGS:
            continue
        partial = msgspec.json.decode(body, type=Partial)
        before = known.get(partial.space)
        if before is None:
            known[partial.space] = partial
        elif not any(a < d and c < b for a, b in before.chunks for c, d in partial.chunks):
            known[partial.space] = before.merge(partial)
    return known


class _Task(NamedTuple):
    """Describes a worker's next piece of work: a span of chunks of a space, or the record of one of its results."""

    item: _SweptSpace
    span: Span | None = None
    result: str = ""

    @property
    def target(self) -> str:
        return self.item.space.target


class _Sharing(Source[_Task, Any]):
    """Hands out the spans of all spaces to workers, then the records."""

    profile = "sweep"
    depends_on: dict[str, Any]

    def __init__(self, settings: SweepSettings) -> None:
        super().__init__(settings)
        self.settings, self.kept = settings, settings.kept
        self.until = None  # no deadline, because a span ends by itself

    def open(self, pool: Pool) -> About:
        """Requests all spaces. Prepares to continue the work of an earlier start. Raises UsageError without a space."""
        pool.probe()
        parsed = [Target.parse(target) for target in self.settings.spaces.targets]
        asked = dict.fromkeys(str(target) if target.stands_in else target.source for target in parsed)
        self.declared = {kernel.target: kernel for target in asked for kernel in declared_by(pool, target)}
        found = pool.ask(self.settings.spaces, timeout=START_SECONDS)
        self.settings.usage += [f"not swept: {reason}" for reason in found.skipped]
        if not found.spaces:
            default = "--pairs sweeps two operands in 16 bits, --dtype float32 a whole float32, also without a GPU"
            reasons = "; ".join(found.skipped) or "no dtype of these kernels can be enumerated"
            raise UsageError(f"nothing to sweep: {reasons}", hint=next(filter(None, found.hints), default))
        about = pool.about()
        place = {name: str(value) for name, value in about.environment.items() if name not in _VOLATILE}
        begun = {space.identity(): space.describe() for space in found.spaces}
        place = {**found.place, **place, "backend": about.backend}
        self.depends_on = {"inputs": begun, "version": VERSION, **place}
        jobs = self.settings.jobs or (1 if named(about.backend).gpu else usable_cores())
        pool.grow(min(jobs, sum(space.chunks for space in found.spaces)))
        self.enqueue(list(map(_SweptSpace, found.spaces)), SPAN if named(about.backend).gpu else SPAN_CPU)
        return about

    def enqueue(self, spaces: list[_SweptSpace], most: int) -> None:
        """Queues the unfinished chunks of these spaces in spans of at most `most`."""
        self.spaces = spaces
        if self.kept is not None:
            self.kept.claim(self.depends_on, "sweep", ANOTHER)
        known = {} if self.kept is None else known_of(self.kept)
        for item in spaces:
            item.found = known.get(item.space.identity())
            spans = [
                (start, min(start + most, high))
                for low, high in left_over(item.space.chunks, item.chunks)
                for start in range(low, high, most)
            ]
            item.left = len(spans)
            self.waiting += [_Task(item, span) for span in spans] or self.records_of(item)

    def records_of(self, item: _SweptSpace) -> list[_Task]:
        """Returns the tasks that make the records of a space."""
        return [_Task(item, result=name) for name in item.space.results]

    def interrupted(self) -> bool:
        """Keeps the partial results, in a new file unless the caller named one. Then raises InterruptedSweepError."""
        if self.kept is None:
            name = "-".join(sorted({item.space.identity()[:6] for item in self.spaces})[:2])
            self.kept = PartStore(Path(f"verify-sweep-{name}.parts"))
            self.kept.claim(self.depends_on, "sweep", ANOTHER)
            known = known_of(self.kept)
            for item in self.spaces:
                if item.found is not None and item.space.identity() not in known:
                    keep(self.kept, item.found)
        raise InterruptedSweepError(self.kept.path) from None

    def next(self, last: _Task | None) -> _Task | None:
        """Returns a span or a result to record, for few spaces by worker, as each compiles for the first span of one.

        No span begins after the time is spent. None: nothing is free now, but the last span of a space may come back.
        """
        until = self.settings.until
        late = until is not None and time.monotonic() >= until

        def ready(task: _Task) -> bool:
            return bool(task.result) or not late

        return self.take_nearest(last, ready) if any(map(ready, self.waiting)) else None

    def begin(self, task: _Task) -> SweepChunks | RecordSweep:
        """Returns the request for a span or for a record. Judging exactly takes time, so all workers make records."""
        item = task.item
        if task.span is not None:
            return SweepChunks(item.space, task.span)
        seconds = item.seconds if task.result == item.space.results[0] else 0.0
        assert item.found is not None
        return RecordSweep(item.space, item.found, task.result, seconds, self.settings.curve)

    def timeout(self, task: _Task) -> float:
        """Returns the seconds until a task is late. A record is made of all findings, so it gets longer than a span."""
        return self.settings.timeout if task.span else max(self.settings.timeout, START_SECONDS)

    def heard(self, task: _Task, text: str) -> None:
        """Counts the finished chunks of a span."""
        item, count = task.item, int(text) if text.isdigit() else 0
        if task.span is None:
            return
        low = task.span[0]
        part = item.space.chunk(low + count - 1)[1] - item.space.chunk(low)[0] if count else 0
        self.settings.progress(item.space, item.done + part, item.space.points)

    def done(self, task: _Task, reply: Any, seconds: float) -> None:
        """Keeps the findings of a span, or the record."""
        item = task.item
        if task.span is None:
            item.recorded[task.result] = reply
            return
        if reply.chunks != [task.span]:
            raise RuntimeError(f"requested the chunks from {task.span[0]} to {task.span[1]}, received {reply.chunks}")
        item.found = reply if item.found is None else item.found.merge(reply)
        item.left -= 1
        item.seconds += seconds
        if not item.left:
            self.waiting += self.records_of(item)
        if self.kept is not None:
            keep(self.kept, reply)
        self.settings.progress(item.space, item.done, item.space.points)

    def failed(self, task: _Task, why: NoResult, seconds: float) -> None:
        """Gives up the space of the task. The other spaces continue."""
        if task.span is None and why.kind is None:  # making a record calls no kernel, so the harness failed
            raise why.error
        task.item.failed = task.item.failed or why
        self.waiting = [each for each in self.waiting if each.item is not task.item]

    def record(self) -> tuple[list[KernelRun], list[Gap]]:
        """Returns one entry for each kernel, of all its dtypes, and the gaps."""
        gaps = list(map(_gap, self.spaces))
        found = zip(self.spaces, gaps, strict=True)
        kernels = by_kernel(each for item, gap in found if gap is None for each in _records(item, self.declared))
        kernels = [msgspec.structs.replace(each, notes=sorted(each.notes)) for each in kernels]
        unasked = [Gap("not possible", line) for line in self.settings.usage]
        return kernels, [*unasked, *filter(None, gaps), *crashes(kernels)]


def _gap(item: _SweptSpace) -> Gap | None:
    """Returns why a space has no record if no kernel is to blame, else None."""
    name = f"sweep of {item.space.target} {item.space.dtype}"
    if item.failed and item.failed.kind:
        return Gap(item.failed.kind, f"{name}: {item.failed.message}", item.space.target)
    if not item.failed and item.left:
        begun = "not finished" if item.chunks else "not begun"
        return Gap("out of time", f"{name}: {begun}: {SPENT}", item.space.target)
    return None


def _records(item: _SweptSpace, declared: Mapping[str, Declared]) -> list[KernelRun]:
    """Returns the records of a space, one for each result, or one that says why there is none."""
    made = [item.recorded.get(name) for name in item.space.results]
    records = [record for record in made if record is not None]
    if not item.failed and records:
        return records
    target, dtype, why = item.space.target, item.space.dtype, item.failed
    again = f"verify sweep {shlex.quote(target)} --dtype {dtype}"
    message = f"{dtype}: {why.message if why else 'nothing was swept'}"
    return [declared[target].run(why.status if why else "error", message, hint=again)]
