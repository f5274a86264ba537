"""Forks of this process answer questions in parallel, while it goes on.

Answers are taken in the order of the questions, so results do not depend on which one came first.
"""

import gc
import math
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, Self, TypeVar

import msgspec

from verify.errors import JudgeFailed
from verify.workers.phases import phase
from verify.workers.process_tree import END_SECONDS

Key = TypeVar("Key")
Answer = TypeVar("Answer")

LATE, NO_MEMORY = "ran out of time", "ran out of memory"


def ran_out(error: BaseException) -> bool:
    """True if an error reports that memory of the host or of a device ran out, here or in another process."""
    words = str(error) if isinstance(error, RuntimeError | JudgeFailed) else ""
    return isinstance(error, MemoryError) or "out of memory" in words or "not enough memory" in words


@dataclass
class _Question(Generic[Key, Answer]):
    """A question with its answer, or with the fork that computes it."""

    key: Key
    think: Callable[[], Answer]
    answer: Answer | None = None
    lost: str = ""  # reason for no answer
    again: bool = False  # True: the first fork was killed
    fork: BaseProcess | None = None
    connection: Connection | None = None


class ForkMap(Generic[Key, Answer]):
    """Runs at most `most` forks at a time; with one, this process answers. `take` gets the answers, of type `kind`.

    `lost` gets the questions without an answer, with the reason: out of memory, two forks killed, or no answer by
    `until`, a time of `time.monotonic()` at which forks are ended.
    """

    def __init__(
        self, most: int, kind: Any, take: Callable[[Key, Answer], None], lost: Callable[[Key, str], None], until: float
    ) -> None:
        self._most, self._kind, self._take, self._lost, self.until = most, kind, take, lost, until
        self._questions: deque[_Question[Key, Answer]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._settle(0)
        finally:  # also after an answer in this process raised
            for question in self._questions:
                _kill(question)
            self._questions.clear()

    def ask(self, key: Key, think: Callable[[], Answer], *, here: bool = False) -> None:
        """Answers a question in a fork, or at once in this process if `here` or if there are no forks."""
        question = _Question(key, think)
        if self._most > 1 and here:
            self._answer(question)
        elif self._most > 1:
            self._settle(self._most - 1)
            _start_fork(question)
        self._questions.append(question)
        self._settle(self._most)

    def _settle(self, running: int) -> None:
        """Reads answers until at most `running` forks run; takes the answers at the front."""
        while True:
            while self._questions and self._questions[0].fork is None:
                question = self._questions.popleft()
                if question.answer is None and not question.lost:  # its fork raised, or it has none
                    with phase("judge in this process"):
                        self._answer(question)
                if question.lost:
                    self._lost(question.key, question.lost)
                else:
                    self._take(question.key, question.answer)  # type: ignore[arg-type]
            forks = {one.connection: one for one in self._questions if one.fork and one.connection}
            if len(forks) <= running:
                return
            left = None if self.until == math.inf else max(self.until - time.monotonic(), 0.0)
            ready = wait(list(forks), left)
            for question in () if ready else forks.values():
                _kill(question)
                question.lost = LATE
            for connection in ready:
                self._hear(forks[connection])  # type: ignore[index]

    def _hear(self, question: _Question[Key, Answer]) -> None:
        """Reads the answer of a fork; there is none if the fork raised or was killed."""
        assert question.connection is not None
        try:
            question.answer = msgspec.msgpack.decode(question.connection.recv_bytes(), type=self._kind)
        except (EOFError, OSError):  # OSError: amid a message
            code = _ended(question)
            if code < 0 and question.again:
                question.lost = f"died of {signal.Signals(-code).name}"
            elif code < 0:  # the system may have killed it for want of memory
                question.again = True
                _start_fork(question)
        else:
            _ended(question)

    def _answer(self, question: _Question[Key, Answer]) -> None:
        """Answers a question in this process."""
        try:
            if time.monotonic() >= self.until:
                question.lost = LATE
            else:
                question.answer = question.think()
        except Exception as error:
            if not ran_out(error):
                raise
            question.lost = NO_MEMORY


def _start_fork(question: _Question[Any, Any]) -> None:
    connection, theirs = Pipe(duplex=False)
    sys.stdout.flush()
    fork = multiprocessing.get_context("fork").Process(target=_think, args=(theirs, question.think))
    collects = gc.isenabled()
    gc.disable()  # also in the fork, which must not free GPU memory
    with theirs, warnings.catch_warnings():
        # a fork computes on the host and ends, so it needs no lock that a driver's thread may hold
        warnings.simplefilter("ignore", DeprecationWarning)
        fork.start()
    if collects:
        gc.enable()
    question.fork, question.connection = fork, connection


def _think(connection: Connection, think: Callable[[], Any]) -> None:
    """Computes an answer and sends it: the fork."""
    try:
        with phase("judge in a fork"):
            answer = msgspec.msgpack.encode(think())
        connection.send_bytes(answer)
    except Exception:  # the parent answers again and raises there
        os._exit(1)


def _ended(question: _Question[Any, Any]) -> int:
    """Returns the exit code of a fork that closed its connection."""
    assert question.connection is not None and question.fork is not None
    question.connection.close()
    question.fork.join(END_SECONDS)
    if question.fork.exitcode is None:
        question.fork.kill()
        question.fork.join(END_SECONDS)
    code, question.fork = question.fork.exitcode or 0, None
    return code


def _kill(question: _Question[Any, Any]) -> None:
    if question.fork is not None:
        question.fork.kill()
        _ended(question)
