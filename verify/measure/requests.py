"""Defines the requests to measure something in a worker."""

from typing import ClassVar, Literal

import msgspec

from verify.declare.target import Declared
from verify.records.record import KernelRun, SideEffect, Speed
from verify.workers.requests import Request


class Measure(Request[KernelRun], frozen=True, tag="measure"):
    """Measures one kernel against the exact answer. With a profile, it also tries the laws."""

    target: str
    seed: int = 0
    dtypes: tuple[str, ...] = ()  # empty: all dtypes that the kernel declares
    # the profile of laws; empty: none
    laws: str = ""
    accuracy: bool = True  # False: only the laws are tried
    plan: str = ""  # the backend whose cases are measured; empty: the worker's own
    seconds: float = 600.0  # after this time no further case and no further law is tried
    judging: float = 0.0  # seconds that judging may take beside them; 0: kernel and judge share `seconds`
    without: tuple[str, ...] = ()  # laws that are not tried
    judges: int = 1  # number of cases judged at a time
    memory: int = 0  # bytes that judging a case may use; 0: the default
    fail_fast: bool = False  # True: stop after the first finding on ordinary inputs
    models: tuple[str, ...] = ()  # public models at whose sizes a kernel is measured too
    # `JudgedCase`s of another process that gave no reply: the record is made of them, and the kernel is not called
    judged: tuple[bytes, ...] = ()
    # Seconds after which large cases are tried only at sizes without a case; 0: no such limit. Then no case of a kernel
    # is tried that is not `needed`. Of long rows, fewer elements are judged exactly.
    enough: float = 0.0
    needed: bool = True


class Lent(msgspec.Struct, frozen=True):
    """Where a tensor is on the GPU: the handle of what was allocated there, and the bytes before the tensor in it."""

    handle: bytes
    offset: int


class Form(msgspec.Struct, frozen=True):
    """The name, dtype and shape of a tensor whose bytes follow, unless it is lent."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    lent: Lent | None = None


class Stored(Form, frozen=True):
    """Describes one result of a kernel."""

    mode: str = ""  # the mode of inference; empty: training


class Bits(msgspec.Struct, frozen=True):
    """Describes the results of a call, outputs before gradients. The bits follow in the order of `stored`."""

    stored: list[Stored]
    missing: tuple[str, ...]  # gradients that autograd has no path to


class CallKernel(Request[Bits], frozen=True, tag="call"):
    """Calls a kernel on a case, in a process that does nothing else. The results travel beside the reply.

    Large results on a GPU stay there until the same request without a case says that they were copied. With `again`,
    what a call returned must outlive later calls.
    """

    target: str
    case: str
    again: bool = False


class ListSideEffects(Request[list[SideEffect]], frozen=True, tag="side_effects"):
    """Asks a kernel's process for the side effects of its kernel so far."""

    target: str


class Contender(msgspec.Struct, frozen=True):
    """Describes a kernel that can be timed. Kernels of one `group` compute the same thing."""

    kernel: Declared
    group: str


class ListContenders(Request[list[Contender]], frozen=True, tag="contenders"):
    """Lists the kernels of a target with their groups, for `verify bench`."""

    lists: ClassVar[bool] = True
    target: str


class Timed(msgspec.Struct, frozen=True):
    """Holds the time of one contender in one direction, or the reason why there is none."""

    contender: str
    direction: Literal["forward", "backward"]
    speed: Speed | None
    reason: str = ""


class Time(Request[list[Timed]], frozen=True, tag="time"):
    """Times kernels of one group side by side. An empty shape means a large default shape.

    One process answers all requests with the same targets in `beside`, unless a kernel changes that process.
    """

    targets: list[str]
    dtype: str
    shape: tuple[int, ...]
    directions: tuple[Literal["forward", "backward"], ...]
    rounds: int
    seed: int
    beside: tuple[str, ...] = ()
