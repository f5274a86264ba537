"""Handles explicit values in a case: whole operands or single elements, as bit patterns in hex.

A searched or shrunk input follows no recipe, so the case has its bits. `values` replaces a whole tensor, row by row.
Every element has the same number of hex digits. If there are fewer rows than in the tensor, they repeat. `edits`
replaces single elements of the recipe's values, by flat index. Integers are spelled out by their bits too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from verify.errors import UsageError
from verify.truth.formats import Format
from verify.truth.ulp import bits_of, from_bits

LIMIT = 1 << 16  # a case spells out at most this many elements, so that it can be pasted


def spell(tensor: Tensor) -> str:
    """Returns every element of a tensor as hex, for `Case.values`."""
    digits = tensor.element_size() * 2
    mask = (1 << 4 * digits) - 1
    return "".join(f"{pattern & mask:0{digits}x}" for pattern in bits_of(tensor).reshape(-1).tolist())


def override(
    filled: Tensor, fmt: Format | None, name: str, values: str | None, edits: Mapping[str, str] | None
) -> Tensor:
    """Returns the tensor with the values that the case spells out for it. `fmt` is None for integers."""
    if values is not None:
        filled = _whole(filled, fmt, name, values)
    if edits:
        filled = _single(filled, fmt, name, edits)
    return filled


def _whole(filled: Tensor, fmt: Format | None, name: str, values: str) -> Tensor:
    """Returns the tensor that `values` spells out: all its elements, or rows that repeat."""
    digits, count = filled.element_size() * 2, filled.numel()
    row = digits * math.prod(filled.shape[1:])
    whole = len(values) == digits * count or (filled.ndim > 1 and 0 < len(values) < digits * count)
    if not whole or (row and len(values) % row):
        rows = ", or for whole rows, which repeat" if filled.ndim > 1 else ""
        raise UsageError(
            f"a case spells out {name!r} with {digits} hex digits for each of its {count:,} elements, "
            f"{digits * count:,} in all{rows}; received {len(values):,}"
        )
    if len(values) > digits * LIMIT:
        received = len(values) // digits
        raise UsageError(f"a case spells out at most {LIMIT:,} elements of {name!r}; received {received:,}")
    patterns = [_pattern(values[at : at + digits], digits, name) for at in range(0, len(values), digits)]
    tensor = _tensor(patterns, fmt, filled)
    return (
        tensor.reshape(filled.shape)
        if len(patterns) == count
        else repeated(tensor.reshape(-1, *filled.shape[1:]), len(filled))
    )


def repeated(rows: Tensor, count: int) -> Tensor:
    """Returns this many rows: the given ones in turn."""
    return rows[torch.arange(count, device=rows.device) % len(rows)]


def _single(filled: Tensor, fmt: Format | None, name: str, edits: Mapping[str, str]) -> Tensor:
    """Returns the tensor with single elements replaced by their flat index."""
    changed = filled.contiguous().clone()
    flat = changed.view(-1)
    digits = filled.element_size() * 2
    for place, text in edits.items():
        if not place.isascii() or not place.isdigit() or int(place) >= flat.numel():
            raise UsageError(f"an edit of {name!r} names an element from 0 to {flat.numel() - 1}; received {place!r}")
        flat[int(place)] = _tensor([_pattern(text, digits, name)], fmt, filled)[0]
    return changed


def _pattern(text: str, digits: int, name: str) -> int:
    if len(text) != digits or not all(letter in "0123456789abcdefABCDEF" for letter in text):
        raise UsageError(f"an element of {name!r} is {digits} hex digits; received {text!r}")
    return int(text, 16)


def _tensor(patterns: list[int], fmt: Format | None, like: Tensor) -> Tensor:
    if like.element_size() == 8:
        patterns = [item - (1 << 64) if item >= 1 << 63 else item for item in patterns]
    line = torch.tensor(patterns, dtype=torch.int64)
    tensor = line.to(like.dtype) if fmt is None else from_bits(line, fmt)
    assert tensor.dtype == like.dtype
    return tensor.to(like.device)
