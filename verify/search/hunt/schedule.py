"""Many hunts, each in a worker process, into one record: what `verify hunt` and the nightly run do.

A kernel that raises, hangs or takes its process down ends one hunt; its best find so far is kept as a note, and the
others go on. Ctrl-C asks the running hunts to stop and to hand over what they have; a second one abandons them.

All hunts of all kernels wait in one queue, the longest first, so that no worker idles while another is at the last
results of a kernel. Among hunts that take as long a worker stays with its kernel, whose process it has: another one
meets the GPU anew. With a moment `until` the hunts that have not begun share what is left of the time; those that
the time did not reach are named in the record.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from verify.declare.requests import declared_by
from verify.declare.target import Declared
from verify.errors import SPENT, InternalError, TruthError, UsageError, VerifyError, no_verdict
from verify.records.identity import Invocation, assembled
from verify.records.record import RESULT_STATUSES, Gap, GapKind, KernelRun, Result, Run, Status, value_of
from verify.search.hunt.requests import DoHunt, Hunt, HuntProgress, HuntReply, Hunts, ListHunts, Pinned
from verify.search.hunt.settings import Settings
from verify.workers.pool import Job, Pool, nearest, using
from verify.workers.process import START_SECONDS, OutOfTime
from verify.workers.requests import Died, Late

CLOSING_SECONDS = 120.0  # to judge the finds exactly, after the budget is spent


@dataclass(frozen=True)
class HuntSummary:
    """What one hunt came to, beside its result in the record."""

    kernel: str
    target: str
    hunt: Hunt
    sentence: str
    seconds: float
    pinned: Pinned | None


@dataclass
class HuntSession:
    """Settings of many hunts, and what they came to beside the record."""

    settings: Settings
    backend: str | None = None
    dtypes: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    pin: bool = False
    timeout: float = 600.0  # beyond the time budget of one hunt
    pool: Pool | None = None  # of the caller, who stops it; else one process is started
    progress: Callable[[str, HuntProgress], None] = lambda name, progress: None
    stopping: Callable[[], None] = lambda: None  # called once, when the first Ctrl-C arrives
    until: float | None = None  # of time.monotonic(): no hunt begins later, and earlier ones share the time left
    asked: Mapping[str, Hunts] | None = None  # the hunts by target, where the caller has asked already
    known: Callable[[str, Hunt], KernelRun | None] = lambda target, hunt: None  # one that was done before
    finished: Callable[[str, Hunt, KernelRun], None] = lambda target, hunt, done: None
    contain: bool = False  # an error of the harness is a line of the record, else it ends all hunts
    gaps: list[Gap] = field(default_factory=list)  # hunts without a verdict, and those that the time did not reach
    summaries: list[HuntSummary] = field(default_factory=list)
    interrupted: bool = False


@dataclass
class _HuntedKernel:
    """One kernel and its hunts; filled in as they end."""

    kernel: Declared
    hunts: list[Hunt] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    done: dict[Hunt, KernelRun] = field(default_factory=dict)
    unfit: str = ""  # why it cannot be hunted
    not_done: str = "not begun: interrupted"  # why the last hunt that was not done was not


def run(targets: Sequence[str], session: HuntSession, command: str) -> Run:
    """Hunt in every kernel of every target."""
    session.settings.check()
    started = time.monotonic()
    with using(session.pool, session.backend) as pool, tempfile.TemporaryDirectory(prefix="verify-hunt-") as folder:
        about = pool.about()
        hunted = [each for target in targets for each in _hunted_kernels(pool, target, about.backend, session)]
        stop = Path(folder) / "stop"
        with pool.flag(stop) as raise_flag:
            queue = _Queue(hunted, session, stop, len(pool.workers))
            pool.run(queue.take, on_interrupt=partial(_interrupted, session, stop, raise_flag))
    kernels = [_kernel_run(each) for each in hunted]
    incomplete = [
        Gap(kernel.status, f"{kernel.name}: {kernel.message}", kernel.target)
        for kernel in kernels
        if kernel.status == "crashed" or kernel.status == "timeout"
    ]
    incomplete += sorted(session.gaps, key=lambda gap: gap.kind != "harness error")
    if session.interrupted:
        incomplete.append(Gap("interrupted", "interrupted: the hunts say how many evaluations they had made"))
    return assembled(
        about.backend,
        about.environment,
        Invocation(command, "hunt", session.settings.seed),
        kernels=kernels,
        incomplete=incomplete,
        seconds=time.monotonic() - started,
    )


def _interrupted(session: HuntSession, stop: Path, raise_flag: Callable[[], None]) -> None:
    """At Ctrl-C: `stop` exists, here and wherever a hunt runs, which ends it early."""
    session.interrupted = True
    stop.touch()
    session.stopping()
    raise_flag()


def _hunted_kernels(pool: Pool, target: str, backend: str, session: HuntSession) -> list[_HuntedKernel]:
    """The kernels of a target with their hunts. A target of several kernels leaves out what cannot be hunted."""
    declared = declared_by(pool, target)
    found = []
    for kernel in declared:
        hunted = _HuntedKernel(kernel, unfit=kernel.unfit(backend, "hunt"))
        found.append(hunted)
        if hunted.unfit:
            continue
        try:
            hunts = session.asked[kernel.target] if session.asked else None
            hunts = hunts or pool.ask(ListHunts(kernel.target, session.dtypes, session.results), timeout=START_SECONDS)
        except UsageError as error:
            if len(declared) == 1:
                raise
            hunted.unfit = error.message
            continue
        hunted.hunts, hunted.notes = hunts.hunts, [f"not hunted: {reason}" for reason in hunts.left_out]
    return found


_SLOWEST = ("graph", "rowwise", "contraction", "elementwise")  # a call of rows is the largest, and has the most steps

_Place = tuple[_HuntedKernel, Hunt]


def _sort(place: _Place) -> tuple[int, bool]:
    """Hunts of one sort take about as long, on the same hardware."""
    hunted, hunt = place
    return _SLOWEST.index(hunted.kernel.kind), hunt.dtype == "float64"


def _in_turn(hunts: list[_Place]) -> list[_Place]:
    """The longest first, those in float64 and the others by turns: the former keep a core busy, the latter the GPU.

    Sorting is stable: among hunts that take as long, the kernels keep their order.
    """
    hunts = sorted(hunts, key=lambda place: _SLOWEST.index(place[0].kernel.kind))
    exact = [place for place in hunts if place[1].dtype == "float64"]
    others = [place for place in hunts if place[1].dtype != "float64"]
    return [place for pair in zip_longest(exact, others) for place in pair if place is not None]


class _Queue:
    """The policy of many hunts: each once, in turn, with its share of the time that is left."""

    def __init__(self, hunted: Sequence[_HuntedKernel], session: HuntSession, stop: Path, workers: int) -> None:
        self.session, self.stop, self.workers = session, stop, workers
        self.waiting = _in_turn([(each, hunt) for each in hunted for hunt in each.hunts])
        self.sorts = deque(map(_sort, self.waiting))  # in turn
        self.busy: Counter[str] = Counter()  # workers at each target

    def take(self, last: Job[Any] | None) -> Job[HuntReply] | None:
        """The next hunt that no earlier run has done and the time reaches."""
        until = self.session.until
        while self.waiting:
            left = len(self.waiting)
            hunted, hunt = self._next(None if last is None else last.about)
            share = None if until is None else (until - time.monotonic()) * self.workers / left
            known = self.session.known(hunted.kernel.target, hunt)
            if known is not None:
                hunted.done[hunt] = known
            elif share is not None and share <= 0:
                self._leave_out(hunted, hunt, "out of time", f"not begun: {SPENT}")
            else:
                return self._job(hunted, hunt, share)
        return None

    def _next(self, target: str | None) -> _Place:
        """The next hunt of the sort whose turn it is."""
        sort = self.sorts.popleft()
        of_sort = ((n, place[0].kernel.target) for n, place in enumerate(self.waiting) if _sort(place) == sort)
        return self.waiting.pop(nearest(of_sort, target, self.busy))

    def _leave_out(self, hunted: _HuntedKernel, hunt: Hunt, kind: GapKind, reason: str) -> None:
        hunted.not_done = reason
        target = hunted.kernel.target
        self.session.gaps.append(Gap(kind, f"hunt of {target} {hunt.result} {hunt.dtype}: {reason}", target))

    def _job(self, hunted: _HuntedKernel, hunt: Hunt, share: float | None) -> Job[HuntReply]:
        """One hunt; `share` is its part of the time that is left."""
        session, settings, target = self.session, self.session.settings, hunted.kernel.target
        timeout = (settings.seconds or 0.0) + session.timeout + CLOSING_SECONDS
        if share is not None:
            settings = replace(settings, seconds=round(max(1.0, min(share, settings.seconds or share)), 1))
        running = _Running(self, hunted, hunt, f"{hunted.kernel.name} {hunt.result} {hunt.dtype}", timeout)
        self.busy[target] += 1
        return Job(
            DoHunt(target, hunt, settings, os.fspath(self.stop), session.pin),
            done=running.done,
            failed=running.failed,
            about=target,
            timeout=timeout,
            until=None if session.until is None else session.until + CLOSING_SECONDS,
            prepare=lambda worker: declared_by(worker, target),
            progress=running.heard,
        )


@dataclass
class _Running:
    """One hunt at a worker; whatever happens to it is written into its kernel."""

    queue: _Queue
    hunted: _HuntedKernel
    hunt: Hunt
    name: str
    timeout: float
    best: HuntProgress | None = None  # the last report that named a case
    started: float = field(default_factory=time.monotonic)

    def heard(self, text: str) -> None:
        """A report of progress."""
        said = msgspec.json.decode(text, type=HuntProgress)
        if said.case:
            self.best = said
        elif self.best is not None:
            self.best = msgspec.structs.replace(said, case=self.best.case, index=self.best.index)
        self.queue.session.progress(self.name, said)

    def done(self, reply: HuntReply) -> None:
        """It ended with a result."""
        self.queue.busy[self.hunted.kernel.target] -= 1
        session, kernel = self.queue.session, self.hunted.kernel
        self._keep(reply.result.status, result=reply.result, notes=reply.notes)
        session.summaries.append(
            HuntSummary(kernel.name, kernel.target, self.hunt, reply.sentence, reply.seconds, reply.pinned)
        )

    def failed(self, error: VerifyError) -> None:
        """It ended without one."""
        self.queue.busy[self.hunted.kernel.target] -= 1
        match error:
            case OutOfTime():
                self.queue._leave_out(self.hunted, self.hunt, "out of time", str(error))
                self.hunted.notes += self._best_so_far(f"{self.name}: {error}")
            case Late():
                self._keep("timeout", f"no result within {self.timeout:g} s; stopped")
            case Died():
                self._keep("crashed", str(error))
            case TruthError() | InternalError() if self.queue.session.contain:
                self.queue._leave_out(self.hunted, self.hunt, "harness error", no_verdict(error))
            case TruthError() | UsageError():
                raise error
            case _:
                self._keep("error", str(error))

    def _keep(self, status: Status, message: str = "", result: Result | None = None, notes: Sequence[str] = ()) -> None:
        message = message and f"{self.name}: {message}"
        done = self.hunted.kernel.run(
            status,
            message,
            results=[] if result is None else [result],
            notes=[*notes, *(self._best_so_far(message) if message else ())],
            seconds=round(time.monotonic() - self.started, 3),
        )
        self.hunted.done[self.hunt] = done
        if not self.queue.session.interrupted:  # one that was cut short is done again by the next start
            self.queue.session.finished(self.hunted.kernel.target, self.hunt, done)

    def _best_so_far(self, message: str) -> list[str]:
        """What a hunt that failed had found."""
        if self.best is None:
            return []
        best = f"{self.best.evaluations:,} evaluations had given {value_of(self.best.best):.6g} (not judged exactly)"
        return [f"{message}; before that {best} at [{self.best.index}] of the case {self.best.case}"]


def _kernel_run(hunted: _HuntedKernel) -> KernelRun:
    """All hunts of a kernel as one; the first that failed says what the kernel's status is."""
    done = [hunted.done[hunt] for hunt in hunted.hunts if hunt in hunted.done]
    results = [result for each in done for result in each.results]
    failed = next((each for each in done if each.status not in RESULT_STATUSES), None)
    status: Status = "skipped"
    if hunted.unfit or failed is None:
        message = hunted.unfit or ("" if results else hunted.not_done)
    else:
        status, message = failed.status, failed.message
    if not message:
        status = max((result.status for result in results), key=RESULT_STATUSES.index, default="ok")
    return hunted.kernel.run(
        status,
        message,
        results=results,
        notes=[*hunted.notes, *(note for each in done for note in each.notes)],
        seconds=round(sum(each.seconds for each in done), 3),
    )
