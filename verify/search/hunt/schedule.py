"""Runs many hunts in worker processes and makes one record of them. `verify hunt` and the nightly run use it.

If a kernel raises, hangs or ends its process, that ends one hunt; its best find so far becomes a note. Ctrl-C asks the
running hunts to stop and to report their finds; a second Ctrl-C abandons them.

All hunts wait in one queue, the longest first, so that no worker idles at the end. Among hunts of the same length, a
worker stays with the kernel whose process it has. With `until`, the hunts that have not begun share the time left. The
record names the hunts that had no time.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from verify.declare.requests import declared_by
from verify.declare.target import Declared
from verify.errors import SPENT, UsageError
from verify.measure.session import longest_first
from verify.measure.source import NoResult, Source, Work, collect, crashes
from verify.records.record import RESULT_STATUSES, Gap, GapKind, KernelRun, Run, Status, value_of
from verify.search.hunt.requests import DoHunt, Hunt, HuntProgress, HuntReply, Hunts, ListHunts, Pinned
from verify.search.hunt.settings import Settings
from verify.workers.pool import Pool
from verify.workers.process import START_SECONDS
from verify.workers.requests import About

CLOSING_SECONDS = 120.0  # to judge the finds exactly after the budget is spent


@dataclass(frozen=True)
class HuntSummary:
    """Summarises one hunt, beside its result in the record."""

    kernel: str
    target: str
    hunt: Hunt
    sentence: str
    seconds: float
    pinned: Pinned | None


@dataclass(kw_only=True)
class HuntSession(Work):
    """Holds the settings of many hunts and collects their summaries."""

    settings: Settings
    dtypes: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    pin: bool = False
    contain: bool = False
    stopping: Callable[[], None] = lambda: None  # called once, when the first Ctrl-C arrives
    asked: Mapping[str, Hunts] | None = None  # the hunts by target, if the caller has already requested them
    summaries: list[HuntSummary] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.settings.check()
        self.seed = self.settings.seed


@dataclass
class _HuntedKernel:
    """Holds one kernel and its hunts, and collects their outcomes."""

    kernel: Declared
    hunts: list[Hunt] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    done: dict[Hunt, KernelRun] = field(default_factory=dict)
    unfit: str = ""  # why it cannot be hunted
    not_done: str = "not begun: interrupted"  # why the last unfinished hunt did not happen


@dataclass(eq=False)
class _Hunting:
    """Holds one hunt of a kernel, which waits or runs in a worker."""

    hunted: _HuntedKernel
    hunt: Hunt
    share: float | None = None  # of the remaining time, in seconds
    best: HuntProgress | None = None  # the last report that named a case

    @property
    def target(self) -> str:
        return self.hunted.kernel.target

    @property
    def name(self) -> str:
        return f"{self.hunted.kernel.name} {self.hunt.result} {self.hunt.dtype}"

    @property
    def key(self) -> str:
        """Returns the name of this hunt in the part store."""
        return f"{self.target} {self.hunt.result} {self.hunt.dtype}"

    @property
    def sort(self) -> tuple[int, bool]:
        """Returns the hunt's kind. Hunts of one kind take about as long, on the same hardware."""
        return longest_first(self.hunted.kernel.kind, "")[0], self.hunt.dtype == "float64"

    def best_so_far(self, message: str) -> list[str]:
        """Returns a note with the best find of a hunt that failed, or no note."""
        if self.best is None:
            return []
        best = f"{self.best.evaluations:,} evaluations had given {value_of(self.best.best):.6g} (not judged exactly)"
        return [f"{message}; before that {best} at [{self.best.index}] of the case {self.best.case}"]


