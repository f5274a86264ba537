"""Defines the elementwise steps: arithmetic, comparisons, choices, integer operations and functions of one number.

Each function has three evaluations: on intervals, on single exact elements, and on float64 tensors.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verify.ops.graph import spans
from verify.ops.graph.arithmetic import Arithmetic, Number, Pole, divided, has_special
from verify.ops.graph.spans import Span, point
from verify.ops.graph.special import FUNCTIONS
from verify.ops.graph.steps import Move, Places, Run, Step, Truths, broadcast

_BITS = ("bits and", "bits or", "bits xor")
_JUMPS = ("floor quotient", "trunc quotient", "remainder", "fmod", "signbit")
_OPERATORS = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul}  # of finite numbers
LOGIC = ("and", "or", "xor", *_BITS)  # functions of two booleans, or of two integers


@dataclass(eq=False)
class Map(Step):
    """A function of each element."""

    function: str = ""  # a name of `ELEMENTWISE` or of `FUNCTIONS`
    ties: bool = False  # True: a comparison may have both answers where its two numbers are equal
    centred: bool = False  # True: the second operand is a mean of the first, as where a normalisation begins
    within: tuple[int, int] = (-(2**63), 2**63 - 1)  # least and greatest number of the integer dtype of the result

    def span(self, run: Run, given: Sequence[Any]) -> Any:
        if self.function in FUNCTIONS:
            function = FUNCTIONS[self.function]
            [x] = given
            found = spans.apply(function, x)
            if function.steps:
                found = self._stepped(run, x, found)
                return Span(found.lo, found.hi, x.given)  # these functions round nothing
            return found
        return ELEMENTWISE[self.function].span(self, run, *given)

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        if self.function in FUNCTIONS:
            return FUNCTIONS[self.function].torch(given[0])
        if self.function == "wrap":
            least, most = self.within
            holds = (given[0] >= least) & (given[0] <= most)
            return torch.where(holds, given[0], torch.remainder(given[0] - least, float(most - least + 1)) + least)
        return ELEMENTWISE[self.function].value(*given)

    def _stepped(self, run: Run, x: Span, found: Span) -> Span:
        """Returns the interval of a function that jumps: near a jump, a kernel's number may be on either side."""
        function = FUNCTIONS[self.function]
        opened = spans.apply(function, run.blurred(self.inputs[0], x))
        if self.function == "sign" and run.opens != "rounding":  # the slope of |x| has two sides at 0
            zero = x.is_zero()
            opened = Span(opened.lo.masked_fill(zero, -1.0), opened.hi.masked_fill(zero, 1.0))
        differs = (opened.lo != found.lo) | (opened.hi != found.hi)
        if not bool((differs & ~torch.isnan(found.lo)).any()):
            return found
        run.met_tie = True
        if run.opens == "face":
            return point(function.torch(x.mid()))
        return opened if run.opens else found

    @property
    def decides(self) -> bool:
        """True if roundings before this step may change its result by a jump."""
        return self.ties or self.stepped or self.function in _JUMPS

    @property
    def stepped(self) -> bool:
        """True if the function is constant between jumps, as `floor` is."""
        return self.function in FUNCTIONS and FUNCTIONS[self.function].steps

    @property
    def rounds(self) -> bool:
        """True if a kernel rounds the result."""
        return not self.stepped if self.function in FUNCTIONS else ELEMENTWISE[self.function].rounds

    def sources(self, run: Run, wanted: Places) -> list[Places]:
        return [broadcast(wanted, self.shape, each.shape) for each in self.inputs]

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        if self.function in FUNCTIONS:
            function = FUNCTIONS[self.function]
            made = [arithmetic.apply(function, x) for x in given[0]]
            for at, value in enumerate(made):
                if isinstance(value, Pole):
                    zero = 0.0 * self._side(run, 0, wanted[at])
                    made[at] = function.torch(torch.tensor(zero, dtype=torch.float64)).item()
            return made
        if self.function in _OPERATORS and not any(map(has_special, given)):
            return list(map(_OPERATORS[self.function], *given))
        single, zero_of = ELEMENTWISE[self.function].element, ELEMENTWISE[self.function].zero_of
        single = getattr(arithmetic, single) if isinstance(single, str) else partial(single, self, run, arithmetic)
        columns = list(given)
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


def _multiply_span(step: Map, run: Run, a: Span, b: Span) -> Span:
    return spans.square(a) if step.inputs[0] is step.inputs[1] else spans.multiply(a, b)


