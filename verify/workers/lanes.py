"""Does tasks on warm workers: a queue, and lanes that each have a worker of their own and do one task at a time.

A task that is cancelled or takes too long loses its worker, and ends at once because no other one starts for it. The
next task of the lane gets a new worker.
"""

import threading
import traceback
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from verify.errors import InternalError, UsageError, VerifyError, said_by
from verify.workers.pool import Pool
from verify.workers.process import Worker
from verify.workers.requests import Request

MOST_QUEUED = 1000
PREPARE_SECONDS = 60.0


class Stopped(VerifyError):
    """Reports that a task was cancelled, interrupted or out of time."""


@dataclass(frozen=True)
class Task:
    """One task. `work` gets the pool of its lane. `done` gets the result of `work`, or its error."""

    key: Hashable
    work: Callable[[Pool], Any]
    done: Callable[[Any], object]
    seconds: float  # that it may take once it begins


class _LaneWorker(Worker):
    """A worker that starts no process while its task is stopped."""

    stopped = ""

    def begin(self) -> None:
        if self.stopped:
            raise Stopped(self.stopped)
        super().begin()


class Lanes:
    """Holds the queue and the lanes. `between` is sent to a worker that did a task before, so that it forgets it."""

    def __init__(self, backend: str | None, count: int, between: Request[Any]) -> None:
        self._between = between
        self._queue: deque[Task] = deque()
        self._running: dict[Hashable, _LaneWorker] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._workers = [_LaneWorker(backend) for _ in range(count)]
        self._threads = [threading.Thread(target=self._serve, args=(worker,), daemon=True) for worker in self._workers]
        for thread in self._threads:
            thread.start()

    def submit(self, task: Task) -> None:
        """Queues a task. Raises UsageError if the queue is full, or has a task of this key."""
        with self._changed:
            if task.key in self._running or any(task.key == other.key for other in self._queue):
                raise UsageError("two requests at a time have different ids; received one that is not answered yet")
            if len(self._queue) >= MOST_QUEUED:
                raise UsageError(f"at most {MOST_QUEUED:,} requests wait; received one more", hint="wait for an answer")
            self._queue.append(task)
            self._changed.notify()

    def cancel(self, key: Hashable, reason: str = "cancelled") -> bool:
        """Stops a task that waits or runs. False if there is none: it has ended, or never began."""
        with self._changed:
            waiting = [task for task in self._queue if task.key == key]
            for task in waiting:
                self._queue.remove(task)
            worker = self._running.get(key)
            if worker is not None:
                worker.stopped = worker.stopped or reason
                worker.stop()  # within the lock, so that the lane cannot begin another task in between
        for task in waiting:
            task.done(Stopped(reason))
        return bool(waiting) or worker is not None

    def close(self, *, reason: str = "") -> None:
        """Ends the lanes, once all tasks are done; with a `reason` at once. No worker is left behind."""
        with self._changed:
            self._closed = True
            keys = [*(task.key for task in self._queue), *self._running] if reason else []
            self._changed.notify_all()
        for key in keys:
            self.cancel(key, reason)
        for thread in self._threads:
            thread.join()

    def _serve(self, worker: _LaneWorker) -> None:
        pool = Pool.of([worker])
        try:
            while (task := self._next(worker)) is not None:
                self._do(task, worker, pool)
        finally:
            worker.stop()

    def _next(self, worker: _LaneWorker) -> Task | None:
        with self._changed:
            while not self._queue:
                if self._closed:
                    return None
                self._changed.wait()
            task = self._queue.popleft()
            worker.stopped = ""
            self._running[task.key] = worker
            return task

    def _do(self, task: Task, worker: _LaneWorker, pool: Pool) -> None:
        late = f"it took more than {task.seconds:g} s"
        timer = threading.Timer(task.seconds, self.cancel, (task.key, late))
        timer.daemon = True
        timer.start()
        try:
            if worker.alive:
                pool.ask(self._between, timeout=PREPARE_SECONDS)
            found = task.work(pool)
        except VerifyError as error:
            found = error
        except Exception as error:
            traceback.print_exc()
            found = InternalError(f"{type(error).__name__}: {said_by(error)}")
        timer.cancel()
        timer.join()  # one that has fired must not stop a later task of this key
        with self._changed:
            del self._running[task.key]
            stopped = worker.stopped
        task.done(Stopped(stopped) if stopped else found)
