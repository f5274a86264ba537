"""Formulas for resampling: nearest, linear and cubic interpolation, padding by repetition, adaptive pooling.

They replace PyTorch's operators while a function is traced, like the formulas of `verify.ops.graph.decompositions`.
They define the result; speed does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

Sizes = Sequence[int]


def adaptive_avg_pool(x: Tensor, size: Sizes) -> Tensor:
    for dim, wanted in zip(range(x.ndim - len(size), x.ndim), size, strict=True):
        whole = x.shape[dim]
        parts = []
        for place in range(wanted):
            first, last = place * whole // wanted, -(-(place + 1) * whole // wanted)
            parts.append(x.narrow(dim, first, last - first).sum(dim, keepdim=True) / (last - first))
        x = torch.cat(parts, dim)
    return x


def adaptive_avg_pool_backward(grad: Tensor, x: Tensor) -> Tensor:
    rank = x.ndim - 2 if x.ndim > 3 else 2
    for dim in range(x.ndim - rank, x.ndim):
        whole, wanted = x.shape[dim], grad.shape[dim]
        spread = grad.new_zeros([whole if d == dim else n for d, n in enumerate(grad.shape)])
        for place in range(wanted):
            first, last = place * whole // wanted, -(-(place + 1) * whole // wanted)
            part = grad.narrow(dim, place, 1) / (last - first)
            pads = [0, 0] * (x.ndim - 1 - dim) + [first, whole - last]
            spread = spread + functional.pad(
                part.expand([last - first if d == dim else n for d, n in enumerate(part.shape)]), pads
            )
        grad = spread
    return grad


def _nearest_places(whole: int, count: int, scale: float | None, exact: bool, device: Any) -> Tensor:
    """Returns, for each of `count` outputs, the place of its input on a line of `whole` elements."""
    ratio = whole / count if scale is None else 1 / scale
    at = [min(int((n + 0.5 * exact) * ratio), whole - 1) for n in range(count)]
    return torch.tensor(at, device=device)


def nearest(rank: int, exact: bool) -> Callable[..., Tensor]:
    def forward(x: Tensor, size: Sizes, *scales: float | None) -> Tensor:
        for dim in range(2, 2 + rank):
            scale = scales[dim - 2] if len(scales) == rank else None
            x = x.index_select(dim, _nearest_places(x.shape[dim], size[dim - 2], scale, exact, x.device))
        return x

    return forward


def nearest_backward(rank: int, exact: bool) -> Callable[..., Tensor]:
    def backward(grad: Tensor, size: Sizes, input_size: Sizes, *scales: float | None) -> Tensor:
        for dim in range(2, 2 + rank):
            scale = scales[dim - 2] if len(scales) == rank else None
            at = _nearest_places(input_size[dim], grad.shape[dim], scale, exact, grad.device)
            grad = _zeros_with_size(grad, dim, input_size[dim]).index_add(dim, at, grad)
        return grad

    return backward


def _zeros_with_size(x: Tensor, dim: int, size: int) -> Tensor:
    """Returns zeros in the shape of x, but with another size in one dimension."""
    return x.new_zeros([size if d == dim else n for d, n in enumerate(x.shape)])


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


def upsample(rank: int, cubic: bool = False) -> Callable[..., Tensor]:
    def forward(x: Tensor, size: Sizes, corners: bool, *scales: float | None) -> Tensor:
        for dim in range(2, 2 + rank):
            scale = scales[dim - 2] if len(scales) == rank else None
            shape = [-1] + [1] * (x.ndim - 1 - dim)
            pairs = _neighbours(x, x.shape[dim], size[dim - 2], corners, scale, cubic)
            terms = [x.index_select(dim, place) * weight.reshape(shape) for place, weight in pairs]
            x = sum(terms[1:], terms[0])
        return x

    return forward


def upsample_backward(rank: int, cubic: bool = False) -> Callable[..., Tensor]:
    def backward(grad: Tensor, size: Sizes, input_size: Sizes, corners: bool, *scales: float | None) -> Tensor:
        for dim in range(2, 2 + rank):
            scale = scales[dim - 2] if len(scales) == rank else None
            shape = [-1] + [1] * (grad.ndim - 1 - dim)
            made = _zeros_with_size(grad, dim, input_size[dim])
            for place, weight in _neighbours(grad, input_size[dim], grad.shape[dim], corners, scale, cubic):
                made = made.index_add(dim, place, grad * weight.reshape(shape))
            grad = made
        return grad

    return backward


def _padded_places(size: int, before: int, after: int, device: Any) -> Tensor:
    return torch.arange(-before, size + after, device=device).clamp(0, size - 1)


def replication_pad(x: Tensor, pads: Sizes) -> Tensor:
    for place in range(len(pads) // 2):
        dim = x.ndim - 1 - place
        x = x.index_select(dim, _padded_places(x.shape[dim], pads[2 * place], pads[2 * place + 1], x.device))
    return x


def replication_pad_backward(grad: Tensor, x: Tensor, pads: Sizes) -> Tensor:
    for place in range(len(pads) // 2):
        dim = x.ndim - 1 - place
        at = _padded_places(x.shape[dim], pads[2 * place], pads[2 * place + 1], x.device)
        grad = _zeros_with_size(grad, dim, x.shape[dim]).index_add(dim, at, grad)
    return grad


# -- pooling to a given size ------------------------------------------------------------------------------


def _windows(x: Tensor, rank: int, size: Sizes) -> tuple[Tensor, Tensor]:
    """Returns the elements of each window as a row, and their flat places. Pads shorter rows with -inf."""
    whole = x.shape[x.ndim - rank :]
    ends = [[(n * a // b, -(-(n + 1) * a // b)) for n in range(b)] for a, b in zip(whole, size, strict=True)]
    numbers = np.arange(math.prod(whole)).reshape(whole)  # NumPy's arange is not traced
    rows = [numbers[tuple(slice(*each) for each in cell)].reshape(-1).tolist() for cell in product(*ends)]
    longest = max(map(len, rows), default=0)
    places = torch.tensor([row + [numbers.size] * (longest - len(row)) for row in rows], device=x.device)
    flat = x.reshape(*x.shape[: x.ndim - rank], -1)
    return functional.pad(flat, (0, 1), value=-math.inf)[..., places], places


def chosen_in(columns: Tensor, best: Tensor, grad: Tensor) -> Tensor:
    """Returns zeros in the shape of `columns`, with each gradient at the place `best` of its row."""
    return torch.where(torch.arange(columns.shape[-1], device=best.device) == best, grad.reshape(best.shape), 0.0)


def adaptive_max_pool(rank: int) -> Callable[..., tuple[Tensor, Tensor]]:
    def forward(x: Tensor, size: Sizes) -> tuple[Tensor, Tensor]:
        columns, _ = _windows(x, rank, size)
        values, indices = columns.max(-1)
        shape = (*x.shape[: x.ndim - rank], *size)
        return values.reshape(shape), indices.reshape(shape)

    return forward


def adaptive_max_pool_backward(rank: int) -> Callable[..., Tensor]:
    def backward(grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
        columns, places = _windows(x, rank, grad.shape[grad.ndim - rank :])
        best = columns.max(-1, keepdim=True).indices
        grads = chosen_in(columns, best, grad)
        outer = x.shape[: x.ndim - rank]
        count = math.prod(x.shape[x.ndim - rank :])
        flat = x.new_zeros(*outer, count + 1).index_add(-1, places.reshape(-1), grads.reshape(*outer, -1))
        return flat[..., :count].reshape(x.shape)

    return backward
