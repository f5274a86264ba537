"""Defines the requests of a sweep to workers, and their replies."""

from typing import ClassVar

import msgspec

from verify.records.record import KernelRun, Number
from verify.search.sweep.space import Partial, Space
from verify.workers.requests import Request


class Spaces(msgspec.Struct, frozen=True):
    """Holds spaces, and says why other kernels have none."""

    spaces: list[Space]
    skipped: list[str]  # why other kernels have no space
    hints: list[str]  # the next command for each skipped kernel
    place: dict[str, str]  # digests of the sources on which the figures depend


class ListSpaces(Request[Spaces], frozen=True, tag="sweep spaces"):
    """Asks for every space of the kernels of some targets."""

    lists: ClassVar[bool] = True
    targets: list[str]
    dtypes: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    pairs: bool = False  # also sweep kernels of two operands
    bounds: tuple[Number, Number] | None = None
    baseline: bool = False
    needs_pairs: bool = False  # an error if all kernels have one operand


class SweepChunks(Request[Partial], frozen=True, tag="sweep chunks"):
    """Asks for the partial result of a half-open range of chunks."""

    space: Space
    chunks: tuple[int, int]


class RecordSweep(Request[KernelRun], frozen=True, tag="sweep record"):
    """Asks for the record of one result of a kernel over a space, from all findings."""

    space: Space
    partial: Partial
    result: str
    seconds: float
    curve: bool
