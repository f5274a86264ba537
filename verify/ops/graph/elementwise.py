"""Defines the elementwise steps: arithmetic, comparisons, choices, integer operations and functions of one number.

Each function has three evaluations: on intervals, on single exact elements, and on float64 tensors.
"""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verify.errors import UsageError
from verify.ops.graph import spans
from verify.ops.graph.arithmetic import Arithmetic, Number, divided, has_special
from verify.ops.graph.functions import FUNCTIONS, STEPPED, Pole
from verify.ops.graph.spans import Span, point
from verify.ops.graph.steps import Move, Places, Plain, Run, Step, broadcast, reached

_BITS = ("bits and", "bits or", "bits xor")
QUOTIENTS = {"floor quotient": "floor", "trunc quotient": "trunc"}  # which way each rounds
REMAINS = {"remainder": "floor", "fmod": "trunc"}
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_JUMPS = (*QUOTIENTS, *REMAINS, *COMPARISONS, "signbit", "integer", "isnan", "isinf")
_WHOLE = 2.0**52  # every integer up to here is a float64 number
_OPERATORS = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul}  # of finite numbers
_KEEP_INTEGERS = ("maximum", "minimum", "add", "subtract", "multiply", "negative")
LOGIC = ("and", "or", "xor", *_BITS)  # functions of two booleans, or of two integers


