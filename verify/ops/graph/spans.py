"""Interval arithmetic on float64 tensors. Every operation rounds outwards, so the real number lies inside.

Special intervals of an element:

- both ends are the same infinity: the value is that infinity;
- both ends are NaN: the value is not defined;
- from -inf to inf: unknown, and possibly not defined. No function makes a number of it, so that a bounded one such as
  tanh does not seem to have a value. `verify.ops.graph.single` then decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product as product_of
from typing import Any

import torch
from torch import Tensor

from verify.ops.graph.functions import Function

_EPSILON = 2.0**-52
_TINY = 2.0**-1074
_LARGEST = torch.finfo(torch.float64).max
_SPLITTER = 2.0**27 + 1  # Dekker's constant, which splits a float64 number into two halves
_FEW = 1 << 14  # most elements for which products are tested for exactness
_LOW = 2.0**-968  # a product below it may have lost bits under the smallest subnormal number


@dataclass(frozen=True)
class Span:
    """Encloses a tensor of real numbers: lo <= number <= hi for each element."""

    lo: Tensor
    hi: Tensor

    @property
    def is_point(self) -> bool:
        """True if both ends are the same tensor."""
        return self.lo is self.hi

    def mid(self) -> Tensor:
        """Returns a number inside each interval: NaN if the value is not defined, an infinity if it is infinite."""
        if self.is_point:
            return self.lo
        middle = self.lo * 0.5 + self.hi * 0.5
        open_ended = torch.isinf(middle) & (self.lo != self.hi)
        middle = torch.where(open_ended, torch.where(torch.isinf(self.lo), self.hi, self.lo), middle)
        return torch.where(
            torch.isnan(middle) & (self.lo == -self.hi), 0.0, torch.where(self.lo == self.hi, self.lo, middle)
        )

    def size(self) -> Tensor:
        """Returns the largest magnitude in each interval."""
        return self.lo.abs() if self.is_point else torch.maximum(self.lo.abs(), self.hi.abs())

    def is_zero(self) -> Tensor:
        return (self.lo == 0) & (self.hi == 0)

    def is_infinite(self) -> Tensor:
        return torch.isinf(self.lo) & (self.lo == self.hi)

    def moved(self, move: Callable[[Tensor], Tensor]) -> Span:
        """Applies `move`, which only moves elements, to both ends."""
        lo = move(self.lo)
        return Span(lo, lo if self.is_point else move(self.hi))


def point(values: Tensor) -> Span:
    """Returns intervals of exact numbers."""
    return Span(values, values)


def unknown_of(a: Span) -> Tensor | None:
    """Returns a mask of the unknown elements; None if there are none."""
    unknown = None if a.is_point else (a.lo == -math.inf) & (a.hi == math.inf)
    return unknown if unknown is not None and _any(unknown) else None


def staying_unknown(found: Span, given: Sequence[Any]) -> Span:
    """Returns the interval of a function's results, unknown where an operand is."""
    for each in given:
        if isinstance(each, Span) and (unknown := unknown_of(each)) is not None:
            found = Span(torch.where(unknown, -math.inf, found.lo), torch.where(unknown, math.inf, found.hi))
    return found


def _any(mask: Tensor) -> bool:
    return bool(mask.any())


