"""Numbers of the oracle: 500 bits, with a tape for gradients, a direction for ties, and a bound of a kernel's rounding.

The oracle shares no code with verify. A `Number` holds its exact value (in 500 bits), the numbers that it was computed
from with its slopes, how it moves in the direction of the run (`drift`), and how far the roundings of a kernel may move
it (`error`). A decision between equal numbers goes by their drifts; one between numbers that roundings may reverse
opens whatever depends on it, because the oracle then cannot say which answer is right.

A run with a `Choice` takes such decisions instead of opening them: every number that some honest kernel rounds is
pushed (`push`) by what its roundings may come to (`loose`), and what follows from it is pushed along.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Choice:
    """Which of the admissible decisions a run takes, beside its direction.

    seed: of the order of copies and of all pushes. size: of the pushes, up to 1; 0 leaves x + tiny p alone. level: many
    are equal, and computed numbers that they leave equal are equal in comparisons. lean: 1 or -1, all have this sign,
    so that steps alike move numbers alike. orders, pushes: seeds of orders (by their number in the run), and pushes by
    the place of the number that is pushed. sides: the comparisons of equal given numbers that take the side of the
    direction, by their number in the run, and the numbers whose kinks have PyTorch's slope, by a negative one.
    """

    seed: int = 0
    size: float = 0.0
    level: bool = False
    lean: int = 0
    orders: Mapping[int, int] = field(default_factory=dict)
    pushes: Mapping[int, float] = field(default_factory=dict)
    sides: frozenset[int] = frozenset()

    def order(self, place: int) -> random.Random:
        return random.Random(f"{self.seed}:{place}:{self.orders.get(place, '')}")

    def drift(self, place: int) -> float:
        """Returns how an integer, which no direction reaches, moves for ties; in half of the choices none does."""
        source = random.Random(f"{self.seed}:integers")
        return random.Random(f"{self.seed}:{place}").uniform(-1, 1) if source.random() < 0.5 else 0.0

    def push(self, place: int) -> float:
        """Returns a number between -1 and 1 for one rounding."""
        if place in self.pushes:
            return self.pushes[place]
        mixed = (self.seed * 0x9E3779B97F4A7C15 + (place + 1) * 0xBF58476D1CE4E5B9) % 2**64
        mixed = (mixed ^ (mixed >> 31)) * 0x94D049BB133111EB % 2**64
        share = (mixed ^ (mixed >> 29)) / 2**64
        if self.lean:
            return self.size * self.lean * (0.8 + 0.2 * share)
        return self.size * (round(1.8 * share - 0.9) if self.level else 2.0 * share - 1.0)


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
        choice: Choice | None = None,
        strength: float = 1.0,
        signs: Sequence[int] | None = None,
    ) -> None:
        self.strength = strength  # of each disturbance, in roundings
        self.signs: list[int] = list(signs or ())  # of the comparisons that order numbers; disturbed, those of another
        self.replays = signs is not None
        self.compared = 0  # such comparisons so far
        self.bits, self.directed, self.ties = bits, directed, 0
        self.nears = 0  # numbers in whose place roundings may choose another
        self.stores = 0  # numbers that a narrow format rounds
        self.kinds = kinds  # the formats of the operands
        self.last = last  # of equal numbers that move alike, as copies of a constant do, the last one wins
        self.choice = choice  # or any of them
        self.orders = self.sides = 0  # orders and comparisons so far
        self.free: set[int] = set()  # orders of equal numbers
        self.sided: set[int] = set()  # comparisons of equal given numbers, and numbers at kinks
        self.kinks: dict[int, int] = {}  # id(number with kinks) -> its own number, from -1 down
        self.decisive: set[int] = set()  # places on the tape of numbers whose roundings decide
        self.unit, self.finest = 2.0**-bits, mpf(2) ** LOWEST[bits]
        self.outer = self.unit  # the same of what PyTorch stores between operators
        self.inner = self.unit  # and of what it computes in this operator, which may be float32 in a float64 program
        self.source = None if disturbed is None else random.Random(disturbed)
        self.tape: list[Number] = []
        self.step = 0  # the operator of PyTorch that runs; of an element, where their gradients are stored one by one
        self.digits = 0  # of the 16-bit format of what this operator returns
        Run.now = self

    def shaken(self, value: Any, unit: float) -> Any:
        """Returns a value as one rounding might leave it."""
        if not self.source or not mp.isfinite(value):
            return value
        return value * (1 + self.strength * unit * self.source.uniform(-1, 1))

    def order(self) -> random.Random | None:
        """Returns what orders copies at the next place; None: `last` does."""
        self.orders += 1
        return None if self.choice is None else self.choice.order(self.orders)


@dataclass(frozen=True)
class Terms:
    """A number as a sum of terms that its format holds: exact in every order if no partial sum needs more bits."""

    grain: float  # exponent of the largest power of two that divides every term
    bulk: float  # sum of their sizes
    count: int

    @classmethod
    def of(cls, value: Any) -> Terms | None:
        """Returns a number that is one term, or None if the format does not hold it."""
        if not value:
            return cls(math.inf, 0.0, 0)
        return cls(value._mpf_[2], abs(float(value)), 1) if mp.isfinite(value) and held(value) else None


NEVER = Terms(-math.inf, math.inf, 9)  # of what some kernel rounds in any case


def joined(a: Number, b: Number, product: bool = False) -> Terms | None:
    """Returns the terms of a sum, or of a product that some kernel multiplies out. Only a choice needs them."""
    if Run.now.choice is None:
        return None
    first, second = a.known(), b.known()
    if first is None or second is None:
        one = first.bulk if first else abs(float(a.value))
        other = second.bulk if second else abs(float(b.value))
        return Terms(-math.inf, one * other if product else one + other, 9)
    if product:
        return Terms(first.grain + second.grain, first.bulk * second.bulk, first.count * second.count)
    return Terms(min(first.grain, second.grain), first.bulk + second.bulk, first.count + second.count)


class Number:
    """A number on the tape."""

    __slots__ = """adds again drift error exact grad grad_open grid inner kink loose open outer parents place push
    saved shares step terms value""".split()

    def __init__(self, value: Any, error: float = 0.0, drift: float = 0.0, open: bool = False) -> None:
        self.value, self.error, self.drift, self.open = value, error, drift, open
        self.loose, self.push, self.place = error, 0.0, -1
        self.terms: Terms | bool | None = True  # True: not known yet
        self.parents: Sequence[tuple[Number, Any]] = ()
        self.kink = self.grad_open = self.adds = False  # adds: some step before it, or it, is a sum
        self.grad, self.outer, self.exact = None, 0.0, True  # exact: 16 bits hold it and its gradient
        self.saved: Callable[[], Sequence[Any]] | None = None  # slopes of the parents, from what a kernel keeps
        self.again: Any = None  # the same number as a kernel computes it again in its backward
        self.shares: dict[int, Any] = {}  # of the gradient, by the operators that they come from
        self.step, self.inner = 0, Run.now.inner
        self.grid: tuple[int, int] | None = None  # the format that the gradient is rounded to, too

    def __add__(self, other: Any) -> Number:
        other = constant(other)
        return made(self.value + other.value, ((self, 1), (other, 1)), terms=joined(self, other))

    def __sub__(self, other: Any) -> Number:
        other = constant(other)
        return made(self.value - other.value, ((self, 1), (other, -1)), terms=joined(self, other))

    def __mul__(self, other: Any) -> Number:
        other = constant(other)
        terms = joined(self, other, product=True)
        return made(self.value * other.value, ((self, other.value), (other, self.value)), terms=terms)

    def __truediv__(self, other: Any) -> Number:
        other = constant(other)
        if other.value == 0:  # the sign of a zero is beyond the oracle
            return made(NAN, ((self, NAN), (other, NAN)), open=True)
        found = self.value / other.value
        by = other.known() if Run.now.choice is not None else None
        power = by is not None and by.bulk == 2.0**by.grain
        terms = None if power or Run.now.choice is None else NEVER  # many kernels multiply by the reciprocal
        return made(found, ((self, 1 / other.value), (other, -found / other.value)), terms=terms)

    def __neg__(self) -> Number:
        return made(-self.value, ((self, -1),), rounds=False)

    def known(self) -> Terms | None:
        """Returns the terms that the number is the sum of; None if some kernel rounds it."""
        if isinstance(self.terms, bool):
            self.terms = None if self.loose else Terms.of(self.value)
        return self.terms

    def detached(self) -> Number:
        """Returns the same number for a program that takes no gradient of it."""
        found = Number(self.value, self.error, self.drift, self.open)
        found.loose, found.push, found.place, found.terms = self.loose, self.push, self.place, self.terms
        return found

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
    found = Number(exact)
    if not held(exact):
        found.error = abs(float(exact)) * Run.now.unit
        pushed(found, found.error, hash(exact))  # the same wherever it stands
    return found


def held(value: Any) -> bool:
    """Says whether the format has digits enough for a value."""
    return not mp.isfinite(value) or value._mpf_[3] <= Run.now.bits


def made(
    value: Any,
    parents: Iterable[tuple[Number, Any]],
    rounds: bool = True,
    open: bool = False,
    kink: bool = False,
    terms: Terms | None = None,
) -> Number:
    """Returns a new number on the tape. rounds=False: a kernel gets it without a rounding of its own."""
    found, run = Number(value, open=open), Run.now
    found.parents, found.kink = tuple(parents), kink
    error = drift = loose = push = 0.0
    for each, slope in found.parents:
        found.open, found.adds = found.open or each.open, found.adds or each.adds
        if each.error or each.loose:
            steep = float(slope)
            error, loose, push = (
                error + abs(steep) * each.error,
                loose + abs(steep) * each.loose,
                push + steep * each.push,
            )
        if each.drift:
            drift += float(slope) * each.drift
    if value and error and mp.isfinite(value) and abs(value) < error * SAME:
        found.value = value = mpf(0)
    if rounds and (terms is NEVER or not held(value)):
        error += abs(float(value)) * run.unit
        if run.source:
            found.value = run.shaken(value, run.inner)
    found.error, found.drift, found.loose, found.push = error, drift, loose, push
    found.open = found.open or error != error or drift != drift
    found.place, found.step = len(run.tape), run.step
    run.tape.append(found)
    if run.choice is None:
        return found
    if rounds and (size := _rounded_size(found, terms)):
        pushed(found, size * run.unit, found.place)
    elif not rounds:
        same = [each.terms for each, slope in found.parents if abs(slope) == 1 and abs(each.value) == abs(value)]
        found.terms = same[0] if same else found.terms
    if found.loose:
        found.terms = None
    return found


def _rounded_size(found: Number, terms: Terms | None) -> float:
    """Returns the size of the number that some honest kernel rounds here; 0: the step is exact in every order."""
    value, bits = found.value, Run.now.bits
    if not mp.isfinite(value):
        return 0.0
    if terms is None:
        return 0.0 if held(value) else abs(float(value))
    exact = terms.count == 0 or (held(value) and terms.grain > -math.inf)
    if exact and (terms.count <= 2 or terms.bulk <= 2.0 ** (bits + terms.grain)):
        found.terms = terms
        return 0.0
    cancels = abs(value) < terms.bulk * 2.0**-40
    return terms.bulk if terms.bulk < math.inf and (cancels or terms.count > 2) else abs(float(value))


def pushed(number: Number, size: float, place: int) -> None:
    """Adds one rounding of a size, and pushes a number by it as far as the run's choice says."""
    number.loose, choice = number.loose + size, Run.now.choice
    if choice is not None and (choice.size or choice.pushes):
        number.push += NEAR * size * choice.push(place)


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


