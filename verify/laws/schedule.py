"""Tries the laws of many kernels on many workers, for nightly runs.

A unit is one round (`verify.laws.engine.rounds`) of one law of one kernel in one dtype. A unit that crashes or has no
verdict does not affect others. If time is limited, the first rounds of all kernels come before the second ones. So a
short budget still tries every law on every kernel, with fewer cases.

A worker prefers one kernel in one dtype: compiling a Triton kernel for a shape takes longer than checking a law, and
the next law can use the compiled shapes of the last. After that it goes where most units wait for each worker. Another
kernel needs a new process, whose start takes as long as some units. So a worker waits rather than starts a process for
the last units of a kernel on which another worker is. Kernels that take longest come first.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, NamedTuple

import msgspec

from verify.declare.target import Declared
from verify.errors import SPENT
from verify.laws.requests import LawPlan, PlanLaws, TryLaw
from verify.measure.session import longest_first
from verify.measure.source import NoResult, Source, Work, collect, crashes, gaps_of_laws
from verify.records.record import Gap, GapKind, KernelRun, LawRun, Run, unrepeatable
from verify.workers.pool import Pool
from verify.workers.process import START_SECONDS
from verify.workers.requests import About

STARTED = 5  # units of a law that take as long as the start of a kernel's process
GIVEN_UP = 3  # a kernel may crash or hang this often; each time costs a new process or the whole time limit


@dataclass
class LawSettings(Work):
    """Holds the settings of a run of laws."""

    profile: str
    without: tuple[str, ...] = ()  # laws that are not tried


def run(kernels: Sequence[Declared], settings: LawSettings, command: str) -> Run:
    """Tries every law of every kernel."""
    return collect(_Trying(kernels, settings), command)


class LawRound(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Holds one round of one law on one kernel in one dtype, with its result or its failure, as it is stored."""

    target: str
    dtype: str
    law: str
    round: int
    run: LawRun | None = None
    status: str = ""
    message: str = ""
    seconds: float = 0.0  # includes the start of the process if it was replaced

    @property
    def key(self) -> str:
        """Returns the name of this part in the store."""
        return f"{self.target} {self.dtype} {self.law} {self.round}"


@dataclass
class _Subject:
    """Holds a kernel and the outcome of its laws."""

    kernel: Declared
    # finished units by dtype and law, in the order of the rounds
    done: dict[tuple[str, str], list[LawRound]] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    failures: int = 0
    seconds: float = 0.0

    def left_out(self, kind: GapKind, unit: LawRound, reason: str) -> None:
        """Records a gap for a law without a verdict."""
        text = f"{self.kernel.name}: the law of {unit.dtype} {unit.law}: {reason}"
        self.gaps.append(Gap(kind, text, self.kernel.target))


class _Place(NamedTuple):
    """Holds a unit in the queue.

    The numbers before the unit order the queue, smallest first, if nothing else decides.
    """

    round: int
    turn: tuple[int, int]  # long work comes first
    subject: int
    dtype: int
    law: int
    unit: LawRound

    @property
    def target(self) -> str:
        return self.unit.target

    @property
    def forms(self) -> tuple[int, int]:
        """Returns a key. Units with the same key share compiled code."""
        return self.subject, self.dtype


