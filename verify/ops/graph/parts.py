"""Divides the numbers of a program into parts that do not depend on each other, such as its rows or its columns.

parts = Parts.along(shapes, {"x": 1, "y": 0})  # one part for each column of x, and its element of y
parts.of("y", excess).sum(-1)                  # one number for each part
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


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

    def without(self, keys: Collection[Hashable]) -> Parts:
        """Returns the parts without some tensors."""
        return replace(self, places={key: held for key, held in self.places.items() if key not in keys})

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
