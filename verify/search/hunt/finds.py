"""Runs the worst candidates of a hunt again, each as a case of its own, and judges them in exact arithmetic.

The search trusts the float64 reference, so its figures are not reported. Each member of the elite becomes a case that
spells out its bits. The case runs alone; if the error does not show, it runs among copies of itself. Both exact routes
judge it, as in a replay. If an error shows only beside other candidates, the bits of that call are judged, and a note
says that results depend on their neighbours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from verify.cases import Case
from verify.diagnose.replay import judge_element, worst_index
from verify.measure.call import Measured, run_kernel
from verify.records.record import Worst, value_of
from verify.search.hunt.search import Elite
from verify.search.hunt.space import SearchSpace
from verify.truth.exact import Judged
from verify.truth.ulp import from_bits

_SAME = 1.0 - 1e-6  # a repeated error may differ from the error of the search by the width of the fast truth


@dataclass(frozen=True)
class Find:
    """Holds one candidate, judged exactly. `error` is the figure that the op gates."""

    error: float
    judged: Judged
    case: Case
    worst: Worst
    alone: bool  # True: the case reproduces the error. False: the error showed only beside other candidates

    @property
    def open(self) -> bool:
        """True if exact arithmetic would have taken too long. Then `error` is the middle of an interval."""
        return not self.judged.routes

    @property
    def nan(self) -> bool:
        """True if the kernel returned NaN and the answer is a number."""
        return self.worst.got == "nan" and self.judged.right_bits is not None and math.isinf(self.judged.ulp)


def confirm(space: SearchSpace, target: str, device: str, elite: list[Elite]) -> list[Find]:
    """Judges the elite exactly and returns each distinct case once: the worst first, open ones last."""
    found: dict[str, Find] = {}
    for member in elite:
        find = _confirmed(space, target, device, member)
        found.setdefault(find.case.to_json(), find)
    return sorted(found.values(), key=lambda find: (find.open, -find.error, find.case.to_json()))


def _confirmed(space: SearchSpace, target: str, device: str, member: Elite) -> Find:
    """Returns the worst find of a candidate, at the first number of copies that shows the error of the search."""

    def find(case: Case, measured: Measured, index: int, *, alone: bool) -> Find:
        worst, judged, error = judge_element(space.kernel, target, case, measured, space.result, index)
        return Find(abs(value_of(error)), judged, case, worst, alone)

    best: Find | None = None
    for copies in space.contexts():
        case = space.case(member.candidate, member.shared, copies)
        measured = run_kernel(space.kernel, case, device)
        one = find(case, measured, worst_index(space.kernel, case, measured, space.result), alone=True)
        best = one if best is None or one.error > best.error else best
        if best.error >= member.figure * _SAME:
            return best
    assert best is not None
    case = space.case(member.candidate, member.shared, 1)
    measured = run_kernel(space.kernel, case, device)
    got = measured.results[space.result].clone()
    got.view(-1)[member.element] = from_bits(torch.tensor([member.got]), space.fmt)[0]
    seen = find(case, replace(measured, results={**measured.results, space.result: got}), member.element, alone=False)
    return seen if seen.error > best.error else best