def _magnitude_span(step: Map, run: Run, a: Span) -> Span:
    lo = torch.where((a.lo <= 0) & (a.hi >= 0), 0.0, torch.minimum(a.lo.abs(), a.hi.abs()))
    hi = a.size()
    return Span(hi if a.is_point else lo, hi, a.given)


def _extremes(largest: bool) -> Elementwise:
    return Elementwise(
        lambda step, run, a, b: spans.extreme(a, b, largest),
        lambda step, run, arithmetic, a, b: arithmetic.extreme(a, b, largest),
        torch.maximum if largest else torch.minimum,
    )


def _where_span(step: Map, run: Run, condition: Truths, a: Any, b: Any) -> Any:
    """Returns a where the condition is true, else b; an interval around both where the condition is open."""
    value, doubt = condition.value, condition.open
    if not step.real:
        picked = torch.where(value, a.value, b.value)
        masks = [
            torch.zeros((), dtype=torch.bool, device=picked.device) if each.open is None else each.open
            for each in (a, b)
        ]
        opened = torch.where(value, masks[0], masks[1])
        if doubt is not None:
            opened = opened | (doubt & ((a.value != b.value) | masks[0] | masks[1]))
        return Truths(picked, opened if bool(opened.any()) else None)
    lo = torch.where(value, a.lo, b.lo)
    hi = lo if a.is_point and b.is_point else torch.where(value, a.hi, b.hi)
    given = a.given and b.given
    if doubt is not None and bool(doubt.any()):
        either = spans.between(a, b)
        lo, hi, given = torch.where(doubt, either.lo, lo), torch.where(doubt, either.hi, hi), False
    return Span(lo, hi, given)


def _where_element(step: Map, run: Run, arithmetic: Arithmetic, condition: Any, a: Any, b: Any) -> Any:
    if condition is not None:
        return a if condition else b
    if step.real:
        return arithmetic.union(a, b)
    return a if a == b else None


def _comparison(name: str) -> Elementwise:
    """Returns the comparison lt, le, gt, ge, eq or ne of two numbers."""
    torch_function = getattr(torch, name)
    at = {"lt": (-1,), "le": (-1, 0), "gt": (1,), "ge": (1, 0), "eq": (0,), "ne": (-1, 1, 2)}[name]

    def span(step: Map, run: Run, a: Span, b: Span) -> Truths:
        value = torch_function(a.mid(), b.mid())
        if run.opens == "face":
            return Truths(value)
        nan = torch.isnan(a.lo) | torch.isnan(b.lo)
        exactly = (a.lo == a.hi) & (b.lo == b.hi)
        doubt = (a.lo <= b.hi) & (b.lo <= a.hi) & ~exactly & ~nan
        if step.ties:
            near_a, near_b = run.blurred(step.inputs[0], a), run.blurred(step.inputs[1], b)
            close = (near_a.lo <= near_b.hi) & (near_b.lo <= near_a.hi) & torch.isfinite(a.lo)
            if bool(close.any()):
                run.met_tie = True
                if run.opens == "ties" or (run.opens and not (a.given and b.given)):
                    doubt = doubt | close
        return Truths(value, doubt if bool(doubt.any()) else None)

    def element(step: Map, run: Run, arithmetic: Arithmetic, a: Number, b: Number) -> bool | None:
        order = arithmetic.order(a, b)
        if order is None:
            return _undecided(arithmetic, at, a, b)
        return order in at

    return Elementwise(span, element, torch_function)


def _undecided(arithmetic: Arithmetic, at: tuple[int, ...], a: Number, b: Number) -> bool | None:
    """Returns True if two balls that touch in one point decide le or ge; None if nothing is decided."""
    if isinstance(a, float) or isinstance(b, float):
        return None
    difference = arithmetic.subtract(a, b)
    if 0 in at and len(at) == 2 and (difference <= 0 if at[0] == -1 else difference >= 0):
        return True
    return None


