"""One pool of workers for runs, sweeps, hunts, laws and nights.

A policy is a function `take(last)` that gives the next job. The pool does what every queue of jobs needs: threads,
starting and replacing processes, the import of a target outside a job's time, deadlines, Ctrl-C, and errors of the
harness. What a job came to is handed to its `done` or `failed`; `take`, `done` and `failed` are called under one lock,
so that a policy needs none of its own.

    def take(last: Job[Any] | None) -> Job[Any] | None:
        return Job(request, timeout=600, done=results.append, failed=errors.append) if requests else None

    with Pool.started("interpreter", 4) as pool:
        pool.run(take)
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from verify.backends import named
from verify.errors import JudgeFailed, VerifyError
from verify.workers import process
from verify.workers.process import START_SECONDS, Answers, AnyWorker, OutOfTime
from verify.workers.requests import About, Died, Environment, Late, OnProgress, R, Request, kind_of

WAIT_SECONDS = 0.2  # a wait without an end does not notice Ctrl-C everywhere
STOP_SECONDS = 0.1  # after which workers are stopped again: a thread that was about to ask starts a process


@dataclass(frozen=True)
class Job(Generic[R]):
    """One request for one worker, and what is done with what it comes to.

    `failed` gets a UsageError, TruthError, KernelError, InternalError, Died, Late or OutOfTime.
    """

    request: Request[R]
    done: Callable[[R], object]
    failed: Callable[[VerifyError], object]
    timeout: float
    until: float | None = None  # of time.monotonic(): the reply is not waited for beyond it
    prepare: Callable[[Answers], object] | None = None  # in a fresh process, outside the job's time
    progress: OnProgress = lambda text: None
    about: Any = None  # what the policy knows the job by


Take = Callable[[Job[Any] | None], Job[Any] | None]


@dataclass
class Pool:
    """Workers, and where they are: processes of this machine, one on each of its GPUs, or places in a cluster."""

    list_workers: Callable[[], Sequence[AnyWorker]]
    flag: Callable[[Path], AbstractContextManager[Callable[[], None]]] = lambda path: nullcontext(path.touch)
    more: Callable[[], None] | None = None  # adds a worker; None where there are as many as there can be

    def __post_init__(self) -> None:
        # what each worker, by its place, has been at: seconds by kind of request; and how many requests of each kind
        self.spent: defaultdict[tuple[int, str], float] = defaultdict(float)
        self.requests: Counter[str] = Counter()
        self._counting = threading.Lock()

    @classmethod
    def of(cls, workers: Sequence[AnyWorker]) -> Pool:
        """A pool of these workers and no others."""
        return cls(lambda: workers)

    @classmethod
    def started(cls, backend: str | None, count: int = 1) -> Pool:
        """Processes of this machine, each of which begins with its first request. `grow` adds some."""

        def make() -> AnyWorker:
            return process.Worker(backend)

        workers = [make() for _ in range(count)]
        return cls(lambda: workers, more=lambda: workers.append(make()))

    @classmethod
    def on_gpus(cls, devices: Sequence[str], backend: str) -> Pool:
        """One process on each GPU of this machine; `devices` are entries of the backend's variable."""
        workers = [process.Worker(backend, {named(backend).visible: device}) for device in devices]
        return cls(lambda: workers)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def workers(self) -> Sequence[AnyWorker]:
        """As many as there are now: those of a cluster come and go."""
        return self.list_workers()

    def grow(self, count: int) -> None:
        """So many workers, where processes are started here; a cluster and the GPUs of a machine are what they are."""
        while self.more is not None and len(self.workers) < count:
            self.more()

    def begin(self, count: int, ahead: Request[Any] | None = None) -> None:
        """Start so many processes before they are asked, where they are started here.

        All but the first do `ahead` then, which the first is asked: what it says, and where that fails, is heard of it.
        """
        self.grow(count)
        for place, worker in enumerate(self.workers[:count]):
            if isinstance(worker, process.Worker):
                worker.begin(ahead if place else None)

    def stop(self, keep: int = 0) -> None:
        """End the processes, but the first so many; the next request starts a fresh one."""
        for worker in self.workers[keep:]:
            worker.stop()

    def ask(self, request: Request[R], *, timeout: float, progress: OnProgress = lambda text: None) -> R:
        """One request to the first worker: what there is to do, for example."""
        with self.counted(0, request):
            return self.workers[0].ask(request, timeout=timeout, progress=progress)

    def probe(self) -> None:
        """Let a process that is started here look for versions and probes, for which `about` then waits no longer."""
        if self.more is not None:  # others were asked when they joined
            self.ask(Environment(probed=False), timeout=START_SECONDS)

    def about(self) -> About:
        """Where the workers run."""
        return self.ask(Environment(), timeout=START_SECONDS)

    def run(self, take: Take, *, on_interrupt: Callable[[], None] | None = None) -> None:
        """Do every job that `take` gives, on all workers at a time, until it gives none and none is running.

        `take` gets the last job of the worker that is free. Where it gives None while jobs are running, it is asked
        again when one has ended. At Ctrl-C, and at an exception that no job expects, everything stops, the workers
        too, and what comes of the jobs that were running is dropped. With `on_interrupt` the first Ctrl-C calls it
        instead: no job begins from then on, and those that run may end.
        """
        workers = self.workers
        round_ = _Round(self, take)
        with ThreadPoolExecutor(len(workers)) as threads:
            serving = [threads.submit(round_.serve, place, worker) for place, worker in enumerate(workers)]
            try:
                try:
                    _settle(serving)
                except KeyboardInterrupt:
                    if on_interrupt is None:
                        raise
                    round_.closing = True
                    on_interrupt()
                    _settle(serving)
            except BaseException:
                round_.end()
                while True:
                    for worker in workers:
                        worker.stop()
                    if not wait(serving, timeout=STOP_SECONDS).not_done:
                        break
                raise

    @contextmanager
    def counted(self, place: int, request: Request[Any]) -> Iterator[None]:
        """Counts a request, and the seconds of the block inside."""
        begun, kind = time.monotonic(), kind_of(request)
        try:
            yield
        finally:
            with self._counting:
                self.spent[place, kind] += time.monotonic() - begun
                self.requests[kind] += 1


