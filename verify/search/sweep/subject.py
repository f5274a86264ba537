"""Makes the inputs of a slab of points and runs the kernel on them. In a sweep, a kernel takes and returns tensors.

Single elements are found by place and need no tensors of the sweep.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from verify.declare.declaration import Kernel
from verify.measure.call import Unchanged, call_tensors, gradients_of
from verify.measure.form import Form, check_output
from verify.ops.op import Op, Point, Problem
from verify.search.sweep.space import PAIR_BITS, Space
from verify.truth.exact import Judged, judge
from verify.truth.formats import Format, named, torch_dtype
from verify.truth.ulp import from_bits

_SIDE = 1 << PAIR_BITS


def gate_of(op: Op) -> str:
    """Returns the operand whose keys number the rows of a pair space. A packed op has only one operand."""
    return op.operands[0].name if len(op.operands) == 1 else op.landmarks.of


def format_of(kernel: Kernel, space: Space, result: str) -> Format:
    """Returns the format in which a result is judged: that of the inputs unless the declaration names another one."""
    return named(kernel.result_dtype(space.dtype, result) or space.dtype)


def patterns_at(keys: Tensor, fmt: Format) -> Tensor:
    """Does `space.bits_of_key` for a tensor of keys."""
    return torch.where(keys >= fmt.sign_bit, keys - fmt.sign_bit, (fmt.sign_bit - 1 - keys) | fmt.sign_bit)


def _operands(space: Space, op: Op, deciding: Tensor, other: Tensor | None) -> dict[str, Tensor | None]:
    if other is None:
        return {op.operands[0].name: deciding}
    if space.shape == "packed pairs":
        return {op.operands[0].name: torch.cat([other, deciding], -1)}
    return {operand.name: deciding if operand.name == gate_of(op) else other for operand in op.operands}


def _consecutive(first: int, last: int, fmt: Format, device: torch.device | str) -> Tensor:
    """Returns the numbers at the keys first..last, written in one pass.

    As signed integers, patterns are -1 - key for numbers with a minus sign, and count up from 0 for the others.
    """
    zero, kind = fmt.sign_bit, getattr(torch, f"int{fmt.bits}")
    parts = [
        torch.arange(-1 - first, -1 - min(last, zero), -1, dtype=kind, device=device) if first < zero else None,
        torch.arange(max(first, zero) - zero, last - zero, dtype=kind, device=device) if last > zero else None,
    ]
    there = [part for part in parts if part is not None]
    return (there[0] if len(there) == 1 else torch.cat(there)).view(torch_dtype(fmt))


def make(space: Space, op: Op, first: int, last: int, device: torch.device | str) -> dict[str, Tensor | None]:
    """Returns the operands of the points first..last. Of pairs it makes whole rows, one for each key of the gate."""
    fmt = space.format
    if space.shape == "unary":
        return _operands(space, op, _consecutive(first, last, fmt, device), None)
    rows = _consecutive(first // _SIDE, last // _SIDE, fmt, device)
    columns = _consecutive(0, _SIDE, fmt, device)
    shape = (rows.numel(), _SIDE)
    deciding, other = rows[:, None].expand(shape), columns[None, :].expand(shape)
    return _operands(space, op, deciding.contiguous(), other.contiguous())


def points_of(space: Space, result: str, places: list[int]) -> list[tuple[int, int]]:
    """Returns the point of each place of a result, and the half (0 or 1) of a packed gradient in which it lies."""
    if not (space.shape == "packed pairs" and result.startswith("d")):
        return [(place, 0) for place in places]
    return [(place // (2 * _SIDE) * _SIDE + place % _SIDE, place // _SIDE % 2) for place in places]


def at_points(space: Space, op: Op, points: list[int]) -> dict[str, Tensor | None]:
    """Returns the operands of single points on the CPU, one per row."""
    keys, fmt = torch.tensor(points, dtype=torch.int64), space.format

    def numbers(keys: Tensor) -> Tensor:
        return from_bits(patterns_at(keys, fmt), fmt)

    if space.shape == "unary":
        return _operands(space, op, numbers(keys), None)
    return _operands(space, op, numbers(keys // _SIDE)[:, None], numbers(keys % _SIDE)[:, None])


def run(kernel: Kernel, space: Space, inputs: dict[str, Tensor | None]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Returns the requested results for some inputs, and the names of gradients that the kernel lacks.

    Gradients are computed for dy = 1.
    """
    wanted = [name for name in space.results if name.startswith("d")]
    graph = call_tensors(kernel, inputs, kernel.params, differentiate=bool(wanted))
    deciding = inputs[gate_of(kernel.op)]
    assert deciding is not None
    shape = tuple(deciding.shape)
    if space.shape == "packed pairs":
        shape = (*shape[:-1], shape[-1] // 2)
    for name, tensor in graph.values.items():
        dtype = torch_dtype(format_of(kernel, space, name))
        check_output(kernel.name, name, tensor, Form(shape, dtype, deciding.device, "here"))
    results = {name: tensor for name, tensor in graph.values.items() if name in space.results}
    missing: tuple[str, ...] = ()
    if wanted:
        smooth = {name: tensor for name, tensor in graph.values.items() if name not in kernel.op.integers}
        upstream = {name: torch.ones_like(tensor) for name, tensor in smooth.items()}
        found = gradients_of(kernel, graph, upstream)
        results |= {name: tensor for name, tensor in found.items() if name in wanted}
        missing = tuple(name for name in wanted if name not in found)
    return results, missing


def check_untouched(kernel: Kernel, before: dict[str, Tensor | None], after: dict[str, Tensor | None]) -> None:
    """Raises KernelError if the kernel changed its inputs."""
    unchanged = Unchanged()
    unchanged.watch_inputs(kernel.name, before, after)
    unchanged.demand()


# -- single elements, judged by the exact routes ----------------------------------------------------------


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
