"""Finds steps that kernels compute in another form than the definition, whose noise is that of both forms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from verify.ops.graph.elementwise import REMAINS, Map
from verify.ops.graph.reducing import Contract, Reduce
from verify.ops.graph.rounding import Rounding, of_sum
from verify.ops.graph.selecting import AtOrder
from verify.ops.graph.steps import Move, Plain, Step, moved_from


def weighted_sums(steps: Sequence[Step]) -> set[int]:
    """Returns the ids of the steps from inner products to a weighted sum of them.

    These are the inner products, the steps that move them, the multiplication by weights and the sum.
    """
    found: set[int] = set()
    for step in steps:
        if not (isinstance(step, Reduce) and step.function == "sum" and step.dims):
            continue
        product = step.inputs[0]
        if isinstance(product, Map) and product.function == "multiply":
            for factor in product.inputs:
                way = moved_from(factor)
                if isinstance(way[-1], Contract):
                    found.update(map(id, (step, product, *way)))
                    break
    return found


def softmax_gradient(step: Map) -> tuple[Step, Reduce] | None:
    """Returns y and the sum of a step a - y sum(a), which is the gradient of a softmax or of its logarithm."""
    if step.function != "subtract" or not isinstance(product := step.inputs[1], Map) or product.function != "multiply":
        return None
    for place, factor in enumerate(product.inputs):
        total = moved_from(factor)[-1]
        if isinstance(total, Reduce) and total.function == "sum" and total.inputs[0] is step.inputs[0]:
            return product.inputs[1 - place], total
    return None


def of_softmax_gradient(
    value: Tensor,
    given: Sequence[Tensor],
    deviation: Tensor | float | None,
    y: Tensor,
    dims: tuple[int, ...],
    format: Rounding,
) -> Tensor:
    """Adds to the deviation of a softmax's gradient a - y sum(a) the rounding of its sum, at the largest element.

    A softmax by hand subtracts the maximum, whose gradient is minus the sum over the row. The sum is 0 but for the
    roundings of its terms.
    """
    own = torch.as_tensor(0.0 if deviation is None else deviation)
    own = value.abs() * own if isinstance(deviation, float) else own
    a, b = given
    squares, count = (a * a + b * b).sum(dims, True), torch.tensor(float(math.prod(y.shape[dim] for dim in dims)))
    total = of_sum(a.sum(dims, True), squares, count.to(y.device), format)
    return torch.where(y == y.amax(dims, True), torch.hypot(own, total).nan_to_num(0.0, 0.0, 0.0), own)


def less_largest(step: Step) -> bool:
    """True if a step subtracts the largest number of a row from its numbers, as a softmax does."""
    if not isinstance(step, Map) or step.function != "subtract":
        return False
    largest = moved_from(step.inputs[1])[-1]
    if not isinstance(largest, Reduce) or largest.function != "amax":
        return False
    return moved_from(largest.inputs[0])[-1] is moved_from(step.inputs[0])[-1]


def bends(step: Step) -> bool:
    """True if the slope of a step jumps, as that of a rounding to a format does."""
    found = step.function if isinstance(step, Map) and step.real else ""
    return found in ("maximum", "minimum", "magnitude") or found.startswith("to ")


def constant_divisor(step: Step) -> Plain | None:
    """Returns the divisor of a remainder if it is a constant, such as 0.1."""
    divisor = step.inputs[1] if isinstance(step, Map) and step.function in REMAINS and step.real else None
    return divisor if isinstance(divisor, Plain) and not divisor.of else None


def origins(step: Step) -> list[Step]:
    """Returns the steps that make the numbers of a step: operands, and the steps before it that round.

    The steps between only move or select numbers, as max(x, 0) does.
    """
    found: dict[int, Step] = {}
    ahead, seen = [step], set[int]()
    while ahead:
        each = ahead.pop()
        if id(each) in seen or not each.real or not each.on_operands:
            continue
        seen.add(id(each))
        extreme = isinstance(each, Reduce) and each.function in ("amax", "amin")
        if isinstance(each, Move | AtOrder) or extreme or (isinstance(each, Map) and each.function in _SELECTS):
            ahead += each.inputs
        else:
            found[id(each)] = each
    return list(found.values())


_SELECTS = ("maximum", "minimum", "negative", "magnitude", "where")


def only_tests(step: Step) -> bool:
    """True if a step only tests numbers, so that no kernel decides otherwise."""
    return isinstance(step, Map) and step.function in ("isnan", "isinf")