def stored(x: Number, digits: int, least: int, computed: bool) -> Number:
    """Returns a number as a narrow format stores it. Its gradient is stored there too.

    computed: by an operator of that format, which may round its steps to it as well.
    """
    value, near = nearest(x.value, digits, least, x.error)
    run = Run.now
    run.stores += value != x.value
    if run.choice is not None and (near or x.loose or computed):
        run.decisive |= {x.place, len(run.tape)}
        inner = NEAR * run.choice.push(len(run.tape)) * 2.0**-digits if computed else 0.0
        value, near = nearest(x.value * (1 + mpf(inner)) + mpf(x.push), digits, least, 0.0)[0], False
    found = Number(value, open=x.open or near)
    found.parents, found.grid, found.adds = ((x, 1),), (digits, least), x.adds
    found.place, found.step = len(run.tape), run.step
    run.tape.append(found)
    return found


def kept(x: Number) -> Number:
    """Returns a number that PyTorch stores between the operators that it composes a function of."""
    run = Run.now
    if not run.digits:
        return x
    x = made(x.value, ((x, 1),), rounds=False)
    wide = mp.isfinite(x.value) and x.value._mpf_[3] > run.digits
    if wide:
        size = abs(float(x.value)) * 2.0**-run.digits
        x.error, x.terms = x.error + size, None
        pushed(x, size, -2 - x.place)
    if run.source:
        x.outer, x.exact = 2.0**-run.digits, False
        x.value = run.shaken(x.value, x.outer) if wide else x.value
        run.step += 1
    return x