def _logical(torch_function: Callable[..., Tensor], python: Callable[..., bool], decides: Any) -> Elementwise:
    """Returns a function of two booleans. `decides` is the value of one operand that alone settles the result."""

    def span(step: Map, run: Run, a: Truths, b: Truths) -> Truths:
        value = torch_function(a.value, b.value)
        if a.open is None and b.open is None:
            return Truths(value)
        nothing = torch.zeros((), dtype=torch.bool, device=value.device)
        doubt_a, doubt_b = (nothing if each.open is None else each.open for each in (a, b))
        if decides is None:
            return Truths(value, (doubt_a | doubt_b).expand(value.shape))
        settled = (~doubt_a & (a.value == decides)) | (~doubt_b & (b.value == decides))
        return Truths(value, (doubt_a | doubt_b) & ~settled)

    def element(step: Map, run: Run, arithmetic: Arithmetic, a: Any, b: Any) -> bool | None:
        if a is None or b is None:
            return decides if decides is not None and decides in (a, b) else None
        return python(a, b)

    return Elementwise(span, element, torch_function)


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


def _signbit_span(step: Map, run: Run, a: Span) -> Truths:
    value = torch.signbit(a.mid())
    near = run.blurred(step.inputs[0], a) if run.opens in ("rounding", "ties") else a
    doubt = (near.lo <= 0) & (near.hi >= 0) & (near.lo != near.hi)
    run.met_tie = run.met_tie or bool(doubt.any())
    return Truths(value, doubt if run.opens != "face" and bool(doubt.any()) else None)


def _signbit_element(step: Map, run: Run, arithmetic: Arithmetic, a: Number, side: Callable[[], float]) -> bool | None:
    if isinstance(a, float):
        return math.copysign(1.0, a) < 0
    sign = arithmetic.sign(a)
    return side() < 0 if sign == 0 else None if sign is None else sign < 0


def _rounded_quotient(a: Span, b: Span, down: str) -> Span:
    """Returns the exact quotient a / b, rounded down (or towards 0) to an integer."""
    quotient = spans.apply(FUNCTIONS[down], spans.divide(a, b))
    exactly = (a.lo == a.hi) & (b.lo == b.hi)
    # a - fmod(a, b) is a multiple of b. float64 finds which multiple, up to 2^51.
    known = (
        torch.div(a.lo, b.lo, rounding_mode="floor") if down == "floor" else ((a.lo - a.lo.fmod(b.lo)) / b.lo).round()
    )
    exactly = exactly & torch.isfinite(known) & (known.abs() < 2.0**51)
    lo, hi = (torch.where(exactly, known, end) for end in (quotient.lo, quotient.hi))
    if down == "trunc":
        return Span(lo, hi)
    beyond = b.is_infinite() & _finite(a.lo, a.hi) & ~exactly  # -1 of numbers of the other sign
    lo, hi = torch.where(beyond, -1.0, lo), torch.where(beyond, 0.0, hi)
    nan = a.is_infinite() & ~b.is_zero()
    return Span(lo.masked_fill(nan, math.nan), hi.masked_fill(nan, math.nan))


def _remainder(a: Span, b: Span, down: str) -> Span:
    """Returns a - floor(a / b) b, or the same with trunc. For two exact numbers, float64's fmod has no error."""
    times = _rounded_quotient(a, b, down)
    least, most = (-b.size(), b.size()) if down == "trunc" else (b.lo.clamp(max=0.0), b.hi.clamp(min=0.0))
    same = torch.isfinite(times.lo) & (times.lo == times.hi)
    near = spans.add(a, spans.multiply(point(torch.where(same, times.lo, 0.0)), b), -1)
    lo, hi = (
        torch.where(same, torch.maximum(near.lo, least), least),
        torch.where(same, torch.minimum(near.hi, most), most),
    )
    nan = torch.isnan(a.lo) | torch.isnan(b.lo) | a.is_infinite() | b.is_zero()
    doubtful = ~nan & ~(_finite(a.lo, a.hi, b.lo, b.hi) & ((b.lo > 0) | (b.hi < 0)))
    lo, hi = lo.masked_fill(doubtful, -math.inf), hi.masked_fill(doubtful, math.inf)
    left = torch.fmod(a.lo, b.lo)
    exactly = (a.lo == a.hi) & (b.lo == b.hi) & ((a.lo / b.lo).abs() < 2.0**500)  # SLEEF's fmod is wrong far beyond
    other = down == "floor"
    turned = spans.add(point(left), point(torch.where((left != 0) & ((left < 0) != (b.lo < 0)) & other, b.lo, 0.0)))
    lo, hi = torch.where(exactly, turned.lo, lo), torch.where(exactly, turned.hi, hi)
    return Span(lo.masked_fill(nan, math.nan), hi.masked_fill(nan, math.nan))


def _finite(*ends: Tensor) -> Tensor:
    return reduce(torch.logical_and, map(torch.isfinite, ends))


