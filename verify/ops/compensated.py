"""Double-double sums on tensors: error-free transformations, so that a row's mean keeps 100 bits.

A double-double is an unevaluated pair (high, low) of float64 tensors. Sums run as a binary tree
over one dimension, vectorised over the others, on the tensor's own device."""

from __future__ import annotations

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]


def two_sum(a: Tensor, b: Tensor) -> Pair:
    """a + b rounded, and the exact rounding error (Knuth; any order of magnitudes)."""
    total = a + b
    from_b = total - a
    return total, (a - (total - from_b)) + (b - from_b)


def add(a: Pair, b: Pair) -> Pair:
    """The sum of two double-doubles."""
    high, low = two_sum(a[0], b[0])
    low = low + (a[1] + b[1])
    total = high + low
    return total, low - (total - high)


def tree_sum(values: Tensor | Pair, dim: int) -> Pair:
    """The sum over `dim` (kept, of size 1). Where it is not finite: what a plain sum gives."""
    high, low = values if isinstance(values, tuple) else (values, torch.zeros_like(values))
    plain = (high + low).sum(dim, keepdim=True)
    high, low = high.movedim(dim, -1), low.movedim(dim, -1)
    if high.shape[-1] == 0:
        return plain, torch.zeros_like(plain)
    while (count := high.shape[-1]) > 1:
        half = count // 2
        pair = add(
            (high[..., :half], low[..., :half]),
            (high[..., half : 2 * half], low[..., half : 2 * half]),
        )
        if count % 2:
            pair = (
                torch.cat([pair[0], high[..., -1:]], -1),
                torch.cat([pair[1], low[..., -1:]], -1),
            )
        high, low = pair
    high, low = high.movedim(-1, dim), low.movedim(-1, dim)
    finite = torch.isfinite(high + low)
    return torch.where(finite, high, plain), torch.where(finite, low, 0.0)


def divide(a: Pair, divisor: int) -> Pair:
    """A double-double divided by a positive integer below 2^26."""
    quotient = a[0] / divisor
    # Veltkamp's split leaves 26 bits in each part, so both products below are exact, and so is the
    # remainder: a quotient's remainder always fits in one float64.
    large = quotient * 134217729.0
    head = large - (large - quotient)
    remainder = (a[0] - head * divisor) - (quotient - head) * divisor
    rest = (remainder + a[1]) / divisor
    return quotient, torch.where(torch.isfinite(rest), rest, 0.0)
