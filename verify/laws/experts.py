"""Permutation of experts: experts in another order, with their columns of the gate, give the same results.

Results must have the same bits or be within the kernel's limit, gradients included.

Details:

An expert is an index of a named dimension. One operand has a matrix for each expert, and this is its first dimension.
Another one has a score for each, or numbers of experts. No result has the dimension, and the function in float64 does
not depend on the order.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verify.cases import Case, inputs_of
from verify.cases.case import derive_all
from verify.cases.sizes import sizes_of
from verify.cases.strategies import CaseSpace
from verify.laws.accuracy import broken_by
from verify.laws.law import Inputs, Law, Subject, plain_cases, plain_space, said_of
from verify.laws.locality import agree, growing, reference
from verify.measure.call import Measured, run_kernel, run_tensors
from verify.ops.graph.shapes import NamedDims, Range
from verify.ops.op import Op
from verify.truth.ulp import same_bits

_FEWEST = 3


@dataclass(frozen=True)
class _Experts:
    """A dimension that counts experts: its axis in operands, and the operands that hold numbers of experts."""

    dimension: str
    axes: Mapping[str, int]
    numbers: tuple[str, ...]

    def ordered(self, op: Op, case: Case, inputs: Inputs, order: Tensor) -> Inputs:
        """Returns the operands with experts in another order."""
        changed, place = dict(inputs), order.argsort()
        for name, axis in self.axes.items():
            value = inputs[name]
            changed[name] = None if value is None else value.index_select(axis, order.to(value.device))
        for name in self.numbers:
            value = inputs[name]
            changed[name] = None if value is None else place.to(value.device)[value]
        device = next(value.device for value in inputs.values() if value is not None)
        return derive_all(op, case, changed, device) if op.derived else changed


def _candidates(op: Op) -> list[_Experts]:
    geometry, found = op.geometry, []
    if not isinstance(geometry, NamedDims) or geometry.examples:
        return []
    whole = [each for each in op.operands if each.derive is None]
    for dimension in geometry.dims:
        axes = {o.name: geometry.table[o.name].index(dimension) for o in whole if dimension in geometry.table[o.name]}
        inside = {word for shape in geometry.table.values() for word in shape if isinstance(word, str)}
        ranges = {o.name: o.range for o in whole if isinstance(o.range, Range)}
        numbers = tuple(
            name
            for name, each in ranges.items()
            if not each.structure and ast.unparse(each.low) == "0" and ast.unparse(each.high) == dimension
        )
        fixed = {name for each in ranges.values() for name in each.fixed_by}
        matrices = any(axis == 0 and len(geometry.table[name]) >= 3 for name, axis in axes.items())
        mixed = any(dimension in word and word != dimension for word in inside - set(geometry.dims))
        if matrices and len(axes) + len(numbers) >= 2 and dimension not in fixed and not mixed:
            found.append(_Experts(dimension, axes, numbers))
    return found


def _orders(count: int) -> tuple[Tensor, ...]:
    ascending = torch.arange(count)
    return ascending.flip(0), ascending.roll(1)


def _experts(op: Op, case: Case) -> list[_Experts]:
    """The dimensions that count experts, at the sizes of a case."""
    found = []
    for each in _candidates(op):
        place, longer = op.geometry.dims.index(each.dimension), growing(op, case, each.dimension)
        if not longer or any(longer[name] for name in op.outputs) or case.dims[place] < _FEWEST:
            continue
        given = inputs_of(op, case, "cpu")
        whole = reference(op, given)
        orders = _orders(case.dims[place])
        if all(agree(whole, reference(op, each.ordered(op, case, given, order))) for order in orders):
            found.append(each)
    return found


def _space(subject: Subject) -> CaseSpace:
    """The plainest sizes, and some with five experts and as many tokens as the declaration allows up to 17."""
    op, known = subject.kernel.op, sizes_of(subject.kernel.op, 1 << 12)
    shapes = [dims for dims in known[:12] if max(dims) >= _FEWEST][:3]
    for each in _candidates(op):
        dims = known[0]
        for place, name in enumerate(op.geometry.dims):
            changed = (*dims[:place], 5 if name == each.dimension else 17, *dims[place + 1 :])
            dims = changed if op.geometry.allows(changed) else dims
        shapes.append(dims)
    return plain_space(subject, shapes)


def _reason(subject: Subject) -> str | None:
    op = subject.kernel.op
    if not _candidates(op):
        return f"{said_of(subject)} has no dimension that counts matrices and their scores"
    if not any(_experts(op, case) for case in plain_cases(subject, _space(subject))):
        return "the function depends on the order of every dimension that counts matrices"
    return None


def _check(subject: Subject, case: Case) -> None:
    kernel, op = subject.kernel, subject.kernel.op
    found = _experts(op, case)
    whole = run_kernel(kernel, case, subject.backend.device) if found else None
    for each in found:
        assert whole is not None
        for order in _orders(case.dims[op.geometry.dims.index(each.dimension)]):
            inputs = each.ordered(op, case, dict(whole.inputs), order)
            results = run_tensors(kernel, inputs, case.params, whole.upstream)
            pairs = [results[name] for name in op.outputs], [whole.results[name] for name in op.outputs]
            if not whole.upstream and same_bits(*pairs):
                continue
            if broken := broken_by(subject, case, Measured(inputs, whole.upstream, results)):
                facts = {"dimension": each.dimension, "order": str(order.tolist()), **broken.facts}
                raise broken.restated("beyond the limit with experts in another order", case, facts)


LAWS: Sequence[Law] = (
    Law(
        name="permutation of experts",
        summary="experts in another order, with their scores, give the same results",
        space=_space,
        check=_check,
        applies=_reason,
        examples=plain_cases,
        nearest=True,
        share=0.5,
    ),
)
