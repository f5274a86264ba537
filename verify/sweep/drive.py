"""A whole sweep from the parent's side: spaces shared out in spans of chunks, merged, journalled, recorded.

The parent imports no torch. Who answers is a local worker process per job or the places of a cluster; a span is
complete in itself, so it does not matter who takes it. A worker is given its share of all that is unfinished and
ends after a while with what it has done: a GPU does a space at a time, an interpreted kernel a chunk. Off the fused
route nobody knows how long a chunk takes: the first span of a space is one chunk, the next ones grow while quick.

What a worker found stays as it came, and is merged where the record is made: the parent only counts chunks. The
records are made by whoever finds no chunk left, result by result, so that all workers end together.
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

from verify.errors import UsageError
from verify.measure.session import START_SECONDS, answer, describe_target
from verify.records.identity import assembled
from verify.records.record import KernelRun, Run
from verify.sweep.journal import VERSION, Header, Journal
from verify.sweep.partial import Outline, Partial
from verify.sweep.space import Space, left_over, merged
from verify.workers.cluster import Cluster
from verify.workers.process import Answers, Worker, WorkerDied, WorkerTimeout

SPAN_SECONDS = 2.0  # after which a worker hands over what it has done
MOST = 1024  # chunks in a span
GROWTH = 8  # a span that proved quick is followed by one up to so many times as long
KEPT = 16  # partial results of a space that are kept apart
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
    pending: list[tuple[int, int]] = field(default_factory=list)
    flying: dict[tuple[int, int], int] = field(default_factory=dict)  # spans at workers, with the chunks still to do
    found: list[bytes] = field(default_factory=list)  # partial results, encoded
    chunks: list[tuple[int, int]] = field(default_factory=list)  # that they cover
    recorded: dict[str, KernelRun | None] = field(default_factory=dict)  # by result; None while it is made
    failed: tuple[str, str] | None = None  # status and message
    seconds: float = 0.0
    most: int = 0  # chunks taken at a time, whoever asks

    def __post_init__(self) -> None:
        self.most = self.most or (MOST if self.reference.startswith("fused") else 1)

    @property
    def done(self) -> int:
        """Points covered."""
        return sum(self.space.chunk(high - 1)[1] - self.space.chunk(low)[0] for low, high in self.chunks)

    @property
    def unfinished(self) -> int:
        """Chunks that nobody has done yet."""
        return 0 if self.failed else sum(high - low for low, high in self.pending) + sum(self.flying.values())

    def take(self, share: int) -> tuple[int, int] | None:
        """The next span, if any is left. What would be left of it is taken too, where that is little."""
        if self.failed or not self.pending:
            return None
        low, high = self.pending.pop(0)
        share = min(share, self.most)
        end = high if high - low <= share + share // 4 else low + share
        if end < high:
            self.pending.insert(0, (end, high))
        self.flying[low, end] = end - low
        return low, end

    def land(self, span: tuple[int, int], found: bytes, seconds: float) -> None:
        """Keep what came of a span after some seconds; the chunks that it leaves out are pending again."""
        outline, (low, high) = Outline.decode(found), span
        end = max((stop for _, stop in outline.chunks), default=low)
        if outline.chunks != [(low, end)] or not low < end <= high:
            raise RuntimeError(f"asked for the chunks {low} to {high - 1}, a worker answered with {outline.chunks}")
        self.chunks = merged([*self.chunks, (low, end)])
        self.found.append(found)
        if len(self.found) > KEPT:
            self.found = [self.whole().encode()]
        if end < high:
            self.pending.insert(0, (end, high))
        if self.most < MOST:
            within = int(SPAN_SECONDS * (end - low) / max(seconds, 1e-3))
            self.most = max(1, min(within, GROWTH * (end - low), MOST))

    def whole(self) -> Partial:
        """Everything found, as one."""
        whole, *others = (Partial.decode(item) for item in self.found)
        for other in others:
            whole = whole.merge(other)
        return whole

    def next_result(self) -> str | None:
        """A result whose record can be made and is not yet."""
        if self.failed or self.pending or self.flying:
            return None
        return next((name for name in self.space.results if name not in self.recorded), None)


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
    described: dict[str, dict[str, Any]] = {}
    for source in dict.fromkeys(target.partition("::")[0] for target in targets):
        described |= {f"{source}::{item['name']}": item for item in describe_target(worker, source)}
    request = {
        "do": "sweep spaces",
        "targets": list(targets),
        "dtypes": list(settings.dtypes),
        "results": list(settings.results),
        "pairs": settings.pairs,
        "bounds": settings.bounds,
        "regime": settings.regime,
        "baseline": settings.baseline,
        "hardest": settings.hardest,
    }
    reply = answer(worker.ask(request, timeout=START_SECONDS))
    found = zip(reply["spaces"], reply["references"], strict=True)
    work = [_Work(msgspec.convert(space, Space), reference) for space, reference in found]
    reasons, hints = reply["skipped"], reply["hints"]
    settings.usage += [f"not swept: {reason}" for reason in reasons]
    if not work:
        raise UsageError(
            "nothing to sweep: " + ("; ".join(reasons) or "no dtype of these kernels can be enumerated"),
            hint=next(
                filter(None, hints),
                "--pairs sweeps two operands in 16 bits, --dtype float32 a whole float32, also without a GPU",
            ),
        )
    return work, described, reply["place"]


class _Driver:
    """Shares the spans of all spaces out among workers."""

    def __init__(self, work: list[_Work], settings: Settings, header: Header, first: Answers, backend: str) -> None:
        self.work, self.settings, self.header = work, settings, header
        self.lock = threading.Condition()
        self.stopped = False
        self.journal = Journal(settings.journal, header) if settings.journal else None
        jobs = settings.jobs or (1 if backend == "cuda" else os.cpu_count() or 1)
        self.workers: list[Answers] = [first]
        if settings.cluster:
            self.workers = list(settings.cluster.workers())
        else:
            chunks = sum(item.space.chunks for item in work)
            self.workers += [Worker(settings.backend) for _ in range(max(1, min(jobs, chunks)) - 1)]
        for item in work:
            known = self.journal.known.get(item.space.identity()) if self.journal else None
            if known is not None:
                item.found, item.chunks = [known.encode()], known.chunks
            item.pending = left_over(item.space.chunks, item.chunks)

    def run(self) -> list[KernelRun]:
        """Everything, in the order of the spaces; kernels with several dtypes are one."""
        pool = ThreadPoolExecutor(len(self.workers))
        serving = [pool.submit(self._serve, worker) for worker in self.workers]
        try:
            for done in serving:
                done.result()
            return _together([record for item in self.work for record in _records(item)])
        except KeyboardInterrupt:
            raise InterruptedSweepError(self._keep()) from None
        finally:
            self._stop()
            self._stop_workers()
            while wait(serving, timeout=0.1).not_done:  # whoever was about to ask has started a worker again
                self._stop_workers()
            pool.shutdown(wait=True, cancel_futures=True)
            if self.journal:
                self.journal.close()

    def _stop(self) -> None:
        """Nothing more is taken, and nobody waits for something to take."""
        with self.lock:
            self.stopped = True
            self.lock.notify_all()

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
                    if item.space.identity() not in self.journal.known:
                        for found in item.found:
                            self.journal.add(found)
            return self.journal.path

    def _serve(self, worker: Answers) -> None:
        """Take spans until none is left, then records; whoever fails stops all."""
        item = None
        try:
            while True:
                with self.lock:
                    item, job = self._job(item)
                if item is None or job is None:
                    return
                if isinstance(job, str):
                    self._record(worker, item, job)
                else:
                    self._span(worker, item, job)
        except BaseException:
            self._stop()
            raise

    def _job(self, last: _Work | None) -> tuple[_Work | None, tuple[int, int] | str | None]:
        """A span, or the result to record. Waits while what others do may leave something: they hold less than all."""
        while not self.stopped:
            item, span = self._next(last)
            if item is not None:
                return item, span
            for item in self.work:
                name = item.next_result()
                if name is not None:
                    item.recorded[name] = None
                    return item, name
            if not any(item.flying for item in self.work):
                break
            self.lock.wait()
        return None, None

    def _next(self, last: _Work | None) -> tuple[_Work | None, tuple[int, int] | None]:
        """The next span for a worker: of the space it is at, else of one with few others at it.

        What a worker compiles and tabulates for a space is not made again by every other.
        """
        share = self._share()
        for item in sorted(self.work, key=lambda item: (item is not last, len(item.flying))):
            span = item.take(share)
            if span is not None:
                return item, span
        return None, None

    def _share(self) -> int:
        """Chunks for one worker: as much of all that is unfinished as each of the others has, so that all end together.

        Every span gathers its worst elements, however short it is: few long ones are quicker than many short ones.
        """
        unfinished = sum(item.unfinished for item in self.work)
        return max(1, min(MOST, -(-unfinished // len(self.workers))))

    def _span(self, worker: Answers, item: _Work, span: tuple[int, int]) -> None:
        low, high = span
        request = {
            "do": "sweep chunks",
            "space": msgspec.to_builtins(item.space),
            "chunks": span,
            "seconds": SPAN_SECONDS,
        }

        def advanced(text: str) -> None:
            number = int(text) if text.isdigit() else 0
            part = item.space.chunk(low + number - 1)[1] - item.space.chunk(low)[0] if number else 0
            with self.lock:
                if span in item.flying:
                    item.flying[span] = high - low - number
            self.settings.progress(item.space, item.done + part, item.space.points)

        begun = time.monotonic()
        try:
            if not worker.alive:
                describe_target(worker, item.space.target)
            reply = worker.ask(request, timeout=self.settings.timeout, progress=advanced)
        except (WorkerDied, WorkerTimeout, OSError, ValueError) as error:
            if not self.stopped:
                late = isinstance(error, WorkerTimeout)
                self._fail(item, span, "timeout" if late else "crashed", str(error))
            return
        spent = time.monotonic() - begun
        if "failure" in reply:
            self._fail(item, span, "error", reply["failure"])
            worker.stop()
            return
        found = answer(reply)["partial"].encode()
        with self.lock:
            if self.stopped:
                return
            del item.flying[span]
            item.land(span, found, spent)
            item.seconds += spent
            self.lock.notify_all()
            if self.journal:
                self.journal.add(found)
        self.settings.progress(item.space, item.done, item.space.points)

    def _fail(self, item: _Work, span: tuple[int, int], status: str, message: str) -> None:
        with self.lock:
            item.failed = item.failed or (status, message)
            del item.flying[span]
            self.lock.notify_all()

    def _record(self, worker: Answers, item: _Work, result: str) -> None:
        """The record of one result: judging the worst exactly takes time, so all workers do it."""
        request = {
            "do": "sweep record",
            "space": msgspec.to_builtins(item.space),
            "partials": [found.decode() for found in item.found],
            "result": result,
            "seconds": item.seconds if result == item.space.results[0] else 0.0,
            "curve": self.settings.curve,
        }
        reply = answer(worker.ask(request, timeout=max(self.settings.timeout, START_SECONDS)))
        item.recorded[result] = msgspec.convert(reply["run"], KernelRun)


def _records(item: _Work) -> list[KernelRun]:
    """The record of a space, result by result; or what came in its way."""
    made = [item.recorded.get(name) for name in item.space.results]
    records = [record for record in made if record is not None]
    if not item.failed and records:
        return records
    status, message = item.failed or ("error", "nothing was swept")
    return [
        KernelRun(
            name=item.space.target.rpartition("::")[2],
            target=item.space.target,
            op="",
            params={},
            promise="",
            status=status,  # type: ignore[arg-type]
            results=[],
            message=f"{item.space.dtype}: {message}",
            hint=f"verify sweep {shlex.quote(item.space.target)} --dtype {item.space.dtype}",
        )
    ]


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
