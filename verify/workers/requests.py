"""Requests to a worker and their replies: one Struct for each request, which names the type of its reply.

    class Environment(Request[About], frozen=True, tag="environment"): ...

    about = worker.ask(Environment(), timeout=180)   # an About; raises if there is no reply

A request is defined in the package whose code answers it; `verify.worker` imports them all. Requests and the events
that answer them are JSON. `verify.workers.calls` sends them.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import msgspec

from verify import errors
from verify.workers.fork_map import ran_out

R = TypeVar("R")

MOST_PARTS = 1 << 14  # of a reply


class Request(msgspec.Struct, Generic[R], frozen=True, forbid_unknown_fields=True, tag_field="do"):
    """A request whose reply is an R."""

    lists: ClassVar[bool] = False  # True: asks for declarations and calls no kernel

    def read(self, reply: bytes | msgspec.Raw) -> R:
        """Returns the reply, decoded from JSON. Raises InternalError if it has another type."""
        [of] = [each for each in type(self).__orig_bases__ if each.__origin__ is Request]  # type: ignore[attr-defined]
        try:
            found: R = msgspec.json.decode(reply, type=of.__args__[0])
        except msgspec.DecodeError as error:
            raise errors.InternalError(
                f"the reply to the request {kind_of(self)!r} is no reply to it: {error}"
            ) from error
        return found


def kind_of(request: Request[Any]) -> str:
    """Returns the name of a request, the value of its field `do`."""
    return str(type(request).__struct_config__.tag)


class About(msgspec.Struct, frozen=True):
    """A worker's description of where it runs."""

    backend: str
    device: str
    environment: dict[str, Any]
    workers: int = 1  # processes that can work here at once: one per core, as many as fit on the GPU
    devices: int = 1  # devices of the backend that the process sees


class Environment(Request[About], frozen=True, tag="environment"):
    """Asks for backend, versions and probes; with probed=False only for the backend, while the rest is looked up."""

    probed: bool | None = True  # None: the rest is not looked up


class CountGpus(Request[int], frozen=True, tag="gpus"):
    """Asks how many GPUs the process sees."""


# -- outcomes of a call ------------------------------------------------------------------------------------

# a process that calls kernels, one that judges and calls none, or one that runs a solution which nobody has read
Who = Literal["kernel", "judge", "solution"]


class _NoAnswer(errors.VerifyError):
    """A process gave no answer; `who` is its kind."""

    def __init__(self, text: str, *, who: Who = "kernel") -> None:
        super().__init__(text)
        self.who = who


class Died(_NoAnswer):
    """The process ended without an answer; the text names the signal or the exit code."""

    @staticmethod
    def of(code: int | None, *, who: Who = "kernel") -> Died:
        """Returns the error for the exit code of a process that ended without an answer."""
        if code is not None and code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
            extra = " (out of memory?)" if name == "SIGKILL" else ""
            return Died(f"the process died of {name}{extra}", who=who)
        return Died(f"the process ended with exit code {code} and no result", who=who)


class Late(_NoAnswer):
    """The process did not answer in time and was killed."""


_KINDS: dict[str, type[errors.VerifyError]] = {  # the first that fits
    "usage": errors.UsageError,
    "truth": errors.TruthError,
    "refused backward": errors.RefusedBackward,
    "refused": errors.Refused,
    "kernel": errors.KernelError,
    "judge": errors.JudgeFailed,
    "internal": errors.InternalError,
    "died": Died,
    "timeout": Late,
}


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reason why a request has no reply."""

    kind: str  # a key of _KINDS
    text: str
    hint: str | None = None
    who: Who | None = None  # the process that gave no answer

    @staticmethod
    def of(error: Exception) -> Failure:
        """Returns an exception in the form that is sent."""
        if ran_out(error):  # a kernel's error is a KernelError by now
            return Failure("judge", "the judge ran out of memory")
        for kind, error_type in _KINDS.items():
            if isinstance(error, error_type):
                hint, who = getattr(error, "hint", None), getattr(error, "who", None)
                return Failure(kind, getattr(error, "message", str(error)), hint, who)
        return Failure("internal", f"{type(error).__name__}: {errors.said_by(error)}")

    def error(self) -> errors.VerifyError:
        """Returns the exception again, on the side that sent the request."""
        more = {name: given for name in ("hint", "who") if (given := getattr(self, name)) is not None}
        return _KINDS.get(self.kind, errors.InternalError)(self.text, **more)


@dataclass(frozen=True)
class Reply:
    """The reply to a request, in JSON, and the bytes sent with it."""

    value: msgspec.Raw
    parts: Sequence[bytearray] = ()


Outcome = Reply | Failure | Died | Late


def demand_reply(outcome: Outcome) -> Reply:
    """Returns the reply. Raises the outcome if it is none."""
    if isinstance(outcome, Reply):
        return outcome
    raise outcome.error() if isinstance(outcome, Failure) else outcome


# -- on the connection -------------------------------------------------------------------------------------


class Step(str):
    """A line of progress; if units are counted, number `number` of `total` is running.

    `waited` are seconds since the last line where a judge waited for memory. The time of the request is longer by
    them. `judged` is what a case was judged to be, in the request's own form. It stays if the request does not end.
    """

    unit: str = ""
    number: int = 0
    total: int = 0
    waited: float = 0.0
    judged: bytes = b""

    def __new__(cls, text: str, unit: str = "", number: int = 0, total: int = 0, **more: Any) -> Step:
        """`Step("gelu float32, case 3 of 12", "case", 3, 12)`."""
        step = super().__new__(cls, text)
        vars(step).update(unit=unit, number=number, total=total, **more)
        return step

    def having(self, **more: Any) -> Step:
        """Returns the same line with seconds that a judge waited for memory, or with a case that was judged."""
        return Step(self, self.unit, self.number, self.total, **more)


class Progressed(msgspec.Struct, frozen=True, tag_field="event", tag="progress", omit_defaults=True):
    """A `Step` in the form that is sent."""

    text: str
    unit: str = ""
    number: int = 0
    total: int = 0
    waited: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    judged: bytes = b""

    @staticmethod
    def of(text: str) -> Progressed:
        """Returns the event for a line of progress."""
        said = vars(text) if isinstance(text, Step) else {}
        return Progressed(str(text), **said)  # str, because msgspec sends no subclass of it

    @property
    def step(self) -> str:
        """Returns the line again, on the side that sent the request."""
        if not self.total and not self.waited:
            return self.text
        return Step(**msgspec.structs.asdict(self))


class KernelWanted(msgspec.Struct, frozen=True, tag_field="event", tag="kernel"):
    """Asks the other side, from a process that judges, for a call in the kernel's process.

    `most` limits the bytes that come with the reply. The other side answers with `Replied` or `Failed`.
    """

    request: msgspec.Raw
    most: int


class Replied(msgspec.Struct, frozen=True, tag_field="event", tag="reply"):
    """The reply; plain bytes of these sizes follow."""

    reply: msgspec.Raw
    parts: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(max_length=MOST_PARTS)] = ()
    usable: bool = True  # False: the process is replaced before the next request


class Failed(msgspec.Struct, frozen=True, tag_field="event", tag="failed"):
    """Reports that there is no reply."""

    failure: Failure
    usable: bool = True


Event = Progressed | KernelWanted | Replied | Failed
OnProgress = Callable[[str], None]
