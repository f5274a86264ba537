"""Chooses the sizes of one candidate of a hunt, and the dimension in which many of them make one call.

If an op treats each position of a dimension alone, as a softmax its rows, many candidates make one call. The program of
a PyTorch function shows which dimension that is, as for the laws about rows. A wrong choice costs evaluations and
nothing else, because finds are judged as cases of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from torch import Tensor

from verify.cases import case_of
from verify.cases.explicit import LIMIT
from verify.cases.plan import summed_results
from verify.cases.sizes import sizes_of
from verify.declare.declaration import Kernel
from verify.errors import UsageError
from verify.laws.locality import independent_rows
from verify.ops.graph.shapes import sizes_within
from verify.ops.op import Op
from verify.search.hunt.draws import Draws

Dims = tuple[int, ...]

WIDTH = 128  # length of the searched rows and dot products
WIDTH_FLOAT64 = 16  # shorter, because float64 is judged element by element in exact arithmetic
WIDTH_SUMS = PERIOD = 16  # columns of a sum over rows, and the number of different rows in it
_MOST_ROWS, _MOST_ROWS_CPU = 65_537, 257  # an interpreted kernel takes milliseconds per row
_ELEMENTS = 512  # of the largest operand of a case that shows the rows of a function
_TRIED = 2_000  # number of sizes to choose from, the plainest first


@dataclass(frozen=True)
class CandidateLayout:
    """Holds the sizes of one candidate, and how candidates are laid in one call.

    `axis` is the dimension in which they lie, None if each has a call of its own. `laid` names the tensors that have
    this dimension. `most_rows` is the largest number of rows of a sum over rows; the rows of a candidate repeat up to
    it. `what` describes a candidate if its sizes do not.
    """

    dims: Dims
    axis: int | None
    laid: frozenset[str] = frozenset()
    most_rows: int = 0
    what: str = ""

    def times(self, count: int) -> Dims:
        """Returns the sizes of a call of `count` candidates."""
        return self.dims if self.axis is None else self._with(self.axis, self.dims[self.axis] * count)

    def of_rows(self, rows: int) -> Dims:
        """Returns the sizes of a sum over `rows` rows."""
        return self._with(0, rows)

    def _with(self, axis: int, size: int) -> Dims:
        return (*self.dims[:axis], size, *self.dims[axis + 1 :])


def layout_of(kernel: Kernel, dtype: str, result: str, device: str, width: int) -> CandidateLayout:
    """Returns the layout of one result. `width` 0 is the default length of rows and dot products."""
    op = kernel.op
    data = frozenset(operand.name for operand in op.operands if operand.role == "data")
    data |= {"d" + name for name in op.all_outputs}
    if op.geometry.by_element:
        return CandidateLayout((1, 1), 1, data | {operand.name for operand in op.operands}, what="single elements")
    if result in summed_results(kernel):
        return _sum_of_rows(kernel, dtype, result, device, width or WIDTH_SUMS)
    width = width or (WIDTH_FLOAT64 if dtype == "float64" else WIDTH)
    if op.geometry.named:
        return _of_function(kernel, dtype, result, width)
    what = "rows" if op.geometry.by_row else "dot products"
    return CandidateLayout(op.geometry.dims_of(1, width), 0, data, what=f"{what} of {width}")


def _sum_of_rows(kernel: Kernel, dtype: str, result: str, device: str, width: int) -> CandidateLayout:
    """Returns the layout of a sum over rows. Raises UsageError if a case could not spell out its rows."""
    width = allowed(kernel, kernel.op.geometry.dims_of(PERIOD, width, WIDTH_SUMS), 1)
    if width * PERIOD > LIMIT:
        raise UsageError(
            f"--width is at most {LIMIT // PERIOD:,} for {result}: a case spells out {PERIOD} rows; received {width:,}"
        )
    most = _MOST_ROWS_CPU if dtype == "float64" or device == "cpu" else _MOST_ROWS
    dims = kernel.op.geometry.dims_of(PERIOD, width, WIDTH_SUMS)
    return CandidateLayout(dims, None, most_rows=most, what=f"sums over rows of {width}")


def allowed(kernel: Kernel, dims: Dims, axis: int) -> int:
    """Returns the size of one axis, or the nearest size that the kernel's domain allows."""
    for away in range(LIMIT if kernel.where else 1):
        for size in (dims[axis] + away, dims[axis] - away):
            if size > 0 and kernel.allows((*dims[:axis], size, *dims[axis + 1 :])):
                return size
    return dims[axis]


