"""How a process answers one request after the other, whatever takes them there: a pipe, or the socket of a fork."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import msgspec

from verify.errors import InternalError, KernelError, TruthError, UsageError
from verify.workers import family
from verify.workers.frames import in_large_frame
from verify.workers.process import OnProgress
from verify.workers.requests import Event, Failed, Failure, Numbered, Progress, Reply, WorkerDied, WorkerTimeout

WATCH_SECONDS = 0.5


class WithBytes(NamedTuple):
    """A reply beside which bytes travel."""

    reply: Any
    beside: Sequence[memoryview]


class Emit(Protocol):
    """Sends an event, and bytes beside it."""

    def __call__(self, event: Event, beside: Sequence[memoryview] = ()) -> None: ...


def serve(
    line: bytes, emit: Emit, respond: Callable[[msgspec.Raw, OnProgress], Any], usable: Callable[[], bool]
) -> None:
    """Answer one request with what `respond` returns or raises; `usable` says whether the process can go on."""
    number = 0
    beside: Sequence[memoryview] = ()
    try:
        asked = msgspec.json.decode(line, type=Numbered)
        number = asked.id
        reply = in_large_frame(respond, asked.request, lambda text: emit(Progress(number, text)))
        if isinstance(reply, WithBytes):
            reply, beside = reply
        emit(Reply(number, msgspec.Raw(msgspec.json.encode(reply)), usable()), beside)
    except (UsageError, TruthError, KernelError, WorkerDied, WorkerTimeout) as error:
        emit(Failed(number, Failure.of(error), usable()))
    except Exception as error:
        # what failed where no code expects it, or for want of memory, leaves a process that may fail again
        if not isinstance(error, MemoryError | InternalError):
            with suppress(OSError):  # of a pipe that nobody reads any more
                traceback.print_exc()
        emit(Failed(number, Failure.of(error), usable=False))


def watch(parent: int) -> None:
    """End with the parent: one that was killed cannot stop its worker, whose kernel would run on."""
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    family.kill(os.getpid(), os.environ.get(family.MARK, ""))
    os.killpg(0, signal.SIGKILL)  # the worker leads a group of its own, with everything that it started
