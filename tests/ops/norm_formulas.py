"""The second formula of the norms: mpmath, by integers. It shares no code with the program that a run evaluates.

It uses that every input is an integer times a power of two. So it computes the sum, N^2 times the variance, and the
bracket of the gradient in integers. Only the final division and square root are rounded. In units of the row's
exponent, let S = sum X and Q = sum X^2. Let A = N X - S and D = N Q - S^2 + eps N^2. Let G = w dy and
T = sum G A. Then

    xhat = A / sqrt(D),     ds = ((N G - sum G) D - A T) / D^(3/2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, isinf, isnan, prod
from typing import Any, NamedTuple

from mpmath import mp
from torch import Tensor

from tests.ops.exactly import (
    Dyadic,
    Dyadics,
    add_rows,
    at_exponent,
    dot,
    dyadic,
    dyadics,
    exact_product,
    multiply_rows,
    summed,
    to_mp,
    whole,
)
from verify.ops import Problem, get
from verify.ops.elements import pick

Formula = Callable[[int], Any]  # of a precision: see `Point.mp`


_FEW = 1 << 14  # most elements of a tensor that is read as a whole, which is faster than one element at a time


@dataclass(frozen=True)
class Rows:
    """The rows of one problem, read as Python floats."""

    problem: Problem
    data: str = "x"

    @cached_property
    def width(self) -> int:
        """N, the length of a row."""
        return int(self._required(self.data).shape[-1])

    @cached_property
    def count(self) -> int:
        """The number of rows."""
        x = self._required(self.data)
        return prod(x.shape[:-1])

    def present(self, name: str) -> bool:
        """True if the problem has this operand."""
        return self.problem.inputs.get(name) is not None

    def row(self, tensor: Tensor, index: int) -> list[float]:
        """Returns row `index` of a (..., N) tensor."""
        width = self.width
        values = self._read(tensor)
        if values is not None:
            return values[index * width : (index + 1) * width]
        row: list[float] = self.cached(
            ("row", id(tensor), index), lambda: pick(tensor, range(index * width, (index + 1) * width))
        )
        return row

    def data_row(self, name: str, index: int) -> list[float]:
        """Returns row `index` of a data operand."""
        return self.row(self._required(name), index)

    def vector(self, name: str) -> list[float] | None:
        """Returns all elements of a vector operand, cached in the problem; None if it is absent."""
        tensor = self.problem.inputs.get(name)
        return None if tensor is None else self._read(tensor, limit=None)

    def column(self, tensor: Tensor, index: int) -> list[float]:
        """Returns column `index` of a (..., N) tensor."""
        values = self._read(tensor)
        if values is not None:
            return values[index :: self.width]
        return pick(tensor, range(index, self.count * self.width, self.width))

    def element(self, tensor: Tensor, index: int) -> float:
        """Returns the element at a flat position."""
        values = self._read(tensor)
        return pick(tensor, [index])[0] if values is None else values[index]

    def _read(self, tensor: Tensor, limit: int | None = _FEW) -> list[float] | None:
        """Returns all elements of a tensor, cached in the problem; None if it has more than `limit` elements."""
        key = ("read", id(tensor))
        values: list[float] | None = self.problem.kept.exact.get(key)
        if values is None and (limit is None or tensor.numel() <= limit):
            values = self.problem.kept.exact[key] = whole(tensor)
        return values

    def cached(self, key: object, make: Callable[[], Any]) -> Any:
        """Returns `make()`, called once per problem and key."""
        if key not in self.problem.kept.exact:
            self.problem.kept.exact[key] = make()
        return self.problem.kept.exact[key]

    def _required(self, name: str) -> Tensor:
        tensor = self.problem.inputs[name]
        if tensor is None or tensor.ndim == 0:
            raise ValueError(f"operand {name} is required and has at least one dimension")
        return tensor


class Moments(NamedTuple):
    """S and D of one row, in units of 2^exponent and 2^(2 exponent)."""

    exponent: int
    total: int
    spread: Dyadic


class Bracket(NamedTuple):
    """sum G and T of one row, in units of 2^exponent."""

    exponent: int
    total: int
    product: int


@dataclass(frozen=True)
class Normalization:
    """One problem of a normalisation, with the operands that are summed to the row."""

    rows: Rows
    centre: bool
    summands: tuple[str, ...]

    @property
    def eps(self) -> float:
        return float(self.rows.problem.params["eps"])

    def upstream(self, output: str) -> Tensor | None:
        return self.rows.problem.upstream.get(output)

    def parts(self, row: int) -> list[list[float]]:
        """Returns the summands of one row. A vector operand is broadcast over the rows."""
        return [
            self.rows.vector(name) or [] if name == "input_bias" else self.rows.data_row(name, row)
            for name in self.summands
        ]

    def element_parts(self, row: int, column: int) -> list[float]:
        """Returns the summands of one element."""
        values = []
        for name in self.summands:
            tensor = self.rows.problem.inputs[name]
            assert tensor is not None
            at = column if name == "input_bias" else row * self.rows.width + column
            values.append(self.rows.element(tensor, at))
        return values

    def factor(self, name: str, column: int, default: float) -> float:
        """Returns an element of a vector operand, or `default` if the operand is absent."""
        vector = self.rows.vector(name)
        return default if vector is None else vector[column]

    def upstream_element(self, output: str, row: int, column: int) -> float:
        tensor = self.upstream(output)
        return 0.0 if tensor is None else self.rows.element(tensor, row * self.rows.width + column)

    def products(self, row: int) -> tuple[list[float], list[float]]:
        """Returns w and dy of one row."""
        upstream = self.upstream("y")
        width = self.rows.width
        dy = [0.0] * width if upstream is None else self.rows.row(upstream, row)
        return self.rows.vector("weight") or [1.0] * width, dy

    def integers(self, row: int) -> Dyadics:
        return add_rows([dyadics(part) for part in self.parts(row)])

    def moments(self, row: int) -> Moments | None:
        """Returns S and D; None if xhat does not exist, because the row is not finite or xhat is 0 / 0."""

        def make() -> Moments | None:
            if not all(isfinite(value) for part in self.parts(row) for value in part):
                return None
            integers, exponent = self.integers(row)
            width = len(integers)
            total = sum(integers) if self.centre else 0
            spread = width * dot(integers, integers) - total * total
            eps = dyadic(self.eps)
            place = eps.exponent - 2 * exponent
            low = min(place, 0)
            scaled = (spread << -low) + ((eps.integer * width * width) << (place - low))
            return Moments(exponent, total, Dyadic(scaled, low)) if scaled > 0 else None

        moments: Moments | None = self.rows.cached(("moments", row), make)
        return moments

    def bracket(self, row: int) -> Bracket | None:
        """Returns sum G and T; None if an upstream gradient or a weight of the row is not finite."""

        def make() -> Bracket | None:
            moments = self.moments(row)
            weight, dy = self.products(row)
            if moments is None or not all(map(isfinite, weight)) or not all(map(isfinite, dy)):
                return None
            grown = multiply_rows(dyadics(weight), dyadics(dy))
            total = sum(grown.integers)
            integers, _ = self.integers(row)
            width = len(integers)
            product = width * dot(grown.integers, integers) - moments.total * total
            return Bracket(grown.exponent, total if self.centre else 0, product)

        bracket: Bracket | None = self.rows.cached(("bracket", row), make)
        return bracket

    def vanishes(self, row: int, column: int) -> bool:
        """True if xhat has the limit 0: a finite element beside an infinity, in a row without NaN and centring."""
        if self.centre:
            return False

        def make() -> bool:
            values = [sum(column) for column in zip(*self.parts(row), strict=True)]
            return any(map(isinf, values)) and not any(map(isnan, values))

        infinite: bool = self.rows.cached(("infinite", row), make)
        return infinite and all(map(isfinite, self.element_parts(row, column)))

    def centred(self, moments: Moments, row: int, column: int) -> int:
        """Returns A = N X - S."""
        parts = self.element_parts(row, column)
        value = sum(at_exponent(part, moments.exponent) for part in parts)
        return self.rows.width * value - moments.total

    def xhat_mp(self, row: int, column: int) -> Any:
        """Returns xhat at mpmath's working precision."""
        moments = self.moments(row)
        if moments is None:
            return mp.zero if self.vanishes(row, column) else mp.nan
        return mp.mpf(self.centred(moments, row, column)) / mp.sqrt(moments.spread.mpf())

    def gradient_mp(self, row: int, column: int) -> Any:
        """Returns the part of ds that comes through y, at mpmath's working precision."""
        moments, bracket = self.moments(row), self.bracket(row)
        if moments is None or bracket is None:
            return mp.nan
        weight = self.factor("weight", column, 1.0)
        dy = self.upstream_element("y", row, column)
        (w_integer, w_place), (dy_integer, dy_place) = dyadic(weight), dyadic(dy)
        shift = w_place + dy_place - bracket.exponent
        product = w_integer * dy_integer
        grown = product << shift if shift >= 0 else product >> -shift
        spread, place = moments.spread
        numerator = (self.rows.width * grown - bracket.total) * spread
        numerator -= (self.centred(moments, row, column) * bracket.product) << -place
        unit = place + bracket.exponent - moments.exponent
        root = mp.sqrt(moments.spread.mpf())
        return Dyadic(numerator, unit).mpf() / root**3


