"""Makes a whole run: finds the kernels of the targets, measures each in a worker, and merges all into one record.

A target that cannot be imported, a kernel that raises, and one that hangs or ends its process each get their own entry,
and the run continues. If `verify` itself fails, for instance because its two routes disagree, the kernel, dtype or law
concerned has no verdict and the run is incomplete.
"""

import math
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from verify.backends import gpu_expected
from verify.declare import config
from verify.declare.requests import Known, declared_by, sources_of
from verify.declare.sources import SourceWatch
from verify.declare.target import Declared, Target
from verify.errors import UsageError
from verify.measure.requests import Measure
from verify.measure.source import KINDS, NoResult, Source, SourceSettings, collect, crashes, gaps_of_laws
from verify.records.commit import digest, own_digest
from verify.records.merge import together
from verify.records.part_store import PartStore
from verify.records.record import Gap, GapKind, KernelRun, Run, Status
from verify.workers.channel import LONGEST
from verify.workers.machine import usable_cores
from verify.workers.pool import Job, Pool
from verify.workers.process import START_SECONDS, OutOfTime, Worker
from verify.workers.requests import About, Late, Step

FIRST_CASE = 2.0  # a part's first case compiles: it counts as this many others
LAWS_SHARE = 0.7  # share of the laws in the time of a part that tries them
LEAST_DONE = 0.1  # share of a run that has to be done before the line has an estimate
COMPLETE_SECONDS = 20.0  # after an interruption: a scheduler that sends SIGTERM kills half a minute later
MOST_GROWTH = 2.5  # beyond so many times the first estimate the line says "more than"


@dataclass
class _Running:
    """Holds a running part: when it began, its last report, and its time and share then and after its first case."""

    began: float
    step: str
    first: tuple[float, float] | None = None  # None: the first case has not ended
    last: tuple[float, float] = (0.0, 0.0)

    @property
    def pace(self) -> float | None:
        """Returns the seconds that the whole part would take without its first case, which compiles."""
        if self.first is None or self.last[1] <= self.first[1]:
            return None
        return (self.last[0] - self.first[0]) / (self.last[1] - self.first[1])


class Line(str):
    """A line of progress. `share` of the run is done, from 0 to 1."""

    share: float = 0.0


