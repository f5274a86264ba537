"""A call: one request to another process over a connection, and its outcome by a deadline.

    outcome = process.call(request, deadline=time.monotonic() + 60)   # Reply | Failure | Died | Late

A connection is a `multiprocessing.connection.Connection` over a pair of sockets. It frames messages and limits their
size. Its `send` and `recv`, which pickle, are never used. Messages are JSON (`verify.workers.requests`); tensors follow
as messages of plain bytes. Sockets cannot be opened through /proc, so a kernel reaches no connection but its own.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import msgspec

from verify.workers.requests import (
    Died,
    Event,
    Failed,
    Failure,
    KernelWanted,
    Late,
    OnProgress,
    Outcome,
    Progressed,
    Replied,
    Reply,
    Step,
    Who,
)

LONGEST = 1 << 28  # bytes of a message
FOREIGN = "it wrote into the connection of its own process: what arrived is no message of verify"
UNUSABLE = "after which its process could not use the GPU any more"

AskKernel = Callable[[bytes | msgspec.Raw, int], Outcome]  # request, limit of bytes with the reply -> outcome
BeginKernel = Callable[[bytes | msgspec.Raw, int], Callable[[], Outcome]]  # the same -> a function that waits for it


class Foreign(Exception):
    """A process sent bytes that are no message of verify."""


class Callee(ABC):
    """The other end of a connection: a process that answers requests. Subclasses start and end it."""

    who: Who

    def __init__(self) -> None:
        self._broken: Failure | None = None  # its only answer once it wrote into its connection

    def call(
        self,
        request: bytes | msgspec.Raw,
        *,
        deadline: float = math.inf,
        progress: OnProgress = lambda text: None,
        most: int = 0,
        kernel: AskKernel | None = None,
    ) -> Outcome:
        """Sends a request in JSON and waits for its outcome until `deadline`, a time of `time.monotonic()`.

        The deadline moves by the seconds that a judge waits for memory. Ends a process that died, is late or cannot be
        used any more.

        Args:
            most: limit of the bytes that come with the reply
            kernel: calls the kernel for a process that judges
        """
        if self._broken is not None:
            return self._broken
        began, connection = time.monotonic(), self._connected()
        with _expiring(connection, deadline) as limit:

            def heard(text: str) -> None:
                if self.who == "judge":  # a kernel's process cannot prolong its own time
                    limit.deadline += getattr(text, "waited", 0.0)
                elif isinstance(text, Step):
                    text.waited = 0.0
                progress(text)

            try:
                connection.send_bytes(request)
                event, parts = self._answer(connection, heard, most, kernel)
            except (EOFError, ConnectionError):
                if not limit.late.is_set():
                    return self.died()
            except Foreign:
                return self.wrote_into_connection()
        if limit.late.is_set():
            self.stop(at_once=True)
            seconds = limit.deadline - began
            text = f"{seconds:.3g}" if seconds < 1000 else f"{seconds:.0f}"
            return Late(f"no answer within {text} s; stopped", who=self.who)
        if not event.usable:
            self.stop()
        if isinstance(event, Replied):
            return Reply(event.reply, parts)
        if not event.usable and event.failure.kind == "kernel" and self.who == "kernel":
            return Died(f"{event.failure.text}, {UNUSABLE}", who=self.who)
        return event.failure

    def _answer(
        self, connection: Connection, progress: OnProgress, most: int, kernel: AskKernel | None
    ) -> tuple[Replied | Failed, list[bytes]]:
        while True:
            self._wait(connection)
            event, parts = receive(connection, most)
            if isinstance(event, Progressed):
                progress(event.step)
            elif isinstance(event, KernelWanted):
                send_outcome(
                    connection,
                    Failure("internal", "no kernel") if kernel is None else kernel(event.request, event.most),
                )
            else:
                return event, parts

    def _wait(self, connection: Connection) -> None:  # noqa: B027
        """Returns when a message arrives."""

    @abstractmethod
    def _connected(self) -> Connection:
        """Returns the connection to the process; starts the process if there is none."""

    @abstractmethod
    def stop(self, *, at_once: bool = False) -> object:
        """Ends the process; `at_once` kills it."""

    @abstractmethod
    def died(self) -> Outcome:
        """Ends a process that closed its end of the connection. Returns why there is no answer."""

    @abstractmethod
    def wrote_into_connection(self) -> Outcome:
        """Ends a process that sent something other than a message of verify. Returns the outcome."""


@dataclass
class _Limit:
    """Holds the time at which a call ends. `late` is set then."""

    deadline: float
    late: threading.Event = field(default_factory=threading.Event)


@contextmanager
def _expiring(connection: Connection, deadline: float) -> Iterator[_Limit]:
    """Hangs up at the deadline, so that no wait lasts longer. The caller may move the deadline."""
    limit, ended = _Limit(deadline), threading.Event()

    def expire() -> None:
        while not ended.wait(max(limit.deadline - time.monotonic(), 0.0)):
            if time.monotonic() >= limit.deadline:
                limit.late.set()
                hang_up(connection)
                return

    if deadline == math.inf:
        yield limit
        return
    timer = threading.Thread(target=expire, daemon=True)
    timer.start()
    try:
        yield limit
    finally:
        ended.set()
        timer.join()


def hang_up(connection: Connection) -> None:
    """Ends both directions of a connection; a waiting thread gets EOFError."""
    with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


def send(connection: Connection, event: Event, parts: Iterable[bytes | memoryview] = ()) -> None:
    """Sends an event and then its bytes."""
    connection.send_bytes(msgspec.json.encode(event))
    for part in parts:
        connection.send_bytes(part)


def send_outcome(connection: Connection, outcome: Outcome) -> None:
    """Sends the outcome of a call to a third process."""
    if isinstance(outcome, Reply):
        send(connection, Replied(outcome.value, len(outcome.parts)), outcome.parts)
    else:
        send(connection, Failed(outcome if isinstance(outcome, Failure) else Failure.of(outcome)))


def receive(connection: Connection, most: int = 0) -> tuple[Event, list[bytes]]:
    """Returns the next event and its bytes, at most `most`.

    Raises Foreign for anything else, EOFError or ConnectionError at the end.
    """
    parts: list[bytes] = []
    try:
        event: Event = msgspec.json.decode(connection.recv_bytes(LONGEST), type=Event)
        for _ in range(event.parts if isinstance(event, Replied) else 0):
            parts.append(connection.recv_bytes(most))
            most -= len(parts[-1])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Foreign from error
    except ConnectionError:
        raise
    except OSError as error:
        if connection.readable:  # it ended amid a message
            raise EOFError from error
        raise Foreign from error  # the message is too long, so reading stops
    return event, parts
