"""Defines the requests to workers about hunts and the corpus, their settings and their replies."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import msgspec

from verify.errors import UsageError
from verify.records.record import Number, Result
from verify.workers.requests import Request

SEEDS = 1 << 63  # every seed is smaller
WIDEST = 1 << 15  # a case spells out at most twice as many elements of one operand


@dataclass(frozen=True)
class Settings:
    """Holds how long to search, and over which inputs. `strategy="random"` draws every candidate fresh, for comparison.

    `generations` is a number of calls. Only it may be combined with `seconds`, which cut it short. On a machine that is
    fast enough, the count alone then decides what a hunt finds.

    `width` is the length of searched rows and dot products (0: 128, 16 in float64). `largest` is a magnitude that no
    input exceeds. `population` is the number of lines of one call (0: the backend's default).
    """

    seed: int = 0
    evaluations: int | None = None
    seconds: float | None = None
    generations: int | None = None
    strategy: Literal["hunt", "random"] = "hunt"
    width: int = 0
    largest: float | None = None
    population: int = 0

    def check(self) -> None:
        """Raises UsageError with the rule if the budget or another setting is impossible."""
        if self.generations is not None:
            if self.evaluations is not None or self.generations < 1:
                raise UsageError(f"generations are at least 1, without evaluations; received {self.generations}")
        elif (self.evaluations is None) == (self.seconds is None):
            raise UsageError("a hunt has one length: --duration TIME or --evaluations N")
        if self.evaluations is not None and self.evaluations < 1:
            raise UsageError(f"--evaluations is at least 1; received {self.evaluations}")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise UsageError(f"--duration is a positive time; received {self.seconds:g} s")
        if not 0 <= self.seed < SEEDS:
            raise UsageError(f"--seed is a whole number from 0; received {self.seed}")
        if not 0 <= self.width <= WIDEST:
            raise UsageError(f"--width is 1 to {WIDEST:,}, because a case spells out its rows; received {self.width:,}")
        if self.largest is not None and not 0 < self.largest < math.inf:
            raise UsageError(f"--largest is a positive number; received {self.largest:g}")


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
    notes: list[str]


class HuntProgress(msgspec.Struct, frozen=True):
    """Reports the progress of a hunt."""

    evaluations: int
    best: Number
    seconds: float


class DoHunt(Request[HuntReply], frozen=True, tag="hunt"):
    """Runs one hunt. The hunt ends early and replies with its finds so far once the file `stop` exists."""

    target: str
    hunt: Hunt
    settings: Settings
    stop: str


class Pin(Request[Pinned], frozen=True, tag="pin"):
    """Runs a case and pins it with its error: of a law, or of one element of a result."""

    target: str
    case: str
    why: str = ""
    law: str = ""
    result: str = "y"
    index: int = 0
