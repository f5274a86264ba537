"""Chooses sizes of cases: for a PyTorch function's named dimensions, and within a kernel's domain."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch

from verify.declare.declaration import Kernel
from verify.errors import UsageError
from verify.ops.geometry import ByGeometry, Shapes
from verify.ops.graph.reducing import Contract, Reduce
from verify.ops.graph.shapes import NamedDims, Related, numbers_in, sizes_alone, sizes_within
from verify.ops.graph.steps import Leaf, Move, Plain
from verify.ops.op import Op, Problem

Dims = tuple[int, ...]
_COUNT, _LARGEST = 40, 1 << 16
_fitted: dict[tuple[str, str, Dims], Dims | None] = {}
_known: dict[tuple[str, int], tuple[Dims, ...]] = {}
# One more than whole blocks, so that the last block has one element; one less; and whole blocks.
LONG = (65, 129, 257, 1024, 1025, 4095, 4097, 65_537)
_STEP = 1 << 11  # evaluating this many elements takes as long as a step's own overhead


@dataclass(frozen=True)
class Reach:
    """Limits a case with one large dimension.

    work: number of elements of all steps of the op's program.
    rows: limit of a dimension that is the last one of no operand. Kernels often launch a program for each of its
        indices.
    columns: limit of the other dimensions.
    """

    work: int
    rows: int
    columns: int


# Triton's interpreter takes milliseconds for each program. A run needs exact values, and each takes 0.1 s for a sum of
# 65,537 terms. A law only needs an enclosure, which takes 0.1 s for 2^21 elements.
REACHES = {"small": Reach(1 << 19, 257, 4097), "large": Reach(1 << 23, 1 << 17, 1 << 17)}
REACHES_OF_LAWS = {"small": Reach(5 << 19, 257, 1 << 17), "large": Reach(1 << 25, 1 << 17, 1 << 17)}
_long: dict[tuple[str, Reach], dict[str, tuple[Dims, ...]]] = {}


def sizes_of(op: Op, elements: int) -> tuple[Dims, ...]:
    """Returns sizes that the declaration allows, the plainest first. No operand has more than `elements` elements.

    If the declaration allows none so small, as of large blocks, it returns the smallest that it allows.
    """
    if op.geometry.examples:
        return op.geometry.examples
    if (op.name, elements) not in _known:
        _known[op.name, elements] = _found(op, elements)
    return _known[op.name, elements]


def long_sizes(op: Op, reach: Reach) -> dict[str, tuple[Dims, ...]]:
    """Maps each dimension of a PyTorch function to the sizes at which it alone is large, in ascending order.

    These sizes are near `LONG`, allowed by the declaration, and within reach. With examples, there are none.
    """
    if op.geometry.examples or not op.geometry.named:
        return {}
    key = (op.name, reach)
    if key not in _long:
        # the plainest sizes, made smaller if the declaration allows it: 3 for the last, 2 before it, else 1
        base = sizes_of(op, 1 << 12)[0]
        for place in range(len(base)):
            size = max(1, min(2, place - len(base) + 4)) + (place == len(base) - 1)
            smaller = (*base[:place], min(size, base[place]), *base[place + 1 :])
            base = smaller if op.geometry.allows(smaller) else base
        found = {}
        for name, some in sizes_alone(op.geometry, base, LONG):
            taken: list[Dims] = []
            for dims in some:
                if not _within(op, name, dims, reach, taken):
                    break
                taken.append(dims)
            found[name] = tuple(taken)
        _long[key] = found
    return _long[key]


def longer(kernel: Kernel, base: Dims) -> dict[str, Callable[[int], Dims | None]]:
    """Maps each free dimension to a function that returns `base` with another size of it; None if it is not allowed."""
    geometry = kernel.op.geometry
    if geometry.examples:
        return {}

    def allowed(dims: Dims) -> Dims | None:
        return dims if min(dims) > 0 and kernel.allows(dims) else None

    if not isinstance(geometry, NamedDims):
        sides = {f"dimension {place}": (base[:place], base[place + 1 :]) for place in range(len(base))}

        def unnamed(name: str, size: int) -> Dims | None:
            before, after = sides[name]
            return allowed((*before, size, *after))

        return {name: partial(unnamed, name) for name in sides}
    related, sizes = Related.by(geometry.dims, geometry.where), geometry.sizes_by_name(base)
    return {root: partial(lambda of, size: allowed(related.dims(sizes | {of: size})), root) for root in related.roots}


def with_keys(op: Op, lengths: Sequence[int], *, others: int = 2, features: int = 0) -> tuple[Dims, ...]:
    """Returns sizes with these numbers of keys, or the next ones that the declaration allows.

    others: size of other dimensions, if allowed. The default 2 does not exceed plain sizes.
    features: number of features; 0: as in plain sizes.

    Returns none if the program has no scores or if the number of keys is fixed.
    """
    geometry, parts = op.geometry, {part.role: (name, part) for name, part in (op.scores or {}).items()}
    if not parts or not isinstance(geometry, NamedDims) or geometry.examples:
        return ()
    named, part = parts["key"]
    keys, feature = (geometry.table[named][axis] for axis in (part.tokens, part.features))
    base = sizes_of(op, 1 << 12)[0]
    for place, name in enumerate(geometry.dims):
        size = (features or base[place]) if name == feature else others if others > 2 else min(2, base[place])
        changed = (*base[:place], size, *base[place + 1 :])
        base = changed if geometry.allows(changed) else base
    root = Related.by(geometry.dims, geometry.where).group.get(str(keys))
    found = (some for length in lengths for each, some in sizes_alone(geometry, base, (length,)) if each == root)
    return tuple(dict.fromkeys(some[0] for some in found if some))


def _within(op: Op, name: str, dims: Dims, reach: Reach, smaller: Sequence[Dims]) -> bool:
    """True if a case of these sizes is within reach.

    Estimates from `smaller` sizes save tracing sizes far beyond it.
    """
    place = op.geometry.dims.index(name)
    if dims[place] > (reach.columns if _is_last(op, place, dims) else reach.rows):
        return False
    if smaller:
        before, work = smaller[-1], work_of(op, smaller[-1])
        if work * dims[place] / before[place] > 2 * reach.work and work > _STEP:
            return False
    return work_of(op, dims) <= reach.work


def _is_last(op: Op, place: int, dims: Dims) -> bool:
    """True if the dimension is the last one of an operand. If matrices have it, only these count."""
    larger = (*dims[:place], dims[place] + 1, *dims[place + 1 :])
    shapes, others = op.shapes(dims, op.params), op.shapes(larger, op.params)
    having = [(shape, others[name]) for name, shape in shapes.items() if shape != others[name]]
    matrices = [pair for pair in having if len(pair[0]) > 1]
    return any(shape[-1] != other[-1] for shape, other in matrices or having)


def work_of(op: Op, dims: Dims) -> float:
    """Returns the elements of all steps of an op's program for some sizes; infinity if it refuses these sizes."""
    program = program_of(op, dims)
    if program is None:
        return math.inf
    return float(sum(_STEP + math.prod(step.shape) * _terms(step) for step in program.steps))


