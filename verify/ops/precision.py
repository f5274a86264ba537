"""Working precision: sums that keep their relative accuracy, and scoped mpmath and Arb precision.

The promise of `Point.mp(prec)` is about 2^-(prec - 8) relative. A product keeps it for free; a sum
loses as many bits as its terms cancel. `summed` measures that loss and adds bits until it is paid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flint
import mpmath
from mpmath import mp

GUARD = 40
# Terms that still cancel at this many bits do so exactly: the sum is rational and equal to zero.
_LIMIT_FACTOR, _LIMIT_EXTRA = 8, 8192


class arb_bits:  # noqa: N801  (called like the function that it stands for, a third as dear as a generator)
    """Arb works with `bits` inside, and with what it had before outside."""

    __slots__ = ("before", "bits")

    def __init__(self, bits: int) -> None:
        self.bits = bits

    def __enter__(self) -> None:
        self.before: int = flint.ctx.prec
        flint.ctx.prec = self.bits

    def __exit__(self, *raised: object) -> None:
        flint.ctx.prec = self.before


def mp_bits(bits: int) -> Any:
    """mpmath works with `bits` inside, and with what it had before outside."""
    return mpmath.workprec(bits)


def magnitude(value: Any) -> int:
    """The exponent e with |value| < 2^e; 0 for zero and for what is not finite."""
    if not mp.isfinite(value) or value == 0:
        return 0
    return int(mp.mag(value))


def exact_product(*factors: Any) -> Any:
    """The product without any rounding (NaN for zero times infinity)."""
    result = factors[0]
    for factor in factors[1:]:
        result = mp.fmul(result, factor, exact=True)
    return result


def summed(terms: Callable[[int], Sequence[Any]], prec: int) -> Any:
    """The sum of `terms(bits)` with a relative error below 2^-prec, however much the terms cancel.

    `terms(bits)` runs at a working precision of `bits` and returns each term within 2^-(bits - 6).
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
