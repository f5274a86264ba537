"""Compares a kernel's errors with PyTorch's errors near the same input, for kernels that are held against PyTorch.

PyTorch may be beyond the limit too: its gelu loses its tail. That excuses a kernel there and nowhere else. So errors
are collected by neighbourhoods: of an elementwise function by the operand, else by the exact result. A neighbourhood is
1/32 of an octave, or as much more as gives PyTorch some elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from verify.ops.op import Op, Problem
from verify.truth.ulp import Errors, widen

LEVELS = (32, 8, 2)  # parts of an octave, the finest first
ENOUGH = 6  # elements of PyTorch's in a part
_BEYOND = 2.0**1023  # infinities and NaN are in its part
_MIDDLE = 1100  # exponents of float64 are above its negative

Peaks = dict[int, tuple[int, float]]  # by part: the number of elements, and the largest error


def coordinate(op: Op, problem: Problem, truth: Tensor) -> Tensor:
    """Returns the number by which each element of a result has its neighbours."""
    given = [each for each in problem.inputs.values() if each is not None and each.is_floating_point()]
    beside = [each for each in given if each.shape == truth.shape]
    if beside and not op.meaning.shipped and op.program(problem)[0].elementwise:
        return widen(beside[0])
    return truth


def peaks_of(found: Errors, coordinates: Tensor, apart: Tensor | None) -> Peaks:
    """Returns the largest error in each part. The elements in the mask `apart` are excluded."""
    size = found.least[-1].double()
    size = torch.where(found.nonfinite | found.nan | torch.isnan(size), math.inf, size).reshape(-1)
    numbers = coordinates.reshape(-1).to(size.device).double()
    if apart is not None:
        keep = ~apart.reshape(-1).to(size.device)
        numbers, size = numbers[keep], size[keep]
    mantissa, exponent = torch.frexp(numbers.abs().clamp(max=_BEYOND).nan_to_num(_BEYOND))
    part = ((exponent + _MIDDLE) * LEVELS[0] + ((2 * mantissa - 1) * LEVELS[0]).long() + 1) * torch.sign(
        numbers
    ).nan_to_num(1.0).long()
    names, places, counts = torch.unique(part, return_inverse=True, return_counts=True)
    most = torch.zeros(len(names), dtype=torch.float64, device=size.device).scatter_reduce_(0, places, size, "amax")
    return {
        name: (count, largest)
        for name, count, largest in zip(names.tolist(), counts.tolist(), most.tolist(), strict=True)
    }


def join(into: Peaks, more: Mapping[int, tuple[int, float]], level: int = LEVELS[0]) -> Peaks:
    """Adds peaks to others, in parts of a level."""
    for name, (count, largest) in more.items():
        part = _coarse(name, level)
        before = into.get(part, (0, 0.0))
        into[part] = before[0] + count, max(before[1], largest)
    return into


def excess(mine: Peaks, theirs: Peaks, limit: float) -> float:
    """Returns the largest ratio of an error beyond the limit to PyTorch's largest near it; 0 if none is beyond."""
    coarse = [join({}, theirs, level) for level in LEVELS]
    largest = 0.0
    for name, (_, error) in mine.items():
        if error <= limit:
            continue
        levels = [each.get(_coarse(name, level), (0, 0.0)) for level, each in zip(LEVELS, coarse, strict=True)]
        beside = next((most for count, most in levels if count >= ENOUGH), levels[-1][1])
        largest = max(largest, 1.0 if math.isinf(beside) else error / beside if beside else math.inf)
    return largest


def _coarse(name: int, level: int) -> int:
    size = (abs(name) - 1) // (LEVELS[0] // level) + 1 if name else 0
    return size if name >= 0 else -size
