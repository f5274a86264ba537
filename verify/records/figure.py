"""An error as text: rounded up, so that what is shown is never smaller than what was measured."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal

# No correctly rounded result is further than this from the truth, in ulps; no bound is smaller.
LEAST = 0.5
# No format has more numbers than this: an error of more ulps (of a truth at or near zero) counts nothing.
COUNTABLE, BEYOND = 2.0**64, ">1.8e+19"
# Behind a figure, by what its op is judged in: see `verify.records.record.Gate`.
UNIT = {"plain": " ULP", "scaled": " ULP scaled", "noise": "\N{MULTIPLICATION SIGN} noise"}
DIGITS = 4  # of a bound, and of a figure that is compared with one by eye


def rounded_up(value: float, digits: int = DIGITS, *, headroom: float = 0.0) -> float:
    """The smallest number of so many significant digits that is not below a value, after adding a share of it."""
    if value == 0 or not math.isfinite(value):
        return value
    # the decimals that the floats are meant to be: 0.7 and a tenth give 0.77, not 0.7701
    exact = Decimal(repr(value)) * (1 + Decimal(repr(headroom)))
    rounded = exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), rounding=ROUND_CEILING)
    return max(float(rounded), value)


def shown(value: float) -> str:
    """A magnitude of error with the digits of a bound.

    >>> [shown(value) for value in (0.5, 0.50001, 238.71, 1.6777e7, 3.3e43, float("inf"), float("nan"))]
    ['0.5', '0.5001', '238.8', '1.678e+07', '>1.8e+19', 'inf', 'NaN']
    """
    if math.isfinite(value) and value > COUNTABLE:
        return BEYOND
    return "NaN" if math.isnan(value) else f"{rounded_up(value):.{DIGITS}g}"


def signed(value: float) -> str:
    """The same of an error with its side.

    >>> [signed(value) for value in (0.0, -0.50001, 254.91, -3.3e43, float("-inf"), float("nan"))]
    ['+0', '-0.5001', '+255', '<-1.8e+19', '-inf', 'NaN']
    """
    text = shown(abs(value))
    if text == BEYOND:
        return text if value > 0 else text.replace(">", "<-")
    return text if math.isnan(value) else ("-" if value < 0 else "+") + text
