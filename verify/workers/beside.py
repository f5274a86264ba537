"""Questions that forks of this process answer side by side, while it goes on.

Answers are taken in the order of the questions, so that what is made of them does not depend on who was done first.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
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

_HEARD = 1 << 16  # bytes of a pipe that are read at a time


@dataclass
class _Asked(Generic[Key, Answer]):
    """A question with its answer, or with the fork that writes it into a pipe."""

    key: Key
    think: Callable[[], Answer]
    answer: Answer | None = None
    pid: int = 0
    pipe: int = -1
    said: bytearray = field(default_factory=bytearray)  # by the fork, so far


class Forks(Generic[Key, Answer]):
    """At most so many forks at a time; with one, this process answers. `take` gets the answers, of type `kind`."""

    def __init__(self, most: int, kind: Any, take: Callable[[Key, Answer], None]) -> None:
        self._most, self._kind, self._take = most, kind, take
        self._asked: deque[_Asked[Key, Answer]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._settle(0)
        finally:  # also where an answer that was worked out here raised
            for asked in self._asked:
                if asked.pid:
                    os.kill(asked.pid, signal.SIGKILL)
                    _end(asked)
            self._asked.clear()

    def ask(self, key: Key, think: Callable[[], Answer], *, here: bool = False) -> None:
        """Have a question answered, by a fork unless it must be `here`: then, or where this process is all there is."""
        if self._most <= 1 or here:
            self._asked.append(_Asked(key, think, think()))
        else:
            self._settle(self._most - 1)
            self._asked.append(_forked(key, think))
        self._settle(self._most)

    def _settle(self, running: int) -> None:
        """Hear the forks until at most so many are left; take the answers at the front."""
        while True:
            while self._asked and not self._asked[0].pid:
                asked = self._asked.popleft()
                if asked.answer is None:  # it raised or was killed, and raises here as it would have without forks
                    with phase("answer what a fork did not"):
                        asked.answer = asked.think()
                self._take(asked.key, asked.answer)
            forks = {asked.pipe: asked for asked in self._asked if asked.pid}
            if len(forks) <= running:
                return
            for pipe in wait(list(forks)):
                asked = forks[pipe]  # type: ignore[index]
                if heard := os.read(asked.pipe, _HEARD):
                    asked.said += heard
                elif _end(asked) == 0:
                    asked.answer = msgspec.msgpack.decode(asked.said, type=self._kind)


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
    return status
