"""Runs many hunts in worker processes and makes one record of them. `verify hunt` and the nightly run use it.

A unit (`verify.measure.source`) is the hunt of one result in one dtype. Ctrl-C asks the running hunts to stop and to
report their finds; a second Ctrl-C abandons them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from verify.declare.requests import declared_by
from verify.errors import UsageError
from verify.measure.source import KernelUnits, SourceSettings, Unit, Units, collect
from verify.records.record import Gap, KernelRun, Run
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


@dataclass(eq=False, kw_only=True)
class _Hunting(Unit):
    """Holds one hunt of a kernel."""

    hunt: Hunt


def run(targets: Sequence[str], session: HuntSession, command: str) -> Run:
    """Runs the hunts of every kernel of every target."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="verify-hunt-"))
        return collect(_Hunts(targets, session, Path(folder) / "stop", stack), command)


class _Hunts(Units[_Hunting, HuntReply]):
    """Holds the hunts of all kernels."""

    profile = "hunt"
    gap = "hunt of {0.key}: {1}"

    def __init__(self, targets: Sequence[str], session: HuntSession, stop: Path, stack: ExitStack) -> None:
        super().__init__(session)
        self.targets, self.session, self.stop, self.stack = targets, session, stop, stack
        self.until = None if session.until is None else session.until + CLOSING_SECONDS
        self.was_interrupted = False
        self.raise_flag: Callable[[], None] = stop.touch

    def open(self, pool: Pool) -> About:
        """Requests the hunts of every kernel."""
        about = pool.about()
        self.raise_flag = self.stack.enter_context(pool.flag(self.stop))
        hunts = [each for target in self.targets for each in self.hunts_of(pool, target, about.backend)]
        units = [
            _Hunting(of, hunt.dtype, f"{of.kernel.name} {key}", f"{of.kernel.target} {key}", hunt=hunt)
            for of, some in hunts
            for hunt in some
            for key in [f"{hunt.result} {hunt.dtype}"]
        ]
        self.enqueue([of for of, _ in hunts], units, len(pool.workers))
        return about

    def hunts_of(self, pool: Pool, target: str, backend: str) -> list[tuple[KernelUnits, list[Hunt]]]:
        """Returns the kernels of a target with their hunts.

        A kernel that cannot be hunted raises UsageError if it is the target's only kernel. Otherwise its entry has the
        reason.
        """
        declared, session, found = declared_by(pool, target), self.session, []
        for kernel in declared:
            of, hunts = KernelUnits(kernel), Hunts([], [])
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

    def record(self) -> tuple[list[KernelRun], list[Gap]]:
        """Returns one entry for each kernel with all its hunts, and the gaps."""
        kernels, gaps = super().record()
        if self.was_interrupted:
            gaps.append(Gap("interrupted", "interrupted: the hunts say how many evaluations they had made"))
        return kernels, gaps
