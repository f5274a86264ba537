"""A whole run: targets to kernels, every kernel in a worker, everything into one record.

A target that cannot be imported, a kernel that raises, hangs or takes the process down: each becomes its own
line, and the rest goes on. So does an error of the harness itself (its two routes disagree, or it raises): the kernel,
or that dtype or law of it, has no verdict then, and the run is incomplete.
"""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import msgspec

from verify.backends import gpu_expected, named
from verify.declare import config
from verify.declare.requests import Known, ListKernels, declared_by, sources_of
from verify.declare.sources import SourceWatch
from verify.declare.target import Declared, Target
from verify.errors import InternalError, JudgeFailed, TruthError, UsageError, VerifyError, no_verdict
from verify.measure.progress import Progress
from verify.measure.requests import Measure
from verify.records.identity import Invocation, assembled
from verify.records.merge import together
from verify.records.part_store import PartStore
from verify.records.record import Gap, GapKind, KernelRun, Run, Status
from verify.records.source_digest import digest, own_digest
from verify.workers.pool import Job, Pool, nearest, using
from verify.workers.process import OutOfTime, Worker
from verify.workers.requests import About, Died, Late

EXPECTED_DTYPES = 3  # of a kernel, before anybody has read its declaration
OUT_OF_TIME = "the same `verify nightly` command again goes on where this one stopped; a larger --budget reaches more"


@dataclass
class Session:
    """Settings of a run, and the lines about what could not be asked for."""

    backend: str | None = None
    seed: int = 0
    timeout: float = 600.0
    dtypes: tuple[str, ...] = ()
    profile: str = "default"
    laws: str = ""  # profile of the laws; none are tried without one
    without: tuple[str, ...] = ()  # laws that are left out
    accuracy: bool = True  # whether to measure; without it only the laws are tried
    plan: str = ""  # the backend whose cases are measured, wherever they run; the own one without it
    jobs: int = 0  # 0: one per core, or as many as fit the GPU
    by_dtype: bool = False  # each dtype of a kernel is measured on its own, so that many workers are busy to the end
    pool: Pool | None = None  # of the caller, who stops it; else processes are started
    deadline: float | None = None  # of time.monotonic(): kernels not done by then are reported as such
    kept: PartStore | None = None  # where finished parts are written at once, beside those of earlier starts
    whole: bool = False  # this run is all that the store is for: it claims it, and Ctrl-C ends in what was measured
    progress: Callable[[str], None] = lambda text: None
    usage: list[str] = field(default_factory=list)
    known: Known = field(default_factory=dict)  # what the caller has asked of the targets


def run(targets: Sequence[str], session: Session, command: str) -> Run:
    """Measure every kernel of every target."""
    started = time.monotonic()
    incomplete: list[Gap] = []
    with using(session.pool, session.backend) as pool:
        session.progress("starting")
        if session.by_dtype and gpu_expected():  # each takes seconds to begin there, and cores are plenty
            parts_expected = (len(session.dtypes) or EXPECTED_DTYPES) * (len(targets) if session.jobs else 1)
            ahead = ListKernels(targets[0]) if len(targets) == 1 else None  # they import its module at the same time
            pool.begin(min(session.jobs or os.cpu_count() or 1, parts_expected), ahead)
        pool.probe()
        declared: list[Declared] = []
        for target in targets:
            try:
                declared += declared_by(pool, target, known=session.known)
            except UsageError as error:
                session.usage.append(str(error))
                incomplete.append(Gap("not importable", error.message, target))
        about = pool.about()
        if session.whole and session.kept is not None:
            claim(session.kept, session, about, sources_of(pool, targets, session.known))
        parts = _parts(declared, about.backend, session)
        pool.grow(min(session.jobs or about.workers, len(parts)))
        local = all(isinstance(worker, Worker) for worker in pool.workers)
        files = {file: known for listed in session.known.values() for file, known in listed.files.items()}
        queue = _Queue(parts, about.backend, session, SourceWatch(files, local=local))
        try:
            pool.run(queue.take)
        except KeyboardInterrupt:
            if not session.whole:
                raise
            queue.interrupt()
    kernels: dict[str, KernelRun] = {}
    for part in parts:
        done = queue.ended[part.key]
        incomplete += gaps_of(done)
        done = msgspec.structs.replace(done, gaps=[])
        known = kernels.get(part.kernel.target)
        try:
            kernels[part.kernel.target] = done if known is None else together(known, done)
        except UsageError as error:  # nothing that was measured of others may be lost to it
            incomplete.append(Gap("harness error", f"{part.kernel.name}: {error.message}", part.kernel.target))
    return assembled(
        about.backend,
        about.environment,
        Invocation(command, session.profile, session.seed),
        kernels=list(kernels.values()),
        incomplete=incomplete,
        seconds=time.monotonic() - started,
    )


