"""A worker process for code that may hang, crash or exhaust memory; the parent survives.

A worker that dies or is late is killed with everything that it started, and a new one takes the next request. So is a
worker that reports that it cannot be used any more. Every wait has a limit.

`subprocess` starts it, because a worker has its own environment and session. A process that `multiprocessing` starts
without a fork would import the main module of the user's program, which a worker must not do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol

import msgspec

from verify.errors import SPENT, KernelError, UsageError, VerifyError
from verify.workers import process_tree
from verify.workers.calls import Callee, hang_up
from verify.workers.phases import phase
from verify.workers.requests import Died, Late, OnProgress, R, Request, demand_reply, kind_of

START_SECONDS = 180.0  # importing torch on a cold, slow disk, then the user's module


class OutOfTime(VerifyError):
    """The time budget ended before the reply came; the kernel is not to blame."""

    def __init__(self, *, begun: bool) -> None:
        super().__init__(f"not {'finished' if begun else 'begun'}: {SPENT}")


class Answers(Protocol):
    """An object that takes requests: a worker, or a pool."""

    def ask(self, request: Request[R], *, timeout: float, progress: OnProgress = ...) -> R: ...


class AnyWorker(Answers, Protocol):
    """A `Worker` of this machine, or a place in a cluster (`verify.workers.cluster.RemoteWorker`)."""

    @property
    def alive(self) -> bool: ...

    def stop(self) -> object: ...


class Worker(Callee):
    """Runs requests in a child process: `ask` returns the reply, or raises the error.

    `environment` is added to the parent's own variables.
    """

    who = "judge"

    def __init__(self, backend: str | None = None, environment: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._backend = backend
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._mark = ""
        self._changing = threading.RLock()  # held while a process starts or ends

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def alive(self) -> bool:
        """True if a process is ready for the next request."""
        return self._process is not None and self._process.poll() is None

    def ask(self, request: Request[R], *, timeout: float, progress: OnProgress = lambda text: None) -> R:
        """Sends one request and returns its reply, which must come within `timeout` seconds."""
        with phase(f"parent: ask for {kind_of(request)}"):
            deadline = time.monotonic() + timeout
            outcome = self.call(msgspec.json.encode(request), deadline=deadline, progress=progress)
            return request.read(demand_reply(outcome).value)

    def stop(self, *, at_once: bool = True) -> None:
        """Kills the worker and everything it started. Any thread may call this, also while another one asks."""
        with self._changing:
            process, self._process = self._process, None
            if process is None or self._connection is None:
                return
            hang_up(self._connection)  # a waiting thread also refers to it; the last reference closes it
            self._connection = None
            process_tree.end(process, self._mark)

    def begin(self) -> None:
        """Starts the process, unless there is one. It imports the modules that every request needs."""
        with self._changing:
            if self.alive:
                return
            self.stop()
            self._connection, theirs = Pipe()
            self._mark = process_tree.new_mark()
            command = [sys.executable, "-m", "verify.worker", str(theirs.fileno())]
            if self._backend is not None:
                command.append(self._backend)
            with theirs:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    env={**os.environ, **self._environment, process_tree.MARK: self._mark},
                )

    def _connected(self) -> Connection:
        with self._changing:
            self.begin()
            assert self._connection is not None
            return self._connection

    def died(self) -> Died:
        """Ends a process that closed its end of the connection. Returns why there is no answer."""
        process, code = self._process, 0
        try:
            code = process.wait(timeout=process_tree.END_SECONDS) if process is not None else 0
        except subprocess.TimeoutExpired:
            limit = f"{process_tree.END_SECONDS:g} s"
            return Died(f"the process closed its connection and did not end within {limit}; stopped", who="judge")
        finally:
            self.stop()
        return Died.of(code, who="judge")

    def wrote_into_connection(self) -> Died:
        """Ends a process that sent something other than a message of verify. Returns the outcome."""
        self.stop()
        return Died("the process sent no message of verify; stopped", who="judge")


def ask_about(worker: Answers, request: Request[R], subject: str, *, timeout: float) -> R:
    """Returns the reply. Raises UsageError with the subject if the kernel raises, hangs or ends the process."""
    try:
        return worker.ask(request, timeout=timeout)
    except KernelError as error:
        raise UsageError(str(error)) from error
    except (Died, Late) as error:
        raise UsageError(f"{subject}: {error}") from error


def _has_descriptor(stream: Any) -> bool:
    try:
        stream.fileno()
    except (OSError, AttributeError, ValueError):
        return False
    return True