def _summed(terms: Callable[[], list[Any]]) -> Formula:
    """Returns the sum of terms, which the callable evaluates at mpmath's current precision."""
    return lambda prec: summed(lambda bits: terms(), prec)


def element_of(norm: Normalization, result: str, row: int, column: int) -> Formula:
    """Returns one element of y, of s, or of the gradient of a data operand."""
    if result == "s":
        return _summed(lambda: list(map(to_mp, norm.element_parts(row, column))))
    if result == "y":
        weight = norm.factor("weight", column, 1.0)
        bias = norm.factor("bias", column, 0.0)
        return _summed(lambda: [exact_product(to_mp(weight), norm.xhat_mp(row, column)), to_mp(bias)])
    added = norm.upstream_element("s", row, column)
    return _summed(lambda: [norm.gradient_mp(row, column), to_mp(added)])


def column_of(norm: Normalization, result: str, column: int) -> Formula:
    """Returns one element of the gradient of a vector operand, which is a sum over all rows."""
    count = norm.rows.count
    upstream = norm.upstream("y")
    dy = [0.0] * count if upstream is None else norm.rows.column(upstream, column)
    if result == "dbias":
        return _summed(lambda: list(map(to_mp, dy)))
    if result == "dweight":
        return _summed(lambda: [exact_product(to_mp(d), norm.xhat_mp(r, column)) for r, d in enumerate(dy)])
    rows_sum = norm.upstream("s")
    ds = [0.0] * count if rows_sum is None else norm.rows.column(rows_sum, column)
    return _summed(lambda: [norm.gradient_mp(row, column) for row in range(count)] + list(map(to_mp, ds)))


def norm(op: str, problem: Problem, result: str, index: int) -> Formula:
    """Returns one element of a result of a norm."""
    operands = get(op).operands
    summands = tuple(each.name for each in operands if each.name not in ("weight", "bias"))
    own = Normalization(Rows(problem), op.startswith("layer"), summands)
    vector = any(result == "d" + each.name for each in operands if each.role != "data")
    return column_of(own, result, index) if vector else element_of(own, result, *divmod(index, own.rows.width))
