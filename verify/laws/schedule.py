"""The laws of many kernels over many workers: what the nightly run does.

One law of one kernel in one dtype is a unit of its own, so that all workers are busy to the end, and so that whatever
happens to it (the kernel takes the process down, the harness is in error, time runs out) happens to it alone. Where
time may run out, units of the first round of all kernels come before those of the second
(`verify.laws.engine.rounds`): a budget that ends early leaves every law tried on every kernel with fewer cases, not
some kernels untried. Else a worker does all rounds of one kernel in one dtype before it begins another.

A worker stays with one kernel in one dtype, law after law, because a Triton kernel takes longer to compile for a shape
than a law to check it, and what was compiled for one law serves the next. From there it goes to a dtype of the same
kernel at which nobody is: for another kernel it needs a fresh process, which imports what laws need and meets the GPU
anew. Kernels that take longest come first.

Finished units are kept, and are not done again.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import msgspec

from verify.declare.requests import declared_by
from verify.declare.target import Declared
from verify.errors import SPENT, InternalError, TruthError, UsageError, VerifyError, no_verdict
from verify.laws.requests import LawPlan, PlanLaws, TryLaw
from verify.measure.session import LONGEST
from verify.records.identity import Invocation, assembled
from verify.records.part_store import PartStore
from verify.records.record import Gap, GapKind, KernelRun, LawRun, Run, Status, unrepeatable
from verify.workers.pool import Job, Pool
from verify.workers.process import START_SECONDS, OutOfTime
from verify.workers.requests import Died, Late

GIVEN_UP = 3  # times that a kernel may crash or hang: each costs a fresh process, or the whole time limit


@dataclass
class LawSettings:
    """What to try, how hard, for how long, and where finished units are kept."""

    profile: str
    without: tuple[str, ...] = ()  # laws that are left out
    seed: int = 0
    timeout: float = 600.0  # for one law
    until: float | None = None  # of time.monotonic(): nothing begins later
    kept: PartStore | None = None
    progress: Callable[[str], None] = lambda text: None


class Unit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One round of one law on one kernel in one dtype, as it is kept: its result, or how it failed."""

    target: str
    dtype: str
    law: str
    round: int
    run: LawRun | None = None
    status: str = ""
    message: str = ""
    seconds: float = 0.0  # with the start of the process, where it had to be replaced

    @property
    def key(self) -> str:
        """The name of this part in the store."""
        return f"{self.target} {self.dtype} {self.law} {self.round}"


@dataclass
class _Subject:
    """A kernel and what its laws came to."""

    kernel: Declared
    done: dict[tuple[str, str], list[Unit]] = field(default_factory=dict)  # by dtype and law, round after round
    gaps: list[Gap] = field(default_factory=list)
    failures: int = 0
    seconds: float = 0.0

    def left_out(self, kind: GapKind, unit: Unit, reason: str) -> None:
        """A law that has no verdict."""
        text = f"{self.kernel.name}: the law of {unit.dtype} {unit.law}: {reason}"
        self.gaps.append(Gap(kind, text, self.kernel.target))


def run(kernels: Sequence[Declared], pool: Pool, settings: LawSettings, command: str) -> Run:
    """Every law of every kernel, on a pool that the caller stops."""
    started = time.monotonic()
    about = pool.about()
    plan = pool.ask(PlanLaws(settings.profile, settings.without), timeout=START_SECONDS)
    subjects = [_Subject(kernel) for kernel in kernels]
    queue = _Queue(subjects, plan, settings)
    pool.run(queue.take)
    done = [_kernel_run(subject, plan) for subject in subjects]
    return assembled(
        about.backend,
        about.environment,
        Invocation(command, settings.profile, settings.seed),
        kernels=done,
        incomplete=[gap for subject, each in zip(subjects, done, strict=True) for gap in _gaps(subject, each)],
        seconds=time.monotonic() - started,
    )


class _Place(NamedTuple):
    """A unit in the queue, by numbers; the smallest is done first where nothing else decides."""

    round: int
    turn: int  # of the kind of op
    subject: int
    dtype: int
    law: int

    @property
    def forms(self) -> tuple[int, int]:
        """What is compiled for one such unit serves the others."""
        return self.subject, self.dtype


