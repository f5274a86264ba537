"""Varlen equals padded: a sequence alone has the same results, and padding behind it changes none.

Alone each packed sequence has the bits that it has among others, or results within the kernel's limit. Padded
sequences have a number of places each (`integers={"lengths": "1 <= lengths <= s"}` beside `"b s d"`). Numbers behind
them change no bit.

Details:

The law writes large numbers of both signs behind each padded sequence. Results that do not depend on them in float64
must keep their bits.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from verify.cases import Case, inputs_of
from verify.cases.case import derive_all
from verify.cases.sizes import sizes_of
from verify.cases.strategies import CaseSpace
from verify.cases.values import inside
from verify.laws.accuracy import broken_by
from verify.laws.law import Inputs, Law, Subject, demand_same, plain_cases, plain_space, said_of
from verify.laws.locality import agree, filled_like, growing, reference
from verify.measure.call import Measured, run_kernel, run_tensors
from verify.ops.graph.shapes import NamedDims, Range
from verify.ops.op import Op
from verify.truth.ulp import same_bits

_LARGE = 2.0**14  # every format of 16 bits has it


@dataclass(frozen=True)
class _Sequences:
    """How a declaration tells sequences apart: the operand of their lengths, its dimension, and that of tokens."""

    lengths: str
    many: str
    tokens: str
    packed: bool


def _sequences(op: Op) -> _Sequences | None:
    geometry = op.geometry
    if not isinstance(geometry, NamedDims) or geometry.examples:
        return None
    for operand in op.operands:
        shape, held = geometry.table[operand.name], operand.range
        if not isinstance(held, Range) or operand.derive is not None or len(shape) != 1:
            continue
        packed = held.structure == "sum"
        end = held.total if packed else held.high if not held.structure else None
        words = {each.id for each in ast.walk(end) if isinstance(each, ast.Name)} if end is not None else set()
        if len(words) != 1 or words == {shape[0]} or shape[0] not in geometry.dims:
            continue
        found = _Sequences(operand.name, str(shape[0]), words.pop(), packed)
        padded = (each for each in op.operands if each.range is None and each.derive is None)
        if packed or any({found.many, found.tokens} <= set(geometry.table[each.name]) for each in padded):
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
        return f"{said_of(subject)} has no operand that holds the lengths of sequences"
    tried = plain_cases(subject, _space(subject))
    if found.packed and not any(_alone(op, case, inputs_of(op, case, "cpu"), found) for case in tried):
        return "a sequence alone has another result than among others, or the declaration does not allow it"
    if not found.packed and not any(_kept(op, case, found) for case in tried):
        return "every result depends on what lies behind the sequences"
    return None


# -- packed ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Alone:
    """One sequence of a packed case: its case, its operands, and the part of each tensor that belongs to it."""

    case: Case
    inputs: Inputs
    part: Callable[[str, Tensor], Tensor]


def _alone(op: Op, case: Case, inputs: Inputs, found: _Sequences) -> list[_Alone]:
    """Each sequence alone that the declaration allows. Empty if float64 gives one of them other results then."""
    whole, lengths, made, start = reference(op, inputs), inputs[found.lengths], list[_Alone](), 0
    axes = {dimension: growing(op, case, dimension) for dimension in (found.tokens, found.many)}
    if lengths is None or any(sum(len(some.get(name, ())) for some in axes.values()) != 1 for name in op.outputs):
        return []
    for number, length in enumerate(lengths.tolist()):
        sizes = {found.tokens: (start, length), found.many: (number, 1)}
        start += length

        def part(name: str, value: Tensor, sizes: dict[str, tuple[int, int]] = sizes) -> Tensor:
            for dimension, some in axes.items():
                for axis in some[name]:
                    value = value.narrow(axis, *sizes[dimension])
            return value.contiguous()

        named = zip(op.geometry.dims, case.dims, strict=True)
        dims = tuple(sizes[name][1] if name in sizes else size for name, size in named)
        if not length or not op.geometry.allows(dims):
            continue
        own = {each.name for each in op.operands if each.derive is None}
        given = {n: None if v is None else part(n, v) for n, v in inputs.items() if n in own}
        each = msgspec.structs.replace(case, dims=dims)
        given = derive_all(op, each, {name: given.get(name) for name in inputs}, lengths.device)
        made.append(_Alone(each, given, part))
        if not agree({name: part(name, value) for name, value in whole.items()}, reference(op, given)):
            return []
    return made


def _check_packed(subject: Subject, case: Case, found: _Sequences) -> None:
    kernel, op = subject.kernel, subject.kernel.op
    whole = run_kernel(kernel, msgspec.structs.replace(case, upstream=""), subject.backend.device)
    for number, alone in enumerate(_alone(op, case, dict(whole.inputs), found)):
        results = run_tensors(kernel, alone.inputs, case.params, {})
        if same_bits([results[name] for name in op.outputs], [alone.part(n, whole.results[n]) for n in op.outputs]):
            continue
        if broken := broken_by(subject, alone.case, Measured(alone.inputs, {}, results)):
            facts = {"sequence": str(number), **broken.facts}
            raise broken.restated("a sequence alone is beyond the limit", case, facts)


# -- padded ----------------------------------------------------------------------------------------------


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


def _check_padded(subject: Subject, case: Case, found: _Sequences) -> None:
    kernel, op, device = subject.kernel, subject.kernel.op, subject.backend.device
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


def _check(subject: Subject, case: Case) -> None:
    found = _sequences(subject.kernel.op)
    assert found is not None
    (_check_packed if found.packed else _check_padded)(subject, case, found)


LAWS: Sequence[Law] = (
    Law(
        name="varlen equals padded",
        summary="a sequence alone has the same results, and padding behind it changes none",
        space=_space,
        check=_check,
        applies=_reason,
        examples=plain_cases,
        nearest=True,
        share=0.5,
    ),
)