def run(targets: Sequence[str], session: HuntSession, command: str) -> Run:
    """Runs the hunts of every kernel of every target."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="verify-hunt-"))
        return collect(_Hunts(targets, session, Path(folder) / "stop", stack), command)


def _hunted_kernels(pool: Pool, target: str, backend: str, session: HuntSession) -> list[_HuntedKernel]:
    """Returns the kernels of a target with their hunts.

    A kernel that cannot be hunted raises UsageError if it is the target's only kernel. Otherwise its `unfit` says why.
    """
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


def _in_turn(hunts: list[_Hunting]) -> list[_Hunting]:
    """Returns the longest first, with float64 and the other dtypes alternating: float64 keeps a core busy, the others
    the GPU.

    Sorting is stable: among hunts of the same length, the kernels keep their order.
    """
    hunts = sorted(hunts, key=lambda each: each.sort[0])
    exact = [each for each in hunts if each.hunt.dtype == "float64"]
    others = [each for each in hunts if each.hunt.dtype != "float64"]
    return [each for pair in zip_longest(exact, others) for each in pair if each is not None]


class _Hunts(Source[_Hunting, HuntReply]):
    """Hands out each hunt once, with its share of the remaining time."""

    profile = "hunt"

    def __init__(self, targets: Sequence[str], session: HuntSession, stop: Path, stack: ExitStack) -> None:
        super().__init__(session)
        self.targets, self.session, self.stop, self.stack = targets, session, stop, stack
        self.until = None if session.until is None else session.until + CLOSING_SECONDS
        self.was_interrupted = False
        self.gaps: list[Gap] = []  # hunts without a verdict
        self.raise_flag: Callable[[], None] = stop.touch

    def open(self, pool: Pool) -> About:
        """Requests the hunts of every kernel."""
        about = pool.about()
        self.raise_flag = self.stack.enter_context(pool.flag(self.stop))
        kernels = (_hunted_kernels(pool, target, about.backend, self.session) for target in self.targets)
        self.enqueue([each for found in kernels for each in found], len(pool.workers))
        return about

    def enqueue(self, hunted: list[_HuntedKernel], workers: int) -> None:
        """Queues the hunts of these kernels for `workers` workers."""
        self.hunted, self.workers = hunted, workers
        self.waiting = _in_turn([_Hunting(each, hunt) for each in hunted for hunt in each.hunts])
        self.sorts = deque(each.sort for each in self.waiting)  # the kind of each hunt, in the order of the queue

    def on_interrupt(self) -> None:
        """Creates the file `stop`, here and on every machine that runs a hunt, which ends the hunts early."""
        self.was_interrupted = True
        self.stop.touch()
        self.session.stopping()
        self.raise_flag()

    def next(self, last: _Hunting | None) -> _Hunting | None:
        """Returns the next hunt of the kind whose turn it is."""
        if not self.waiting:
            return None
        left, sort = len(self.waiting), self.sorts.popleft()
        part = self.take_nearest(last, lambda each: each.sort == sort)
        if self.session.until is not None:
            part.share = (self.session.until - time.monotonic()) * self.workers / left
        return part

    def settle(self, part: _Hunting) -> bool:
        """True if the hunt needs no worker: an earlier start finished it, or no time is left for it."""
        known = self.known(part.key, KernelRun)
        late = part.share is not None and part.share <= 0
        if known is not None:
            part.hunted.done[part.hunt] = known
        elif late:
            self._leave_out(part, "out of time", f"not begun: {SPENT}")
        return late or known is not None

    def begin(self, part: _Hunting) -> DoHunt:
        """Returns the request of one hunt."""
        settings = self.session.settings
        if part.share is not None:
            seconds = max(1.0, min(part.share, settings.seconds or part.share))
            settings = replace(settings, seconds=round(seconds, 1))
        return DoHunt(part.target, part.hunt, settings, os.fspath(self.stop), self.session.pin)

    def timeout(self, part: _Hunting) -> float:
        """Returns the seconds until a hunt without reply is late: its own time, and time to judge its finds."""
        return (self.session.settings.seconds or 0.0) + self.session.timeout + CLOSING_SECONDS

    def heard(self, part: _Hunting, text: str) -> None:
        """Records a report of progress."""
        said = msgspec.json.decode(text, type=HuntProgress)
        if said.case:
            part.best = said
        elif part.best is not None:
            part.best = msgspec.structs.replace(said, case=part.best.case, index=part.best.index)
        self.session.progress(part.name, said)

    def done(self, part: _Hunting, reply: HuntReply, seconds: float) -> None:
        """Records a hunt that ended with a result."""
        self._keep(part, seconds, reply.result.status, results=[reply.result], notes=reply.notes)
        self.session.summaries.append(
            HuntSummary(part.hunted.kernel.name, part.target, part.hunt, reply.sentence, reply.seconds, reply.pinned)
        )

    def failed(self, part: _Hunting, why: NoResult, seconds: float) -> None:
        """Records a hunt that ended without a result."""
        message = f"{part.name}: {why.message}"
        if why.kind is None:
            self._keep(part, seconds, why.status, message=message, notes=part.best_so_far(message))
            return
        self._leave_out(part, why.kind, why.message)
        if why.kind == "out of time":
            part.hunted.notes += part.best_so_far(message)

    def _leave_out(self, part: _Hunting, kind: GapKind, reason: str) -> None:
        part.hunted.not_done = reason
        self.gaps.append(Gap(kind, f"hunt of {part.key}: {reason}", part.target))

    def _keep(self, part: _Hunting, seconds: float, status: Status, **found: Any) -> None:
        done = part.hunted.kernel.run(status, seconds=round(seconds, 3), **found)
        part.hunted.done[part.hunt] = done
        if not self.was_interrupted:  # the next start repeats a hunt that was cut short
            self.keep(part.key, done)

    def record(self) -> tuple[list[KernelRun], list[Gap]]:
        """Returns one entry for each kernel with all its hunts, and the gaps."""
        kernels = [_kernel_run(each) for each in self.hunted]
        gaps = crashes(kernels) + sorted(self.gaps, key=lambda gap: gap.kind != "harness error")
        if self.was_interrupted:
            gaps.append(Gap("interrupted", "interrupted: the hunts say how many evaluations they had made"))
        return kernels, gaps


def _kernel_run(hunted: _HuntedKernel) -> KernelRun:
    """Combines all hunts of a kernel in one entry. The first hunt that failed decides the kernel's status."""
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
