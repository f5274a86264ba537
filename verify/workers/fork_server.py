"""Starts processes for the code of kernels: forks of a server that never imports a kernel.

A worker judges, and each kernel runs in a separate process. That process is forked from a server. The worker forks the
server after all imports and before anything else, so no state passes from one kernel to the next or from a kernel to
its judge. A new process costs 10 ms instead of an import of torch. The server must start before anything initialises
CUDA, because a fork cannot use an initialised GPU.

`multiprocessing` starts and ends the forks. Its own forkserver is not used: it is a new interpreter, so it would import
torch again in each worker, and each of its forks would import the worker's main module again. A fork inherits its
function and its connection from the server's memory, so nothing is pickled.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import msgspec

from verify.records.record import Printed
from verify.workers import process_tree
from verify.workers.calls import FOREIGN, Callee, hang_up
from verify.workers.requests import Died, Failure, R, Request, Who, demand_reply

KEPT = 32 << 10  # bytes kept of the beginning, and of the end
CLOSED = "the process closed its connection to verify and went on; stopped"
GRACE = 1.0  # seconds for a process to end by itself after its connection is closed

FORK = multiprocessing.get_context("fork")
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

    def __init__(self, server: ForkServer, pid: int, connection: Connection, output: int, who: Who) -> None:
        super().__init__()
        self.pid, self.who, self.output = pid, who, Output(output)  # pid 0: ended
        self._server, self._connection = server, connection

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
        if not self.alive:
            return self._broken is None
        with socket.socket(fileno=os.dup(self._connection.fileno())) as end:
            try:
                return end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
            except BlockingIOError:
                return False
            except OSError:
                return True

    def begin_stop(self) -> None:
        """Tells the process to end. `stop` waits for it: on a GPU that takes 0.3 s, in which others may start."""
        hang_up(self._connection)

    def stop(self, *, at_once: bool = False) -> int | None:
        """Ends the process. Returns its exit code, None if it did not end by itself."""
        if not self.alive:
            return None
        if at_once:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        hang_up(self._connection)  # forks that judge have a copy of it
        self._connection.close()
        code = self._server.end(self.pid)
        self.pid = 0
        self.output.read()
        self.output.close()
        return code

    def died(self) -> Died:
        """Ends a process that closed its end of the connection. Returns why there is no answer."""
        code = self.stop()
        return Died(CLOSED, who=self.who) if code is None else Died.of(code, who=self.who)

    def wrote_into_connection(self) -> Failure:
        """Ends a process that sent something other than a message of verify. Only a kernel's code does that."""
        self.stop(at_once=True)
        self._broken = Failure("kernel", FOREIGN)
        return self._broken

    def _connected(self) -> Connection:
        return self._connection

    def _wait(self, connection: Connection) -> None:
        """Reads the output until a message arrives: a full pipe would stop the process."""
        while self.output.descriptor >= 0 and connection not in wait([connection, self.output.descriptor]):
            self.output.read()


class _Begin(msgspec.Struct, tag="begin"):
    """Starts a fork. Its connection and the pipe for its output follow."""

    given: msgspec.Raw


class _End(msgspec.Struct, tag="end"):
    """Ends a fork whose connection is closed."""

    pid: int


