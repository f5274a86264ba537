"""A worker process for code that may hang, crash or exhaust memory: the parent goes on.

The parent sends one request per line to the worker's stdin and reads events from a pipe of its own, so that whatever
a kernel prints cannot be taken for an answer. Numbers of requests are drawn, so that what it writes to that pipe cannot
either. A worker that dies or exceeds its time is killed with everything that it started and replaced by a fresh one at
the next request; so is one that says it cannot be used any more. Nothing is waited for without a limit.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from verify.errors import SPENT, KernelError, UsageError, VerifyError
from verify.workers import family
from verify.workers.phases import phase
from verify.workers.requests import Event, Numbered, R, Request, WorkerDied, WorkerTimeout, kind_of, reply_in

MOST_NOISE = 1000  # lines on the pipe that are no event of the request, after which the worker is stopped
SHOWN_NOISE = 5  # of them on stderr
LONGEST_LINE = 1 << 28  # bytes
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
        self._buffer = bytearray()
        self._mark = ""
        self._ahead: int | None = None  # the number of a request whose reply nobody waits for
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
        with phase(f"parent: ask for {kind_of(request)}"):
            return request.read(self.exchange(msgspec.json.encode(request), timeout=timeout, progress=progress))

    def exchange(self, request: bytes, *, timeout: float, progress: OnProgress) -> msgspec.Raw:
        """The same in JSON, for where the type of the request is not known."""
        self.begin()
        deadline = time.monotonic() + timeout
        number, noise = new_number(), 0
        late = WorkerTimeout(f"no answer within {timeout:g} s; stopped", judges=True)
        try:
            sent = self._send(_numbered(number, request), deadline)
        except BrokenPipeError:
            raise self._died() from None
        while True:
            line = self._line(deadline) if sent else None
            if line is None:
                self.stop()
                raise late
            if not line:
                raise self._died()
            event = self._event(line, number, shown=noise < SHOWN_NOISE)
            if event is None:
                noise += 1
                if noise >= MOST_NOISE or len(line) >= LONGEST_LINE:
                    self.stop()
                    said = f"the process wrote {noise:,} lines where only events belong; stopped"
                    raise WorkerDied(said, judges=True)
                continue
            if (reply := reply_in(event, progress, self.stop)) is not None:
                return reply

    def stop(self) -> None:
        """Kill the worker and everything it started; from any thread, also while another one asks."""
        with self._changing:
            process, self._process = self._process, None
            if process is None:
                return
            family.end(process, self._mark)
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
            os.close(self._events)
            self._events, self._buffer = -1, bytearray()

    def begin(self, ahead: Request[Any] | None = None) -> None:
        """Start the process, unless there is one; it imports what every request needs at once.

        A new one does `ahead` then, whose reply is dropped: what the request loads is there when it is asked again.
        """
        with self._changing:
            if self.alive:
                return
            self.stop()
            read, write = os.pipe()
            self._mark = family.new_mark()
            command = [sys.executable, "-m", "verify.worker", str(write)]
            if self._backend is not None:
                command.append(self._backend)
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else subprocess.DEVNULL,
                pass_fds=(write,),
                start_new_session=True,
                bufsize=0,
                env={**os.environ, **self._environment, family.MARK: self._mark},
            )
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
            os.close(write)
            self._events = read
            if ahead is not None:
                self._ahead = new_number()
                with contextlib.suppress(BrokenPipeError):  # the next request is told
                    self._send(_numbered(self._ahead, msgspec.json.encode(ahead)), time.monotonic())

    def _send(self, data: bytes, deadline: float) -> bool:
        """Write to the process; False where it does not read in time."""
        assert self._process is not None and self._process.stdin is not None
        pipe = self._process.stdin.fileno()
        while data:
            if not select.select([], [pipe], [], max(0.0, deadline - time.monotonic()))[1]:
                return False
            data = data[os.write(pipe, data) :]
        return True

    def _event(self, line: bytes, number: int, *, shown: bool) -> Event | None:
        """The event of a line; None where it is of no request, or of another one."""
        reason = ""
        try:
            event: Event = msgspec.json.decode(line, type=Event)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            reason = f"it is no event: {error}"
        else:
            if event.id == number:
                return event
            if event.id == self._ahead:
                return None
            reason = "it is of another request"
        self.ignored += 1
        if shown:
            print(f"verify: ignored a line on a worker's pipe ({self.ignored} so far): {reason}", file=sys.stderr)
        return None

    def _line(self, deadline: float) -> bytes | None:
        """The next line with something in it; b"" at the end of the pipe, None when time is up."""
        searched = 0
        while True:
            end = self._buffer.find(b"\n", searched)
            if end < 0 and len(self._buffer) >= LONGEST_LINE:
                end = len(self._buffer)
            if end >= 0:
                line, searched = bytes(self._buffer[:end]), 0
                del self._buffer[: end + 1]
                if line:
                    return line
                continue
            searched = len(self._buffer)
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._events], [], [], left)[0]:
                return None
            data = os.read(self._events, 1 << 16)
            if not data:
                return b""
            self._buffer += data

    def _died(self) -> WorkerDied:
        process, code = self._process, 0
        try:
            code = process.wait(timeout=family.END_SECONDS) if process is not None else 0
        except subprocess.TimeoutExpired:
            said = f"the process closed its pipe and did not end within {family.END_SECONDS:g} s; stopped"
            return WorkerDied(said, judges=True)
        finally:
            self.stop()
        return WorkerDied.of(code, judges=True)


def _numbered(number: int, request: bytes) -> bytes:
    return msgspec.json.encode(Numbered(number, msgspec.Raw(request))) + b"\n"


def new_number() -> int:
    """The number of a request, which the code that is measured has not been told."""
    return secrets.randbits(53)


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
