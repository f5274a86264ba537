"""Rounds rationals to the formats of quantised data: an oracle of what `verify.truth.codes` does with tensors."""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction
from functools import cache

from verify.truth.codes import CodeFormat, Ties


@cache
def _numbers(fmt: CodeFormat) -> list[Fraction]:
    return list(map(Fraction, fmt.numbers))


def of_rational(fmt: CodeFormat, number: Fraction | float, ties: Ties = "even") -> float:
    """The number of a format to which a real one is rounded; beyond the ends the last one."""
    numbers = _numbers(fmt)
    real = min(max(Fraction(number), numbers[0]), numbers[-1])
    above = bisect_right(numbers, real)
    if numbers[above - 1] == real:
        return float(real)
    low, high = numbers[above - 1 : above + 1]
    inward, outward = (low, high) if real > 0 else (high, low)
    if ties in ("truncate", "outward"):
        return float(inward if ties == "truncate" else outward)
    if 2 * real != low + high:
        return float(low if 2 * real < low + high else high)
    even = low if fmt.code_of[float(low)] % 2 == 0 else high
    return float({"even": even, "up": high, "away": outward, "to zero": inward}[ties])
