"""Whether the formulas that a user gives for an op are one function: compared where formulas come apart.

Two formulas of one function differ by their rounding. A slip makes them differ somewhere else: in a tail, beyond a
constant that one of them compares with, between two constants that lie close together, at the edge of a regime. So
they are compared in every binade of both signs, and beside every number that stands in a formula, a parameter, a
regime or a boundary. What this cannot find, an interval that no constant bounds and no binade's samples hit, is left to
the random elements that every run compares.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType
from typing import Any

import torch
from mpmath import mp

from verify.errors import UsageError
from verify.ops.elements import to_mp
from verify.ops.op import Op, Point, Problem

BINADES = range(-149, 128)  # those of float32, subnormal ones too
PER_BINADE = 2
SLOPES = 8  # one of so many places serves the gradients, which take several evaluations each
TOLERANCE = 1e-6  # of 1 + |exact|: far beyond what rounds off in float64, below any slip
_BITS = 80
_GRIDS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def compare(op: Op, formulas: Iterable[Callable[..., Any]], edges: Iterable[float]) -> None:
    """UsageError at the first place where `exact` and `reference` differ."""
    named = {*filter(math.isfinite, edges), *itertools.chain.from_iterable(map(constants, formulas))}
    named |= {float(value) for value in op.params.values() if isinstance(value, int | float)}
    beside = sorted({place for number in named for place in neighbours(number)})
    values = [0.5, *beside, *_of_every_binade()]
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