class _Trying(Source[_Place, LawRun]):
    """Holds the units of all kernels. A finished unit adds the next round of its law to the queue."""

    plan: LawPlan

    def __init__(self, kernels: Sequence[Declared], settings: LawSettings) -> None:
        super().__init__(settings)
        self.settings, self.profile = settings, settings.profile
        self.subjects = [_Subject(kernel) for kernel in kernels]
        self.queues: dict[tuple[int, int], list[_Place]] = {}  # the waiting units of a kernel in a dtype, as heaps
        self.finished = 0  # number of finished units, in all rounds

    def open(self, pool: Pool) -> About:
        """Gets the list of laws, and adds the first round of each to the queue."""
        about = pool.about()
        self.plan = pool.ask(PlanLaws(self.profile, self.settings.without), timeout=START_SECONDS)
        for place, subject in enumerate(self.subjects):
            for law in range(len(self.plan.laws)):
                for dtype in range(len(subject.kernel.dtypes)):
                    self._put(0, law, place, dtype)
        # minus the further rounds of laws that end early
        self.total = sum(map(len, self.queues.values())) * self.plan.rounds
        return about

    def _put(self, number: int, law: int, place: int, dtype: int) -> None:
        kernel = self.subjects[place].kernel
        unit = LawRound(kernel.target, kernel.dtypes[dtype], self.plan.laws[law], number)
        turn = longest_first(kernel.kind, unit.dtype)
        heappush(self.queues.setdefault((place, dtype), []), _Place(number, turn, place, dtype, law, unit))

    def next(self, last: _Place | None) -> _Place | None:
        """Takes a unit of the kernel and dtype that the worker is busy with, if there is one."""
        busy, at = Counter(each.forms for each in self.running), Counter(each.subject for each in self.running)

        def worthwhile(queue: list[_Place]) -> bool:
            """True unless another worker ends these units in less time than a new process takes to help it."""
            others = busy[queue[0].forms]
            here = last is not None and queue[0].subject == last.subject
            return here or not others or self._left(queue) >= STARTED * others * (others + 1)

        def turn(queue: list[_Place]) -> tuple[Any, ...]:
            first, others = queue[0], busy[queue[0].forms]
            rounds_first = first.round if self.until is not None else 0
            away = 2 if last is None or first.subject != last.subject else int(first.forms != last.forms)
            share = -self._left(queue) / (others + 1) if others else at[first.subject]
            return rounds_first, bool(away), bool(others), away, share, first

        waiting = (queue for queue in self.queues.values() if queue and worthwhile(queue))
        queue = min(waiting, key=turn, default=None)
        return None if queue is None else heappop(queue)

    def _left(self, queue: list[_Place]) -> int:
        """Returns the number of waiting units and of the rounds that may follow each."""
        return sum(self.plan.rounds - place.round for place in queue)

    def settle(self, place: _Place) -> bool:
        """True if a unit is stored, or belongs to a kernel that failed too often."""
        subject = self.subjects[place.subject]
        if (known := self.known(place.unit.key, LawRound)) is not None:
            self._end(place, known)
        elif subject.failures >= GIVEN_UP:
            self._last_round(place)
            if place.round == 0:
                subject.left_out("given up", place.unit, f"not begun: it failed {GIVEN_UP} times")
        return known is not None or subject.failures >= GIVEN_UP

    def begin(self, place: _Place) -> TryLaw:
        """Returns the request of a unit."""
        unit, rounds = place.unit, self.plan.rounds
        name = f"{self.subjects[place.subject].kernel.name} {unit.dtype} {unit.law}"
        round_ = f", round {place.round + 1} of {rounds}" if rounds > 1 else ""
        self.settings.progress(f"{self.finished:,}/{self.total:,} {name}{round_}")
        return TryLaw(unit.target, unit.dtype, unit.law, unit.round, self.profile, self.settings.seed)

    def done(self, place: _Place, reply: LawRun, seconds: float) -> None:
        """Stores the unit. If verify itself failed, the unit has no verdict."""
        if reply.in_error:
            self._no_verdict(place, "harness error", reply.message, seconds)
        else:
            self._keep(place, seconds, run=reply)

    def failed(self, place: _Place, why: NoResult, seconds: float) -> None:
        """Stores how the kernel failed. If the kernel is not to blame, the law has no verdict."""
        if why.kind is None:
            message = f"{place.unit.dtype} {place.unit.law}: {why.message}"
            self._keep(place, seconds, status=why.status, message=message)
        else:
            self._no_verdict(place, why.kind, why.message, seconds)

    def _no_verdict(self, place: _Place, kind: GapKind, reason: str, seconds: float) -> None:
        subject = self.subjects[place.subject]
        subject.seconds += seconds
        # out of time in a later round: the verdict of the earlier rounds remains
        if kind != "out of time" or place.round == 0:
            subject.left_out(kind, place.unit, reason)
        self._last_round(place)

    def _keep(self, place: _Place, seconds: float, **found: Any) -> None:
        self.subjects[place.subject].seconds += seconds
        unit = msgspec.structs.replace(place.unit, **found, seconds=round(seconds, 3))
        self.keep(unit.key, unit)
        self._end(place, unit)

    def _end(self, place: _Place, unit: LawRound) -> None:
        """Counts a finished unit. If its law holds so far, adds the next round."""
        subject = self.subjects[place.subject]
        subject.done.setdefault((unit.dtype, unit.law), []).append(unit)
        subject.failures += unit.run is None
        if unit.run is not None and unit.run.status == "ok" and place.round + 1 < self.plan.rounds:
            self.finished += 1
            self._put(place.round + 1, place.law, place.subject, place.dtype)
        else:
            self._last_round(place)

    def _last_round(self, place: _Place) -> None:
        """Counts a finished unit whose law has no further round."""
        self.finished += 1
        self.total -= self.plan.rounds - 1 - place.round

    def record(self) -> tuple[list[KernelRun], list[Gap]]:
        """Returns the laws of each kernel, and the gaps. Errors of verify itself come first."""
        kernels = [_kernel_run(subject, self.plan) for subject in self.subjects]
        gaps = []
        for subject, kernel in zip(self.subjects, kernels, strict=True):
            of_harness_first = sorted(subject.gaps, key=lambda gap: (gap.kind != "harness error", gap.text))
            gaps += [*crashes([kernel]), *of_harness_first, *gaps_of_laws(kernel)]
        return kernels, gaps


def _kernel_run(subject: _Subject, plan: LawPlan) -> KernelRun:
    """Returns the record of a kernel from its finished units. A law's rounds become one entry."""
    found: list[LawRun] = []
    failed: list[LawRound] = []
    short = 0
    for law in plan.laws:
        for dtype in subject.kernel.dtypes:
            units = sorted(subject.done.get((dtype, law), []), key=lambda unit: unit.round)
            failed += [unit for unit in units if unit.run is None]
            if runs := [unit.run for unit in units if unit.run is not None]:
                cases, refused = sum(run.cases for run in runs), sum(run.refused for run in runs)
                undeclared = any(run.undeclared for run in runs)
                found.append(msgspec.structs.replace(runs[-1], cases=cases, refused=refused, undeclared=undeclared))
                short += runs[-1].status == "ok" and len(units) < plan.rounds
    status: Any = "wrong" if any(law.status == "broken" for law in found) else "ok" if found else "skipped"
    message = "" if found else "no law was tried"
    found += left_out(plan.without, subject.kernel.dtypes)
    if failed:
        status, message = failed[0].status, failed[0].message
    return subject.kernel.run(
        status,
        message,
        hint=f"verify run {shlex.quote(subject.kernel.target)}" if failed else "",
        laws=found,
        unrepeatable=unrepeatable(found),
        notes=[f"{short} of {len(found)} laws had fewer cases than the profile draws: {SPENT}"] if short else [],
        seconds=round(subject.seconds, 3),
    )


def left_out(laws: Sequence[str], dtypes: Sequence[str]) -> list[LawRun]:
    """Returns entries for the laws that `--without` left out, so that the record lists them."""
    return [LawRun(law, dtype, "skipped", 0, "left out by --without") for law in laws for dtype in dtypes]
