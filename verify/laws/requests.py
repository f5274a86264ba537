"""Defines the requests about laws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from verify.records.record import LawRun, SelfTest
from verify.workers.requests import Request

Fate = Literal["killed", "survived", "not tried"]


class LawPlan(msgspec.Struct, frozen=True):
    """Holds all laws in the order in which they are tried, and the number of rounds of a profile."""

    laws: list[str]
    rounds: int
    without: list[str] = []  # laws that are not tried


class PlanLaws(Request[LawPlan], frozen=True, tag="laws"):
    """Lists the laws that a profile tries."""

    profile: str
    without: tuple[str, ...] = ()


class TryLaw(Request[LawRun], frozen=True, tag="try law"):
    """Tries one round of one law on one kernel in one dtype."""

    target: str
    dtype: str
    law: str
    round: int
    profile: str
    seed: int


@dataclass(frozen=True)
class Trial:
    """Holds the outcome of one law on a kernel with a seeded bug, and on the correct twin."""

    law: str
    bug: str
    note: str
    fate: Fate
    cases: int
    message: str  # the rule that the bug broke, or the reason why the law was not tried
    alarm: str = ""  # the failure of the law on the twin; empty: none


class Tried(msgspec.Struct, frozen=True):
    """Holds the reply to `TrySeeded`: one trial for each law, and the summary that the run record keeps."""

    backend: str
    trials: list[Trial]
    selftest: SelfTest
    passed: bool


class TrySeeded(Request[Tried], frozen=True, tag="selftest"):
    """Tries laws on kernels with one seeded bug each, and on their twins. Empty `laws` means all."""

    laws: list[str]
