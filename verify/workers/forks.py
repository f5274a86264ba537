"""Processes for the code of kernels: forks of one in which no kernel was ever imported.

A worker judges, and each kernel runs in a process of its own beside it. That process is a fork of a server, which was
forked itself when everything was imported and nothing had happened yet: so no state passes from one kernel to the
next, nor from a kernel to its judge, and a fresh process costs 10 ms instead of an import of torch. A server has to
be made before anything initialises CUDA, which no fork survives.

Between the two lies a socket. A message on it is a text (a request or an event) and bytes beside it (tensors). What a
kernel prints goes into a pipe of its own, of which `Printed` keeps the two ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from verify.errors import KernelError
from verify.records.record import Printed
from verify.workers.process import OnProgress
from verify.workers.requests import Event, Failed, Numbered, Progress, R, Request, WorkerDied, WorkerTimeout, reply_in

KEPT = 32 << 10  # bytes that are kept of each end of what a kernel prints
LONGEST = 1 << 28  # bytes of a text
GONE = "the process of the kernel has ended"
UNUSABLE = "after which its process could not use the GPU any more"
CLOSED = "the process closed its connection to verify and went on; stopped"
MOST_OTHERS = 16
GRACE = 1.0  # seconds that a process has to end by itself once it has closed its socket

_LENGTHS = struct.Struct("<QQ")
_NUMBER = struct.Struct("<i")
_LIBC = ctypes.CDLL(None)
_WENT_ON = 1 << 16  # no exit code: it had to be killed
_FORK, _END = b"fork", b"end "


class Channel:
    """One end of a socket on which messages travel."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end

    def send(self, text: bytes, parts: Sequence[memoryview] = ()) -> None:
        """One message."""
        self.end.sendall(_LENGTHS.pack(len(text), sum(part.nbytes for part in parts)) + text)
        for part in parts:
            self.end.sendall(part)

    def receive(self, most: int = 0, wait: Callable[[], object] = lambda: None) -> tuple[bytes, bytearray] | None:
        """The next message, with at most so many bytes; None where the other side has closed its end.

        `wait` is called before each read. A message that cannot be one is a KernelError: only a kernel's own code
        writes into its socket.
        """
        lengths = self._exactly(_LENGTHS.size, wait)
        if lengths is None:
            return None
        text_length, length = _LENGTHS.unpack(lengths)
        if text_length > LONGEST or length > most:
            raise KernelError("it wrote into the connection of its own process: what arrived is no message of verify")
        text, beside = self._exactly(text_length, wait), self._exactly(length, wait)
        return None if text is None or beside is None else (bytes(text), beside)

    def _exactly(self, length: int, wait: Callable[[], object]) -> bytearray | None:
        found = bytearray(length)
        view = memoryview(found)
        while view:
            wait()
            try:
                count = self.end.recv_into(view)
            except ConnectionError:
                return None
            if not count:
                return None
            view = view[count:]
        return found


