"""Evaluates the truth of whole tensors: in float64 with a bound, or exactly as pairs of float64 numbers.

`evaluate` returns a `Truth` for each requested result. For formats up to float32, it takes one vectorised float64 pass
on the device, in intervals. For float64 results, there is no wider hardware format. So every element is evaluated
exactly and stored as value + low.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from verify.errors import BeyondEffort, TruthError
from verify.ops.elements import point_of
from verify.ops.op import Fast, Op, Point, Problem
from verify.records.record import Gate
from verify.truth.enclosure import MINUS_INFINITY, NAN, PLUS_INFINITY, Enclosure, narrow_pair, to_double_double
from verify.truth.exact import START_PRECISION, settle
from verify.truth.formats import Format
from verify.truth.ulp import Yardstick, unit_of_scale, widen

_PAIR_BITS = 130  # accuracy of a value that becomes a pair: the pair holds 107 bits, the others round `low` correctly
_PAIR_FLOOR = 2.0**-968  # below it, the 53 bits of `low` would reach under the smallest subnormal number
_SMALL = 2.0**-30  # a bound up to this part of the largest value means float64's own roundings
_AT_ONCE = 512  # points created in one batch; more would keep the garbage collector busy
_VANISHED = Fraction(1, 1 << 1_300)  # far below every format: only the sign matters, which the reference has


@dataclass(frozen=True)
class Truth(Fast):
    """A reference that results are judged by: each real number lies within `bound` of value + low."""

    low: Tensor | None = None  # None: zero
    certificate: str = ""  # the origin of the bound, in words

    @staticmethod
    def of(reference: Fast, certificate: str, **changes: Any) -> Truth:
        """Returns a reference with a bound for every element, and with what exact arithmetic changes in it."""
        held = {each.name: getattr(reference, each.name) for each in fields(reference)}
        return Truth(**{**held, "certificate": certificate, **changes})

    def unit(self, gate: Gate, floor: float) -> Tensor | Yardstick | None:
        """Returns the unit of errors for a gate: the scale, the noise of at least `floor` ULP, or None for ULP.

        With the gate "plain", known noise counts beside ULP.
        """
        if gate == "noise" and self.noise is not None:
            # where noise is zero or not finite, the bound of the truth counts, if that is small beside the result
            noise = self.noise.nan_to_num(0.0, 0.0, 0.0)
            largest = self.value.abs().nan_to_num(0.0, 0.0, 0.0).max() if self.value.numel() else 0.0
            least = torch.where((noise == 0) & (self.bound <= largest * _SMALL), self.bound, noise)
            return Yardstick(least, floor, self.together)
        if gate == "plain" and self.noise is not None and floor > 0 and bool(self.noise.any()):
            return Yardstick(self.noise.nan_to_num(0.0, 0.0, 0.0), floor, beside=True)
        return self.scale if gate == "scaled" else None

    def for_result(self, got: Tensor) -> Truth:
        """Returns the truth to judge a result by: of two right answers, the one nearer to the result."""
        if self.other is None:
            return self
        actual = widen(got.detach()).reshape(self.value.shape)
        closer = (actual - self.other).abs() < (actual - self.value).abs()
        closer |= torch.isnan(self.value) & ~torch.isnan(actual) & ~torch.isnan(self.other)
        low = None if self.low is None else torch.where(closer, 0.0, self.low)
        value = torch.where(closer, self.other, self.value)
        finite = closer & torch.isfinite(value)
        bound = torch.where(finite, torch.maximum(self.bound, value.abs() * 2.0**-50), self.bound)
        return replace(self, value=value, low=low, bound=bound, other=None)

    def at(self, places: Tensor) -> Truth:
        """Returns the truth of some elements, given by flat indices."""
        return self.mapped(lambda each: each.reshape(-1)[places])

    def scale_exponent(self, index: int, fmt: Format) -> int:
        """Returns the exponent of the unit of one element's scaled error."""
        scale, value = (each.reshape(-1)[index : index + 1] for each in (self.scale, self.value))
        return int(unit_of_scale(scale, value, fmt)[0])

    def interval(self, index: int) -> Enclosure:
        """Returns the interval of one element's truth, cut at the largest numbers of float64."""
        largest = sys.float_info.max
        value = float(self.value.reshape(-1)[index])
        if math.isnan(value):
            return NAN
        if math.isinf(value):
            return PLUS_INFINITY if value > 0 else MINUS_INFINITY
        low = Fraction(0 if self.low is None else float(self.low.reshape(-1)[index]))
        bound = Fraction(min(float(self.bound.reshape(-1)[index]), largest))
        return Enclosure(Fraction(value) + low - bound, Fraction(value) + low + bound)


def decided(point: Point, truth: Truth, near: Truth, index: int) -> Point:
    """Returns the point of an element, or the point of its second right value if `near` chose that.

    `near` is `truth.for_result(got)`.
    """
    if truth.other is None:
        return point
    number, other = (float(each.reshape(-1)[index]) for each in (near.value, truth.other))
    if number != other and (not math.isnan(number) or math.isnan(other)):
        return point
    return point_of(number)


