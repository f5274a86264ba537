"""Stores a gate curve as a table of polynomials: the truth of a fused sweep, made from exact values alone.

gelu and silu, their derivatives, and everything gated by them have the symmetry y(x) - y(-x) = x. So the curve at x is
a simple part plus a remainder, and only the remainder needs a table, in u = |x|:

    |x| < 1/8     value x/2 + x^2 P(x^2),      slope 1/2 + x P(x^2)
    x <= -1/8     value     0 + f(-u),         slope   0 + f'(-u)
    x >= 1/8      value     x + f(-u),         slope   1 - f'(-u)

The simple part is exact in float64, also times another float16 or bfloat16. So errors are relative to the remainder:
the reference shows that half a subnormal plus 1e-40 lies above the tie. The remainder is a polynomial for each cell of
2^16 float32 numbers, through exact values (Arb, 160 bits) at Chebyshev nodes; the coefficients are computed with 256
bits. Beyond the last cell the remainder is below 2^-345, less than any format can show. There the table keeps only its
sign.

The table depends on the curve alone. `verify certify` measures how far the evaluated reference is from the exact value,
as for the torch route, with the device kind "fused". Every sweep checks that on random inputs.
"""

from __future__ import annotations

import hashlib
import math
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import flint
import numpy as np
import torch
from torch import Tensor

from verify import ops
from verify.errors import WriteError
from verify.ops.geometry import Params
from verify.ops.op import Point, Problem
from verify.ops.precision import arb_bits
from verify.records.files import write_atomically
from verify.records.part_store import cache
from verify.records.source_digest import own_digest
from verify.truth.formats import named

CELL_BITS = 16  # float32 numbers per cell
DEGREE = 12
WIDTH = DEGREE + 5  # centre, the two parts of the scale, coefficients, one spare
NEAR = 0.125
VANISHED = 2.0**-345
_PRECISION = 160
_SOLVING = 256


@dataclass(frozen=True)
class Table:
    """Holds the rows of a table: the cell around zero, the cells from 1/8 on, and one row for all larger numbers.

    Each row is centre, a, r, coefficients: the remainder is off by at most units * 2^-53 * (a + r |remainder|). `first`
    is the number (float32 bits >> 16) of the first cell.
    """

    rows: np.ndarray
    first: int

    @property
    def last_row(self) -> int:
        """Returns the index of the row beyond the last cell."""
        return int(self.rows.shape[0]) - 1


NEAR_BITS = named("float32").from_float(NEAR)
_FIRST = NEAR_BITS >> CELL_BITS
_DIGEST = hashlib.sha256().digest_size


@lru_cache(maxsize=8)
def table_for(curve: str, approximate: str, slope: bool) -> Table:
    """Returns the table of a curve. Exact arithmetic takes 0.6 s, so the user's cache keeps it until verify changes.

    A cached table is used if its digest is right. Every sweep checks the table against exact values anyway.
    """
    named = f"{curve}-{approximate or 'only'}-{'slope' if slope else 'value'}-"
    file = f"{named}{own_digest()}-{flint.__version__}"
    try:
        data = (cache("tables") / file).read_bytes()
        if hashlib.sha256(data[_DIGEST:]).digest() == data[:_DIGEST]:
            return Table(np.frombuffer(data[_DIGEST:]).reshape(-1, WIDTH).copy(), _FIRST)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
        pass
    table = _made(curve, approximate, slope)
    with suppress(OSError, RuntimeError, WriteError):
        for old in cache("tables").glob(f"{named}*"):
            old.unlink()
        rows = table.rows.tobytes()
        write_atomically(cache("tables") / file, hashlib.sha256(rows).digest() + rows)
    return table


def _made(curve: str, approximate: str, slope: bool) -> Table:
    """Makes a table: adds cells in batches until the remainder has vanished."""
    nodes = _nodes()
    solver = _solver(nodes)
    rows = [_near_row(curve, approximate, slope, nodes)]
    cell, batch = _FIRST, 128
    while True:
        cells = range(cell, cell + batch)
        made, vanished = _rows(curve, approximate, slope, cells, nodes, solver)
        rows += made
        cell += len(made)
        if vanished:
            break
    far = np.zeros(WIDTH)
    far[2], far[3] = 1.0, -VANISHED  # the sign is right, and the magnitude is below anything that a format can show
    return Table(np.ascontiguousarray(np.stack([*rows, far])), _FIRST)