class Fork:
    """A process that answers requests: one that a server began, or one that another process looks after."""

    def __init__(self, channel: Channel, server: ForkServer | None = None, pid: int = 0, output: int = -1) -> None:
        self.channel = channel
        self._server, self._pid, self._output = server, pid, output
        self._head, self._tail, self._printed = b"", b"", 0
        self._requests = 0

    def ask(self, request: Request[R], **options: Any) -> R:
        """The reply to one request; see `exchange`."""
        return request.read(self.exchange(msgspec.json.encode(request), **options)[0])

    def exchange(
        self,
        request: bytes,
        *,
        progress: OnProgress = lambda text: None,
        most: int = 0,
        beside: Sequence[Fork] = (),
        within: float = math.inf,
    ) -> tuple[msgspec.Raw, bytearray]:
        """The reply to a request in JSON, and at most so many bytes with it. Those `beside` may print meanwhile.

        A process that has not answered `within` so many seconds is ended: a WorkerTimeout.
        """
        self._requests += 1
        until = time.monotonic() + within

        def wait() -> None:
            if not self._listen(beside, until):
                self.stop(at_once=True)
                raise WorkerTimeout(f"no answer within {within:.3g} s; stopped")

        with contextlib.suppress(ConnectionError):  # whoever has ended is found out by reading
            self.channel.send(msgspec.json.encode(Numbered(self._requests, msgspec.Raw(request))))
        while True:
            message = self.channel.receive(most, wait)
            if message is None:
                raise self.died()
            try:
                event: Event = msgspec.json.decode(message[0], type=Event)
            except (msgspec.DecodeError, UnicodeDecodeError):
                event = Progress(-1, "")
            if event.id != self._requests:
                raise KernelError("it wrote into the connection of its own process: no answer of verify arrived")
            try:
                reply = reply_in(event, progress, self.stop)
            except KernelError as error:
                if not isinstance(event, Failed) or event.usable:
                    raise
                raise WorkerDied(f"{error}, {UNUSABLE}") from error
            if reply is not None:
                return reply, message[1]

    @property
    def alive(self) -> bool:
        """Whether it was not ended from here."""
        return self._pid > 0

    @property
    def answers(self) -> bool:
        """Whether its end of the socket is open, as far as is known here: another process may have ended it."""
        if not self.alive:
            return False
        try:
            return self.channel.end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    @property
    def pid(self) -> int:
        """The number of the process; 0 where it has ended."""
        return self._pid

    def stop(self, *, at_once: bool = False) -> int | None:
        """End the process, `at_once` in the midst of what it does; its exit code, None where it is not known here."""
        if not self.alive:
            return None
        if at_once:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        if self._server is None:
            self._pid = 0
            return None
        self.channel.end.close()
        code = self._server.end(self._pid)
        self._pid = 0
        self._read()
        os.close(self._output)
        self._output = -1
        return code

    def died(self) -> WorkerDied:
        """Why no answer came, of a process whose end of the socket is closed."""
        code = self.stop()
        if self._server is None:
            return WorkerDied(GONE)
        return WorkerDied(CLOSED) if code == _WENT_ON else WorkerDied.of(code)

    def printed(self) -> Printed | None:
        """What it has printed so far, and not been asked for yet."""
        self._read()
        if not self._printed:
            return None
        dropped = self._printed - len(self._head) - len(self._tail)
        middle = f"\n... {dropped:,} bytes dropped ...\n".encode() if dropped else b""
        found = Printed(self._printed, (self._head + middle + self._tail).decode("utf-8", "replace"))
        self._head, self._tail, self._printed = b"", b"", 0
        return found

    def _listen(self, beside: Sequence[Fork], until: float) -> bool:
        """Wait for the socket, and take what is printed meanwhile: a full pipe would stop the one who prints.

        False where nothing came until then.
        """
        printing = {one._output: one for one in (self, *beside) if one._output >= 0}
        while True:
            answer, left = self.channel.end.fileno(), until - time.monotonic()
            ready, _, _ = select.select([answer, *printing], [], [], None if left == math.inf else max(left, 0.0))
            if not ready and left <= 0.0:
                return False
            for output in printing.keys() & {*ready}:
                if not printing[output]._read():
                    del printing[output]
            if answer in ready:
                return True

    def _read(self) -> bool:
        """Take what lies in the pipe; False where nobody can print into it any more."""
        while self._output >= 0:
            try:
                data = os.read(self._output, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._printed += len(data)
            room = KEPT - len(self._head)
            self._head += data[:room]
            self._tail = (self._tail + data[room:])[-KEPT:]
        return False


Serve = Callable[["Channel", Sequence["Channel"], bytes], object]


class Spares:
    """A process and others that take its place, one after the other, where it ends without an answer."""

    def __init__(self, forks: Sequence[Fork], more: Callable[[], Fork | None] = lambda: None) -> None:
        self._forks, self._more = list(forks), more

    @property
    def now(self) -> Fork | None:
        """The process that is asked; None where the last has ended and there are no `more`."""
        fork = next((fork for fork in self._forks if fork.answers), None)
        if fork is None and (fork := self._more()) is not None:
            self._forks.append(fork)
        return fork

    def exchange(self, request: bytes, *, most: int, within: float) -> tuple[msgspec.Raw, bytearray]:
        """The reply to a request, see `Fork.exchange`."""
        fork = self.now
        if fork is None:
            raise WorkerDied(GONE)
        return fork.exchange(request, most=most, within=within)


class ForkServer:
    """Forks processes that begin as this one is now; each runs `serve(channel, others, given)` and ends.

    `others` are channels that a fork may be given: those of forks to which it talks itself. `prepare(given)` runs
    in the server before, for imports that all later forks share. `closed` are descriptors that are none of theirs.
    """

    def __init__(self, serve: Serve, prepare: Callable[[bytes], object], closed: Iterable[int] = ()) -> None:
        self._end, theirs = socket.socketpair()
        flush()
        self._pid = os.fork()
        if self._pid:
            theirs.close()
            return
        try:
            self._end.close()
            for descriptor in closed:
                os.close(descriptor)
            _serve_forks(theirs, serve, prepare)
        finally:
            os._exit(0)

    def fork(self, given: bytes = b"", others: Sequence[Channel] = ()) -> Fork:
        """One more process; `given` is short, and there are at most MOST_OTHERS others."""
        ours, theirs = socket.socketpair()
        read, write = os.pipe()
        os.set_blocking(read, False)
        with theirs:
            ends = [theirs.fileno(), write, *(other.end.fileno() for other in others)]
            socket.send_fds(self._end, [_FORK + given], ends)
        os.close(write)
        return Fork(Channel(ours), self, self._number(), read)

    def end(self, pid: int) -> int:
        """End a fork, unless it has ended; its exit code, `_WENT_ON` where it did not end by itself."""
        self._end.sendall(_END + _NUMBER.pack(pid))
        return self._number()

    def stop(self) -> None:
        """End the server; forks of it notice."""
        self._end.close()
        os.waitpid(self._pid, 0)

    def _number(self) -> int:
        data = self._end.recv(_NUMBER.size, socket.MSG_WAITALL)
        if len(data) < _NUMBER.size:
            raise WorkerDied("the process that starts others has ended", judges=True)
        return int(_NUMBER.unpack(data)[0])


def _serve_forks(asked: socket.socket, serve: Serve, prepare: Callable[[bytes], object]) -> None:
    while True:
        data, ends, _, _ = socket.recv_fds(asked, 1 << 12, 2 + MOST_OTHERS)
        if not data:
            return  # the worker has ended
        kind, given = data[: len(_FORK)], data[len(_FORK) :]
        if kind == _END:
            asked.sendall(_NUMBER.pack(_ended(_NUMBER.unpack(given)[0])))
            continue
        prepare(given)
        gc.freeze()  # what all forks share stays: a collector that walks it took an eighth of judging rows
        pid = os.fork()
        if not pid:
            asked.close()
            os.dup2(ends[1], 1)
            os.dup2(ends[1], 2)
            os.close(ends[1])
            channel, *others = (Channel(socket.socket(fileno=each)) for each in (ends[0], *ends[2:]))
            _be(serve, channel, others, given)
        for descriptor in ends:
            os.close(descriptor)
        asked.sendall(_NUMBER.pack(pid))


def _be(serve: Serve, channel: Channel, others: Sequence[Channel], given: bytes) -> None:
    """Be a fork, to the end of its process."""
    code = 1
    try:
        serve(channel, others, given)
        code = 0
    except SystemExit as ended:  # of a kernel
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        flush()
        os._exit(code)


def flush() -> None:
    """Give the system what Python and C hold back of what was printed; a kernel may have closed either stream."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    _LIBC.fflush(None)


def _ended(pid: int) -> int:
    """The exit code of a fork that has closed its socket, or whose socket is closed: killed if it goes on."""
    until = time.monotonic() + GRACE
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return _WENT_ON