def two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the rounded sum a + b, and its exact rounding error (Knuth; for any order of magnitudes)."""
    total = a + b
    from_b = total - a
    return total, (a - (total - from_b)) + (b - from_b)


def _product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor | float]:
    """Returns the rounded product, and 1 or 0 for each element as it may be rounded or is exact.

    Returns 1.0 for all if there are many elements.
    """
    product = a * b
    if product.numel() > _FEW:
        return product, 1.0
    parts = []
    for value in (a, b):
        wide = value * _SPLITTER
        high = wide - (wide - value)
        parts.append((high, value - high))
    (a_high, a_low), (b_high, b_low) = parts
    rest = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, (~((rest == 0) & (product.abs() > _LOW) & (product.abs() < 1 / _LOW) | (product == 0))).to(
        product.dtype
    )


def _rounded(lo: Tensor, hi: Tensor, ulps: tuple[Any, Any] | float) -> tuple[Tensor, Tensor]:
    """Moves the ends outwards by an error relative to them, in units of 2^-52. Zero and infinities stay."""
    down_ulps, up_ulps = ulps if isinstance(ulps, tuple) else (ulps, ulps)
    if lo is hi and lo.numel() <= _FEW and isinstance(down_ulps, Tensor) and not _any(down_ulps):
        return lo, hi
    down, up = lo - lo.abs() * (down_ulps * _EPSILON), hi + hi.abs() * (up_ulps * _EPSILON)
    return torch.where(torch.isinf(lo), lo, down), torch.where(torch.isinf(hi), hi, up)


def _settled(lo: Tensor, hi: Tensor, undefined: Tensor, pinned: Tensor) -> Span:
    """Repairs ends that overflowed or are NaN, and returns the interval.

    `undefined` is a mask of the elements without a value. Both ends may be the same infinity only where `pinned`.
    """
    if lo is hi and bool(torch.isfinite(lo).all()):
        return Span(lo, lo)
    nothing = torch.isnan(lo) | torch.isnan(hi)
    if _any(nothing):
        lo, hi = torch.where(nothing, -math.inf, lo), torch.where(nothing, math.inf, hi)
    lo = torch.where((lo == math.inf) & ~pinned, _LARGEST, lo)
    hi = torch.where((hi == -math.inf) & ~pinned, -_LARGEST, hi)
    if _any(undefined):
        lo, hi = (end.masked_fill(undefined, math.nan) for end in (lo, hi))
    return Span(lo, hi)


def add(a: Span, b: Span, sign: int = 1) -> Span:
    """Returns a + b, or a - b for sign = -1."""
    if sign < 0:
        b = Span(-b.hi, -b.lo) if not b.is_point else point(-b.lo)
    lo, down = two_sum(a.lo, b.lo)
    hi, up = (lo, down) if a.is_point and b.is_point else two_sum(a.hi, b.hi)
    lo, hi = _rounded(lo, hi, ((down != 0).to(lo.dtype), (up != 0).to(lo.dtype)))
    undefined = torch.isnan(a.lo) | torch.isnan(b.lo) | (a.is_infinite() & b.is_infinite() & (a.lo == -b.lo))
    return _settled(lo, hi, undefined, a.is_infinite() | b.is_infinite())


def below_largest(apart: Span, a: Span, dims: tuple[int, ...]) -> Span:
    """Returns `apart`, the interval of a - amax(a), without the numbers that cannot be such a difference.

    No difference is positive. It is 0 where no other number of the row can be larger.
    """
    if a.is_point:
        return apart
    first = a.hi == a.hi.amax(dims, True)
    others = a.hi.masked_fill(first, -math.inf).amax(dims, True)
    largest = first & (a.lo >= others) & (first.sum(dims, True) == 1) & torch.isfinite(a.lo) & torch.isfinite(a.hi)
    hi = torch.where(torch.isfinite(apart.hi), apart.hi.clamp(max=0.0), apart.hi)
    return Span(apart.lo.masked_fill(largest, 0.0), hi)


def negative(a: Span) -> Span:
    lo = -a.hi
    return Span(lo, lo if a.is_point else -a.lo)


def _pairs(a: Span, b: Span) -> list[tuple[Tensor, ...]]:
    """Returns all pairs of an end of a and an end of b."""
    return list(product_of(*([each.lo] if each.is_point else [each.lo, each.hi] for each in (a, b))))


def _hull(ends: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Returns the least and the greatest of several ends, per element."""
    lo = hi = ends[0]
    for end in ends[1:]:
        lo, hi = torch.minimum(lo, end), torch.maximum(hi, end)
    return lo, hi


def multiply(a: Span, b: Span) -> Span:
    """Returns a * b. 0 times infinity is not defined."""
    infinite, zero = a.is_infinite() | b.is_infinite(), a.is_zero() | b.is_zero()
    undefined = torch.isnan(a.lo) | torch.isnan(b.lo)
    ends: list[Tensor] = []
    inexact: Tensor | float = 1.0
    for first, second in _pairs(a, b):
        product, rounds = _product(first, second)
        if not ends:  # ends that are equal are exact numbers
            inexact = torch.where((a.lo == a.hi) & (b.lo == b.hi), rounds, 1.0)
        # an infinite end means unbounded numbers, and 0 times any of them is 0
        ends.append(torch.where(torch.isnan(product) & ~undefined, 0.0, product))
    lo, hi = _rounded(*_hull(ends), (inexact, inexact))
    small = ~zero & ((lo.abs() < _LOW) | (hi.abs() < _LOW))
    if _any(small):
        lo, hi = _underflowing(a, b, lo, hi, small)
    if _any(infinite):
        doubtful = infinite & ((_touches_zero(a) & ~a.is_infinite()) | (_touches_zero(b) & ~b.is_infinite()))
        undefined = undefined | (infinite & zero)
        lo, hi = lo.masked_fill(doubtful, -math.inf), hi.masked_fill(doubtful, math.inf)
    return _settled(lo, hi, undefined, infinite)