@dataclass(eq=False)
class Map(Step):
    """A function of each element."""

    function: str = ""  # a name of `ELEMENTWISE`, `FUNCTIONS` or `STEPPED`
    centred: bool = False  # True: the second operand is a mean of the first, as where a normalisation begins
    cancels: bool = False  # True: the operands are the same numbers, or in a sum opposite ones
    halved: bool = False  # True: kernels compute it as (1 + erf(x)) / 2 or (1 + tanh(x)) / 2
    within: tuple[int, int] = (-(2**63), 2**63 - 1)  # least and greatest number of the integer dtype of the result

    def span(self, run: Run, given: Sequence[Any]) -> Any:
        if self.stepped:
            return self._stepped(run, given[0])
        if self.decides and self.function not in REMAINS:
            made = self.value(run, [each.mid() for each in given])
            return point(made) if self.real else made
        if self.function in FUNCTIONS:
            found = spans.apply(FUNCTIONS[self.function], given[0])
        elif self.cancels:  # 0, or NaN of an infinity
            found = spans.multiply(
                ELEMENTWISE["magnitude"].span(self, run, given[0]), point(torch.zeros_like(given[0].lo))
            )
        else:
            found = ELEMENTWISE[self.function].span(self, run, *given)
        picks = self.function in ("where", "exact") or not isinstance(found, Span)
        return found if picks else spans.staying_unknown(found, given)

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        if self.function in REMAINS:
            return self._remainder(run, *given)
        if self.function == "integer":
            return self._integer(run, given[0])
        return run.decision(self, lambda: self.evaluated(given)) if self.decides else self.evaluated(given)

    def _integer(self, run: Run, a: Tensor) -> Tensor:
        """Returns whole numbers in an integer dtype. Only beyond its range is there a decision."""
        own, held = self.evaluated([a]), self.holds(a)
        if self.within[1] >= 2**53 and bool((held & (a.abs() > 2.0**53)).any()):
            raise UsageError(
                f"like= supports integers up to 2^53 if they are computed from real numbers: {self.origin}",
                hint="compute larger integers from integer operands alone",
            )
        return torch.where(held, own, run.decision(self, lambda: own))

    def holds(self, a: Tensor) -> Tensor:
        """Returns a mask of the numbers in the range of the step's integer dtype."""
        return (a >= float(self.within[0])) & (a < float(self.within[1] + 1))

    def at_ends(self, x: Tensor, above: int) -> Tensor:
        """Returns the integers that a processor makes of numbers, if those too large become one end of the dtype.

        Where that is the greatest integer, as on GPUs, NaN becomes 0. Else all are the least, as in vectors of x86.
        """
        held = torch.where(self.holds(x), x, 0.0).to(torch.int64)
        held = torch.where(torch.isnan(x) & (above == 0) | (x < float(self.within[0])), self.within[0], held)
        return torch.where(x > 0, torch.where(self.holds(x), held, self.within[above]), held)

    def evaluated(self, given: Sequence[Tensor]) -> Tensor:
        """Returns the result in float64. Takes a decision anew."""
        if self.function in FUNCTIONS:
            return FUNCTIONS[self.function].torch(given[0])
        if self.stepped:
            return STEPPED[self.function](given[0])
        if self.function == "wrap":
            least, most = self.within
            holds = (given[0] >= least) & (given[0] <= most)
            return torch.where(holds, given[0], torch.remainder(given[0] - least, float(most - least + 1)) + least)
        if self.function == "integer":
            return _wrapped(given[0], *self.within)
        return ELEMENTWISE[self.function].value(*given)

    def _remainder(self, run: Run, a: Tensor, b: Tensor) -> Tensor:
        """Returns a - q b. The decision is the integer q; float64's own remainder is exact."""
        left = self.evaluated([a, b])
        own = ((a - left) / b).round()
        times = run.decision(self, lambda: own)
        return torch.where((own == times) | ~torch.isfinite(own - times), left, left + (own - times) * b)

    def _stepped(self, run: Run, x: Span) -> Span:
        """Returns the interval of a function that jumps: its decision, unless float64 does not know the number."""
        value = self.value(run, [x.mid()])
        unknown = (x.lo == -math.inf) & (x.hi == math.inf)
        lo, hi = (torch.where(unknown, end, value) for end in (x.lo, x.hi))
        return Span(lo, hi)  # these functions round nothing

    @property
    def decides(self) -> bool:
        return self.stepped or (self.function in _JUMPS and self.inputs[0].real)

    @property
    def stepped(self) -> bool:
        """True if the function is constant between jumps, as `floor` is."""
        return self.function in STEPPED

    @property
    def reads(self) -> tuple[Step | None, ...]:
        """The inputs; None for those of a decision, which is recorded."""
        return (None,) * len(self.inputs) if self._is_recorded else self.inputs

    @property
    def _is_recorded(self) -> bool:
        """True if the result is the decision itself."""
        return self.decides and self.function not in (*REMAINS, *QUOTIENTS)

    @property
    def rounds(self) -> bool:
        """True if a kernel rounds the result."""
        return not self.stepped and (self.function in FUNCTIONS or ELEMENTWISE[self.function].rounds)

    def sources(self, run: Run, wanted: Places) -> list[Places]:
        return [broadcast(wanted, self.shape, each.shape) for each in self.inputs]

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        if self._is_recorded:
            decided = run.decided_at(self, wanted)
            return arithmetic.numbers(decided) if self.real else decided
        if self.function in FUNCTIONS:
            function = FUNCTIONS[self.function]
            known = function.domain[0] == 0 and _is_never_negative(self.inputs[0], run)
            numbers = map(arithmetic.nonnegative, given[0]) if known else given[0]
            made = [arithmetic.apply(function, x) for x in numbers]
            for at, value in enumerate(made):
                if isinstance(value, Pole):
                    zero = 0.0 * self._side(run, 0, wanted[at])
                    made[at] = function.torch(torch.tensor(zero, dtype=torch.float64)).item()
            return made
        if self.function in _OPERATORS and not any(map(has_special, given)):
            return list(map(_OPERATORS[self.function], *given))
        if self.function == "divide" and not any(map(has_special, given)) and all(map(arithmetic.sign, given[1])):
            return list(map(operator.truediv, *given))
        single, zero_of = ELEMENTWISE[self.function].element, ELEMENTWISE[self.function].zero_of
        single = getattr(arithmetic, single) if isinstance(single, str) else partial(single, self, run, arithmetic)
        columns = list(given)
        if self.decides:
            columns.append(run.decided_at(self, wanted))
        if zero_of is not None:
            columns.append([partial(self._side, run, zero_of, place) for place in wanted])
        return [single(*values) for values in zip(*columns, strict=True)]

    def _side(self, run: Run, place: int, wanted: int) -> float:
        """Returns the IEEE sign of an operand that is zero: 1.0 or -1.0."""
        step = self.inputs[place]
        [at] = broadcast(np.array([wanted]), self.shape, step.shape)
        return -1.0 if run.is_minus(step, int(at)) else 1.0


@dataclass(frozen=True)
class Elementwise:
    """The three evaluations of an elementwise function of one or more numbers or booleans."""

    span: Callable[..., Any]  # (step, run, *intervals) -> interval
    # (step, run, arithmetic, *numbers) -> number, or None if it is not decided; or a method of the arithmetic
    element: Callable[..., Any] | str
    value: Callable[..., Tensor]  # (*float64 tensors) -> tensor
    rounds: bool = False  # True: a kernel rounds the result
    zero_of: int | None = None  # operand whose sign matters if it is 0; `element` gets a last argument that returns it


