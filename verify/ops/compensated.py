"""Double-double sums on tensors: error-free transformations, so that a row's mean keeps 100 bits.

A double-double is an unevaluated pair (high, low) of float64 tensors. Sums run as a binary tree
over one dimension, vectorised over the others, on the tensor's own device.

Small tensors on a CPU may be given as NumPy arrays (`at_hand`): the same operations, which cost a third of what calling
torch does. `library` has the functions that both know by the same name.

100 bits are not enough where the elements of a row cancel to less than that of the largest: `deviations` adds integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Values = Any  # a float64 tensor, or an array
Pair = tuple[Values, Values]
_FEW = 1 << 12  # elements up to which calling torch takes a CPU longer than adding them
_LOST = 2.0**-960  # where `deviations` asks for no further digit


def library(values: Values) -> Any:
    """NumPy for its arrays, torch for its tensors."""
    return np if isinstance(values, np.ndarray) else torch


def at_hand(tensor: Tensor) -> Values:
    """A small tensor in the memory of the host as an array in the usual order, which shares it; another as it is."""
    if tensor.device.type == "cpu" and tensor.numel() <= _FEW:
        values = tensor.detach().numpy()
        return np.ascontiguousarray(values) if values.ndim else values
    return tensor


def tensor_of(values: Values) -> Tensor:
    """The tensor of an array; a tensor as it is."""
    return torch.from_numpy(values) if isinstance(values, np.ndarray) else values


def two_sum(a: Values, b: Values) -> Pair:
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


def is_exact(terms: Values, digits: int, dim: int) -> Values:
    """Where float64 rounds nothing in any sum of these numbers over `dim`, each of so many bits: all partial sums are
    multiples of their last places, and fit."""
    lib = library(terms)
    exponents = lib.frexp(terms)[1]
    least = lib.amin(lib.where(terms == 0, 4096, exponents), dim)
    return lib.frexp(lib.sum(abs(terms), dim))[1] - least + digits < 53


def tree_sum(values: Values | Pair, dim: int) -> Pair:
    """The sum over `dim` (kept, of size 1). Where it is not finite: what a plain sum gives."""
    high, low = values if isinstance(values, tuple) else (values, None)
    if high.shape[dim] == 0:
        plain = high.sum(dim, keepdims=True)
        return plain, library(high).zeros_like(plain)
    if isinstance(high, Tensor):
        near = at_hand(high)
        if near is not high:
            first, second = tree_sum(near if low is None else (near, at_hand(low)), dim)
            return torch.from_numpy(first), torch.from_numpy(second)
        low = torch.zeros_like(high) if low is None else low
        first, second = _tree(high.movedim(dim, 0), low.movedim(dim, 0))
        return _limited(high, low, first.movedim(0, dim), second.movedim(0, dim), dim)
    order = list(range(high.ndim))
    order.insert(0, order.pop(dim))
    with np.errstate(all="ignore"):
        first, second = _array_tree(high.transpose(order), None if low is None else low.transpose(order))
        back = [order.index(place) for place in range(high.ndim)]
        first, second = first.transpose(back), second.transpose(back)
        if np.isfinite(first + second).all():
            return first, second
        return _limited(high, 0.0 if low is None else low, first, second, dim)


def _limited(high: Values, low: Values, first: Values, second: Values, dim: int) -> Pair:
    lib = library(high)
    plain = tensor_of(high + low).sum(dim, keepdim=True)  # torch's: in its order
    finite = lib.isfinite(first + second)
    return lib.where(finite, first, plain.numpy() if lib is np else plain), lib.where(finite, second, 0.0)


def _tree(high: Tensor, low: Tensor) -> Pair:
    """The sum over the first dimension."""
    while (count := len(high)) > 1:
        half = count // 2
        pair = add((high[:half], low[:half]), (high[half : 2 * half], low[half : 2 * half]))
        if count % 2:
            pair = (torch.cat([pair[0], high[-1:]]), torch.cat([pair[1], low[-1:]]))
        high, low = pair
    return high, low


def _array_tree(high: Any, low: Any | None) -> Pair:
    """`_tree` of arrays: the same additions in the same order, written out, because each costs by the call.

    Without a `low` it is zero.
    """
    while (count := len(high)) > 1:
        half = count // 2
        a, b = high[:half], high[half : 2 * half]
        made = np.empty((2, half + count % 2, *high.shape[1:]))
        total, rest = made[1, :half], made[0, :half]
        np.add(a, b, out=total)  # two_sum(a, b) = total, lost
        from_b = total - a
        lost = total - from_b
        np.subtract(a, lost, out=lost)
        np.subtract(b, from_b, out=from_b)
        lost += from_b
        lost += 0.0 if low is None else np.add(low[:half], low[half : 2 * half], out=from_b)
        np.add(total, lost, out=rest)  # the new high part
        np.subtract(rest, total, out=from_b)
        np.subtract(lost, from_b, out=total)
        if count % 2:
            made[0, half] = high[-1]
            made[1, half] = 0.0 if low is None else low[-1]
        high, low = made
    return high, np.zeros(high.shape) if low is None else low


def divide(a: Pair, divisor: int) -> Pair:
    """A double-double divided by a positive integer below 2^26."""
    quotient = a[0] / divisor
    # Veltkamp's split leaves 26 bits in each part, so both products below are exact, and so is the
    # remainder: a quotient's remainder always fits in one float64.
    large = quotient * 134217729.0
    head = large - (large - quotient)
    remainder = (a[0] - head * divisor) - (quotient - head) * divisor
    rest = (remainder + a[1]) / divisor
    lib = library(rest)
    return quotient, lib.where(lib.isfinite(rest), rest, 0.0)


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
