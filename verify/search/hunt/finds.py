"""What a hunt may say: its worst candidates run again as cases of their own, and judged in exact arithmetic.

The search trusts the float64 reference; nothing that it found is reported for that alone. Every member of the
elite becomes a case that spells out its bits, runs alone (and, if the error does not show, in the company of
copies of itself), and is judged by both exact routes. An error that shows only beside other candidates is
judged from the bits that the call returned, and said to be so: results then depend on their neighbours.
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
from verify.measure.judge import Effort, JudgedBy, judge_by, with_noise_again
from verify.ops.op import Problem
from verify.records.record import Origin, Worst
from verify.search.hunt.search import Elite
from verify.search.hunt.space import SearchSpace
from verify.truth.exact import Judged, judge_known
from verify.truth.fast import Truth, decided, evaluate
from verify.truth.formats import torch_dtype
from verify.truth.ulp import from_bits

_SAME = 1.0 - 1e-6  # a repeated error may differ from the searched one by the width of the fast truth


@dataclass(frozen=True)
class Find:
    """One candidate with its exact figure, as its case shows it; `error` is the figure that the op gates."""

    error: float
    ulp: float
    scaled: float | None
    judged: Judged
    case: Case
    index: int
    worst: Worst
    alone: bool  # the case reproduces it; False when it was seen beside other candidates only

    @property
    def open(self) -> bool:
        """True if exact arithmetic would have taken too long: `error` is then the middle of an interval."""
        return not self.judged.routes

    @property
    def nan(self) -> bool:
        """NaN where the answer is a number."""
        return self.worst.got == "nan" and self.judged.right_bits is not None and math.isinf(self.ulp)


def confirm(space: SearchSpace, target: str, device: str, elite: list[Elite]) -> list[Find]:
    """Returns the elite, judged exactly, each case once: the worst first, those that stay open last."""
    found: dict[str, Find] = {}
    for member in elite:
        find = _confirm(space, target, device, member)
        found.setdefault(find.case.to_json(), find)
    return sorted(found.values(), key=lambda find: (find.open, -find.error, find.case.to_json()))


def _confirm(space: SearchSpace, target: str, device: str, member: Elite) -> Find:
    best: Find | None = None
    for copies in space.contexts():
        case = space.case(member.candidate, member.shared, copies)
        find = _alone(space, target, device, case)
        if best is None or find.error > best.error:
            best = find
        if best.error >= member.figure * _SAME:
            return best
    assert best is not None
    case = space.case(member.candidate, member.shared, 1)
    seen = _as_seen(space, target, device, case, member)
    return seen if seen.error > best.error else best


def _measured(space: SearchSpace, device: str, case: Case) -> tuple[Tensor, Problem, Truth]:
    """What the kernel gave for a case, the problem and its truth, in the memory of the host.

    Exact arithmetic asks for elements one at a time: from a GPU each would be waited for.
    """
    measured = run_kernel(space.kernel, case, device)
    problem = problem_of(space.kernel.op, case, measured.inputs, measured.upstream, (space.result,))
    host = replace(
        problem,
        inputs={name: None if value is None else value.cpu() for name, value in problem.inputs.items()},
        upstream={name: value.cpu() for name, value in problem.upstream.items()},
    )
    exact = space.dtype == "float64"
    # else the certificate of the reference on the device, which the search relied on, is checked with it
    truth = evaluate(space.kernel.op, host if exact else problem, {space.result: space.fmt})[space.result]
    got, truth = measured.results[space.result].cpu(), truth.cpu()
    return got, host, with_noise_again(space.kernel.op, host, space.result, got, truth, space.fmt)


def _alone(space: SearchSpace, target: str, device: str, case: Case) -> Find:
    """The worst element of a case of copies."""
    got, problem, truth = _measured(space, device, case)
    kernel = space.kernel
    by = JudgedBy(kernel.op, problem, space.result, truth, space.fmt, kernel.policy, floor=space.floor)
    outcome = judge_by(by, got, effort=Effort(keep=1))
    index = outcome.tallies[0].leaders[0].place
    return _find(space, target, case, problem, got, truth, index, outcome.exact[index], alone=True)


def _as_seen(space: SearchSpace, target: str, device: str, case: Case, member: Elite) -> Find:
    """The element with the bits that it had among other candidates."""
    measured, problem, truth = _measured(space, device, case)
    got = measured.clone().reshape(-1)
    bits = torch.tensor([_signed(member.got, space.fmt.bits)], dtype=torch.int64)
    got[member.element] = from_bits(bits, space.fmt).to(torch_dtype(space.fmt))[0]
    got = got.reshape(measured.shape)
    point = space.kernel.op.points(problem, space.result, [member.element])[0]
    near = truth.for_result(got)
    known, point = partial(near.interval, member.element), decided(point, truth, near, member.element)
    judged = judge_known(point, known, space.fmt, member.got, both=True, policy=space.kernel.policy)
    return _find(space, target, case, problem, got, truth, member.element, judged, alone=False)


def _signed(bits: int, width: int) -> int:
    return bits - (1 << 64) if width == 64 and bits >> 63 else bits


def _find(
    space: SearchSpace,
    target: str,
    case: Case,
    problem: Problem,
    got: torch.Tensor,
    truth: Truth,
    index: int,
    judged: Judged,
    *,
    alone: bool,
) -> Find:
    scaled = truth.figure(judged, index, space.fmt, space.kernel.op.gate_of(space.result), space.floor)
    origin = Origin(target, case.to_json(), space.result, index)
    worst = worst_element(space.kernel.op, problem, got, judged, origin, scaled)
    error = abs(judged.ulp if scaled is None else scaled)
    return Find(error, judged.ulp, scaled, judged, case, index, worst, alone)
