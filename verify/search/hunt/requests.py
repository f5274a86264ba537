"""Defines the requests to workers about hunts and the corpus, and their replies."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from verify.records.record import Number, Result
from verify.search.hunt.settings import Settings
from verify.workers.requests import Request


class Hunt(msgspec.Struct, frozen=True):
    """Names one hunt of a kernel: the dtype, and the result to find the worst input of."""

    dtype: str
    result: str


class Hunts(msgspec.Struct, frozen=True):
    """Holds the hunts of a kernel."""

    hunts: list[Hunt]
    left_out: list[str]  # why other results have no hunt


class ListHunts(Request[Hunts], frozen=True, tag="hunts"):
    """Asks which results of a kernel can be hunted."""

    lists: ClassVar[bool] = True
    target: str
    dtypes: list[str]
    results: list[str]


class Pinned(msgspec.Struct, frozen=True):
    """Names the corpus entry that pins a case."""

    id: str
    path: str
    new: bool  # False: the corpus already had it


class HuntReply(msgspec.Struct, frozen=True):
    """Holds the outcome of one hunt."""

    result: Result
    sentence: str
    notes: list[str]
    seconds: float
    pinned: Pinned | None = None


class HuntProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Reports the progress of a hunt. `case` is set only in a report of a new worst case."""

    evaluations: int
    best: Number
    seconds: float
    case: str = ""
    index: int = 0


class DoHunt(Request[HuntReply], frozen=True, tag="hunt"):
    """Runs one hunt. The hunt ends early and replies with its finds so far once the file `stop` exists."""

    target: str
    hunt: Hunt
    settings: Settings
    stop: str
    pin: bool = False


class Pin(Request[Pinned], frozen=True, tag="pin"):
    """Runs a case and pins it with its error: of a law, or of one element of a result."""

    target: str
    case: str
    why: str = ""
    law: str = ""
    result: str = "y"
    index: int = 0
