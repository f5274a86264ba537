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

Results of 16 bits hide the last bits of what was computed, unless a border of rounding lies between: the middle of two
neighbours of the format. So in cases at borders one element of each row is replaced by one of another row, by which
the exact results of the row come nearest to such middles. Of 250 rows of 129 numbers one has an element within one ULP
of float32, which by chance one element of 32,768 has.

A promise about rows of a kernel that has none is broken.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice, product
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from verify.cases import Case
from verify.cases.case import spell
from verify.cases.layouts import LAYOUTS, lay_out
from verify.cases.sizes import work_of
from verify.cases.strategies import CaseSpace
from verify.cases.values import CANCELLING, POOL, POOLED, Stream
from verify.declare.standin import baseline_of
from verify.errors import KernelError
from verify.laws import batch
from verify.laws.configuration import configurations
from verify.laws.law import Broken, Law, Subject, demand_same, plain_case, plain_cases
from verify.laws.locality import Rows, contiguous, separate_rows
from verify.measure.call import Measured, run_contiguous, run_kernel, run_tensors, sent_all
from verify.truth import formats
from verify.truth.ulp import bits_of, raw, same_bits

Tensors = dict[str, Tensor]
AGAIN = "second call"  # a setting of `verify same`; the law of determinism demands its bits
# Rows of one case, where a kernel may split a sum otherwise. Triton's interpreter takes milliseconds for each.
_MANY = {"interpreted": 65, "compiled": 4096}
FILLS = ("randn", "spread", CANCELLING, "alternating", "mean 1e3")
_AT_BORDERS = 3  # cases that are brought to borders of rounding, too
_OTHERS = 33  # size of a second dimension of rows
_WIDEST = {"interpreted": 129}  # of other dimensions; 1,031 elsewhere
_WORK = {"small": 1 << 22, "large": 1 << 32}  # numbers in a program of a case with many rows and long sums
_PIECE = 7  # fewer elements than a vector has
# Fewer than most blocks of Triton have. Its interpreter takes 15 ms for a call of 7 numbers as for one of 127: in
# pieces of 7, the search took nine tenths of a run of GELU.
_PART_OF_BLOCK = 127
_POOLED = {"interpreted": 1 << 11}  # numbers that are computed in pieces; else all of the pool
_HARD = 5  # numbers in a case of those that differ
_CALLS = 4  # of a number of rows in a case at borders
# Rows with an element that brings results to borders, how many elements are tried for each, and numbers in all.
_EDITED, _TRIES, _TRIED = 64, 1 << 10, 1 << 22
_DOUBLE, _SINGLE = 53, 24  # digits of float64 and of float32


class Compared(NamedTuple):
    """Holds the results of a call in another setting, and the results whose bits they must have."""

    setting: str
    got: Tensors
    usual: str
    expected: Tensors
    rows: int = 0  # how many, if that is the setting


def _check(subject: Subject, case: Case) -> None:
    kernel = subject.kernel
    whole = run_kernel(kernel, case, subject.backend.device)
    about_rows = [name for name in kernel.same_bits if name in ("rows", "position")]
    all_rows = separate_rows(kernel, case) if about_rows else []
    if about_rows and not all_rows and min(case.dims, default=0) > 1:  # one index of a dimension is no choice of rows
        rule = "no dimension has indices that are independent of each other, so there are no rows to promise for"
        raise Broken(rule, case, {"promised": f"same_bits: {', '.join(about_rows)}"})
    for name in kernel.same_bits:
        for each in compared(name, subject, case, whole, all_rows):
            facts = {"promised": f"same_bits: {name}"}
            facts |= {"classes": f"verify same {shlex.quote(subject.target)}"} if subject.target else {}
            rule = _RULES.get(name, f"it has other bits than {name[3:]}")
            demand_same(case, each.got, each.expected, rule, labels=(each.setting, each.usual), facts=facts)


