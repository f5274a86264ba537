"""A call: one request to another process over a channel, and its outcome by a deadline.

    outcome = process.call(request, deadline=time.monotonic() + 60)   # Reply | Failure | Died | Late

Requests and the events that answer them are JSON (`verify.workers.requests`); tensors follow as plain bytes. Every
process of verify is called like this: a worker, the process of a kernel, a judge, and the process of a solution that
nobody has read.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import msgspec

from verify.workers.channel import LONGEST, Channel, Foreign
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
