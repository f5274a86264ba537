"""What a worker is asked about laws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from verify.records.record import LawRun, SelfTest
from verify.workers.requests import Request

Fate = Literal["killed", "survived", "not tried"]


class LawPlan(msgspec.Struct, frozen=True):
    """All laws in the order in which they are tried, and in how many rounds a profile tries them."""

    laws: list[str]
    rounds: int
    without: list[str] = []  # laws that are left out


class PlanLaws(Request[LawPlan], frozen=True, tag="laws"):
    """Which laws a profile tries."""

    profile: str
    without: tuple[str, ...] = ()


class TryLaw(Request[LawRun], frozen=True, tag="try law"):
    """One round of one law on one kernel in one dtype."""

    target: str
    dtype: str
    law: str
    round: int
    profile: str
    seed: int


@dataclass(frozen=True)
class Trial:
    """One law on its seeded kernel and on the correct twin."""

    law: str
    bug: str
    note: str
    fate: Fate
    cases: int
    message: str  # the rule that the bug broke, or why the law was not tried
    alarm: str = ""  # what the law said against the twin


class Tried(msgspec.Struct, frozen=True):
    """A self-test: one trial for each law, and the same as a part of the run record."""

    backend: str
    trials: list[Trial]
    selftest: SelfTest
    passed: bool


class TrySeeded(Request[Tried], frozen=True, tag="selftest"):
    """Each of these laws (all by default) on a kernel with one seeded bug, and on its twin."""

    laws: list[str]
