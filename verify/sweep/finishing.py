"""From what was counted to what the record says: the worst elements judged exactly, figures, curve, hard inputs."""

from __future__ import annotations

import math
from fractions import Fraction

import torch

from verify.cases import Case
from verify.cases.explicit import spell
from verify.cases.fingerprint import fingerprint
from verify.cases.regimes import NONFINITE, deciding_operand
from verify.declare.declaration import Kernel
from verify.measure.curve import Envelope, edges_for, recorded
from verify.measure.element import decimal, describe
from verify.measure.kernel import KEEP_RIGHT, KEEP_SPECIAL, judged_upper, only_at_special, over_the_limit
from verify.measure.tally import KEEP, Tally
from verify.ops.op import Point, Regime
from verify.records.record import Basis, Curve, Hard, KernelRun, RegimeFigures, Result, Worst, number, value_of
from verify.sweep.exactly import halves, judge_at, points_at, problem_at
from verify.sweep.partial import Bucket, Leader, Part, Partial
from verify.sweep.space import Space, bits_of_key
from verify.sweep.subject import gate_of, points_of
from verify.sweep.torch_route import BASELINE
from verify.truth.enclosure import Enclosure
from verify.truth.exact import Judged, digits, settle
from verify.truth.figure import LEAST
from verify.truth.formats import Format, power_of_two
from verify.truth.ulp import from_bits

HARD_BITS = 64  # the distance of a hard input from its midpoint is known to so many bits of an ulp


def finish(
    kernel: Kernel,
    space: Space,
    partial: Partial,
    *,
    seconds: float = 0.0,
    curve: bool = True,
    only: tuple[str, ...] | None = None,
) -> KernelRun:
    """The record of one kernel over one space. Without all chunks its results are observed, not exhaustive.

    `only` leaves out all other results, and looks at no other part.
    """
    wanted = space.results if only is None else only
    results = [
        _Finished(kernel, space, name, partial, curve=curve).result() for name in wanted if name in partial.parts
    ]
    wrong = any(result.status == "wrong" for result in results)
    return KernelRun(
        name=kernel.name,
        target=space.target,
        op=kernel.op.name,
        params=dict(kernel.params),
        promise=kernel.promise,
        status="wrong" if wrong else "ok",
        results=results,
        peer=kernel.peer,
        notes=list(partial.notes),
        seconds=round(seconds, 3),
    )


