"""Finds the results that belong to a row or an element, and the operands of that row.

Laws about splitting, reordering and reshaping are about results that one row of the data decides: the outputs, and the
gradients of the data operands. Gradients of weights and biases are sums over all rows, so they are excluded.
"""

import ast
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product

import msgspec
import numpy as np
import torch
from torch import Tensor

from verify.cases import Case, case_of, inputs_of
from verify.cases.case import derive_all
from verify.declare.declaration import Kernel
from verify.errors import UsageError
from verify.ops.geometry import Shape
from verify.ops.graph.shapes import NamedDims, Range
from verify.ops.graph.steps import Leaf
from verify.ops.op import Op, Problem

Tensors = dict[str, Tensor]


def data_operands(kernel: Kernel) -> tuple[str, ...]:
    """Returns the operands that have one row per row of the output."""
    return tuple(o.name for o in kernel.op.operands if o.role == "data" and o.name in kernel.operands)


@dataclass(frozen=True)
class Rows:
    """Holds the axis of each operand and output that counts rows, and the number of rows.

    All rows share the other operands. `dimension` is the name of the rows in a declaration, if any.
    """

    axes: Mapping[str, int]
    count: int
    dimension: str = ""

    def of(self, name: str, tensor: Tensor, rows: slice | Tensor) -> Tensor:
        """Returns some rows of an operand, an output or a gradient, a slice as a view; all of it if rows share it."""
        axis = self.axis(name)
        return tensor if axis is None else tensor[(slice(None),) * axis + (rows,)]

    def axis(self, name: str) -> int | None:
        """Returns the axis of an operand, an output or a gradient that counts rows; None if all rows share it."""
        return self.axes.get(name, self.axes.get(name.removeprefix("d")))

    def pick(
        self, inputs: Mapping[str, Tensor | None], upstream: Mapping[str, Tensor], rows: slice | Tensor
    ) -> tuple[dict[str, Tensor | None], Tensors]:
        """Returns the inputs and upstream gradients of some rows, contiguous. Shared operands are unchanged."""
        picked = {
            name: self.of(name, value, rows).contiguous() if value is not None and name in self.axes else value
            for name, value in inputs.items()
        }
        return picked, {name: self.of(name, value, rows).contiguous() for name, value in upstream.items()}

    def shift(
        self, inputs: Mapping[str, Tensor | None], upstream: Mapping[str, Tensor], places: int
    ) -> tuple[dict[str, Tensor | None], Tensors]:
        """Returns the inputs and upstream gradients with each row some places on. Shared operands are unchanged."""
        moved = {
            name: torch.roll(value, places, self.axes[name]) if value is not None and name in self.axes else value
            for name, value in inputs.items()
        }
        return moved, self.rolled(upstream, places)

    def rolled(self, results: Mapping[str, Tensor], places: int) -> Tensors:
        """Returns outputs and gradients with each row some places on."""
        return {
            name: value if (axis := self.axis(name)) is None else torch.roll(value, places, axis)
            for name, value in results.items()
        }

    def local(self, results: Mapping[str, Tensor], rows: slice) -> Tensors:
        """Returns some rows of the outputs and of the gradients of operands with rows."""
        return {name: self.of(name, value, rows) for name, value in results.items() if self.axis(name) is not None}

    def sized(self, kernel: Kernel, dims: Shape, count: int) -> Shape:
        """Returns the dims of a case with another number of rows."""
        at = kernel.op.geometry.dims.index(self.dimension) if self.dimension else 0
        return (*dims[:at], count, *dims[at + 1 :])

    def allowed(self, kernel: Kernel, case: Case, count: int) -> bool:
        """True if the declaration accepts the case with this number of rows."""
        return kernel.allows(self.sized(kernel, case.dims, count)) and (count > 0 or not self.dimension)


def contiguous(results: Mapping[str, Tensor]) -> Tensors:
    """Returns results in memory of their own order, as a call on these rows alone has them."""
    return {name: value.contiguous() for name, value in results.items()}


def lacks_rows(kernel: Kernel, shapes: Iterable[tuple[int, ...]]) -> str | None:
    """Returns why none of the shapes has rows to cut apart; None if one has. A vector has none if the op is by row."""
    has_rows = any(len(dims) > kernel.op.geometry.by_row for dims in shapes)
    return None if has_rows else "the declaration allows no shape with rows"


def separate_rows(kernel: Kernel, case: Case) -> list[Rows]:
    """Returns the rows that may be cut apart: the rows of a PyTorch function, or the first axis of data and outputs."""
    if kernel.op.geometry.named:
        return independent_rows(kernel, case)
    if lacks_rows(kernel, [case.dims]):
        return []
    return [Rows(dict.fromkeys((*data_operands(kernel), *kernel.outputs), 0), case.dims[0])]


_CLOSE = 1e-9  # relative difference of equal results in float64
_FOLLOWED = 256  # number of elements of an output whose operands are traced


