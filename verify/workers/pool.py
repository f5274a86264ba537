"""One pool of workers for runs, sweeps, hunts, laws and nights.

A policy is a function `take(last)` that returns the next job. The pool does the work that all queues of jobs share: it
starts and replaces processes, imports a target outside a job's time, and handles threads, deadlines, Ctrl-C and errors
of the harness. It calls `done` or `failed` of a job with its outcome. It calls `take`, `done` and `failed` under one
lock, so a policy needs none.

    def take(last: Job[Any] | None) -> Job[Any] | None:
        return Job(request, timeout=600, done=results.append, failed=errors.append) if requests else None

    with Pool.started("interpreter", 4) as pool:
        pool.run(take)
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from verify.backends import Cuda, named
from verify.errors import JudgeFailed, UsageError, VerifyError
from verify.workers import process
from verify.workers.machine import gpus, usable_cores
from verify.workers.process import START_SECONDS, Answers, AnyWorker, OutOfTime
from verify.workers.requests import About, Died, Environment, Late, OnProgress, R, Request

T = TypeVar("T")
WAIT_SECONDS = 0.2  # on some systems an endless wait does not notice Ctrl-C
STOP_SECONDS = 0.1  # then workers are stopped again: a thread may have started a process meanwhile


@dataclass(frozen=True)
class Job(Generic[R]):
    """One request for one worker, and the functions that take its outcome.

    `failed` gets a UsageError, TruthError, KernelError, InternalError, Died, Late or OutOfTime.
    """

    request: Request[R]
    done: Callable[[R], object]
    failed: Callable[[VerifyError], object]
    timeout: float
    until: float | None = None  # a time of time.monotonic(); a later reply is dropped
    prepare: Callable[[Answers], object] | None = None  # called in a new process, outside the job's time
    progress: OnProgress = lambda text: None
    about: Any = None  # a value by which the policy recognises the job


Take = Callable[[Job[Any] | None], Job[Any] | None]


@dataclass
class Pool:
    """Workers: processes of this machine, processes on several of its GPUs, or places in a cluster."""

    list_workers: Callable[[], Sequence[AnyWorker]]
    flag: Callable[[Path], AbstractContextManager[Callable[[], None]]] = lambda path: nullcontext(path.touch)
    more: Callable[[], None] | None = None  # adds a worker; None: the pool cannot grow
    devices: int = 1  # GPUs of this machine that share the work
    known: About | None = None  # where the workers run, if the caller has asked one like them

    @classmethod
    def of(cls, workers: Sequence[AnyWorker]) -> Pool:
        """Returns a pool of these workers and no others."""
        return cls(lambda: workers)

    @classmethod
    def started(cls, backend: str | None, count: int = 1) -> Pool:
        """Returns a pool of processes on this machine. Each starts with its first request; `grow` adds more."""
        workers: list[AnyWorker] = [process.Worker(backend) for _ in range(count)]
        return cls(lambda: workers, more=lambda: workers.append(process.Worker(backend)))

    @classmethod
    def on_gpus(cls, devices: Sequence[str], backend: str | None) -> Pool:
        """Returns a pool of one process on each GPU; `devices` are entries of the backend's variable.

        `grow` adds further processes, on one GPU after the other.
        """
        workers: list[AnyWorker] = []
        visible = named(backend or Cuda.name).visible

        def more() -> None:
            workers.append(process.Worker(backend, {visible: devices[len(workers) % len(devices)]}))

        found = cls(lambda: workers, more=more, devices=len(devices))
        found.grow(len(devices))
        return found

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def workers(self) -> Sequence[AnyWorker]:
        """Returns the current workers: workers of a cluster may come and go."""
        return self.list_workers()

    def grow(self, count: int) -> None:
        """Adds workers up to `count` if the pool starts processes itself. A cluster does not change."""
        while self.more is not None and len(self.workers) < count:
            self.more()

    def room(self, about: About) -> int:
        """Returns how many processes can work here at once. `about` is that of one worker, so of one GPU."""
        return about.workers if self.devices == 1 else min(usable_cores(), about.workers * self.devices)

    def first(self, count: int) -> Pool:
        """Returns a pool of the first `count` processes, or this pool if it does not start processes itself."""
        if self.more is None:
            return self
        self.grow(count)
        return Pool.of(self.workers[:count])

    def begin(self, count: int) -> None:
        """Starts the first `count` processes before their first request, if the pool starts processes itself."""
        self.grow(count)
        for worker in self.workers[:count]:
            if isinstance(worker, process.Worker):
                worker.begin()

    def stop(self, keep: int = 0) -> None:
        """Ends all processes except the first `keep`; a next request starts a new process."""
        for worker in self.workers[keep:]:
            worker.stop()

    def ask(self, request: Request[R], *, timeout: float, progress: OnProgress = lambda text: None) -> R:
        """Sends one request to the first worker and returns the reply, for example the list of kernels."""
        return self.workers[0].ask(request, timeout=timeout, progress=progress)

    def probe(self) -> None:
        """Makes a local process look up versions and probes in the background, so that `about` returns sooner."""
        if self.more is not None and self.known is None:  # workers of other pools were probed when they joined
            self.ask(Environment(probed=False), timeout=START_SECONDS)

    def about(self) -> About:
        """Returns where the workers run."""
        return self.known or self.ask(Environment(), timeout=START_SECONDS)

    def run(self, take: Take, *, on_interrupt: Callable[[], None] | None = None) -> None:
        """Runs every job that `take` returns, on all workers, until it returns None and no job runs.

        `take` gets the last job of the free worker. If it returns None while jobs run, it is called again when one
        ends. Ctrl-C and unexpected exceptions stop everything, also the workers, and drop the outcome of running jobs.

        Args:
            on_interrupt: called at the first Ctrl-C instead; no further job begins, and running jobs may end
        """
        workers = self.workers
        round_ = _Round(take)
        with ThreadPoolExecutor(len(workers)) as threads:
            serving = [threads.submit(round_.serve, worker) for worker in workers]
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


def spread(
    items: Sequence[T], jobs: int, backend: str | None, do: Callable[[T, Pool], R], *, probed: bool = False
) -> Iterator[R]:
    """Yields the results of `do` for all items, as they end. Each of `jobs` threads has a pool of one warm worker.

    Several workers are forks of one process. They go round the devices that the backend sees. 0 jobs are as many as the
    backend allows on each. With `probed` one worker of each device probes it, for all others there.
    """
    if not items:
        return
    kind = named(backend or Cuda.name)
    devices = listed.split(",") if "," in (listed := os.environ.get(kind.visible, "")) else []
    pools, free = list[Pool](), SimpleQueue[Pool]()
    template = process.Template(backend) if len(items) > 1 and jobs != 1 else None

    def grow(count: int) -> None:
        for place in range(len(pools), min(count, len(items))):
            variables = {kind.visible: devices[place % len(devices)]} if devices else {}
            worker = process.Worker(backend, variables, template)
            worker.begin()
            pools.append(Pool.of([worker]))

    def one(item: T) -> R:
        pool = free.get()
        try:
            return do(item, pool)
        finally:
            free.put(pool)

    try:
        # all start at the same time if the devices are known; else the first one tells how many there are
        grow(jobs if jobs and (devices or kind.is_single()) else 1)
        with suppress(VerifyError):  # each request to such a backend reports it
            about = pools[0].ask(Environment(probed=False), timeout=START_SECONDS)
            jobs = jobs or about.workers * max(len(devices), about.devices)
            if about.devices > 1:
                devices = gpus("all", about.devices, kind.visible)
        grow(jobs)
        with suppress(VerifyError):
            for place, pool in enumerate(pools) if probed else ():
                same = pools[place % len(devices)] if devices else pools[0]
                pool.known = same.known or same.about()
        for each in pools:
            free.put(each)
        threads = ThreadPoolExecutor(len(pools))
        try:
            for done in as_completed([threads.submit(one, item) for item in items]):
                yield done.result()
        finally:  # at Ctrl-C nothing more begins, and what goes on loses its worker
            threads.shutdown(wait=False, cancel_futures=True)
            for each in pools:
                each.stop()
            threads.shutdown()
    finally:
        for pool in pools:
            pool.stop()
        if template is not None:
            template.stop()


@contextmanager
def using(pool: Pool | None, backend: str | None) -> Iterator[Pool]:
    """Yields the caller's pool, which stays open; without one, a new pool of one worker, stopped at the end."""
    if pool is not None:
        yield pool
        return
    with Pool.started(backend) as started:
        yield started