def _whole_division(down: str, made: Callable[[Span, Span, str], Span]) -> Elementwise:
    """Returns a division to an integer quotient, or its remainder. PyTorch computes both without rounding error."""
    remains = made is _remainder

    def span(step: Map, run: Run, a: Span, b: Span) -> Span:
        found = made(a, b, down)
        if a.given and b.given:
            return Span(found.lo, found.hi, remains)
        near_a, near_b = run.blurred(step.inputs[0], a), run.blurred(step.inputs[1], b)
        near = _rounded_quotient(near_a, near_b, down)
        if not bool(((near.lo != near.hi) & ~torch.isnan(near.lo)).any()):
            return found
        run.met_tie = True
        if run.opens == "face":
            return point(made(point(a.mid()), point(b.mid()), down).mid())
        return made(near_a, near_b, down) if run.opens else found

    def element(step: Map, run: Run, arithmetic: Arithmetic, a: Number, b: Number, side: Callable[[], float]) -> Number:
        return divided(arithmetic, a, b, side, down=down, remains=remains)

    def value(a: Tensor, b: Tensor) -> Tensor:
        if remains:
            return torch.remainder(a, b) if down == "floor" else torch.fmod(a, b)
        return torch.div(a, b, rounding_mode=down)

    return Elementwise(span, element, value, zero_of=1)


def _number_span(step: Map, run: Run, a: Truths) -> Span:
    """Converts booleans to 0 or 1, and integers to real numbers."""
    value = a.value.to(torch.float64)
    if a.open is None and bool((value.abs() > 2.0**53).any()):
        unit = torch.where(value.abs() > 2.0**53, value.abs() * 2.0**-52, 0.0)
        return Span(value - unit, value + unit, True)
    if a.open is None:
        return point(value, given=True)
    least, most = (0.0, 1.0) if a.value.dtype == torch.bool else (-math.inf, math.inf)
    return Span(value.masked_fill(a.open, least), value.masked_fill(a.open, most), True)


def _number_element(step: Map, run: Run, arithmetic: Arithmetic, a: Any) -> Number:
    if a is None:
        whole = holds_integers(step.inputs[0])
        return arithmetic.unknown() if whole else arithmetic.union(arithmetic.finite(0.0), arithmetic.finite(1.0))
    return arithmetic.scaled(int(a), 0)


def holds_integers(step: Step) -> bool:
    """True if a step that is not real may hold other integers than 0 and 1."""
    while isinstance(step, Move) and len(step.inputs) == 1:
        step = step.inputs[0]
    return getattr(step, "function", "integer") in ("integer", "where", *_BITS)


def _in_range(step: Map, a: Span) -> Tensor:
    """Returns a mask of the intervals that lie in the range of the step's integer dtype."""
    least, most = step.within
    return (a.lo >= float(least)) & (a.hi < float(most + 1))


def _integer_span(step: Map, run: Run, a: Span) -> Truths:
    """Converts real numbers, already rounded to integers, to an integer dtype.

    A number beyond the range is open, because PyTorch does not define its result.
    """
    beyond, (least, most) = ~_in_range(step, a), step.within
    value = a.mid().nan_to_num(0.0).clamp(max(least, -(2**62)), min(most, 2**62)).to(torch.int64)
    doubt = (a.lo != a.hi) & ~torch.isnan(a.lo)
    if bool(beyond.any()):
        run.met_tie = True
        doubt = doubt | beyond if run.opens else doubt
    return Truths(value, doubt if run.opens != "face" and bool(doubt.any()) else None)


def _digits_of(arithmetic: Arithmetic, a: Number) -> int | None:
    """Returns a number as a Python integer; None if it is no integer, or if its exponent is 4096 or more."""
    digits = None if isinstance(a, float) else arithmetic.digits(a)
    return digits[0] << digits[1] if digits is not None and 0 <= digits[1] < 4096 else None


def _integer_element(step: Map, run: Run, arithmetic: Arithmetic, a: Number) -> int | None:
    whole = _digits_of(arithmetic, a)
    return whole if whole is not None and step.within[0] <= whole <= step.within[1] else None


def _wrap_span(step: Map, run: Run, a: Span) -> Span:
    """Wraps integers that are computed as real numbers around to the range of the integer dtype."""
    holds, (least, most) = _in_range(step, a), step.within
    if bool(holds.all()):
        return Span(a.lo, a.hi, True)
    turned = torch.remainder(a.lo - least, float(most - least + 1)) + least
    exactly = (a.lo == a.hi) & (a.lo.abs() < 2.0**52) & (most < 2**52)
    lo, hi = (torch.where(exactly, turned, float(end)) for end in step.within)
    return Span(torch.where(holds, a.lo, lo), torch.where(holds, a.hi, hi), True)


