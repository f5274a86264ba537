"""What a worker is asked to measure."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from verify.declare.target import Declared
from verify.records.record import KernelRun, SideEffect, Speed
from verify.truth.certificate import Entry
from verify.workers.requests import Request


class Measure(Request[KernelRun], frozen=True, tag="measure"):
    """One kernel against the exact answer, with the laws of a profile where one is named."""

    target: str
    seed: int = 0
    dtypes: tuple[str, ...] = ()  # empty: all that it declares
    laws: str = ""
    accuracy: bool = True  # without it only the laws are tried
    plan: str = ""  # the backend whose cases are measured; the own one without it
    seconds: float = 600.0  # after which no further case and no further law is tried
    without: tuple[str, ...] = ()  # laws that are left out
    judges: int = 1  # cases that are judged at a time
    memory: int = 0  # bytes that judging a case may take; 0: the default
    fail_fast: bool = False  # no further case is tried once one has a finding on ordinary inputs


class Stored(msgspec.Struct, frozen=True):
    """The form of one result."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    mode: str = ""  # of inference; of training without one


class Bits(msgspec.Struct, frozen=True):
    """What a call gave: `stored` says in which order the bits of the results follow."""

    order: list[str]  # of the results: outputs, then gradients
    stored: list[Stored]
    missing: tuple[str, ...]  # gradients that the kernel does not provide


class CallKernel(Request[Bits], frozen=True, tag="call"):
    """A kernel called on a case, in a process that does nothing but call it; the results travel beside the reply."""

    target: str
    case: str


class ListSideEffects(Request[list[SideEffect]], frozen=True, tag="side_effects"):
    """What a kernel's process found changed since it began."""

    target: str


class Contender(msgspec.Struct, frozen=True):
    """A kernel to be timed; those of one `group` compute the same thing."""

    kernel: Declared
    group: str


class ListContenders(Request[list[Contender]], frozen=True, tag="contenders"):
    """The kernels of a target with what `verify bench` has to know before it times them."""

    lists: ClassVar[bool] = True
    target: str


class Timed(msgspec.Struct, frozen=True):
    """The outcome of one contender in one direction: a time, or why there is none."""

    contender: str
    direction: Literal["forward", "backward"]
    speed: Speed | None
    reason: str = ""


class Time(Request[list[Timed]], frozen=True, tag="time"):
    """Kernels of one group side by side. An empty shape is a large default.

    Requests that name the same targets in `beside` are answered by one process, as long as no kernel changes it.
    Without rounds everything is called as if it were timed, so that the process has compiled it by then.
    """

    targets: list[str]
    dtype: str
    shape: tuple[int, ...]
    directions: tuple[Literal["forward", "backward"], ...]
    rounds: int
    seed: int
    beside: tuple[str, ...] = ()


class Certify(Request[list[Entry]], frozen=True, tag="certify"):
    """How far the fast references of ops (all by default) are from the exact value."""

    ops: list[str]
    seed: int
