"""Runs one hunt from start to record: searches, confirms, and reports the outcome as a `Result` with source "hunt".

The search trusts the float64 reference, so its figures are not reported. Each member of the elite becomes a case that
spells out its bits. The case runs alone; if the error does not show, it runs among copies of itself. Both exact routes
judge it, as in a replay. If an error shows only beside other candidates, the bits of that call are judged, and a note
says that results depend on their neighbours.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import msgspec
import torch

from verify.backends import Backend
from verify.cases import Case
from verify.cases.case import case_of, fingerprint, meaning_of
from verify.declare.declaration import Kernel
from verify.diagnose.replay import judge_element, worst_index
from verify.measure.call import Measured, run_kernel
from verify.measure.tally import Maximum
from verify.records.figure import UNIT, shown
from verify.records.record import INTEGERS, Basis, Result, ResultStatus, Worst, number, replay_command, value_of
from verify.search.hunt.requests import Hunt, Settings
from verify.search.hunt.search import Elite, Search, population_of
from verify.search.hunt.space import SearchSpace, space_of
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


KEEP, CHARACTERS = 5, 3_000  # the most finds of a record, and the most characters of their replay commands


@dataclass(frozen=True)
class Hunted:
    """Holds a result for the record, and further facts that the record does not keep."""

    result: Result
    finds: list[Find]
    search: Search
    notes: list[str]


def hunt(
    kernel: Kernel,
    target: str,
    backend: Backend,
    what: Hunt,
    settings: Settings,
    *,
    watch: Callable[[Search], None] = lambda search: None,
    stop: Callable[[], bool] = lambda: False,
) -> Hunted:
    """Searches for the worst input of one result, and judges the finds exactly."""
    settings.check()
    largest = kernel.largest.get(what.dtype) if settings.largest is None else settings.largest
    space = space_of(kernel, what.dtype, what.result, backend.device, width=settings.width, largest=largest)
    found = Search(
        space,
        settings,
        # Exact arithmetic reads one element at a time. On a GPU it would wait for each, longer if processes share the
        # GPU.
        device="cpu" if space.dtype == "float64" else backend.device,
        kernel_device=backend.device,
        population=settings.population or population_of(space, backend.scale),
    )
    found.run(watch, stop)
    finds = confirm(space, target, backend.device, found.elite())
    return Hunted(_result(found, finds), finds, found, _notes(found, finds))


def _result(found: Search, finds: list[Find]) -> Result:
    """Makes the result of a hunt. Open finds make it undecided, unless another find is wrong."""
    space, kernel, tally = found.space, found.space.kernel, found.tally()
    gate, limit = kernel.op.gate_of(space.result), kernel.limit(space.dtype, space.result)
    proven = [find for find in finds if not find.open]
    left = len(finds) - len(proven)
    tally = msgspec.structs.replace(
        tally,
        undecided=max(tally.undecided, left),
        open=left,
        nan=sum(find.nan for find in proven),
        plain=_largest(find.judged.ulp for find in proven),
        scaled=_largest(find.error for find in proven) if proven and (gate != "plain" or space.floor > 0) else None,
    )
    worst = proven[0].error if proven else 0.0
    status: ResultStatus = "undecided" if left else "ok"
    reason = f"exact arithmetic would have taken too long at {left:,} of {len(finds):,} finds" if left else ""
    # not (x <= limit): a NaN must fail
    if not worst <= limit:
        wrong = f"{proven[0].worst.got} in the place of {proven[0].worst.truth}"
        counts = space.result in kernel.op.integers
        status, reason = "wrong", wrong if counts else _reason(proven[0], limit, gate)
    meaning = f" {meaning_of(kernel.op, case_of(kernel, space.dtype, dims=space.layout.dims))}".rstrip()
    return Result(
        output=space.result,
        dtype=space.dtype,
        basis=Basis(kind="observed", n=found.evaluations, seed=found.settings.seed),
        gate=gate,
        limit=limit,
        ulp_limit=kernel.ulp_limit(space.dtype, space.result) if gate == "noise" else None,
        status=status,
        reason=reason,
        figures=tally.figures(),
        regimes=[],
        histogram=tally.histogram(),
        worst=_kept(proven),
        escalated=len(proven),
        certificate="exact" if space.fmt.name == "float64" else "an interval for every element",
        source="hunt",
        format=INTEGERS if space.result in kernel.op.integers else "",
        properties=fingerprint(kernel, space.result, space.dtype, space=space.sentence + meaning),
    )


def _largest(errors: Iterable[float]) -> Maximum:
    """Returns the maximum of errors that were judged exactly."""
    size = number(max(map(abs, errors), default=0.0))
    return Maximum(size, size)


def _kept(finds: list[Find]) -> list[Worst]:
    """Returns the worst finds, as many as the record keeps. A find spells out whole rows and cannot be shortened."""
    kept = [find.worst for find in finds[:KEEP]]
    while len(kept) > 1 and sum(len(replay_command(worst.origin)) for worst in kept) > CHARACTERS:
        kept.pop()
    return kept


def _reason(find: Find, limit: float, gate: str) -> str:
    if find.nan:
        return "NaN where the exact answer is a number"
    if math.isinf(find.error):
        return "an infinite or unbounded error"
    return f"{shown(find.error)}{UNIT[gate]}, the limit is {limit:g}"


def _notes(found: Search, finds: list[Find]) -> list[str]:
    """Returns remarks for the record: what shares mean, an early stop, and finds that need other inputs beside them."""
    space = found.space
    about = f"{space.result} {space.dtype}"
    searched = space.sentence.removeprefix("hunt: ")
    notes = [f"{about}: searched {searched}; shares and quantiles are of what it tried, most of it near the worst"]
    if found.stopped:
        notes.append(f"{about}: stopped after {found.evaluations:,} evaluations: {found.stopped}")
    axis, dims = space.layout.axis, space.layout.dims
    copies = finds[0].case.dims[axis] // dims[axis] if finds and axis is not None else 1
    if copies > 1 and finds[0].alone:
        notes.append(f"{about}: the worst find shows among {copies} copies of itself, not alone")
    crowd = [find for find in finds if not find.alone]
    if crowd:
        notes.append(
            f"{about}: {len(crowd)} of {len(finds)} finds (up to {shown(max(find.error for find in crowd))}) showed "
            "only beside other inputs: results depend on their neighbours, or on the shape of the call"
        )
    return notes
