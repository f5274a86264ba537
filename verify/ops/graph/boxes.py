"""Names elements of a tensor by a box: some indices of each dimension, and every combination of them."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Line = NDArray[np.int64]  # indices of one dimension, ascending
Box = tuple[Line, ...]


def size_of(box: Box) -> int:
    """Returns the number of elements of a box."""
    return math.prod(map(len, box))


def places_in(box: Box, shape: Sequence[int]) -> Line:
    """Returns the flat places of a box's elements in a tensor of this shape, in the order of the box."""
    found = np.zeros((1,) * len(box), dtype=np.int64)
    for dim, (line, size) in enumerate(zip(box, shape, strict=True)):
        found = found * size + along(line, dim, len(box))
    return found.reshape(-1)


def taken(tensor: Tensor, box: Box, kept: dict[tuple[int, torch.device], Tensor] | None = None) -> Tensor:
    """Returns the elements of a tensor that a box names.

    Keeps the indices of a dimension on a device in `kept`, if they are needed again.
    """
    dims = [dim for dim, line in enumerate(box) if len(line) != tensor.shape[dim]]
    for dim in sorted(dims, key=lambda dim: len(box[dim]) / tensor.shape[dim]):
        line = box[dim]
        if line.size and line[-1] - line[0] == line.size - 1:
            tensor = tensor.narrow(dim, int(line[0]), line.size)
        else:
            known, key = {} if kept is None else kept, (dim, tensor.device)
            if key not in known:
                known[key] = torch.from_numpy(line).to(tensor.device)
            tensor = tensor.index_select(dim, known[key])
    return tensor


def whole(shape: Sequence[int]) -> Box:
    """Returns the box of all elements."""
    return tuple(np.arange(size) for size in shape)


def shape_of(box: Box) -> tuple[int, ...]:
    """Returns the shape of a tensor with the elements of a box."""
    return tuple(map(len, box))


def same_boxes(a: Box, b: Box) -> bool:
    return all(one is other or np.array_equal(one, other) for one, other in zip(a, b, strict=True))


def along(line: Line, dim: int, count: int) -> Line:
    """Reshapes a line to `count` dimensions, all of size 1 but `dim`."""
    return line.reshape((1,) * dim + (-1,) + (1,) * (count - dim - 1))


def joined_boxes(boxes: list[Box]) -> Box:
    """Returns the smallest box that contains all boxes."""
    first, *rest = boxes
    for box in rest:
        first = tuple(_union(a, b) for a, b in zip(first, box, strict=True))
    return first


def _union(a: Line, b: Line) -> Line:
    """Returns the indices of two lines. A line without a gap often holds the other; this is tested first."""
    if not (a.size and b.size):
        return a if a.size else b
    for one, other in ((a, b), (b, a)):
        if one[0] <= other[0] and other[-1] <= one[-1] == one[0] + one.size - 1:
            return one
    return distinct(np.concatenate([a, b]), int(max(a[-1], b[-1])) + 1)


def distinct(indices: Line, size: int) -> Line:
    """Returns the indices below `size`, each once, ascending. Marking is faster than sorting many."""
    if size > 64 * indices.size:
        ordered = np.sort(indices, axis=None)
        return ordered[np.diff(ordered, prepend=-1) > 0]
    marked = np.zeros(size, dtype=bool)
    marked[indices] = True
    return np.flatnonzero(marked)


def digits_of(places: Line, shape: tuple[int, ...]) -> Box:
    """Returns the indices of flat places in each dimension.

    NumPy 2.4's unravel_index is wrong beyond 8,192 places in arrays whose last dimensions have size 1.
    """
    found, most = list[Line](), int(places.max(initial=0))
    for size in reversed(shape):
        if most < size:  # division is slow, and views need little of it
            digit, places = places, np.zeros_like(places)
        else:
            places, digit = np.divmod(places, size) if size > 1 else (places, np.zeros_like(places))
        most //= size
        found.append(digit)
    return tuple(reversed(found))
