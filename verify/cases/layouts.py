"""Defines memory layouts: the same values at other addresses.

`lay_out(tensor, name)` copies a tensor into a layout.

In some layouts elements share memory (expanded, overlapping), so they cannot hold arbitrary values. The tensor's
leading part decides, and the values of the result are those of `result.contiguous()`.
"""

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


def _within(
    least: int,
    memory: Callable[[torch.Size], tuple[int, ...]],
    cut: Callable[[Tensor, torch.Size], Tensor],
    instead: Callable[[Tensor], Tensor] = torch.Tensor.contiguous,
) -> Callable[[Tensor], Tensor]:
    """Returns a layout in the part that `cut` takes of memory of a shape, with NaN around it.

    A tensor with fewer than `least` dimensions has the layout `instead`.
    """

    def laid(tensor: Tensor) -> Tensor:
        if tensor.ndim < least:
            return instead(tensor)
        whole = torch.full(memory(tensor.shape), torch.nan, dtype=torch.float32, device=tensor.device)
        view = cut(whole.to(tensor.dtype), tensor.shape)
        view.copy_(tensor)
        return view

    return laid


# one element into the storage, contiguous: vector loads are then misaligned
_offset = _within(0, lambda of: (math.prod(of) + 3,), lambda wide, of: wide[1 : 1 + math.prod(of)].view(of))


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
    # a NaN after each element of a row, so that the last dimension has stride 2
    "stepped": _within(1, lambda of: (*of[:-1], 2 * of[-1]), lambda wide, of: wide[..., ::2], _offset),
    "offset": _offset,
    "padded": _within(1, lambda of: (*of[:-1], of[-1] + 5), lambda wide, of: wide[..., : of[-1]], _offset),
    # a row of NaN behind each matrix, as in `x[:, :-1]`
    "matrices apart": _within(2, lambda of: (*of[:-2], of[-2] + 1, of[-1]), lambda wide, of: wide[..., : of[-2], :]),
    "reversed": _reversed_dims,
    "expanded": _repeated(lambda x: x[:1] if x.ndim else x),
    "expanded last": _repeated(lambda x: x[..., :1] if x.ndim else x),  # as `.sum(-1).sum().backward()` does
    "expanded matrices": _repeated(lambda x: x[(0,) * (x.ndim - 2)]),  # as for heads that share keys and values
    "one number": _repeated(lambda x: x[(0,) * x.ndim]),  # as `.sum().backward()` does
    "overlapping": _overlapping,
}