@contextmanager
def using(pool: Pool | None, backend: str | None) -> Iterator[Pool]:
    """The caller's pool, which stays; without one a new pool of one worker, stopped at the end."""
    if pool is not None:
        yield pool
        return
    with Pool.started(backend) as started:
        yield started


class _Round:
    """One call of `Pool.run`: who is at what."""

    def __init__(self, pool: Pool, take: Take) -> None:
        self.pool, self.take = pool, take
        self.changed = threading.Condition()
        self.running = 0
        self.closing = False  # no job begins
        self.ended = False  # what comes of a job is dropped: its worker was stopped, which is no kernel's crash

    def end(self) -> None:
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def serve(self, place: int, worker: AnyWorker) -> None:
        """Do jobs on one worker until there are no more."""
        job: Job[Any] | None = None
        try:
            while (job := self._next(job)) is not None:
                self._do(place, worker, job)
        except BaseException:
            self.end()
            raise

    def _next(self, last: Job[Any] | None) -> Job[Any] | None:
        with self.changed:
            while not self.ended:
                job = None if self.closing else self.take(last)
                if job is not None:
                    self.running += 1
                    self.changed.notify_all()  # taking one may have left others to take
                    return job
                if self.running == 0:
                    break
                self.changed.wait()
        return None

    def _do(self, place: int, worker: AnyWorker, job: Job[Any]) -> None:
        reply, error = None, None
        try:
            with self.pool.counted(place, job.request):
                reply = _ask(worker, job)
        except VerifyError as raised:
            error = raised
        except Exception:
            if not self.ended:  # a worker that is stopped while it is asked has a closed pipe
                raise
        with self.changed:
            self.running -= 1
            if not self.ended:
                if error is not None:
                    job.failed(error)
                else:
                    job.done(reply)
            self.changed.notify_all()


def _ask(worker: AnyWorker, job: Job[R]) -> R:
    """The reply to a job, within its time."""
    if job.until is not None and time.monotonic() >= job.until:
        raise OutOfTime(begun=False)
    if job.prepare is not None and not worker.alive:
        job.prepare(worker)
    left = math.inf if job.until is None else job.until - time.monotonic()
    try:
        return worker.ask(job.request, timeout=min(job.timeout, left), progress=job.progress)
    except Late:
        if left < job.timeout:
            raise OutOfTime(begun=True) from None
        raise
    except Died as died:
        if died.who == "judge":
            raise JudgeFailed(f"the judge died: {died}") from None
        raise


def _settle(serving: Sequence[Future[None]]) -> None:
    """Wait for all of them; the first exception is raised at once."""
    left = set(serving)
    while left:
        done, left = wait(left, timeout=WAIT_SECONDS)
        for future in done:
            future.result()
