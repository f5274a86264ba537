"""Formats an error as text. Rounds its magnitude up, so that no printed figure is smaller than the measured one."""

import math
from decimal import ROUND_CEILING, Decimal

# A correctly rounded result is at most this far from the truth, in ulps. No bound is smaller.
LEAST = 0.5
# No format has more numbers than this. A larger error (of a truth at or near zero) is not a number of steps.
COUNTABLE, BEYOND = 2.0**64, ">1.8e+19"
# The unit behind a figure, by the gate of its op: see `verify.records.record.Gate`.
UNIT = {"plain": " ULP", "scaled": " ULP scaled", "noise": "\N{MULTIPLICATION SIGN} noise"}
DIGITS = 4  # significant digits of a bound, and of a figure that readers compare with a bound


def rounded_up(value: float, digits: int = DIGITS, *, headroom: float = 0.0) -> float:
    """Returns the smallest number of `digits` significant digits that is not below value * (1 + headroom)."""
    if value == 0 or not math.isfinite(value):
        return value
    # Uses the decimals that the floats mean: 0.7 and a headroom of 0.1 give 0.77, not 0.7701.
    exact = Decimal(repr(value)) * (1 + Decimal(repr(headroom)))
    rounded = exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), rounding=ROUND_CEILING)
    return max(float(rounded), value)


def ordered(value: float) -> tuple[int, float]:
    """Returns the sort key of errors: NaN above infinity, which means an unknown upper end, above numbers.

    >>> sorted([float("nan"), 3.0, float("inf"), 0.5], key=ordered)
    [0.5, 3.0, inf, nan]
    """
    return (2, 0.0) if math.isnan(value) else (1, 0.0) if math.isinf(value) else (0, value)


def rank(value: float | str) -> float:
    """Returns the size of an error, infinite for NaN."""
    found = float(value)
    return math.inf if math.isnan(found) else found


def comparable(value: float) -> float:
    """Returns a finite number for an error, in the order of `ordered`: two errors always have a ratio.

    >>> [comparable(value) for value in (0.5, float("inf"), float("nan"))]
    [0.5, 1e+299, 1e+300]
    """
    return (min(value, 1e298), 1e299, 1e300)[ordered(value)[0]]


def shown(value: float) -> str:
    """Returns a magnitude of error as text, with the digits of a bound.

    >>> [shown(value) for value in (0.5, 0.50001, 238.71, 1.6777e7, 3.3e43, float("inf"), float("nan"))]
    ['0.5', '0.5001', '238.8', '1.678e+07', '>1.8e+19', 'inf', 'NaN']
    """
    if math.isfinite(value) and value > COUNTABLE:
        return BEYOND
    return "NaN" if math.isnan(value) else f"{rounded_up(value):.{DIGITS}g}"


def signed(value: float) -> str:
    """Returns a signed error as text. Rounds its magnitude as `shown` does.

    >>> [signed(value) for value in (0.0, -0.50001, 254.91, -3.3e43, float("-inf"), float("nan"))]
    ['+0', '-0.5001', '+255', '<-1.8e+19', '-inf', 'NaN']
    """
    text = shown(abs(value))
    if text == BEYOND:
        return text if value > 0 else text.replace(">", "<-")
    return text if math.isnan(value) else ("-" if value < 0 else "+") + text
