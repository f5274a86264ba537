"""What a worker is asked about one case. Replies that the command line prints as JSON are plain values."""

from __future__ import annotations

from typing import Any

import msgspec

from verify.records.record import LawRun, Origin
from verify.workers.requests import Request


class Smaller(msgspec.Struct, frozen=True):
    """How a case was made smaller: `original` is what it was made from."""

    evaluations: int
    exhausted: bool
    original: Origin | None


class Replayed(msgspec.Struct, frozen=True):
    """A `verify.diagnose.replay.Replay` as plain values; the script, where it was asked for."""

    replay: dict[str, Any]
    snippet: str | None = None


class ReplayElement(Request[Replayed], frozen=True, tag="replay"):
    """One element of a case again; made smaller, and as a script, where that is asked for."""

    target: str
    case: str
    result: str = "y"
    index: int = 0
    shrink: bool = False
    snippet: bool = False


class LawReplayed(msgspec.Struct, frozen=True):
    """What a law says of a case, or of the smaller one that was found."""

    law: LawRun
    kernel: str
    smaller: Smaller | None


class ReplayLaw(Request[LawReplayed], frozen=True, tag="law"):
    """One law on one case again."""

    target: str
    case: str
    law: str
    shrink: bool = False


class Explain(Request[dict[str, Any]], frozen=True, tag="explain"):
    """A `verify.diagnose.explain.Explanation` of one element as plain values."""

    target: str
    case: str
    result: str = ""
    index: int | None = None  # the worst element of the result
    law: str = ""  # explain the element where it breaks
