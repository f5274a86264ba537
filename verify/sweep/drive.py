"""A whole sweep from the parent's side: spaces shared out in spans of chunks, merged, journalled, recorded.

The parent imports no torch. Who answers is a local worker process per job or the places of a cluster; a span is
complete in itself, so it does not matter who takes it. Spans grow while they are quick: a GPU takes hundreds of
chunks at a time, an interpreted kernel one.
"""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from verify.cluster import Cluster
from verify.errors import UsageError
from verify.identity import assembled
from verify.isolate import Answers, Worker, WorkerDied, WorkerTimeout
from verify.record import KernelRun, Run
from verify.session import START_SECONDS, answer, describe_target
from verify.sweep.journal import VERSION, Header, Journal
from verify.sweep.partial import Partial
from verify.sweep.space import Space, left_over

QUICK, SLOW = 1.0, 4.0  # seconds: shorter spans double, longer ones halve
MOST = 1024  # chunks in a span
# of the environment: no bit of a result hangs on them
_VOLATILE = ("platform", "cpu", "python", "numpy", "probes", "commit", "dirty")


@dataclass
class Settings:
    """What to sweep, and how."""

    backend: str | None = None
    dtypes: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    pairs: bool = False
    bounds: tuple[float, float] | None = None
    regime: str = ""
    baseline: bool = False
    curve: bool = True
    hardest: int = 0
    jobs: int = 0  # 0: one on a GPU, one per core on the interpreter
    timeout: float = 600.0  # of one span
    cluster: Cluster | None = None
    journal: Path | None = None  # kept from the beginning; without one only Ctrl-C leaves one behind
    progress: Callable[[Space, int, int], None] = lambda space, done, total: None  # points of this space
    usage: list[str] = field(default_factory=list)


