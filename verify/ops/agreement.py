"""Whether the formulas that a user gives for an op are one function: compared where formulas come apart.

Two formulas of one function differ by their rounding. A slip makes them differ somewhere else: in a tail, beyond a
constant that one of them compares with, between two constants that lie close together, at the edge of a regime. So
they are compared in every binade of both signs, beside every number that stands in a formula, a parameter, a
regime or a boundary, and beside every place where a comparison inside a formula turns over (`x * x < 10` at the root of
10), found by bisection. What this cannot find, an interval that nothing of this bounds, a run finds that tries all
inputs of a 16-bit format; elsewhere it is left to the random elements that every run compares.
"""

from __future__ import annotations

import itertools
import math
import random
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import CodeType
from typing import Any

import torch
from mpmath import mp
from torch.overrides import TorchFunctionMode

from verify.errors import UsageError
from verify.ops.elements import to_mp
from verify.ops.numeric import call
from verify.ops.op import Op, Point, Problem
from verify.ops.precision import mp_bits

BINADES = range(-149, 128)  # those of float32, subnormal ones too
PER_BINADE = 2
SLOPES = 8  # one of so many places serves the gradients, which take several evaluations each
TOLERANCE = 1e-6  # of 1 + |exact|: far beyond what rounds off in float64, below any slip
_BITS = 80
_TURNS = 64  # places between two of the others where comparisons may turn over at a time
_OPERATORS = ("lt", "le", "gt", "ge", "eq", "ne")
_GRIDS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


Signature = Any  # how the comparisons inside a formula came out at one place


def compare(
    op: Op,
    formulas: Iterable[Callable[..., Any]],
    edges: Iterable[float],
    routes: tuple[Sequence[Callable[..., Any]], Sequence[Callable[..., Any]]],
) -> str:
    """UsageError at the first place where `exact` and `reference` differ; else where they were compared.

    `routes` are the formulas in mpmath and those in torch.
    """
    named = {*filter(math.isfinite, edges), *itertools.chain.from_iterable(map(constants, formulas))}
    named |= {float(value) for value in op.params.values() if isinstance(value, int | float)}
    beside = sorted({place for number in named for place in neighbours(number)})
    binades = list(_of_every_binade())
    turns = _turns(op, routes, sorted({*beside, *binades, 0.5}))
    beside = sorted({*beside, *(place for number in turns for place in neighbours(number))})
    values = [0.5, *beside, *binades]
    rows = list(_rows(values, beside, len(op.operands)))
    for result in ("y", *op.gradients):
        chosen = rows if result == "y" else [*rows[: len(beside) + 1], *rows[len(beside) + 1 :: SLOPES]]
        columns = [torch.tensor(column, dtype=torch.float64) for column in zip(*chosen, strict=True)]
        inputs = {operand.name: column for operand, column in zip(op.operands, columns, strict=True)}
        upstream = {"y": torch.ones_like(columns[0])} if result != "y" else {}
        problem = Problem(inputs, op.resolve({}), upstream, (result,))
        fast = op.fast(problem)[result]
        points = op.points(problem, result, range(len(chosen)))
        for row, point, got in zip(chosen, points, fast.value.tolist(), strict=True):
            _check(op, result, row, point, got)
    found = f", {len(turns) // 2:,} where a comparison turns over" if turns else ""
    return f"{len(rows):,} inputs (every binade, the numbers in the formulas{found})"


def _turns(op: Op, routes: Sequence[Sequence[Callable[..., Any]]], values: Sequence[float]) -> set[float]:
    """Both sides of every place between the values where a comparison in a formula turns over; others are at 0.5."""
    params, found = op.resolve({}), set[float]()
    for place, _ in enumerate(op.operands):

        def rows(line: Sequence[float], place: int = place) -> Iterator[list[float]]:
            return ([0.5] * place + [value] + [0.5] * (len(op.operands) - place - 1) for value in line)

        for function in routes[0]:

            def exactly(line: Sequence[float], function: Callable[..., Any] = function) -> list[Signature]:
                return [_signature(op.name, function, row, params) for row in rows(line)]

            found |= _turning(exactly, values)
        for function in routes[1]:

            def fast(line: Sequence[float], function: Callable[..., Any] = function) -> list[Signature]:
                columns = [torch.tensor(column, dtype=torch.float64) for column in zip(*rows(line), strict=True)]
                with _Compared(len(line)) as seen:
                    function(*columns, **params)
                return list(zip(*(signs.tolist() for signs in seen.signs), strict=True)) or [()] * len(line)

            found |= _turning(fast, values)
    return found