def claim(kept: PartStore, session: Session, about: About, sources: dict[str, str]) -> None:
    """Begins the store of a run, or goes on there where everything is equal that a figure depends on."""
    settings = {
        "options": {
            "seed": session.seed,
            "dtypes": list(session.dtypes),
            "laws": session.laws,
            "without": list(session.without),
            "accuracy": session.accuracy,
            "plan": session.plan,
        },
        "backend": about.backend,
        "device or versions": {
            name: value for name, value in about.environment.items() if name not in ("commit", "dirty")
        },
        "sources": sources,
        "pinned cases": digest(config.find().corpus, "*.json"),
        "verify": own_digest(),
    }
    kept.claim(settings, "run", f"verify run without --resume {kept.path}")


def gaps_of(kernel: KernelRun) -> list[Gap]:
    """What of a kernel did not happen or has no verdict: all of it, a dtype, or a law."""
    found = list(kernel.gaps)
    if kernel.status in ("crashed", "timeout"):
        found.insert(0, Gap(kernel.status, f"{kernel.name}: {kernel.message}", kernel.target))
    return found + [
        Gap("harness error", f"{kernel.name}: the law of {law.law} in {law.dtype}: {law.message}", kernel.target)
        for law in kernel.laws
        if law.in_error
    ]


class _Part(NamedTuple):
    """What one worker measures at a time: a kernel, or one dtype of it."""

    kernel: Declared
    dtypes: tuple[str, ...]  # empty: all that it declares
    dtype: str = ""  # where it is one of several

    @property
    def key(self) -> str:
        """What an interrupted run knows it by."""
        return f"{self.kernel.target} {self.dtype}".rstrip()


def _parts(kernels: Sequence[Declared], backend: str, session: Session) -> list[_Part]:
    """What is measured, in the order of the record."""
    found = []
    for kernel in kernels:
        wanted = tuple(name for name in session.dtypes if name in kernel.dtypes)
        each = wanted if session.dtypes else kernel.dtypes
        if session.by_dtype and len(each) > 1 and not kernel.unfit(backend, "run"):
            found += [_Part(kernel, (dtype,), dtype) for dtype in each]
        else:
            found.append(_Part(kernel, wanted))
    return list({part.key: part for part in found}.values())


LONGEST = ("graph", "contraction", "rowwise", "elementwise")  # the kinds of ops, by how long their kernels take
_SLOWEST = ("float64", "float32")  # dtypes, by how much of their judging is exact arithmetic


def _turn(part: _Part) -> tuple[bool, int, int]:
    """What is judged first, should time run out; the longest first, so that no worker is left with it at the end."""
    slow = _SLOWEST.index(part.dtype) if part.dtype in _SLOWEST else len(_SLOWEST)
    return part.kernel.peer, LONGEST.index(part.kernel.kind), slow


