"""What a worker is asked about one case."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import msgspec

from verify.records.record import LawRun, Number, Origin, Worst, value_of
from verify.workers.requests import Request


class Smaller(msgspec.Struct, frozen=True):
    """How a case was made smaller: `original` is what it was made from."""

    evaluations: int
    exhausted: bool
    original: Origin | None


class Replay(msgspec.Struct, frozen=True):
    """What the replayed element looks like now."""

    kernel: str
    op: str
    result: str
    dtype: str
    backend: str
    worst: Worst
    case: str
    flat_index: int
    ulp_exponent: int  # of the spacing at the exact value: plain ULPs are in units of 2^this
    right: str  # the correctly rounded value
    right_hex: str
    misrounded: bool
    repeatable: bool  # a second call gave the same bits everywhere
    baseline: Worst | None
    limit: float
    gate: str
    smaller: Smaller | None = None
    counts: bool = False  # True for integers and conditions, which have no ULP

    @property
    def judged(self) -> float:
        """The error that the limit is about."""
        error: Number | None = self.worst.ulp if self.gate == "plain" else self.worst.scaled_ulp
        return math.nan if error is None else abs(value_of(error))


class Replayed(msgspec.Struct, frozen=True):
    """The element; the script that shows it, where it was asked for."""

    replay: Replay
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


class Rounded(msgspec.Struct, frozen=True):
    """One step of a program, and by how much the element moves if that step alone is rounded."""

    text: str
    value: str
    moves: dict[str, Number]  # in the judged ULP, by the format that the step is rounded to


class Whole(msgspec.Struct, frozen=True):
    """A program with every step rounded to one format: its error here, and how often it has the kernel's bits."""

    format: str
    error: Number
    same: int


class Explanation(msgspec.Struct, frozen=True):
    """The error of one element, divided among the steps of a program. Without steps only `cause` says why."""

    replay: Replay
    least: Number  # error of the correctly rounded result
    sensitivity: Number | None  # by how much half an ulp of x moves the result
    cause: str
    owner: Literal["kernel", "definition"] = "definition"  # whose program it is
    steps: list[Rounded] = []
    formula: Number | None = None  # how far the kernel's program is off with no step rounded
    wholes: list[Whole] = []
    compared: int = 0  # elements whose bits were compared


class Explain(Request[Explanation], frozen=True, tag="explain"):
    """The error of one element, divided among the steps that lead to it."""

    target: str
    case: str
    result: str = ""
    index: int | None = None  # the worst element of the result
    law: str = ""  # explain the element where it breaks


class BlindSpots(msgspec.Struct, frozen=True):
    """The errors of a definition that would pass in one dtype, of so many that were tried on one case."""

    dtype: str
    case: str
    tried: int
    spots: list[str]


class FindBlindSpots(Request[list[BlindSpots]], frozen=True, tag="blind"):
    """Every blind spot of a kernel's limits, in some dtypes or in all that it promises."""

    target: str
    dtypes: tuple[str, ...] = ()


class Probed(msgspec.Struct, frozen=True):
    """The domain of a kernel: lines of what it takes and refuses, and the arguments of a declaration that says so."""

    kernel: str
    lines: list[tuple[str, str]]
    arguments: dict[str, str]


class Probe(Request[Probed], frozen=True, tag="probe"):
    """What a kernel takes. The progress names each trial; those in `avoid` are taken as refused."""

    quiet: ClassVar[bool] = True  # what a process prints that a trial ends is of no use

    target: str
    avoid: tuple[str, ...] = ()