def _turning(signature: Callable[[Sequence[float]], list[Signature]], values: Sequence[float]) -> set[float]:
    """The neighbouring float64 numbers between which a signature changes, found by halving the gaps between values."""
    marked = list(zip(map(_ordinal, values), signature(values), strict=True))
    gaps = [(low, high) for low, high in itertools.pairwise(marked) if low[1] != high[1]]
    found: set[float] = set()
    while gaps := [(low, high) for low, high in gaps[:_TURNS] if high[0] - low[0] > 1]:
        middles = [(low[0] + high[0]) // 2 for low, high in gaps]
        halves = []
        signs = signature([_number(middle) for middle in middles])
        for (low, high), middle in zip(gaps, zip(middles, signs, strict=True), strict=True):
            for one, other in ((low, middle), (middle, high)):
                if one[1] != other[1]:
                    halves.append((one, other))
                    if other[0] - one[0] == 1:
                        found |= {_number(one[0]), _number(other[0])}
        gaps = halves
    return found


def _ordinal(value: float) -> int:
    """The place of a float64 among all of them."""
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits if bits >= 0 else -(bits & (1 << 63) - 1)


def _number(ordinal: int) -> float:
    found: float = math.copysign(struct.unpack("<d", struct.pack("<q", abs(ordinal)))[0], ordinal)
    return found


def _signature(name: str, function: Callable[..., Any], row: Sequence[float], params: Mapping[str, Any]) -> Signature:
    """How the comparisons of mpf came out in a formula, in their order; those inside mpmath do not count."""
    seen: list[int] = []
    with mp_bits(_BITS), _recorded(seen), suppress(UsageError):  # of a formula that raises somewhere
        call(name, lambda *values: function(*values, **params), [to_mp(value) for value in row])
    return tuple(seen)


@contextmanager
def _recorded(seen: list[int]) -> Iterator[None]:
    kept = {f"__{operator}__": getattr(mp.mpf, f"__{operator}__") for operator in _OPERATORS}

    def recording(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def compared(a: Any, b: Any) -> Any:
            if not sys._getframe(1).f_globals.get("__name__", "").startswith("mpmath"):
                seen.append((kept["__gt__"](a, b) is True) - (kept["__lt__"](a, b) is True))
            return original(a, b)

        return compared

    own = {operator: mp.mpf.__dict__.get(operator) for operator in kept}
    try:
        for operator, original in kept.items():
            setattr(mp.mpf, operator, recording(original))
        yield
    finally:
        for operator, before in own.items():
            if before is None:
                delattr(mp.mpf, operator)
            else:
                setattr(mp.mpf, operator, before)


class _Compared(TorchFunctionMode):
    """Records on which side of what it is compared with each of so many elements lies."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count, self.signs = count, list[torch.Tensor]()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.__name__.strip("_") in _OPERATORS and len(args) == 2:
            side = torch.sign(torch.as_tensor(args[0]).double() - torch.as_tensor(args[1]).double())
            if side.numel() == self.count:
                self.signs.append(side.detach().nan_to_num(2.0))
        return function(*args, **(kwargs or {}))


def constants(function: Callable[..., Any]) -> set[float]:
    """The numbers that stand in a function, in those that it is made of, and in what it closes over."""
    found: set[float] = set()
    seen: set[int] = set()

    def look(value: Any) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, CodeType):
            for inner in value.co_consts:
                look(inner)
        elif isinstance(value, tuple | list):
            for inner in value:
                look(inner)
        elif callable(value) and hasattr(value, "__code__"):
            look(value.__code__)
            for inner in (*(value.__defaults__ or ()), *(cell.cell_contents for cell in value.__closure__ or ())):
                look(inner)
        elif isinstance(value, str | int | float | mp.mpf) and not isinstance(value, bool):
            try:
                number = float(value)
            except (ValueError, OverflowError):
                return
            if math.isfinite(number):
                found.add(number)

    look(function)
    return found


def neighbours(number: float) -> Iterator[float]:
    """A number, its negative, and what lies beside both in every format that a kernel may have."""
    for grid, sign in itertools.product(_GRIDS, (1.0, -1.0)):
        here = torch.tensor(sign * number, dtype=torch.float64).to(grid)
        for side in (-math.inf, 0.0, math.inf):
            there = here if side == 0.0 else torch.nextafter(here, torch.tensor(side, dtype=grid))
            if math.isfinite(float(there)):
                yield float(there)


def _of_every_binade() -> Iterator[float]:
    source = random.Random(0)
    for exponent, sign in itertools.product(BINADES, (1.0, -1.0)):
        for _ in range(PER_BINADE):
            yield sign * math.ldexp(source.uniform(1.0, 2.0), exponent)


def _rows(values: Sequence[float], beside: Sequence[float], operands: int) -> Iterator[tuple[float, ...]]:
    """The values; of several operands each has them in an order of its own, and then come pairs of constants."""
    if operands == 1:
        yield from ((value,) for value in values)
        return
    columns = [list(values) for _ in range(operands)]
    for place, column in enumerate(columns[1:]):
        random.Random(place).shuffle(column)
        column.remove(0.5)
        column.insert(0, 0.5)
    yield from zip(*columns, strict=True)
    few = [number for number in beside if abs(number) < 1e6][:: max(1, len(beside) // 24)]
    yield from itertools.product(few, repeat=operands) if operands == 2 else ()


def _check(op: Op, result: str, row: tuple[float, ...], point: Point, got: float) -> None:
    """UsageError if a value is another than the exact one, or than all right ones; both have to be finite."""
    if not math.isfinite(got):
        return
    between = point.ends() if point.ends is not None else None
    least, greatest = (end.mp(_BITS) for end in between) if between else (point.mp(_BITS),) * 2
    if not (mp.isfinite(least) and mp.isfinite(greatest)):
        return
    value = to_mp(got)
    off = max(least - value, value - greatest, mp.zero)
    # a slope of large operands may be the small rest of terms as large as they are
    size = max(1.0, *map(abs, row)) if result != "y" else 1.0
    if not off <= TOLERANCE * (size + abs(least)):
        at = ", ".join(f"{value:.9g}" for value in row)
        of = "" if result == "y" else f" of the gradient {result}"
        raise UsageError(
            f"op {op.name!r}: at {at} exact gives {mp.nstr(least, 12)}{of}, reference {mp.nstr(value, 12)}",
            hint="make both formulas the same function; float64 may differ by 1e-6 at most",
        )
