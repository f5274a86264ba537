"""Says how long a hunt searches, from which seed, and over which inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from verify.errors import UsageError

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
