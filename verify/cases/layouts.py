"""Defines memory layouts: the same values at other addresses.

`lay_out(tensor, name)` copies a tensor into a layout.

In some layouts elements share memory (expanded, overlapping), so they cannot hold arbitrary values. The tensor's
leading part decides, and the values of the result are those of `result.contiguous()`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from verify.errors import UsageError


def lay_out(tensor: Tensor, layout: str) -> Tensor:
    """Returns a tensor of the same shape and dtype in a named layout."""
    if layout not in LAYOUTS:
        raise UsageError(f"unknown layout {layout!r}; the layouts are: {', '.join(LAYOUTS)}")
    return LAYOUTS[layout](tensor)


def _transposed(tensor: Tensor) -> Tensor:
    """Swaps the last two dimensions in memory. A vector remains contiguous."""
    if tensor.ndim < 2:
        return tensor.contiguous()
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def _within(tensor: Tensor, shape: tuple[int, ...], cut: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns the tensor in the part that `cut` takes of memory of this shape. NaN is around it."""
    view = cut(torch.full(shape, torch.nan, dtype=torch.float32, device=tensor.device).to(tensor.dtype))
    view.copy_(tensor)
    return view


def _offset(tensor: Tensor) -> Tensor:
    """Starts one element into the storage, contiguous. Vector loads are then misaligned."""
    count = tensor.numel()
    return _within(tensor, (count + 3,), lambda wide: wide[1 : 1 + count].view(tensor.shape))


def _stepped(tensor: Tensor) -> Tensor:
    """Stores each row with a NaN after each element, so that the last dimension has stride 2."""
    if tensor.ndim == 0:
        return _offset(tensor)
    return _within(tensor, (*tensor.shape[:-1], 2 * tensor.shape[-1]), lambda wide: wide[..., ::2])


def _padded(tensor: Tensor) -> Tensor:
    """Puts NaN behind each row."""
    if tensor.ndim == 0:
        return _offset(tensor)
    width = tensor.shape[-1]
    return _within(tensor, (*tensor.shape[:-1], width + 5), lambda wide: wide[..., :width])


def _apart(tensor: Tensor) -> Tensor:
    """Puts a row of NaN behind each matrix, as in `x[:, :-1]`. A vector remains contiguous."""
    if tensor.ndim < 2:
        return tensor.contiguous()
    *rows, height, width = tensor.shape
    return _within(tensor, (*rows, height + 1, width), lambda wide: wide[..., :height, :])


def _reversed_dims(tensor: Tensor) -> Tensor:
    """Puts all dimensions in the opposite order in memory (channels-last for three and more)."""
    order = tuple(reversed(range(tensor.ndim)))
    return tensor.permute(order).contiguous().permute(order)


def _repeated(part: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Returns a layout that repeats a part of the tensor, with stride 0."""

    def repeated(tensor: Tensor) -> Tensor:
        return part(tensor).contiguous().clone().expand(tensor.shape) if tensor.numel() else tensor.contiguous()

    return repeated


def _overlapping(tensor: Tensor) -> Tensor:
    """Makes rows from windows of one vector, each one element further on."""
    if tensor.ndim < 2 or tensor.numel() == 0:
        return tensor.contiguous()
    width = tensor.shape[-1]
    rows = tensor.numel() // width
    line = tensor.reshape(-1)[: rows + width - 1].clone()
    if line.numel() < rows + width - 1:
        return tensor.contiguous()
    view = line.as_strided((rows, width), (1, 1))
    strides = [math.prod(tensor.shape[dim + 1 : -1]) for dim in range(tensor.ndim - 1)]
    return view.as_strided(tuple(tensor.shape), (*strides, 1))


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": torch.Tensor.contiguous,
    "transposed": _transposed,
    "stepped": _stepped,
    "offset": _offset,
    "padded": _padded,
    "matrices apart": _apart,
    "reversed": _reversed_dims,
    "expanded": _repeated(lambda x: x[:1] if x.ndim else x),
    "expanded last": _repeated(lambda x: x[..., :1] if x.ndim else x),  # as `.sum(-1).sum().backward()` does
    "expanded matrices": _repeated(lambda x: x[(0,) * (x.ndim - 2)]),  # as for heads that share keys and values
    "one number": _repeated(lambda x: x[(0,) * x.ndim]),  # as `.sum().backward()` does
    "overlapping": _overlapping,
}
