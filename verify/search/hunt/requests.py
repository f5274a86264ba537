"""What a worker is asked of hunts and of the corpus."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from verify.records.pinned import Entry
from verify.records.record import Number, Result
from verify.search.hunt.settings import Settings
from verify.workers.requests import Request


class Hunt(msgspec.Struct, frozen=True):
    """One hunt of a kernel: for the worst input of one result in one dtype."""

    dtype: str
    result: str


class Hunts(msgspec.Struct, frozen=True):
    """The hunts of a kernel, and why other results have none."""

    hunts: list[Hunt]
    left_out: list[str]


class ListHunts(Request[Hunts], frozen=True, tag="hunts"):
    """Which results of a kernel can be hunted."""

    lists: ClassVar[bool] = True
    target: str
    dtypes: list[str]
    results: list[str]


class Pinned(msgspec.Struct, frozen=True):
    """The entry of the corpus that a find became."""

    id: str
    path: str
    new: bool


class HuntReply(msgspec.Struct, frozen=True):
    """What one hunt found."""

    result: Result
    sentence: str
    notes: list[str]
    seconds: float
    pinned: Pinned | None = None


class HuntProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a hunt is. The case stands in it whenever there is a worse one."""

    evaluations: int
    best: Number
    seconds: float
    case: str = ""
    index: int = 0


class DoHunt(Request[HuntReply], frozen=True, tag="hunt"):
    """One hunt. It ends early, with what it has, once the file `stop` is there."""

    target: str
    hunt: Hunt
    settings: Settings
    stop: str
    pin: bool = False


class ListPinned(Request[list[Entry]], frozen=True, tag="corpus"):
    """Every entry of the project's corpus."""


class Unpin(Request[list[Entry]], frozen=True, tag="unpin"):
    """Remove entries of the corpus; the reply is what they were."""

    ids: list[str]


class NowPinned(msgspec.Struct, frozen=True):
    """The entry of a case that was pinned."""

    entry: Entry
    path: str
    new: bool


class Pin(Request[NowPinned], frozen=True, tag="pin"):
    """Try a case and pin it with what it shows: for a law, or for one element of a result."""

    target: str
    case: str
    why: str = ""
    law: str = ""
    result: str = "y"
    index: int = 0
