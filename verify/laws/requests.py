"""Defines the requests about laws."""

from __future__ import annotations

from verify.records.record import LawRun
from verify.workers.requests import Request


class TryLaw(Request[LawRun], frozen=True, tag="try law"):
    """Tries one law on one kernel in one dtype."""

    target: str
    dtype: str
    law: str
    profile: str
    seed: int
    seconds: float  # after this time no further case is tried
