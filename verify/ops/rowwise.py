"""Builds a row-wise `Op`: each output element depends on one row (the last dimension) of the data.

Operands of role "data" have the shape (..., N) of the case. All others are vectors of N elements, and their gradients
sum over the rows. The op defines how to evaluate one element of a row, and one element of such a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from verify.ops.elements import pick, whole
from verify.ops.equal_rows import merged
from verify.ops.geometry import Rowwise
from verify.ops.graph.baseline import exact_points
from verify.ops.op import Fast, Landmarks, Op, Operand, Point, Problem

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
        return math.prod(x.shape[:-1])

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
        values: list[float] | None = self.problem.cache.get(key)
        if values is None and (limit is None or tensor.numel() <= limit):
            values = self.problem.cache[key] = whole(tensor)
        return values

    def cached(self, key: object, make: Callable[[], Any]) -> Any:
        """Returns `make()`, called once per problem and key."""
        if key not in self.problem.cache:
            self.problem.cache[key] = make()
        return self.problem.cache[key]

    def _required(self, name: str) -> Tensor:
        tensor = self.problem.inputs[name]
        if tensor is None or tensor.ndim == 0:
            raise ValueError(f"operand {name} is required and has at least one dimension")
        return tensor


Element = Callable[[Rows, str, int, int], Callable[[int], Any]]
Column = Callable[[Rows, str, int], Callable[[int], Any]]


def rowwise(
    name: str,
    operands: tuple[Operand, ...],
    outputs: tuple[str, ...],
    *,
    fast: Callable[[Problem], dict[str, Fast]],
    element: Element,
    column: Column,
    baseline: Callable[..., Any],
    **options: Any,
) -> Op:
    """Returns an op on rows.

    `element(rows, result, row, column)` returns the formula in mpmath of one element of a result shaped like the data.
    `column(rows, result, column)` returns that of the gradient of a vector operand. Arb evaluates the program.
    """
    data = [operand.name for operand in operands if operand.role == "data"]
    vectors = {"d" + operand.name for operand in operands if operand.role != "data"}
    program = exact_points([each.name for each in operands], outputs, baseline, fast, sorted(vectors), data)

    def points(problem: Problem, result: str, indices: Sequence[int]) -> list[Point]:
        if result in vectors:
            rows = Rows(merged(problem, data), data[0])
            formulas = [column(rows, result, index) for index in indices]
        else:
            rows = Rows(problem, data[0])
            formulas = [element(rows, result, *divmod(index, rows.width)) for index in indices]
        pairs = zip(formulas, program(problem, result, indices), strict=True)
        return [Point(formula, point.arb) for formula, point in pairs]

    settings: Mapping[str, Any] = {"gate": "scaled", **options}
    return Op(
        name=name,
        geometry=Rowwise(),
        operands=operands,
        outputs=outputs,
        fast=fast,
        points=points,
        baseline=baseline,
        landmarks=Landmarks(of=data[0]),
        **settings,
    )
