"""A whole sweep from the parent's side: spaces shared out in spans of chunks, merged, kept, recorded.

The parent imports no torch. A span is complete in itself, so it does not matter which worker takes it. A worker is
given its share of all that is unfinished and ends after a while with what it has done: a GPU does a space at a time, an
interpreted kernel a chunk. Off the fused route the time of a chunk is not known before: the first span of a space is
one chunk, the next ones grow while quick.

What a worker found stays as it came, and is merged where the record is made: the parent only counts chunks. A worker
that finds no chunk left makes the records, result by result, so that all workers end together.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from verify.backends import named
from verify.declare.requests import declared_by
from verify.declare.target import Declared, Target
from verify.errors import SPENT, InternalError, KernelError, TruthError, UsageError, VerifyError, no_verdict
from verify.records.identity import Invocation, assembled
from verify.records.merge import ORDER
from verify.records.part_store import SETTINGS, PartStore
from verify.records.record import Gap, KernelRun, Run, Status, number
from verify.search.sweep.partial import Outline, Partial
from verify.search.sweep.requests import ListSpaces, RecordSweep, Spaces, SweepChunks
from verify.search.sweep.space import Space, left_over, merged
from verify.workers.pool import Job, Pool, using
from verify.workers.process import START_SECONDS
from verify.workers.requests import Died, Late

SPAN_SECONDS = 2.0  # after which a worker hands over what it has done
MOST = 1024  # chunks in a span
GROWTH = 8  # a span that proved quick is followed by one up to so many times as long
VERSION = 2  # of partial results
ANOTHER = "rerun without --resume, or name another file"
KEPT = 16  # partial results of a space that are kept apart
# of the environment: no bit of a result hangs on them
_VOLATILE = ("platform", "cpu", "python", "numpy", "probes", "commit", "dirty")


@dataclass
class SweepSettings:
    """What to sweep, and how."""

    backend: str | None = None
    dtypes: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    pairs: bool = False
    bounds: tuple[float, float] | None = None
    regime: str = ""
    baseline: bool = False
    curve: bool = True
    hardest: int = 0
    jobs: int = 0  # 0: one on a GPU, one per core on the interpreter
    timeout: float = 600.0  # of one span
    pool: Pool | None = None  # of the caller, who stops it; else processes are started
    until: float | None = None  # of time.monotonic(): no span begins later
    contain: bool = False  # an error of the harness is a line of the record, else it ends the sweep
    kept: PartStore | None = None  # from the beginning; without one only Ctrl-C leaves a file behind
    progress: Callable[[Space, int, int], None] = lambda space, done, total: None  # points of this space
    usage: list[str] = field(default_factory=list)


class InterruptedSweepError(Exception):
    """Ctrl-C. `path` is the file that holds what was done."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path


Span = tuple[int, int]  # chunks of a space: the first, and the first that is not taken


@dataclass
class _SweptSpace:
    """One space: what of it is done, what is at workers and what is left."""

    space: Space
    reference: str
    pending: list[Span] = field(default_factory=list)
    flying: dict[Span, int] = field(default_factory=dict)  # spans at workers, with the chunks still to do
    found: list[bytes] = field(default_factory=list)  # partial results, encoded
    chunks: list[Span] = field(default_factory=list)  # that they cover
    recorded: dict[str, KernelRun | None] = field(default_factory=dict)  # by result; None while it is made
    failed: tuple[Status, str] | None = None  # and why
    in_error: str = ""  # why there is no verdict: the harness failed
    seconds: float = 0.0
    most: int = 0  # chunks taken at a time, by any worker

    def __post_init__(self) -> None:
        self.most = self.most or (MOST if self.reference.startswith("fused") else 1)

    @property
    def done(self) -> int:
        """Points covered."""
        return sum(self.space.chunk(high - 1)[1] - self.space.chunk(low)[0] for low, high in self.chunks)

    @property
    def over(self) -> bool:
        """Whether it is given up."""
        return bool(self.failed or self.in_error)

    @property
    def unfinished(self) -> int:
        """Chunks that are not done yet."""
        return 0 if self.over else sum(high - low for low, high in self.pending) + sum(self.flying.values())

    def take(self, share: int) -> Span | None:
        """The next span, if any is left. What would be left of it is taken too, where that is little."""
        if self.over or not self.pending:
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
        if self.over or self.pending or self.flying:
            return None
        return next((name for name in self.space.results if name not in self.recorded), None)