_PRIMES = (101, 103, 107, 109, 113, 127, 131, 137, 139, 149)  # one per dimension: they show which ones a step has


@dataclass(frozen=True)
class Work:
    """Estimates the elements of all steps of a program, without a trace for each size.

    steps: maps the powers of the dimensions in the size of a step to the sum of factors. Empty: one step has every
        dimension.
    """

    steps: Mapping[Dims, int]

    @staticmethod
    def of(op: Op) -> Work:
        """Traces the program once, with a prime for each dimension, which shows the dimensions of each step."""
        primes, steps = _PRIMES[: len(op.geometry.dims)], Counter[Dims]()
        program = None
        with suppress(Exception):  # a function may refuse such sizes
            program = program_of(op, primes) if op.geometry.named and op.geometry.dims else None
        for step in program.steps if program is not None else ():
            size, powers = math.prod(step.shape) * _terms(step), []
            for prime in primes:
                powers.append(0)
                while size and size % prime == 0:
                    size, powers[-1] = size // prime, powers[-1] + 1
            steps[tuple(powers)] += size
        return Work(steps)

    def at(self, dims: Dims) -> float:
        """Returns the elements of all steps for some sizes."""
        if not self.steps:
            return float(math.prod(dims))
        return float(sum(n * math.prod(map(pow, dims, powers)) for powers, n in self.steps.items()))

    def joins(self, a: int, b: int) -> bool:
        """True if some tensor has both dimensions, given by their places."""
        return not self.steps or any(powers[a] and powers[b] for powers in self.steps)


