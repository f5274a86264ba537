"""What is asked of a worker and what it answers: one Struct for each request, which names the type of its reply.

    class Environment(Request[About], frozen=True, tag="environment"): ...

    about = worker.ask(Environment(), timeout=180)   # an About, or the exception of what went wrong

A request stands in the room whose code answers it; `verify.worker` knows them all. On the pipe each is one line of
JSON with a number, and every event that comes back carries that number: an event of another request is no answer.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Literal, TypeVar

import msgspec

from verify.errors import InternalError, JudgeFailed, KernelError, Refused, TruthError, UsageError, VerifyError, said_by

R = TypeVar("R")


class Request(msgspec.Struct, Generic[R], frozen=True, forbid_unknown_fields=True, tag_field="do"):
    """A request whose reply is an R."""

    lists: ClassVar[bool] = False  # asks what is declared, and calls no kernel

    def read(self, reply: bytes | msgspec.Raw) -> R:
        """The reply, from JSON. One of another type is an error of the harness."""
        try:
            found: R = msgspec.json.decode(reply, type=_reply_type(type(self)))
        except msgspec.DecodeError as error:
            raise InternalError(f"the reply to the request {kind_of(self)!r} is no reply to it: {error}") from error
        return found


def _reply_type(request: type[Request[Any]]) -> Any:
    for base in getattr(request, "__orig_bases__", ()):
        if getattr(base, "__origin__", None) is Request:
            return base.__args__[0]
    raise TypeError(f"{request.__name__} does not say what its reply is: class {request.__name__}(Request[...])")


def kind_of(request: Request[Any]) -> str:
    """The name of a request, as it stands in its field `do`."""
    return str(type(request).__struct_config__.tag)


class About(msgspec.Struct, frozen=True):
    """What a worker says of where it runs."""

    backend: str
    device: str
    environment: dict[str, Any]
    workers: int = 1  # that work side by side here: one per core, as many as fit the GPU


class Environment(Request[About], frozen=True, tag="environment"):
    """The backend, versions and probes; without `probed` no more than where it is, while the rest is looked for."""

    probed: bool = True


class CountGpus(Request[int], frozen=True, tag="gpus"):
    """How many GPUs the process sees."""


# -- on the pipe ----------------------------------------------------------------------------------------


class _NoAnswer(VerifyError):
    """`judges`: the process is a worker, which judges and calls no kernel. Without it, it is that of a kernel."""

    def __init__(self, text: str, *, judges: bool = False) -> None:
        super().__init__(text)
        self.judges = judges


class WorkerDied(_NoAnswer):
    """The process ended without an answer; the text names the signal or the exit code."""

    @staticmethod
    def of(code: int | None, *, judges: bool = False) -> WorkerDied:
        """What the exit code of a process that ended without an answer says."""
        if code is not None and code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
            extra = " (out of memory?)" if name == "SIGKILL" else ""
            return WorkerDied(f"the process died of {name}{extra}", judges=judges)
        return WorkerDied(f"the process ended with exit code {code} and no result", judges=judges)


class WorkerTimeout(_NoAnswer):
    """The process did not answer in time and was killed."""


class Failure(msgspec.Struct, frozen=True):
    """Why a request has no reply."""

    kind: Literal["usage", "truth", "refused", "kernel", "judge", "internal", "died", "timeout"]
    text: str
    hint: str = ""
    judges: bool = False  # of a process that died or was late

    @staticmethod
    def of(error: Exception) -> Failure:
        """What an exception says, as it is sent."""
        match error:
            case UsageError():
                return Failure("usage", error.message, error.hint or "")
            case TruthError():
                return Failure("truth", str(error))
            case Refused():
                return Failure("refused", str(error))
            case KernelError():
                return Failure("kernel", str(error))
            case MemoryError():  # of a kernel it was raised in its call, and is a KernelError
                return Failure("judge", "the judge ran out of memory")
            case JudgeFailed():
                return Failure("judge", str(error))
            case WorkerDied():
                return Failure("died", str(error), judges=error.judges)
            case WorkerTimeout():
                return Failure("timeout", str(error), judges=error.judges)
            case InternalError():
                return Failure("internal", str(error))
        return Failure("internal", f"{type(error).__name__}: {said_by(error)}")

    def error(self) -> VerifyError:
        """The exception on the side that asked."""
        match self.kind:
            case "usage":
                return UsageError(self.text, hint=self.hint or None)
            case "truth":
                return TruthError(self.text)
            case "refused":
                return Refused(self.text)
            case "kernel":
                return KernelError(self.text)
            case "judge":
                return JudgeFailed(self.text)
            case "died":
                return WorkerDied(self.text, judges=self.judges)
            case "timeout":
                return WorkerTimeout(self.text, judges=self.judges)
        return InternalError(self.text)


class Numbered(msgspec.Struct, frozen=True):
    """A request as it is sent."""

    id: int
    request: msgspec.Raw


class Progress(msgspec.Struct, frozen=True, tag_field="event", tag="progress"):
    """How far a request is."""

    id: int
    text: str


class Reply(msgspec.Struct, frozen=True, tag_field="event", tag="reply"):
    """The reply. A process that is not `usable` any more is replaced before the next request."""

    id: int
    reply: msgspec.Raw
    usable: bool = True


class Failed(msgspec.Struct, frozen=True, tag_field="event", tag="failed"):
    """There is no reply."""

    id: int
    failure: Failure
    usable: bool = True


Event = Progress | Reply | Failed


def reply_in(event: Event, progress: Callable[[str], None], stop: Callable[[], object]) -> msgspec.Raw | None:
    """The reply that an event is; None where it says how far the request is, an error where it failed.

    A process that cannot be used any more is stopped.
    """
    if isinstance(event, Progress):
        progress(event.text)
        return None
    if not event.usable:
        stop()
    if isinstance(event, Reply):
        return event.reply
    raise event.failure.error()
