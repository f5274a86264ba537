"""Divides the numbers of a program into parts that do not depend on each other, such as its rows or its columns.

dims = dims_along(program, run, wanted, ids, -1)  # the dimension of each tensor along which the columns lie
parts = Parts.along(shapes, dims)                # one part for each column
parts.of("y", excess).sum(-1)                    # one number for each part
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from verify.ops.graph.chunks import Chunked
from verify.ops.graph.program import Program
from verify.ops.graph.steps import Leaf, Run, Step

_MOST = 64  # parts of which each is moved alone to see what depends on it


@dataclass(frozen=True)
class Parts:
    """The places of each part in some tensors, which have keys. One part: all places of any tensor."""

    count: int = 1
    places: Mapping[Hashable, Tensor] = field(default_factory=dict)  # flat indices, one row for each part

    @classmethod
    def leading(cls, shapes: Mapping[Hashable, Sequence[int]], grid: Sequence[int]) -> Parts:
        """Returns one part for each index into the leading dimensions of the tensors that have them."""
        count = math.prod(grid)
        fits = {key: math.prod(shape) for key, shape in shapes.items() if tuple(shape[: len(grid)]) == tuple(grid)}
        return cls(count, {key: torch.arange(size).reshape(count, -1) for key, size in fits.items()})

    @classmethod
    def along(cls, shapes: Mapping[Hashable, Sequence[int]], dims: Mapping[Hashable, int]) -> Parts:
        """Returns one part for each index into one dimension of the tensors that have it."""
        [count] = {shapes[key][dim] for key, dim in dims.items()}
        every = {key: torch.arange(math.prod(shapes[key])).reshape(*shapes[key]) for key in dims}
        return cls(count, {key: every[key].movedim(dim, 0).reshape(count, -1) for key, dim in dims.items()})

    def holds(self, key: Hashable) -> bool:
        """True if a tensor is divided among the parts."""
        return self.count == 1 or key in self.places

    def of(self, key: Hashable, value: Tensor) -> Tensor:
        """Returns the elements of a tensor, one row for each part."""
        flat = value.reshape(-1)
        return flat[self.places[key].to(flat.device)] if key in self.places else flat.reshape(1, -1)

    def spread(self, key: Hashable, rows: Tensor, whole: Tensor) -> Tensor:
        """Returns a tensor of the shape of another from rows of each part, or from one number for each."""
        if key not in self.places:
            return rows.reshape(1, -1).expand(1, whole.numel()).reshape(whole.shape)
        places = self.places[key].to(rows.device)
        flat = torch.empty(whole.numel(), dtype=rows.dtype, device=rows.device)
        flat[places] = rows.reshape(self.count, -1).expand(places.shape)
        return flat.reshape(whole.shape)


def dims_along(
    program: Program, run: Run, wanted: Sequence[str], needed: set[int], back: int
) -> dict[Hashable, int] | None:
    """Maps results and steps to the dimension that belongs to one of the operands. Omits what depends on all of it.

    Draws the numbers of one index into the dimension `back` (-1: the last) anew, and looks for what changes. Returns
    None if a needed step (an id) depends on several indices.
    """
    names = [step.name for step in program.steps if isinstance(step, Leaf) and step.real and step.operand]
    own = {name: run.leaves[name] for name in names if name in run.leaves}
    sizes = {value.shape[back] for value in own.values() if value.ndim >= -back} - {1}
    if len(sizes) != 1 or not 1 < (count := sizes.pop()) <= _MOST:
        return None
    if any(isinstance(step, Chunked) for step in program.steps):  # long sums are held for the operands of the run
        return None
    generator = torch.Generator().manual_seed(3)

    def drawn(value: Tensor) -> Tensor:
        return value.cpu().double() + 0.5 * torch.randn(value.shape, dtype=torch.float64, generator=generator)

    def numbers(leaves: Mapping[str, Tensor]) -> dict[Hashable, Tensor]:
        given = {name: value.to(run.device) for name, value in leaves.items()}
        found, other = dict[Hashable, Tensor](), replace(run, leaves={**run.leaves, **given}, decisions={}, maps={})

        def make(step: Step, of: list[Tensor]) -> tuple[Tensor, Tensor]:
            value = step.value(other, of)
            if id(step) in needed:
                found[id(step)] = value
            return value, value

        results: dict[Hashable, Tensor] = dict(program.values(other, wanted, make).items())
        return results | found

    start = {name: drawn(value) for name, value in own.items()}
    base = numbers(start)
    labels = {key: torch.full(value.shape, -1, device=value.device) for key, value in base.items()}
    shared = set[Hashable]()
    for index in range(count):
        turned = {name: value.clone() for name, value in start.items()}
        for value in turned.values():
            if value.ndim >= -back and value.shape[back] == count:
                value.select(back, index).copy_(drawn(value.select(back, index)))
        for key, value in numbers(turned).items():
            changed = (value != base[key]) & ((value == value) | (base[key] == base[key]))
            if bool((changed & (labels[key] >= 0)).any()):
                shared.add(key)
            labels[key] = torch.where(changed, index, labels[key])
    if shared & needed:
        return None
    dims = {key: _dimension(label, count) for key, label in labels.items() if key not in shared}
    if any(dims[key] is None and bool((labels[key] >= 0).any()) for key in needed & dims.keys()):
        return None
    return {key: dim for key, dim in dims.items() if dim is not None}


def _dimension(label: Tensor, count: int) -> int | None:
    """Returns the dimension along which labels are the index; None if none is, or if nothing has a label."""
    for dim, size in enumerate(label.shape):
        index = torch.arange(size, device=label.device).reshape([-1 if at == dim else 1 for at in range(label.ndim)])
        if size == count and bool((label >= 0).any()) and bool(((label == index) | (label < 0)).all()):
            return dim
    return None
