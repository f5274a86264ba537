"""Exact arithmetic on rows of floats, as integers times a power of two, and sums to a relative accuracy in mpmath.

A row becomes Python integers with one common exponent. So sums, sums of squares and products are exact for every row:
for a mean of 1e4 with a tiny variance, or 1e30 beside 1e-30.

`Point.mp(prec)` promises a relative error of about 2^-(prec - 8). A product keeps this accuracy. A sum loses the bits
that cancel. `summed` measures this loss and repeats the sum with more bits until the accuracy is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import mul
from typing import Any, NamedTuple

import flint
import numpy as np
from mpmath import libmp, mp
from torch import Tensor

from verify.ops.elements import GUARD, mp_bits

# Terms that still cancel at 8 prec + 8192 bits cancel exactly: the sum is rational and equal to zero.
_LIMIT_FACTOR, _LIMIT_EXTRA = 8, 8192


class Dyadics(NamedTuple):
    """The numbers integers[i] * 2^exponent."""

    integers: list[int]
    exponent: int


class Dyadic(NamedTuple):
    """The number integer * 2^exponent."""

    integer: int
    exponent: int

    def mpf(self) -> Any:
        """Returns the number as an mpf, rounded to the working precision."""
        return mp.mpf((self.integer, self.exponent))


def dyadic(value: float) -> Dyadic:
    """Converts one finite float."""
    numerator, denominator = value.as_integer_ratio()
    return Dyadic(numerator, 1 - denominator.bit_length())


def dyadics(values: Sequence[float]) -> Dyadics:
    """Converts a row of finite floats, with the largest common power of two."""
    fractions, exponents = np.frexp(np.asarray(values, dtype=np.float64))
    mantissas = np.ldexp(fractions, 53).astype(np.int64)
    nonzero = mantissas != 0
    if not nonzero.any():
        return Dyadics([0] * len(mantissas), 0)
    # Trailing zero bits (29 of 53 for a float32) would only make the integers longer.
    lowest = np.where(nonzero, mantissas & -mantissas, 1)
    zeros = np.frexp(lowest.astype(np.float64))[1] - 1
    trimmed = np.where(nonzero, mantissas >> zeros, 0).tolist()
    places = exponents.astype(np.int64) - 53 + zeros
    smallest = int(places[nonzero].min())
    shifts = np.where(nonzero, places - smallest, 0).tolist()
    return Dyadics([m << shift for m, shift in zip(trimmed, shifts, strict=True)], smallest)


def at_exponent(value: float, exponent: int) -> int:
    """Returns value / 2^exponent for a float that is a multiple of 2^exponent."""
    integer, place = dyadic(value)
    return integer << (place - exponent) if place >= exponent else integer >> (exponent - place)


def add_rows(rows: Sequence[Dyadics]) -> Dyadics:
    """Returns the elementwise sum of rows of the same length."""
    if len(rows) == 1:
        return rows[0]
    exponent = min(row.exponent for row in rows)
    shifted = [[value << (row.exponent - exponent) for value in row.integers] for row in rows]
    return Dyadics([sum(column) for column in zip(*shifted, strict=True)], exponent)


def multiply_rows(a: Dyadics, b: Dyadics) -> Dyadics:
    """Returns the elementwise product."""
    return Dyadics(list(map(mul, a.integers, b.integers)), a.exponent + b.exponent)


def dot(a: Sequence[int], b: Sequence[int]) -> int:
    """Returns the sum of products."""
    return sum(map(mul, a, b))


def whole(tensor: Tensor) -> list[float]:
    """Returns all elements in row-major order as floats."""
    values: list[float] = tensor.detach().double().reshape(-1).tolist()
    return values


def to_mp(value: float) -> Any:
    """Returns the same number as an mpf."""
    return mp.make_mpf(libmp.from_float(value))  # takes half the time of mp.mpf


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


def mpf_to_arb(value: Any) -> Any:
    """Returns an mpf of any length as an exact ball, or as Arb's infinity or NaN."""
    if mp.isnan(value):
        return flint.arb.nan()
    if mp.isinf(value):
        return flint.arb.pos_inf() if value > 0 else flint.arb.neg_inf()
    sign, mantissa, exponent, _ = value._mpf_
    return flint.arb((-int(mantissa) if sign else int(mantissa), int(exponent)))
