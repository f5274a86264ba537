"""Numbers of the oracle: 500 bits, with a tape for gradients, a direction for ties, and a bound of a kernel's rounding.

The oracle shares no code with verify. A `Number` holds its exact value (in 500 bits), the numbers that it was computed
from with its slopes, how it moves in the direction of the run (`drift`), and how far the roundings of a kernel may move
it (`error`). A decision between equal numbers goes by their drifts; one between numbers that roundings may reverse
opens whatever depends on it, because the oracle then cannot say which answer is right.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import cmp_to_key
from typing import Any

from mpmath import mp, mpf

mp.prec = 500
NEAR = 8.0  # decisions within this many worst-case errors are open
SAME = 2.0**-380  # differences below this part of the kernel's own error are 0 in exact arithmetic
NAN = mpf("nan")
LOWEST = {24: -149, 53: -1074}  # the exponent of the smallest number, by digits


class Oracled(Exception):
    """The oracle does not know the function or the form of its arguments."""


class Run:
    """One evaluation: with a direction or without, exact or with disturbed steps."""

    now: Run

    def __init__(
        self,
        bits: int,
        directed: bool,
        disturbed: int | None = None,
        last: bool = False,
        kinds: Sequence[Any] = (),
        shuffled: int | None = None,
    ) -> None:
        self.bits, self.directed, self.ties = bits, directed, 0
        self.nears = 0  # numbers in whose place roundings may choose another
        self.kinds = kinds  # the formats of the operands
        self.last = last  # of equal numbers that move alike, as copies of a constant do, the last one wins
        self.order = None if shuffled is None else random.Random(shuffled)  # or any of them
        self.unit, self.finest = 2.0**-bits, mpf(2) ** LOWEST[bits]
        self.source = None if disturbed is None else random.Random(disturbed)
        self.tape: list[Number] = []
        Run.now = self

    def shaken(self, value: Any, unit: float) -> Any:
        """Returns a value as one rounding might leave it."""
        return value * (1 + unit * self.source.uniform(-1, 1)) if self.source and mp.isfinite(value) else value


class Number:
    """A number on the tape."""

    __slots__ = ("drift", "error", "grad", "grad_open", "grid", "kink", "open", "outer", "parents", "value")

    def __init__(self, value: Any, error: float = 0.0, drift: float = 0.0, open: bool = False) -> None:
        self.value, self.error, self.drift, self.open = value, error, drift, open
        self.parents: Sequence[tuple[Number, Any]] = ()
        self.kink = self.grad_open = False
        self.grad, self.outer = None, 0.0
        self.grid: tuple[int, int] | None = None  # the format that the gradient is rounded to, too

    def __add__(self, other: Any) -> Number:
        other = constant(other)
        return made(self.value + other.value, ((self, 1), (other, 1)))

    def __sub__(self, other: Any) -> Number:
        other = constant(other)
        return made(self.value - other.value, ((self, 1), (other, -1)))

    def __mul__(self, other: Any) -> Number:
        other = constant(other)
        return made(self.value * other.value, ((self, other.value), (other, self.value)))

    def __truediv__(self, other: Any) -> Number:
        other = constant(other)
        if other.value == 0:  # the sign of a zero is beyond the oracle
            return made(NAN, ((self, NAN), (other, NAN)), open=True)
        found = self.value / other.value
        return made(found, ((self, 1 / other.value), (other, -found / other.value)))

    def __neg__(self) -> Number:
        return made(-self.value, ((self, -1),), rounds=False)

    def __radd__(self, other: Any) -> Number:
        return constant(other) + self

    def __rsub__(self, other: Any) -> Number:
        return constant(other) - self

    def __rmul__(self, other: Any) -> Number:
        return constant(other) * self

    def __rtruediv__(self, other: Any) -> Number:
        return constant(other) / self


def constant(value: Any) -> Number:
    """Returns a number that nothing moves. One that the format does not hold is off by its rounding."""
    if isinstance(value, Number):
        return value
    exact = mpf(value)
    return Number(exact, 0.0 if held(exact) else abs(float(exact)) * Run.now.unit)


def held(value: Any) -> bool:
    """Says whether the format has digits enough for a value."""
    return not mp.isfinite(value) or value._mpf_[3] <= Run.now.bits


def made(
    value: Any, parents: Iterable[tuple[Number, Any]], rounds: bool = True, open: bool = False, kink: bool = False
) -> Number:
    """Returns a new number on the tape. rounds=False: a kernel gets it without a rounding of its own."""
    found, run = Number(value, open=open), Run.now
    found.parents, found.kink = tuple(parents), kink
    error = drift = 0.0
    for each, slope in found.parents:
        found.open = found.open or each.open
        if each.error:
            error += abs(float(slope)) * each.error
        if each.drift:
            drift += float(slope) * each.drift
    if value and error and mp.isfinite(value) and abs(value) < error * SAME:
        found.value = value = mpf(0)
    if rounds and not held(value):
        error += abs(float(value)) * run.unit
        if run.source:
            found.value = run.shaken(value, run.unit)
    found.error, found.drift = error, drift
    found.open = found.open or error != error or drift != drift
    run.tape.append(found)
    return found


def nearest(value: Any, digits: int, least: int, error: float) -> tuple[Any, bool]:
    """Returns the nearest number of a format, ties to even, and whether an error may lead to another.

    The format has so many digits, and normal numbers from 2^least to 2^(2 - least), which no number is beyond.
    """
    if not value or not mp.isfinite(value):
        return value, False
    exponent = max(value._mpf_[2] + value._mpf_[3] - digits, least - digits + 1)
    scaled = mp.ldexp(value, -exponent)
    found = mp.nint(scaled)  # to even
    if mp.ldexp(abs(found), exponent) >= mpf(2) ** (2 - least):
        raise Oracled("a number beyond the range of a narrow format")
    room = mpf(1) / 2 - abs(scaled - found)
    return mp.ldexp(found, exponent), bool(error and room <= NEAR * mp.ldexp(mpf(error), -exponent))


def stored(x: Number, digits: int, least: int) -> Number:
    """Returns a number as a narrow format stores it. Its gradient is stored there too."""
    value, near = nearest(x.value, digits, least, x.error)
    found = Number(value, open=x.open or near)
    found.parents, found.grid = ((x, 1),), (digits, least)
    Run.now.tape.append(found)
    return found


def sign_between(a: Number, b: Number, exact: bool = False) -> tuple[int, bool]:
    """Returns the sign of a - b, and whether roundings may reverse it. Equal numbers go by the direction.

    exact: equal numbers that hold no rounding are equal in every direction, as `>` sees them.
    """
    if a is b:
        return 0, False
    if a.value == b.value or abs(a.value - b.value) <= SAME * (a.error + b.error):
        if exact and not a.error + b.error:
            return 0, False
        Run.now.ties += 1
        if not Run.now.directed:
            return 0, False
        by = a.drift - b.drift
        return (0 if not abs(by) > 1e-9 * max(abs(a.drift), abs(b.drift)) else 1 if by > 0 else -1), False
    gap = a.value - b.value
    if mp.isnan(gap):
        return 0, False
    near = mp.isfinite(gap) and (abs(gap) <= NEAR * (a.error + b.error) or abs(gap) < Run.now.finest)
    return (1 if gap > 0 else -1), near


def chosen(among: Sequence[Number], winner: Number, near: bool) -> Number:
    """Returns the winner; if roundings may choose another, one whose slopes are open."""
    Run.now.nears += near
    return (
        made(winner.value, [(each, int(each is winner)) for each in among], rounds=False, kink=True) if near else winner
    )


def largest(row: Sequence[Number], sign: int = 1, shared: bool = False) -> tuple[Number, int, bool]:
    """Returns the largest (sign=-1: smallest) of a row, its place, and whether roundings may choose another.

    shared: without a direction all tied numbers share the slope, as at amax.
    """
    place, near, tied = 0, False, [row[0]]
    for at, each in enumerate(row):
        if mp.isnan(each.value):
            return each, at, False
    for at in range(1, len(row)):
        way, _ = sign_between(row[at], row[place])
        if way * sign > 0:
            place, tied = at, [row[at]]
        elif way == 0 and row[at] is not row[place]:
            order = Run.now.order  # any of those that tie so far is as likely
            place = at if (order.random() * (len(tied) + 1) < 1 if order else Run.now.last) else place
            tied.append(row[at])
    winner = row[place]
    for each in row:
        if each is not winner and each.value != winner.value:
            near = near or sign_between(each, winner)[1]
    if len(tied) > 1 and shared and not Run.now.directed:
        winner = made(winner.value, [(each, mpf(1) / len(tied)) for each in tied], rounds=False)
    return chosen(row, winner, near), place, near


def ranked(row: Sequence[Number], descending: bool) -> tuple[list[int], set[int]]:
    """Returns the places of a row in order, equal ones by the direction, and the ranks that roundings may exchange."""
    if any(mp.isnan(each.value) for each in row):
        raise Oracled("NaN in a sort")
    way = -1 if descending else 1
    places = list(range(len(row)))[:: -1 if Run.now.last else 1]
    if Run.now.order:
        Run.now.order.shuffle(places)
    order = sorted(places, key=cmp_to_key(lambda i, j: way * sign_between(row[i], row[j])[0]))
    near: set[int] = set()
    for at in range(len(row) - 1):
        for other in range(at + 1, len(row)):
            a, b = row[order[at]], row[order[other]]
            if a.value != b.value and sign_between(a, b)[1]:
                near |= set(range(at, other + 1))
    return order, near


def kinked(x: Number, at: Any, below: Any, here: Any, above: Any, value: Callable[[Any], Any]) -> Number:
    """Returns a function that is continuous at a kink: its slopes below, at (PyTorch's) and above it."""
    way, near = sign_between(x, constant(at))
    if mp.isnan(x.value):
        return made(NAN, ((x, NAN),))
    return made(value(x.value), ((x, (below, here, above)[way + 1]),), rounds=False, kink=near)


def backward(outputs: Iterable[tuple[Number, Any]]) -> None:
    """Fills in the gradients of everything on the tape of this run."""
    run = Run.now
    for number, upstream in outputs:
        number.grad = mpf(upstream) + (number.grad or 0)
    for number in reversed(run.tape):
        if number.grad is None:
            continue
        if run.source and number.outer:
            number.grad = run.shaken(number.grad, number.outer)
        unclear = number.open or number.kink or number.grad_open
        if number.grid:
            near = float(abs(number.grad)) * run.unit if number.grad._mpf_[3] > number.grid[0] + 1 else 0.0
            number.grad, opened = nearest(number.grad, *number.grid, near)
            unclear = unclear or opened
        for parent, slope in number.parents:
            share = run.shaken(number.grad * slope, run.unit) if run.source else number.grad * slope
            parent.grad = share if parent.grad is None else parent.grad + share
            parent.grad_open = parent.grad_open or unclear
