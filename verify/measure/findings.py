"""Holds what judging found out about one result: of one case, then of all cases of a group.

Judging a case gives `Findings`, which a fork can send. Those of later cases are merged into those of earlier ones, and
`verify.measure.result` turns the sum into the entry of the record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeVar

import msgspec
from torch import Tensor

from verify.cases import Case
from verify.measure.digest import Digest
from verify.measure.neighbourhood import Peaks, join
from verify.measure.tally import KEEP, Peak, Tally, merged_peaks
from verify.ops.op import Regime
from verify.records.record import Worst
from verify.truth.formats import Format

KEEP_SPECIAL = 3  # worst elements in the record for infinite and NaN inputs

K = TypeVar("K")
PartName = tuple[str, str]  # names of a regime and a class
Ranked = tuple[float, Worst]  # an error and its element


class Blind(msgspec.Struct, frozen=True, order=True):
    """Holds one error that passes: its share of the limit, and its description."""

    share: float
    words: str


class Findings(msgspec.Struct, frozen=True):
    """Holds the findings about one result of one implementation. Infinite and NaN inputs are one regime.

    The elements of one case in `worst`, `special` and `each` are only those that are worse than the earlier cases' own.
    """

    parts: dict[PartName, Tally] = {}  # in the order of the record
    bounds: dict[str, Regime] = {}  # the regimes with their ends
    worst: list[Ranked] = []  # for ordinary inputs
    special: list[Ranked] = []  # for infinite or NaN inputs
    each: dict[PartName, Ranked] = {}  # the worst element of each part
    escalated: int = 0  # number of elements judged exactly
    certificates: list[str] = []
    n: int = 0  # number of elements judged
    whole: int = 0  # number of elements, judged or not
    curve: list[Peak] = []  # places count the elements of all cases
    operand: str = ""  # format of the operand of the curve
    edges: tuple[float, ...] = ()  # edges of the bins of the curve
    trivial: dict[str, Tally] = {}  # tallies of trivial answers on ordinary inputs
    blind: list[Blind] = []  # errors in the definition that would pass
    mistake: str = ""  # how the kernel reads a quantised operand wrongly
    digest: str = ""  # digest of all elements, if only some of them were judged
    near: Peaks = {}  # the largest errors by neighbourhoods, of a kernel that is held against PyTorch
    shown: list[Worst] = []  # the worst elements for the record

    def merge(self, later: Findings) -> Findings:
        """Returns the findings of both sets of cases. Among equal errors the earlier case comes first."""
        each = {name: item for name, item in later.each.items() if item[0] > self.each.get(name, (0.0,))[0]}
        moved = [msgspec.structs.replace(peak, place=peak.place + self.n) for peak in later.curve]
        return Findings(
            parts=_merged(self.parts, later.parts),
            bounds=self.bounds | later.bounds,
            worst=_largest([*self.worst, *later.worst], KEEP),
            special=_largest([*self.special, *later.special], KEEP_SPECIAL),
            each=self.each | each,
            escalated=self.escalated + later.escalated,
            certificates=list(dict.fromkeys([*self.certificates, *later.certificates])),
            n=self.n + later.n,
            whole=self.whole + later.whole,
            curve=merged_peaks(self.curve, moved),
            operand=later.operand or self.operand,
            edges=later.edges or self.edges,
            trivial=_merged(self.trivial, later.trivial),
            blind=self.blind + later.blind,
            mistake=self.mistake or later.mistake,
            near=join(join({}, self.near), later.near) if later.near else self.near,
        )

    @property
    def regimes(self) -> dict[str, Tally]:
        """Returns the tallies merged by regime."""
        found: dict[str, Tally] = {}
        for (regime, _), item in self.parts.items():
            found[regime] = found.get(regime, Tally()).merge(item.without_places())
        return found

    def worst_of(self, has: Callable[[PartName], bool]) -> Worst | None:
        """Returns the worst element of the parts that `has` accepts; None if there is none."""
        return max((item for name, item in self.each.items() if has(name)), key=itemgetter(0), default=(0.0, None))[1]


@dataclass
class Collected:
    """Accumulates the findings about one result over the cases of a group."""

    fmt: Format
    findings: Findings = field(default_factory=Findings)
    cases: list[Case] = field(default_factory=list)  # the cases that gave this result

    def __post_init__(self) -> None:
        self.digest = Digest(self.fmt)

    def add(self, case: Case, got: Tensor, findings: Findings) -> None:
        """Merges the findings of one case. Cases are added in their order, even if a later one was judged first."""
        self.findings = self.findings.merge(findings)
        self.cases.append(case)
        if findings.digest:
            self.digest.add_digest(findings.digest)
        else:
            self.digest.add(got)


def _merged(first: dict[K, Tally], second: dict[K, Tally]) -> dict[K, Tally]:
    return first | {name: first.get(name, Tally()).merge(item) for name, item in second.items()}


def _largest(entries: list[Ranked], most: int) -> list[Ranked]:
    return sorted(entries, key=lambda entry: -entry[0])[:most]  # stable