class _Queue:
    """The policy of a run: each part once, the judged and the longest first, and a worker stays with its kernel.

    The process of a kernel has imported its module, and whatever that imports, met the GPU and compiled what does not
    hang on the dtype.
    """

    def __init__(self, parts: Sequence[_Part], backend: str, session: Session, sources: SourceWatch) -> None:
        self.backend, self.session, self.parts, self.sources = backend, session, parts, sources
        self.waiting = sorted(parts, key=_turn)
        self.busy: Counter[str] = Counter()  # workers at each target
        self.ended: dict[str, KernelRun] = {}
        self.progress = Progress(len(parts), bool(session.laws))

    def take(self, last: Job[Any] | None) -> Job[KernelRun] | None:
        """The next part that neither an earlier run has done nor the declaration rules out."""
        self.sources.demand_unchanged()
        while self.waiting:
            part = self._next(None if last is None else last.about)
            known = None if self.session.kept is None else self.session.kept.known(part.key, KernelRun)
            if known is not None:
                self.ended[part.key] = known
            elif (unfit := self._unfit(part)) is not None:
                self._end(part, unfit)
            else:
                return self._job(part)
        return None

    def _next(self, last: str | None) -> _Part:
        """Of those that are judged, and of peers when no other is left."""
        peers = self.waiting[0].kernel.peer
        kernels = [part.kernel for part in self.waiting if part.kernel.peer == peers]
        return self.waiting.pop(nearest(enumerate(each.target for each in kernels), last, self.busy))

    def _unfit(self, part: _Part) -> KernelRun | None:
        """A kernel that cannot run here, or in none of the dtypes asked for."""
        if reason := part.kernel.unfit(self.backend, "run"):
            return part.kernel.run("skipped", reason)
        if self.session.dtypes and not part.dtypes:
            received = ", ".join(self.session.dtypes)
            return part.kernel.run(
                "skipped",
                f"declares {', '.join(part.kernel.dtypes)}; --dtype asks for {received}",
                hint=f"verify list {shlex.quote(Target.parse(part.kernel.target).source)}",
            )
        return None

    def _job(self, part: _Part) -> Job[KernelRun]:
        session, target = self.session, part.kernel.target
        self.busy[target] += 1
        session.progress(self.progress.begin(part.key, f"{part.kernel.name} {part.dtype}".rstrip()))
        return Job(
            Measure(
                target,
                session.seed,
                part.dtypes,
                session.laws,
                session.accuracy,
                session.plan,
                session.timeout,
                session.without,
                self._judges(),
            ),
            done=partial(self._done, part),
            failed=partial(self._failed, part),
            timeout=session.timeout,
            until=session.deadline,
            prepare=lambda worker: declared_by(worker, target),
            progress=lambda step: session.progress(self.progress.at(part.key, step)),
            about=target,
        )

    def _judges(self) -> int:
        """How many forks a part that begins now judges with: where fewer parts are left than cores, twice its share,
        as others end before it."""
        cores, left = self.session.jobs or os.cpu_count() or 1, len(self.parts) - len(self.ended)
        return min(cores, 2 * cores // left) if left < cores else 1

    def _done(self, part: _Part, done: KernelRun) -> None:
        self.sources.demand_unchanged()
        self.busy[part.kernel.target] -= 1
        if done.status in ("error", "crashed", "timeout") and not done.hint:
            done = msgspec.structs.replace(done, hint=self._hint(part, done))
        self._end(part, done)

    def _hint(self, part: _Part, done: KernelRun) -> str:
        if done.status == "timeout":
            return f"{_again(part)} --timeout {2 * self.session.timeout:g}"
        sanitize = done.status == "crashed" and named(self.backend).sanitizer
        return _again(part).replace("run", "sanitize", 1) if sanitize else _again(part)

    def _failed(self, part: _Part, error: VerifyError) -> None:
        """What the record says of a kernel that gave no result."""
        self.sources.demand_unchanged()
        self.busy[part.kernel.target] -= 1
        status: Status = "error"
        message, hint, kind = str(error), _again(part), ""
        match error:
            case OutOfTime():
                status, hint, kind = "skipped", OUT_OF_TIME, "out of time"
            case JudgeFailed():
                status, message, kind = "skipped", str(error), "judge failed"
            case Late():
                status, message = "timeout", f"no result within {self.session.timeout:g} s; stopped"
                hint = f"{hint} --timeout {2 * self.session.timeout:g}"
                if error.who == "judge":  # the kernel's own process has less time
                    status, message, kind = "skipped", f"the judge ran out of time: {message}", "judge failed"
            case Died():
                status = "crashed"
            case UsageError():
                message, hint = error.message, error.hint or ""
            case TruthError() | InternalError():
                status, message, kind = "skipped", no_verdict(error), "harness error"
        message = f"{part.dtype}: {message}" if part.dtype else message
        gaps = [Gap(kind, f"{part.kernel.name}: {message}", part.kernel.target)] if kind else []  # type: ignore[arg-type]
        self._end(part, part.kernel.run(status, message, hint=hint, gaps=gaps))

    def _end(self, part: _Part, done: KernelRun) -> None:
        self.ended[part.key] = done
        self.session.progress(self.progress.end(part.key))
        kinds: set[GapKind] = {gap.kind for gap in gaps_of(done)}
        # those are tried again by the next start; a night does not spend its time again on a kernel that hangs
        again = {"out of time", "harness error", "judge failed", "interrupted"}
        again |= {"timeout", "crashed"} if self.session.whole else set()
        if self.session.kept is not None and not kinds & again:
            self.session.kept.keep(part.key, done)

    def interrupt(self) -> None:
        """What Ctrl-C left is a gap of the record."""
        for part in self.parts:
            if part.key not in self.ended:
                message = f"{part.dtype and part.dtype + ': '}not finished: interrupted"
                gap = Gap("interrupted", f"{part.kernel.name}: {message}", part.kernel.target)
                self._end(part, part.kernel.run("interrupted", message, hint=_again(part), gaps=[gap]))


def _again(part: _Part) -> str:
    return f"verify run {shlex.quote(part.kernel.target)}"


def command_line(arguments: Sequence[str]) -> str:
    """The command as the user would type it again."""
    return "verify " + " ".join(shlex.quote(item) for item in arguments)
