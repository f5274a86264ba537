"""Makes the record of a sweep: judges the worst elements exactly and adds figures, the curve."""

from collections.abc import Iterable

import msgspec
import torch

from verify.cases import case_of
from verify.cases.case import fingerprint, spell
from verify.cases.classes import deciding_operand
from verify.declare.declaration import Kernel
from verify.measure.curve import edges_for, recorded
from verify.measure.element import decimal, worst_element
from verify.measure.findings import KEEP_SPECIAL, Findings, PartName
from verify.measure.result import KEEP_RIGHT, check_limit, result_of
from verify.measure.tally import KEEP, Leader, Maximum, Tally, worst
from verify.records.figure import LEAST
from verify.records.readings import APART, NONFINITE
from verify.records.record import RESULT_STATUSES, Basis, KernelRun, Origin, Result, Worst, number, value_of
from verify.search.sweep.checking import BASELINE, format_of, gate_of, halves, judge_at, part_of, parts_of, problem_at
from verify.search.sweep.space import Part, Partial, Space, bits_of_key
from verify.truth.exact import Judged
from verify.truth.ulp import from_bits


def finish(
    kernel: Kernel,
    space: Space,
    partial: Partial,
    *,
    seconds: float = 0.0,
    curve: bool = True,
    only: tuple[str, ...] | None = None,
) -> KernelRun:
    """Returns the record of one kernel over one space. If chunks are missing, its results are observed, not exhaustive.

    `only` names the results to record; the others are not read.
    """
    wanted = space.results if only is None else only
    results = [_result(kernel, space, name, partial, curve=curve) for name in wanted if name in partial.parts]
    return KernelRun(
        name=kernel.name,
        target=space.target,
        op=kernel.op.name,
        params=dict(kernel.params),
        promise=kernel.promise,
        definition=kernel.op.definition,
        status=max((result.status for result in results), key=RESULT_STATUSES.index, default="ok"),
        results=results,
        peer=kernel.peer,
        notes=list(partial.notes),
        seconds=round(seconds, 3),
    )


def _result(kernel: Kernel, space: Space, name: str, partial: Partial, *, curve: bool) -> Result:
    """Returns one result for the record."""
    op, fmt, part, beside = kernel.op, space.format, partial.parts[name], partial.parts.get(BASELINE + name)
    found = _Judging(kernel, space, name, part)
    judged = check_limit(kernel, space.dtype, name, found.parts)
    ordinary = found.described(found.worst(KEEP if judged.reason else KEEP_RIGHT))
    infinite = part.regimes.get(NONFINITE, Tally()).leaders[:KEEP_SPECIAL]
    special = found.described([item for item in infinite if found.judge(item).ulp])
    leaders = [] if kernel.peer else found.worst_of_regimes().items()
    each = [(value_of(x.upper), part_of(label), found.described([x])[0]) for label, x in leaders]
    each.sort(key=lambda entry: -entry[0])
    bounds = {item.name: item for item in op.landmarks.regimes(op.resolve(kernel.params))}
    escalated, of_result = part.escalated + len(found.exact), format_of(kernel, space, name).name
    findings = Findings(found.parts, bounds, each, escalated, part.certificates, format=of_result)
    peer, baseline_worst = None, list[Worst]()
    if beside is not None:
        other = _Judging(kernel, space, name, beside)
        peer = f"torch {torch.__version__}", Findings(other.parts)
        baseline_worst = other.described(other.worst(1))
    points = sum(item.n for item in part.regimes.values())
    whole = partial.done == space.chunks and points > 1
    where = ""
    if not space.complete:
        where = " to ".join(decimal(fmt, bits_of_key(fmt, key)) for key in (space.start, space.stop - 1))
    edges, of_curve = edges_for(op, op.resolve(kernel.params), fmt), deciding_operand(op) or gate_of(op)
    return result_of(
        kernel,
        space.dtype,
        name,
        findings,
        judged,
        Basis(kind="exhaustive" if whole else "observed", n=points),
        peer,
        # The inputs that the reason names come first.
        worst=[*ordinary, *special] if judged.reason and not judged.only_special else [*special, *ordinary],
        baseline_worst=baseline_worst,
        output=name if space.complete else f"{name} ({where})",
        properties=fingerprint(kernel, name, space.dtype, (), space=space.question()),
        curve=recorded(of_curve, fmt, edges, part.curve, beside.curve if beside else None) if curve else None,
        source="sweep",
    )