def steep(x: Number, times: int = 1) -> Number:
    """Returns a number whose backward stores its last slope in 16 bits, after so many operators."""
    run = Run.now
    if run.source and run.digits and x.parents:
        *others, (parent, slope) = x.parents
        for _ in range(times):
            slope = run.shaken(slope, 2.0**-run.digits)
        x.parents = (*others, (parent, slope))
    return x


def recalled(x: Number, parents: Sequence[tuple[Number, Callable[[], Any]]]) -> Number:
    """Returns a number whose backward takes its slopes from results that the forward stored, rounded."""
    if not Run.now.source or not mp.isfinite(x.value):
        return x
    found = made(x.value, [(each, 0) for each, _ in parents], rounds=False)
    found.open, found.adds, found.error = x.open, x.adds, x.error
    found.saved = lambda: [slope() for _, slope in parents]
    return found


def sign_between(a: Number, b: Number, exact: bool = False) -> tuple[int, bool]:
    """Returns the sign of a - b, and whether roundings may reverse it. Equal numbers go by the direction.

    exact: equal numbers that hold no rounding are equal in every direction, as `>` sees them.
    """
    run = Run.now
    if a is b or (a.value == b.value and mp.isinf(a.value)):  # which no direction moves
        return 0, False
    if run.choice is not None and (a.loose or b.loose) and mp.isfinite(a.value - b.value):
        gap, loose = a.value - b.value, mpf(a.loose + b.loose)
        if abs(gap) <= NEAR * loose or abs(gap) < run.finest:
            run.decisive |= {a.place, b.place}
            gap = gap + mpf(a.push) - mpf(b.push)
            if abs(gap) > SAME * loose:
                return (1 if gap > 0 else -1), False
            if run.choice.level:
                return 0, False
    off = abs(a.value - b.value)
    if a.value == b.value or (mp.isfinite(off) and off <= SAME * (a.error + b.error)):
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
    near = mp.isfinite(gap) and (abs(gap) <= NEAR * (a.error + b.error) or abs(gap) < run.finest)
    return (1 if gap > 0 else -1), near and run.choice is None


