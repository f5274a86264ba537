"""Defines the requests about laws."""

from __future__ import annotations

import msgspec

from verify.records.record import LawRun
from verify.workers.requests import Request


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
