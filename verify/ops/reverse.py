"""The gradient of an mpmath formula on a row, for all its elements at once, by reverse differentiation.

    gradient(lambda row: [mp.exp(v) for v in row], [mp.mpf(1), mp.mpf(2)], [mp.mpf(1), mp.mpf(1)])

The formula runs once on numbers that write down what is done to them; going back through the list gives every
derivative, for a few times the price of one evaluation. A central difference, the other way to a derivative of an
unknown formula, evaluates the formula anew for each element.

Whatever cannot be followed (a function of mpmath that is not listed here, a derivative that does not exist at this
point) raises `Untraceable`, never a wrong number: `Traced` does not turn into an mpf by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import mpmath
from mpmath import mp

_LONGEST = 1 << 20  # operations; beyond, the list would take gigabytes


class Untraceable(Exception):
    """The formula does something whose derivative is not known here."""


class _Tape:
    """What was computed, in order: for each number, what it depends on and with which derivatives."""

    def __init__(self) -> None:
        self.edges: list[tuple[tuple[int, Any], ...]] = []

    def add(self, value: Any, edges: Iterable[tuple[int, Any]]) -> Traced:
        if isinstance(value, mp.mpc):
            raise Untraceable("the formula leaves the real numbers")
        if len(self.edges) >= _LONGEST:
            raise Untraceable(f"the formula takes more than {_LONGEST} operations")
        self.edges.append(tuple(edges))
        return Traced(self, len(self.edges) - 1, value)

    def back(self, seeds: Iterable[tuple[int, Any]], count: int) -> list[tuple[Any, int]]:
        """For each of the first `count` numbers: its derivative, and the exponent of the largest term in it.

        The derivative is the sum over all paths to the seeds of the products along them.
        """
        totals: list[Any] = [None] * len(self.edges)
        sizes = [0] * len(self.edges)

        def arrive(place: int, term: Any, size: int) -> None:
            before = totals[place]
            totals[place] = term if before is None else before + term
            sizes[place] = size if before is None else max(sizes[place], size)

        for place, seed in seeds:
            if seed != 0:
                arrive(place, seed, _exponent(seed))
        one = mp.one
        for place in range(len(self.edges) - 1, count - 1, -1):
            total, size = totals[place], sizes[place]
            if total is None:
                continue
            for source, derivative in self.edges[place]:
                if derivative is one:
                    arrive(source, total, size)
                elif derivative != 0:
                    arrive(source, total * derivative, size + _exponent(derivative))
        return [(mp.zero if total is None else total, size) for total, size in zip(totals, sizes, strict=True)][:count]


def _exponent(number: Any) -> int:
    """The exponent e with |number| < 2^e of a number that is not zero."""
    _, _, exponent, length = number._mpf_
    return int(exponent) + int(length)


class Traced:
    """A number that remembers where it comes from. It computes like an mpf and compares by its value."""

    __slots__ = ("place", "tape", "value")

    def __init__(self, tape: _Tape, place: int, value: Any) -> None:
        self.tape, self.place, self.value = tape, place, value

    def then(self, value: Any, derivative: Any) -> Traced:
        """The result of a function of this number alone."""
        return self.tape.add(value, [(self.place, derivative)])

    def _with(self, other: Any, value: Any, mine: Any, theirs: Any) -> Traced:
        edges = [(self.place, mine)]
        if isinstance(other, Traced):
            edges.append((other.place, theirs))
        return self.tape.add(value, edges)

    def __add__(self, other: Any) -> Traced:
        return self._with(other, self.value + _value(other), mp.one, mp.one)

    def __sub__(self, other: Any) -> Traced:
        return self._with(other, self.value - _value(other), mp.one, -mp.one)

    def __rsub__(self, other: Any) -> Traced:
        return self.then(_value(other) - self.value, -mp.one)

    def __mul__(self, other: Any) -> Traced:
        return self._with(other, self.value * _value(other), _value(other), self.value)

    def __truediv__(self, other: Any) -> Traced:
        divisor = _value(other)
        quotient = self.value / divisor
        return self._with(other, quotient, 1 / divisor, -quotient / divisor)

    def __rtruediv__(self, other: Any) -> Traced:
        quotient = _value(other) / self.value
        return self.then(quotient, -quotient / self.value)

    def __pow__(self, other: Any) -> Traced:
        exponent = _value(other)
        result = self.value**exponent
        # 0^0 = 1 is constant; the logarithm is wanted only where the exponent moves
        mine = mp.zero if exponent == 0 else exponent * self.value ** (exponent - 1)
        theirs = result * mp.log(self.value) if isinstance(other, Traced) else None
        return self._with(other, result, mine, theirs)

    def __rpow__(self, other: Any) -> Traced:
        result = _value(other) ** self.value
        return self.then(result, result * mp.log(_value(other)))

    def __neg__(self) -> Traced:
        return self.then(-self.value, -mp.one)

    def __pos__(self) -> Traced:
        return self

    def __abs__(self) -> Traced:
        if self.value == 0:
            raise Untraceable("|x| has no derivative at 0")
        return self.then(abs(self.value), mp.sign(self.value))

    __radd__ = __add__
    __rmul__ = __mul__

    def __bool__(self) -> bool:
        return bool(self.value != 0)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == _value(other))

    def __lt__(self, other: Any) -> bool:
        return bool(self.value < _value(other))

    def __le__(self, other: Any) -> bool:
        return bool(self.value <= _value(other))

    def __gt__(self, other: Any) -> bool:
        return bool(self.value > _value(other))

    def __ge__(self, other: Any) -> bool:
        return bool(self.value >= _value(other))

    __hash__ = None  # type: ignore[assignment]


def _value(number: Any) -> Any:
    return number.value if isinstance(number, Traced) else mp.convert(number)  # a float is taken exactly


# function of mpmath -> its derivative, from the argument x and the value y
_DERIVATIVES: dict[str, Callable[[Any, Any], Any]] = {
    "exp": lambda x, y: y,
    "expm1": lambda x, y: y + 1,
    "log": lambda x, y: 1 / x,
    "ln": lambda x, y: 1 / x,
    "log1p": lambda x, y: 1 / (1 + x),
    "sqrt": lambda x, y: 1 / (2 * y),
    "sin": lambda x, y: mp.cos(x),
    "cos": lambda x, y: -mp.sin(x),
    "tan": lambda x, y: 1 + y * y,
    "sinh": lambda x, y: mp.cosh(x),
    "cosh": lambda x, y: mp.sinh(x),
    "tanh": lambda x, y: mp.sech(x) ** 2,
    "atan": lambda x, y: 1 / (1 + x * x),
    "asinh": lambda x, y: 1 / mp.sqrt(1 + x * x),
    "erf": lambda x, y: 2 * mp.exp(-x * x) / mp.sqrt(mp.pi),
    "erfc": lambda x, y: -2 * mp.exp(-x * x) / mp.sqrt(mp.pi),
}


def _followed(name: str) -> Callable[..., Any]:
    """A function of mpmath that takes `Traced` numbers too."""
    plain, derivative = getattr(mp, name), _DERIVATIVES[name]

    def function(x: Any, *more: Any, **options: Any) -> Any:
        if not isinstance(x, Traced) or more or options:
            return plain(x, *more, **options)  # which refuses a Traced number by a TypeError
        y = plain(x.value)
        return x.then(y, derivative(x.value, y))

    return function


def _fabs(x: Any) -> Any:
    return abs(x) if isinstance(x, Traced) else _PLAIN_FABS(x)


def _fsum(terms: Iterable[Any], *more: Any, **options: Any) -> Any:
    items = list(terms)
    traced = [item for item in items if isinstance(item, Traced)]
    if not traced or more or options:
        return _PLAIN_FSUM(items, *more, **options)
    total = _PLAIN_FSUM([_value(item) for item in items])
    return traced[0].tape.add(total, [(item.place, mp.one) for item in traced])


def _fdot(a: Iterable[Any], b: Iterable[Any] | None = None, *more: Any, **options: Any) -> Any:
    pairs = list(a) if b is None else list(zip(a, b, strict=True))
    if more or options or not any(isinstance(item, Traced) for pair in pairs for item in pair):
        return _PLAIN_FDOT(pairs, None, *more, **options)
    return _fsum(x * y for x, y in pairs)


_PLAIN_FABS, _PLAIN_FSUM, _PLAIN_FDOT = mp.fabs, mp.fsum, mp.fdot
_FUNCTIONS = {name: _followed(name) for name in _DERIVATIVES} | {"fabs": _fabs, "fsum": _fsum, "fdot": _fdot}


@contextmanager
def _following() -> Iterator[None]:
    """mpmath's functions take `Traced` numbers inside, by whichever of the two names a formula knows them."""
    with ExitStack() as stack:
        for place in (mp, mpmath):
            for name, function in _FUNCTIONS.items():
                stack.enter_context(mock.patch.object(place, name, function))
        yield


def gradient(formula: Callable[..., Any], values: Sequence[Any], upstream: Sequence[Any]) -> list[Any]:
    """The gradient of <upstream, formula(values)> at mpf `values`, at the working precision.

    An element that is smaller than its terms by three quarters of the working precision is noise and given as zero:
    who wants to know whether it is one asks at a higher precision.
    """
    tape = _Tape()
    row = [tape.add(value, ()) for value in values]
    with _following():
        try:
            outputs = list(formula(row))
        except (TypeError, AttributeError, ValueError, ZeroDivisionError) as error:
            raise Untraceable(str(error)) from error
    if len(outputs) != len(values):
        raise Untraceable("the formula changes the length of the row")
    seeds = [(y.place, g) for y, g in zip(outputs, upstream, strict=True) if isinstance(y, Traced)]
    slopes = tape.back(seeds, len(values))
    if not all(mp.isfinite(slope) for slope, _ in slopes):
        raise Untraceable("a derivative is not finite")
    lost = 3 * mp.prec // 4
    return [mp.zero if slope == 0 or _exponent(slope) < size - lost else slope for slope, size in slopes]
