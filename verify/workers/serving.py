"""Answers requests one after the other, in a worker and in a kernel's process."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from verify.errors import InternalError, KernelError, TruthError, UsageError
from verify.workers import process_tree
from verify.workers.calls import send
from verify.workers.channel import Channel
from verify.workers.fork_map import ran_out
from verify.workers.large_stack import with_large_stack_chunk
from verify.workers.requests import Died, Event, Failed, Failure, Late, OnProgress, Progressed, Replied

WATCH_SECONDS = 0.5


class WithBytes(NamedTuple):
    """A reply with bytes to send after it."""

    reply: Any
    parts: Sequence[memoryview]


Emit = Callable[..., None]  # sends an event, and bytes after it
Respond = Callable[[msgspec.Raw, OnProgress], Any]  # returns the reply to a request, or raises


def serve(
    channel: Channel, respond: Respond, usable: Callable[[], bool], flush: Callable[[], object] = lambda: None
) -> None:
    """Answers requests until the other side closes the channel. Calls `flush` before each event."""

    def emit(event: Event, parts: Sequence[memoryview] = ()) -> None:
        flush()
        try:
            send(channel, event, parts)
        except ConnectionError:  # the command was killed, so this and any traceback have no reader
            os._exit(1)

    while True:
        try:
            request = channel.receive()
        except (EOFError, ConnectionError):
            return
        answer(request, emit, respond, usable)


def answer(request: bytes, emit: Emit, respond: Respond, usable: Callable[[], bool]) -> None:
    """Answers one request with the result of `respond`. `usable` is True if the process can go on."""
    parts: Sequence[memoryview] = ()
    try:
        reply = with_large_stack_chunk(respond, msgspec.Raw(request), lambda text: emit(Progressed.of(text)))
        if isinstance(reply, WithBytes):
            reply, parts = reply
        emit(Replied(msgspec.Raw(msgspec.json.encode(reply)), tuple(map(len, parts)), usable()), parts)
    except (UsageError, TruthError, KernelError, Died, Late) as error:
        emit(Failed(Failure.of(error), usable()))
    except Exception as error:
        # after an unexpected error, or without memory, the process may fail again
        if not (ran_out(error) or isinstance(error, InternalError)):
            with suppress(OSError):  # stderr may be closed
                traceback.print_exc()
        emit(Failed(Failure.of(error), usable=False))


def watch(parent: int) -> None:
    """Ends this process with its parent, because a killed parent cannot stop a worker whose kernel still runs."""
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    process_tree.kill(os.getpid(), os.environ.get(process_tree.MARK, ""))
    os.killpg(0, signal.SIGKILL)  # the worker leads the group of everything that it started
