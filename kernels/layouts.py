"""Memory layouts: which tensors a kernel can read as they lie, and the copies of those that it cannot."""

from __future__ import annotations

import torch


def same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal memory order: strides agree wherever a dimension has more than one element."""
    return all(s == t for n, s, t in zip(a.shape, a.stride(), b.stride(), strict=True) if n > 1)


def dense_like(t: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """t, or a copy in the layout of `like`, of t's dtype and device, where t has gaps, overlaps or another order."""
    return t if same_layout(t, like) else torch.empty_like(like).copy_(t)


def aligned(t: torch.Tensor) -> torch.Tensor:
    """t, contiguous or not, or a contiguous copy where it does not start at a multiple of 16 bytes."""
    return t if t.data_ptr() % 16 == 0 else t.clone(memory_format=torch.contiguous_format)


def dense(t: torch.Tensor) -> torch.Tensor:
    """t, or a copy where it is not contiguous or starts off a multiple of 16 bytes.

    Triton compiles a kernel again for another alignment or a stride of 1, with another distribution of a tile's rows
    over threads: a sum over rows then has another order. Of a dense tensor there is one such kernel for each shape.
    """
    return aligned(t.contiguous())