def ordered(a: Number, b: Number, exact: bool = False) -> tuple[int, bool]:
    """Returns what `sign_between` does; a disturbed run orders numbers as the exact run did."""
    run = Run.now
    if run.replays:
        run.compared += 1
        return run.signs[run.compared - 1], False
    found = sign_between(a, b, exact)
    run.signs.append(found[0])
    return found


def side_of(a: Number, b: Number) -> tuple[int, bool]:
    """Returns the sign of a - b as a comparison sees it, which a choice may take on the side of the direction."""
    run = Run.now
    run.sides += 1
    if a is not b and a.value == b.value and not a.loose + b.loose:
        run.sided.add(run.sides)
    return ordered(a, b, exact=run.choice is None or run.sides not in run.choice.sides)


def chosen(among: Sequence[Number], winner: Number, near: bool) -> Number:
    """Returns the winner. Its slopes are open if roundings may choose another, and itself if one of all is open."""
    Run.now.nears += near
    unclear = any(each.open for each in among)
    if not near and not unclear:
        return winner
    return made(winner.value, [(each, int(each is winner)) for each in among], rounds=False, kink=True, open=unclear)


def largest(row: Sequence[Number], sign: int = 1, shared: bool = False) -> tuple[Number, int, bool]:
    """Returns the largest (sign=-1: smallest) of a row, its place, and whether roundings may choose another.

    shared: without a direction, or if a choice is level, all tied numbers share the slope, as at amax.
    """
    place, near, tied, order = 0, False, [row[0]], Run.now.order()
    for at, each in enumerate(row):
        if mp.isnan(each.value):
            return each, at, False
    for at in range(1, len(row)):
        way, _ = ordered(row[at], row[place])
        if way * sign > 0:
            place, tied = at, [row[at]]
        elif way == 0:
            Run.now.ties += 1  # a copy of one number, too, has a place of its own
            Run.now.free.add(Run.now.orders)
            tied.append(row[at])  # any of those that tie so far is as likely
            wins = order.random() * len(tied) < 1 if order else _precedes(row[at], row[place])
            place = at if wins else place
    winner = row[place]
    for each in () if Run.now.replays else row:
        if each is not winner and each.value != winner.value:
            near = near or sign_between(each, winner)[1]
    level = not Run.now.directed if Run.now.choice is None else Run.now.choice.level
    if len(tied) > 1 and shared and level:
        winner = made(winner.value, [(each, mpf(1) / len(tied)) for each in tied], rounds=False)
    elif len(tied) > 1 and shared and Run.now.choice is None:  # computed numbers that the direction leaves equal
        near = near or len({each.place for each in tied}) > 1
    return chosen(row, winner, near), place, near


