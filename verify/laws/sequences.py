"""Padding: numbers behind a sequence change no bit.

Padded sequences have a number of places each (`integers={"lengths": "1 <= lengths <= s"}` beside `"b s d"`).

Details:

The law writes large numbers of both signs behind each padded sequence. Results that do not depend on them in float64
must keep their bits.
"""

import ast
from dataclasses import dataclass

import torch
from torch import Tensor

from verify.cases import Case, inputs_of
from verify.cases.case import derive_all
from verify.cases.sizes import sizes_of
from verify.cases.strategies import CaseSpace
from verify.cases.values import inside
from verify.laws.law import Inputs, Subject, demand_same, law, plain_cases, plain_space, said_of
from verify.laws.locality import filled_like, reference
from verify.measure.call import run_tensors
from verify.ops.graph.shapes import NamedDims, Range
from verify.ops.op import Op

_LARGE = 2.0**14  # every format of 16 bits has it


@dataclass(frozen=True)
class _Sequences:
    """How a declaration tells padded sequences apart: the operand of lengths, its dimension, and that of tokens."""

    lengths: str
    many: str
    tokens: str


def _sequences(op: Op) -> _Sequences | None:
    geometry = op.geometry
    if not isinstance(geometry, NamedDims) or geometry.examples:
        return None
    for operand in op.operands:
        shape, held = geometry.table[operand.name], operand.range
        if not isinstance(held, Range) or held.structure or operand.derive is not None or len(shape) != 1:
            continue
        words = {each.id for each in ast.walk(held.high) if isinstance(each, ast.Name)}
        if len(words) != 1 or words == {shape[0]} or shape[0] not in geometry.dims:
            continue
        found = _Sequences(operand.name, str(shape[0]), words.pop())
        padded = (each for each in op.operands if each.range is None and each.derive is None)
        if any({found.many, found.tokens} <= set(geometry.table[each.name]) for each in padded):
            return found
    return None


def _space(subject: Subject) -> CaseSpace:
    op, found = subject.kernel.op, _sequences(subject.kernel.op)
    shapes = sizes_of(op, 1 << 12)[:12]
    if found is not None:
        place = op.geometry.dims.index(found.many)
        shapes = tuple(dims for dims in shapes if dims[place] > 1)[:5] or shapes[:1]
    return plain_space(subject, shapes)


def _reason(subject: Subject) -> str | None:
    op, found = subject.kernel.op, _sequences(subject.kernel.op)
    if found is None:
        return f"{said_of(subject)} has no operand that holds the lengths of padded sequences"
    if not any(_kept(op, case, found) for case in plain_cases(subject, _space(subject))):
        return "every result depends on what lies behind the sequences"
    return None


def _shortened(op: Op, case: Case, inputs: Inputs, found: _Sequences) -> Inputs:
    """The operands with at least one place behind each sequence, where the declaration allows that."""
    lengths, held = inputs[found.lengths], next(each.range for each in op.operands if each.name == found.lengths)
    assert lengths is not None and held is not None
    most = max(case.dims[op.geometry.dims.index(found.tokens)] - 1, held(case.dims)[0])
    changed = {**inputs, found.lengths: lengths.clamp(max=most)}
    return derive_all(op, case, changed, lengths.device) if op.derived else changed


def _padded(op: Op, case: Case, inputs: Inputs, found: _Sequences, value: float) -> Inputs:
    """The operands with a number in every place behind a sequence."""
    geometry, lengths, changed = op.geometry, inputs[found.lengths], dict(inputs)
    assert isinstance(geometry, NamedDims) and lengths is not None
    size = case.dims[geometry.dims.index(found.tokens)]
    behind = torch.arange(size, device=lengths.device) >= lengths[:, None]
    for operand in op.operands:
        shape, held = geometry.table[operand.name], inputs[operand.name]
        if held is None or not held.is_floating_point() or not {found.many, found.tokens} <= set(shape):
            continue
        number = filled_like(held, value)
        number = number if operand.domain is None else inside(number, operand.domain)
        many, tokens = shape.index(found.many), shape.index(found.tokens)
        mask = behind if many < tokens else behind.mT
        mask = mask.reshape([length if axis in (many, tokens) else 1 for axis, length in enumerate(held.shape)])
        changed[operand.name] = torch.where(mask, number, held)
    return derive_all(op, case, changed, lengths.device) if op.derived else changed


def _kept(op: Op, case: Case, found: _Sequences) -> dict[str, Tensor]:
    """Maps outputs to the elements that have the same bits in float64 with and without padding; empty if none has."""
    given = _shortened(op, case, inputs_of(op, case, "cpu"), found)
    lengths = given[found.lengths]
    if lengths is None or not bool((lengths < case.dims[op.geometry.dims.index(found.tokens)]).all()):
        return {}
    before = reference(op, given)
    others = [reference(op, _padded(op, case, given, found, value)) for value in (_LARGE, -_LARGE)]
    kept = {name: (before[name] == others[0][name]) & (before[name] == others[1][name]) for name in op.outputs}
    return kept if any(bool(mask.any()) for mask in kept.values()) else {}


@law("padding", _space, applies=_reason, examples=plain_cases, nearest=True, share=0.5)
def padding(subject: Subject, case: Case) -> None:
    """Numbers behind a padded sequence change no result."""
    kernel, op, device = subject.kernel, subject.kernel.op, subject.backend.device
    found = _sequences(op)
    assert found is not None
    kept = {name: mask.to(device) for name, mask in _kept(op, case, found).items()}
    if not kept:
        return
    given = _shortened(op, case, inputs_of(op, case, device), found)
    whole = run_tensors(kernel, given, case.params, {})
    expected = {name: whole[name] for name in kept}
    for value in (_LARGE, -_LARGE):
        changed = run_tensors(kernel, _padded(op, case, given, found, value), case.params, {})
        got = {name: torch.where(kept[name], changed[name], result) for name, result in expected.items()}
        rule = "a result depends on what lies behind its sequence"
        demand_same(case, got, expected, rule, labels=(f"{value:g} behind sequences", "as drawn"))


LAWS = (padding,)
