"""Sets the working precision of mpmath and Arb, and computes sums to a relative accuracy.

`Point.mp(prec)` promises a relative error of about 2^-(prec - 8). A product keeps this accuracy. A sum loses the bits
that cancel. `summed` measures this loss and repeats the sum with more bits until the accuracy is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flint
import mpmath
from mpmath import mp

GUARD = 40  # bits added to a requested precision
# Terms that still cancel at 8 prec + 8192 bits cancel exactly: the sum is rational and equal to zero.
_LIMIT_FACTOR, _LIMIT_EXTRA = 8, 8192


class arb_bits:  # noqa: N801  (used like a function; a class takes a third of the time of a generator)
    """Sets Arb's precision to `bits` inside a `with` block, and restores it afterwards."""

    __slots__ = ("before", "bits")

    def __init__(self, bits: int) -> None:
        self.bits = bits

    def __enter__(self) -> None:
        self.before: int = flint.ctx.prec
        flint.ctx.prec = self.bits

    def __exit__(self, *raised: object) -> None:
        flint.ctx.prec = self.before


def mp_bits(bits: int) -> Any:
    """Sets mpmath's precision to `bits` inside a `with` block, and restores it afterwards."""
    return mpmath.workprec(bits)


def magnitude(value: Any) -> int:
    """Returns the least exponent e with |value| < 2^e; 0 for zero, infinities and NaN."""
    if not mp.isfinite(value) or value == 0:
        return 0
    return int(mp.mag(value))


def exact_product(*factors: Any) -> Any:
    """Returns the product without rounding; NaN for zero times infinity."""
    result = factors[0]
    for factor in factors[1:]:
        result = mp.fmul(result, factor, exact=True)
    return result


def summed(terms: Callable[[int], Sequence[Any]], prec: int) -> Any:
    """Returns the sum of `terms(bits)` with a relative error below 2^-prec, even if the terms cancel.

    `terms(bits)` runs at a working precision of `bits`. It returns each term with a relative error of at most
    2^-(bits - 6).
    """
    bits = prec + GUARD
    limit = _LIMIT_FACTOR * prec + _LIMIT_EXTRA
    while True:
        with mp_bits(bits):
            parts = terms(bits)
            total = mp.fsum(parts)
        if not mp.isfinite(total) or all(part == 0 for part in parts):
            return total
        largest = max(magnitude(part) for part in parts if part != 0)
        lost = largest - magnitude(total) if total != 0 else bits
        if lost <= bits - prec - 8:
            return total
        if bits >= limit:
            return mp.mpf(0)
        bits = min(limit, prec + lost + GUARD)