class _Finished:
    """One result on its way into the record."""

    def __init__(self, kernel: Kernel, space: Space, name: str, partial: Partial, *, curve: bool) -> None:
        self.kernel, self.space, self.name, self.partial = kernel, space, name, partial
        self.part = partial.parts[name]
        self.theirs = partial.parts.get(BASELINE + name)
        self.with_curve = curve
        self.fmt = space.format
        self.bounds = {item.name: item for item in kernel.op.regimes(kernel.op.resolve(kernel.params))}

    def result(self) -> Result:
        """The whole result."""
        ours = _Judging(self.kernel, self.space, self.name, self.part)
        total, special = ours.total(), ours.regimes.get(NONFINITE, Tally())
        figures = total.figures()
        limit, gate = self.kernel.limit(self.space.dtype), self.kernel.op.gate
        judged = judged_upper(figures, gate)
        reason = ""
        # not (x <= limit): a NaN must fail
        if not judged <= limit:
            reason = over_the_limit(figures, judged, limit, gate)
        elif special.nonfinite:
            reason = only_at_special(special.nonfinite)
        worst = self._worst(ours, KEEP if reason else KEEP_RIGHT)
        strange = self._strange(ours)
        peer = None if self.theirs is None else _Judging(self.kernel, self.space, self.name, self.theirs)
        covered = self.partial.done == self.space.chunks
        points = sum(bucket.n for bucket in self.part.regimes.values())
        return Result(
            output=self.name + ("" if self.space.complete else f" ({self._where()})"),
            dtype=self.space.dtype,
            basis=Basis(kind="exhaustive" if covered else "observed", n=points),
            gate=gate,
            limit=limit,
            status="wrong" if reason else "ok",
            figures=figures,
            regimes=[self._regime(name, tally, ours, peer) for name, tally in ours.regimes.items()],
            histogram=total.histogram(),
            worst=[*strange, *worst] if judged <= limit else [*worst, *strange],
            escalated=self.part.escalated + len(ours.exact),
            certificate="; ".join(self.part.certificates),
            reason=reason,
            baseline=None if peer is None else peer.total().figures(),
            baseline_name="" if peer is None else f"torch {torch.__version__}",
            baseline_worst=[] if peer is None else self._worst(peer, 1),
            source="sweep",
            properties=fingerprint(self.kernel, self.name, self.space.dtype, (), space=self.space.question()),
            curve=self._curve() if self.with_curve else None,
            hardest=self._hardest(),
        )

    def _where(self) -> str:
        if self.space.regime:
            return self.space.regime
        low, high = (bits_of_key(self.fmt, key) for key in (self.space.start, self.space.stop - 1))
        return f"{decimal(self.fmt, low)} to {decimal(self.fmt, high)}"

    def _regime(self, name: str, tally: Tally, ours: _Judging, peer: _Judging | None) -> RegimeFigures:
        bounds = self.bounds.get(name, Regime(name, math.nan, math.nan))
        theirs = None if peer is None else peer.regimes.get(name)
        return RegimeFigures(
            name=name,
            low=bounds.low if math.isfinite(bounds.low) else None,
            high=bounds.high if math.isfinite(bounds.high) else None,
            figures=tally.figures(),
            baseline=None if theirs is None else theirs.figures(),
            operand=deciding_operand(self.kernel.op),
            worst=None if self.kernel.peer else self._worst_in(ours, name),
        )

    def _worst_in(self, judging: _Judging, regime: str) -> Worst | None:
        """The worst element of one regime, where it is further off than a correctly rounded result may be."""
        settled = [item for item in self.part.regimes[regime].leaders if item.place in judging.exact]
        worst = min(settled, key=lambda item: (-abs(judging.judge(item).ulp), item.place), default=None)
        if worst is None or abs(judging.judge(worst).ulp) <= LEAST:
            return None
        return self._describe(worst, judging.judge(worst))

    def _worst(self, judging: _Judging, keep: int) -> list[Worst]:
        """The worst elements of ordinary inputs, each judged by both exact routes."""
        found = judging.leaders(keep)
        return [self._describe(item, judging.judge(item)) for item in found]

    def _strange(self, judging: _Judging) -> list[Worst]:
        """The worst of infinite and NaN inputs."""
        bucket = self.part.regimes.get(NONFINITE)
        leaders = [] if bucket is None else bucket.leaders[:KEEP_SPECIAL]
        judged = [(item, judging.judge(item)) for item in leaders]
        return [self._describe(item, verdict) for item, verdict in judged if verdict.ulp]

    def _describe(self, leader: Leader, judged: Judged) -> Worst:
        """The element with the command that runs the kernel on it alone."""
        problem, (index,) = problem_at(self.kernel, self.space, self.name, [leader.place])
        got = from_bits(torch.tensor([leader.bits], dtype=torch.int64), self.fmt)
        width = halves(self.space, self.name)
        if width == 2:
            got = got.expand(2)
        shape = (1, width) if self.space.shape != "unary" else (1,)
        case = Case(
            dtype=self.space.dtype,
            dims=(1,) if self.space.shape == "unary" else (1, 1),
            fill="ones",
            params=dict(self.kernel.params),
            upstream="ones" if self.name.startswith("d") else "",
            absent=self.kernel.absent,
            values={name: spell(value) for name, value in problem.inputs.items() if value is not None},
        )
        return describe(
            self.kernel.op,
            case,
            problem,
            self.name,
            got.reshape(shape),
            index,
            judged,
            self.space.target,
            scaled=None,
        )

    def _curve(self) -> Curve:
        """The envelope over the operand that decides the regime."""
        edges = edges_for(self.kernel.op, self.kernel.op.resolve(self.kernel.params), self.fmt)
        theirs = None if self.theirs is None else self._envelope(self.theirs, edges)
        operand = deciding_operand(self.kernel.op) or gate_of(self.kernel.op)
        return recorded(operand, self.fmt, self._envelope(self.part, edges), theirs)

    def _envelope(self, part: Part, edges: tuple[float, ...]) -> Envelope:
        bins = {item.bin: item for item in part.curve}
        size = len(edges) - 1
        places = [bins[place].place if place in bins else 0 for place in range(size)]
        points = [point for point, _ in points_of(self.space, self.name, places)]
        return Envelope(
            edges,
            tuple(bins[place].count if place in bins else 0 for place in range(size)),
            tuple(value_of(bins[place].ulp) if place in bins else 0.0 for place in range(size)),
            tuple(bits_of_key(self.fmt, point // self.space.per_key) for point in points),
        )

    def _hardest(self) -> list[Hard]:
        """The candidates put in order by their exact distance from a midpoint."""
        places = [place for _, place in self.part.hardest]
        if not places or not self.space.hardest:
            return []
        points = points_at(self.kernel, self.space, self.name, places)
        found = sorted((from_midpoint(point, self.fmt), place) for point, place in zip(points, places, strict=True))
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
    """The buckets of one part with their maxima judged exactly, as far as that can change anything."""

    def __init__(self, kernel: Kernel, space: Space, name: str, part: Part) -> None:
        self.kernel, self.space, self.name, self.part = kernel, space, name, part
        self.exact: dict[int, Judged] = {}
        order = [item.name for item in kernel.op.regimes(kernel.op.resolve(kernel.params))]
        names = sorted(part.regimes, key=lambda item: order.index(item) if item in order else len(order))
        self.regimes = {item: self._settled(part.regimes[item]) for item in names if part.regimes[item].n}

    def judge(self, leader: Leader) -> Judged:
        """The exact verdict by both routes, once."""
        if leader.place not in self.exact:
            judged = judge_at(self.kernel, self.space, self.name, [leader.place], [leader.bits], both=True)
            self.exact[leader.place] = judged[0]
        return self.exact[leader.place]

    def _settled(self, bucket: Bucket) -> Tally:
        """The bucket's tally: its maximum is exact, `upper` covers whatever was not judged."""
        tally = bucket.tally()
        highest = 0.0
        for leader in bucket.leaders:
            if value_of(leader.upper) < highest:
                break
            highest = max(highest, abs(self.judge(leader).ulp))
        tally.maximum = highest
        tally.upper = max(highest, value_of(bucket.rest))
        return tally

    def total(self) -> Tally:
        """All ordinary inputs together."""
        merged = Tally()
        for name, item in self.regimes.items():
            if name != NONFINITE:
                merged = merged.merge(item)
        return merged

    def leaders(self, keep: int) -> list[Leader]:
        """The worst elements of ordinary inputs, the exactly worst first."""
        candidates = [
            item for name, bucket in self.part.regimes.items() if name != NONFINITE for item in bucket.leaders
        ]
        chosen = sorted(candidates, key=lambda item: item.order)[:keep]
        settled = [item for item in candidates if item.place in self.exact]
        both = {item.place: item for item in [*chosen, *settled]}.values()
        ranked = sorted(both, key=lambda item: (-abs(self.judge(item).ulp), item.place))
        return ranked[:keep]


def from_midpoint(point: Point, fmt: Format) -> Fraction:
    """Distance of an exact value from the nearest midpoint of two neighbours, in ulp."""

    def narrow(enclosure: Enclosure) -> bool:
        if fmt.ulp_exponent(enclosure.low) != fmt.ulp_exponent(enclosure.high):
            return False
        unit = power_of_two(fmt.ulp_exponent(enclosure.low))
        middle = abs((enclosure.low + enclosure.high) / 2 / unit % 1 - Fraction(1, 2))
        return (enclosure.high - enclosure.low) / unit * (1 << HARD_BITS) <= max(middle, Fraction(1, 1 << 200))

    enclosure, _, _ = settle(point, narrow, both=False)
    value = (enclosure.low + enclosure.high) / 2
    return abs(value / power_of_two(fmt.ulp_exponent(value)) % 1 - Fraction(1, 2))
