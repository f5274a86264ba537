"""Requests about solutions."""

from __future__ import annotations

import msgspec

from verify.workers.requests import Request


class CallTime(msgspec.Struct, frozen=True):
    """Holds the time of one call of a solution beside the reference's. docs/judge.md says which figures are proven.

    `reason` says why nothing was timed; with `failed`, the solution raised or ended. `tricks` has evidence by the names
    of tricks.
    """

    problem: str
    milliseconds: float | None = None  # without the judge's own work
    at_most: float | None = None  # with it: proven
    own_clock: float | None = None  # by the clock of the solution's process, which is not trusted
    reference: float | None = None
    times_as_fast: float | None = None  # as the reference
    at_least: float | None = None  # proven
    calls: int = 0
    wrong: str = ""  # why an answer is wrong, where the call that is not timed is wrong too
    reason: str = ""
    failed: bool = False
    tricks: dict[str, str] = {}


class TimeSolution(Request[CallTime], frozen=True, tag="time_solution"):
    """Time the solution of a problem that was judged."""

    target: str
    seconds: float