def sweep(targets: Sequence[str], settings: SweepSettings, command: str) -> Run:
    """Sweep every kernel of every target; InterruptedSweepError on Ctrl-C."""
    started = time.monotonic()
    with using(settings.pool, settings.backend) as pool:
        pool.probe()
        declared = _declared(pool, targets)
        found = _spaces(pool, targets, settings)
        about = pool.about()
        spaces = [_SweptSpace(*each) for each in zip(found.spaces, found.references, strict=True)]
        place = {name: str(value) for name, value in about.environment.items() if name not in _VOLATILE}
        begun = {space.identity(): space.describe() for space in found.spaces}
        place = {**found.place, **place, "backend": about.backend}
        depends_on = {"inputs": begun, "version": VERSION, "references": found.references, **place}
        jobs = settings.jobs or (1 if named(about.backend).gpu else os.cpu_count() or 1)
        pool.grow(min(jobs, sum(item.space.chunks for item in spaces)))
        sharing = _Sharing(spaces, settings, depends_on, len(pool.workers))
        try:
            pool.run(sharing.take)
        except KeyboardInterrupt:
            raise InterruptedSweepError(sharing.keep()) from None
    kernels = _together([record for item in spaces if _gap(item) is None for record in _records(item, declared)])
    incomplete = [Gap("other", line) for line in settings.usage]
    incomplete += filter(None, map(_gap, spaces))
    incomplete += [
        Gap(item.status, f"{item.name}: {item.message}", item.target)
        for item in kernels
        if item.status == "crashed" or item.status == "timeout"
    ]
    return assembled(
        about.backend,
        about.environment,
        Invocation(command, "sweep"),
        kernels=kernels,
        incomplete=incomplete,
        seconds=time.monotonic() - started,
    )


def _declared(pool: Pool, targets: Sequence[str]) -> dict[str, Declared]:
    """What the sources of the targets declare, and PyTorch in the place of one of their kernels, by target."""
    parsed = [Target.parse(target) for target in targets]
    asked = dict.fromkeys(str(target) if target.stands_in else target.source for target in parsed)
    return {kernel.target: kernel for target in asked for kernel in declared_by(pool, target)}


def _spaces(pool: Pool, targets: Sequence[str], settings: SweepSettings) -> Spaces:
    """All spaces in order, and the digests of their sources."""
    bounds = settings.bounds
    request = ListSpaces(
        list(targets),
        dtypes=settings.dtypes,
        results=settings.results,
        pairs=settings.pairs,
        bounds=None if bounds is None else (number(bounds[0]), number(bounds[1])),
        regime=settings.regime,
        baseline=settings.baseline,
        hardest=settings.hardest,
    )
    found = pool.ask(request, timeout=START_SECONDS)
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