def _underflowing(a: Span, b: Span, lo: Tensor, hi: Tensor, small: Tensor) -> tuple[Tensor, Tensor]:
    """Moves the ends of a product or quotient outwards by the least number, not beyond a zero that the signs exclude.

    A variance that may be 0 is not negative, so that it has a root.
    """
    positive = ((a.lo >= 0) & (b.lo >= 0)) | ((a.hi <= 0) & (b.hi <= 0))
    negative = ((a.lo >= 0) & (b.hi <= 0)) | ((a.hi <= 0) & (b.lo >= 0))
    down = torch.where(positive, (lo - _TINY).clamp(min=0.0), lo - _TINY)
    up = torch.where(negative, (hi + _TINY).clamp(max=0.0), hi + _TINY)
    return torch.where(small, down, lo), torch.where(small, up, hi)


def _touches_zero(a: Span) -> Tensor:
    return (a.lo <= 0) & (a.hi >= 0)


def square(a: Span) -> Span:
    """Returns a * a, where both factors are the same number."""
    least = torch.where(_touches_zero(a), 0.0, torch.minimum(a.lo.abs(), a.hi.abs()))
    size = a.size()
    lo, hi = _rounded(least * least, size * size, 1.0)
    lo = torch.where(lo < _LOW, (lo - _TINY).clamp(min=0.0), lo)
    hi = torch.where((hi < _LOW) & ~a.is_zero(), hi + _TINY, hi)
    return _settled(lo, hi, torch.isnan(a.lo), a.is_infinite())


def divide(a: Span, b: Span) -> Span:
    """Returns a / b. A divisor that is exactly zero has the sign of its IEEE zero."""
    ends = [first / second for first, second in _pairs(a, b)]
    zero, infinite = b.is_zero(), a.is_infinite()
    undefined = torch.isnan(a.lo) | torch.isnan(b.lo) | (a.is_zero() & zero) | (infinite & b.is_infinite())
    inexact: Tensor | float = 1.0
    if ends[0].numel() <= _FEW:
        back, rounds = _product(ends[0], b.lo)
        known = (a.lo == a.hi) & (b.lo == b.hi)
        inexact = 1.0 - ((back == a.lo) & (rounds == 0.0) & known).to(back.dtype)
    lo, hi = _rounded(*_hull(ends), (inexact, inexact))
    exact = a.is_zero() | b.is_infinite() | zero
    small = ~exact & ((lo.abs() < _LOW) | (hi.abs() < _LOW))
    if _any(small):
        lo, hi = _underflowing(a, b, lo, hi, small)
    doubtful = _touches_zero(b) & ~(zero & ~_touches_zero(a))
    lo, hi = lo.masked_fill(doubtful, -math.inf), hi.masked_fill(doubtful, math.inf)
    return _settled(lo, hi, undefined, infinite | (zero & ~_touches_zero(a)))


def apply(function: Function, a: Span) -> Span:
    """Returns f(a)."""
    if function.shape in ("waves", "bent"):
        return _bent(function, a)
    lo, hi = a.lo, a.hi
    if not a.is_point:  # an end at -0.0 becomes 0.0
        lo, hi = (torch.where(a.lo == a.hi, end, end + 0.0) for end in (lo, hi))
    if function.shape.startswith("even"):
        far = a.size()
        near = far if a.is_point else torch.where(_touches_zero(a), 0.0, torch.minimum(lo.abs(), hi.abs()))
        lo, hi = (far, near) if function.shape == "even down" else (near, far)
    elif function.shape == "down":
        lo, hi = hi, lo
    lo, hi = (_end(function, end, side) for end, side in ((lo, -1), (hi, 1)))
    return _within(function, a, lo, hi, torch.isnan(a.lo), a.is_infinite())


def _within(function: Function, a: Span, lo: Tensor, hi: Tensor, undefined: Tensor, pinned: Tensor) -> Span:
    """Returns the interval of f(a) from its ends, adjusted where a leaves the domain of f."""
    least, most = function.domain
    if math.isfinite(least) or math.isfinite(most):
        undefined = undefined | (a.hi < least) | (a.lo > most)
        pinned = pinned | ((a.lo == a.hi) & ((a.lo == least) | (a.lo == most)))
        if not a.is_point:
            doubtful = ((a.lo < least) & (a.hi >= least)) | ((a.lo <= most) & (a.hi > most))
            lo, hi = lo.masked_fill(doubtful, -math.inf), hi.masked_fill(doubtful, math.inf)
    return _settled(lo, hi, undefined, pinned)


