"""Sums tensors in double-double arithmetic, by error-free transformations, so that the mean of a row keeps 100 bits.

A double-double is an unevaluated pair (high, low) of float64 tensors. Sums run as a binary tree over one dimension,
vectorised over the others, on the device of the tensor.

`at_hand` converts small tensors on a CPU to NumPy arrays. The same operations on these take a third of the time,
because calling torch costs more. `library` returns the module with the functions that both have.

100 bits are not enough if the elements of a row cancel to less than 2^-100 of the largest. `deviations` adds integers
instead.
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
_FEW = 1 << 12  # most elements for which a call of torch takes longer than the additions
_LOST = 2.0**-960  # `deviations` computes no digit below this, relative to the largest number


def library(values: Values) -> Any:
    """Returns NumPy for an array, torch for a tensor."""
    return np if isinstance(values, np.ndarray) else torch


def at_hand(tensor: Tensor) -> Values:
    """Converts a small tensor on the CPU to a contiguous array. Returns any other tensor as it is."""
    if tensor.device.type == "cpu" and tensor.numel() <= _FEW:
        values = tensor.detach().numpy()
        return np.ascontiguousarray(values) if values.ndim else values
    return tensor


def tensor_of(values: Values) -> Tensor:
    """Converts an array to a tensor. Returns a tensor as it is."""
    return torch.from_numpy(values) if isinstance(values, np.ndarray) else values


def two_sum(a: Values, b: Values) -> Pair:
    """Returns the rounded sum a + b, and its exact rounding error (Knuth; for any order of magnitudes)."""
    total = a + b
    from_b = total - a
    return total, (a - (total - from_b)) + (b - from_b)


def add(a: Pair, b: Pair) -> Pair:
    """Returns the sum of two double-doubles."""
    high, low = two_sum(a[0], b[0])
    low = low + (a[1] + b[1])
    total = high + low
    return total, low - (total - high)


def is_exact(terms: Values, digits: int, dim: int) -> Values:
    """Returns a mask of the sums over `dim` that float64 computes exactly in any order.

    Each term has at most `digits` bits. Every partial sum is a multiple of the last place of the smallest term. It is
    exact if it fits into 53 bits from there.
    """
    lib = library(terms)
    exponents = lib.frexp(terms)[1]
    least = lib.amin(lib.where(terms == 0, 4096, exponents), dim)
    return lib.frexp(lib.sum(abs(terms), dim))[1] - least + digits < 53


def tree_sum(values: Values | Pair, dim: int) -> Pair:
    """Returns the sum over `dim`, which is kept with size 1. If it is not finite, returns the result of a plain sum."""
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
    """Replaces sums that are not finite by a plain sum."""
    lib = library(high)
    plain = tensor_of(high + low).sum(dim, keepdim=True)  # in torch's order for arrays too
    finite = lib.isfinite(first + second)
    return lib.where(finite, first, plain.numpy() if lib is np else plain), lib.where(finite, second, 0.0)


def _tree(high: Tensor, low: Tensor) -> Pair:
    """Returns the sum over the first dimension, by halves."""
    while (count := len(high)) > 1:
        half = count // 2
        pair = add((high[:half], low[:half]), (high[half : 2 * half], low[half : 2 * half]))
        if count % 2:
            pair = (torch.cat([pair[0], high[-1:]]), torch.cat([pair[1], low[-1:]]))
        high, low = pair
    return high, low


def _array_tree(high: Any, low: Any | None) -> Pair:
    """Does the additions of `_tree` on arrays, in the same order, written out to save calls. low=None means zero."""
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
    """Divides a double-double by a positive integer below 2^26."""
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
    """Returns the sum of finite tensors minus its mean over the last dimension.

    The error is a few roundings, even if everything cancels. Numbers are cut into digits so short that float64 adds the
    digits of a row exactly. Digits below 2^-960 of the largest number of the row may be omitted; only float64 inputs
    have such digits.
    """
    width = parts[0].shape[-1]
    bits = 50 - (len(parts) * width).bit_length()
    largest = torch.stack([part.abs().amax(-1, keepdim=True) for part in parts]).amax(0)
    exponent = torch.frexp(largest).exponent.clamp_min(-1000)  # clamped, because 2^1074 overflows float64
    rest = [torch.ldexp(part, -exponent) for part in parts]
    digits: list[Tensor] = []
    unit = 1.0
    while unit > _LOST and any(bool(part.any()) for part in rest):
        unit = math.ldexp(unit, -bits)
        cut = [(part / unit).round() for part in rest]
        rest = [part - digit * unit for part, digit in zip(rest, cut, strict=True)]
        digit = torch.stack(cut).sum(0)
        digits.append(width * digit - digit.sum(-1, keepdim=True))
    # Carry from the lowest digit up, so that each digit is at most half the base. The highest nonzero digit decides.
    base = 2.0**bits
    value = carry = torch.zeros_like(parts[0])
    for digit in reversed(digits):
        digit = digit + carry
        carry = (digit / base).round()
        value = (value + (digit - carry * base)) / base
    return torch.ldexp((value + carry) / width, exponent)