class _Round:
    """The state of one call of `Pool.run`."""

    def __init__(self, take: Take) -> None:
        self.take = take
        self.changed = threading.Condition()
        self.running = 0
        self.closing = False  # True: no further job begins
        self.ended = False  # True: outcomes are dropped, because their workers were stopped

    def end(self) -> None:
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def serve(self, worker: AnyWorker) -> None:
        """Runs jobs on one worker until there are no more."""
        job: Job[Any] | None = None
        try:
            while (job := self._next(job)) is not None:
                self._do(worker, job)
        except BaseException:
            self.end()
            raise

    def _next(self, last: Job[Any] | None) -> Job[Any] | None:
        with self.changed:
            while not self.ended:
                job = None if self.closing else self.take(last)
                if job is not None:
                    self.running += 1
                    self.changed.notify_all()  # another thread may find a job now
                    return job
                if self.running == 0:
                    break
                self.changed.wait()
        return None

    def _do(self, worker: AnyWorker, job: Job[Any]) -> None:
        reply, error = None, None
        try:
            reply = _ask(worker, job)
        except VerifyError as raised:
            error = raised
        except Exception:
            if not self.ended:  # stopping a worker during a request closes its pipe
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
    """Returns the reply to a job, within its time."""
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
    """Waits for all threads; raises the first exception at once."""
    left = set(serving)
    while left:
        done, left = wait(left, timeout=WAIT_SECONDS)
        for future in done:
            future.result()


