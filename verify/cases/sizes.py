"""Which sizes of named dimensions cases have, for an op that a PyTorch function defines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from verify.errors import UsageError
from verify.ops.graph.shapes import sizes_within
from verify.ops.op import Op

Dims = tuple[int, ...]
_COUNT = 40
_known: dict[tuple[str, int], tuple[Dims, ...]] = {}


def sizes_of(op: Op, elements: int) -> tuple[Dims, ...]:
    """Sizes that the declaration allows, the plainest first, no operand above `elements` elements."""
    if op.examples:
        return op.examples
    if (op.name, elements) not in _known:
        _known[op.name, elements] = _found(op, elements)
    return _known[op.name, elements]


def shapes_for(op: Op, by_kind: Mapping[str, Sequence[Dims]], elements: int) -> tuple[Dims, ...]:
    """The shapes that a table names for the kind of an op; of a PyTorch function a few that its declaration allows."""
    return sizes_of(op, elements)[:4] if op.kind == "graph" else tuple(by_kind[op.kind])


def another(op: Op, dims: Dims) -> Dims:
    """Another legal shape: one more in every dimension, or another that a declaration allows."""
    if op.kind == "graph":
        return next((each for each in sizes_of(op, 512) if each != dims), dims)
    return tuple(size + 1 for size in dims)


def _found(op: Op, elements: int) -> tuple[Dims, ...]:
    fitting: list[tuple[int, Dims]] = []
    for dims in sizes_within(op.dims, op.allowed, elements, op.where):
        size = max(math.prod(shape) for shape in op.shapes(dims, op.params).values())
        if size <= elements:
            fitting.append((size, dims))
        if len(fitting) >= 4 * _COUNT:
            break
    if not fitting:
        raise UsageError(
            f"op {op.name!r} allows no sizes with operands of at most {elements:,} elements",
            hint="widen where=, or name fewer dimensions in shapes=",
        )
    by_size = sorted(fitting)
    spread = [by_size[place * (len(by_size) - 1) // (_COUNT - 1)][1] for place in range(_COUNT)]
    return tuple(dict.fromkeys([fitting[0][1], by_size[-1][1], *spread]))
