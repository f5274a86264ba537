"""The laws of many kernels over many workers: what the nightly run does.

A unit is one round (`verify.laws.engine.rounds`) of one law of one kernel in one dtype. A unit that crashes or has no
verdict affects no other. Where time may run out, the first rounds of all kernels come before the second ones: a budget
that ends early leaves every law tried on every kernel with fewer cases.

A worker stays with one kernel in one dtype: a Triton kernel takes longer to compile for a shape than a law to check it,
and one law's compiled shapes serve the next. From there it goes to a dtype of the same kernel at which no worker is.
Another kernel needs a new process. Kernels that take longest come first.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from verify.declare.target import Declared
from verify.errors import SPENT
from verify.laws.requests import LawPlan, PlanLaws, TryLaw
from verify.measure.session import LONGEST
from verify.measure.source import NoResult, Source, Work, collect, crashes
from verify.records.record import Gap, GapKind, KernelRun, LawRun, Run, unrepeatable
from verify.workers.pool import Pool
from verify.workers.process import START_SECONDS
from verify.workers.requests import About

GIVEN_UP = 3  # times that a kernel may crash or hang: each costs a fresh process, or the whole time limit


@dataclass
class LawSettings(Work):
    """What to try."""

    profile: str
    without: tuple[str, ...] = ()  # laws that are left out


def run(kernels: Sequence[Declared], settings: LawSettings, command: str) -> Run:
    """Try every law of every kernel."""
    return collect(_Trying(kernels, settings), command)


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


class _Place(NamedTuple):
    """A unit in the queue. The numbers before it order the queue: the smallest is done first, where nothing else
    decides."""

    round: int
    turn: int  # of the kind of op
    subject: int
    dtype: int
    law: int
    unit: Unit

    @property
    def target(self) -> str:
        return self.unit.target

    @property
    def forms(self) -> tuple[int, int]:
        """What is compiled for one such unit serves the others."""
        return self.subject, self.dtype


class _Trying(Source[_Place, LawRun]):
    """The units of all kernels; each that is done puts the next round of its law into the queue."""

    plan: LawPlan

    def __init__(self, kernels: Sequence[Declared], settings: LawSettings) -> None:
        super().__init__(settings)
        self.settings, self.profile = settings, settings.profile
        self.subjects = [_Subject(kernel) for kernel in kernels]
        self.finished = 0  # units, of all rounds

    def open(self, pool: Pool) -> About:
        """Asks which laws there are, and puts the first round of each into the queue."""
        about = pool.about()
        self.plan = pool.ask(PlanLaws(self.profile, self.settings.without), timeout=START_SECONDS)
        for place, subject in enumerate(self.subjects):
            for law in range(len(self.plan.laws)):
                for dtype in range(len(subject.kernel.dtypes)):
                    self._put(0, law, place, dtype)
        self.total = len(self.waiting) * self.plan.rounds  # less the further rounds of laws that have none
        return about

    def _put(self, number: int, law: int, place: int, dtype: int) -> None:
        kernel = self.subjects[place].kernel
        unit = Unit(kernel.target, kernel.dtypes[dtype], self.plan.laws[law], number)
        self.waiting.append(_Place(number, LONGEST.index(kernel.kind), place, dtype, law, unit))

    def next(self, last: _Place | None) -> _Place | None:
        """A unit of the kernel and dtype that the worker is at where there is one."""
        if not self.waiting:
            return None
        forms = None if last is None else last.forms
        busy, at = Counter(each.forms for each in self.running), Counter(each.subject for each in self.running)

        def turn(place: _Place) -> tuple[Any, ...]:
            rounds_first = place.round if self.until is not None else 0
            elsewhere = last is None or place.subject != last.subject
            return rounds_first, place.forms != forms, busy[place.forms], elsewhere, at[place.subject], place

        place = min(self.waiting, key=turn)
        self.waiting.remove(place)
        return place

    def settle(self, place: _Place) -> bool:
        """A unit that is known, or of a kernel that failed too often."""
        subject = self.subjects[place.subject]
        if (known := self.known(place.unit.key, Unit)) is not None:
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
        """Keeps the unit, unless the harness was in error: then it has no verdict."""
        if reply.in_error:
            self._no_verdict(place, "harness error", reply.message, seconds)
        else:
            self._keep(place, seconds, run=reply)

    def failed(self, place: _Place, why: NoResult, seconds: float) -> None:
        """Keeps how the kernel failed; where it is not to blame, the law has no verdict."""
        if why.kind is None:
            message = f"{place.unit.dtype} {place.unit.law}: {why.message}"
            self._keep(place, seconds, status=why.status, message=message)
        else:
            self._no_verdict(place, why.kind, why.message, seconds)

    def _no_verdict(self, place: _Place, kind: GapKind, reason: str, seconds: float) -> None:
        subject = self.subjects[place.subject]
        subject.seconds += seconds
        if kind != "out of time" or place.round == 0:  # else the verdict of the earlier rounds stays
            subject.left_out(kind, place.unit, reason)
        self._last_round(place)

    def _keep(self, place: _Place, seconds: float, **found: Any) -> None:
        self.subjects[place.subject].seconds += seconds
        unit = msgspec.structs.replace(place.unit, **found, seconds=round(seconds, 3))
        self.keep(unit.key, unit)
        self._end(place, unit)

    def _end(self, place: _Place, unit: Unit) -> None:
        """Counts a finished unit; its law has another round where it holds so far."""
        subject = self.subjects[place.subject]
        subject.done.setdefault((unit.dtype, unit.law), []).append(unit)
        subject.failures += unit.run is None
        if unit.run is not None and unit.run.status == "ok" and place.round + 1 < self.plan.rounds:
            self.finished += 1
            self._put(place.round + 1, place.law, place.subject, place.dtype)
        else:
            self._last_round(place)

    def _last_round(self, place: _Place) -> None:
        """A unit came to an end, and its law to no further round."""
        self.finished += 1
        self.total -= self.plan.rounds - 1 - place.round

    def record(self) -> tuple[list[KernelRun], list[Gap]]:
        """The laws of each kernel, and what of it has no verdict: errors of the harness first."""
        kernels = [_kernel_run(subject, self.plan) for subject in self.subjects]
        gaps = []
        for subject, kernel in zip(self.subjects, kernels, strict=True):
            of_harness_first = sorted(subject.gaps, key=lambda gap: (gap.kind != "harness error", gap.text))
            gaps += [*crashes([kernel]), *of_harness_first]
        return kernels, gaps


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