def _precedes(later: Number, number: Number) -> bool:
    """Says whether the later of equal places wins. In a direction it is the number made first, or last, everywhere."""
    if later.place == number.place or not Run.now.directed:
        return Run.now.last
    return (later.place > number.place) == Run.now.last


def ranked(row: Sequence[Number], descending: bool) -> tuple[list[int], set[int]]:
    """Returns the places of a row in order, equal ones by the direction, and the ranks that roundings may exchange."""
    if any(mp.isnan(each.value) or (each.open and not Run.now.replays) for each in row):
        raise Oracled("NaN or an open number in a sort")
    way = -1 if descending else 1
    places = sorted(range(len(row)), key=lambda i: row[i].place if Run.now.directed else 0)
    places = places[:: -1 if Run.now.last else 1]
    shuffled = Run.now.order()
    if shuffled:
        shuffled.shuffle(places)
    order = sorted(places, key=cmp_to_key(lambda i, j: way * ordered(row[i], row[j])[0]))
    near: set[int] = set()
    for at in range(0 if Run.now.replays else len(row) - 1):
        for other in range(at + 1, len(row)):
            a, b = row[order[at]], row[order[other]]
            if other == at + 1 and sign_between(a, b)[0] == 0:  # a copy of one number, too, has a place of its own
                Run.now.ties += 1
                Run.now.free.add(Run.now.orders)
            if a.value != b.value and sign_between(a, b)[1]:
                near |= set(range(at, other + 1))
    return order, near


def kinked(x: Number, at: Any, below: Any, here: Any, above: Any, value: Callable[[Any], Any]) -> Number:
    """Returns a function that is continuous at a kink: its slopes below, at (PyTorch's) and above it."""
    way, near = sign_between(x, bound := constant(at))
    if x.value == bound.value and not x.loose + bound.loose:
        place, choice = Run.now.kinks.setdefault(id(x), ~len(Run.now.kinks)), Run.now.choice
        Run.now.sided.add(place)
        way = 0 if choice is not None and place in choice.sides else way
    if mp.isnan(x.value):
        return made(NAN, ((x, NAN),))
    return made(value(x.value), ((x, (below, here, above)[way + 1]),), rounds=False, kink=near)


def backward(outputs: Iterable[tuple[Number, Any]]) -> None:
    """Fills in the gradients of everything on the tape of this run."""
    run = Run.now
    leaves: dict[int, Number] = {}
    for number, upstream in outputs:
        number.shares[0] = mpf(upstream) + number.shares.get(0, 0)
        leaves[id(number)] = number
    for number in reversed(run.tape):
        number.grad = _gathered(number)
        if number.grad is None:
            continue
        if not number.exact:
            number.grad = run.shaken(number.grad, number.outer)
        unclear = number.open or number.kink or number.grad_open
        if number.grid:  # what arrives may have been stored in 16 bits, which is a choice's to say
            near = float(abs(number.grad)) * run.unit if number.grad._mpf_[3] > number.grid[0] + 1 else 0.0
            if near and run.choice is not None:
                number.grad, near = number.grad * (1 + mpf(NEAR * run.outer * run.choice.push(~number.place))), 0.0
                run.decisive.add(~number.place)
            number.grad, opened = nearest(number.grad, *number.grid, near)
            unclear = unclear or opened
        slopes = number.saved() if run.source and number.saved else [slope for _, slope in number.parents]
        for (parent, _), slope in zip(number.parents, slopes, strict=True):
            share = run.shaken(number.grad * slope, number.inner)
            alone = not parent.shares and bool(number.outer or number.exact) and abs(slope) in (0, 1)
            parent.exact = parent.exact and alone
            parent.shares[number.step] = share + parent.shares[number.step] if number.step in parent.shares else share
            parent.grad_open = parent.grad_open or unclear
            leaves[id(parent)] = parent
    for number in leaves.values():
        if number.grad is None:
            number.grad = _gathered(number)


def _gathered(number: Number) -> Any:
    """Returns a gradient from its shares. Several operators store theirs each; the only one is the result."""
    if len(number.shares) < 2:
        return next(iter(number.shares.values()), None)
    return sum(share if not at else Run.now.shaken(share, number.outer) for at, share in number.shares.items())