def _difference_span(step: Map, run: Run, a: Span, b: Span) -> Span:
    """Returns a - b. A softmax subtracts the maximum of the same numbers, so that its two errors are one."""
    found = spans.add(a, b, -1)
    row: Any = step.inputs[1]
    is_maximum = getattr(row, "function", "") == "amax" and row.keep and row.inputs[0] is step.inputs[0]
    return spans.below_largest(found, a, row.dims) if is_maximum else found


def _magnitude_span(step: Map, run: Run, a: Span) -> Span:
    lo = torch.where((a.lo <= 0) & (a.hi >= 0), 0.0, torch.minimum(a.lo.abs(), a.hi.abs()))
    hi = a.size()
    return Span(hi if a.is_point else lo, hi)


def _extremes(largest: bool) -> Elementwise:
    return Elementwise(
        lambda step, run, a, b: spans.extreme(a, b, largest),
        lambda step, run, arithmetic, a, b: arithmetic.extreme(a, b, largest),
        torch.maximum if largest else torch.minimum,
    )


def _decision(value: Callable[..., Tensor]) -> Elementwise:
    """Returns a function whose result is a decision, which `Map` records."""
    return Elementwise(_recorded, _recorded, value)


def _recorded(*arguments: Any) -> Any:
    raise AssertionError("a recorded decision is not evaluated again")


def _of_integers(value: Callable[..., Tensor], python: Callable[..., Any]) -> Elementwise:
    """Returns a function of booleans or integers, which are exact."""
    return Elementwise(
        lambda step, run, *given: value(*given), lambda step, run, arithmetic, *given: python(*given), value
    )


def _power_span(step: Map, run: Run, a: Span, b: Span) -> Span:
    """Returns a ** b as exp(b log |a|), with the sign of a if b is odd.

    At exact zeros, infinities and NaN it returns PyTorch's result.
    """
    size = _magnitude_span(step, run, a)
    found = spans.apply(FUNCTIONS["exp"], spans.multiply(b, spans.apply(FUNCTIONS["log"], size)))
    fixed = (b.lo == b.hi) & torch.isfinite(b.lo)
    whole, negative = fixed & (b.lo == b.lo.floor()), a.hi < 0
    odd = negative & (b.lo.remainder(2.0) == 1)
    lo, hi = torch.where(odd, -found.hi, found.lo), torch.where(odd, -found.lo, found.hi)
    plain = ((a.lo > 0) | (negative & whole)) & _finite(a.lo, a.hi, b.lo, b.hi)
    lo, hi = torch.where(plain, lo, -math.inf), torch.where(plain, hi, math.inf)
    of_a, of_b = torch.isnan(a.lo), torch.isnan(b.lo)  # NaN ** 0 and 1 ** NaN are 1
    beyond = negative & torch.isfinite(a.lo) & fixed & ~whole
    nan = beyond | (of_a & of_b) | (of_a & ((b.lo > 0) | (b.hi < 0))) | (of_b & ((a.lo > 1) | (a.hi < 1)))
    exactly = ((a.lo == a.hi) | of_a) & ((b.lo == b.hi) | of_b) & ((a.lo == 0) | ~_finite(a.lo, b.lo))
    known = torch.pow(a.lo, b.lo)
    lo, hi = (torch.where(exactly, known, end.masked_fill(nan, math.nan)) for end in (lo, hi))
    return Span(lo, hi)


def _power_element(
    step: Map, run: Run, arithmetic: Arithmetic, a: Number, b: Number, side: Callable[[], float]
) -> Number:
    """Returns a ** b of single elements."""
    if isinstance(a, float) or isinstance(b, float):
        known = [x if isinstance(x, float) else (float(x) if arithmetic.is_known(x) else math.nan) for x in (a, b)]
        return arithmetic.number(float(torch.pow(*(torch.tensor(x, dtype=torch.float64) for x in known))))
    sign = arithmetic.sign(a)
    if sign == 1:
        return a**b
    digits = arithmetic.digits(b)  # mantissa, which is odd or 0, and exponent
    whole, odd = digits is not None and digits[1] >= 0, digits is not None and digits[1] == 0 and digits[0] != 0
    if sign == 0:
        other = arithmetic.sign(b)
        if other is None or other >= 0:
            return arithmetic.unknown() if other is None else arithmetic.finite(float(other == 0))
        return side() * math.inf if odd else math.inf
    if sign is None:
        return a ** int(float(b)) if whole and abs(float(b)) < 1e6 else arithmetic.unknown()
    if not whole:
        return arithmetic.unknown() if digits is None else math.nan
    found = arithmetic.opposite(a) ** b
    return arithmetic.opposite(found) if odd else found


