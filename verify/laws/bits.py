"""Same bits: a setting that the kernel promises to agree on changes no bit of a result.

`same_bits=` names the settings: the number of rows, the place of a row, the layout of the operands, the configuration
of an autotuner. `same_bits_as=` names functions with the same bits. The message names both settings and the first
element that differs.

Details:

The law is tried without a profile, too. Rows are the indices of a dimension along which each output depends on operands
at the same index alone. The bits of outputs and of gradients of operands with rows are compared. Values have exponents
from 2^-20 to 2^20, or cancel, so that another order of a sum shows.

If each element of the results depends on the elements at its own place alone, 65,536 numbers (2,048 in Triton's
interpreter) are computed all at once, and seven at a time. Numbers that then have other bits fill a case of their own:
they are at every place, so also where a setting ends a vector. A kernel that Triton interprets computes them 127 at a
time: its blocks are whole arrays, so no vector of the processor ends in one, and a block that is not full is longer.

A promise about rows of a kernel that has none is broken.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice, product
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from verify.backends import Backend
from verify.cases import Case
from verify.cases.layouts import LAYOUTS
from verify.cases.strategies import CaseSpace
from verify.cases.values import CANCELLING, POOL, POOLED
from verify.errors import KernelError
from verify.laws import batch
from verify.laws.configuration import configurations
from verify.laws.law import Broken, Law, Subject, demand_same, plain_cases
from verify.laws.locality import Rows, contiguous, separate_rows
from verify.measure.call import Measured, run_contiguous, run_kernel, run_tensors, sent_all
from verify.truth.ulp import bits_of, raw, same_bits

Tensors = dict[str, Tensor]
AGAIN = "second call"  # a setting of `verify same`; the law of determinism demands its bits
# Rows of one case, where a kernel may split a sum otherwise. Triton's interpreter takes milliseconds for each.
MANY = {"interpreted": 65, "compiled": 4096}
_FILLS = ("spread", "alternating", CANCELLING)  # beside ordinary values
_LONG = 1 << 17  # product of the sizes of a case with many rows and long sums
_PIECE = 7  # fewer elements than a vector has
# Fewer than most blocks of Triton have. Its interpreter takes 15 ms for a call of 7 numbers as for one of 127: in
# pieces of 7, the search took nine tenths of a run of GELU.
_PART_OF_BLOCK = 127
_POOLED = {"interpreted": 1 << 11}  # numbers that are computed in pieces; else all of the pool
_HARD = 5  # numbers in a case of those that differ


def many_rows(backend: Backend) -> int:
    """Returns the number of rows of a case that has many."""
    return MANY.get(backend.triton, 257)


class Compared(NamedTuple):
    """Holds the results of a call in another setting, and the results whose bits they must have."""

    setting: str
    got: Tensors
    usual: str
    expected: Tensors


def _check(subject: Subject, case: Case) -> None:
    kernel = subject.kernel
    whole = run_kernel(kernel, case, subject.backend.device)
    about_rows = [name for name in kernel.same_bits if name in _BY_ROWS]
    all_rows = separate_rows(kernel, case) if about_rows else []
    if about_rows and not all_rows and min(case.dims, default=0) > 1:  # one index of a dimension is no choice of rows
        rule = "no dimension has indices that are independent of each other, so there are no rows to promise for"
        raise Broken(rule, case, {"promised": f"same_bits: {', '.join(about_rows)}"})
    for name in kernel.same_bits:
        for rows in all_rows if name in _BY_ROWS else [None]:
            for setting, got, usual, expected in compared(name, subject, case, whole, rows):
                facts = {"promised": f"same_bits: {name}"}
                facts |= {"classes": f"verify same {shlex.quote(subject.target)}"} if subject.target else {}
                rule = _RULES.get(name, f"it has other bits than {name[3:]}")
                demand_same(case, got, expected, rule, labels=(setting, usual), facts=facts)


def compared(name: str, subject: Subject, case: Case, whole: Measured, rows: Rows | None) -> Iterator[Compared]:
    """Yields the calls in the other values of one setting."""
    kernel, device = subject.kernel, subject.backend.device
    if rows is not None:
        yield from _BY_ROWS[name](subject, case, whole, rows)
    elif name == "layout":
        for operand, layout in product(kernel.operands, LAYOUTS):
            if operand not in kernel.contiguous and layout != "contiguous":
                other = msgspec.structs.replace(case, layouts={operand: layout})
                plain = run_contiguous(kernel, other, device).results  # an expanded tensor has other values
                yield Compared(f"{operand} {layout}", run_kernel(kernel, other, device).results, "contiguous", plain)
    elif name == "configuration":
        for facts, found in islice(configurations(subject, case), 1, None):
            yield Compared(facts["configuration"], found.results, "tuned", whole.results)
    elif name == AGAIN:
        yield Compared("second", run_kernel(kernel, case, device).results, "first", whole.results)
    else:
        other_kernel = replace(kernel, function=kernel.same_bits_as[name])
        inputs = sent_all(whole.inputs, device)
        yield Compared(
            name[3:], run_tensors(other_kernel, inputs, case.params, whole.upstream), kernel.name, whole.results
        )


def _by_count(subject: Subject, case: Case, whole: Measured, rows: Rows) -> Iterator[Compared]:
    for count in counts(subject, case, rows):
        got = _of_some(subject, case, whole, rows, slice(0, count))
        setting = f"{count} of {rows.count} {rows.dimension or 'rows'} alone"
        yield Compared(setting, got, "all at once", contiguous(rows.local(whole.results, slice(0, count))))


def counts(subject: Subject, case: Case, rows: Rows) -> list[int]:
    """Returns the numbers of rows that are tried: each up to 8, then around each power of two."""
    near = {(1 << power) + step for power in range(3, rows.count.bit_length()) for step in (-1, 0, 1)}
    some = sorted(each for each in {*range(1, 9), *near} if each < rows.count)
    return [each for each in some if rows.allowed(subject.kernel, case, each)]


def _of_some(subject: Subject, case: Case, whole: Measured, rows: Rows, some: slice) -> Tensors:
    """Returns the results of some rows alone."""
    inputs, upstream = rows.pick(whole.inputs, whole.upstream, some)
    return contiguous(rows.local(run_tensors(subject.kernel, inputs, case.params, upstream), slice(None)))


Class = tuple[list[int], list[Tensors]]  # numbers of rows, and the results of the largest for each input


def classes(
    subject: Subject,
    rows: Rows,
    given: Sequence[tuple[Case, Measured]],
    tried: Sequence[int],
    known: Sequence[Class] = (),
) -> list[Class]:
    """Divides numbers of rows into those whose common rows have the same bits, for all of the given inputs.

    `known` are the classes of other numbers, which are not tried again.
    """
    found = list(known)
    for count in sorted(tried, reverse=True):
        made = [one_nan(_of_some(subject, case, whole, rows, slice(0, count))) for case, whole in given]
        for at, (members, largest) in enumerate(found):
            common = slice(0, min(count, members[-1]))
            pairs = (
                [contiguous(rows.local(each, common)) for each in both] for both in zip(made, largest, strict=True)
            )
            if all(same_bits(list(one.values()), list(two.values())) for one, two in pairs):
                found[at] = sorted([*members, count]), made if count > members[-1] else largest
                break
        else:
            found.append(([count], made))
    return sorted(found, key=lambda each: each[0])


def one_nan(results: Tensors) -> Tensors:
    """Returns results in which every NaN has the same bits: their payloads do not count."""
    found = dict(results)
    for name, value in results.items():
        if (nan := value.float().isnan()).any():
            found[name] = value.clone(memory_format=torch.contiguous_format)
            raw(found[name])[nan] = raw(torch.full((), math.nan).to(value))  # as bits: float8 has no masks
    return found


def spans(counts: Sequence[int], tried: Sequence[int]) -> str:
    """Returns numbers as text, such as `1 to 3, 8`; numbers that follow each other among the tried ones are joined."""
    place = {each: at for at, each in enumerate(sorted(tried))}
    parts: list[list[int]] = []
    for each in counts:
        if parts and place[each] == place[parts[-1][1]] + 1:
            parts[-1][1] = each
        else:
            parts.append([each, each])
    return ", ".join(f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in parts)


def _by_position(subject: Subject, case: Case, whole: Measured, rows: Rows) -> Iterator[Compared]:
    expected = contiguous(rows.local(whole.results, slice(None)))
    for places in sorted({1, rows.count // 2}):
        inputs, upstream = rows.shift(whole.inputs, whole.upstream, places)
        results = rows.local(run_tensors(subject.kernel, inputs, case.params, upstream), slice(None))
        setting = f"each {rows.dimension or 'row'} {places} places on"
        yield Compared(setting, rows.rolled(results, -places), "in its place", expected)


def hard_cases(subject: Subject, case: Case) -> list[Case]:
    """Returns cases of many numbers, and of a few numbers at every place for which parts of a kernel have other bits.

    A processor computes whole vectors of elements and what remains with different code. They differ for some numbers
    alone, and few elements of a call remain, so random numbers seldom show it. An operand may be a row or a number for
    all elements, such as a weight. [] if a result needs other elements.
    """
    kernel, op = subject.kernel, subject.kernel.op
    every, rank = separate_rows(kernel, case), len(case.dims)
    operands, results = (of(case.dims, case.params) for of in (op.shapes, op.result_shapes))
    by_element = op.geometry.by_element or len(every) == rank
    own = [name for name in kernel.outputs if results[name] == case.dims]
    if not every or not by_element or len(own) < len(kernel.outputs) or case.dims not in operands.values():
        return []
    if any(case.dims[rank - len(shape) :] != shape for shape in operands.values()):
        return []
    count, size = _POOLED.get(subject.backend.triton, POOLED), _piece(subject, case)
    dims, piece = ((count,), size) if rank == 1 else ((-(-count // size), *(1,) * (rank - 2), size), 1)
    rows, pool = replace(every[0], count=dims[0]), _filled(case, POOL, dims)
    found = dict.fromkeys([POOL])
    if kernel.allows(dims) and rows.allowed(kernel, pool, piece):
        with suppress(KernelError):  # it takes no such sizes, which is for other laws to report
            found |= dict.fromkeys(_differing(subject, pool, rows, piece))
    return [_filled(case, fill, case.dims) for fill in found]


def _piece(subject: Subject, case: Case) -> int:
    """Returns how many numbers a call of a piece has."""
    before = subject.backend.launches()
    with suppress(KernelError):
        run_kernel(subject.kernel, case, subject.backend.device)
    return _PART_OF_BLOCK if subject.backend.launches() > before else _PIECE


def _filled(case: Case, fill: str, dims: tuple[int, ...]) -> Case:
    upstream, regime = fill if case.upstream else "", fill if case.regime else ""
    return msgspec.structs.replace(case, dims=dims, fill=fill, upstream=upstream, regime=regime)


def _differing(subject: Subject, pool: Case, rows: Rows, piece: int) -> Iterator[str]:
    """Yields recipes of numbers of a pool that have other bits in a call of few rows, or in another setting."""
    kernel, whole = subject.kernel, run_kernel(subject.kernel, pool, subject.backend.device)
    parts = [_of_some(subject, pool, whole, rows, slice(at, at + piece)) for at in range(0, rows.count, piece)]
    sides = [({name: torch.cat([part[name] for part in parts]) for name in parts[0]}, whole.results)]
    for name in ("layout", *kernel.same_bits_as):
        sides += [(each.got, each.expected) for each in compared(name, subject, pool, whole, None)]
    for got, expected in sides:
        if all(same_bits([expected[name]], [whole.results[name]]) for name in got):  # an expanded operand is another
            for name in parts[0]:
                differ = bits_of(one_nan(got)[name]) != bits_of(one_nan(expected)[name])
                if places := differ.reshape(-1).nonzero()[:, 0].tolist():
                    yield " ".join([POOL, *(str(each % POOLED) for each in places[:: -(-len(places) // _HARD)])])


_BY_ROWS = {"rows": _by_count, "position": _by_position}
_RULES = {
    "rows": "the number of rows changes bits of a row",
    "position": "the place of a row changes its bits",
    "layout": "the layout of an operand changes bits",
    "configuration": "the configuration of an autotuner changes bits",
}


def _examples(subject: Subject, chosen: CaseSpace) -> tuple[Case, ...]:
    """Returns the plainest case of each shape, cases whose sums depend on their order, and one of many long rows."""
    kernel, plain = subject.kernel, plain_cases(subject, chosen)
    found = [*plain, msgspec.structs.replace(plain[0], upstream="")]
    found += [msgspec.structs.replace(hard, dims=each.dims) for hard in hard_cases(subject, plain[0]) for each in plain]
    if not kernel.op.geometry.by_element:
        found += [msgspec.structs.replace(each, fill=fill, regime=fill) for each in plain for fill in _FILLS]
    for rows in separate_rows(kernel, plain[0]):
        larger = [rows.sized(kernel, each.dims, many_rows(subject.backend)) for each in plain]
        allowed = [dims for dims in larger if kernel.allows(dims) and (dims == larger[0] or math.prod(dims) <= _LONG)]
        many = [msgspec.structs.replace(plain[0], dims=dims) for dims in sorted(allowed, key=math.prod)[-1:]]
        found += (
            many if kernel.op.geometry.by_element else [*many, *(_filled(each, CANCELLING, each.dims) for each in many)]
        )
    return tuple(found)


LAWS: Sequence[Law] = (
    Law(
        name="same bits",
        summary="settings that the declaration names change no bit",
        space=batch.space_of_rows,
        check=_check,
        applies=lambda subject: (
            None if subject.kernel.same_bits else "the kernel promises the bits of no other setting"
        ),
        examples=_examples,
        share=0.5,
        nearest=True,
    ),
)
