"""Starts processes for the code of kernels: forks of a server that never imports a kernel.

A worker judges, and each kernel runs in a separate process. That process is forked from a server. The worker forks the
server after all imports and before anything else, so no state passes from one kernel to the next or from a kernel to
its judge. A new process costs 10 ms instead of an import of torch. The server must start before anything initialises
CUDA, because a fork cannot use an initialised GPU.

The forkserver of `multiprocessing` is not used: it is a new interpreter, so it would import torch again in each worker,
and each of its forks would import the worker's main module again. A fork inherits its function from the memory of the
server, so nothing is pickled. If there are many workers, they too are forks of a process that has imported torch.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any, NoReturn

import msgspec

from verify.records.record import Printed
from verify.workers import process_tree
from verify.workers.calls import Callee
from verify.workers.channel import Channel
from verify.workers.requests import Died, Failure, R, Request, Who, demand_reply

KEPT = 32 << 10  # bytes kept of the beginning, and of the end
CLOSED = "the process closed its connection to verify and went on; stopped"
GRACE = 1.0  # seconds for a process to end by itself after its connection is closed

_LIBC = ctypes.CDLL(None)


class Output:
    """Keeps the beginning and the end of the text that a process prints into a pipe."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor  # -1: closed
        os.set_blocking(descriptor, False)
        self._head, self._tail, self._printed = b"", b"", 0

    def read(self) -> None:
        """Reads all text that is in the pipe."""
        while self.descriptor >= 0:
            try:
                data = os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self.close()
            self._printed += len(data)
            room = KEPT - len(self._head)
            self._head += data[:room]
            self._tail = (self._tail + data[room:])[-KEPT:]

    def close(self) -> None:
        """Stops reading."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1

    def taken(self) -> Printed | None:
        """Returns the text since the last call, or None if there is none."""
        self.read()
        if not self._printed:
            return None
        dropped = self._printed - len(self._head) - len(self._tail)
        middle = f"\n... {dropped:,} bytes dropped ...\n".encode() if dropped else b""
        found = Printed(self._printed, (self._head + middle + self._tail).decode("utf-8", "replace"))
        self._head, self._tail, self._printed = b"", b"", 0
        return found


class Fork(Callee):
    """A process that a server started: it calls kernels, or judges."""

    def __init__(self, server: ForkServer, pid: int, channel: Channel, output: int, who: Who) -> None:
        super().__init__()
        self.pid, self.who, self.output = pid, who, Output(output)  # pid 0: ended
        self._server, self._channel = server, channel

    def ask(self, request: Request[R], **options: Any) -> R:
        """Returns the reply to one request; see `call`."""
        return request.read(demand_reply(self.call(msgspec.json.encode(request), **options)).value)

    @property
    def alive(self) -> bool:
        """True unless this object ended the process."""
        return self.pid > 0

    @property
    def ended(self) -> bool:
        """True if the process is gone, so that a new one may replace it."""
        return self._channel.ended if self.alive else self._broken is None

    def begin_stop(self) -> None:
        """Tells the process to end. `stop` waits for it: on a GPU that takes 0.3 s, in which others may start."""
        self._channel.hang_up()

    def stop(self, *, at_once: bool = False) -> int | None:
        """Ends the process. Returns its exit code, None if it did not end by itself."""
        if not self.alive:
            return None
        if at_once:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._channel.hang_up()  # forks that judge have a copy of it
        self._channel.close()
        code = self._server.end(self.pid)
        self.pid = 0
        self.output.read()
        self.output.close()
        return code

    def died(self) -> Died:
        """Ends a process that closed its end of the connection. Returns why there is no answer."""
        code = self.stop()
        return Died(CLOSED, who=self.who) if code is None else Died.of(code, who=self.who)

    def wrote_into_connection(self, text: str) -> Failure:
        """Ends a process that sent something other than a message of verify. Only a kernel's code does that."""
        self.stop(at_once=True)
        self._broken = Failure("kernel", text)
        return self._broken

    def _connected(self) -> Channel:
        return self._channel

    def _wait(self, channel: Channel, until: float) -> None:
        """Reads the output until a message arrives: a full pipe would stop the process."""
        while self.output.descriptor >= 0 and (left := until - time.monotonic()) > 0:
            number = channel.fileno()
            if number in wait([number, self.output.descriptor], None if left == math.inf else left):
                return
            self.output.read()


class Begin(msgspec.Struct, tag="begin"):
    """Starts a fork, which gets some JSON and the files that follow."""

    given: msgspec.Raw


