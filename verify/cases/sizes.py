"""Which sizes cases have: those of a PyTorch function's named dimensions, and those that a kernel's domain allows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

from verify.declare.declaration import SIZES, Kernel
from verify.errors import UsageError
from verify.ops.graph.shapes import numbers_in, sizes_within
from verify.ops.op import Op

Dims = tuple[int, ...]
_COUNT = 40
_fitted: dict[tuple[str, str, Dims], Dims | None] = {}
_known: dict[tuple[str, int], tuple[Dims, ...]] = {}


def sizes_of(op: Op, elements: int) -> tuple[Dims, ...]:
    """Sizes that the declaration allows, the plainest first, no operand above `elements` elements."""
    if op.examples:
        return op.examples
    if (op.name, elements) not in _known:
        _known[op.name, elements] = _found(op, elements)
    return _known[op.name, elements]


def largest_of(op: Op, elements: int) -> Dims:
    """Powers of two that the declaration allows, as even as it does, no operand above `elements` elements."""
    if op.examples:
        return max(op.examples, key=lambda dims: sum(map(math.prod, op.shapes(dims, op.params).values())))

    def allowed(dims: Dims) -> bool:
        shapes = op.shapes(dims, op.params).values()
        fits = max(dims) <= elements and all(math.prod(shape) <= elements for shape in shapes)
        return fits and (op.allowed is None or op.allowed(dims))

    found = sizes_of(op, elements)[0]
    for axis, size in enumerate(found):
        rounded = (*found[:axis], 1 << (size - 1).bit_length(), *found[axis + 1 :])
        found = rounded if allowed(rounded) else found
    while True:
        smallest_first = sorted(range(len(found)), key=found.__getitem__)
        doubled = ((*found[:axis], 2 * found[axis], *found[axis + 1 :]) for axis in smallest_first)
        wider = next(filter(allowed, doubled), None)
        if wider is None:
            return found
        found = wider


def shapes_for(kernel: Kernel, by_kind: Mapping[str, Sequence[Dims]], elements: int) -> tuple[Dims, ...]:
    """The shapes that a table names for the kind of an op; of a PyTorch function a few that its declaration allows."""
    op = kernel.op
    return sizes_of(op, elements)[:4] if op.kind == "graph" else fitted_all(kernel, by_kind[op.kind])


def another(kernel: Kernel, dims: Dims) -> Dims:
    """Another legal shape: one more in every dimension, or another that a declaration allows."""
    if kernel.op.kind == "graph":
        return next((each for each in sizes_of(kernel.op, 512) if each != dims), dims)
    return fitted(kernel, tuple(size + 1 for size in dims))


def fitted(kernel: Kernel, dims: Dims) -> Dims:
    """The sizes next to some that the kernel's domain allows; of as many elements, if there are any."""
    if not kernel.where or kernel.allows(dims):
        return dims
    key = (kernel.op.kind, kernel.where, dims)
    if key not in _fitted:
        _fitted[key] = next(filter(kernel.allows, _near(kernel.op.kind, dims, numbers_in(kernel.where))), None)
    found = _fitted[key]
    if found is None:
        raise UsageError(
            f"kernel {kernel.name!r}: where={kernel.where!r} allows no sizes near {list(dims)}",
            hint=f"a condition on {', '.join(SIZES[kernel.op.kind])} that some sizes fulfil, as in where='n <= 65536'",
        )
    return found


def fitted_all(kernel: Kernel, shapes: Iterable[Dims]) -> tuple[Dims, ...]:
    """The same of several, each once."""
    return tuple(dict.fromkeys(fitted(kernel, tuple(dims)) for dims in shapes))


def _near(kind: str, dims: Dims, mentioned: Iterable[int]) -> Iterator[Dims]:
    """Other sizes, the nearest first: as many elements in other rows, then other numbers of them.

    Those that the condition itself `mentioned` are among them, and the numbers beside them.
    """
    if kind != "contraction":
        count = math.prod(dims)
        yield (math.prod(dims[:-1]), dims[-1] if dims else 1)
        rows = [part for part in (1 << power for power in range(24)) if count and count % part == 0]
        yield from ((part, count // part) for part in rows)
        yield from ((part, 1, count // part) for part in rows)
        yield (count,)
        dims = (max(math.prod(dims[:-1]), 1), dims[-1] if dims else 1)
    named = {each + beside for each in mentioned for beside in (-1, 0, 1)}
    choices = [_like_size(size, named) for size in dims]
    for places in sorted(product(*(range(len(each)) for each in choices)), key=lambda places: (sum(places), places)):
        found = tuple(each[place] for each, place in zip(choices, places, strict=True))
        yield found
        if len(found) == 2:
            yield (math.prod(found),)
            yield (1, *found)


def _like_size(size: int, named: Iterable[int]) -> list[int]:
    """Sizes by how near they are: the neighbours, and what conditions usually ask for."""
    powers = [1 << power for power in range(18)]
    others = {
        *range(max(size - 2, 1), size + 3),
        *powers,
        *(step * -(-size // step) for step in powers if step <= 512),
        *named,
    }
    return sorted((each for each in others if each > 0), key=lambda each: (abs(math.log(each / max(size, 1))), each))


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