class _Judging:
    """Holds the tallies of one result. Their maxima are judged exactly where that can change a figure."""

    def __init__(self, kernel: Kernel, space: Space, name: str, part: Part) -> None:
        self.kernel, self.space, self.name, self.part = kernel, space, name, part
        self.exact: dict[int, Judged] = {}
        order = parts_of([item.name for item in kernel.op.landmarks.regimes(kernel.op.resolve(kernel.params))])
        names = sorted(part.regimes, key=lambda item: order.index(item) if item in order else len(order))
        self.regimes = {item: self._settled(part.regimes[item]) for item in names if part.regimes[item].n}
        self.parts: dict[PartName, Tally] = {part_of(item): tally for item, tally in self.regimes.items()}

    def described(self, leaders: list[Leader]) -> list[Worst]:
        """Describes elements, each with the command that runs the kernel on it alone."""
        kernel, space, found = self.kernel, self.space, list[Worst]()
        unary, width = space.shape == "unary", halves(space, self.name)
        for leader in leaders:
            problem, (index,) = problem_at(kernel, space, self.name, [leader.place])
            got = from_bits(torch.tensor([leader.bits], dtype=torch.int64), format_of(kernel, space, self.name))
            case = case_of(
                kernel,
                space.dtype,
                dims=(1,) if unary else (1, 1),
                fill="ones",
                upstream="ones" if self.name.startswith("d") else "",
                values={name: spell(value) for name, value in problem.inputs.items() if value is not None},
            )
            origin = Origin.here(space.target, case.to_json(), self.name, index)
            got = got.expand(width).reshape((1,) if unary else (1, width))
            found.append(worst_element(kernel.op, problem, got, self.judge(leader), origin))
        return found

    def judge(self, leader: Leader) -> Judged:
        """Returns the exact verdict by both routes. Computes it once."""
        if leader.place not in self.exact:
            judged = judge_at(self.kernel, self.space, self.name, [leader.place], [leader.bits], both=True)
            self.exact[leader.place] = judged[0]
        return self.exact[leader.place]

    def _settled(self, tally: Tally) -> Tally:
        """Returns the tally with an exact maximum, whose upper end covers every element that was not judged."""
        highest = 0.0
        for leader in tally.leaders:
            if value_of(leader.upper) < highest:
                break
            highest = max(highest, abs(self.judge(leader).ulp))
        upper = max(highest, value_of(tally.rest))
        whole = Maximum(number(highest), number(upper))
        # less noise, an error decides by its interval: no exact arithmetic knows the noise
        return tally if tally.scaled is not None else msgspec.structs.replace(tally, plain=whole)

    def worst(self, keep: int) -> list[Leader]:
        """Returns the `keep` worst elements of finite inputs within the promised magnitude, in exact order."""
        candidates = [item for name, tally in self.part.regimes.items() if name not in APART for item in tally.leaders]
        judged = [item for item in candidates if item.place in self.exact]
        both = {item.place: item for item in [*worst(candidates, keep), *judged]}
        return self._ranked(both.values())[:keep]

    def worst_of_regimes(self) -> dict[str, Leader]:
        """Returns the worst judged element of each part, if its error exceeds that of correct rounding."""
        found = {}
        for name, tally in self.regimes.items():
            ranked = self._ranked(item for item in tally.leaders if item.place in self.exact)
            if ranked and abs(self.judge(ranked[0]).ulp) > LEAST:
                found[name] = ranked[0]
        return found

    def _ranked(self, leaders: Iterable[Leader]) -> list[Leader]:
        return sorted(leaders, key=lambda item: (-abs(self.judge(item).ulp), item.place))