def _wrap_element(step: Map, run: Run, arithmetic: Arithmetic, a: Number) -> Number:
    whole, (least, most) = _digits_of(arithmetic, a), step.within
    if whole is not None:
        return arithmetic.scaled((whole - least) % (most - least + 1) + least, 0)
    return arithmetic.union(arithmetic.scaled(least, 0), arithmetic.scaled(most, 0))


def _bitwise(name: str) -> Elementwise:
    """Returns and, or, xor of the bits of two integers."""
    python = getattr(operator, f"__{name}__")

    def span(step: Map, run: Run, a: Truths, b: Truths) -> Truths:
        value = getattr(torch, f"bitwise_{name}")(a.value, b.value)
        doubts = [each.open for each in (a, b) if each.open is not None]
        return Truths(value, reduce(torch.logical_or, doubts).expand(value.shape) if doubts else None)

    def element(step: Map, run: Run, arithmetic: Arithmetic, a: Any, b: Any) -> int | None:
        return None if None in (a, b) else int(python(int(a), int(b)))

    return Elementwise(span, element, getattr(torch, f"bitwise_{name}"))


def _special_test(name: str) -> Elementwise:
    """Returns the function isnan or isinf."""
    wanted = math.isnan if name == "isnan" else math.isinf

    def span(step: Map, run: Run, a: Span) -> Truths:
        doubt = (a.lo == -math.inf) & (a.hi == math.inf)
        value = getattr(torch, name)(a.lo) & ~doubt
        return Truths(value, doubt if bool(doubt.any()) else None)

    def element(step: Map, run: Run, arithmetic: Arithmetic, a: Number) -> bool | None:
        return wanted(a) if isinstance(a, float) else False if arithmetic.is_known(a) else None

    return Elementwise(span, element, getattr(torch, name))


def _not_span(step: Map, run: Run, a: Truths) -> Truths:
    return Truths(~a.value.bool(), a.open)


ELEMENTWISE: dict[str, Elementwise] = {
    "add": Elementwise(lambda step, run, a, b: spans.add(a, b), "add", torch.add, rounds=True),
    "subtract": Elementwise(lambda step, run, a, b: spans.add(a, b, -1), "subtract", torch.sub, rounds=True),
    "multiply": Elementwise(_multiply_span, "multiply", torch.mul, rounds=True),
    "divide": Elementwise(lambda step, run, a, b: spans.divide(a, b), "divide", torch.div, rounds=True, zero_of=1),
    "floor quotient": _whole_division("floor", _rounded_quotient),
    "trunc quotient": _whole_division("trunc", _rounded_quotient),
    "remainder": _whole_division("floor", _remainder),
    "fmod": _whole_division("trunc", _remainder),
    "signbit": Elementwise(_signbit_span, _signbit_element, torch.signbit, zero_of=0),
    "negative": Elementwise(lambda step, run, a: spans.negative(a), "negative", torch.neg),
    "magnitude": Elementwise(_magnitude_span, lambda step, run, arithmetic, a: abs(a), torch.abs),
    "maximum": _extremes(True),
    "minimum": _extremes(False),
    "where": Elementwise(_where_span, _where_element, torch.where),
    "power": Elementwise(_power_span, _power_element, torch.pow, rounds=True, zero_of=0),
    "and": _logical(torch.logical_and, lambda a, b: bool(a) and bool(b), False),
    "or": _logical(torch.logical_or, lambda a, b: bool(a) or bool(b), True),
    "xor": _logical(torch.logical_xor, lambda a, b: bool(a) != bool(b), None),
    "not": Elementwise(_not_span, lambda step, run, arithmetic, a: None if a is None else not a, torch.logical_not),
    "number": Elementwise(_number_span, _number_element, lambda a: a.to(torch.float64)),
    "integer": Elementwise(_integer_span, _integer_element, lambda a: a.nan_to_num(0.0, 0.0, 0.0).to(torch.int64)),
    "wrap": Elementwise(_wrap_span, _wrap_element, lambda a: a),
    **{f"bits {name}": _bitwise(name) for name in ("and", "or", "xor")},
    "isnan": _special_test("isnan"),
    "isinf": _special_test("isinf"),
    **{name: _comparison(name) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
}
