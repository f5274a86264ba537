"""Channels: messages between two processes over a pair of sockets. Each has a limit of bytes, each wait a deadline.

    ours, theirs = Channel.pair()
    ours.send(b"{}", [b"bytes", b""])
    theirs.receive(), theirs.fill(5), theirs.fill(0)

A message is some JSON behind its length. Plain bytes may follow, whose sizes the JSON tells. Nothing is ever pickled.
Sockets cannot be opened through /proc, so a process reaches no channel but its own.
"""

from __future__ import annotations

import math
import select
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

LONGEST = 1 << 28  # bytes of a message
MOST_DESCRIPTORS = 2  # with a message
_LENGTH = struct.Struct("!i")


class Foreign(Exception):
    """A process sent bytes that are no message of verify, or more than an answer has."""


class Channel:
    """One end. EOFError or ConnectionError reports that the other end is closed, TimeoutError that time is up."""

    def __init__(self, end: socket.socket | int) -> None:
        self._end = end if isinstance(end, socket.socket) else socket.socket(fileno=end)

    @staticmethod
    def pair() -> tuple[Channel, Channel]:
        """Returns both ends of a new channel."""
        ours, theirs = socket.socketpair()
        return Channel(ours), Channel(theirs)

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()

    def __del__(self) -> None:  # a thread that waits while another one ends its process holds the last reference
        self._end.close()

    def fileno(self) -> int:
        """Returns the number of the file, -1 if it is closed."""
        return self._end.fileno()

    def close(self) -> None:
        """Closes this end."""
        self._end.close()

    def hang_up(self) -> None:
        """Ends both directions; a waiting thread gets EOFError. So do processes that have a copy of this end."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    @property
    def ended(self) -> bool:
        """True if the other end is closed and everything was read."""
        look = select.poll()  # Python's recv waits, whatever its flags are
        try:
            look.register(self._end, select.POLLIN)
            return bool(look.poll(0)) and self._end.recv(1, socket.MSG_PEEK) == b""
        except (OSError, ValueError):  # this end is closed
            return True

    def send(
        self,
        head: bytes,
        parts: Iterable[bytes | bytearray | memoryview] = (),
        *,
        until: float = math.inf,
        descriptors: Sequence[int] = (),
    ) -> None:
        """Sends a message, and then plain bytes, until a time of `time.monotonic()`."""
        self._wait_until(until)
        head = _LENGTH.pack(len(head)) + head
        sent = socket.send_fds(self._end, [head], descriptors) if descriptors else 0
        self._end.sendall(memoryview(head)[sent:])
        for part in parts:
            self._wait_until(until)
            self._end.sendall(part)

    def receive(self, most: int = LONGEST, *, until: float = math.inf, descriptors: list[int] | None = None) -> bytes:
        """Returns the next message of at most `most` bytes. Adds the files that came with it to `descriptors`."""
        first = b""
        if descriptors is not None:
            self._wait_until(until)
            first, files, _, _ = socket.recv_fds(self._end, _LENGTH.size, MOST_DESCRIPTORS)
            descriptors += files
            if not first:
                raise EOFError
        (size,) = _LENGTH.unpack(first + self.fill(_LENGTH.size - len(first), until=until))
        if not 0 <= size <= most:
            raise Foreign
        return bytes(self.fill(size, until=until))

    def fill(self, size: int, *, until: float = math.inf) -> bytearray:
        """Returns the next `size` plain bytes."""
        data = bytearray(size)
        target = memoryview(data)
        while target:
            self._wait_until(until)
            if not (count := self._end.recv_into(target)):
                raise EOFError
            target = target[count:]
        return data

    def _wait_until(self, until: float) -> None:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if left < math.inf or self._end.gettimeout() is not None:
            self._end.settimeout(None if left == math.inf else left)
