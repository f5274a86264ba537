"""Holds what judging found out about one result: of one case, then of all cases of a group.

Judging a case gives `Findings`, which a fork can send. Those of later cases are merged into those of earlier ones, and
`verify.measure.result` turns the sum into the entry of the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

import msgspec
from torch import Tensor

from verify.cases import Case
from verify.measure.curve import Peaks, join
from verify.measure.tally import KEEP, Peak, Tally, merged_peaks
from verify.ops.op import Regime
from verify.records.figure import LEAST
from verify.records.readings import APART, BEYOND, NONFINITE
from verify.records.record import Worst

KERNEL, BASELINE = "kernel", "baseline"  # sources of results; a mode of inference, as under no_grad, is one too
KEEP_SPECIAL = 3  # worst elements in the record for infinite and NaN inputs

K = TypeVar("K")
T = TypeVar("T")
PartName = tuple[str, str]  # names of a regime and a class
_ADDED = ("escalated", "n", "whole", "blind", "cases", "wrong")  # fields that two findings add up


class Findings(msgspec.Struct, frozen=True):
    """Holds the findings about one result of one implementation. Infinite and NaN inputs are one regime."""

    parts: dict[PartName, Tally] = {}  # in the order of the record
    bounds: dict[str, Regime] = {}  # the regimes with their ends
    # The worst elements with their errors, see `kept`. Of one case, only those that are worse than the earlier cases'.
    worst: list[tuple[float, PartName, Worst]] = []
    escalated: int = 0  # number of elements judged exactly
    certificates: list[str] = []
    n: int = 0  # number of elements judged
    whole: int = 0  # number of elements, judged or not
    curve: list[Peak] = []  # places count the elements of all cases
    operand: str = ""  # format of the operand of the curve
    edges: tuple[float, ...] = ()  # edges of the bins of the curve
    trivial: dict[str, Tally] = {}  # tallies of trivial answers on ordinary inputs
    blind: list[tuple[float, str]] = []  # errors in the definition that would pass: share of the limit, words
    mistake: str = ""  # how the kernel reads a quantised operand wrongly
    slopes: dict[str, int] = {}  # ties at which the kernel's slope is not PyTorch's -> number of elements
    digest: str = ""  # digest of all elements, if only some of them were judged
    near: Peaks = {}  # the largest errors by neighbourhoods, of a kernel that is compared with PyTorch
    cases: list[Case] = []  # the cases that gave this result
    wrong: list[bool] = []  # for each of these cases, True if it alone shows that the result is wrong
    format: str = ""  # that of the result

    def merge(self, later: Findings) -> Findings:
        """Returns the findings of both sets of cases. Among equal errors the earlier case comes first."""
        moved = [msgspec.structs.replace(peak, place=peak.place + self.n) for peak in later.curve]
        added = {name: getattr(self, name) + getattr(later, name) for name in _ADDED}
        return Findings(
            parts=_merged(self.parts, later.parts),
            bounds=self.bounds | later.bounds,
            worst=kept([*self.worst, *later.worst]),
            certificates=list(dict.fromkeys([*self.certificates, *later.certificates])),
            curve=merged_peaks(self.curve, moved),
            trivial=_merged(self.trivial, later.trivial),
            mistake=self.mistake or later.mistake,
            slopes=dict(Counter(self.slopes) + Counter(later.slopes)),
            near=join(join({}, self.near), later.near) if later.near else self.near,
            **added | {name: getattr(later, name) or getattr(self, name) for name in ("operand", "edges", "format")},
        )

    @property
    def regimes(self) -> dict[str, Tally]:
        """Returns the tallies merged by regime."""
        found: dict[str, Tally] = {}
        for (regime, _), item in self.parts.items():
            found[regime] = found.get(regime, Tally()).merge(item.without_places())
        return found

    def worst_of(self, regime: str = "", of_class: str = "") -> Worst | None:
        """Returns the worst element of a regime or of a class; None if correct rounding may have its error."""
        for error, (its_regime, its_class), worst in self.worst:
            mine = its_regime == regime if regime else its_class == of_class and its_regime not in APART
            if mine and error > LEAST:
                return worst
        return None

    @property
    def ordinary(self) -> list[Worst]:
        """Returns the worst elements with finite inputs, none of them beyond the magnitude that is promised."""
        return [worst for _, (regime, _), worst in self.worst if regime not in APART][:KEEP]

    @property
    def special(self) -> list[Worst]:
        """Returns the worst elements with infinite or NaN inputs."""
        return [worst for _, (regime, _), worst in self.worst if regime == NONFINITE][:KEEP_SPECIAL]


Given = dict[str, dict[str, Tensor]]  # results of one case: by source, then by name
CaseFindings = dict[str, dict[str, Findings]]  # of one case: by source (`KERNEL`, `BASELINE` or a mode), then by result


class JudgedCase(msgspec.Struct, frozen=True):
    """Holds the findings about a case, or about some of its results, for a record that another process makes."""

    dtype: str
    group: int  # its place in the plan
    number: int  # of the case in the plan
    findings: CaseFindings


def kept(entries: Iterable[tuple[float, PartName, T]], *, each: bool = True) -> list[tuple[float, PartName, T]]:
    """Returns the entries that a record may show, the largest error first: the first few, and `each` part's worst.

    An error that correct rounding may have is no part's worst: no bound is smaller.
    """
    room = Counter({"": KEEP, NONFINITE: KEEP_SPECIAL, BEYOND: 0})
    seen, few = set[PartName](), list[tuple[float, PartName, T]]()
    for entry in sorted(entries, key=lambda entry: -entry[0]):  # stable
        part = entry[1]
        of = part[0] if part[0] in APART else ""
        if room[of] > 0 or (each and entry[0] > LEAST and part not in seen):
            few.append(entry)
        room[of] -= 1
        seen.add(part)
    return few


def _merged(first: dict[K, Tally], second: dict[K, Tally]) -> dict[K, Tally]:
    return first | {name: first.get(name, Tally()).merge(item) for name, item in second.items()}
