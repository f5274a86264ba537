"""Bitwise comparison of two runs of one kernel, shared by every law that demands the same bits."""

from __future__ import annotations

import torch
from torch import Tensor

from verify import formats
from verify.ulp import bits_of


def first_difference(left: Tensor, right: Tensor) -> int | None:
    """Flat index of the first element whose bits differ; any two NaNs count as equal. None if all agree."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return 0
    both_nan = torch.isnan(left.float()) & torch.isnan(right.float())
    differ = (bits_of(left.detach()) != bits_of(right.detach())) & ~both_nan
    places = torch.nonzero(differ.reshape(-1))
    return int(places[0]) if places.numel() else None


def show(tensor: Tensor, index: int) -> str:
    """One element, decimal and hex."""
    fmt = formats.of(tensor.dtype)
    flat = tensor.detach().reshape(-1)
    if index >= flat.numel():
        return f"shape {tuple(tensor.shape)} {tensor.dtype}"
    pattern = int(bits_of(flat[index : index + 1])[0]) & ((1 << fmt.bits) - 1)
    return f"{fmt.to_float(pattern)!r} ({fmt.hex(pattern)})"


def place(tensor: Tensor, index: int) -> str:
    """Where a flat index is, and how many elements there are."""
    position = []
    for size in reversed(tensor.shape):
        index, at = divmod(index, size) if size else (0, 0)
        position.append(at)
    return f"{list(reversed(position))} of shape {list(tensor.shape)}"
