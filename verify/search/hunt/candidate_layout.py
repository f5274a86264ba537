"""Chooses the sizes of one candidate of a hunt, and the dimension in which many of them make one call.

If an op treats each position of a dimension alone, as a softmax its rows, many candidates make one call. The truth of a
PyTorch function shows which dimension that is: an element there does not change with the numbers at all other
positions. A wrong choice costs evaluations and nothing else, because finds are judged as cases of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from verify.cases import Case, inputs_of
from verify.cases.case import derive_all
from verify.cases.explicit import LIMIT
from verify.cases.plan import summed_results
from verify.declare.declaration import Kernel
from verify.errors import UsageError
from verify.ops.graph.shapes import sizes_within
from verify.ops.op import Op, Problem
from verify.search.hunt.draws import Draws

Dims = tuple[int, ...]

WIDTH = 128  # length of the searched rows and dot products
WIDTH_FLOAT64 = 16  # shorter, because float64 is judged element by element in exact arithmetic
WIDTH_SUMS = PERIOD = 16  # columns of a sum over rows, and the number of different rows in it
_MOST_ROWS, _MOST_ROWS_CPU = 65_537, 257  # an interpreted kernel takes milliseconds per row
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
        return _of_function(kernel, result, width)
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


def _of_function(kernel: Kernel, result: str, elements: int) -> CandidateLayout:
    """Returns the layout of a PyTorch function. An operand has at most `elements` numbers if the domain allows it."""
    op = kernel.op
    if op.geometry.examples:
        found = CandidateLayout(min(op.geometry.examples, key=lambda dims: _numbers(op, dims)), None)
    else:
        found = _chosen(op, elements, None)
        for axis in range(len(op.geometry.dims)):
            dims = _chosen(op, elements, axis).dims
            layout = CandidateLayout(dims, axis, _laid(kernel, dims, axis))
            if layout.laid and _is_apart(kernel, result, layout):
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


def _laid(kernel: Kernel, dims: Dims, axis: int) -> frozenset[str]:
    """Returns the tensors whose first dimension is `axis`; an output is named "d" + output.

    Returns none if `axis` changes a tensor in another way, or if an output does not have it. Tripling the size shows
    that a dimension is `axis` itself and not computed from it.
    """
    many = CandidateLayout(dims, axis).times(3)
    if not kernel.allows(many):
        return frozenset()
    op = kernel.op
    fixed = {name for each in op.operands if each.range is not None for name in each.range.fixed_by}
    if op.geometry.dims[axis : axis + 1] and op.geometry.dims[axis] in fixed:
        return frozenset()
    before, after = (op.shapes_with_outputs(sizes, op.params, op.all_outputs) for sizes in (dims, many))
    found = {name for name, shape in before.items() if shape and after[name] == (3 * shape[0], *shape[1:])}
    same = all(after[name] == shape for name, shape in before.items() if name not in found)
    floats = [each.name for each in op.operands if each.range is None]
    whole = same and found.issuperset("d" + name for name in op.all_outputs) and not found.isdisjoint(floats)
    return frozenset(found) if whole else frozenset()


def _is_apart(kernel: Kernel, result: str, layout: CandidateLayout) -> bool:
    """True if the first candidate's result has the same bits beside any other candidates of the call."""
    op, size = kernel.op, layout.dims[layout.axis or 0]
    gradient = result not in op.all_outputs
    if (result[1:] if gradient else "d" + result) not in layout.laid:
        return False
    case = Case("float32", layout.times(3), "normal", absent=kernel.absent)
    inputs = inputs_of(op, case, "cpu")
    arriving: dict[str, Tensor] = {}
    if gradient:
        draws = Draws(0, "beside", "cpu")
        for name in op.all_outputs:
            if name not in op.integers:
                shape = op.result_shapes(layout.times(3), op.params)[name]
                arriving[name] = (draws.uniform(math.prod(shape)) - 0.5).reshape(shape)
    seen = []
    for factor in (1.0, -3.0, 1000.0):
        given = {name: _beside(value, size, factor, name in layout.laid) for name, value in inputs.items()}
        given = derive_all(op, case, given, "cpu")
        upstream = {name: _beside(value, size, factor, True) for name, value in arriving.items()}
        problem = Problem(inputs=given, params=op.resolve(kernel.params), upstream=upstream, results=(result,))  # type: ignore[arg-type]
        seen.append(op.fast(problem)[result].value[:size])
    return all(torch.equal(seen[0].nan_to_num(), other.nan_to_num()) for other in seen[1:])


def _beside(value: Tensor | None, size: int, factor: float, laid: bool) -> Tensor | None:
    """Returns the tensor with other numbers from the second candidate on."""
    if value is None or not laid:
        return value
    rest = value[size:]
    rest = rest * factor if value.is_floating_point() else rest if factor == 1.0 else rest.flip(0)
    return torch.cat([value[:size], rest])


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
