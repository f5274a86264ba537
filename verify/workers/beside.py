"""Questions that forks of this process answer side by side, while it goes on.

Answers are taken in the order of the questions, so that what is made of them does not depend on who was done first.
"""

from __future__ import annotations

import gc
import math
import os
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any, Generic, Self, TypeVar

import msgspec

from verify.workers.phases import phase

Key = TypeVar("Key")
Answer = TypeVar("Answer")

LATE, NO_MEMORY = "ran out of time", "ran out of memory"
_HEARD = 1 << 16  # bytes of a pipe that are read at a time


@dataclass
class _Asked(Generic[Key, Answer]):
    """A question with its answer, or with the fork that writes it into a pipe."""

    key: Key
    think: Callable[[], Answer]
    answer: Answer | None = None
    lost: str = ""  # why there is no answer
    again: bool = False  # the first fork was killed
    pid: int = 0
    pipe: int = -1
    said: bytearray = field(default_factory=bytearray)  # by the fork, so far


class Forks(Generic[Key, Answer]):
    """At most so many forks at a time; with one, this process answers. `take` gets the answers, of type `kind`.

    `lost` gets the questions without an answer, with the reason: memory ran out, two forks were killed, or no answer
    came until that time of `time.monotonic()`, when forks are ended.
    """

    def __init__(
        self,
        most: int,
        kind: Any,
        take: Callable[[Key, Answer], None],
        *,
        lost: Callable[[Key, str], None],
        until: float = math.inf,
    ) -> None:
        self._most, self._kind, self._take, self._lost, self._until = most, kind, take, lost, until
        self._asked: deque[_Asked[Key, Answer]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._settle(0)
        finally:  # also where an answer that was worked out here raised
            for asked in self._asked:
                _kill(asked)
            self._asked.clear()

    def ask(self, key: Key, think: Callable[[], Answer], *, here: bool = False) -> None:
        """Have a question answered, by a fork unless it must be `here`: then, or where this process is all there is."""
        if self._most <= 1 or here:
            self._asked.append(self._answered(_Asked(key, think)))
        else:
            self._settle(self._most - 1)
            self._asked.append(_forked(key, think))
        self._settle(self._most)

    def _settle(self, running: int) -> None:
        """Hear the forks until at most so many are left; take the answers at the front."""
        while True:
            while self._asked and not self._asked[0].pid:
                asked = self._asked.popleft()
                if asked.answer is None and not asked.lost:  # it raised, and raises here as it would have without forks
                    with phase("answer what a fork did not"):
                        self._answered(asked)
                if asked.lost:
                    self._lost(asked.key, asked.lost)
                else:
                    self._take(asked.key, asked.answer)  # type: ignore[arg-type]
            forks = {asked.pipe: asked for asked in self._asked if asked.pid}
            if len(forks) <= running:
                return
            left = self._until - time.monotonic()
            ready = wait(list(forks), None if left == math.inf else max(left, 0.0))
            for asked in () if ready else forks.values():
                _kill(asked)
                asked.lost = LATE
            for pipe in ready:
                self._hear(forks[pipe])  # type: ignore[index]

    def _hear(self, asked: _Asked[Key, Answer]) -> None:
        """Read what a fork has written; at its end that is the answer, unless the fork raised or was killed."""
        if heard := os.read(asked.pipe, _HEARD):
            asked.said += heard
            return
        code = _end(asked)
        if code == 0:
            asked.answer = msgspec.msgpack.decode(asked.said, type=self._kind)
        elif code < 0 and asked.again:
            asked.lost = f"died of {signal.Signals(-code).name}"
        elif code < 0:  # a system without memory may have chosen it
            fresh = _forked(asked.key, asked.think)
            asked.pid, asked.pipe, asked.said, asked.again = fresh.pid, fresh.pipe, fresh.said, True

    def _answered(self, asked: _Asked[Key, Answer]) -> _Asked[Key, Answer]:
        """The question, answered by this process."""
        try:
            if time.monotonic() >= self._until:
                asked.lost = LATE
            else:
                asked.answer = asked.think()
        except MemoryError:
            asked.lost = NO_MEMORY
        return asked


def _forked(key: Key, think: Callable[[], Answer]) -> _Asked[Key, Answer]:
    read, write = os.pipe()
    sys.stdout.flush()
    with warnings.catch_warnings():
        # a fork computes on the host and ends: it takes no lock that a thread of a driver may hold
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        os.close(write)
        return _Asked(key, think, pid=pid, pipe=read)
    status = 1
    try:
        gc.disable()  # nothing of a GPU may be freed here
        os.close(read)
        said = memoryview(msgspec.msgpack.encode(think()))
        while said:
            said = said[os.write(write, said) :]
        status = 0
    finally:
        os._exit(status)


def _end(asked: _Asked[Any, Any]) -> int:
    os.close(asked.pipe)
    _, status = os.waitpid(asked.pid, 0)
    asked.pid = 0
    return os.waitstatus_to_exitcode(status)


def _kill(asked: _Asked[Any, Any]) -> None:
    if asked.pid:
        os.kill(asked.pid, signal.SIGKILL)
        _end(asked)
