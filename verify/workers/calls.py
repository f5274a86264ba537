"""A call: one request to another process over a channel, its answer there, and its outcome here by a deadline.

    outcome = process.call(request, deadline=time.monotonic() + 60)   # Reply | Failure | Died | Late

Requests and the events that answer them are JSON (`verify.workers.requests`); tensors follow as plain bytes. Every
process of verify is called like this: a worker, the process of a kernel, a judge, and the process of a solution that
nobody has read.
"""

import math
import os
import signal
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec

from verify.errors import InternalError, KernelError, TruthError, UsageError
from verify.workers import process_tree
from verify.workers.channel import LONGEST, Channel, Foreign
from verify.workers.fork_map import ran_out
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

FOREIGN = "it wrote into the connection of its own process: what arrived is no message of verify"
UNUSABLE = "after which its process could not use the GPU any more"
SLOWEST = 1 << 25  # bytes a second of the slowest transfer that is waited for

AskKernel = Callable[[bytes | msgspec.Raw, int], Outcome]  # request, limit of bytes with the reply -> outcome
BeginKernel = Callable[[bytes | msgspec.Raw, int], Callable[[], Outcome]]  # the same -> a function that waits for it
Most = int | Callable[[int], int]  # limit of the bytes with a reply; a function gets the size that is announced
Parts = Sequence[bytes | bytearray | memoryview]


class Callee(ABC):
    """The other end of a channel: a process that answers requests. Subclasses start and end it."""

    who: Who
    longest = LONGEST  # bytes of one of its messages

    def __init__(self) -> None:
        self._broken: Outcome | None = None  # its only answer once it wrote into its connection

    def call(
        self,
        request: bytes | msgspec.Raw,
        parts: Parts = (),
        *,
        deadline: float = math.inf,
        progress: OnProgress = lambda text: None,
        most: Most = 0,
        kernel: AskKernel | None = None,
    ) -> Outcome:
        """Sends a request in JSON and waits for its outcome until `deadline`, a time of `time.monotonic()`.

        The deadline moves by the seconds that a judge waits for memory, and by those that many bytes may take. Ends a
        process that died, is late or cannot be used any more.

        Args:
            parts: bytes to send after the request
            most: limit of the bytes that come with the reply
            kernel: calls the kernel for a process that judges
        """
        if self._broken is not None:
            return self._broken
        began, channel = time.monotonic(), self._connected()
        until = deadline + sum(map(len, parts)) / SLOWEST
        try:
            channel.send(bytes(request), parts, until=until)
            while True:
                self._wait(channel, until)
                event, received = receive(channel, most, until, self.longest)
                if isinstance(event, Progressed):
                    step = event.step
                    if self.who == "judge":  # a kernel's process cannot prolong its own time
                        until += getattr(step, "waited", 0.0)
                    elif isinstance(step, Step):
                        step.waited = 0.0
                    progress(step)
                elif isinstance(event, KernelWanted):
                    answer = Failure("internal", "no kernel") if kernel is None else kernel(event.request, event.most)
                    send(channel, event_of(answer), answer.parts if isinstance(answer, Reply) else (), until)
                else:
                    break
        except TimeoutError:
            self.stop(at_once=True)
            seconds = until - began
            text = f"{seconds:.3g}" if seconds < 1000 else f"{seconds:.0f}"
            return Late(f"no answer within {text} s; stopped", who=self.who)
        except (EOFError, ConnectionError):
            return self.died()
        except Foreign as error:
            return self.wrote_into_connection(str(error) or FOREIGN)
        if not event.usable:
            self.stop()
        if isinstance(event, Failed) and not event.usable and event.failure.kind == "kernel" and self.who == "kernel":
            return Died(f"{event.failure.text}, {UNUSABLE}", who=self.who)
        return outcome_of(event, received)

    def _wait(self, channel: Channel, until: float) -> None:  # noqa: B027
        """Returns when a message arrives, or at a time of `time.monotonic()`."""

    @abstractmethod
    def _connected(self) -> Channel:
        """Returns the channel to the process; starts the process if there is none."""

    @abstractmethod
    def stop(self, *, at_once: bool = False) -> object:
        """Ends the process; `at_once` kills it."""

    @abstractmethod
    def died(self) -> Outcome:
        """Ends a process that closed its end of the channel. Returns why there is no answer."""

    @abstractmethod
    def wrote_into_connection(self, text: str) -> Outcome:
        """Ends a process that sent something other than a message of verify, as `text` says. Returns the outcome."""


def send(channel: Channel, event: Event, parts: Parts = (), until: float = math.inf) -> None:
    """Sends an event and then its bytes."""
    channel.send(msgspec.json.encode(event), parts, until=until)


def event_of(outcome: Outcome) -> Replied | Failed:
    """Returns the outcome of a call in the form that a third process gets."""
    if isinstance(outcome, Reply):
        return Replied(outcome.value, tuple(map(len, outcome.parts)))
    return Failed(outcome if isinstance(outcome, Failure) else Failure.of(outcome))


def outcome_of(event: Event, parts: Sequence[bytearray] = ()) -> Outcome:
    """Returns the outcome again, in the third process. Raises Foreign for an event that ends no call."""
    if isinstance(event, Replied):
        return Reply(event.reply, parts)
    if isinstance(event, Failed):
        return event.failure
    raise Foreign


def receive(
    channel: Channel, most: Most = 0, until: float = math.inf, longest: int = LONGEST
) -> tuple[Event, list[bytearray]]:
    """Returns the next event and its bytes, at most `most`. Raises Foreign for anything else."""
    try:
        event: Event = msgspec.json.decode(channel.receive(longest, until=until), type=Event)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Foreign from error
    sizes = event.parts if isinstance(event, Replied) else ()
    size = sum(sizes)
    if isinstance(most, int) and size > most:
        raise Foreign
    if not isinstance(most, int) and size > (honest := most(size)):
        raise Foreign(f"it answered with {size:,} bytes; an answer has {honest:,}")
    until = max(until, time.monotonic()) + size / SLOWEST
    return event, [channel.fill(each, until=until) for each in sizes]


# -- the other end ----------------------------------------------------------------------------------------

WATCH_SECONDS = 0.5
P = ParamSpec("P")
T = TypeVar("T")


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


def with_large_stack_chunk(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Returns `function(*args, **kwargs)`, called from a frame whose chunk has room for all calls inside.

    CPython keeps frames in chunks of 16 KiB and frees an empty chunk at once. A loop of calls across the border of two
    chunks maps and unmaps one with every call: 150,000 times in one test of an interpreted kernel, a third of its time.
    A frame that needs half a MiB gets a chunk of one MiB, and all calls inside it use the other half.
    """
    return function(*args, **kwargs)


with_large_stack_chunk.__code__ = with_large_stack_chunk.__code__.replace(co_stacksize=(1 << 16) + 64)


def watch(parent: int) -> None:
    """Ends this process with its parent, because a killed parent cannot stop a worker whose kernel still runs."""
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    process_tree.kill(os.getpid(), os.environ.get(process_tree.MARK, ""))
    os.killpg(0, signal.SIGKILL)  # the worker leads the group of everything that it started
