"""A worker process for code that may hang, crash or exhaust memory: the parent goes on.

The parent sends one request per line to the worker's stdin and reads events from a pipe of its own, so that whatever
a kernel prints cannot be taken for an answer. A worker that dies or exceeds its time is killed with its whole process
group and replaced by a fresh one at the next request; so is one that says it cannot be used any more.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from verify.errors import SPENT, KernelError, UsageError, VerifyError
from verify.workers.requests import Event, Numbered, Progress, R, Reply, Request, WorkerDied, WorkerTimeout

START_SECONDS = 180.0  # importing torch on a cold, slow disk, then the user's module

OnProgress = Callable[[str], None]


class OutOfTime(VerifyError):
    """The time budget ended before the reply came; nothing is known of the kernel."""

    def __init__(self, *, begun: bool) -> None:
        super().__init__(f"not {'finished' if begun else 'begun'}: {SPENT}")


class Answers(Protocol):
    """What takes a request: a worker, or a pool."""

    def ask(self, request: Request[R], *, timeout: float, progress: OnProgress = ...) -> R: ...


class AnyWorker(Answers, Protocol):
    """A `Worker` of this machine, or a place in a cluster (`verify.workers.cluster.RemoteWorker`)."""

    @property
    def alive(self) -> bool: ...

    def stop(self) -> None: ...


class Worker:
    """Runs requests in a child process: `ask` returns the reply, or raises the error that came instead.

    `environment` is set in the process beside the parent's own variables.
    """

    def __init__(self, backend: str | None = None, environment: Mapping[str, str] | None = None) -> None:
        self._backend = backend
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._events = -1
        self._buffer = b""
        self._numbers = itertools.count(1)
        self._changing = threading.RLock()  # held while a process begins or ends
        self.ignored = 0  # lines on the pipe that were no event of the request

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def alive(self) -> bool:
        """Whether a process is there to take the next request."""
        return self._process is not None and self._process.poll() is None

    def ask(self, request: Request[R], *, timeout: float, progress: OnProgress = lambda text: None) -> R:
        """Send one request and wait for its reply, at most `timeout` seconds."""
        return request.read(self.exchange(msgspec.json.encode(request), timeout=timeout, progress=progress))

    def exchange(self, request: bytes, *, timeout: float, progress: OnProgress) -> msgspec.Raw:
        """The same in JSON, for where the type of the request is not known."""
        self._start()
        assert self._process is not None and self._process.stdin is not None
        deadline = time.monotonic() + timeout
        number = next(self._numbers)
        try:
            self._process.stdin.write(msgspec.json.encode(Numbered(number, msgspec.Raw(request))) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None
        while True:
            line = self._line(deadline)
            if line is None:
                self.stop()
                raise WorkerTimeout(f"no answer within {timeout:g} s; stopped")
            if not line:
                raise self._died()
            event = self._event(line, number)
            if event is None:
                continue
            if isinstance(event, Progress):
                progress(event.text)
                continue
            if not event.usable:
                self.stop()
            if isinstance(event, Reply):
                return event.reply
            raise event.failure.error()

    def stop(self) -> None:
        """Kill the worker and everything it started; from any thread, also while another one asks."""
        with self._changing:
            process, self._process = self._process, None
            if process is None:
                return
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
            process.wait()
            os.close(self._events)
            self._events, self._buffer = -1, b""

    def _start(self) -> None:
        with self._changing:
            if self.alive:
                return
            self.stop()
            read, write = os.pipe()
            command = [sys.executable, "-m", "verify.worker", str(write)]
            if self._backend is not None:
                command.append(self._backend)
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else subprocess.DEVNULL,
                pass_fds=(write,),
                start_new_session=True,
                env={**os.environ, **self._environment},
            )
            os.close(write)
            self._events = read

    def _event(self, line: bytes, number: int) -> Event | None:
        """The event of a line; None where it is of no request, or of another one."""
        reason = ""
        try:
            event: Event = msgspec.json.decode(line, type=Event)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            reason = f"it is no event: {error}"
        else:
            if event.id == number:
                return event
            reason = f"it is of request {event.id}, the request is {number}"
        self.ignored += 1
        print(f"verify: ignored a line on a worker's pipe ({self.ignored} so far): {reason}", file=sys.stderr)
        return None

    def _line(self, deadline: float) -> bytes | None:
        """The next line with something in it; b"" at the end of the pipe, None when time is up."""
        while True:
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                ready, _, _ = select.select([self._events], [], [], left)
                if not ready:
                    return None
                data = os.read(self._events, 1 << 16)
                if not data:
                    return b""
                self._buffer += data
            line, self._buffer = self._buffer.split(b"\n", 1)
            if line:
                return line

    def _died(self) -> WorkerDied:
        process = self._process
        code = process.wait() if process is not None else 0
        self.stop()
        return WorkerDied.of(code)


def ask_about(worker: Answers, request: Request[R], subject: str, *, timeout: float) -> R:
    """The reply; a kernel that raises, hangs or ends the process is an error that names the subject, no traceback."""
    try:
        return worker.ask(request, timeout=timeout)
    except KernelError as error:
        raise UsageError(str(error)) from error
    except (WorkerDied, WorkerTimeout) as error:
        raise UsageError(f"{subject}: {error}") from error


def _has_descriptor(stream: Any) -> bool:
    try:
        stream.fileno()
    except (OSError, AttributeError, ValueError):
        return False
    return True
