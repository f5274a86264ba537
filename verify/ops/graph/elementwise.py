"""Functions of single elements: sums and products of two numbers, comparisons, choices, and real functions of one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verify.ops.graph import spans
from verify.ops.graph.arithmetic import Arithmetic, Number
from verify.ops.graph.spans import Span, point
from verify.ops.graph.special import FUNCTIONS
from verify.ops.graph.steps import Move, Places, Run, Step, Truths, broadcast


@dataclass(eq=False)
class Map(Step):
    """A function of each element: a name of `ELEMENTWISE`, or of `FUNCTIONS`.

    `ties` says that a comparison may have both answers where its two numbers are equal; `centred` that the second
    operand is a mean of the first: a normalisation begins there.
    """

    function: str = ""
    ties: bool = False
    centred: bool = False

    def span(self, run: Run, given: Sequence[Any]) -> Any:
        if self.function in FUNCTIONS:
            function = FUNCTIONS[self.function]
            [x] = given
            found = spans.apply(function, x)
            return self._stepped(run, x, found) if function.steps else found
        return ELEMENTWISE[self.function].span(self, run, *given)

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        if self.function in FUNCTIONS:
            return FUNCTIONS[self.function].torch(given[0])
        return ELEMENTWISE[self.function].value(*given)

    def _stepped(self, run: Run, x: Span, found: Span) -> Span:
        """A function that jumps: near a jump a number that was computed may lie on either side."""
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

    def sources(self, run: Run, wanted: Places) -> list[Places]:
        return [broadcast(wanted, self.shape, each.shape) for each in self.inputs]

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        if self.function in FUNCTIONS:
            function = FUNCTIONS[self.function]
            return [arithmetic.apply(function, x) for x in given[0]]
        single = ELEMENTWISE[self.function].element
        return [single(self, run, arithmetic, *values) for values in zip(*given, strict=True)]


@dataclass(frozen=True)
class Elementwise:
    """An elementwise function of one or more numbers or conditions: of spans, of single elements, of float64 tensors.

    `rounds` says whether a kernel rounds the result.
    """

    span: Callable[..., Any]
    element: Callable[..., Any]
    value: Callable[..., Tensor]
    rounds: bool = False


def _multiply(step: Map, run: Run, a: Span, b: Span) -> Span:
    return spans.square(a) if step.inputs[0] is step.inputs[1] else spans.multiply(a, b)


def _magnitude(step: Map, run: Run, a: Span) -> Span:
    lo = torch.where((a.lo <= 0) & (a.hi >= 0), 0.0, torch.minimum(a.lo.abs(), a.hi.abs()))
    return Span(a.lo.abs(), a.lo.abs()) if a.is_point else Span(lo, a.size())


def _of_two(largest: bool) -> Elementwise:
    return Elementwise(
        lambda step, run, a, b: spans.extreme(a, b, largest),
        lambda step, run, arithmetic, a, b: arithmetic.extreme(a, b, largest),
        torch.maximum if largest else torch.minimum,
    )


def _chosen(step: Map, run: Run, condition: Truths, a: Any, b: Any) -> Any:
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


def _choose(step: Map, run: Run, arithmetic: Arithmetic, condition: Any, a: Any, b: Any) -> Any:
    if condition is not None:
        return a if condition else b
    if step.real:
        return arithmetic.union(a, b)
    return a if a == b else None


def _comparison(name: str) -> Elementwise:
    """lt, le, gt, ge, eq or ne of two numbers."""
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
    """What is known of two numbers whose order is not: balls may touch in one point only."""
    if isinstance(a, float) or isinstance(b, float):
        return None
    difference = arithmetic.subtract(a, b)
    if 0 in at and len(at) == 2 and (difference <= 0 if at[0] == -1 else difference >= 0):
        return True
    return None


def _logical(torch_function: Callable[..., Tensor], python: Callable[..., bool], decides: Any) -> Elementwise:
    """`decides` is the value of one operand that settles the result."""

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


def _power(step: Map, run: Run, a: Span, b: Span) -> Span:
    """a ** b = exp(b log a) for positive a; elsewhere nothing is known but for NaN."""
    found = spans.apply(FUNCTIONS["exp"], spans.multiply(b, spans.apply(FUNCTIONS["log"], a)))
    plain = (a.lo > 0) & ~torch.isnan(b.lo) & ~torch.isinf(a.hi) & ~torch.isinf(b.lo) & ~torch.isinf(b.hi)
    of_a, of_b = torch.isnan(a.lo), torch.isnan(b.lo)  # NaN ** 0 and 1 ** NaN are 1
    fixed = (b.lo == b.hi) & torch.isfinite(b.lo)
    beyond = (a.hi < 0) & torch.isfinite(a.lo) & fixed & (b.lo != b.lo.floor())
    nan = beyond | (of_a & of_b) | (of_a & ((b.lo > 0) | (b.hi < 0))) | (of_b & ((a.lo > 1) | (a.hi < 1)))
    lo, hi = torch.where(plain, found.lo, -math.inf), torch.where(plain, found.hi, math.inf)
    known = a.is_zero() & fixed & (b.lo != 0)
    at_zero = torch.where(b.lo > 0, 0.0, math.inf)
    lo, hi = torch.where(known, at_zero, lo), torch.where(known, at_zero, hi)
    return Span(lo.masked_fill(nan, math.nan), hi.masked_fill(nan, math.nan))


def _raise(step: Map, run: Run, arithmetic: Arithmetic, a: Number, b: Number) -> Number:
    if isinstance(a, float) or isinstance(b, float):
        known = [x if isinstance(x, float) else (float(x) if arithmetic.is_known(x) else math.nan) for x in (a, b)]
        return arithmetic.number(float(torch.pow(*(torch.tensor(x, dtype=torch.float64) for x in known))))
    sign = arithmetic.sign(a)
    if sign == 1:
        return a**b
    if sign == 0:
        other = arithmetic.sign(b)
        return (
            arithmetic.unknown() if other is None else (math.inf if other < 0 else arithmetic.finite(float(other == 0)))
        )
    whole = int(float(b)) if arithmetic.is_known(b) and float(b).is_integer() and abs(float(b)) < 1e6 else None
    return arithmetic.unknown() if sign is None and whole is None else math.nan if whole is None else a**whole


def _either(step: Map, run: Run, a: Truths) -> Span:
    """A condition as 0 or 1, an integer as a number."""
    value = a.value.to(torch.float64)
    if a.open is None:
        return point(value)
    if a.value.dtype == torch.bool:
        return Span(value.masked_fill(a.open, 0.0), value.masked_fill(a.open, 1.0))
    return Span(value.masked_fill(a.open, -math.inf), value.masked_fill(a.open, math.inf))


def _as_number(step: Map, run: Run, arithmetic: Arithmetic, a: Any) -> Number:
    if a is None:
        whole = _holds_integers(step.inputs[0])
        return arithmetic.unknown() if whole else arithmetic.union(arithmetic.finite(0.0), arithmetic.finite(1.0))
    return arithmetic.finite(float(a))


def _holds_integers(step: Step) -> bool:
    """Whether a step that is no numbers may be other integers than 0 and 1."""
    while isinstance(step, Move) and len(step.inputs) == 1:
        step = step.inputs[0]
    return getattr(step, "function", "integer") in ("integer", "where")


def _as_integer(step: Map, run: Run, a: Span) -> Truths:
    """A number that was rounded to an integer before."""
    value = a.mid().nan_to_num(0.0, 0.0, 0.0).to(torch.int64)
    doubt = ~(a.lo == a.hi)
    return Truths(value, doubt if bool(doubt.any()) else None)


def _whole(step: Map, run: Run, arithmetic: Arithmetic, a: Number) -> int | None:
    if isinstance(a, float) or not arithmetic.is_known(a):
        return None
    lower, upper = (int(float(end)) for end in ((a.lower(), a.upper()) if hasattr(a, "lower") else (a, a)))
    return lower if lower == upper else None


def _is(name: str) -> Elementwise:
    """isnan, isinf."""
    wanted = math.isnan if name == "isnan" else math.isinf

    def span(step: Map, run: Run, a: Span) -> Truths:
        doubt = (a.lo == -math.inf) & (a.hi == math.inf)
        value = getattr(torch, name)(a.lo) & ~doubt
        return Truths(value, doubt if bool(doubt.any()) else None)

    def element(step: Map, run: Run, arithmetic: Arithmetic, a: Number) -> bool | None:
        return wanted(a) if isinstance(a, float) else False if arithmetic.is_known(a) else None

    return Elementwise(span, element, getattr(torch, name))


def _single(name: str) -> Callable[..., Number]:
    return lambda step, run, arithmetic, *values: getattr(arithmetic, name)(*values)


def _not(step: Map, run: Run, a: Truths) -> Truths:
    return Truths(~a.value.bool(), a.open)


ELEMENTWISE: dict[str, Elementwise] = {
    "add": Elementwise(lambda step, run, a, b: spans.add(a, b), _single("add"), torch.add, rounds=True),
    "subtract": Elementwise(lambda step, run, a, b: spans.add(a, b, -1), _single("subtract"), torch.sub, rounds=True),
    "multiply": Elementwise(
        _multiply,
        lambda step, run, arithmetic, a, b: a * a if a is b and not isinstance(a, float) else arithmetic.multiply(a, b),
        torch.mul,
        rounds=True,
    ),
    "divide": Elementwise(lambda step, run, a, b: spans.divide(a, b), _single("divide"), torch.div, rounds=True),
    "negative": Elementwise(lambda step, run, a: spans.negative(a), _single("negative"), torch.neg),
    "magnitude": Elementwise(_magnitude, lambda step, run, arithmetic, a: abs(a), torch.abs),
    "maximum": _of_two(True),
    "minimum": _of_two(False),
    "where": Elementwise(_chosen, _choose, torch.where),
    "power": Elementwise(_power, _raise, torch.pow, rounds=True),
    "and": _logical(torch.logical_and, lambda a, b: bool(a) and bool(b), False),
    "or": _logical(torch.logical_or, lambda a, b: bool(a) or bool(b), True),
    "xor": _logical(torch.logical_xor, lambda a, b: bool(a) != bool(b), None),
    "not": Elementwise(_not, lambda step, run, arithmetic, a: None if a is None else not a, torch.logical_not),
    "number": Elementwise(_either, _as_number, lambda a: a.to(torch.float64)),
    "integer": Elementwise(_as_integer, _whole, lambda a: a.nan_to_num(0.0, 0.0, 0.0).to(torch.int64)),
    "isnan": _is("isnan"),
    "isinf": _is("isinf"),
    **{name: _comparison(name) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
}