class ForkServer:
    """Forks processes from the present state of this one; each runs `run(connection, given)` and ends.

    `prepare(given)` runs in the server first, for imports that all later forks share. Forks do not inherit `closed`, a
    connection of this process.
    """

    def __init__(
        self,
        run: Callable[[Connection, bytes], object],
        prepare: Callable[[bytes], object],
        closed: Connection | None = None,
    ) -> None:
        self._run, self._prepare, self._closed = run, prepare, closed
        self._connection, theirs = Pipe()
        flush()
        self._process = FORK.Process(target=self._serve, args=(theirs,))
        with theirs:
            self._process.start()

    def fork(self, given: bytes = b"null", who: Who = "kernel") -> Fork:
        """Starts a process that gets `given`, some JSON."""
        ours, theirs = Pipe()
        read, write = os.pipe()
        with theirs:
            self._connection.send_bytes(msgspec.json.encode(_Begin(msgspec.Raw(given))))
            for descriptor in (theirs.fileno(), write):
                send_handle(self._connection, descriptor, self._process.pid or 0)
        os.close(write)
        return Fork(self, self._answer() or 0, ours, read, who)

    def end(self, pid: int) -> int | None:
        """Ends a fork, unless it has ended. Returns its exit code, None if it did not end by itself."""
        self._connection.send_bytes(msgspec.json.encode(_End(pid)))
        return self._answer()

    def stop(self) -> None:
        """Ends the server. Its forks notice that by their connections."""
        hang_up(self._connection)
        self._connection.close()
        self._process.join()

    def _answer(self) -> int | None:
        try:
            return msgspec.json.decode(self._connection.recv_bytes(), type=int | None)
        except (EOFError, ConnectionError):
            raise Died("the process that starts others has ended", who="judge") from None

    # -- in the server ----------------------------------------------------------------------------------

    def _serve(self, asked: Connection) -> None:
        self._connection.close()
        if self._closed is not None:
            self._closed.close()
        children: dict[int | None, BaseProcess] = {}
        try:
            while True:
                request: _Begin | _End = msgspec.json.decode(asked.recv_bytes(), type=_Begin | _End)
                if isinstance(request, _End):
                    answer = _ended(children.pop(request.pid))
                else:
                    child = self._begin(asked, bytes(request.given))
                    answer, children[child.pid] = child.pid, child
                asked.send_bytes(msgspec.json.encode(answer))
        except (EOFError, ConnectionError):  # the worker ended
            pass
        finally:
            os._exit(0)  # does not wait for forks

    def _begin(self, asked: Connection, given: bytes) -> BaseProcess:
        with Connection(recv_handle(asked)) as connection:
            output = recv_handle(asked)
            self._prepare(given)
            gc.freeze()  # the collector then skips objects that forks share: an eighth of the time of judging rows
            child = FORK.Process(target=self._run_child, args=(asked, connection, output, given))
            child.start()
        os.close(output)
        return child

    def _run_child(self, asked: Connection, connection: Connection, output: int, given: bytes) -> None:
        """Runs a fork to the end of its process."""
        asked.close()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        try:
            self._run(connection, given)
        finally:
            flush()


def forked(asked: Connection) -> Connection:
    """Forks a worker for each message with its variables. Returns its connection in each, and never in this process.

    A message with a process number is answered by its exit code. This process ends when the other side hangs up.
    """
    gc.freeze()
    try:
        while True:
            request = msgspec.json.decode(asked.recv_bytes(), type=dict[str, str] | int)
            if isinstance(request, int):
                answer: int | None = -signal.SIGKILL
                with suppress(ChildProcessError):  # it was a fork of an earlier process, and ended with that
                    ended, status = os.waitpid(request, os.WNOHANG)
                    answer = os.waitstatus_to_exitcode(status) if ended else None
            else:
                connection = Connection(recv_handle(asked))
                answer = os.fork()
                if not answer:
                    asked.close()
                    os.setsid()
                    process_tree.take_mark(request[process_tree.MARK])
                    os.environ.update(request)
                    return connection
                connection.close()
            asked.send_bytes(msgspec.json.encode(answer))
    except (EOFError, ConnectionError):
        os._exit(0)


def flush() -> None:
    """Flushes the streams of Python and C. A kernel may have closed either."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    _LIBC.fflush(None)


def _ended(child: BaseProcess) -> int | None:
    """Returns the exit code of a fork whose connection is closed, None if it went on and was killed.

    Polls, because `join` waits for a pipe that a kernel can close.
    """
    for seconds in (GRACE, process_tree.END_SECONDS):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if child.exitcode is not None:
                return child.exitcode if seconds == GRACE else None
            time.sleep(0.001)
        child.kill()
    return None
