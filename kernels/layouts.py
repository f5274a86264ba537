"""Memory layouts: which tensors a kernel reads in place, and copies of the others."""

from __future__ import annotations

import torch

from .launch import traced


def same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if two tensors have the same memory order: equal strides in each dimension of two elements or more."""
    return all(s == t for n, s, t in zip(a.shape, a.stride(), b.stride(), strict=True) if n > 1)


def dense_like(t: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Returns t, or a copy in the layout of `like` if t has gaps, overlaps or another order."""
    return t if same_layout(t, like) else torch.empty_like(like).copy_(t)


def aligned(t: torch.Tensor) -> torch.Tensor:
    """Returns t, or a contiguous copy if t starts off a multiple of 16 bytes. t need not be contiguous.

    Inductor copies operands of compiled programs that start elsewhere.
    """
    return t if traced() or t.data_ptr() % 16 == 0 else t.clone(memory_format=torch.contiguous_format)


def dense(t: torch.Tensor) -> torch.Tensor:
    """Returns t, or a copy if t is not contiguous or starts off a multiple of 16 bytes.

    Triton compiles another kernel for another alignment or a stride of 1. That kernel may distribute the rows of a tile
    differently over threads, so a sum over rows has another order. Each shape of a dense tensor has one kernel.
    """
    return aligned(t.contiguous())
