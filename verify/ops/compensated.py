"""Double-double sums on tensors: error-free transformations, so that a row's mean keeps 100 bits.

A double-double is an unevaluated pair (high, low) of float64 tensors. Sums run as a binary tree
over one dimension, vectorised over the others, on the tensor's own device.

100 bits are not enough where the elements of a row cancel to less than that of the largest: `deviations` adds integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]
_FEW = 1 << 12  # elements up to which calling torch takes a CPU longer than adding them
_LOST = 2.0**-960  # where `deviations` asks for no further digit


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
    if high.shape[dim] == 0:
        plain = high.sum(dim, keepdim=True)
        return plain, torch.zeros_like(plain)
    ends = high.movedim(dim, -1), low.movedim(dim, -1)
    if high.device.type == "cpu" and high.numel() <= _FEW:
        with np.errstate(all="ignore"):
            arrays = _tree(ends[0].numpy(), ends[1].numpy(), np.concatenate)
            settled = bool(np.isfinite(arrays[0] + arrays[1]).all())
        summed = torch.from_numpy(arrays[0]), torch.from_numpy(arrays[1])
    else:
        summed, settled = _tree(*ends, torch.cat), False
    first, second = summed[0].movedim(-1, dim), summed[1].movedim(-1, dim)
    if settled:
        return first, second
    plain = (high + low).sum(dim, keepdim=True)
    finite = torch.isfinite(first + second)
    return torch.where(finite, first, plain), torch.where(finite, second, 0.0)


def _tree(high: Any, low: Any, join: Callable[..., Any]) -> Any:
    """The sum over the last dimension, of tensors or of arrays: the same additions in the same order."""
    while (count := high.shape[-1]) > 1:
        half = count // 2
        pair = add(
            (high[..., :half], low[..., :half]),
            (high[..., half : 2 * half], low[..., half : 2 * half]),
        )
        if count % 2:
            pair = (join([pair[0], high[..., -1:]], -1), join([pair[1], low[..., -1:]], -1))
        high, low = pair
    return high, low


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


def deviations(parts: Sequence[Tensor]) -> Tensor:
    """The sum of finite tensors, less its mean over the last dimension: off by a few roundings, whatever cancels.

    Numbers are cut into digits so short that float64 adds those of a row exactly. What is below 2^-960 of the largest
    number of its row may be left out: float64 inputs alone reach that far.
    """
    width = parts[0].shape[-1]
    bits = 50 - (len(parts) * width).bit_length()
    largest = torch.stack([part.abs().amax(-1, keepdim=True) for part in parts]).amax(0)
    exponent = torch.frexp(largest).exponent.clamp_min(-1000)  # of subnormals: 2^1074 is no float64
    rest = [torch.ldexp(part, -exponent) for part in parts]
    digits: list[Tensor] = []
    unit = 1.0
    while unit > _LOST and any(bool(part.any()) for part in rest):
        unit = math.ldexp(unit, -bits)
        cut = [(part / unit).round() for part in rest]
        rest = [part - digit * unit for part, digit in zip(rest, cut, strict=True)]
        digit = torch.stack(cut).sum(0)
        digits.append(width * digit - digit.sum(-1, keepdim=True))
    # From the lowest digit up, each brought below half its base: the first one that is not zero then decides.
    base = 2.0**bits
    value = carry = torch.zeros_like(parts[0])
    for digit in reversed(digits):
        digit = digit + carry
        carry = (digit / base).round()
        value = (value + (digit - carry * base)) / base
    return torch.ldexp((value + carry) / width, exponent)