class InterruptedSweepError(Exception):
    """Ctrl-C. `path` is the journal that holds what was done."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path


@dataclass
class _Work:
    """One space on its way."""

    space: Space
    reference: str
    partial: Partial | None = None
    failed: tuple[str, str] | None = None  # status and message
    seconds: float = 0.0
    pending: list[tuple[int, int]] = field(default_factory=list)
    span: int = 0  # chunks taken at a time; 0 before the first
    busy: int = 0

    @property
    def done(self) -> int:
        """Points covered."""
        spans = [] if self.partial is None else self.partial.chunks
        return sum(self.space.chunk(high - 1)[1] - self.space.chunk(low)[0] for low, high in spans)

    def take(self, most: int, pace: int) -> tuple[int, int] | None:
        """The next span, if any is left; the first as long as `pace` says, where spaces before have set one."""
        if self.failed or not self.pending:
            return None
        self.span = self.span or max(1, pace // 4)
        low, high = self.pending.pop(0)
        end = min(high, low + min(self.span, most))
        if end < high:
            self.pending.insert(0, (end, high))
        self.busy += 1
        return low, end


def sweep(targets: Sequence[str], settings: Settings, command: str) -> Run:
    """Sweep every kernel of every target; InterruptedSweepError on Ctrl-C."""
    started = time.monotonic()
    with settings.cluster.workers()[0] if settings.cluster else Worker(settings.backend) as first:
        about = answer(first.ask({"do": "environment"}, timeout=START_SECONDS))
        work, described, place = _spaces(first, targets, settings)
        place |= {name: str(value) for name, value in about["environment"].items() if name not in _VOLATILE}
        place["backend"] = about["backend"]
        header = Header(VERSION, [item.space for item in work], [item.reference for item in work], place)
        driver = _Driver(work, settings, header, first, about["backend"])
        kernels = driver.run()
    incomplete = list(settings.usage)
    incomplete += [f"{item.name}: {item.message}" for item in kernels if item.status in ("crashed", "timeout")]
    return assembled(
        about,
        command=command,
        seed=0,
        profile="sweep",
        kernels=[_named(item, described) for item in kernels],
        incomplete=incomplete,
        seconds=time.monotonic() - started,
    )


def _spaces(
    worker: Answers, targets: Sequence[str], settings: Settings
) -> tuple[list[_Work], dict[str, dict[str, Any]], dict[str, str]]:
    """All spaces in order, what their kernels are, and the digests of their sources."""
    work: list[_Work] = []
    described: dict[str, dict[str, Any]] = {}
    place: dict[str, str] = {}
    reasons: list[str] = []
    hints: list[str] = []
    for target in targets:
        listed = describe_target(worker, target)
        source = target.partition("::")[0]
        described |= {f"{source}::{item['name']}": item for item in listed}
        request = {
            "do": "sweep spaces",
            "target": target,
            "dtypes": list(settings.dtypes),
            "results": list(settings.results),
            "pairs": settings.pairs,
            "bounds": settings.bounds,
            "regime": settings.regime,
            "baseline": settings.baseline,
            "hardest": settings.hardest,
        }
        reply = answer(worker.ask(request, timeout=START_SECONDS))
        reasons += reply["skipped"]
        hints += reply["hints"]
        place |= {f"{name} of {source}": value for name, value in reply["place"].items()}
        for found, reference in zip(reply["spaces"], reply["references"], strict=True):
            work.append(_Work(msgspec.convert(found, Space), reference))
    settings.usage += [f"not swept: {reason}" for reason in reasons]
    if not work:
        raise UsageError(
            "nothing to sweep: " + ("; ".join(reasons) or "no dtype of these kernels can be enumerated"),
            hint=next(
                filter(None, hints),
                "--pairs sweeps two operands in 16 bits, --dtype float32 a whole float32, also without a GPU",
            ),
        )
    return work, described, place


class _Driver:
    """Shares the spans of all spaces out among workers."""

    def __init__(self, work: list[_Work], settings: Settings, header: Header, first: Answers, backend: str) -> None:
        self.work, self.settings, self.header = work, settings, header
        self.lock = threading.Lock()
        self.stopped = False
        self.pace = 1  # the span that the last space came to
        self.journal = Journal(settings.journal, header) if settings.journal else None
        jobs = settings.jobs or (1 if backend == "cuda" else os.cpu_count() or 1)
        self.workers: list[Answers] = [first]
        if settings.cluster:
            self.workers = list(settings.cluster.workers())
        else:
            chunks = sum(item.space.chunks for item in work)
            self.workers += [Worker(settings.backend) for _ in range(max(1, min(jobs, chunks)) - 1)]
        for item in work:
            if self.journal:
                item.partial = self.journal.known.get(item.space.identity())
            item.pending = left_over(item.space.chunks, [] if item.partial is None else item.partial.chunks)

    def run(self) -> list[KernelRun]:
        """Everything, in the order of the spaces; kernels with several dtypes are one."""
        pool = ThreadPoolExecutor(len(self.workers))
        serving = [pool.submit(self._serve, worker) for worker in self.workers]
        try:
            for done in serving:
                done.result()
            return _together(self._records(pool))
        except KeyboardInterrupt:
            raise InterruptedSweepError(self._keep()) from None
        finally:
            self.stopped = True
            self._stop_workers()
            while wait(serving, timeout=0.1).not_done:  # whoever was about to ask has started a worker again
                self._stop_workers()
            pool.shutdown(wait=True, cancel_futures=True)
            if self.journal:
                self.journal.close()

    def _stop_workers(self) -> None:
        for worker in self.workers:
            worker.stop()

    def _keep(self) -> Path:
        """The journal; where none was asked for, a new one with everything merged so far."""
        with self.lock:
            self.stopped = True
            if self.journal is None:
                name = "-".join(sorted({item.space.identity()[:6] for item in self.work})[:2])
                self.journal = Journal(Path(f"verify-sweep-{name}.journal"), self.header)
                for item in self.work:
                    known = self.journal.known.get(item.space.identity())
                    if item.partial is not None and known is None:
                        self.journal.add(item.partial)
            return self.journal.path

    def _serve(self, worker: Answers) -> None:
        """Take spans until none is left."""
        item = None
        while not self.stopped:
            with self.lock:
                item, span = self._next(item)
            if item is None or span is None:
                return
            self._span(worker, item, span)

    def _next(self, last: _Work | None) -> tuple[_Work | None, tuple[int, int] | None]:
        """The next span for a worker: of the space it is at, else of one with few others at it.

        What a worker compiles and tabulates for a space is not made again by every other.
        """
        most = self._most()
        for item in sorted(self.work, key=lambda item: (item is not last, item.busy)):
            span = item.take(most, self.pace)
            if span is not None:
                return item, span
        return None, None

    def _most(self) -> int:
        """Chunks that one worker may take at once: of several towards the end fewer, so that all end together."""
        workers = len(self.workers)
        left = sum(high - low for item in self.work if not item.failed for low, high in item.pending)
        return max(1, min(MOST // workers, left if workers == 1 else -(-left // (2 * workers))))

    def _span(self, worker: Answers, item: _Work, span: tuple[int, int]) -> None:
        request = {"do": "sweep chunks", "space": msgspec.to_builtins(item.space), "chunks": span}

        def advanced(text: str) -> None:
            end = item.space.chunk(span[0] + int(text) - 1)[1] if text.isdigit() and int(text) else 0
            part = max(0, end - item.space.chunk(span[0])[0])
            self.settings.progress(item.space, item.done + part, item.space.points)

        begun = time.monotonic()
        try:
            if not worker.alive:
                describe_target(worker, item.space.target)
            reply = worker.ask(request, timeout=self.settings.timeout, progress=advanced)
        except (WorkerDied, WorkerTimeout, OSError, ValueError) as error:
            if not self.stopped:
                late = isinstance(error, WorkerTimeout)
                self._fail(item, "timeout" if late else "crashed", str(error))
            return
        spent = time.monotonic() - begun
        if "failure" in reply:
            self._fail(item, "error", reply["failure"])
            worker.stop()
            return
        partial = Partial.decode(answer(reply)["partial"].encode())
        with self.lock:
            if self.stopped:
                return
            item.partial = partial if item.partial is None else item.partial.merge(partial)
            item.seconds += spent
            item.busy -= 1
            if spent < QUICK:
                item.span = min(item.span * (8 if spent < QUICK / 16 else 2), MOST)
            elif spent > SLOW:
                item.span = max(1, item.span // 2)
            self.pace = item.span
            if self.journal:
                self.journal.add(partial)
        self.settings.progress(item.space, item.done, item.space.points)

    def _fail(self, item: _Work, status: str, message: str) -> None:
        with self.lock:
            item.failed = item.failed or (status, message)

    def _records(self, pool: ThreadPoolExecutor) -> list[KernelRun]:
        """The record of every space, in order; judging the worst exactly takes time, so all workers do it."""

        def some(place: int) -> list[KernelRun]:
            return [self._record(item, self.workers[place]) for item in self.work[place :: len(self.workers)]]

        shares = list(pool.map(some, range(len(self.workers))))
        return [shares[number % len(shares)][number // len(shares)] for number in range(len(self.work))]

    def _record(self, item: _Work, worker: Answers) -> KernelRun:
        name = item.space.target.rpartition("::")[2]
        if item.failed or item.partial is None:
            status, message = item.failed or ("error", "nothing was swept")
            return KernelRun(
                name=name,
                target=item.space.target,
                op="",
                params={},
                promise="",
                status=status,  # type: ignore[arg-type]
                results=[],
                message=f"{item.space.dtype}: {message}",
                hint=f"verify sweep {shlex.quote(item.space.target)} --dtype {item.space.dtype}",
            )
        request = {
            "do": "sweep record",
            "space": msgspec.to_builtins(item.space),
            "partial": item.partial.encode().decode(),
            "seconds": item.seconds,
            "curve": self.settings.curve,
        }
        reply = answer(worker.ask(request, timeout=max(self.settings.timeout, START_SECONDS)))
        return msgspec.convert(reply["run"], KernelRun)


def _together(runs: list[KernelRun]) -> list[KernelRun]:
    """One record per kernel, of all its dtypes."""
    order = ("ok", "wrong", "timeout", "crashed", "error")
    merged: dict[str, KernelRun] = {}
    for item in runs:
        known = merged.get(item.target)
        if known is None:
            merged[item.target] = item
            continue
        worse = max(known, item, key=lambda each: order.index(each.status))
        said = known if known.op else item
        merged[item.target] = msgspec.structs.replace(
            said,
            status=worse.status,
            message=worse.message,
            hint=worse.hint,
            results=[*known.results, *item.results],
            notes=sorted({*known.notes, *item.notes}),
            seconds=round(known.seconds + item.seconds, 3),
        )
    return list(merged.values())


def _named(run: KernelRun, described: dict[str, dict[str, Any]]) -> KernelRun:
    """A kernel that failed says what it is, too."""
    about = described.get(run.target)
    if run.op or about is None:
        return run
    return msgspec.structs.replace(
        run, op=about["op"], params=about["params"], promise=about["promise"], peer=about["peer"]
    )
