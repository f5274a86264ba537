"""Encloses a real number between two rationals, made from an mpmath number or an Arb ball.

Exponents beyond +-20,000 are cut, outwards. Outside the range of every format only the sign and the side matter, and
exp(-1e600) must not become an integer of 1e600 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from verify.truth.formats import quotient

_CUT = 20_000


@dataclass(frozen=True)
class Enclosure:
    """Two rationals with low <= truth <= high. `kind` is not "real" if the truth is infinite or undefined."""

    low: Fraction
    high: Fraction
    kind: Literal["real", "nan", "inf", "-inf"] = "real"

    @property
    def is_exact(self) -> bool:
        return self.low == self.high

    def is_narrow(self, bits: int) -> bool:
        """True if high - low <= 2^-bits |low|. Uses integers, since Fraction would search for common factors."""
        low, scale, high, other = *self.low.as_integer_ratio(), *self.high.as_integer_ratio()
        return (high * scale - low * other) << bits <= abs(low) * other

    def meets(self, other: Enclosure) -> bool:
        """True if both may enclose the same truth."""
        if self.kind != "real" or other.kind != "real":
            return self.kind == other.kind
        return self.low <= other.high and other.low <= self.high


NAN = Enclosure(Fraction(0), Fraction(0), "nan")
PLUS_INFINITY = Enclosure(Fraction(0), Fraction(0), "inf")
MINUS_INFINITY = Enclosure(Fraction(0), Fraction(0), "-inf")


def dyadic(mantissa: int, exponent: int, *, up: bool) -> Fraction:
    """Returns mantissa * 2^exponent as a rational.

    If the exponent is beyond the cut, returns a larger number if `up`, else a smaller one.
    """
    if mantissa == 0:
        return Fraction(0)
    magnitude = mantissa.bit_length() + exponent
    if abs(magnitude) > _CUT:
        if mantissa < 0:
            return -dyadic(-mantissa, exponent, up=not up)
        return Fraction(1 << (2 * _CUT if up else _CUT)) if magnitude > 0 else Fraction(int(up), 1 << _CUT)
    return quotient(mantissa << max(exponent, 0), 1 << max(-exponent, 0))


def from_mpmath(value: Any, precision: int) -> Enclosure:
    """Returns the enclosure of an mpf whose relative error is at most 2^-(precision - 8)."""
    import mpmath

    if isinstance(value, int):
        return Enclosure(Fraction(value), Fraction(value))
    if not isinstance(value, mpmath.mpf):
        with mpmath.workprec(53):
            value = mpmath.mpf(value)  # only for Python floats: an mpf would be rounded here
    if mpmath.isnan(value):
        return NAN
    if mpmath.isinf(value):
        return PLUS_INFINITY if value > 0 else MINUS_INFINITY
    sign, mantissa, exponent, _ = value._mpf_
    mantissa = int(mantissa)
    if mantissa == 0:
        return Enclosure(Fraction(0), Fraction(0))
    # widen the mantissa until one unit of it is the claimed error
    shift = max(0, precision - mantissa.bit_length())
    mantissa = (-1 if sign else 1) * (mantissa << shift)
    exponent = int(exponent) - shift
    slack = (abs(mantissa) >> max(precision - 8, 0)) + 1
    return Enclosure(dyadic(mantissa - slack, exponent, up=False), dyadic(mantissa + slack, exponent, up=True))


def from_arb(ball: Any) -> Enclosure | None:
    """Returns the enclosure of an Arb ball; None if the ball is unbounded or NaN.

    Arb has one NaN, [nan +/- inf], for "undefined" and for "not determined at this precision". For example, division by
    a ball around zero gives it. So Arb's NaN never means that the truth is undefined.
    """
    if ball.is_nan():
        return None
    if not ball.is_finite():
        middle = ball.mid()
        if ball.rad() == 0 and not middle.is_finite():
            return PLUS_INFINITY if middle > 0 else MINUS_INFINITY
        return None
    middle, radius, exponent = _integers(ball)
    return Enclosure(dyadic(middle - radius, exponent, up=False), dyadic(middle + radius, exponent, up=True))


def _integers(ball: Any) -> tuple[int, int, int]:
    """Returns integers (middle, radius, exponent): the interval middle +- radius, times 2^exponent, holds the ball."""
    # mid() and rad() are exact; lower() and upper() would round to Arb's current precision
    whole, place = ball.mid().man_exp()
    middle, exponent = int(whole), int(place)
    whole, place = ball.rad().man_exp()
    radius, radius_exponent = int(whole), int(place)
    if radius == 0:
        return middle, 0, exponent
    if middle == 0:
        exponent = radius_exponent
    # Use one common exponent. A radius far below the last bit of the middle is rounded up to a small part of that bit.
    lowest = max(min(exponent, radius_exponent), exponent - 4 * max(middle.bit_length(), 64))
    places = radius_exponent - lowest
    return middle << exponent - lowest, radius << places if places >= 0 else (radius >> -places) + 1, lowest


def narrow_pair(ball: Any, bits: int) -> tuple[float, float] | None:
    """Returns `to_double_double` of a ball if it is ordinary and narrow (`Enclosure.is_narrow`); None otherwise.

    It works in integers alone, which is fast for many elements.
    """
    if not ball.is_finite():
        return None
    middle, radius, exponent = _integers(ball)
    ends = middle - radius, middle + radius
    if 2 * radius << bits > abs(ends[0]) or any(abs(end.bit_length() + exponent) > _CUT for end in ends):
        return None
    unit = 1 << max(-exponent, 0)
    middle <<= max(exponent, 0)
    try:
        high = middle / unit
    except OverflowError:
        return None
    if high == 0.0:
        return None  # zero, or below the smallest number: `to_double_double` decides its sign
    return high, _rest(middle, unit, high)


def _rest(numerator: int, denominator: int, high: float) -> float:
    """Returns the quotient minus the float `high`, rounded."""
    own, unit = high.as_integer_ratio()
    return (numerator * unit - own * denominator) / (denominator * unit)


def to_double_double(enclosure: Enclosure) -> tuple[float, float]:
    """Returns float64 numbers (high, low): the rounded truth, and the rounded rest.

    If a finite truth overflows float64, high is infinite and low is -0.5. If the truth is infinite, low is 0.
    """
    if enclosure.kind == "nan":
        return math.nan, 0.0
    if enclosure.kind != "real":
        return (math.inf if enclosure.kind == "inf" else -math.inf), 0.0
    (low, scale), (high_end, other) = enclosure.low.as_integer_ratio(), enclosure.high.as_integer_ratio()
    middle, unit = low * other + high_end * scale, 2 * scale * other  # middle / unit is halfway between the ends
    try:
        high = middle / unit  # Python rounds a quotient of integers correctly
    except OverflowError:
        high = math.inf if middle > 0 else -math.inf
    if math.isinf(high):
        return high, -0.5
    return -0.0 if high == 0.0 and high_end <= 0 and low < 0 else high, _rest(middle, unit, high)
