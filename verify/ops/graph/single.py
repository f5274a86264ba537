"""Evaluates single elements of a program's results to any precision: in Arb, which gives enclosures, and in mpmath.

`like.py` and `baseline.py` create an `ElementEvaluator` for the elements of a result that judging needs. It evaluates
them on request and in batches: the first request at some precision also evaluates other elements that probably need
this precision. The values of the program's steps are cached, because elements share them. A budget limits how many step
elements each result may evaluate. Beyond it, BeyondEffort is raised.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import flint
import torch
from mpmath import mp
from torch import Tensor

from verify.errors import BeyondEffort
from verify.ops.elements import GUARD, mp_bits, to_arb
from verify.ops.graph.arithmetic import Arithmetic, Balls, Decimals
from verify.ops.graph.program import Elements, Needed, Program
from verify.ops.graph.steps import Run
from verify.ops.op import Point

_PRECISIONS = (160, 640, 2_560)  # bits tried in turn by `enclosed`
_MIN_BITS = 160  # fewest bits of an evaluation; judging starts with as many, so that the cache serves it
_SHARP = 60  # relative accuracy of a ball, in bits, that settles nearly every decision
_VANISHED = flint.arb(2) ** -1_300  # below the smallest number of every format
_BATCH = 1024  # elements of a batch
_LIMIT = 1 << 14  # bits at which a ball without relative accuracy counts as zero
_MAX_CACHED = 1 << 22  # most cached elements, over all steps, at one precision
_EFFORT = 1 << 19  # step elements that the exact values of one result may cost; each takes 1 or 2 microseconds
_CHEAP = 1 << 12  # step elements of one exact value that cost nothing: a row of a norm, a window of a convolution

FAR = (2.0**200, 2.0**400)  # mean an infinity
_GROWS = 2.0**50


@dataclass
class Shared:
    """Holds the cache and the budget that all exact values of one problem share.

    The budget counts evaluated elements, not time. So the same requests in the same order are refused on any machine.
    """

    share: float = 1.0  # budget of each result, as a multiple of `_EFFORT`
    first: float = 0.0  # the same for its first element, if that is more
    slices: dict[tuple[type[Arithmetic], int], Elements] = field(default_factory=dict)  # by arithmetic and bits
    spent: dict[str, float] = field(default_factory=dict)  # step elements charged to each result
    refused: set[str] = field(default_factory=set)  # results with an element beyond the budget
    # such elements: their result, index and cache. To find what one needs takes milliseconds
    beyond: set[tuple[str, int, int]] = field(default_factory=set)


@dataclass(eq=False)
class ElementEvaluator:
    """Evaluates the requested elements of one result, in batches.

    The methods take a `position` in `indices`.
    """

    program: Program
    run: Run
    result: str
    indices: list[int]  # flat, into the result
    shared: Shared
    batch: int = _BATCH  # most elements that a request evaluates
    # by arithmetic and bits: the elements by position, and positions that a batch may still include
    known: dict[tuple[type[Arithmetic], int], dict[int, Any]] = field(default_factory=dict)
    likely: dict[tuple[type[Arithmetic], int], deque[int]] = field(default_factory=dict)

    def ball(self, position: int, bits: int) -> Any:
        """Returns the enclosure of one element: an Arb ball, or a float if it is infinite or NaN."""
        return self._element(position, bits, Balls)

    def enclosure(self, position: int, prec: int) -> Any:
        """Returns the enclosure of one element as an Arb ball in every case."""
        ball = self.ball(position, max(prec, _MIN_BITS))
        if isinstance(ball, float):
            return to_arb(ball)
        # A ball around zero keeps only its size. Its midpoint may be as small as 2^-10^60 beside a radius of 1.
        # Expressing the radius in units of the midpoint would take an integer of 10^60 bits.
        return flint.arb(0, ball.abs_upper()) if ball.is_finite() and ball.contains(0) else ball

    def _element(self, position: int, bits: int, kind: type[Arithmetic]) -> Any:
        """Returns one element. Also evaluates a batch of others that probably need this precision."""
        known = self.known.setdefault((kind, bits), {})
        if position not in known:
            if (kind, bits) not in self.likely:
                coarser = [self.known[kind, fewer] for other, fewer in self.known if other is kind and fewer < bits]
                positions = [n for n in range(len(self.indices)) if all(_is_vague(old.get(n)) for old in coarser)]
                self.likely[kind, bits] = deque(positions)
            likely = self.likely[kind, bits]
            # judging asks mpmath for few of the elements that it asks Arb for
            batch = [likely.popleft() for _ in range(min(self.batch, len(likely)))] if kind is Balls else []
            slices = self.shared.slices.setdefault((kind, bits), {})
            unknown = sorted({position, *(n for n in batch if n not in known)})
            positions, needed = self._affordable(position, unknown, slices)
            arithmetic = kind()
            with arithmetic.bits(bits):
                indices = [self.indices[n] for n in positions]
                values = self.program.elements(self.run, arithmetic, self.result, indices, slices, needed)
                known.update(zip(positions, values, strict=True))
                if sum(map(len, slices.values())) > _MAX_CACHED:
                    slices.clear()
        return known[position]

    def _affordable(self, position: int, batch: list[int], slices: Elements) -> tuple[list[int], Needed]:
        """Charges the budget and returns the positions to evaluate, with the step elements that they need.

        Returns the whole `batch` if the budget allows it, else the one `position`. Raises BeyondEffort if that
        alone exceeds the budget. Later elements of this result are then evaluated only if they are cheap.
        """
        shared, spent = self.shared, self.shared.spent.get(self.result, 0.0)
        refused = self.result in shared.refused
        key = self.result, self.indices[position], id(slices)
        for positions in [] if key in shared.beyond else [[position]] if refused else [batch, [position]]:
            free = _CHEAP * len(positions)
            share = shared.share if spent or len(positions) > 1 else max(shared.share, shared.first)
            most = free + (0 if refused else share * _EFFORT - spent)
            try:
                needed = self.program.places(self.run, self.result, [self.indices[n] for n in positions], slices, most)
            except BeyondEffort:
                continue
            shared.spent[self.result] = spent + max(0, sum(len(wanted) for wanted, _ in needed.values()) - free)
            return positions, needed
        shared.refused.add(self.result)
        shared.beyond.add(key)
        raise BeyondEffort(f"an exact value of {self.result} depends on too many numbers to be evaluated alone")

    def point(self, position: int) -> Point:
        """Returns the exact value of one element, as functions that evaluate it on request."""
        if not self.program.results[self.result].real:

            def whole(kind: type[Arithmetic]) -> float:
                return float(self._element(position, _MIN_BITS, kind))

            return Point(lambda prec: mp.mpf(whole(Decimals)), lambda prec: flint.arb(whole(Balls)))
        return Point(lambda prec: self._decimal(position, prec), lambda prec: self.enclosure(position, prec))

    def _decimal(self, position: int, prec: int) -> Any:
        """Returns an element as an mpf with about `prec` correct bits.

        mpmath does not report cancellation. So Arb balls of growing precision first show how many bits cancel, and how
        many a finite ball takes.
        """
        bits = max(prec, _MIN_BITS)
        while True:
            ball = self.ball(position, bits)
            if isinstance(ball, float):
                lost = 0
                break
            lost = max(0, bits - ball.rel_accuracy_bits())  # an exact ball reports more accuracy than `bits`
            if ball.is_finite() and 2 * lost < bits:
                break
            if ball.is_finite() and abs(ball) < _VANISHED:  # too small for every format, so its digits do not matter
                lost = 0
                break
            if bits >= _LIMIT and ball.is_finite() and bits - lost >= _SHARP:  # many bits cancel, but enough remain
                break
            if bits >= _LIMIT and ball.is_nan() and not self._undefined[self.indices[position]]:
                raise BeyondEffort(f"an exact value of {self.result} is not known at {bits} bits")
            if bits >= _LIMIT and (ball.is_nan() or ball.contains(0)):
                return mp.nan if ball.is_nan() else mp.zero
            bits *= 2
        # with fewer bits than Arb needed for a ball, mpmath may divide by 1 - 1
        bits = -(-max(bits, max(prec, _MIN_BITS) + lost + 2 * GUARD) // 128) * 128
        value = self._element(position, bits, Decimals)
        with mp_bits(bits):
            return mp.mpf(value)

    @cached_property
    def _undefined(self) -> Tensor:
        """True for elements of the whole result that float64 finds undefined.

        NaN of both arithmetics means "not known" elsewhere.
        """
        return torch.isnan(self.program.spans(self.run, [self.result])[self.result].lo).reshape(-1)

    def enclosed(self, position: int) -> tuple[float, float] | None:
        """Returns a float64 number and the largest distance of the real number from it.

        Returns None if Arb finds no finite ball, or only beyond the budget.
        """
        for bits in _PRECISIONS:
            try:
                ball = self.ball(position, bits)
            except BeyondEffort:
                return None
            if isinstance(ball, float):
                return ball, 0.0
            if ball.is_finite() and (ball.rel_accuracy_bits() > _SHARP or bits == _PRECISIONS[-1]):
                middle = float(ball.mid())
                return middle, 0.0 if math.isinf(middle) else abs(middle) * 2.0**-51 + float(ball.rad()) + 2.0**-1074
        return None


def limits_of(program: Program, run: Run, result: str, places: list[int]) -> list[float]:
    """Returns the limit of each element at an infinite operand; NaN if there is none.

    Arb evaluates two large numbers in place of each infinity. The limit is their common value; 0 or an infinity if the
    values shrink or grow without end.
    """
    ends = []
    for size in FAR:
        evaluator = ElementEvaluator(program, far_run(run, size), result, places, Shared())
        ends.append([(evaluator.enclosed(n) or (math.nan, 0.0))[0] for n in range(len(places))])
    return [_limit(near, far) for near, far in zip(*ends, strict=True)]


def far_run(run: Run, size: float) -> Run:
    """Returns a run with a large number in place of each infinity."""

    def finite(leaf: Tensor) -> Tensor:
        wide = leaf.double()
        return torch.where(torch.isinf(wide), torch.full_like(wide, size).copysign(wide), wide)

    return Run({n: finite(leaf) if leaf.is_floating_point() else leaf for n, leaf in run.leaves.items()}, run.device)


def _limit(near: float, far: float) -> float:
    """Returns the limit of a function with these values at 2^200 and 2^400."""
    if abs(far) >= abs(near) * _GROWS and abs(far) >= _GROWS:
        return math.copysign(math.inf, far)
    if abs(far) <= abs(near) / _GROWS and abs(far) <= 1 / _GROWS:
        return 0.0
    return far if abs(far - near) <= abs(far) / _GROWS else math.nan


def _is_vague(ball: Any) -> bool:
    """True if a cached ball is too wide. A missing ball (None) is not: nothing requested it."""
    if ball is None or isinstance(ball, float) or not hasattr(ball, "rel_accuracy_bits"):
        return False
    return not ball.is_finite() or ball.rel_accuracy_bits() < _SHARP
