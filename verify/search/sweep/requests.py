"""What a worker is asked of a sweep. A partial result travels as the JSON text that is kept."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from verify.records.record import KernelRun, Number
from verify.search.sweep.space import Space
from verify.workers.requests import Request


class Spaces(msgspec.Struct, frozen=True):
    """Spaces, each with how it is checked, and why other kernels have none."""

    spaces: list[Space]
    references: list[str]
    skipped: list[str]
    hints: list[str]  # of what was skipped
    place: dict[str, str]  # digests of the sources that decide the figures


class ListSpaces(Request[Spaces], frozen=True, tag="sweep spaces"):
    """Every space of the kernels of some targets."""

    lists: ClassVar[bool] = True
    targets: list[str]
    dtypes: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    pairs: bool = False
    bounds: tuple[Number, Number] | None = None
    regime: str = ""
    baseline: bool = False
    hardest: int = 0


class SweepChunks(Request[str], frozen=True, tag="sweep chunks"):
    """The partial result of the chunks from the first to before the second; of fewer, where they take long."""

    space: Space
    chunks: tuple[int, int]
    seconds: float


class RecordSweep(Request[KernelRun], frozen=True, tag="sweep record"):
    """The record of one result of a kernel over a space, from everything that was found."""

    space: Space
    partials: list[str]
    result: str
    seconds: float
    curve: bool
