"""Makes the record of a sweep: judges the worst elements exactly and adds figures, curve and hard inputs."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

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
from verify.ops.op import Point
from verify.records.figure import LEAST
from verify.records.readings import APART, NONFINITE
from verify.records.record import (
    RESULT_STATUSES,
    Basis,
    Curve,
    Hard,
    KernelRun,
    Origin,
    Result,
    Worst,
    number,
    value_of,
)
from verify.search.sweep.checking import (
    BASELINE,
    format_of,
    gate_of,
    halves,
    judge_at,
    part_of,
    parts_of,
    points_at,
    problem_at,
)
from verify.search.sweep.space import Part, Partial, Space, bits_of_key
from verify.truth.enclosure import Enclosure
from verify.truth.exact import Judged, digits, settle
from verify.truth.formats import Format, power_of_two
from verify.truth.ulp import from_bits

HARD_BITS = 64  # bits of an ulp to which the distance of a hard input from its midpoint is computed


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
    results = [
        _Finished(kernel, space, name, partial, curve=curve).result() for name in wanted if name in partial.parts
    ]
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


def _parts(judging: _Judging) -> dict[PartName, Tally]:
    return {part_of(name): tally for name, tally in judging.regimes.items()}


class _Finished:
    """Makes the record of one result."""

    def __init__(self, kernel: Kernel, space: Space, name: str, partial: Partial, *, curve: bool) -> None:
        self.kernel, self.space, self.name, self.partial = kernel, space, name, partial
        self.part = partial.parts[name]
        self.baseline = partial.parts.get(BASELINE + name)
        self.with_curve = curve
        self.fmt, self.of_result = space.format, format_of(kernel, space, name)
        self.bounds = {item.name: item for item in kernel.op.landmarks.regimes(kernel.op.resolve(kernel.params))}

    def result(self) -> Result:
        """Returns the result for the record."""
        kernel, space = self.kernel, self.space
        found = _Judging(kernel, space, self.name, self.part)
        parts = _parts(found)
        judged = check_limit(kernel, space.dtype, self.name, parts)
        ordinary = self._described(found, found.worst(KEEP if judged.reason else KEEP_RIGHT))
        infinite = self.part.regimes.get(NONFINITE, Tally()).leaders[:KEEP_SPECIAL]
        special = self._described(found, [item for item in infinite if found.judge(item).ulp])
        leaders = [] if kernel.peer else found.worst_of_regimes().items()
        each = [(value_of(x.upper), part_of(name), self._described(found, [x])[0]) for name, x in leaders]
        each.sort(key=lambda entry: -entry[0])
        escalated, certificates = self.part.escalated + len(found.exact), self.part.certificates
        findings = Findings(parts, self.bounds, each, escalated, certificates, format=self.of_result.name)
        peer, baseline_worst = None, list[Worst]()
        if self.baseline is not None:
            other = _Judging(kernel, space, self.name, self.baseline)
            peer = f"torch {torch.__version__}", Findings(_parts(other))
            baseline_worst = self._described(other, other.worst(1))
        covered = self.partial.done == space.chunks
        points = sum(item.n for item in self.part.regimes.values())
        basis = Basis(kind="exhaustive" if covered and points > 1 else "observed", n=points)
        return result_of(
            kernel,
            space.dtype,
            self.name,
            findings,
            judged,
            basis,
            peer,
            # The inputs that the reason names come first.
            worst=[*ordinary, *special] if judged.reason and not judged.only_special else [*special, *ordinary],
            baseline_worst=baseline_worst,
            output=self.name + ("" if space.complete else f" ({self._where()})"),
            properties=fingerprint(kernel, self.name, space.dtype, (), space=space.question()),
            curve=self._curve() if self.with_curve else None,
            source="sweep",
            hardest=self._hardest(),
        )

    def _where(self) -> str:
        if self.space.regime:
            return self.space.regime
        low, high = (bits_of_key(self.fmt, key) for key in (self.space.start, self.space.stop - 1))
        return f"{decimal(self.fmt, low)} to {decimal(self.fmt, high)}"

    def _described(self, judging: _Judging, leaders: list[Leader]) -> list[Worst]:
        return [self._describe(item, judging.judge(item)) for item in leaders]

    def _describe(self, leader: Leader, judged: Judged) -> Worst:
        """Describes an element, with the command that runs the kernel on it alone."""
        problem, (index,) = problem_at(self.kernel, self.space, self.name, [leader.place])
        got = from_bits(torch.tensor([leader.bits], dtype=torch.int64), self.of_result)
        width = halves(self.space, self.name)
        if width == 2:
            got = got.expand(2)
        shape = (1, width) if self.space.shape != "unary" else (1,)
        case = case_of(
            self.kernel,
            self.space.dtype,
            dims=(1,) if self.space.shape == "unary" else (1, 1),
            fill="ones",
            upstream="ones" if self.name.startswith("d") else "",
            values={name: spell(value) for name, value in problem.inputs.items() if value is not None},
        )
        origin = Origin.here(self.space.target, case.to_json(), self.name, index)
        return worst_element(self.kernel.op, problem, got.reshape(shape), judged, origin)

    def _curve(self) -> Curve:
        """Returns the error curve over the operand that decides the regime."""
        edges = edges_for(self.kernel.op, self.kernel.op.resolve(self.kernel.params), self.fmt)
        operand = deciding_operand(self.kernel.op) or gate_of(self.kernel.op)
        baseline = None if self.baseline is None else self.baseline.curve
        return recorded(operand, self.fmt, edges, self.part.curve, baseline)

    def _hardest(self) -> list[Hard]:
        """Returns the hardest inputs, sorted by their exact distance from a midpoint."""
        places = [place for _, place in self.part.hardest]
        if not places or not self.space.hardest:
            return []
        points = points_at(self.kernel, self.space, self.name, places)
        found = sorted(
            (from_midpoint(point, self.of_result), place) for point, place in zip(points, places, strict=True)
        )
        hard = []
        for distance, place in found[: self.space.hardest]:
            bits = bits_of_key(self.fmt, place)
            text = f"{decimal(self.fmt, bits)} ({self.fmt.hex(bits)})"
            exact = points_at(self.kernel, self.space, self.name, [place])[0]
            hard.append(
                Hard(
                    inputs={self.kernel.op.operands[0].name: text},
                    truth=digits(exact),
                    distance=number(float(distance)),
                )
            )
        return hard


class _Judging:
    """Holds the tallies of one result. Their maxima are judged exactly where that can change a figure."""

    def __init__(self, kernel: Kernel, space: Space, name: str, part: Part) -> None:
        self.kernel, self.space, self.name, self.part = kernel, space, name, part
        self.exact: dict[int, Judged] = {}
        order = parts_of([item.name for item in kernel.op.landmarks.regimes(kernel.op.resolve(kernel.params))])
        names = sorted(part.regimes, key=lambda item: order.index(item) if item in order else len(order))
        self.regimes = {item: self._settled(part.regimes[item]) for item in names if part.regimes[item].n}

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


def from_midpoint(point: Point, fmt: Format) -> Fraction:
    """Returns the distance of an exact value from the nearest midpoint of two neighbours, in ulp."""

    def narrow(enclosure: Enclosure) -> bool:
        if fmt.ulp_exponent(enclosure.low) != fmt.ulp_exponent(enclosure.high):
            return False
        unit = power_of_two(fmt.ulp_exponent(enclosure.low))
        middle = abs((enclosure.low + enclosure.high) / 2 / unit % 1 - Fraction(1, 2))
        return (enclosure.high - enclosure.low) / unit * (1 << HARD_BITS) <= max(middle, Fraction(1, 1 << 200))

    enclosure, _, _ = settle(point, narrow, both=False)
    value = (enclosure.low + enclosure.high) / 2
    return abs(value / power_of_two(fmt.ulp_exponent(value)) % 1 - Fraction(1, 2))
