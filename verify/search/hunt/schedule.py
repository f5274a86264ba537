"""Runs many hunts in worker processes and makes one record of them. `verify hunt` and the nightly run use it.

A hunt is of one result in one dtype. Ctrl-C asks the running hunts to stop and to
report their finds; a second Ctrl-C abandons them.
"""

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
from verify.measure.source import KINDS, NoResult, Source, SourceSettings, collect, crashes
from verify.records.record import RESULT_STATUSES, Gap, GapKind, KernelRun, Run, Status
from verify.search.hunt.requests import DoHunt, Hunt, HuntProgress, HuntReply, Hunts, ListHunts, Settings
from verify.workers.pool import Pool
from verify.workers.process import START_SECONDS
from verify.workers.requests import About

CLOSING_SECONDS = 120.0  # to judge the finds exactly after the budget is spent


@dataclass(kw_only=True)
class HuntSession(SourceSettings):
    """Holds the settings of many hunts."""

    settings: Settings
    dtypes: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    contain: bool = False
    stopping: Callable[[], None] = lambda: None  # called once, when the first Ctrl-C arrives
    asked: Mapping[str, Hunts] | None = None  # the hunts by target, if the caller has already requested them

    def __post_init__(self) -> None:
        self.settings.check()
        self.seed = self.settings.seed


GIVEN_UP = 3  # a kernel may crash or hang this often; each time costs a new process or the whole time limit


@dataclass
class _Hunted:
    """Holds one kernel and collects the outcomes of its hunts."""

    kernel: Declared
    notes: list[str] = field(default_factory=list)
    done: dict[str, KernelRun] = field(default_factory=dict)  # by the key of the hunt
    not_done: str = "not begun: interrupted"  # why the last hunt without an outcome has none


@dataclass(eq=False)
class _Hunting:
    """Holds one hunt of a kernel, which waits or runs in a worker."""

    of: _Hunted
    hunt: Hunt
    share: float | None = None  # of the remaining time, in seconds

    @property
    def name(self) -> str:
        """Returns the name on the screen and in messages."""
        return f"{self.of.kernel.name} {self.hunt.result} {self.hunt.dtype}"

    @property
    def key(self) -> str:
        """Returns the key in the part store."""
        return f"{self.target} {self.hunt.result} {self.hunt.dtype}"

    @property
    def target(self) -> str:
        """Returns the target of the kernel."""
        return self.of.kernel.target

    @property
    def length(self) -> tuple[int, bool]:
        """Returns a key. Hunts with the same one take about as long, on the same hardware."""
        return KINDS.index(self.of.kernel.kind), self.hunt.dtype == "float64"


