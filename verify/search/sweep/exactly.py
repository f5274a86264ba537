"""Judges single elements of a sweep by the exact routes. It finds them by place and needs no tensors of the sweep."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from verify.declare.declaration import Kernel
from verify.ops.op import Point, Problem
from verify.search.sweep.space import Space
from verify.search.sweep.subject import at_points, format_of, points_of
from verify.truth.exact import Judged, judge
from verify.truth.formats import torch_dtype


def halves(space: Space, result: str) -> int:
    """Returns the number of elements of a result for each point: two for a packed gradient, else one."""
    return 2 if space.shape == "packed pairs" and result.startswith("d") else 1


def problem_at(kernel: Kernel, space: Space, result: str, places: Sequence[int]) -> tuple[Problem, list[int]]:
    """Returns a problem with the points of some places, one per row, and the places' flat indices in its result."""
    found = points_of(space, result, list(places))
    inputs = at_points(space, kernel.op, [point for point, _ in found])
    shape = (len(places),) if space.shape == "unary" else (len(places), 1)
    smooth = [name for name in kernel.outputs if result.startswith("d") and name not in kernel.op.integers]
    dtypes = {name: torch_dtype(format_of(kernel, space, name)) for name in smooth}
    upstream: dict[str, Tensor] = {name: torch.ones(shape, dtype=dtypes[name]) for name in smooth}
    problem = Problem(inputs=inputs, params=kernel.op.resolve(kernel.params), upstream=upstream, results=(result,))
    width = halves(space, result)
    return problem, [row * width + half for row, (_, half) in enumerate(found)]


def points_at(kernel: Kernel, space: Space, result: str, places: Sequence[int]) -> list[Point]:
    """Returns the exact values of some places."""
    problem, indices = problem_at(kernel, space, result, places)
    return kernel.op.points(problem, result, indices)


def judge_at(
    kernel: Kernel, space: Space, result: str, places: Sequence[int], bits: Sequence[int], *, both: bool
) -> list[Judged]:
    """Returns the exact verdict on the kernel's bits at some places."""
    if not places:
        return []
    points, fmt = points_at(kernel, space, result, places), format_of(kernel, space, result)
    return [
        judge(point, fmt, fmt.unsigned(pattern), both=both, policy=kernel.policy)
        for point, pattern in zip(points, bits, strict=True)
    ]
