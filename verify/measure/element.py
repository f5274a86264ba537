"""Describes one judged element in words: position, inputs, result, truth, and the case that repeats it.

Also makes the table of special values: results for zeros, subnormal, greatest, infinite and NaN inputs, one at a time.
Its case has ones everywhere. Each operand in turn gets each special value. The case is measured apart from those of the
figures, and each of its special elements is judged in exact arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from torch import Tensor

from verify.cases import Case, case_of, problem_of
from verify.cases.case import operand_dtype
from verify.declare.declaration import Kernel
from verify.measure.remote_call import Run
from verify.ops.op import Op, Problem
from verify.records.record import EXTREME, Origin, SpecialValue, Worst, number
from verify.truth import formats
from verify.truth.exact import Judged, digits, judge
from verify.truth.formats import Format
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


def decimal(fmt: Format, pattern: int) -> str:
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


SIZE = 256  # elements of the case; those without a special value are ones
DIGITS = 17  # digits of an exact answer; worst inputs have 30


def patterns(fmt: Format) -> list[int]:
    """Returns zero, the smallest and greatest subnormal, the greatest number and infinity, of both signs, and NaN."""
    positive = [0, 1, (1 << fmt.mantissa_bits) - 1, fmt.max_bits] + ([fmt.inf_bits] if fmt.has_inf else [])
    return [bits | sign for bits in positive for sign in (0, fmt.sign_bit)] + [fmt.nan_bits]


def special_case(kernel: Kernel, dtype: str) -> tuple[Case, int] | None:
    """Returns the case, and how many of its leading elements are special; None if a row decides, not an element."""
    op = kernel.op
    if not op.geometry.by_element or not kernel.allows((1, SIZE)):
        return None
    plain = case_of(kernel, dtype, dims=(1, SIZE), fill="ones", upstream="ones" if kernel.differentiable else "")
    widths = {name: shape[-1] for name, shape in op.shapes(plain.dims, op.resolve(kernel.params)).items()}
    edits: dict[str, dict[str, str]] = {}
    place = 0
    for operand in op.operands:
        if operand.name in kernel.absent:
            continue
        fmt = formats.named(operand_dtype(plain, operand))
        for half in range(0, widths[operand.name], SIZE):  # both halves of a packed operand
            for bits in patterns(fmt):
                if operand.domain is not None and not operand.domain.low <= fmt.to_float(bits) <= operand.domain.high:
                    continue
                edits.setdefault(operand.name, {})[str(half + place)] = f"{bits:0{fmt.bits // 4}x}"
                place += 1
    return (msgspec.structs.replace(plain, edits=edits), place) if place else None


def special_values(kernel: Kernel, target: str, dtype: str, run: Run) -> dict[str, list[SpecialValue]]:
    """Returns the table of each result; empty if there is none. Raises KernelError if the kernel refuses the case."""
    chosen = special_case(kernel, dtype)
    if chosen is None:
        return {}
    case, count = chosen
    measured = run(case)
    problem = problem_of(kernel.op, case, measured.inputs, measured.upstream, tuple(measured.results))
    table: dict[str, list[SpecialValue]] = {}
    inputs: list[dict[str, str]] = []
    for name, got in measured.results.items():  # an output comes first, so the inputs are known for every result
        where = [half + index for half in range(0, got.shape[-1], SIZE) for index in range(count)]
        fmt, limit, table[name] = formats.of(got.dtype), kernel.limit_of(dtype, EXTREME, name), []
        for index, point in zip(where, kernel.op.points(problem, name, where), strict=True):
            pattern = pattern_at(got, index)
            judged = judge(point, fmt, pattern, both=True, policy=kernel.policy)
            element = worst_element(kernel.op, problem, got, judged, Origin.here(target, case.to_json(), name, index))
            if name == kernel.outputs[0]:
                inputs.append(element.inputs)
            shown = dict(inputs[index % SIZE])
            if got.shape[-1] > SIZE:  # the gradient of a packed operand has two halves
                shown["of"] = f"{name}{1 + index // SIZE}"
            strict = kernel.policy.signed_zero == "strict" and judged.misrounded and pattern & ~fmt.sign_bit == 0
            wrong = limit is not None and (strict or not abs(judged.ulp) <= limit)
            origin = element.origin if wrong else None
            truth = digits(point, DIGITS)
            table[name].append(SpecialValue(shown, element.got, truth, "wrong" if wrong else "ok", origin))
    return table
