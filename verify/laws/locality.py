"""Which results belong to a row, or to an element, and what its operands are there.

Laws about splitting, reordering and reshaping speak of results that one row of the data decides: the outputs, and
the gradients of the data operands. Gradients of weights and biases are sums over all rows and have no place here.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from verify.cases import Case
from verify.declare.declaration import Kernel

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


def is_packed(kernel: Kernel) -> bool:
    """Whether operand and output differ in shape although the op is elementwise: two halves side by side."""
    if kernel.op.kind != "elementwise":
        return False
    shapes = kernel.op.shapes((2, 3), kernel.op.resolve(kernel.params))
    return any(tuple(shapes[name]) != (2, 3) for name in kernel.operands)


def pick_rows(
    kernel: Kernel, inputs: Mapping[str, Tensor | None], upstream: Mapping[str, Tensor], rows: slice
) -> tuple[dict[str, Tensor | None], Tensors]:
    """The inputs and upstream gradients of some rows, contiguous; shared operands as they are."""
    data = data_operands(kernel)
    picked = {
        name: value[rows].contiguous() if value is not None and name in data else value
        for name, value in inputs.items()
    }
    return picked, {name: value[rows].contiguous() for name, value in upstream.items()}


def local_rows(kernel: Kernel, results: Mapping[str, Tensor], rows: slice) -> Tensors:
    """Those rows of the results that belong to rows."""
    return {name: results[name][rows] for name in local_results(kernel) if name in results}


def flattened(
    kernel: Kernel, case: Case, inputs: Mapping[str, Tensor | None], upstream: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor | None], Tensors]:
    """The same values as a matrix (a vector, for elementwise ops that are not packed)."""
    data = data_operands(kernel)
    line = kernel.op.kind == "elementwise" and not is_packed(kernel)

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