def computed_by(op: Op, dims: Dims) -> float:
    """Returns how many numbers an op's program computes for some sizes, without those that it moves or is given."""
    program = program_of(op, dims)
    if program is None:
        return math.inf
    return float(sum(math.prod(step.shape) for step in program.steps if not isinstance(step, Leaf | Plain | Move)))


def adds_up(op: Op) -> bool:
    """True if a PyTorch function adds terms up. One that finds the largest of them does not."""
    program = program_of(op, op.geometry.examples[0] if op.geometry.examples else sizes_of(op, 1 << 12)[0])
    if program is None or op.gate == "plain":
        return program is None
    sums = any(isinstance(each, Reduce) and each.function in ("sum", "product") for each in program.steps)
    return sums or bool(program.sums(list(program.results), reduces=False))


def program_of(op: Op, dims: Dims) -> Any:
    """Returns an op's program for some sizes; None if it refuses these sizes."""
    shapes = op.shapes(dims, op.params)
    kinds = {each.name: torch.bool if each.boolean else torch.int64 for each in op.operands if each.range is not None}
    given = {name: torch.empty(shape, dtype=kinds.get(name), device="meta") for name, shape in shapes.items()}
    try:
        program, _ = op.program(Problem(inputs=given, params=op.params, upstream={}, results=op.outputs))
    except UsageError:
        return None
    return program


def _terms(step: Any) -> int:
    """Returns the number of products in an element of a step."""
    return int(step.inputs[0].shape[-1]) if isinstance(step, Contract) else 1


def largest_of(op: Op, elements: int) -> Dims:
    """Returns powers of two that the declaration allows, as equal as possible.

    No operand exceeds `elements` elements.
    """
    if op.geometry.examples:
        return max(op.geometry.examples, key=lambda dims: sum(map(math.prod, op.shapes(dims, op.params).values())))

    def allowed(dims: Dims) -> bool:
        shapes = op.shapes(dims, op.params).values()
        fits = max(dims) <= elements and all(math.prod(shape) <= elements for shape in shapes)
        return fits and op.geometry.allows(dims)

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


def shapes_for(kernel: Kernel, table: ByGeometry[Shapes], elements: int) -> tuple[Dims, ...]:
    """Returns a kernel's shapes from a table. For a PyTorch function, returns a few that its declaration allows."""
    op = kernel.op
    return sizes_of(op, elements)[:4] if op.geometry.named else fitted_all(kernel, op.geometry.of(table))


def another(kernel: Kernel, dims: Dims) -> Dims:
    """Returns another legal shape: one more in every dimension, or another that a declaration allows."""
    if kernel.op.geometry.named:
        return next((each for each in sizes_of(kernel.op, 512) if each != dims), dims)
    return fitted(kernel, tuple(size + 1 for size in dims))


def fitted(kernel: Kernel, dims: Dims) -> Dims:
    """Returns the nearest sizes that the kernel's domain allows, with as many elements if possible."""
    if not kernel.where or kernel.allows(dims):
        return dims
    geometry = kernel.op.geometry
    key = (geometry.name, kernel.where, dims)
    if key not in _fitted:
        _fitted[key] = next(filter(kernel.allows, _near(geometry.multiplies, dims, numbers_in(kernel.where))), None)
    found = _fitted[key]
    if found is None:
        raise UsageError(
            f"kernel {kernel.name!r}: where={kernel.where!r} allows no sizes near {list(dims)}",
            hint=f"a condition on {', '.join(geometry.sizes)} that some sizes fulfil, as in where='n <= 65536'",
        )
    return found


