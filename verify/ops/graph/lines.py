"""Tells where numbers move if the first or the last of equal ones wins: along lines through a tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

import torch
from torch import Tensor

_LEAST = 2.0**-8  # share of a dimension in what breaks ties: the steps along it stay well above float64's spacing
# signs by which ties are broken, errors point, and copies of one number come first; 0: not at all
_SIGNS = ((1, 1, 1), (-1, -1, -1), *product((1, -1), (0,), (1, -1)), *product((0,), (1, -1, 0), (1, -1)))
_SIGNS += (*product((1, -1), (1, -1), (1, -1)),)[1:-1]


def in_lines(kinds: Mapping[int, int], ramps: Mapping[int, Tensor]) -> Iterator[dict[int, Tensor]]:
    """Yields where numbers move if the first or the last of equal ones wins.

    Operands (kind 0) move to both sides, or all to one. Errors are of kind 1, scores of copies of kind 2.
    """
    for above, (ties, errors, copies) in product((False, True), _SIGNS):
        if above and errors:
            continue
        found = {}
        for key, line in ramps.items():
            curve = line * line * (ties * ties * copies / 8)  # the middle of a line is its mean: on either side
            side = 1 + line * (1 - 2 / (line.numel() + 1))
            found[key] = (ties * side if above else ties * line + curve, line * errors, line * copies)[kinds[key]]
        yield found


def ramp(values: Tensor) -> Tensor:
    """Returns numbers between 1 and -1 that fall along each dimension, or one after the other if they are few."""
    if values.numel() <= 1 / _LEAST:
        return torch.linspace(1, -1, values.numel(), dtype=values.dtype, device=values.device).reshape(values.shape)
    found, share, shares = torch.zeros_like(values), 1.0, 0.0
    for dim, size in enumerate(values.shape):
        line = torch.linspace(share, -share, size, dtype=values.dtype, device=values.device)
        found = found + line.reshape([-1 if at == dim else 1 for at in range(values.ndim)])
        share, shares = max(share / max(size, 1), _LEAST), shares + share
    return found / max(shares, 1.0)