def _end(function: Function, x: Tensor, side: int) -> Tensor:
    """Returns f at one end of an interval, moved outwards by the error of the library."""
    value = function.torch(x)
    moved = value + side * _error(function, x, value)
    moved = torch.where(torch.isinf(value) | function.is_exact(x, value), value, moved)
    least, most = function.codomain
    moved = moved.clamp(least, most)
    for limit, infinity in zip(function.limits, (-math.inf, math.inf), strict=True):
        if isinstance(limit, float):
            moved = torch.where(x == infinity, limit, moved)
    return moved


def _error(function: Function, x: Tensor, value: Tensor) -> Tensor:
    """Returns a bound of the library's error."""
    ulps, spread = (each(x) if callable(each) else each for each in (function.ulps, function.spread))
    return value.abs() * (ulps * _EPSILON) + spread * _EPSILON + _TINY * 4


def _bent(function: Function, a: Span) -> Span:
    """Returns f(a) from the value in the middle and the steepest slope on the way to both ends."""
    middle = a.mid()
    value = function.torch(middle)
    spread = _error(function, middle, value)
    if not a.is_point:
        reach = (a.hi - a.lo) * 0.5 * (1 + 4 * _EPSILON) + middle.abs() * _EPSILON + _TINY
        steep = 1.0 if function.slope is None else function.slope(a.lo, a.hi)
        spread = spread + torch.where(a.lo == a.hi, 0.0, reach * steep)
    spread = spread.masked_fill((a.lo == a.hi) & function.is_exact(a.lo, value), 0.0)
    lo, hi = ((value + side * spread).clamp(*function.codomain) for side in (-1, 1))
    # a pole at an exact 0 or negative integer; any other infinite value is an overflow
    pole = torch.isinf(value) & (a.lo == a.hi) & (a.lo <= 0) & (a.lo == a.lo.floor())
    lo, hi = torch.where(pole, value, lo), torch.where(pole, value, hi)
    undefined = torch.isnan(a.lo)
    for limit, infinity in zip(function.limits, (-math.inf, math.inf), strict=True):
        at = (a.lo == infinity) & (a.hi == infinity)
        lo, hi = torch.where(at, limit, lo), torch.where(at, limit, hi)
        undefined = undefined | (at if math.isnan(limit) else False)
    return _within(function, a, lo, hi, undefined, a.is_infinite() | pole)


def extreme(a: Span, b: Span, largest: bool) -> Span:
    """Returns the larger of two numbers if `largest`, else the smaller."""
    pick = torch.maximum if largest else torch.minimum
    lo = pick(a.lo, b.lo)
    return Span(lo, lo if a.is_point and b.is_point else pick(a.hi, b.hi))


def _split(x: Tensor, dims: tuple[int, ...], reach: float) -> tuple[Tensor, Tensor]:
    """Returns two parts of float64 numbers, which add up to them exactly.

    The first parts of a row along `dims` are multiples of one number, not above 2^54 / reach + 4 times it. So sums of
    few of them, or of their products, are exact in any order. They are 0 if the row is not finite, or too large.
    """
    far = x.abs().amax(dims, True) * reach
    first = (x + far).sub_(far).masked_fill_(~torch.isfinite(far * 2), 0.0)
    return first, x - first


def total(a: Span, dims: tuple[int, ...], keep: bool) -> Span:
    """Returns the sum over dimensions.

    The leading bits of all terms are added up exactly. Rounding errors of the other sum, in any order, are at most as
    many units of its terms' magnitudes as it has terms.
    """
    count = math.prod(a.lo.shape[dim] for dim in dims)
    sums = list[tuple[Tensor, Tensor]]()
    for end in (a.lo,) if a.is_point else (a.lo, a.hi):
        first, rest = _split(end, dims, 4.0 * count) if count > 1 else (end, torch.zeros_like(end))
        left = rest.abs().sum(dims, keep)
        value = first.sum(dims, keep) + rest.sum(dims, keep)
        slack = torch.where(left == 0, 0.0, left * (count * _EPSILON) + value.abs() * (2 * _EPSILON))
        sums.append((value, slack))
    (lo, down), (hi, up) = sums[0], sums[-1]
    return _summed(a, lo - down, hi + up, lambda mask: mask.sum(dims, keep) > 0)


def running(a: Span, dim: int) -> Span:
    """Returns cumulative sums.

    The rounding error of a sum of n numbers, in any order, is at most n - 1 units of the sum of their magnitudes.
    """
    lo, count = a.lo.cumsum(dim), a.lo.shape[dim]
    hi = lo if a.is_point else a.hi.cumsum(dim)
    slack = a.size().cumsum(dim) * (count * _EPSILON if count > 1 else 0.0)
    return _summed(a, lo - slack, hi + slack, lambda mask: mask.cumsum(dim) > 0)


