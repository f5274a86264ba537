"""A gate curve as a table of polynomials: the truth of a fused sweep, made from exact values and nothing else.

gelu and silu, their derivatives, and everything gated by them have the symmetry y(x) - y(-x) = x. So the curve at x
is a simple part plus a remainder, and only the remainder needs a table, in u = |x|:

    |x| < 1/8     value x/2 + x^2 P(x^2),      slope 1/2 + x P(x^2)
    x <= -1/8     value     0 + f(-u),         slope   0 + f'(-u)
    x >= 1/8      value     x + f(-u),         slope   1 - f'(-u)

The simple part is exact in float64, also times another float16 or bfloat16, so that errors are relative to the
remainder: a result that is half a subnormal plus 1e-40 is known to lie above the tie. The remainder is a polynomial
per cell of 2^16 float32 numbers, through exact values (Arb, 160 bits) at Chebyshev nodes; the coefficients are found
with 256 bits. Beyond the last cell it is below 2^-345, less than any format can show, and only its sign is kept.

The table depends on the curve alone. How far the evaluated reference is from the exact value is certified like that
of the torch route (`verify certify`, device kind "fused") and checked on random inputs by every sweep.
"""

from __future__ import annotations

import hashlib
import math
import struct
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import flint
import numpy as np
import torch

from verify import ops
from verify.errors import WriteError
from verify.ops.op import Point, Problem
from verify.records.files import write_atomically
from verify.records.part_store import cache
from verify.records.source_digest import own_digest

CELL_BITS = 16  # float32 numbers per cell
DEGREE = 12
WIDTH = DEGREE + 5  # centre, two parts of the scale, coefficients, one spare
NEAR = 0.125
VANISHED = 2.0**-345
_PRECISION = 160
_SOLVING = 256


@dataclass(frozen=True)
class Table:
    """Rows: the cell around zero, the cells from 1/8 on, and one for everything beyond.

    Each row is centre, a, r, coefficients: the remainder is off by at most units * 2^-53 * (a + r |remainder|).
    `first` is the number (float32 bits >> 16) of the first cell.
    """

    rows: np.ndarray
    first: int

    @property
    def last_row(self) -> int:
        """The row beyond the last cell."""
        return int(self.rows.shape[0]) - 1