class End(msgspec.Struct, tag="end"):
    """Ends a fork, unless it ends by itself."""

    pid: int


def exchange(channel: Channel, request: Begin | End, until: float, descriptors: Sequence[int] = ()) -> int | None:
    """Asks a process that forks others. Returns the number of the new process, or the exit code of one that ended.

    The exit code is None if it did not end by itself.
    """
    channel.send(msgspec.json.encode(request), until=until, descriptors=descriptors)
    return msgspec.json.decode(channel.receive(until=until), type=int | None)


def serve_forks(asked: Channel, prepare: Callable[[bytes], object] = lambda given: None) -> tuple[list[int], bytes]:
    """Forks a process for each request to begin one. Returns in each, with its files and JSON, and never in this one.

    `prepare(given)` runs in this process first, for imports that all later forks share. This process ends when the
    other side hangs up; it does not wait for forks.
    """
    children = set[int]()
    try:
        while True:
            files = list[int]()
            request: Begin | End = msgspec.json.decode(asked.receive(descriptors=files), type=Begin | End)
            if isinstance(request, Begin):
                prepare(given := bytes(request.given))
                gc.freeze()  # the collector then skips objects that forks share: an eighth of the time of judging rows
                answer: int | None = os.fork()
                if not answer:
                    asked.close()
                    return files, given
                children.add(answer)
                for number in files:
                    os.close(number)
            else:  # a fork of an earlier process ended with that
                answer = _ended(request.pid) if request.pid in children else -signal.SIGKILL
                children.discard(request.pid)
            asked.send(msgspec.json.encode(answer))
    except (EOFError, ConnectionError):
        os._exit(0)


def _ended(pid: int) -> int | None:
    """Returns the exit code of a fork whose channel is closed, None if it went on and was killed."""
    for seconds in (GRACE, process_tree.END_SECONDS):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status) if seconds == GRACE else None
            time.sleep(0.001)
        os.kill(pid, signal.SIGKILL)
    return None


def forked(asked: Channel) -> Channel:
    """Forks a worker for each request with its variables. Returns its channel in each, and never in this process."""
    files, given = serve_forks(asked)
    variables = msgspec.json.decode(given, type=dict[str, str])
    os.setsid()
    process_tree.take_mark(variables[process_tree.MARK])
    os.environ.update(variables)
    return Channel(*files)


class ForkServer:
    """Forks processes from the present state of this one; each runs `run(channel, given)` and ends.

    `prepare`: see `serve_forks`. Forks do not inherit `closed`, a channel of this process.
    """

    def __init__(
        self, run: Callable[[Channel, bytes], object], prepare: Callable[[bytes], object], closed: Channel | None = None
    ) -> None:
        self._run, self._prepare, self._closed = run, prepare, closed
        self._channel, theirs = Channel.pair()
        flush()
        with theirs:
            self._pid = os.fork()
            if not self._pid:
                self._serve(theirs)

    def fork(self, given: bytes = b"null", who: Who = "kernel") -> Fork:
        """Starts a process that gets `given`, some JSON."""
        ours, theirs = Channel.pair()
        read, write = os.pipe()
        with theirs:
            pid = self._exchange(Begin(msgspec.Raw(given)), [theirs.fileno(), write])
        os.close(write)
        return Fork(self, pid or 0, ours, read, who)

    def end(self, pid: int) -> int | None:
        """Ends a fork, unless it has ended. Returns its exit code, None if it did not end by itself."""
        return self._exchange(End(pid))

    def stop(self) -> None:
        """Ends the server. Its forks notice that by their channels."""
        self._channel.hang_up()
        self._channel.close()
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _exchange(self, request: Begin | End, descriptors: Sequence[int] = ()) -> int | None:
        try:
            return exchange(self._channel, request, math.inf, descriptors)
        except (EOFError, ConnectionError):
            raise Died("the process that starts others has ended", who="judge") from None

    def _serve(self, asked: Channel) -> NoReturn:
        """Runs the server, and then each of its forks to the end of its process."""
        code: Any = 1
        try:
            self._channel.close()
            if self._closed is not None:
                self._closed.close()
            (number, output), given = serve_forks(asked, self._prepare)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            self._run(Channel(number), given)
            code = 0
        except SystemExit as ended:  # as Python ends by it
            code = ended.code if isinstance(ended.code, int) else bool(ended.code)
        except BaseException:
            traceback.print_exc()
        finally:
            flush()
            os._exit(code & 0xFF)


def flush() -> None:
    """Flushes the streams of Python and C. A kernel may have closed either."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    _LIBC.fflush(None)