class _Sharing:
    """The policy of a sweep: the spans of all spaces shared out among workers, then the records."""

    def __init__(
        self, spaces: list[_SweptSpace], settings: SweepSettings, depends_on: dict[str, Any], workers: int
    ) -> None:
        self.spaces, self.settings, self.depends_on, self.workers = spaces, settings, depends_on, workers
        self.kept = settings.kept
        if self.kept is not None:
            self.kept.claim(depends_on, "sweep", ANOTHER)
        known = {} if self.kept is None else known_of(self.kept)
        for item in spaces:
            if (found := known.get(item.space.identity())) is not None:
                item.found, item.chunks = [found.encode()], found.chunks
            item.pending = left_over(item.space.chunks, item.chunks)

    def keep(self) -> Path:
        """Returns the file with the partial results, a new one unless the caller named one."""
        if self.kept is None:
            name = "-".join(sorted({item.space.identity()[:6] for item in self.spaces})[:2])
            self.kept = PartStore(Path(f"verify-sweep-{name}.parts"))
            self.kept.claim(self.depends_on, "sweep", ANOTHER)
            known = known_of(self.kept)
            for item in self.spaces:
                for found in [] if item.space.identity() in known else item.found:
                    keep(self.kept, found)
        return self.kept.path

    def take(self, last: Job[Any] | None) -> Job[Any] | None:
        """A span, or the result to record; None while what others do may leave something: they hold less than all."""
        if self.settings.until is None or time.monotonic() < self.settings.until:
            item, span = self.next_span(None if last is None else last.about)
            if item is not None and span is not None:
                return self._span(item, span)
        for item in self.spaces:
            name = item.next_result()
            if name is not None:
                item.recorded[name] = None
                return self._record(item, name)
        return None

    def next_span(self, last: _SweptSpace | None) -> tuple[_SweptSpace | None, Span | None]:
        """The next span for a worker: of the space it is at, else of one with few others at it.

        What a worker compiles and tabulates for a space is not made again by every other.
        """
        share = self._share()
        for item in sorted(self.spaces, key=lambda item: (item is not last, len(item.flying))):
            span = item.take(share)
            if span is not None:
                return item, span
        return None, None

    def _share(self) -> int:
        """Chunks for one worker: as much of all that is unfinished as each of the others has, so that all end together.

        Every span gathers its worst elements, however short it is: few long ones are quicker than many short ones.
        """
        unfinished = sum(item.unfinished for item in self.spaces)
        return max(1, min(MOST, -(-unfinished // self.workers)))

    def _span(self, item: _SweptSpace, span: Span) -> Job[str]:
        (low, high), begun = span, time.monotonic()

        def advanced(text: str) -> None:
            count = int(text) if text.isdigit() else 0
            part = item.space.chunk(low + count - 1)[1] - item.space.chunk(low)[0] if count else 0
            if span in item.flying:
                item.flying[span] = high - low - count
            self.settings.progress(item.space, item.done + part, item.space.points)

        def done(found: str) -> None:
            spent = time.monotonic() - begun
            del item.flying[span]
            item.land(span, found.encode(), spent)
            item.seconds += spent
            if self.kept is not None:
                keep(self.kept, found.encode())
            self.settings.progress(item.space, item.done, item.space.points)

        def failed(error: VerifyError) -> None:
            del item.flying[span]
            if isinstance(error, Died | Late | KernelError):
                item.failed = item.failed or (_status_of(error), str(error))
            else:
                self._in_error(item, error)

        return Job(
            SweepChunks(item.space, span, SPAN_SECONDS),
            done=done,
            failed=failed,
            timeout=self.settings.timeout,
            prepare=lambda worker: declared_by(worker, item.space.target),
            progress=advanced,
            about=item,
        )

    def _record(self, item: _SweptSpace, result: str) -> Job[KernelRun]:
        """The record of one result: judging the worst exactly takes time, so all workers do it."""
        request = RecordSweep(
            space=item.space,
            partials=[found.decode() for found in item.found],
            result=result,
            seconds=item.seconds if result == item.space.results[0] else 0.0,
            curve=self.settings.curve,
        )
        return Job(
            request,
            done=partial(item.recorded.__setitem__, result),
            failed=partial(self._in_error, item),
            timeout=max(self.settings.timeout, START_SECONDS),
            about=item,
        )

    def _in_error(self, item: _SweptSpace, error: VerifyError) -> None:
        """The harness failed at a space: the others go on where the caller wants that."""
        if not self.settings.contain or not isinstance(error, TruthError | InternalError):
            raise error
        item.in_error = item.in_error or no_verdict(error)


def _gap(item: _SweptSpace) -> Gap | None:
    """Why a space has no record, where no kernel is to blame."""
    name = f"sweep of {item.space.target} {item.space.dtype}"
    if item.in_error:
        return Gap("harness error", f"{name}: {item.in_error}", item.space.target)
    if not item.over and item.unfinished:
        begun = "not finished" if item.chunks else "not begun"
        return Gap("out of time", f"{name}: {begun}: {SPENT}", item.space.target)
    return None


def _status_of(error: VerifyError) -> Status:
    return "timeout" if isinstance(error, Late) else "crashed" if isinstance(error, Died) else "error"


def _records(item: _SweptSpace, declared: Mapping[str, Declared]) -> list[KernelRun]:
    """The record of a space, result by result; or what came in its way."""
    made = [item.recorded.get(name) for name in item.space.results]
    records = [record for record in made if record is not None]
    if not item.failed and records:
        return records
    status, message = item.failed or ("error", "nothing was swept")
    target, dtype = item.space.target, item.space.dtype
    again = f"verify sweep {shlex.quote(target)} --dtype {dtype}"
    return [declared[target].run(status, f"{dtype}: {message}", hint=again)]


def _together(runs: list[KernelRun]) -> list[KernelRun]:
    """One record per kernel, of all its dtypes."""
    merged: dict[str, KernelRun] = {}
    for item in runs:
        known = merged.get(item.target)
        if known is None:
            merged[item.target] = item
            continue
        worse = max(known, item, key=lambda each: ORDER.index(each.status))
        merged[item.target] = msgspec.structs.replace(
            known,
            status=worse.status,
            message=worse.message,
            hint=worse.hint,
            results=[*known.results, *item.results],
            notes=sorted({*known.notes, *item.notes}),
            seconds=round(known.seconds + item.seconds, 3),
        )
    return list(merged.values())