def _summed(a: Span, low: Tensor, high: Tensor, anywhere: Callable[[Tensor], Tensor]) -> Span:
    """Returns the interval of sums of terms of `a`, from ends that may be no numbers.

    `anywhere(mask)` is true for a sum if the mask is true for one of its terms.
    """
    strange = ~(torch.isfinite(low) & torch.isfinite(high))
    if not _any(strange):
        return Span(low, high)
    positive, negative_ = (anywhere(a.is_infinite() & (a.lo == end)) for end in (math.inf, -math.inf))
    undefined = anywhere(torch.isnan(a.lo)) | (positive & negative_)
    low, high = torch.where(strange, -math.inf, low), torch.where(strange, math.inf, high)
    bounded = ~anywhere(~torch.isfinite(a.lo) & ~a.is_infinite()) & ~anywhere(~torch.isfinite(a.hi) & ~a.is_infinite())
    low = torch.where(positive & bounded, math.inf, low)
    high = torch.where(negative_ & bounded, -math.inf, high)
    return _settled(low, high, undefined, positive | negative_)


def product(a: Span, dim: int) -> Span:
    """Returns the product over a dimension. Multiplies halves, so that few roundings follow each other."""
    lo, hi = a.lo.movedim(dim, 0), a.hi.movedim(dim, 0)
    if lo.shape[0] == 0:
        return point(torch.ones(lo.shape[1:], dtype=lo.dtype, device=lo.device))
    whole = Span(lo, lo if a.is_point else hi)
    while whole.lo.shape[0] > 1:
        whole = _halved(whole, whole.lo.shape[0] // 2)
    return whole.moved(lambda end: end[0])


def _halved(a: Span, half: int) -> Span:
    """Multiplies the first half of the first dimension by the second."""
    made = multiply(a.moved(lambda end: end[:half]), a.moved(lambda end: end[half : 2 * half]))
    rest = a.moved(lambda end: end[2 * half :])
    return Span(torch.cat([made.lo, rest.lo]), torch.cat([made.hi, rest.hi]))


def contract(a: Span, b: Span) -> Span:
    """Encloses a @ b of batches of matrices."""
    count = a.lo.shape[-1]
    middle_a, middle_b = a.mid(), b.mid()
    size_a, size_b = middle_a.abs(), middle_b.abs()
    value, spread, terms = _product_of_matrices(middle_a, middle_b, size_a, size_b)
    radius_a, radius_b = (None if each.is_point else _radius(each, mid) for each, mid in ((a, middle_a), (b, middle_b)))
    if radius_b is not None:
        spread = spread + size_a @ radius_b
    if radius_a is not None:
        spread = spread + radius_a @ (size_b if radius_b is None else size_b + radius_b)
    spread = spread * (1 + (2 * count + 8) * _EPSILON)
    if _any(terms < _LOW):  # each product of two nonzero factors may have lost up to a smallest subnormal number
        lost = (a.size() > 0).to(value.dtype) @ (b.size() > 0).to(value.dtype) * 4
        spread = spread + torch.where(terms < _LOW, lost * _TINY, 0.0)
    known = torch.isfinite(value) & torch.isfinite(spread)
    lo = torch.where(known, value - spread, -math.inf)
    return Span(lo, torch.where(known, value + spread, math.inf))


def _product_of_matrices(a: Tensor, b: Tensor, size_a: Tensor, size_b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a @ b, a bound of its rounding errors, and the sum of the terms' magnitudes.

    The leading bits of both factors are multiplied exactly: multiples up to 2^25 / sqrt(count).
    """
    count, terms = a.shape[-1], size_a @ size_b
    if not count:
        return terms, terms, terms
    reach = 2.0 ** (29 + math.ceil(math.log2(count) / 2))
    (first_a, rest_a), (first_b, rest_b) = _split(a, (-1,), reach), _split(b, (-2,), reach)
    value = first_a @ first_b + (first_a @ rest_b + rest_a @ b)
    left = rest_a.abs().amax(-1, True) * size_b.sum(-2, True)
    left = left + first_a.abs().sum(-1, True) * rest_b.abs().amax(-2, True)
    spread = torch.minimum(left, terms * 2) * ((count + 4) * _EPSILON) + value.abs() * (2 * _EPSILON)
    return value, spread + terms * (count * _EPSILON**2), terms  # the last: what products below float64's range lose


def _radius(a: Span, middle: Tensor) -> Tensor:
    """Returns the largest distance of the ends from the middle."""
    return torch.maximum(a.hi - middle, middle - a.lo) * (1 + 2 * _EPSILON)
