"""Runs the worst candidates of a hunt again, each as a case of its own, and judges them in exact arithmetic.

The search trusts the float64 reference, so its figures are not reported. Each member of the elite becomes a case that
spells out its bits. The case runs alone; if the error does not show, it runs among copies of itself. Both exact routes
judge it. If an error shows only beside other candidates, the bits of that call are judged, and a note says that results
depend on their neighbours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from verify.cases import Case, problem_of
from verify.measure.call import run_kernel
from verify.measure.element import worst_element
from verify.measure.judge import Effort, JudgedBy, judge_by
from verify.records.record import Origin, Worst
from verify.search.hunt.search import Elite
from verify.search.hunt.space import SearchSpace
from verify.truth.exact import Judged, judge_known
from verify.truth.fast import decided, evaluate
from verify.truth.ulp import from_bits

_SAME = 1.0 - 1e-6  # a repeated error may differ from the error of the search by the width of the fast truth


@dataclass(frozen=True)
class Find:
    """Holds one candidate, judged exactly. `error` is the figure that the op gates."""

    error: float
    ulp: float
    scaled: float | None
    judged: Judged
    case: Case
    index: int
    worst: Worst
    alone: bool  # True: the case reproduces the error. False: the error showed only beside other candidates

    @property
    def open(self) -> bool:
        """True if exact arithmetic would have taken too long. Then `error` is the middle of an interval."""
        return not self.judged.routes

    @property
    def nan(self) -> bool:
        """True if the kernel returned NaN and the answer is a number."""
        return self.worst.got == "nan" and self.judged.right_bits is not None and math.isinf(self.ulp)


def confirm(space: SearchSpace, target: str, device: str, elite: list[Elite]) -> list[Find]:
    """Judges the elite exactly and returns each distinct case once: the worst first, open ones last."""
    found: dict[str, Find] = {}
    rerun = _Rerun(space, target, device)
    for member in elite:
        find = rerun.confirmed(member)
        found.setdefault(find.case.to_json(), find)
    return sorted(found.values(), key=lambda find: (find.open, -find.error, find.case.to_json()))


@dataclass(frozen=True)
class _Measured:
    """Holds a case, the kernel's result and the rules of judging, all in the memory of the host.

    Exact arithmetic reads one element at a time; from a GPU it would wait for each.
    """

    case: Case
    got: Tensor
    by: JudgedBy


@dataclass(frozen=True)
class _Rerun:
    """Runs candidates again as cases of their own."""

    space: SearchSpace
    target: str
    device: str

    def confirmed(self, member: Elite) -> Find:
        """Returns the worst find of a candidate, at the first number of copies that shows the error of the search."""
        best: Find | None = None
        for copies in self.space.contexts():
            find = self.alone(self.space.case(member.candidate, member.shared, copies))
            if best is None or find.error > best.error:
                best = find
            if best.error >= member.figure * _SAME:
                return best
        assert best is not None
        seen = self.as_seen(self.space.case(member.candidate, member.shared, 1), member)
        return seen if seen.error > best.error else best

    def measured(self, case: Case) -> _Measured:
        """Runs a case and returns its result with its truth on the host."""
        space, op = self.space, self.space.kernel.op
        measured = run_kernel(space.kernel, case, self.device)
        problem = problem_of(op, case, measured.inputs, measured.upstream, (space.result,))
        host = replace(
            problem,
            inputs={name: None if value is None else value.cpu() for name, value in problem.inputs.items()},
            upstream={name: value.cpu() for name, value in problem.upstream.items()},
        )
        exact = space.dtype == "float64"
        # In other dtypes this also checks the certificate of the device's reference, on which the search relied.
        truth = evaluate(op, host if exact else problem, {space.result: space.fmt})[space.result]
        got, truth = measured.results[space.result].cpu(), truth.cpu()
        by = JudgedBy(op, host, space.result, truth, space.fmt, space.kernel.policy, floor=space.floor)
        return _Measured(case, got, by.with_noise_again(got))

    def alone(self, case: Case) -> Find:
        """Runs a case of copies and returns its worst element."""
        seen = self.measured(case)
        outcome = judge_by(seen.by, seen.got, effort=Effort(keep=1))
        index = outcome.tallies[0].leaders[0].place
        return self.find(seen, index, outcome.exact[index], alone=True)

    def as_seen(self, case: Case, member: Elite) -> Find:
        """Judges the element with the bits that the search saw beside other candidates."""
        seen, index = self.measured(case), member.element
        by, fmt = seen.by, seen.by.fmt
        got = seen.got.clone().reshape(-1)
        got[index] = from_bits(torch.tensor([member.got]), fmt)[0]
        got = got.reshape(seen.got.shape)
        point = by.op.points(by.problem, by.result, [index])[0]
        near = by.truth.for_result(got)
        known, point = partial(near.interval, index), decided(point, by.truth, near, index)
        judged = judge_known(point, known, fmt, fmt.unsigned(member.got), both=True, policy=by.policy)
        return self.find(replace(seen, got=got), index, judged, alone=False)

    def find(self, seen: _Measured, index: int, judged: Judged, *, alone: bool) -> Find:
        """Makes a Find of one judged element."""
        by, case = seen.by, seen.case
        error = by.error(judged, index)
        scaled = None if by.unit is None else error
        origin = Origin.here(self.target, case.to_json(), by.result, index)
        shown = None if by.op.gate_of(by.result) == "plain" else scaled
        worst = worst_element(by.op, by.problem, seen.got, judged, origin, shown)
        return Find(abs(error), judged.ulp, scaled, judged, case, index, worst, alone)