def _remainder_span(step: Map, run: Run, a: Span, b: Span) -> Span:
    """Returns a - q b, where the integer q is decided. For two exact numbers, float64's remainder has no error."""
    down = REMAINS[step.function]
    times = run.decision(step, lambda: _quotient(a.mid(), b.mid(), down))
    found = spans.add(a, spans.multiply(point(times), b), -1)
    rest, own = torch.fmod(a.lo, b.lo), _quotient(a.lo, b.lo, down)
    beside = (rest != 0) & ((rest < 0) != (b.lo < 0)) & (down == "floor")
    left = spans.add(point(rest), point(torch.where(beside, b.lo, 0.0)))
    exactly = (a.lo == a.hi) & (b.lo == b.hi) & ((own == times) | (own.abs() >= _WHOLE))
    exactly = exactly & ((a.lo / b.lo).abs() < 2.0**500)  # SLEEF's fmod is wrong far beyond
    lo, hi = torch.where(exactly, left.lo, found.lo), torch.where(exactly, left.hi, found.hi)
    nan = torch.isnan(a.lo) | torch.isnan(b.lo) | a.is_infinite() | b.is_zero()
    doubtful = ~nan & ~exactly & ~((times.abs() < _WHOLE) & _finite(a.lo, a.hi, b.lo, b.hi))
    lo, hi = lo.masked_fill(doubtful, -math.inf), hi.masked_fill(doubtful, math.inf)
    return Span(lo.masked_fill(nan, math.nan), hi.masked_fill(nan, math.nan))


def _quotient(a: Tensor, b: Tensor, down: str) -> Tensor:
    """Returns the integer q for which a - q b is float64's remainder, which is exact up to q = 2^52."""
    left = torch.remainder(a, b) if down == "floor" else torch.fmod(a, b)
    return ((a - left) / b).round()


def _finite(*ends: Tensor) -> Tensor:
    return reduce(torch.logical_and, map(torch.isfinite, ends))


def _whole_division(down: str, *, remains: bool) -> Elementwise:
    """Returns a division to an integer quotient, or its remainder. PyTorch computes both without rounding error."""

    def element(
        step: Map, run: Run, arithmetic: Arithmetic, a: Number, b: Number, times: float, side: Callable[[], float]
    ) -> Number:
        if not abs(times) < _WHOLE or isinstance(a, float) or isinstance(b, float):
            return divided(arithmetic, a, b, side, down=down, remains=remains)
        decided = arithmetic.number(float(times))
        return arithmetic.subtract(a, arithmetic.multiply(decided, b)) if remains else decided

    value: Any = partial(torch.div, rounding_mode=down)
    if remains:  # without the error of float64's fmod far beyond the divisor
        value = torch.remainder if down == "floor" else torch.fmod
    return Elementwise(_remainder_span if remains else _recorded, element, value, zero_of=1)


def _number_span(step: Map, run: Run, a: Tensor) -> Span:
    """Converts booleans to 0 or 1, and integers to real numbers."""
    value = a.to(torch.float64)
    if bool((value.abs() > 2.0**53).any()):
        unit = torch.where(value.abs() > 2.0**53, value.abs() * 2.0**-52, 0.0)
        return Span(value - unit, value + unit)
    return point(value)


def holds_integers(step: Step) -> bool:
    """True if a step that is not real may hold other integers than 0 and 1."""
    while isinstance(step, Move) and len(step.inputs) == 1:
        step = step.inputs[0]
    return getattr(step, "function", "integer") in ("integer", "where", *_BITS)


def _is_square(step: Step) -> bool:
    return isinstance(step, Map) and step.function == "multiply" and step.inputs[0] is step.inputs[1]


def _is_never_negative(step: Step, run: Run) -> bool:
    """True for squares and constants that are not negative, and for sums, products and quotients of these."""

    def before(each: Step) -> Sequence[Step]:
        joins = getattr(each, "function", "") in ("add", "multiply", "divide", "sum") and not _is_square(each)
        return each.inputs if joins or (isinstance(each, Move) and each.view) else ()

    ends = (each for each in reached([step], before) if not before(each))
    return all(_is_square(x) or (isinstance(x, Plain) and not x.of and bool((run.on_host(x) >= 0).all())) for x in ends)