# -- workers of one record are equal --------------------------------------------------------------------


def equal_workers(found: dict[str, dict[str, str]]) -> dict[str, str]:
    """Returns the facts that all workers share. Raises UsageError naming a worker that differs."""
    first, *others = sorted(found)
    for name in (first, *others):
        refuse_unlike(found[first], name, found[name])
    return found[first]


def refuse_unlike(reference: dict[str, str], name: str, about: dict[str, str]) -> None:
    """Raises UsageError if a worker differs from the reference."""
    if "error" in about:
        raise UsageError(f"worker {name} cannot run verify: {about['error']}")
    for key, value in reference.items():
        if about.get(key) != value:
            text = f"the workers of one run must be equal: {key} is {value!r}, but {about.get(key)!r} on {name}"
            raise UsageError(text, hint="one run for each kind of GPU; `verify compare` sets the records side by side")


# The same GPU gives the same bits under another kernel of the operating system. Sources are compared by their digests.
_MAY_DIFFER = frozenset({"platform", "commit", "dirty"})


def identity_of(about: About) -> dict[str, str]:
    """Returns the facts that must be equal among the workers of one run, as text."""
    ignored = _MAY_DIFFER | ({"cpu"} if named(about.backend).gpu else set())
    found = {name: str(value) for name, value in about.environment.items() if name not in ignored}
    return {**found, "backend": about.backend}


def check_equal(pool: Pool) -> None:
    """Raises UsageError if the GPUs of one machine differ. Starts all processes."""

    def asked(worker: AnyWorker) -> dict[str, str]:
        try:
            return identity_of(worker.ask(Environment(), timeout=START_SECONDS))
        except VerifyError as error:
            return {"error": str(error)}

    with ThreadPoolExecutor(len(pool.workers)) as threads:
        found = list(threads.map(asked, pool.workers))
    equal_workers({f"{place}": about for place, about in enumerate(found)})