def _nodes() -> list[float]:
    """Returns Chebyshev nodes of (-1, 1), rounded so that centre + half width * node is exact in float64."""
    count = DEGREE + 1
    return [round(math.cos((2 * k + 1) * math.pi / (2 * count)) * 4096) / 4096 for k in range(count)]


def _solver(nodes: list[float]) -> Any:
    """Returns the exact inverse of the Vandermonde matrix of the nodes."""
    return _inverse([flint.fmpq(int(node * 4096), 4096) for node in nodes])


def _inverse(nodes: list[Any]) -> Any:
    return flint.fmpq_mat(len(nodes), len(nodes), [x**power for x in nodes for power in range(len(nodes))]).inv()


def points_of(curve: str, params: Params, slope: bool, x: Tensor) -> list[Point]:
    """Returns the exact values of a curve or its slope. Ignores params that the curve's op does not have."""
    op = ops.get(curve)
    result, upstream = ("dx", {"y": torch.ones_like(x)}) if slope else ("y", {})
    own = op.resolve({name: value for name, value in params.items() if name in op.params})
    return op.points(Problem({"x": x}, own, upstream, (result,)), result, range(x.numel()))


def _exact(curve: str, approximate: str, slope: bool, places: list[float]) -> list[Any]:
    """Returns balls of the curve or its slope at some places."""
    x = torch.tensor(places, dtype=torch.float64)
    balls = []
    for point in points_of(curve, {"approximate": approximate}, slope, x):
        assert point.arb is not None
        balls.append(point.arb(_PRECISION))
    return balls


def _solve(solver: Any, columns: list[list[Any]]) -> list[list[float]]:
    """Returns the coefficients in powers of the node for each column of values."""
    with arb_bits(_SOLVING):
        size = len(columns[0])
        values = flint.arb_mat(size, len(columns), [column[row] for row in range(size) for column in columns])
        solved = flint.arb_mat(solver) * values
        return [[float(solved[row, place].mid()) for row in range(size)] for place in range(len(columns))]


def _near_row(curve: str, approximate: str, slope: bool, nodes: list[float]) -> np.ndarray:
    """Returns the row around zero: P(t) on 0 <= t <= 1/64, t = x^2. The nodes are exact squares of float64 numbers."""
    half = NEAR * NEAR / 2
    places = [math.sqrt(half + half * node) for node in nodes]
    squares = [flint.fmpq(*place.as_integer_ratio()) ** 2 for place in places]
    exact = _exact(curve, approximate, slope, places)
    with arb_bits(_SOLVING):
        balls = []
        for ball, place, square in zip(exact, places, squares, strict=True):
            x = flint.arb(place)
            balls.append((ball - flint.arb(1) / 2) / x if slope else (ball - x / 2) / flint.arb(square))
    row = np.zeros(WIDTH)
    row[2] = 1.0
    row[3 : 4 + DEGREE] = _solve(_inverse(squares), [balls])[0]
    return row


def _rows(
    curve: str, approximate: str, slope: bool, cells: range, nodes: list[float], solver: Any
) -> tuple[list[np.ndarray], bool]:
    """Returns the rows of some cells, up to the first whose remainder has vanished, and True if there is one."""
    ends = [named("float32").to_float(cell << CELL_BITS) for cell in (*cells, cells.stop)]
    spans = [((low + high) / 2, (high - low) / 2) for low, high in pairwise(ends)]
    places = [-(centre + half * node) for centre, half in spans for node in nodes]
    balls = _exact(curve, approximate, slope, places)
    size = len(nodes)
    columns = [balls[place * size : (place + 1) * size] for place in range(len(spans))]
    rows: list[np.ndarray] = []
    for (centre, half), column, solved in zip(spans, columns, _solve(solver, columns), strict=True):
        if all(abs(float(ball.mid())) < VANISHED for ball in column):
            return rows, True
        row = np.zeros(WIDTH)
        row[0] = centre
        # The size of the terms, and of the first omitted term if it exceeds their rounding.
        left_out = solved[-1] ** 2 / max(abs(solved[-2]), VANISHED**2) * 2.0**-DEGREE
        row[1] = sum(abs(coefficient) for coefficient in solved) + left_out * 2.0**51
        row[3 : 4 + DEGREE] = [coefficient / half**power for power, coefficient in enumerate(solved)]
        rows.append(row)
    return rows, False