def fitted_rows(kernel: Kernel, dims: Dims) -> Dims:
    """Returns dims with as many rows and the nearest sizes beside them that the domain allows; else `fitted` dims."""
    geometry = kernel.op.geometry
    if not kernel.where or geometry.named or kernel.allows(dims):
        return dims
    named = numbers_in(kernel.where)
    ranks: tuple[tuple[int, ...], ...] = ((),) if geometry.multiplies else ((), (1,))
    choices = _nearest([_like_size(size, named) for size in dims[1:]])
    forms = ((dims[0], *between, *others) for others in choices for between in ranks)
    return next(filter(kernel.allows, forms), None) or fitted(kernel, dims)


def fitted_all(kernel: Kernel, shapes: Iterable[Dims]) -> tuple[Dims, ...]:
    """Does the same for several sizes, and drops duplicates."""
    return tuple(dict.fromkeys(fitted(kernel, tuple(dims)) for dims in shapes))


def _near(product_dims: bool, dims: Dims, mentioned: Iterable[int]) -> Iterator[Dims]:
    """Yields other sizes, the nearest first: as many elements in other rows, then other numbers of elements.

    The sizes include numbers that the condition itself mentions, and their neighbours.
    """
    if not product_dims:
        count = math.prod(dims)
        yield (math.prod(dims[:-1]), dims[-1] if dims else 1)
        rows = [part for part in (1 << power for power in range(24)) if count and count % part == 0]
        yield from ((part, count // part) for part in rows)
        yield from ((part, 1, count // part) for part in rows)
        yield (count,)
        dims = (max(math.prod(dims[:-1]), 1), dims[-1] if dims else 1)
    for found in _nearest([_like_size(size, mentioned) for size in dims]):
        yield found
        if len(found) == 2:
            yield (math.prod(found),)
            yield (1, *found)


def _nearest(choices: Sequence[Sequence[int]]) -> Iterator[Dims]:
    """Yields one of the choices for each dimension, the first choices first."""
    for places in sorted(product(*(range(len(each)) for each in choices)), key=lambda places: (sum(places), places)):
        yield tuple(each[place] for each, place in zip(choices, places, strict=True))


def _like_size(size: int, mentioned: Iterable[int]) -> list[int]:
    """Returns sizes by distance: neighbours, sizes that conditions often require, and the mentioned ones."""
    powers = [1 << power for power in range(18)]
    others = {
        *range(max(size - 2, 1), size + 3),
        *powers,
        *(step * -(-size // step) for step in powers if step <= 512),
        *(each + beside for each in mentioned for beside in (-1, 0, 1)),
    }
    return sorted((each for each in others if each > 0), key=lambda each: (abs(math.log(each / max(size, 1))), each))


def _found(op: Op, elements: int) -> tuple[Dims, ...]:
    """Returns up to `_COUNT` sizes that fit, the plainest and the largest first, then spread by size."""
    fitting: list[tuple[int, Dims]] = []
    for dims in sizes_within(op.geometry, elements):
        size = max(math.prod(shape) for shape in op.shapes(dims, op.params).values())
        if size <= elements:
            fitting.append((size, dims))
        if len(fitting) >= 4 * _COUNT:
            break
    if not fitting and elements < _LARGEST:
        return _found(op, 4 * elements)[:1]
    if not fitting:
        text = f"op {op.name!r} allows no sizes with operands of at most {elements:,} elements"
        raise UsageError(text, hint="widen where=, or name fewer dimensions in shapes=")
    by_size = sorted(fitting)
    spread = [by_size[place * (len(by_size) - 1) // (_COUNT - 1)][1] for place in range(_COUNT)]
    return tuple(dict.fromkeys([fitting[0][1], by_size[-1][1], *spread]))
