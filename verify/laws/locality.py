"""Which results belong to a row, or to an element, and what its operands are there.

Laws about splitting, reordering and reshaping speak of results that one row of the data decides: the outputs, and
the gradients of the data operands. Gradients of weights and biases are sums over all rows and have no place here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from verify.cases import Case, case_of, inputs_of
from verify.declare.declaration import Kernel
from verify.errors import UsageError
from verify.ops.graph.steps import Leaf
from verify.ops.op import Op, Problem

Tensors = dict[str, Tensor]


def data_operands(kernel: Kernel) -> tuple[str, ...]:
    """The operands that have one row per row of the output."""
    return tuple(o.name for o in kernel.op.operands if o.role == "data" and o.name in kernel.operands)


def shared_operands(kernel: Kernel) -> tuple[str, ...]:
    """The operands that every row shares: weights and biases."""
    return tuple(name for name in kernel.operands if name not in data_operands(kernel))


def local_results(kernel: Kernel) -> tuple[str, ...]:
    """The results that have one row per row of the data."""
    return (*kernel.outputs, *("d" + name for name in data_operands(kernel)))


@dataclass(frozen=True)
class Rows:
    """Where rows lie: the axis of each operand and output that has one index per row, and how many rows there are.

    Other operands are shared by all rows. `dimension` is the name that a declaration gives to the rows, if any.
    """

    axes: Mapping[str, int]
    count: int
    dimension: str = ""

    def of(self, name: str, tensor: Tensor, rows: slice) -> Tensor:
        """A view of some rows of an operand, an output or a gradient; the whole tensor where it is shared."""
        axis = self.axes.get(name, self.axes.get(name.removeprefix("d")))
        return tensor if axis is None else tensor[(slice(None),) * axis + (rows,)]

    def pick(
        self, inputs: Mapping[str, Tensor | None], upstream: Mapping[str, Tensor], rows: slice
    ) -> tuple[dict[str, Tensor | None], Tensors]:
        """The inputs and upstream gradients of some rows, contiguous; shared operands as they are."""
        picked = {
            name: self.of(name, value, rows).contiguous() if value is not None and name in self.axes else value
            for name, value in inputs.items()
        }
        return picked, {name: self.of(name, value, rows).contiguous() for name, value in upstream.items()}

    def local(self, results: Mapping[str, Tensor], rows: slice) -> Tensors:
        """Those rows of the results that belong to rows: outputs, and gradients of what has rows."""
        named = (name for name in results if name in self.axes or name.removeprefix("d") in self.axes)
        return {name: self.of(name, results[name], rows) for name in named}


def leading_rows(kernel: Kernel, case: Case) -> Rows:
    """The rows of an op whose data and outputs have them first."""
    return Rows(dict.fromkeys((*data_operands(kernel), *kernel.outputs), 0), case.dims[0])


_FOLLOWED = 256  # elements of an output that are followed to what they depend on


def independent_rows(kernel: Kernel, case: Case) -> list[Rows]:
    """The dimensions of a PyTorch function along which an output depends on operands at its own index alone.

    The function's program says so for up to 256 elements of each output at the first, the last and a middle index.
    Indices that know their position, as in a rotary embedding, are not independent.
    """
    op = kernel.op
    if op.geometry.examples or not op.geometry.named:
        return []
    # ordinary values: beside numbers of 1e-20 nothing would differ
    inputs = inputs_of(op, case_of(kernel, case.dtype, dims=case.dims), "cpu", shared=True)
    found = []
    fixed = {name for each in op.operands if each.range is not None for name in each.range.fixed_by}
    for place, (dimension, size) in enumerate(zip(op.geometry.dims, case.dims, strict=True)):
        if dimension in fixed:  # rows of a permutation are none
            continue
        larger = (*case.dims[:place], size + 1, *case.dims[place + 1 :])
        try:
            before, after = (
                {**op.shapes(dims, case.params), **op.result_shapes(dims, case.params)} for dims in (case.dims, larger)
            )
        except UsageError:
            continue
        axes = {
            name: [
                axis for axis, (one, other) in enumerate(zip(before[name], after[name], strict=True)) if one != other
            ]
            for name in before
        }
        single = all(len(some) < 2 for some in axes.values()) and all(axes[name] for name in op.outputs)
        rows = Rows({name: some[0] for name, some in axes.items() if some}, size, dimension)
        if single and size > 1 and all(before[name][axis] == size for name, axis in rows.axes.items()):
            found += [rows] if _is_local(op, case, inputs, rows) and _is_alike(op, inputs, rows) else []
    return found


def _is_local(op: Op, case: Case, inputs: dict[str, Tensor | None], rows: Rows) -> bool:
    """True if elements of outputs at an index need no element of an operand at another one."""
    assert op.meaning is not None
    program, run = op.meaning.program(Problem(inputs=inputs, params=op.params, upstream={}, results=op.outputs))
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
    """True if PyTorch gives all rows but the first what it gives them alone: no row knows its position."""
    rest = slice(1, None)
    whole = reference(op, inputs)
    alone = reference(op, rows.pick(inputs, {}, rest)[0])
    pairs = [(alone[name], rows.of(name, whole[name], rest)) for name in op.outputs]
    return all(one.shape == other.shape and torch.allclose(one, other, 1e-6, 1e-12, True) for one, other in pairs)


def reference(op: Op, inputs: Mapping[str, Tensor | None]) -> Tensors:
    """What PyTorch gives in float64, by output."""
    wide = [v.double() if v is not None and v.is_floating_point() else v for v in map(inputs.get, inputs)]
    made = op.baseline(*wide, **op.resolve({}))
    made = made if isinstance(made, tuple | list) else (made,)
    return dict(zip(op.outputs, (each.double() for each in made if each is not None), strict=True))


def flattened(
    kernel: Kernel, case: Case, inputs: Mapping[str, Tensor | None], upstream: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor | None], Tensors]:
    """The same values as a matrix (a vector, for elementwise ops that are not packed)."""
    data = data_operands(kernel)
    line = kernel.op.geometry.by_element and not kernel.op.geometry.packed

    def flat(tensor: Tensor) -> Tensor:
        if line:
            return tensor.reshape(-1)
        rows = 1
        for size in tensor.shape[:-1]:
            rows *= size
        return tensor.reshape(rows, tensor.shape[-1])

    reshaped = {name: flat(value) if value is not None and name in data else value for name, value in inputs.items()}
    return reshaped, {name: flat(value) for name, value in upstream.items()}


def filled_like(tensor: Tensor, value: float) -> Tensor:
    """A tensor of one value; through float32 because float8 has no fill."""
    return torch.full(tensor.shape, value, dtype=torch.float32, device=tensor.device).to(tensor.dtype)
