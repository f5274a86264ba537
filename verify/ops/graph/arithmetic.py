"""Defines two arithmetics for single elements: Arb balls, which enclose the number, and mpmath, a second library.

A finite number is an `arb` or an `mpf`. Infinities and NaN (an undefined value) are Python floats in both. A ball that
is not finite means that more bits are needed.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cmp_to_key, partial, reduce
from operator import mul
from typing import Any

import flint
import torch
from mpmath import mp
from mpmath.libmp import from_float, mpf_cmp

from verify.errors import BeyondEffort
from verify.ops.elements import arb_bits, mp_bits
from verify.ops.graph.functions import FUNCTIONS, POLE, Function

_ALL = (-math.inf, math.inf)  # a domain
_BELOW = 64  # a sum omits exponentials that are this many bits below its last bit
_APART = 2_000  # largest distance of exponents, in bits, at which numbers are added up as integers
Number = Any


class Arithmetic:
    """The operations of both arithmetics on infinities, undefined values and undecided answers.

    A subclass defines the operations on finite numbers.
    """

    def number(self, value: float) -> Number:
        """Converts a float exactly. Infinities and NaN stay floats."""
        return self.finite(value) if math.isfinite(value) else value

    def numbers(self, values: Iterable[float]) -> list[Number]:
        """Converts floats, each as `number` does."""
        return list(map(self.number, values))

    def add(self, a: Number, b: Number) -> Number:
        if isinstance(a, float) or isinstance(b, float):
            if isinstance(a, float) and isinstance(b, float):
                return a + b
            special, other = (a, b) if isinstance(a, float) else (b, a)
            return special if special != special or self.is_known(other) else self.unknown()
        return a + b

    def negative(self, a: Number) -> Number:
        return -a if isinstance(a, float) else self.opposite(a)

    def subtract(self, a: Number, b: Number) -> Number:
        return self.add(a, self.negative(b)) if isinstance(a, float) or isinstance(b, float) else a - b

    def multiply(self, a: Number, b: Number) -> Number:
        if isinstance(a, float) or isinstance(b, float):
            if isinstance(a, float) and isinstance(b, float):
                return a * b
            special, other = (a, b) if isinstance(a, float) else (b, a)
            sign = self.sign(other)
            return special if special != special else self.unknown() if sign is None else special * sign
        return a * b

    def divide(self, a: Number, b: Number, side: Callable[[], float]) -> Number:
        """Returns a / b. `side` returns the IEEE sign, 1.0 or -1.0, of b if b is zero."""
        if isinstance(b, float):
            return math.nan if b != b or isinstance(a, float) else self.finite(0.0)
        sign = self.sign(b)
        if sign == 0:
            of_a = a if isinstance(a, float) else self.sign(a)
            return self.unknown() if of_a is None else of_a * math.inf * side()
        if isinstance(a, float):
            return a if a != a else self.unknown() if sign is None else a * sign
        return self.unknown() if sign is None else a / b

    def apply(self, function: Function, x: Number) -> Number:
        """Returns f(x): a limit at an infinity, NaN outside the domain, possibly a `Pole` at its end."""
        if isinstance(x, float):
            limit = function.limits[int(x > 0)] if x == x else math.nan
            return limit(self) if callable(limit) else self.number(limit)
        for end, outside in zip(function.domain, (-1, 1), strict=True) if function.domain != _ALL else ():
            if math.isfinite(end):
                side = self.sign(self.add(x, self.finite(-end)))
                if side == outside:
                    return math.nan
                if side == 0:
                    value = float(function.torch(torch.tensor(end, dtype=torch.float64)))
                    return POLE if value == math.inf and outside < 0 else self.number(value)
                if side is None and not (x >= end if outside < 0 else x <= end):
                    return self.unknown()
        return self.evaluated(function, x)

    def nonnegative(self, a: Number) -> Number:
        """Returns a number that is known not to be negative."""
        return a

    def order(self, a: Number, b: Number) -> int | None:
        """Returns -1, 0 or 1 as a < b, a = b or a > b; 2 if one is NaN; None if it is not decided."""
        if not isinstance(a, float) and not isinstance(b, float):
            return self.compared(a, b)
        if (a != a and isinstance(a, float)) or (b != b and isinstance(b, float)):
            return 2
        if isinstance(a, float) and isinstance(b, float):
            return (a > b) - (a < b)
        known = self.is_known(b if isinstance(a, float) else a)
        return None if not known else int(math.copysign(1, a)) if isinstance(a, float) else -int(math.copysign(1, b))

    def compared(self, a: Number, b: Number) -> int | None:
        """Returns the order of two finite numbers, as `order` does."""
        return self.sign(self.add(a, self.opposite(b)))

    def extreme(self, a: Number, b: Number, largest: bool) -> Number:
        """Returns the larger of two numbers if `largest`, else the smaller; NaN if one is NaN."""
        order = self.order(a, b)
        if order == 2:
            return math.nan
        if order is None:
            return self.doubtful_extreme(a, b, largest)
        return a if (order >= 0) == largest else b

    def extreme_of(self, row: Sequence[Number], largest: bool) -> Number:
        """Returns the largest or the smallest number of a row, as `extreme` of all of them does."""
        return reduce(partial(self.extreme, largest=largest), row)

    def total(self, terms: Sequence[Number]) -> Number:
        """Returns the sum of the terms, which may be special."""
        if has_special(terms):
            result: Number = self.finite(0.0)
            for term in terms:
                result = self.add(result, term)
            return result
        return self.summed(terms)

    def total_of_exponentials(self, exponents: Sequence[Number]) -> Number:
        """Returns the sum of e^x. Does not evaluate terms too small to change it, because a row may have thousands."""
        if not exponents or has_special(exponents) or not all(map(self.is_known, exponents)):
            return self.total([self.apply(FUNCTIONS["exp"], x) for x in exponents])
        return self.summed_exponentials(exponents)

    def dots(
        self, rows: Sequence[list[Number]], columns: Sequence[list[Number]], pairs: Sequence[tuple[int, int]]
    ) -> list[Number]:
        """Returns the inner product of a row and a column for each pair of their numbers."""
        lines, others = ([None if has_special(line) else line for line in each] for each in (rows, columns))
        made = {pair for pair in pairs if lines[pair[0]] is not None and others[pair[1]] is not None}
        known = dict(zip(made, self.dotted(lines, others, made), strict=True))
        for a, b in pairs:
            if (a, b) not in known:
                known[a, b] = self.total([self.multiply(x, y) for x, y in zip(rows[a], columns[b], strict=True)])
        return [known[pair] for pair in pairs]

    # operations that each arithmetic defines, on finite numbers only

    bits: Any  # a context manager that sets the precision
    finite: Callable[[float], Number]  # converts a finite float exactly
    unknown: Callable[[], Number]  # the number that means "not known at this precision"
    pi: Callable[[], Number]
    is_known: Callable[[Number], bool]  # False if the number may be anything at this precision
    opposite: Callable[[Number], Number]  # -a exactly
    sign: Callable[[Number], int | None]  # -1, 0 or 1; None if it is not decided
    digits: Callable[[Number], tuple[int, int] | None]  # integers m and e with a = m 2^e; None if a is not exact
    scaled: Callable[[int, int], Number]  # mantissa 2^exponent
    evaluated: Callable[[Function, Number], Number]  # f(x) for an x inside the domain
    whole: Callable[[Number, str], Number]  # a finite number rounded to an integer by "floor" or "trunc"
    union: Callable[[Number, Number], Number]  # a ball that encloses both; mpmath has none and returns the first
    doubtful_extreme: Callable[[Number, Number, bool], Number]  # of two numbers whose order is not decided
    summed: Callable[[Sequence[Number]], Number]
    summed_exponentials: Callable[[Sequence[Number]], Number]
    dotted: Callable[[Sequence[Any], Sequence[Any], Iterable[tuple[int, int]]], list[Number]]


def divided(
    arithmetic: Arithmetic, a: Number, b: Number, side: Callable[[], float], *, down: str, remains: bool
) -> Number:
    """Returns the quotient of two numbers rounded by `down` ("floor" or "trunc"), or the remainder if `remains`."""
    if isinstance(b, float) and not isinstance(a, float) and b == b:
        sign = arithmetic.sign(a)
        if sign is None:
            return arithmetic.unknown()
        beyond = down == "floor" and sign * b < 0  # the quotient is -1, and the remainder is infinite
        return (b if beyond else a) if remains else arithmetic.finite(-1.0 if beyond else 0.0)
    if isinstance(a, float) or isinstance(b, float):
        whole = not remains and not isinstance(b, float) and (down == "trunc" or arithmetic.sign(b) == 0)
        return arithmetic.divide(a, b, side) if whole else math.nan
    sign = arithmetic.sign(b)
    if sign is None:
        return arithmetic.unknown()
    if sign == 0:
        return math.nan if remains else arithmetic.divide(a, b, side)
    digits = arithmetic.digits(a), arithmetic.digits(b)
    if digits[0] is None or digits[1] is None or abs(digits[0][1] - digits[1][1]) > _APART:
        quotient = arithmetic.whole(a / b, down)
        return a - quotient * b if remains else quotient
    unit = min(digits[0][1], digits[1][1])
    first, second = (mantissa << exponent - unit for mantissa, exponent in digits)  # type: ignore[misc]
    times = first // second
    times += down == "trunc" and times < 0 and first != times * second
    return arithmetic.scaled(first - times * second, unit) if remains else arithmetic.scaled(times, 0)


def has_special(line: Sequence[Number]) -> bool:
    """True if an infinity or NaN is among the numbers."""
    return float in set(map(type, line))


class Balls(Arithmetic):
    """Computes with Arb balls. Every result encloses the real number."""

    bits = arb_bits
    finite = staticmethod(flint.arb)
    unknown = staticmethod(flint.arb.nan)
    pi = staticmethod(flint.arb.pi)
    is_known = staticmethod(flint.arb.is_finite)
    opposite = staticmethod(partial(flint.arb.neg, exact=True))

    def numbers(self, values: Iterable[float]) -> list[Number]:
        given = list(values)
        return list(map(flint.arb, given)) if math.isfinite(sum(given)) else super().numbers(given)

    def compared(self, a: Number, b: Number) -> int | None:
        return -1 if a < b else 1 if a > b else 0 if a == b else None

    def extreme_of(self, row: Sequence[Number], largest: bool) -> Number:
        if not has_special(row):
            found = max(row) if largest else min(row)
            if all(map(found.__ge__ if largest else found.__le__, row)):  # these hold only if they are certain
                return found
        return super().extreme_of(row, largest)

    def sign(self, a: Number) -> int | None:
        return 1 if a > 0 else -1 if a < 0 else 0 if a.is_zero() else None

    def nonnegative(self, a: Number) -> Number:
        return a if isinstance(a, float) else a.nonnegative_part()

    def digits(self, a: Number) -> tuple[int, int] | None:
        if not a.is_exact():
            return None
        mantissa, exponent = a.man_exp()
        return int(mantissa), int(exponent)

    def scaled(self, mantissa: int, exponent: int) -> Number:
        return flint.arb((mantissa, exponent))

    def evaluated(self, function: Function, x: Number) -> Number:
        return function.arb(x)

    def whole(self, a: Number, down: str) -> Number:
        low, high = a.floor(), a.ceil()
        return low if down == "floor" or a >= 0 else high if a <= 0 else low.union(high)

    def union(self, a: Number, b: Number) -> Number:
        if isinstance(a, float) or isinstance(b, float):
            same = a == b or (a != a and b != b and isinstance(a, float) and isinstance(b, float))
            return a if same else self.unknown()
        return a.union(b)

    def doubtful_extreme(self, a: Number, b: Number, largest: bool) -> Number:
        if isinstance(a, float) or isinstance(b, float):
            return self.unknown()
        return a.max(b) if largest else a.min(b)

    def summed(self, terms: Sequence[Number]) -> Number:
        return sum(terms, flint.arb(0))

    def summed_exponentials(self, exponents: Sequence[Number]) -> Number:
        cut = max(map(flint.arb.lower, exponents)) - (flint.ctx.prec + _BELOW) * flint.arb.const_log2()
        kept = [x for x in exponents if not x < cut]
        rest = (len(exponents) - len(kept)) * cut.exp()
        return self.summed(list(map(flint.arb.exp, kept))) + flint.arb(0, rest.upper())

    def dotted(self, rows: Sequence[Any], columns: Sequence[Any], pairs: Iterable[tuple[int, int]]) -> list[Number]:
        flat: list[Any] = [None if line is None else flint.arb_mat(1, len(line), line) for line in rows]
        tall: list[Any] = [None if line is None else flint.arb_mat(len(line), 1, line) for line in columns]
        return [(flat[a] * tall[b])[0, 0] for a, b in pairs]


class Decimals(Arithmetic):
    """Computes with mpmath numbers at the working precision. Every question is decided, without an error bound."""

    bits = staticmethod(mp_bits)
    opposite = staticmethod(partial(mp.fneg, exact=True))
    summed = staticmethod(mp.fsum)

    def finite(self, value: float) -> Number:
        made: Number = mp.make_mpf(from_float(value))  # no precision here is below 53 bits
        return made

    def unknown(self) -> Number:
        return math.nan

    def pi(self) -> Number:
        return +mp.pi

    def is_known(self, a: Number) -> bool:
        return True

    def compared(self, a: Number, b: Number) -> int:
        return int(mpf_cmp(a._mpf_, b._mpf_))

    def extreme_of(self, row: Sequence[Number], largest: bool) -> Number:
        if has_special(row):
            return super().extreme_of(row, largest)
        return (max if largest else min)(row, key=cmp_to_key(self.compared))

    def sign(self, a: Number) -> int | None:
        negative, mantissa, exponent, _ = a._mpf_  # mp.sign takes eight times as long
        if not mantissa and exponent:  # infinities and NaN have no mantissa
            return int(mp.sign(a))
        return 0 if not mantissa else -1 if negative else 1

    def digits(self, a: Number) -> tuple[int, int] | None:
        sign, mantissa, exponent, _ = a._mpf_
        return (-int(mantissa) if sign else int(mantissa)), exponent

    def scaled(self, mantissa: int, exponent: int) -> Number:
        return mp.ldexp(mp.mpf(mantissa), exponent)

    def evaluated(self, function: Function, x: Number) -> Number:
        try:
            return function.mp(x)
        except OverflowError as error:  # e to a number of thousands of bits, which no machine holds
            raise BeyondEffort(f"mpmath has no {function.name} of a number beyond 2^{mp.mag(x):,}") from error

    def whole(self, a: Number, down: str) -> Number:
        return mp.floor(a) if down == "floor" or a >= 0 else mp.ceil(a)

    def union(self, a: Number, b: Number) -> Number:
        return a

    def summed_exponentials(self, exponents: Sequence[Number]) -> Number:
        cut = (self.extreme_of(exponents, True) - (mp.prec + _BELOW) * mp.ln2)._mpf_
        return self.summed([mp.exp(x) for x in exponents if mpf_cmp(x._mpf_, cut) >= 0])

    def dotted(self, rows: Sequence[Any], columns: Sequence[Any], pairs: Iterable[tuple[int, int]]) -> list[Number]:
        flat, tall = ([None if line is None else _integers(line) for line in lines] for lines in (rows, columns))
        found = []
        for a, b in pairs:
            first, second = flat[a], tall[b]
            if first is None or second is None:
                found.append(mp.fdot(rows[a], columns[b]))
            else:
                found.append(mp.ldexp(mp.mpf(sum(map(mul, first[0], second[0]))), first[1] + second[1]))
        return found


def _integers(line: Sequence[Any]) -> tuple[list[int], int] | None:
    """Returns mpmath numbers as integers times one power of two; None if their exponents are too far apart.

    Inner products of such integers are ten times as fast as `mp.fdot`.
    """
    parts = [number._mpf_ for number in line]
    exponents = [exponent for _, mantissa, exponent, _ in parts if mantissa]
    least = min(exponents, default=0)
    if exponents and max(exponents) - least > _APART:
        return None
    return [
        (-mantissa if sign else mantissa) << exponent - least if mantissa else 0
        for sign, mantissa, exponent, _ in parts
    ], least
