"""Formulas for resampling: nearest, linear and cubic interpolation, padding by repetition, adaptive pooling.

They replace PyTorch's operators while a function is traced, like the formulas of `verify.ops.graph.decompositions`.
They define the result; speed does not matter.
"""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

Sizes = Sequence[int]


def _nearest_places(whole: int, count: int, scale: float | None, exact: bool, device: Any) -> Tensor:
    """Returns, for each of `count` outputs, the place of its input on a line of `whole` elements."""
    ratio = whole / count if scale is None else 1 / scale
    at = [min(int((n + 0.5 * exact) * ratio), whole - 1) for n in range(count)]
    return torch.tensor(at, device=device)


def nearest(exact: bool, x: Tensor, size: Sizes, *scales: float | None) -> Tensor:
    for dim, count, scale in zip(range(2, x.ndim), size, _each(scales, size), strict=True):
        x = x.index_select(dim, _nearest_places(x.shape[dim], count, scale, exact, x.device))
    return x


def _each(scales: Sequence[float | None], size: Sizes) -> Sequence[float | None]:
    """Returns the scale of each dimension; None: it follows from the sizes."""
    return scales if len(scales) == len(size) else [None] * len(size)


def _neighbours(x: Tensor, whole: int, count: int, corners: bool, scale: float | None, cubic: bool) -> list[Any]:
    """Returns a pair for each neighbour: its places on a line of `whole` elements, and its weights, per output.

    Traced steps compute the weights from positions, because a kernel rounds these. They grow with the line.
    """
    ratio = (whole - 1) / max(count - 1, 1) if corners else whole / count if scale is None else 1 / scale
    at = [n * ratio if corners else (n + 0.5) * ratio - 0.5 for n in range(count)]
    at = at if cubic else [max(each, 0.0) for each in at]
    first = [math.floor(each) if cubic else min(int(each), whole - 1) for each in at]
    at = at if cubic else [min(each, low + 1.0) for each, low in zip(at, first, strict=True)]
    held, low = (torch.tensor(each, dtype=x.dtype, device=x.device) for each in (at, list(map(float, first))))
    way = held - low
    weights = _cubic(way) if cubic else {0: 1 - way, 1: way}
    return [
        (torch.tensor([min(max(low + step, 0), whole - 1) for low in first], device=x.device), weight)
        for step, weight in weights.items()
    ]


def _cubic(way: Tensor) -> dict[int, Tensor]:
    """Evaluates Keys's kernel with a = -3/4, as PyTorch does, for the two neighbours on either side."""
    a = -0.75

    def near(apart: Tensor) -> Tensor:
        return ((a + 2) * apart - (a + 3)) * apart * apart + 1

    def far(apart: Tensor) -> Tensor:
        return ((a * apart - 5 * a) * apart + 8 * a) * apart - 4 * a

    return {-1: far(way + 1), 0: near(way), 1: near(1 - way), 2: far(2 - way)}


def upsample(cubic: bool, x: Tensor, size: Sizes, corners: bool, *scales: float | None) -> Tensor:
    for dim, count, scale in zip(range(2, x.ndim), size, _each(scales, size), strict=True):
        shape = [-1] + [1] * (x.ndim - 1 - dim)
        pairs = _neighbours(x, x.shape[dim], count, corners, scale, cubic)
        terms = [x.index_select(dim, place) * weight.reshape(shape) for place, weight in pairs]
        x = sum(terms[1:], terms[0])
    return x


def replication_pad(x: Tensor, pads: Sizes) -> Tensor:
    for dim, before, after in zip(reversed(range(x.ndim)), pads[::2], pads[1::2], strict=False):
        at = torch.arange(-before, x.shape[dim] + after, device=x.device).clamp(0, x.shape[dim] - 1)
        x = x.index_select(dim, at)
    return x


# -- pooling to a given size ------------------------------------------------------------------------------


def _windows(x: Tensor, size: Sizes, padding: float) -> tuple[Tensor, Tensor]:
    """Returns the elements of each window as a row, and their number. `padding` fills shorter rows."""
    outer, whole = x.shape[: x.ndim - len(size)], x.shape[x.ndim - len(size) :]
    ends = [[(n * a // b, -(-(n + 1) * a // b)) for n in range(b)] for a, b in zip(whole, size, strict=True)]
    numbers = np.arange(math.prod(whole)).reshape(whole)  # NumPy's arange is not traced
    rows = [numbers[tuple(slice(*each) for each in cell)].reshape(-1).tolist() for cell in product(*ends)]
    longest = max(map(len, rows), default=0)
    places = torch.tensor([row + [numbers.size] * (longest - len(row)) for row in rows], device=x.device)
    flat = functional.pad(x.reshape(*outer, -1), (0, 1), value=padding)
    columns = flat.index_select(-1, places.reshape(-1)).reshape(*outer, *places.shape)
    return columns, torch.tensor(list(map(len, rows)), device=x.device)


def adaptive_avg_pool(x: Tensor, size: Sizes) -> Tensor:
    columns, counts = _windows(x, size, 0.0)
    return (columns.sum(-1) / counts).reshape(*x.shape[: x.ndim - len(size)], *size)


def adaptive_max_pool(x: Tensor, size: Sizes) -> tuple[Tensor, Tensor]:
    values, indices = _windows(x, size, -math.inf)[0].max(-1)
    shape = (*x.shape[: x.ndim - len(size)], *size)
    return values.reshape(shape), indices.reshape(shape)