def independent_rows(kernel: Kernel, case: Case) -> list[Rows]:
    """Returns the dimensions of a PyTorch function along which an output depends on operands at its own index alone.

    The function's program shows this for up to 256 elements of each output at the first, the last and a middle index.
    If results depend on the position of an index, as in a rotary embedding, the indices are not independent.
    """
    op = kernel.op
    if op.geometry.examples or not isinstance(op.geometry, NamedDims):
        return []
    # ordinary values: with numbers of 1e-20 no difference would show
    inputs = inputs_of(op, case_of(kernel, case.dtype, dims=case.dims), "cpu", shared=True)
    found = []
    for dimension, size in zip(op.geometry.dims, case.dims, strict=True):
        if _is_tied(op, dimension) or op.geometry.within_expression(dimension):
            continue
        axes = growing(op, case, dimension)
        single = all(len(some) < 2 for some in axes.values()) and all(axes.get(name) for name in op.outputs)
        rows = Rows({name: next(iter(some)) for name, some in axes.items() if some}, size, dimension)
        if single and size > 1 and all(set(some.values()) <= {size} for some in axes.values()):
            local = _is_local(op, case, inputs, rows) and _derives_alike(op, case, inputs, rows)
            found += [rows] if local and _is_alike(op, inputs, rows) else []
    return found


def _is_tied(op: Op, dimension: str) -> bool:
    """True if the declaration of an integer operand would not allow its numbers for some indices of a dimension alone.

    Such numbers are positions in the dimension, or lengths that add up over it.
    """
    assert isinstance(op.geometry, NamedDims)
    tied = set[str]()
    for each in op.operands:
        if isinstance(each.range, Range):
            bounds = (each.range.low, each.range.high, *([each.range.total] if each.range.total else []))
            tied |= {node.id for bound in bounds for node in ast.walk(bound) if isinstance(node, ast.Name)}
            tied |= set(map(str, op.geometry.table[each.name])) if each.range.structure == "sum" else set()
    return dimension in tied


def _derives_alike(op: Op, case: Case, inputs: dict[str, Tensor | None], rows: Rows) -> bool:
    """True if rows of derived operands are what the other operands' rows give. Offsets of sequences are not."""
    picked, _ = rows.pick(inputs, {}, slice(1, None))
    place = op.geometry.dims.index(rows.dimension)
    dims = (*case.dims[:place], rows.count - 1, *case.dims[place + 1 :])
    derived = derive_all(op, msgspec.structs.replace(case, dims=dims), picked, "cpu") if op.derived else picked
    names = [each.name for each in op.derived]
    pairs = [
        (one, other) for name in names if (one := derived[name]) is not None and (other := picked[name]) is not None
    ]
    return all(one.shape == other.shape and torch.equal(one, other) for one, other in pairs)


def growing(op: Op, case: Case, dimension: str) -> dict[str, dict[int, int]]:
    """Maps operands and outputs to the axes that get longer with a dimension, and to their lengths in a case.

    It is empty if the function has no result for one index more.
    """
    place = op.geometry.dims.index(dimension)
    larger = (*case.dims[:place], case.dims[place] + 1, *case.dims[place + 1 :])
    try:
        before, after = (
            {**op.shapes(dims, case.params), **op.result_shapes(dims, case.params)} for dims in (case.dims, larger)
        )
    except UsageError:
        return {}
    pairs = {name: enumerate(zip(before[name], after[name], strict=True)) for name in before}
    return {name: {axis: one for axis, (one, other) in some if one != other} for name, some in pairs.items()}


def _is_local(op: Op, case: Case, inputs: dict[str, Tensor | None], rows: Rows) -> bool:
    """True if elements of outputs at an index need operands at the same index alone."""
    program, run = op.program(Problem(inputs=inputs, params=op.params, upstream={}, results=op.outputs))
    leaves = {id(step): step for step in program.steps if isinstance(step, Leaf) and step.name in rows.axes}
    for output, index in product(op.outputs, {0, rows.count // 2, rows.count - 1}):
        shape = program.results[output].shape
        numbers = np.moveaxis(np.arange(math.prod(shape)).reshape(shape), rows.axes[output], 0)[index].reshape(-1)
        some = numbers[:: max(1, len(numbers) // _FOLLOWED)].tolist()
        for step, (places, _) in program.places(run, output, some, {}, every=True).items():
            if step in leaves:
                leaf = leaves[step]
                if (np.unravel_index(places, leaf.shape)[rows.axes[leaf.name]] != index).any():
                    return False
    return True


def _is_alike(op: Op, inputs: dict[str, Tensor | None], rows: Rows) -> bool:
    """True if PyTorch gives the same results for all rows but the first if it gets them alone.

    Then no result depends on the position of its row.
    """
    rest = slice(1, None)
    whole = reference(op, inputs)
    alone = reference(op, rows.pick(inputs, {}, rest)[0])
    pairs = [(alone[name], rows.of(name, whole[name], rest)) for name in op.outputs]
    return all(one.shape == other.shape and torch.allclose(one, other, 1e-6, 1e-12, True) for one, other in pairs)


def reference(op: Op, inputs: Mapping[str, Tensor | None]) -> Tensors:
    """Returns PyTorch's results in float64, by output."""
    wide = [v.double() if v is not None and v.is_floating_point() else v for v in map(inputs.get, inputs)]
    made = op.baseline(*wide, **op.resolve({}))
    made = made if isinstance(made, tuple | list) else (made,)
    return dict(zip(op.outputs, (each.double() for each in made if each is not None), strict=True))


def agree(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """True if two results of PyTorch in float64 are as close as its sums are."""
    return all(
        value.shape == other[name].shape and torch.allclose(value, other[name], _CLOSE, _CLOSE, True)
        for name, value in one.items()
    )


def filled_like(tensor: Tensor, value: float) -> Tensor:
    """Returns a tensor of one value. It is made in float32, because float8 has no fill."""
    return torch.full(tensor.shape, value, dtype=torch.float32, device=tensor.device).to(tensor.dtype)