class _Queue:
    """The policy of laws: a queue of units, into which each unit that is done puts the next round of its law."""

    def __init__(self, subjects: Sequence[_Subject], plan: LawPlan, settings: LawSettings) -> None:
        self.subjects, self.plan, self.settings = subjects, plan, settings
        self.waiting: list[_Place] = []
        self.busy: Counter[tuple[int, int]] = Counter()  # workers at each subject in each dtype
        self.at: Counter[int] = Counter()  # workers at each subject
        self.finished = 0  # units, of all rounds
        for place, subject in enumerate(subjects):
            for law in range(len(plan.laws)):
                for dtype in range(len(subject.kernel.dtypes)):
                    self._put(0, law, place, dtype)
        self.total = len(self.waiting) * plan.rounds  # less the further rounds of laws that have none

    def _put(self, number: int, law: int, place: int, dtype: int) -> None:
        turn = LONGEST.index(self.subjects[place].kernel.kind)
        self.waiting.append(_Place(number, turn, place, dtype, law))

    def take(self, last: Job[Any] | None) -> Job[LawRun] | None:
        """The next unit that is not known, of the kernel and dtype that the worker is at where there is one."""
        forms = None if last is None else last.about
        while self.waiting:
            place = min(self.waiting, key=partial(self._turn, forms))
            self.waiting.remove(place)
            forms = place.forms
            subject = self.subjects[place.subject]
            unit = Unit(
                subject.kernel.target, subject.kernel.dtypes[place.dtype], self.plan.laws[place.law], place.round
            )
            known = None if self.settings.kept is None else self.settings.kept.known(unit.key, Unit)
            if known is not None:
                self._end(place, known)
            elif subject.failures < GIVEN_UP:
                return self._job(place, unit)
            else:
                self._last_round(place)
                if place.round == 0:
                    subject.left_out("given up", unit, f"not begun: it failed {GIVEN_UP} times")
        return None

    def _turn(self, forms: tuple[int, int] | None, place: _Place) -> tuple[Any, ...]:
        """What a worker that was at `forms` does first: the smallest."""
        rounds_first = place.round if self.settings.until is not None else 0
        elsewhere = forms is None or place.subject != forms[0]
        return rounds_first, place.forms != forms, self.busy[place.forms], elsewhere, self.at[place.subject], place

    def _last_round(self, place: _Place) -> None:
        """A unit came to an end, and its law to no further round."""
        self.finished += 1
        self.total -= self.plan.rounds - 1 - place.round

    def _job(self, place: _Place, unit: Unit) -> Job[LawRun]:
        subject, settings, started = self.subjects[place.subject], self.settings, time.monotonic()
        round_ = f", round {place.round + 1} of {self.plan.rounds}" if self.plan.rounds > 1 else ""
        settings.progress(f"{self.finished:,}/{self.total:,} {subject.kernel.name} {unit.dtype} {unit.law}{round_}")
        self.busy[place.forms] += 1
        self.at[place.subject] += 1

        def ended(unit: Unit | None) -> None:
            self.busy[place.forms] -= 1
            self.at[place.subject] -= 1
            seconds = time.monotonic() - started
            subject.seconds += seconds
            if unit is None:
                self._last_round(place)
                return
            unit = msgspec.structs.replace(unit, seconds=round(seconds, 3))
            if settings.kept is not None:
                settings.kept.keep(unit.key, unit)
            self._end(place, unit)

        def done(found: LawRun) -> None:
            if found.in_error:
                subject.left_out("harness error", unit, found.message)
            ended(None if found.in_error else msgspec.structs.replace(unit, run=found))

        def failed(error: VerifyError) -> None:
            ended(self._failed(subject, unit, error))

        return Job(
            TryLaw(unit.target, unit.dtype, unit.law, unit.round, settings.profile, settings.seed),
            done=done,
            failed=failed,
            timeout=settings.timeout,
            until=settings.until,
            prepare=lambda worker: declared_by(worker, unit.target),
            about=place.forms,
        )

    def _failed(self, subject: _Subject, unit: Unit, error: VerifyError) -> Unit | None:
        """The unit with how it failed; None where nothing is known of the kernel, which is a gap then."""
        status: Status = "error"
        message = error.message if isinstance(error, UsageError) else str(error)
        match error:
            case OutOfTime():
                if unit.round == 0:
                    subject.left_out("out of time", unit, message)
                return None
            case TruthError() | InternalError():
                subject.left_out("harness error", unit, no_verdict(error))
                return None
            case Late():
                status, message = "timeout", f"no result within {self.settings.timeout:g} s; stopped"
            case Died():
                status = "crashed"
        return msgspec.structs.replace(unit, status=status, message=f"{unit.dtype} {unit.law}: {message}")

    def _end(self, place: _Place, unit: Unit) -> None:
        """Keep a finished unit; its law has another round where it holds so far."""
        subject = self.subjects[place.subject]
        subject.done.setdefault((unit.dtype, unit.law), []).append(unit)
        subject.failures += unit.run is None
        if unit.run is not None and unit.run.status == "ok" and place.round + 1 < self.plan.rounds:
            self.finished += 1
            self._put(place.round + 1, place.law, place.subject, place.dtype)
        else:
            self._last_round(place)


def _kernel_run(subject: _Subject, plan: LawPlan) -> KernelRun:
    found: list[LawRun] = []
    failed: list[Unit] = []
    short = 0
    for law in plan.laws:
        for dtype in subject.kernel.dtypes:
            units = sorted(subject.done.get((dtype, law), []), key=lambda unit: unit.round)
            failed += [unit for unit in units if unit.run is None]
            if runs := [unit.run for unit in units if unit.run is not None]:
                found.append(msgspec.structs.replace(runs[-1], cases=sum(run.cases for run in runs)))
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
    """Laws that nobody asked for stand in the record too: what is not tried is said."""
    return [LawRun(law, dtype, "skipped", 0, "left out by --without") for law in laws for dtype in dtypes]


def _gaps(subject: _Subject, done: KernelRun) -> list[Gap]:
    """What of a kernel has no verdict: errors of the harness first."""
    found = sorted(subject.gaps, key=lambda gap: (gap.kind != "harness error", gap.text))
    if done.status == "crashed" or done.status == "timeout":
        found.insert(0, Gap(done.status, f"{done.name}: {done.message}", done.target))
    return found
