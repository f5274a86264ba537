"""Merges equal rows of a problem, for results that add up over rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from verify.ops.op import Kept, Problem

_MANY_ROWS = 512  # fewest rows among which a search for equal ones pays


def merged(problem: Problem, data: Sequence[str]) -> Problem:
    """Returns an equivalent problem with equal rows merged, for results that sum over rows; else the problem itself.

    Such results are linear in the upstream gradients. So the gradients at equal rows are added up exactly. The sum is a
    few float64 numbers of decreasing size, each with its own copy of the row. Numbers are cut into digits so short that
    float64 adds the digits of a group exactly.
    """
    if "merged" not in problem.kept.exact:
        problem.kept.exact["merged"] = _merged(problem, data)
    found: Problem | None = problem.kept.exact["merged"]
    return found or problem


def _merged(problem: Problem, data: Sequence[str]) -> Problem | None:
    """Returns the merged problem; None if the rows are few, mostly different, or not finite."""
    flat = {
        name: value.detach().to("cpu", torch.float64).reshape(-1, value.shape[-1])
        for name, value in (*problem.inputs.items(), *problem.upstream.items())
        if value is not None and value.ndim > 1 and (name in data or name in problem.upstream) and value.numel()
    }
    kept = {name: flat[name] for name in data if name in flat}
    count = min(map(len, flat.values()), default=0)
    if count < _MANY_ROWS or not all(bool(torch.isfinite(value).all()) for value in flat.values()):
        return None
    distinct, owner = torch.unique(torch.cat(list(kept.values()), -1), dim=0, return_inverse=True)
    if 2 * len(distinct) > count:
        return None
    sums = {name: _summed_by(owner, len(distinct), flat[name]) for name in problem.upstream}
    copies = max(map(len, sums.values()), default=1)
    nothing = {name: torch.zeros_like(parts[0]) for name, parts in sums.items()}
    rows = dict(zip(kept, distinct.split([value.shape[-1] for value in kept.values()], -1), strict=True))
    return replace(
        problem,
        inputs={**problem.inputs, **{name: value.repeat(copies, 1) for name, value in rows.items()}},
        upstream={n: torch.cat(parts + [nothing[n]] * (copies - len(parts))) for n, parts in sums.items()},
        kept=Kept(),
    )


def _summed_by(owner: Tensor, groups: int, values: Tensor) -> list[Tensor]:
    """Returns the exact sum of the rows of each group, as several tensors that add up to it."""
    bits = 52 - len(values).bit_length()
    exponent = int(torch.frexp(values.abs().max()).exponent)
    parts: list[Tensor] = []
    while not parts or bool(values.any()):
        exponent = max(exponent - bits, -1074)
        unit = math.ldexp(1.0, exponent)
        digits = (values / unit).trunc()
        values = values - digits * unit
        parts.append(torch.zeros((groups, values.shape[-1]), dtype=torch.float64).index_add_(0, owner, digits) * unit)
    return parts