def _of_function(kernel: Kernel, dtype: str, result: str, elements: int) -> CandidateLayout:
    """Returns the layout of a PyTorch function. An operand has at most `elements` numbers if the domain allows it.

    Candidates lie along the first dimension that all of its tensors begin with, and whose indices are rows.
    """
    op = kernel.op
    if op.geometry.examples:
        found = CandidateLayout(min(op.geometry.examples, key=lambda dims: _numbers(op, dims)), None)
    else:
        found = _chosen(op, elements, None)
        floats = [each.name for each in op.operands if each.range is None]
        for rows in independent_rows(kernel, case_of(kernel, dtype, dims=sizes_of(op, _ELEMENTS)[0])):
            axis, laid = op.geometry.dims.index(rows.dimension), set(rows.axes)
            laid = {f"d{name}" if name in op.all_outputs else name for name in laid}
            layout = CandidateLayout(_chosen(op, elements, axis).dims, axis, frozenset(laid))
            first = set(rows.axes.values()) == {0} and rows.axis(result) is not None and not laid.isdisjoint(floats)
            if first and kernel.allows(layout.times(3)):
                found = layout
                break
    if reason := too_large(op, [found.dims]):
        raise UsageError(reason)
    return found


def too_large(op: Op, sizes: Sequence[Dims]) -> str:
    """Returns why no find of any of these sizes can be written down; "" if there are none, or if one can."""
    if (numbers := min((_numbers(op, dims) for dims in sizes), default=0)) <= LIMIT:
        return ""
    return (
        f"a hunt spells out its finds, at most {LIMIT:,} numbers of an operand; the smallest sizes of {op.name!r} "
        f"have {numbers:,}: shapes= with named dimensions, in the place of examples=, lets a hunt take smaller ones"
    )


def _numbers(op: Op, dims: Dims) -> int:
    """Returns the number of elements of the largest operand."""
    return max(math.prod(shape) for shape in op.shapes(dims, op.params).values())


def _chosen(op: Op, elements: int, axis: int | None) -> CandidateLayout:
    """Returns the largest, squarest sizes with at most `elements` numbers. The size along `axis` is the smallest."""
    sizes = list(islice(sizes_within(op.geometry, LIMIT), _TRIED))
    if axis is not None:
        least = min(dims[axis] for dims in sizes)
        sizes = [dims for dims in sizes if dims[axis] == least]

    def order(dims: Dims) -> tuple[bool, int, int]:
        rest = [size for place, size in enumerate(dims) if place != axis]
        numbers = _numbers(op, dims)
        return (True, min(rest, default=1), numbers) if numbers <= elements else (False, -numbers, 0)

    return CandidateLayout(max(sizes, key=order), axis)


def whole_numbers(kernel: Kernel, dims: Dims, draws: Draws) -> dict[str, Tensor]:
    """Draws the integer operands of one candidate within their ranges."""
    found = {}
    for operand in kernel.op.operands:
        if operand.range is not None and operand.derive is None and operand.name not in kernel.absent:
            shape = kernel.op.shapes(dims, kernel.op.params)[operand.name]
            low, high = operand.range(dims)
            values = (draws.below(math.prod(shape), max(high - low, 1)) + low).reshape(shape)
            values = operand.range.arranged(values, dims)
            found[operand.name] = values.bool() if operand.boolean else values
    return found


def copied(value: Tensor, count: int) -> Tensor:
    """Repeats the value `count` times along its first dimension."""
    return value.repeat(count, *[1] * (value.ndim - 1))