def compared(
    name: str, subject: Subject, case: Case, whole: Measured, all_rows: Sequence[Rows] = ()
) -> Iterator[Compared]:
    """Yields the calls in the other values of one setting, which may be about some rows."""
    kernel, device = subject.kernel, subject.backend.device
    if name == "rows":
        for rows in all_rows:
            yield from by_count(subject, rows, counts(subject, case, rows), case, whole)
    elif name == "position":
        for rows, places in ((each, places) for each in all_rows for places in sorted({1, each.count // 2})):
            inputs, upstream = rows.shift(whole.inputs, whole.upstream, places)
            got = rows.rolled(rows.local(run_tensors(kernel, inputs, case.params, upstream), slice(None)), -places)
            setting = f"each {rows.dimension or 'row'} {places} places on"
            yield Compared(setting, got, "in its place", contiguous(rows.local(whole.results, slice(None))))
    elif name == "layout":
        free = {name: value for name, value in whole.inputs.items() if name not in kernel.contiguous}
        for (operand, value), layout in product(free.items(), [each for each in LAYOUTS if each != "contiguous"]):
            if value is None:
                continue
            laid, expected = lay_out(value, layout), whole.results
            if same_bits([laid], [value]) and not case.layouts:
                got = run_tensors(kernel, whole.inputs | {operand: laid}, case.params, whole.upstream)
            else:  # an expanded tensor has other values
                other = msgspec.structs.replace(case, layouts={operand: layout})
                got, expected = (run(kernel, other, device).results for run in (run_kernel, run_contiguous))
            yield Compared(f"{operand} {layout}", got, "contiguous", expected)
    elif name == "configuration":
        for facts, other_run in islice(configurations(subject, case), 1, None):
            yield Compared(facts["configuration"], other_run.results, "tuned", whole.results)
    elif name == AGAIN:
        yield Compared("second", run_kernel(kernel, case, device).results, "first", whole.results)
    else:
        other_kernel, inputs = replace(kernel, function=kernel.same_bits_as[name]), sent_all(whole.inputs, device)
        found = run_tensors(other_kernel, inputs, case.params, whole.upstream)
        yield Compared(name[3:], found, kernel.name, whole.results)


def by_count(subject: Subject, rows: Rows, tried: Sequence[int], case: Case, whole: Measured) -> Iterator[Compared]:
    """Yields the results of calls of so many rows. In cases at borders, where few elements count, other rows follow."""
    for count in tried:
        covered = count * (min(rows.count // count, _CALLS) if case.edits else 1)
        got = _in_pieces(subject, case, whole, rows, count, covered)
        setting = f"{count} of {rows.count} {rows.dimension or 'rows'} alone"
        expected = contiguous(rows.local(whole.results, slice(0, covered)))
        yield Compared(setting, got, "all at once", expected, count)


def counts(subject: Subject, case: Case, rows: Rows) -> list[int]:
    """Returns the numbers of rows that are tried: each up to 8, then around each power of two."""
    near = {(1 << power) + step for power in range(3, rows.count.bit_length()) for step in (-1, 0, 1)}
    some = sorted(each for each in {*range(1, 9), *near} if each < rows.count)
    return [each for each in some if rows.allowed(subject.kernel, case, each)]


def _in_pieces(subject: Subject, case: Case, whole: Measured, rows: Rows, piece: int, stop: int) -> Tensors:
    """Returns the results of the first rows, so many in each call."""
    parts = []
    for at in range(0, stop, piece):
        inputs, upstream = rows.pick(whole.inputs, whole.upstream, slice(at, at + piece))
        parts.append(rows.local(run_tensors(subject.kernel, inputs, case.params, upstream), slice(None)))
    return {name: torch.cat([part[name] for part in parts], rows.axis(name) or 0).contiguous() for name in parts[0]}


def one_nan(results: Tensors) -> Tensors:
    """Returns results in which every NaN has the same bits: their payloads do not count."""
    found = dict(results)
    for name, value in results.items():
        if (nan := value.float().isnan()).any():
            found[name] = value.clone(memory_format=torch.contiguous_format)
            raw(found[name])[nan] = raw(torch.full((), math.nan).to(value))  # as bits: float8 has no masks
    return found


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
    sides = [(_in_pieces(subject, pool, whole, rows, piece, rows.count), whole.results)]
    for name in ("layout", *kernel.same_bits_as):
        sides += [(each.got, each.expected) for each in compared(name, subject, pool, whole)]
    for got, expected in sides:
        if all(same_bits([expected[name]], [whole.results[name]]) for name in got):  # an expanded operand is another
            for name in sides[0][0]:
                differ = bits_of(one_nan(got)[name]) != bits_of(one_nan(expected)[name])
                if places := differ.reshape(-1).nonzero()[:, 0].tolist():
                    yield " ".join([POOL, *(str(each % POOLED) for each in places[:: -(-len(places) // _HARD)])])


def at_borders(subject: Subject, case: Case) -> list[Case]:
    """Returns the case with an element of each row replaced, so that exact results are next to borders of rounding.

    [] if every result has the digits of float32, or no operand has rows.
    """
    kernel, whole = subject.kernel, run_kernel(subject.kernel, case, subject.backend.device)
    rows = next(iter(separate_rows(kernel, case)), Rows({}, 0))
    digits = {name: formats.of(each.dtype).precision for name, each in rows.local(whole.results, slice(None)).items()}
    hidden = {name: _DOUBLE - each for name, each in digits.items() if each < _SINGLE}
    drawn = {n: v for n, v in whole.inputs.items() if v is not None and v.is_floating_point()}
    exact = {n: v.double() for n, v in drawn.items()}
    name = next((o.name for o in kernel.op.operands if not o.derive and o.name in exact and o.name in rows.axes), "")
    if not hidden or not name or rows.count < 2:
        return []
    axis, moved = rows.axes[name], exact[name].movedim(rows.axes[name], 0)
    width, count = moved[0].numel(), min(rows.count, _EDITED)
    at = torch.arange(min(_TRIES, max(1, _TRIED // (count * width))) * count, device=moved.device)
    row, stream = at % count, Stream(case.seed, "borders", at.device)
    place = torch.unravel_index(stream.below(len(at), width, "place"), moved.shape[1:])
    numbers = moved[((row + 1 + stream.below(len(at), rows.count - 1)) % rows.count, *place)]
    inputs, upstream = rows.pick(whole.inputs | exact, whole.upstream, row)
    inputs[name] = replaced = exact[name].index_select(axis, row)
    replaced.movedim(axis, 0)[(at, *place)] = numbers
    upstream = {output: each.double() for output, each in upstream.items()}
    near = torch.zeros(len(at), device=at.device)
    for result, value in run_tensors(baseline_of(kernel), inputs, case.params, upstream).items():
        if bits := hidden.get(result, 0):
            lines = value.double().movedim(rows.axis(result) or 0, 0).reshape(len(at), -1).contiguous()
            away = (lines.view(torch.int64) & (1 << bits) - 1) - (1 << bits - 1)
            near += (1 / (1 + away.abs() / (1 << _DOUBLE - _SINGLE))).sum(1)  # in ULP of float32
    best = near.reshape(-1, count).argmax(0) * count + at[:count]
    numbered = torch.arange(moved.numel(), device=at.device).reshape(exact[name].shape).movedim(axis, 0)
    spelled = map(spell, torch.split(numbers[best].to(drawn[name].dtype), 1))
    places = map(str, numbered[(row, *place)][best].tolist())
    return [msgspec.structs.replace(case, edits={name: dict(zip(places, spelled, strict=True))})]


_RULES = {
    "rows": "the number of rows changes bits of a row",
    "position": "the place of a row changes its bits",
    "layout": "the layout of an operand changes bits",
    "configuration": "the configuration of an autotuner changes bits",
}


def cases_of(subject: Subject, fills: Sequence[str] = FILLS) -> list[Case]:
    """Returns cases with many rows and long sums, of values of several kinds, hard ones, and some at borders.

    If each element is computed by itself, there is one kind.
    """
    kernel, scale = subject.kernel, subject.backend.scale
    shapes = batch.space_of_rows(subject).shapes
    plain = plain_case(subject, shapes[0])
    geometry, every = kernel.op.geometry, separate_rows(kernel, plain)
    of_rows = [geometry.dims.index(rows.dimension) if rows.dimension else 0 for rows in every]
    dims, work = plain.dims, partial(work_of, kernel.op) if geometry.named else math.prod
    widest = _WIDEST.get(subject.backend.triton, 1031)
    for at in range(len(dims)):
        if at in of_rows:
            larger = _MANY.get(subject.backend.triton, 257) if at == of_rows[0] else _OTHERS
        else:
            larger = max((each[at] for each in shapes if at < len(each) and each[at] <= widest), default=dims[at])
        longer = [(*dims[:at], larger // part, *dims[at + 1 :]) for part in (1, 4, 16) if larger // part > dims[at]]
        dims = next((each for each in longer if kernel.allows(each) and work(each) <= _WORK[scale]), dims)
    kinds = (geometry.fill,) if geometry.by_element else fills
    found = [msgspec.structs.replace(plain, dims=dims, fill=each, regime=geometry.regime(each)) for each in kinds]
    hard = hard_cases(subject, found[0])
    for case in () if geometry.by_element else found[:_AT_BORDERS]:
        with suppress(KernelError):  # which is for other laws to report; or PyTorch's function refuses float64
            hard += at_borders(subject, case)
    return found + hard


def _examples(subject: Subject, chosen: CaseSpace) -> tuple[Case, ...]:
    """Returns the plainest case of each shape, cases whose sums depend on their order, and some of many long rows."""
    plain = plain_cases(subject, chosen)
    found = [*plain, msgspec.structs.replace(plain[0], upstream="")]
    if not subject.kernel.op.geometry.by_element:
        found += [msgspec.structs.replace(each, fill=fill, regime=fill) for each in plain for fill in FILLS[1:4]]
    return (*found, *cases_of(subject, ("randn", CANCELLING)))


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
