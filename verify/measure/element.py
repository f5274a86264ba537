"""Describes one judged element in words: position, inputs, result, truth, and the case that repeats it.

Also makes the table of special values: results for zeros, subnormal, greatest, infinite and NaN inputs, one at a time.
Its case has ones everywhere. Each operand in turn gets each special value. The case is measured apart from those of the
figures, and each of its special elements is judged in exact arithmetic.
"""

import math
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from torch import Tensor

from verify.ops.op import Op, Problem
from verify.records.record import Origin, Worst, number
from verify.truth import formats
from verify.truth.exact import Judged, digits
from verify.truth.ulp import pattern_at

FEW = 3  # at most this many elements of a row are shown


@dataclass(frozen=True)
class WholeResult:
    """Holds a result of which only some elements are judged. `places` are their flat indices in it, in their order."""

    problem: Problem | None  # None: the judged elements have the inputs that belong to them
    shape: tuple[int, ...]
    places: Any
    digest: str  # digest of all elements


def worst_element(
    op: Op,
    problem: Problem,
    got: Tensor,
    judged: Judged,
    origin: Origin,
    scaled: float | None = None,
    whole: WholeResult | None = None,
) -> Worst:
    """Returns the record of the element of a result that `origin` names."""
    result, index, fmt = origin.result, origin.index, formats.of(got.dtype)
    pattern = pattern_at(got, index)
    point = op.points(problem, result, [index])[0]
    shape = tuple(got.shape)
    position = _position(index, shape)
    near = problem, result, position, shape
    if whole is not None:
        origin = msgspec.structs.replace(origin, index=int(whole.places[index]))
        position = _position(origin.index, whole.shape)
        near = near if whole.problem is None else (whole.problem, result, position, whole.shape)
    shown, truth = decimal(fmt, pattern), digits(point, known=judged.enclosure)
    if result in op.integers:
        shown, truth = shown.removesuffix(".0"), truth.removesuffix(".0")
    return Worst(
        index=position,
        inputs=_neighbours(op, *near),
        got=shown,
        got_hex=fmt.hex(pattern),
        truth=truth,
        ulp=number(judged.ulp),
        scaled_ulp=None if scaled is None else number(scaled),
        origin=origin,
    )


def _position(index: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(int, np.unravel_index(index, shape)))


def by_accuracy(worst: Worst | None) -> Worst | None:
    """Returns the element as one that the law of accuracy shows. A call of the kernel alone does not show it."""
    if worst is None:
        return None
    return msgspec.structs.replace(worst, origin=Origin.here(worst.origin.target, worst.origin.case, law="accuracy"))


def decimal(fmt: formats.Format, pattern: int) -> str:
    """Returns the shortest decimal that reads back as the same number of its format."""
    value = fmt.to_float(pattern)
    if fmt.name == "float64" or not math.isfinite(value):
        return repr(value)
    for digits_ in range(1, 18):
        text = f"{value:.{digits_}g}"
        if fmt.from_float(float(text)) == pattern:
            return text
    return repr(value)


def _neighbours(
    op: Op, problem: Problem, result: str, position: tuple[int, ...], shape: tuple[int, ...]
) -> dict[str, str]:
    """Returns the input elements that belong to an element of a result, as text by operand.

    Shows the element at the same position, of the same column of a vector, or of both halves of a packed operand. Of a
    row that is reduced to one number or has another length, shows the first elements. If the result is a single number,
    shows the first elements of every operand.
    """
    found: dict[str, str] = {}

    def show(label: str, tensor: Tensor, where: tuple[int, ...]) -> None:
        held = tensor[where].reshape(-1)
        if label in meant:
            shown = [f"{value!r}" for value in held[:FEW].tolist()]
        elif tensor.is_floating_point():
            fmt = formats.of(tensor.dtype)
            patterns = [pattern_at(held, at) for at in range(min(held.numel(), FEW))]
            shown = [f"{decimal(fmt, pattern)} ({fmt.hex(pattern)})" for pattern in patterns]
        else:
            shown = [str(value) for value in held[:FEW].tolist()]
        found[label] = ", ".join(shown + ["..."] * (held.numel() > FEW))

    tensors = {name: value for name, value in problem.inputs.items() if value is not None}
    meant = {each.name: each.shown(tensors) for each in op.operands if each.shown is not None}
    tensors = meant | {name: value for name, value in tensors.items() if name not in meant}
    if result.startswith("d"):
        tensors |= {"d" + name: value for name, value in problem.upstream.items()}
    row = op.geometry.named and result not in op.gradients  # the shape of a sum over rows may equal the shape of a row
    for name, tensor in tensors.items():
        same_lead = tensor.ndim == len(shape) and tuple(tensor.shape[:-1]) == shape[:-1]
        if tuple(tensor.shape) == shape and not op.geometry.multiplies:
            show(name, tensor, position)
        elif tensor.ndim == 1 and shape and tensor.shape[0] == shape[-1]:
            show(name, tensor, position[-1:])
        elif row and tensor.ndim == len(shape) + 1 and tuple(tensor.shape[:-1]) == shape and tensor.shape[-1]:
            show(name, tensor, position)
        elif row and tensor.numel() and (same_lead or not shape):
            show(name, tensor, position[:-1])
        elif same_lead and op.geometry.by_element and tensor.ndim:
            width = min(tensor.shape[-1], shape[-1])
            column = position[-1] % width
            if tensor.shape[-1] == 2 * width:
                show(f"{name}1", tensor, (*position[:-1], column))
                show(f"{name}2", tensor, (*position[:-1], column + width))
            else:
                show(name, tensor, (*position[:-1], column))
        elif name in meant and tensor.ndim == 2 and shape and tensor.shape[0] == shape[-1]:
            show(name, tensor, position[-1:])  # the row of a product's second factor
    return found
