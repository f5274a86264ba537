"""A worker process for code that nobody has vouched for: it may hang, crash or exhaust memory; we go on.

The parent sends one JSON request per line to the worker's stdin and reads JSON events from a pipe of its
own, so that whatever a kernel prints cannot be taken for an answer. A worker that dies or exceeds its time
is killed with its whole process group and replaced by a fresh one at the next request.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from verify.errors import VerifyError


class WorkerDied(VerifyError):
    """The worker ended without an answer. `reason` names the signal or the exit code."""


class WorkerTimeout(VerifyError):
    """The worker did not answer in time and was killed."""


class Answers(Protocol):
    """Whoever answers requests: a `Worker` here, or a place in a cluster (`verify.workers.cluster.RemoteWorker`)."""

    @property
    def alive(self) -> bool: ...

    def ask(
        self, request: dict[str, Any], *, timeout: float, progress: Callable[[str], None] = ...
    ) -> dict[str, Any]: ...

    def stop(self) -> None: ...


class Worker:
    """Runs requests in a child process: `ask` returns the answer or raises WorkerDied / WorkerTimeout."""

    def __init__(self, backend: str | None = None) -> None:
        self._backend = backend
        self._process: subprocess.Popen[bytes] | None = None
        self._events = -1
        self._buffer = b""
        self._changing = threading.RLock()  # held while a process begins or ends

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def alive(self) -> bool:
        """Whether a process is there to take the next request."""
        return self._process is not None and self._process.poll() is None

    def ask(
        self,
        request: dict[str, Any],
        *,
        timeout: float,
        progress: Callable[[str], None] = lambda text: None,
    ) -> dict[str, Any]:
        """Send one request and wait for its answer, at most `timeout` seconds."""
        self._start()
        assert self._process is not None and self._process.stdin is not None
        deadline = time.monotonic() + timeout
        try:
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
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
            event: dict[str, Any] = msgspec.json.decode(line)
            if "progress" in event:
                progress(event["progress"])
                continue
            return event

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
            )
            os.close(write)
            self._events = read

    def _line(self, deadline: float) -> bytes | None:
        """The next event; b"" at the end of the pipe, None when time is up."""
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
        return line

    def _died(self) -> WorkerDied:
        process = self._process
        code = process.wait() if process is not None else 0
        self.stop()
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
            extra = " (out of memory?)" if name == "SIGKILL" else ""
            return WorkerDied(f"the process died of {name}{extra}")
        return WorkerDied(f"the process ended with exit code {code} and no result")


def _has_descriptor(stream: Any) -> bool:
    try:
        stream.fileno()
    except (OSError, AttributeError, ValueError):
        return False
    return True