class RunProgress:
    """Holds the parts of a run that are running, and the last `Step` that each reported."""

    def __init__(self, total: int, laws: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self._laws, self._clock = total, laws, clock
        self._lock = threading.RLock()  # each worker reports from a thread of its own
        self.ended = 0
        self.resumed = 0  # of these, those that an earlier start measured
        self._seconds: list[float] = []  # of each ended part that was measured in this run
        self._paces: list[float] = []
        self._running: dict[str, _Running] = {}
        self._at_once = 1  # the most parts that ran at a time
        self._first: float | None = None  # the first estimate

    def begin(self, part: str, text: str) -> Line:
        """Records that a part begins; returns the line."""
        with self._lock:
            self._running[part] = _Running(self._clock(), text)
            self._at_once = max(self._at_once, len(self._running))
            return self.line()

    def at(self, part: str, step: str) -> Line:
        """Records how far a part is; returns the line."""
        with self._lock:
            running = self._running[part]
            running.step = step
            if share := self._share(step):
                running.last = self._clock(), share
                running.first = running.first or running.last
            return self.line()

    def end(self, part: str) -> Line:
        """Records that a part ended, also one that was never begun because nothing of it remained; returns the line."""
        with self._lock:
            self.ended += 1
            if (running := self._running.pop(part, None)) is not None:
                self._seconds.append(self._clock() - running.began)
                self._paces += filter(None, [running.pace])
            else:
                self.resumed += 1
            return self.line()

    def line(self) -> Line:
        """Returns a line such as `2 of 6 done, about 40 s left; running: gelu float32, case 3 of 12`."""
        running = "; ".join(each.step for each in self._running.values())
        left = self.left()
        guess = ""
        if left is not None:
            self._first = left if self._first is None else self._first
            most = MOST_GROWTH * self._first
            guess = f", about {clock(left)} left" if left <= most else f", more than {clock(most)} left"
        line = Line(f"{self.ended} of {self.total} done{guess}" + (f"; running: {running}" if running else ""))
        line.share = self._done() / self.total if self.total else 0.0
        return line

    def _done(self) -> float:
        """Returns how many parts are done, with the shares of running ones."""
        return self.ended + sum(self._share(each.step) for each in self._running.values())

    def left(self) -> float | None:
        """Estimates the seconds left: parts take as long as others did. Returns None before a tenth is done."""
        now = self._clock()
        running = self._running.values()
        paces = [*self._paces, *filter(None, [each.pace for each in running])]
        usual_pace = sum(paces) / len(paces) if paces else None
        expected = {part: self._expected(each, usual_pace) for part, each in self._running.items()}
        known = [*self._seconds, *filter(None, expected.values())]
        done, total = self._done() - self.resumed, self.total - self.resumed
        if not known or self.ended == self.total or done < LEAST_DONE * total:
            return None
        usual = sum(known) / len(known)
        left = [max((expected[part] or usual) - (now - each.began), 0.0) for part, each in self._running.items()]
        rounds = math.ceil((self.total - self.ended - len(left)) / self._at_once)
        return max([rounds * usual + sum(left) / self._at_once, *left])

    def _expected(self, running: _Running, usual_pace: float | None) -> float | None:
        """Returns the seconds that a running part takes in all; None before its first case ended."""
        pace = running.pace or usual_pace
        if running.first is None or pace is None:
            return None
        return running.first[0] - running.began + pace * (1 - running.first[1])

    def _share(self, step: str) -> float:
        """Returns the share of a part's cases and laws that is done."""
        if not isinstance(step, Step) or not step.total or (step.unit == "case" and step.number < 2):
            return 0.0
        share = (step.number - 1) / step.total
        if step.unit == "case":
            share = (step.number - 2 + FIRST_CASE) / (step.total - 1 + FIRST_CASE)
        before_laws = 1 - LAWS_SHARE if self._laws else 1.0
        return share * before_laws if step.unit == "case" else before_laws + share * LAWS_SHARE


def clock(seconds: float) -> str:
    """Returns a coarse time such as `40 s`, `3 min` or `2.5 h`."""
    if seconds < 99:
        return f"{max(5 * round(seconds / 5), 5)} s"
    return f"{round(seconds / 60)} min" if seconds < 99 * 60 else f"{seconds / 3600:.1f} h"


LEAST_SHARE = 1e-3  # seconds of a part: 0 is no limit
EXPECTED_DTYPES = 3  # assumed number of dtypes of a kernel before its declaration is read
_NO_FINDING = ("skipped", "interrupted", "ok")  # statuses of a part that found nothing
_EARLIER = "earlier "  # before the name of a part that another start repeats: what the last start found
OUT_OF_TIME = "run the same `verify nightly` command again to continue, or set a larger --budget"


@dataclass(kw_only=True)
class Session(SourceSettings):
    """Holds the settings of a run."""

    dtypes: tuple[str, ...] = ()
    profile: str = "default"
    asked: Measure = field(default_factory=partial(Measure, ""))  # of each part, but its target, dtypes and time
    judges: int = 0  # number of cases of a kernel that are judged at a time; 0: by the cores and the kernels
    by_dtype: bool = False  # True: measure each dtype of a kernel on its own, so that many workers are busy to the end
    # True: the store belongs to this run alone; the run claims it, and Ctrl-C makes a record of the finished parts
    whole: bool = False
    known: Known = field(default_factory=dict)  # listings of targets that the caller already has


def run(targets: Sequence[str], session: Session, command: str) -> Run:
    """Measures every kernel of every target."""
    return collect(Measuring(targets, session), command)


def claim(kept: PartStore, session: Session, about: About, sources: dict[str, str]) -> None:
    """Claims the store of finished parts for this run.

    A later run continues from it only if everything that figures depend on is equal.
    """
    options = ("laws", "without", "plan", "memory", "fail_fast", "models")
    facts = {name: value for name, value in about.environment.items() if name not in ("commit", "dirty")}
    settings = {
        "options": {name: getattr(session.asked, name) for name in options}
        | {"seed": session.seed, "dtypes": session.dtypes},
        "backend": about.backend,
        "device or versions": facts,
        "sources": sources,
        "pinned cases": digest(config.find().corpus, "*.json"),
        "verify": own_digest(),
    }
    kept.claim(settings, "run", f"verify run without --resume {kept.path}")


def gaps_of(kernel: KernelRun) -> list[Gap]:
    """Returns a gap for each part of a kernel that was not measured or has no verdict: all of it, a dtype, or a law."""
    return [*crashes([kernel]), *kernel.gaps, *gaps_of_laws(kernel)]


class _RunPart(NamedTuple):
    """Holds the work of one request: a kernel, or one dtype of it."""

    kernel: Declared
    dtypes: tuple[str, ...]  # empty: all dtypes that the kernel declares
    dtype: str = ""  # set if the kernel is divided by dtype

    @property
    def target(self) -> str:
        return self.kernel.target

    @property
    def key(self) -> str:
        """Returns the name of this part in the store."""
        return f"{self.target} {self.dtype}".rstrip()

    @property
    def again(self) -> str:
        """Returns the command that measures the kernel again."""
        return f"verify run {shlex.quote(self.target)}"

    def gap(self, kind: GapKind, message: str) -> Gap:
        """Returns a gap of this part."""
        return Gap(kind, f"{self.kernel.name}: {message}", self.target)


def _parts(kernels: Sequence[Declared], backend: str, session: Session) -> list[_RunPart]:
    """Returns the parts to measure, in the order of the record."""
    found = []
    for kernel in kernels:
        wanted = tuple(name for name in session.dtypes if name in kernel.dtypes)
        each = wanted if session.dtypes else kernel.dtypes
        if session.by_dtype and len(each) > 1 and not kernel.unfit(backend, "run"):
            found += [_RunPart(kernel, (dtype,), dtype) for dtype in each]
        else:
            found.append(_RunPart(kernel, wanted))
    return list({part.key: part for part in found}.values())


class Measuring(Source[_RunPart, KernelRun]):
    """Holds the parts of a run. A worker prefers its last kernel.

    The process of that kernel has already imported its module, initialised the GPU and compiled the code that does not
    depend on the dtype. Kernels come before peers, and long parts come first.
    """

    backend: str
    workers: int
    parts: list[_RunPart]
    sources: SourceWatch

    def __init__(self, targets: Sequence[str], session: Session) -> None:
        super().__init__(session)
        self.targets, self.session, self.profile = targets, session, session.profile
        self.ended: dict[str, KernelRun] = {}
        self.judged: dict[str, list[bytes]] = {}  # cases of parts that are running, or that gave no reply
        self.not_imported: list[Gap] = []

    def open(self, pool: Pool) -> About:
        """Lists the kernels, divides them into parts, and starts a suitable number of workers."""
        session, targets = self.session, self.targets
        session.progress("starting")
        # Workers take seconds to start on a GPU, and cores are plentiful. Several targets keep several workers busy.
        if session.by_dtype and (len(targets) > 1 or gpu_expected()):
            parts_expected = (len(session.dtypes) or EXPECTED_DTYPES) * (len(targets) if session.jobs else 1)
            pool.begin(min(session.jobs or usable_cores(), parts_expected))
        pool.probe()
        declared: list[Declared] = []
        for target in targets:
            failed: list[UsageError] = []
            try:
                declared += declared_by(pool, target, known=session.known, failed=failed)
            except UsageError as error:
                failed = [error]
            session.usage += map(str, failed)
            self.not_imported += [Gap("not importable", error.message, target) for error in failed]
        about = pool.about()
        if session.whole and session.kept is not None:
            claim(session.kept, session, about, sources_of(pool, targets, session.known))
        self.enqueue(_parts(declared, about.backend, session), about.backend)
        pool.grow(min(session.jobs or pool.room(about), len(self.waiting)))
        self.workers = len(pool.workers)
        local = all(isinstance(worker, Worker) for worker in pool.workers)
        files = {file: known for listed in session.known.values() for file, known in listed.files.items()}
        self.sources = SourceWatch(files, local=local)
        return about

    def enqueue(self, parts: list[_RunPart], backend: str) -> None:
        """Sets the parts to measure. Ends parts that an earlier start finished, and parts that cannot be measured."""
        self.parts, self.backend = parts, backend
        self.progress = RunProgress(len(parts), bool(self.session.asked.laws))
        for part in parts:
            if (done := self.known(part.key, KernelRun)) is not None:
                self.ended[part.key] = done
                self.progress.end(part.key)
        if self.ended:
            self.session.progress(f"resumed: {len(self.ended)} of {len(parts)}")
        for part in parts:
            if part.key not in self.ended and (unfit := self._unfit(part)) is not None:
                self._end(part, unfit)

        def turn(part: _RunPart) -> tuple[bool, int, int]:
            """Sorts kernels before peers, in case time runs out; the dtypes with most exact arithmetic come first."""
            by_dtype = ("float64", "float32", part.dtype).index(part.dtype)
            return part.kernel.peer, KINDS.index(part.kernel.kind), by_dtype

        self.waiting = sorted((part for part in parts if part.key not in self.ended), key=turn)

    def next(self, last: _RunPart | None) -> _RunPart | None:
        """Takes the next part. Peers come when no other kernel waits."""
        self.sources.demand_unchanged()
        if not self.waiting:
            return None
        peers = self.waiting[0].kernel.peer
        return self.take_nearest(last, lambda part: part.kernel.peer == peers)

    def _unfit(self, part: _RunPart) -> KernelRun | None:
        """Returns the record of a kernel that cannot run here or in none of the requested dtypes; None if it can."""
        if reason := part.kernel.unfit(self.backend, "run"):
            return part.kernel.run("skipped", reason, hint=part.kernel.install)
        if self.session.dtypes and not part.dtypes:
            received = ", ".join(self.session.dtypes)
            return part.kernel.run(
                "skipped",
                f"declares {', '.join(part.kernel.dtypes)}; --dtype asks for {received}",
                hint=f"verify list {shlex.quote(Target.parse(part.target).source)}",
            )
        return None

    def begin(self, part: _RunPart) -> Measure:
        """Returns the request, with the number of forks to judge with.

        If fewer parts than cores remain, a part gets twice its share of the cores, because other parts end before it.
        """
        session = self.session
        session.progress(self.progress.begin(part.key, f"{part.kernel.name} {part.dtype}".rstrip()))
        cores, left = session.jobs or usable_cores(), len(self.parts) - len(self.ended)
        judges = session.judges or (min(cores, 2 * cores // left) if left < cores else 1)
        enough = session.asked.enough
        if not session.asked.accuracy:
            rest = math.inf if session.until is None else session.until - time.monotonic()
            share = rest * self.workers / (len(self.waiting) + 1)
            enough = max(min(session.timeout / 2, share), LEAST_SHARE)  # the last case may take as long again
        return self._request(part, seconds=session.timeout, judges=judges, enough=enough)

    def _request(self, part: _RunPart, **more: Any) -> Measure:
        """Returns what the session asks for, of one part."""
        own = {"target": part.target, "dtypes": part.dtypes, "seed": self.session.seed}
        return msgspec.structs.replace(self.session.asked, **own, **more)

    def timeout(self, part: _RunPart) -> float:
        return self.session.timeout + self.session.asked.judging

    def heard(self, part: _RunPart, text: str) -> None:
        """Shows how far the part is, and remembers its findings."""
        if isinstance(text, Step) and text.judged:
            self.judged.setdefault(part.key, []).append(text.judged)
        self.session.progress(self.progress.at(part.key, text))

    def done(self, part: _RunPart, reply: KernelRun, seconds: float) -> None:
        """Adds the next command to the record of a kernel that failed."""
        self.sources.demand_unchanged()
        self.judged.pop(part.key, None)
        late = reply.status == "timeout" or any(gap.kind == "timeout" for gap in reply.gaps)
        if (late or reply.status in ("error", "crashed")) and not reply.hint:
            hint = part.again
            if late:
                hint = f"{hint} --timeout {2 * self.session.timeout:g}"
            reply = msgspec.structs.replace(reply, hint=hint)
        self._end(part, reply)

    def failed(self, part: _RunPart, why: NoResult, seconds: float) -> None:
        """Makes the record of a kernel that gave no result."""
        self.sources.demand_unchanged()
        hint = part.again
        match why.error:
            case OutOfTime():
                hint = OUT_OF_TIME
            case Late():
                hint = f"{hint} --timeout {2 * self.session.timeout:g}"
            case UsageError(hint=given):
                hint = given or ""
        self._unfinished(part, why.status, why.kind, why.message, hint)

    def _unfinished(self, part: _RunPart, status: Status, kind: GapKind | None, why: str, hint: str) -> None:
        """Ends a part without a result. `complete` adds the results of the cases that were judged."""
        message = f"{part.dtype}: {why}" if part.dtype else why
        gaps = [part.gap(kind, message)] if kind else []
        self._end(part, part.kernel.run(status, message, hint=hint, gaps=gaps))

    def _end(self, part: _RunPart, done: KernelRun) -> None:
        """Ends a part and stores it, unless the next start should measure it again."""
        self.ended[part.key] = done
        self.session.progress(self.progress.end(part.key))
        kinds: set[GapKind] = {gap.kind for gap in gaps_of(done)}
        # The next start measures these parts again. A restarted night does not repeat kernels that hang or crash.
        again = {"out of time", "harness error", "judge failed", "interrupted"}
        again |= {"timeout", "crashed"} if self.session.whole else set()
        if not kinds & again:
            self.keep(part.key, done)
        elif done.status not in _NO_FINDING:
            self.keep(_EARLIER + part.key, done)

    def interrupted(self) -> bool:
        """Records a gap for each part that Ctrl-C stopped, unless a night is the caller."""
        for part in self.parts if self.session.whole else ():
            if part.key in self.ended:
                continue
            self._unfinished(part, "interrupted", "interrupted", "not finished: interrupted", part.again)
            if (earlier := self.known(_EARLIER + part.key, KernelRun)) is not None:
                gaps = list(dict.fromkeys([*earlier.gaps, *self.ended[part.key].gaps]))
                self.ended[part.key] = msgspec.structs.replace(earlier, gaps=gaps)
        return self.session.whole

    def complete(self, pool: Pool) -> None:
        """Makes the results of the cases that were judged of parts without a reply, one on each core.

        After an interruption this takes COMPLETE_SECONDS at most, and a second Ctrl-C ends it.
        """
        left = [part for part in self.parts if self.judged.get(part.key) and not self.ended[part.key].results]
        interrupted = any(self.ended[part.key].status == "interrupted" for part in left)
        until = time.monotonic() + COMPLETE_SECONDS if interrupted else None

        def take(_: object) -> Job[KernelRun] | None:
            if not left:
                return None
            part = left.pop(0)
            self.session.progress(f"{part.kernel.name} {part.dtype}: results of the cases that ended")
            return Job(self._of_judged(part), partial(self._join, part), lambda error: None, START_SECONDS, until)

        if left:
            with suppress(KeyboardInterrupt):
                pool.first(min(len(left), usable_cores())).run(take)

    def _of_judged(self, part: _RunPart) -> Measure:
        """Returns the request that makes results of judged cases."""
        judged = self.judged[part.key]
        ends = accumulate(map(len, judged))  # a message with the first of very many cases is short enough
        some = tuple(each for each, end in zip(judged, ends, strict=True) if end <= LONGEST // 2)
        return self._request(part, judged=some)

    def _join(self, part: _RunPart, made: KernelRun) -> None:
        """Adds the results of judged cases to the entry of a part. They decide its status, unless the kernel failed."""
        old = self.ended[part.key]
        gaps = list(dict.fromkeys([*old.gaps, *made.gaps]))
        if old.status == "timeout":
            gaps.append(part.gap("timeout", f"{part.dtype}: {old.message}" if part.dtype else old.message))
        fields: dict[str, Any] = {name: getattr(made, name) for name in ("results", "notes", "sizes", "definition")}
        if old.status in (*_NO_FINDING, "timeout"):
            fields |= {"status": made.status, "message": made.message}
        self.ended[part.key] = msgspec.structs.replace(old, gaps=gaps, **fields)
        if made.status not in _NO_FINDING:
            self.keep(_EARLIER + part.key, self.ended[part.key])

    def record(self) -> tuple[list[KernelRun], list[Gap]]:
        """Returns one entry for each kernel, with all its dtypes, and the gaps."""
        kernels: dict[str, KernelRun] = {}
        incomplete = self.not_imported
        for part in self.parts:
            done = self.ended[part.key]
            incomplete += gaps_of(done)
            done = msgspec.structs.replace(done, gaps=[])
            known = kernels.get(part.target)
            try:
                kernels[part.target] = done if known is None else together(known, done)
            except UsageError as error:  # an error here must not lose the results of other kernels
                incomplete.append(part.gap("harness error", error.message))
        return list(kernels.values()), incomplete
