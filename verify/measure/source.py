"""Collects one record from many parts: source, call, part store, record.

`verify run`, sweeps, hunts and laws all use it. A source lists the parts of its command and chooses the next part of a
free worker. It turns each reply or failure into an entry of the record. `collect` does the rest: it starts workers,
sends requests through the pool (`verify.workers.pool`), limits their time and assembles the record.

    record = collect(Measuring(targets, session), "verify run accuracy.py")
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from verify.declare.requests import declared_by
from verify.errors import InternalError, JudgeFailed, TruthError, UsageError, VerifyError, no_verdict
from verify.records.merge import sealed
from verify.records.part_store import PartStore
from verify.records.record import SCHEMA, Gap, GapKind, KernelRun, Run, Status
from verify.workers.pool import Job, Pool, using
from verify.workers.process import OutOfTime
from verify.workers.requests import About, Died, Late, Request

# kinds of ops, by the time of their kernels, descending: long work comes first, so that no worker idles at the end
KINDS = ("graph", "rowwise", "contraction", "elementwise")


@dataclass(kw_only=True)
class SourceSettings:
    """Holds the settings that every source has."""

    backend: str | None = None
    seed: int = 0
    timeout: float = 600.0  # seconds of one part
    jobs: int = 0  # number of workers; 0: the source decides
    pool: Pool | None = None  # the caller's pool, which the caller stops; None: processes are started
    until: float | None = None  # a time of time.monotonic(); no part begins later
    kept: PartStore | None = None  # where finished parts are written at once, beside those of earlier starts
    contain: bool = True  # True: an error of usage or of verify ends its part; False: it ends the command
    progress: Callable[..., None] = lambda *_: None
    usage: list[str] = field(default_factory=list)  # problems with the arguments


@dataclass(frozen=True)
class NoResult:
    """Holds why a part has no result. With a `kind` it is a gap of the record, and the kernel is not to blame."""

    error: VerifyError
    status: Status
    message: str
    kind: GapKind | None = None

    @staticmethod
    def of(error: VerifyError, timeout: float) -> NoResult:
        """Returns what the record says of an error. `timeout` is the time that the part had."""
        late = f"no result within {timeout:g} s; stopped"
        match error:
            case OutOfTime():
                return NoResult(error, "skipped", str(error), "out of time")
            case JudgeFailed():
                return NoResult(error, "skipped", str(error), "judge failed")
            case Late(who="judge"):  # the kernel's own process has less time, so it would have been late first
                return NoResult(error, "skipped", f"the judge ran out of time: {late}", "judge failed")
            case Late():
                return NoResult(error, "timeout", late)
            case Died():
                return NoResult(error, "crashed", str(error))
            case TruthError() | InternalError():
                return NoResult(error, "skipped", no_verdict(error), "harness error")
        return NoResult(error, "error", error.message if isinstance(error, UsageError) else str(error))


class SourcePart(Protocol):
    """Describes the work of one request."""

    @property
    def target(self) -> str: ...


P = TypeVar("P", bound=SourcePart)
R = TypeVar("R")
T = TypeVar("T")


class Source(ABC, Generic[P, R]):
    """Holds the parts of one command. The pool calls it under one lock."""

    profile: str  # profile of the record
    on_interrupt: Callable[[], None] | None = None  # called at the first Ctrl-C; None: everything stops at once

    def __init__(self, work: SourceSettings) -> None:
        self.work = work
        self.until = work.until
        self.waiting: list[P] = []
        self.running: list[P] = []

    @abstractmethod
    def open(self, pool: Pool) -> About:
        """Finds the parts to do; returns where the workers run."""

    @abstractmethod
    def next(self, last: P | None) -> P | None:
        """Takes the part that a worker does after `last`; None if there is none now."""

    def known(self, name: str, kind: type[T]) -> T | None:
        """Returns a part that an earlier start finished; None if there is none."""
        return None if self.work.kept is None else self.work.kept.known(name, kind)

    def keep(self, name: str, value: Any) -> None:
        """Stores a finished part for later starts."""
        if self.work.kept is not None:
            self.work.kept.keep(name, value)

    def settle(self, part: P) -> bool:
        """True if no worker is needed for a part: an earlier start finished it, or it cannot be done."""
        return False

    @abstractmethod
    def begin(self, part: P) -> Request[R]:
        """Returns the request of a part that a worker begins now."""

    def timeout(self, part: P) -> float:
        """Returns the seconds that a part may take."""
        return self.work.timeout

    def heard(self, part: P, text: str) -> None:
        """Receives a report of progress."""

    @abstractmethod
    def done(self, part: P, reply: R, seconds: float) -> None:
        """Receives the reply to a part, and the seconds that it took."""

    @abstractmethod
    def failed(self, part: P, why: NoResult, seconds: float) -> None:
        """Receives why a part has no result."""

    def interrupted(self) -> bool:
        """Returns True to make a record of the finished parts after Ctrl-C. Otherwise KeyboardInterrupt is raised."""
        return False

    def complete(self, pool: Pool) -> None:
        """Completes the parts without a reply, once no job runs."""

    @abstractmethod
    def record(self) -> tuple[list[KernelRun], list[Gap]]:
        """Returns the kernels of the record, and the gaps."""

    def take(self, last: Job[Any] | None) -> Job[R] | None:
        """Returns the next job of a worker. This is the policy of the pool."""
        while (part := self.next(None if last is None else last.about)) is not None and self.settle(part):
            pass
        if part is None:
            return None
        request, timeout, started = self.begin(part), self.timeout(part), time.monotonic()
        self.running.append(part)

        def done(reply: R) -> None:
            self.running.remove(part)
            self.done(part, reply, time.monotonic() - started)

        def failed(error: VerifyError) -> None:
            self.running.remove(part)
            of_verify = isinstance(error, UsageError | TruthError | InternalError)
            if of_verify and not self.work.contain and not isinstance(error, JudgeFailed):
                raise error
            self.failed(part, NoResult.of(error, timeout), time.monotonic() - started)

        return Job(
            request,
            done=done,
            failed=failed,
            timeout=timeout,
            until=self.until,
            prepare=lambda worker: declared_by(worker, part.target),
            progress=partial(self.heard, part),
            about=part,
        )

    def take_nearest(self, last: P | None, fits: Callable[[P], bool]) -> P:
        """Takes one of the waiting parts that fit.

        Prefers a part of the worker's own target, whose process is ready for it. Next comes a part of the target that
        the fewest workers are busy with, then the first part.
        """
        own, busy = None if last is None else last.target, Counter(part.target for part in self.running)
        found = ((part.target != own, busy[part.target], at) for at, part in enumerate(self.waiting) if fits(part))
        return self.waiting.pop(min(found)[2])


def collect(source: Source[Any, Any], command: str) -> Run:
    """Does every part of a source on the pool of its settings, and returns the record."""
    started, work = time.monotonic(), source.work
    with using(work.pool, work.backend) as pool:
        about = source.open(pool)
        try:
            pool.run(source.take, on_interrupt=source.on_interrupt)
        except KeyboardInterrupt:
            if not source.interrupted():
                raise
        source.complete(pool)
    kernels, incomplete = source.record()
    run = Run(SCHEMA, "", "", command, about.backend, work.seed, source.profile, about.environment, kernels, incomplete)
    return sealed(run, time.monotonic() - started)


def gaps_of_laws(kernel: KernelRun) -> list[Gap]:
    """Returns a gap for each law without a verdict, by an error of verify or by refusals that nothing declares."""
    found = []
    for law in [law for law in kernel.laws if law.in_error or law.undeclared]:
        refused = "" if law.in_error else f"it refuses {law.refused:,} of {law.cases + law.refused:,} cases: "
        text = f"{kernel.name}: the law of {law.law} in {law.dtype}: {refused}{law.message}"
        found.append(Gap("harness error" if law.in_error else "refused", text, kernel.target))
    return found


def crashes(kernels: Iterable[KernelRun]) -> list[Gap]:
    """Returns a gap for each kernel that ended its process or hung."""
    return [
        Gap(kernel.status, f"{kernel.name}: {kernel.message}", kernel.target)
        for kernel in kernels
        if kernel.status == "crashed" or kernel.status == "timeout"
    ]