def stays_whole(step: Step, made: Callable[[Step], bool]) -> bool:
    """True if all numbers of a step come, by steps that keep integers, from those that are `made` integers.

    They have no error that a second rounding could enlarge.
    """
    keeps = isinstance(step, Map) and step.function in _KEEP_INTEGERS
    keeps = keeps or (isinstance(step, Move) and float(step.fill).is_integer())
    return made(step) or (keeps and all(stays_whole(each, made) for each in step.inputs))


def _wrapped(a: Tensor, least: int, most: int) -> Tensor:
    """Converts whole numbers to an integer dtype. Beyond its range, converts as processors do: by way of 32 bits."""
    wide = most >= 2**31
    held = a.nan_to_num(0.0).clamp(*((-(2.0**63), 2.0**63 - 2**10) if wide else (-(2.0**31), 2.0**31 - 1)))
    found = held.to(torch.int64)
    return found if wide else torch.remainder(found - least, most - least + 1) + least


def _digits_of(arithmetic: Arithmetic, a: Number) -> int | None:
    """Returns a number as a Python integer; None if it is no integer, or if its exponent is 4096 or more."""
    digits = None if isinstance(a, float) else arithmetic.digits(a)
    return digits[0] << digits[1] if digits is not None and 0 <= digits[1] < 4096 else None


def _wrap_span(step: Map, run: Run, a: Span) -> Span:
    """Wraps integers that are computed as real numbers around to the range of the integer dtype."""
    (least, most), holds = step.within, step.holds(a.lo) & step.holds(a.hi)
    if bool(holds.all()):
        return Span(a.lo, a.hi)
    turned = torch.remainder(a.lo - least, float(most - least + 1)) + least
    exactly = (a.lo == a.hi) & (a.lo.abs() < 2.0**52) & (most < 2**52)
    lo, hi = (torch.where(exactly, turned, float(end)) for end in step.within)
    return Span(torch.where(holds, a.lo, lo), torch.where(holds, a.hi, hi))


def _wrap_element(step: Map, run: Run, arithmetic: Arithmetic, a: Number) -> Number:
    whole, (least, most) = _digits_of(arithmetic, a), step.within
    if whole is not None:
        return arithmetic.scaled((whole - least) % (most - least + 1) + least, 0)
    return arithmetic.union(arithmetic.scaled(least, 0), arithmetic.scaled(most, 0))


ELEMENTWISE: dict[str, Elementwise] = {
    "add": Elementwise(lambda step, run, a, b: spans.add(a, b), "add", torch.add, rounds=True),
    "subtract": Elementwise(_difference_span, "subtract", torch.sub, rounds=True),
    "multiply": Elementwise(
        lambda step, run, a, b: spans.square(a) if _is_square(step) else spans.multiply(a, b),
        "multiply",
        torch.mul,
        rounds=True,
    ),
    "divide": Elementwise(lambda step, run, a, b: spans.divide(a, b), "divide", torch.div, rounds=True, zero_of=1),
    **{name: _whole_division(down, remains=False) for name, down in QUOTIENTS.items()},
    **{name: _whole_division(down, remains=True) for name, down in REMAINS.items()},
    "signbit": _decision(torch.signbit),
    "negative": Elementwise(lambda step, run, a: spans.negative(a), "negative", torch.neg),
    "magnitude": Elementwise(_magnitude_span, lambda step, run, arithmetic, a: abs(a), torch.abs),
    "maximum": _extremes(True),
    "minimum": _extremes(False),
    "where": Elementwise(
        lambda step, run, *given: Step.span(step, run, given),
        lambda step, run, arithmetic, c, a, b: a if c else b,
        torch.where,
    ),
    # (a, b): a is the same number in a form that does not cancel, as b = 1 - sigmoid(x) does; the noise is that of b
    "exact": Elementwise(lambda step, run, a, b: a, lambda step, run, arithmetic, a, b: a, lambda a, b: a, rounds=True),
    "power": Elementwise(_power_span, _power_element, torch.pow, rounds=True, zero_of=0),
    **{
        prefix + name: _of_integers(getattr(torch, f"bitwise_{name}"), getattr(operator, f"__{name}__"))
        for name in ("and", "or", "xor")
        for prefix in ("", "bits ")
    },
    "not": _of_integers(torch.logical_not, operator.not_),
    "number": Elementwise(
        _number_span, lambda step, run, arithmetic, a: arithmetic.scaled(int(a), 0), lambda a: a.to(torch.float64)
    ),
    "integer": _decision(_recorded),
    "wrap": Elementwise(_wrap_span, _wrap_element, lambda a: a),
    **{name: _decision(getattr(torch, name)) for name in ("isnan", "isinf", *COMPARISONS)},
}
