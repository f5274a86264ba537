"""Defines the geometry of an op: the shapes of its tensors, and which inputs an output element depends on.

There are four geometries. The fourth, `verify.ops.graph.shapes.NamedDims`, belongs to PyTorch functions with named
dimensions. Code that must distinguish ops reads a property of the geometry. If a value differs between geometries, such
as the sizes that a law tries, a `ByGeometry` holds it. A new geometry becomes a new field of it, and mypy lists every
place that lacks the field.

    >>> Rowwise().dims_of(8, 128)
    (8, 128)
    >>> Contraction().dims_of(8, 128, 32)
    (8, 128, 32)
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar

from verify.errors import UsageError

Params = Mapping[str, Any]
Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]
Roles = Mapping[str, str]  # operand -> its role
Name = Literal["elementwise", "rowwise", "contraction", "graph"]
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class ByGeometry(Generic[T_co]):
    """One value for each geometry. `graph` is None if the declaration gives the sizes."""

    elementwise: T_co
    rowwise: T_co
    contraction: T_co
    graph: T_co | None = None


def alike(*sizes: tuple[int, int, int]) -> ByGeometry[Shapes]:
    """Returns a table of dims from (rows, width, columns). Only matrix products use the columns."""
    matrices = tuple((rows, width) for rows, width, _ in sizes)
    return ByGeometry(matrices, matrices, sizes)


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """The base of all geometries, with the properties that most of them have."""

    name: ClassVar[Name]
    # True: the value of one element decides the behaviour of an output element. Then there are regimes, landmarks and
    # an error curve. False: the value recipe of the case is the regime.
    by_element: ClassVar[bool] = False
    by_row: ClassVar[bool] = False  # True: an output element depends on one row of the data
    multiplies: ClassVar[bool] = False  # True: an output element is a sum of products of a row and a column
    sums_rows: ClassVar[bool] = False  # True: the gradient of a weight is a sum over all rows
    named: ClassVar[bool] = False  # True: a declaration names the dimensions, and none of them is known to hold rows
    fill: ClassVar[str] = "randn"  # the simplest value recipe

    halves: int = 1  # 2: each operand is packed, twice as wide as the output
    dims: tuple[str, ...] = ()  # the names of the dimensions, if their number is fixed
    where: str = ""  # the condition on sizes of a declaration
    examples: Shapes = ()  # the only allowed dims, if a declaration lists examples
    recipes: tuple[str, ...] = field(default=(), repr=False)  # value recipes of its cases; empty: those of every run
    seeds: int = field(default=1, repr=False)  # number of cases for each recipe

    @property
    def packed(self) -> bool:
        """True if an operand holds two halves side by side."""
        return self.halves > 1

    @property
    def sizes(self) -> tuple[str, ...]:
        """The names of sizes that a kernel's `where=` may use."""
        return self.dims or ("m", "n", "rank")

    def of(self, table: ByGeometry[T]) -> T:
        """Returns this geometry's value of a table."""
        value: T = getattr(table, self.name)
        return value

    def regime(self, recipe: str) -> str:
        """Returns the regime of a case with this value recipe; "" if each element has its own regime."""
        return "" if self.by_element else recipe

    def sizes_by_name(self, dims: Shape) -> dict[str, int]:
        """Maps names of sizes to sizes: n is the last dimension, m the product of the others, rank their number."""
        if self.dims:
            return dict(zip(self.dims, dims, strict=True))
        return {"m": math.prod(dims[:-1]), "n": dims[-1] if dims else 1, "rank": len(dims)}

    def allows(self, dims: Shape) -> bool:
        """True if the definition of the op allows these sizes."""
        return True

    def dims_of(self, rows: int, width: int, columns: int = 1) -> Shape:
        """Returns the dims for a number of rows of a width. Only matrix products use `columns`."""
        return (rows, width)

    def merged(self, dims: Shape) -> list[Shape]:
        """Returns dims with fewer dimensions for which the same values give the same results."""
        return []

    def shapes(self, op: str, roles: Roles, dims: Shape, params: Params) -> dict[str, Shape]:
        """Maps operands to their shapes. `op` is the op's name, for messages."""
        return dict.fromkeys(roles, tuple(dims))

    def results(self, outputs: Sequence[str], dims: Shape, params: Params) -> dict[str, Shape]:
        """Maps outputs to their shapes."""
        return dict.fromkeys(outputs, tuple(dims))


@dataclass(frozen=True)
class Elementwise(Geometry):
    """An output element depends on the elements of the operands at its own place. The dims are the output's shape.

    With halves=2, the operands are packed [..., 2d].
    """

    name = "elementwise"
    by_element = True
    fill = "normal"

    def merged(self, dims: Shape) -> list[Shape]:
        return [(math.prod(dims),), *Rowwise().merged(dims)] if len(dims) > 1 else []

    def shapes(self, op: str, roles: Roles, dims: Shape, params: Params) -> dict[str, Shape]:
        wide = (*dims[:-1], self.halves * dims[-1]) if dims else (self.halves,) if self.packed else ()
        return dict.fromkeys(roles, wide)


@dataclass(frozen=True)
class Rowwise(Geometry):
    """An output element depends on one row of the data. The dims are (..., N). Weights and biases have N elements."""

    name = "rowwise"
    by_row = sums_rows = True

    def merged(self, dims: Shape) -> list[Shape]:
        found: list[Shape] = [(math.prod(dims[:-1]), dims[-1])] if len(dims) > 2 else []
        return [*found, dims[-1:]] if len(dims) > 1 and set(dims[:-1]) == {1} else found

    def shapes(self, op: str, roles: Roles, dims: Shape, params: Params) -> dict[str, Shape]:
        if not dims:
            raise UsageError(
                f"op {op!r} works on rows: its dims are (..., N); received ()",
                hint="give at least one dimension, such as (8, 128)",
            )
        return {name: tuple(dims) if role == "data" else dims[-1:] for name, role in roles.items()}


@dataclass(frozen=True)
class Contraction(Geometry):
    """A product x @ weight^T with the dims (M, K, N). The weight has `factor(params)` rows for each column of y."""

    factor: Callable[[Params], int] = lambda params: 1
    dims: tuple[str, ...] = ("m", "k", "n")
    name = "contraction"
    multiplies = sums_rows = True

    def dims_of(self, rows: int, width: int, columns: int = 1) -> Shape:
        return (rows, width, columns)

    def shapes(self, op: str, roles: Roles, dims: Shape, params: Params) -> dict[str, Shape]:
        if len(dims) != 3:
            raise UsageError(
                f"op {op!r} takes dims (M, K, N); received {tuple(dims)}",
                hint="give three dimensions, such as (16, 64, 32)",
            )
        rows, inner, columns = dims
        columns *= self.factor(params)
        return {"x": (rows, inner), "weight": (columns, inner), "bias": (columns,)}

    def results(self, outputs: Sequence[str], dims: Shape, params: Params) -> dict[str, Shape]:
        return {"y": (dims[0], dims[2]), "pre": (dims[0], dims[2] * self.factor(params))}