def run(targets: Sequence[str], session: HuntSession, command: str) -> Run:
    """Runs the hunts of every kernel of every target."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="verify-hunt-"))
        return collect(_Hunts(targets, session, Path(folder) / "stop", stack), command)


class _Hunts(Source[_Hunting, HuntReply]):
    """Holds the hunts of all kernels, each done once and with its share of the remaining time.

    A hunt that crashes, hangs or has no verdict costs itself alone. All hunts wait in one queue, the longest first, so
    that no worker idles at the end. Among hunts of the same length, a worker stays with the kernel whose process it
    has. With `until`, the hunts that have not begun share the time left. The record names those that had no time.
    """

    profile = "hunt"

    def __init__(self, targets: Sequence[str], session: HuntSession, stop: Path, stack: ExitStack) -> None:
        super().__init__(session)
        self.targets, self.session, self.stop, self.stack = targets, session, stop, stack
        self.until = None if session.until is None else session.until + CLOSING_SECONDS
        self.was_interrupted = False
        self.gaps: list[Gap] = []
        self.raise_flag: Callable[[], None] = stop.touch

    def open(self, pool: Pool) -> About:
        """Requests the hunts of every kernel."""
        about = pool.about()
        self.raise_flag = self.stack.enter_context(pool.flag(self.stop))
        found = [each for target in self.targets for each in self.hunts_of(pool, target, about.backend)]
        self.enqueue(found, len(pool.workers))
        return about

    def enqueue(self, found: Sequence[tuple[_Hunted, list[Hunt]]], workers: int) -> None:
        """Queues the hunts of these kernels: the longest first, in the order of the kernels.

        float64 and the other dtypes alternate: float64 keeps a core busy, the others the GPU.
        """
        self.kernels, self.workers = [of for of, _ in found], workers
        hunts = [_Hunting(of, hunt) for of, some in found for hunt in some]
        self.places = {each.key: at for at, each in enumerate(hunts)}
        longest = sorted(hunts, key=lambda each: each.length[0])
        exact, others = ([each for each in longest if each.length[1] == wide] for wide in (True, False))
        self.waiting = [each for pair in zip_longest(exact, others) for each in pair if each is not None]
        self.lengths = deque(each.length for each in self.waiting)

    def hunts_of(self, pool: Pool, target: str, backend: str) -> list[tuple[_Hunted, list[Hunt]]]:
        """Returns the kernels of a target with their hunts.

        A kernel that cannot be hunted raises UsageError if it is the target's only kernel. Otherwise its entry has the
        reason.
        """
        declared, session, found = declared_by(pool, target), self.session, []
        for kernel in declared:
            of, hunts = _Hunted(kernel), Hunts([], [])
            if unfit := kernel.unfit(backend, "hunt"):
                of.not_done = unfit
            else:
                try:
                    asked = ListHunts(kernel.target, session.dtypes, session.results)
                    hunts = (session.asked or {}).get(kernel.target) or pool.ask(asked, timeout=START_SECONDS)
                except UsageError as error:
                    if len(declared) == 1:
                        raise
                    of.not_done = error.message
            of.notes += [f"not hunted: {reason}" for reason in hunts.left_out]
            found.append((of, hunts.hunts))
        return found

    def on_interrupt(self) -> None:
        """Creates the file `stop`, here and on every machine that runs a hunt, which ends the hunts early."""
        self.was_interrupted = True
        self.stop.touch()
        self.session.stopping()
        self.raise_flag()

    def keep(self, name: str, value: Any) -> None:
        """Stores a hunt, unless it was cut short: the next start repeats it."""
        if not self.was_interrupted:
            super().keep(name, value)

    def next(self, last: _Hunting | None) -> _Hunting | None:
        """Takes a hunt of the length whose turn it is."""
        if not self.waiting:
            return None
        left, length = len(self.waiting), self.lengths.popleft()
        hunt = self.take_nearest(last, lambda each: each.length == length)
        if self.work.until is not None:
            hunt.share = (self.work.until - time.monotonic()) * self.workers / left
        return hunt

    def settle(self, part: _Hunting) -> bool:
        """True if a hunt needs no worker: an earlier start finished it, no time is left, or its kernel fails often."""
        known = self.known(part.key, KernelRun)
        failures = sum(each.status not in RESULT_STATUSES for each in part.of.done.values())
        if known is not None:
            part.of.done[part.key] = known
        elif failures >= GIVEN_UP:
            self.leave_out(part, "given up", f"not begun: it failed {GIVEN_UP} times")
        elif part.share is not None and part.share <= 0:
            self.leave_out(part, "out of time", f"not begun: {SPENT}")
        else:
            return False
        return True

    def begin(self, part: _Hunting) -> DoHunt:
        """Returns the request of one hunt."""
        settings = self.session.settings
        if part.share is not None:
            seconds = max(1.0, min(part.share, settings.seconds or part.share))
            settings = replace(settings, seconds=round(seconds, 1))
        return DoHunt(part.target, part.hunt, settings, os.fspath(self.stop))

    def timeout(self, part: _Hunting) -> float:
        """Returns the seconds until a hunt without reply is late: its own time, and time to judge its finds."""
        return (self.session.settings.seconds or 0.0) + self.session.timeout + CLOSING_SECONDS

    def heard(self, part: _Hunting, text: str) -> None:
        """Passes a report of progress on."""
        self.session.progress(part.name, msgspec.json.decode(text, type=HuntProgress))

    def done(self, part: _Hunting, reply: HuntReply, seconds: float) -> None:
        """Records a hunt that ended with a result."""
        self.finish(part, seconds, reply.result.status, results=[reply.result], notes=reply.notes)

    def failed(self, part: _Hunting, why: NoResult, seconds: float) -> None:
        """Records how the kernel failed. If it is not to blame, the hunt has no verdict."""
        if why.kind is None:
            self.finish(part, seconds, why.status, message=f"{part.name}: {why.message}")
        else:
            self.leave_out(part, why.kind, why.message)

    def leave_out(self, part: _Hunting, kind: GapKind, reason: str) -> None:
        """Records a gap in the place of a hunt's outcome."""
        part.of.not_done = reason
        self.gaps.append(Gap(kind, f"hunt of {part.key}: {reason}", part.target))

    def finish(self, part: _Hunting, seconds: float, status: Status, **found: Any) -> None:
        """Records the outcome of a hunt, and keeps it for later starts."""
        part.of.done[part.key] = done = part.of.kernel.run(status, seconds=round(seconds, 3), **found)
        self.keep(part.key, done)

    def record(self) -> tuple[list[KernelRun], list[Gap]]:
        """Returns one entry for each kernel with all its hunts, and the gaps. Errors of verify itself come first."""
        kernels = [self.entry(each) for each in self.kernels]
        gaps = [*crashes(kernels), *sorted(self.gaps, key=lambda gap: (gap.kind != "harness error", gap.text))]
        if self.was_interrupted:
            gaps.append(Gap("interrupted", "interrupted: the hunts say how many evaluations they had made"))
        return kernels, gaps

    def entry(self, of: _Hunted) -> KernelRun:
        """Combines all hunts of a kernel in one entry. The first one that failed decides the kernel's status."""
        done = [of.done[key] for key in sorted(of.done, key=self.places.__getitem__)]
        found = [each.status for each in done if each.results and each.status in RESULT_STATUSES]
        failed = next((each for each in done if each.status not in RESULT_STATUSES), None)
        status: Status = max(found, key=RESULT_STATUSES.index, default="skipped")
        return of.kernel.run(
            failed.status if failed else status,
            failed.message if failed else "" if found else of.not_done,
            hint=failed.hint if failed else "",
            results=[result for each in done for result in each.results],
            notes=[*of.notes, *(note for each in done for note in each.notes)],
            seconds=round(sum(each.seconds for each in done), 3),
        )