def float32_bits(value: float) -> int:
    """The pattern of a float32."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def float32_at(bits: int) -> float:
    """The float32 with a pattern."""
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


_FIRST = float32_bits(NEAR) >> CELL_BITS
_DIGEST = hashlib.sha256().digest_size


@lru_cache(maxsize=8)
def table_for(curve: str, approximate: str, slope: bool) -> Table:
    """The table of a curve: 0.6 s of exact arithmetic, kept in this user's cache until something of verify changes.

    What lies there is taken where its digest is right; every sweep holds the table against exact values anyway.
    """
    named = f"{curve}-{approximate or 'only'}-{'slope' if slope else 'value'}-"
    file = f"{named}{own_digest()}-{flint.__version__}"
    try:
        data = (cache("tables") / file).read_bytes()
        if hashlib.sha256(data[_DIGEST:]).digest() == data[:_DIGEST]:
            return Table(np.frombuffer(data[_DIGEST:]).reshape(-1, WIDTH).copy(), _FIRST)
    except (OSError, RuntimeError):  # RuntimeError: nobody has a home here
        pass
    table = _made(curve, approximate, slope)
    with suppress(OSError, RuntimeError, WriteError):
        for old in cache("tables").glob(f"{named}*"):
            old.unlink()
        rows = table.rows.tobytes()
        write_atomically(cache("tables") / file, hashlib.sha256(rows).digest() + rows)
    return table


def _made(curve: str, approximate: str, slope: bool) -> Table:
    nodes = _nodes()
    solver = _solver(nodes)
    rows = [_near_row(curve, approximate, slope, nodes, solver)]
    cell, batch = _FIRST, 128
    while True:
        cells = range(cell, cell + batch)
        made, vanished = _rows(curve, approximate, slope, cells, nodes, solver)
        rows += made
        cell += len(made)
        if vanished:
            break
    far = np.zeros(WIDTH)
    far[2], far[3] = 1.0, -VANISHED  # the sign is right, the size below what shows
    return Table(np.ascontiguousarray(np.stack([*rows, far])), _FIRST)


def _nodes() -> list[float]:
    """Chebyshev nodes of (-1, 1), rounded so that centre + half width * node is exact in float64."""
    count = DEGREE + 1
    return [round(math.cos((2 * k + 1) * math.pi / (2 * count)) * 4096) / 4096 for k in range(count)]


def _solver(nodes: list[float]) -> Any:
    """The inverse of the Vandermonde matrix of the nodes, exact."""
    exact = [flint.fmpq(int(node * 4096), 4096) for node in nodes]
    matrix = flint.fmpq_mat(len(nodes), len(nodes), [node**power for node in exact for power in range(len(nodes))])
    return matrix.inv()


def _exact(curve: str, approximate: str, slope: bool, places: list[float]) -> list[Any]:
    """Balls of the curve or its slope."""
    op = ops.get(curve)
    x = torch.tensor(places, dtype=torch.float64)
    params = {"approximate": approximate} if approximate else {}
    result = "dx" if slope else "y"
    upstream = {"y": torch.ones_like(x)} if slope else {}
    found: list[Point] = op.points(
        Problem({"x": x}, op.resolve(params), upstream, (result,)), result, range(len(places))
    )
    balls = []
    for point in found:
        assert point.arb is not None
        balls.append(point.arb(_PRECISION))
    return balls


def _solve(solver: Any, columns: list[list[Any]]) -> list[list[float]]:
    """Coefficients in powers of the node for each column of values."""
    before = flint.ctx.prec
    flint.ctx.prec = _SOLVING
    try:
        size = len(columns[0])
        values = flint.arb_mat(size, len(columns), [column[row] for row in range(size) for column in columns])
        solved = flint.arb_mat(solver) * values
        return [[float(solved[row, place].mid()) for row in range(size)] for place in range(len(columns))]
    finally:
        flint.ctx.prec = before


def _near_row(curve: str, approximate: str, slope: bool, nodes: list[float], solver: Any) -> np.ndarray:
    """P(t) on 0 <= t <= 1/64, t = x^2: the nodes are the squares of float64 numbers, taken as they are."""
    half = NEAR * NEAR / 2
    places = [math.sqrt(half + half * node) for node in nodes]
    squares = [flint.fmpq(*place.as_integer_ratio()) ** 2 for place in places]
    before = flint.ctx.prec
    flint.ctx.prec = _SOLVING
    try:
        balls = []
        for ball, place, square in zip(_exact(curve, approximate, slope, places), places, squares, strict=True):
            x = flint.arb(place)
            balls.append((ball - flint.arb(1) / 2) / x if slope else (ball - x / 2) / flint.arb(square))
        matrix = flint.fmpq_mat(len(nodes), len(nodes), [t**power for t in squares for power in range(len(nodes))])
        solved = flint.arb_mat(matrix.inv()) * flint.arb_mat(len(balls), 1, balls)
        row = np.zeros(WIDTH)
        row[2] = 1.0
        row[3 : 4 + DEGREE] = [float(solved[place, 0].mid()) for place in range(len(balls))]
        return row
    finally:
        flint.ctx.prec = before


def _rows(
    curve: str, approximate: str, slope: bool, cells: range, nodes: list[float], solver: Any
) -> tuple[list[np.ndarray], bool]:
    """The rows of some cells, up to the first whose remainder has vanished, and whether one has."""
    spans = []
    for cell in cells:
        low, high = float32_at(cell << CELL_BITS), float32_at((cell + 1) << CELL_BITS)
        spans.append(((low + high) / 2, (high - low) / 2))
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
        # the size of the terms, and of the first one left out where that is more than their rounding
        left_out = solved[-1] ** 2 / max(abs(solved[-2]), VANISHED**2) * 2.0**-DEGREE
        row[1] = sum(abs(coefficient) for coefficient in solved) + left_out * 2.0**51
        row[3 : 4 + DEGREE] = [coefficient / half**power for power, coefficient in enumerate(solved)]
        rows.append(row)
    return rows, False