def evaluate(op: Op, problem: Problem, formats: dict[str, Format]) -> dict[str, Truth]:
    """Returns the truth of every result in `problem.results`. `formats` maps each to the format it is judged in.

    At ties the problem decides; see `verify.ops.op.chosen`.
    """
    fast = op.fast(problem)
    return {result: truth_of(op, problem, result, fast[result], formats[result]) for result in problem.results}


def truth_of(op: Op, problem: Problem, result: str, reference: Fast, fmt: Format) -> Truth:
    """Returns the truth of one result, given its reference.

    Evaluates elements exactly if the reference has no bound for them, or if the result is float64, which is slow. Uses
    no GPU if the problem and the reference are in host memory.
    """
    reference = op.meaning.looked_up(problem, result, reference)
    known = not bool(reference.bound.any())  # true for integers
    if fmt.name == "float64" and not known:
        return _evaluate_exactly(op, problem, result, reference)
    scale = reference.scale if reference.root is None or fmt.bits != 16 else reference.root
    return Truth.of(reference, "an interval for every element", scale=scale)


def _evaluate_exactly(op: Op, problem: Problem, result: str, reference: Fast) -> Truth:
    """Evaluates every element exactly, and returns it as a pair of float64 numbers."""
    scale = reference.scale
    count = scale.numel()
    pairs = []
    for first in range(0, count, _AT_ONCE):
        points = op.points(problem, result, range(first, min(first + _AT_ONCE, count)))
        pairs += [_pair(point) for point in points]
    both = torch.tensor(pairs, dtype=torch.float64, device=scale.device).reshape(count, 2)
    value, low = (each.reshape(scale.shape) for each in both.T)
    # the ball of a value below every format contains zero, so the reference gives the sign
    value = torch.where((value == 0) & (low == 0), torch.copysign(value, reference.value), value)
    if reference.other is not None:  # NaN is right beside another value
        value = value.masked_fill(torch.isnan(reference.value) & ~torch.isnan(reference.other), math.nan)
    bound = value.abs() * 2.0**-104
    # for a tiny truth, `low` is rounded to the spacing of subnormal numbers
    bound = torch.where(value.abs() < _PAIR_FLOOR, bound + 2.0**-1074, bound)
    bound = torch.where(~torch.isfinite(value) & (low == 0), 0.0, bound)
    return Truth.of(reference, "exact", value=value, low=low, bound=bound)


def _pair(point: Point) -> tuple[float, float]:
    """Returns the exact value as (high, low). Most values need a single ball."""
    ball = point.arb(START_PRECISION)
    if (pair := narrow_pair(ball, _PAIR_BITS)) is not None:
        return pair
    known = Point(point.mp, lambda bits: ball if bits == START_PRECISION else point.arb(bits))
    return to_double_double(_narrow_enclosure(known))


def _narrow_enclosure(point: Point, span: tuple[Fraction, Fraction] | None = None) -> Enclosure:
    """Returns an enclosure that is narrow enough for a pair of float64, or wholly inside or outside `span`."""

    def narrow(enclosure: Enclosure) -> bool:
        if enclosure.is_narrow(_PAIR_BITS) or enclosure.is_exact:
            return True
        if span is not None and (_is_inside(enclosure, span) or enclosure.high < span[0] or enclosure.low > span[1]):
            return True
        return max(abs(enclosure.low), abs(enclosure.high)) <= _VANISHED

    return settle(point, narrow, both=False)[0]


def _is_inside(enclosure: Enclosure, span: tuple[Fraction, Fraction]) -> bool:
    return enclosure.kind == "real" and span[0] <= enclosure.low and enclosure.high <= span[1]


def check_bound(points: Sequence[Point], truth: Truth, indices: Sequence[int]) -> None:
    """Raises TruthError if the exact value of a sampled element is outside the bound of the truth."""
    flat_value, flat_bound = truth.value.reshape(-1), truth.bound.reshape(-1)
    for point, index in zip(points, indices, strict=True):
        if truth.unknown is not None and bool(truth.unknown.reshape(-1)[index]):
            continue
        value, bound = float(flat_value[index]), float(flat_bound[index])
        if math.isinf(bound):  # nothing to check: the reference does not know the value at all
            continue
        if math.isnan(value) and truth.other is not None and not math.isnan(float(truth.other.reshape(-1)[index])):
            continue  # two values are right
        # A truth that cancels to zero never has a narrow enclosure. It suffices that the enclosure lies in this span.
        span = None
        if math.isfinite(value):
            span = Fraction(value) - Fraction(bound), Fraction(value) + Fraction(bound)
        try:
            enclosure = _narrow_enclosure(point, span)
        except BeyondEffort:
            continue
        if span is not None and _is_inside(enclosure, span):
            continue
        high, low = to_double_double(enclosure)
        if value != value and high != high:
            continue
        if value == high:
            continue
        if not abs((value - high) - low) <= bound:
            raise TruthError(
                f"the fast reference gives {value!r}, the exact value is {high!r}: further apart than the "
                f"bound {bound:.3e} of its interval"
            )
