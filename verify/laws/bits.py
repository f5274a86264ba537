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

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice, product
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from verify.cases import Case
from verify.cases.case import derive_all, spell
from verify.cases.layouts import LAYOUTS, lay_out
from verify.cases.sizes import work_of
from verify.cases.strategies import CaseSpace
from verify.cases.values import CANCELLING, POOL, POOLED, Stream
from verify.declare.declaration import Kernel
from verify.declare.standin import baseline_of
from verify.errors import KernelError
from verify.laws import batch
from verify.laws.configuration import configurations
from verify.laws.law import Broken, Inputs, Law, Subject, demand_same, plain_case, plain_cases
from verify.laws.locality import Rows, contiguous, separate_rows
from verify.measure.call import Measured, run_kernel, run_tensors, sent_all
from verify.truth import formats
from verify.truth.ulp import bits_of, same_bits

Tensors = dict[str, Tensor]
AGAIN = "second call"  # a setting of `verify same`; the law of determinism demands its bits
# Rows of one case, where a kernel may split a sum otherwise. Triton's interpreter takes milliseconds for each.
_MANY = {"interpreted": 65, "compiled": 4096}
FILLS = ("randn", "spread", CANCELLING, "alternating", "mean 1e3")
_AT_BORDERS = 3  # cases that are brought to borders of rounding, too
_OTHERS = 33  # size of a second dimension of rows
_WIDEST = {"interpreted": 129}  # of other dimensions; 1,031 elsewhere
_WORK = {"small": 1 << 22, "large": 1 << 32}  # numbers in a program of a case with many rows and long sums
EVERY = 8  # each number of rows up to this is tried
_PIECE = 7  # fewer elements than a vector has
# Fewer than most blocks of Triton have. Its interpreter takes 15 ms for a call of 7 numbers as for one of 127: in
# pieces of 7, the search took nine tenths of a run of GELU.
_PART_OF_BLOCK = 127
_POOLED = {"interpreted": 1 << 11}  # numbers that are computed in pieces; else all of the pool
_HARD = 5  # numbers in a case of those that differ
_PARTNERS = 64  # that each number of a pool is tried with
_CALLS = 4  # of a number of rows in a case at borders
# Rows with an element that brings results to borders, how many elements are tried for each, and what is computed.
_EDITED, _TRIES, _TRIED = 64, 1 << 10, 1 << 25
_DOUBLE, _SINGLE = 53, 24  # digits of float64 and of float32


class Compared(NamedTuple):
    """Holds a call in another setting, which may be refused, and the results whose bits it must give."""

    setting: str
    call: Callable[[], Tensors]
    usual: str
    expected: Tensors
    rows: int = 0  # how many, if that is the setting
    hidden: bool = False  # True: no case brings the results to borders of rounding, which may hide other bits


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
            demand_same(case, each.call(), each.expected, rule, labels=(each.setting, each.usual), facts=facts)


def compared(
    name: str, subject: Subject, case: Case, whole: Measured, all_rows: Sequence[Rows] = ()
) -> Iterator[Compared]:
    """Yields the calls in the other values of one setting, which may be about some rows."""
    kernel, device = subject.kernel, subject.backend.device

    def called(inputs: Inputs, upstream: Tensors = whole.upstream, of: Kernel = kernel) -> Tensors:
        return run_tensors(of, inputs, case.params, upstream)

    def moved(rows: Rows, places: int) -> Tensors:
        found = called(*rows.shift(whole.inputs, whole.upstream, places))
        return rows.rolled(rows.local(found, slice(None)), -places)

    if name == "rows":
        for rows in all_rows:
            yield from by_count(subject, rows, counts(subject, case, rows), case, whole)
    elif name == "position":
        for rows, places in ((each, places) for each in all_rows for places in sorted({1, each.count // 2})):
            setting, expected = (
                f"each {rows.dimension or 'row'} {places} places on",
                rows.local(whole.results, slice(None)),
            )
            yield Compared(setting, partial(moved, rows, places), "in its place", contiguous(expected))
    elif name == "layout":
        free = {name: value for name, value in whole.inputs.items() if name not in kernel.contiguous}
        for (operand, value), layout in product(free.items(), [each for each in LAYOUTS if each != "contiguous"]):
            if value is None:
                continue
            laid, inputs, expected = lay_out(value, layout), whole.inputs, whole.results
            shared = not same_bits([laid], [value])  # elements share memory, and values are others
            if shared:
                inputs = inputs | {operand: laid.contiguous()}
                inputs = derive_all(kernel.op, case, inputs, device) if kernel.op.derived else inputs
                expected = called(inputs)
            call, hidden = partial(called, inputs | {operand: laid}), shared and bool(_hidden(whole.results))
            yield Compared(f"{operand} {layout}", call, "contiguous", expected, hidden=hidden)
    elif name == "configuration":
        for facts, other in islice(configurations(subject, case), 1, None):
            yield Compared(facts["configuration"], partial(dict, other.results), "tuned", whole.results)
    elif name == AGAIN:
        yield Compared("second", lambda: run_kernel(kernel, case, device).results, "first", whole.results)
    else:
        theirs, inputs = replace(kernel, function=kernel.same_bits_as[name]), sent_all(whole.inputs, device)
        yield Compared(name[3:], partial(called, inputs, of=theirs), kernel.name, whole.results)


def by_count(subject: Subject, rows: Rows, tried: Sequence[int], case: Case, whole: Measured) -> Iterator[Compared]:
    """Yields calls of so many rows. In cases at borders, where few elements count, other rows follow."""
    for count in tried:
        covered = count * (min(rows.count // count, _CALLS) if case.edits else 1)
        setting = f"{count} of {rows.count} {rows.dimension or 'rows'} alone"
        expected = contiguous(rows.local(whole.results, slice(0, covered)))
        call = partial(_in_pieces, subject, case, whole, rows, count, covered)
        yield Compared(setting, call, "all at once", expected, count)


def counts(subject: Subject, case: Case, rows: Rows, every: int = EVERY) -> list[int]:
    """Returns the numbers of rows that are tried: each of the first, then those around each power of two."""
    near = {(1 << power) + step for power in range(3, rows.count.bit_length()) for step in (-1, 0, 1)}
    some = sorted(each for each in {*range(1, every + 1), *near} if each < rows.count)
    return [each for each in some if rows.allowed(subject.kernel, case, each)]


def _in_pieces(subject: Subject, case: Case, whole: Measured, rows: Rows, piece: int, stop: int) -> Tensors:
    """Returns the results of the first rows, so many in each call."""
    parts = []
    for at in range(0, stop, piece):
        inputs, upstream = rows.pick(whole.inputs, whole.upstream, slice(at, at + piece))
        parts.append(rows.local(run_tensors(subject.kernel, inputs, case.params, upstream), slice(None)))
    return {name: torch.cat([part[name] for part in parts], rows.axis(name) or 0).contiguous() for name in parts[0]}


def bits_beside_nan(value: Tensor) -> Tensor:
    """Returns the bits of numbers, where every NaN has the same: payloads do not count."""
    return torch.where(value.float().isnan(), -1, bits_of(value))


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
    if (
        not every
        or op.derived
        or not by_element
        or len(own) < len(kernel.outputs)
        or case.dims not in operands.values()
    ):
        return []
    if any(case.dims[rank - len(shape) :] != shape for shape in operands.values()):
        return []
    size, taken = _piece(subject, case), _POOLED.get(subject.backend.triton, POOLED)
    few, many = (_filled(case, POOL, _in_rows(each, size, rank)) for each in (taken, POOLED))
    rows, piece = replace(every[0], count=few.dims[0]), size if rank == 1 else 1
    found = [_filled(case, POOL, case.dims)]
    if kernel.allows(many.dims) and rows.allowed(kernel, few, piece):
        with suppress(KernelError):  # it takes no such sizes, which is for other laws to report
            whole = _paired(subject, few, many)
            shapes = operands | {f"d{name}": case.dims for name in whole.upstream}
            for places in _differing(subject, few, rows, piece, whole):
                values = {}
                for name, value in _given(whole).items():
                    shape, numbers = shapes[name], value.expand(few.dims).reshape(-1)[places].cpu()
                    line = numbers[torch.arange(shape[-1] if shape else 1) % len(numbers)]
                    values[name] = spell(line.repeat(math.prod(shape[1:-1])))  # a row, which the case repeats
                found.append(msgspec.structs.replace(found[0], values=values))
    return found


def _given(whole: Measured) -> Tensors:
    """Returns operands of real numbers, and gradients that arrive, by their names in a case."""
    named = whole.inputs | {f"d{name}": value for name, value in whole.upstream.items()}
    return {name: value for name, value in named.items() if value is not None and value.is_floating_point()}


def _called(kernel: Kernel, case: Case, whole: Measured, given: Tensors) -> Tensors:
    """Returns the results of a call on other numbers."""
    inputs = {name: given.get(name, value) for name, value in whole.inputs.items()}
    return run_tensors(kernel, inputs, case.params, {name: given[f"d{name}"] for name in whole.upstream})


def _hidden(results: Tensors) -> dict[str, int]:
    """Maps results to how many digits of float64 they hide, if these are some of float32."""
    digits = {name: formats.of(value.dtype).precision for name, value in results.items()}
    return {name: _DOUBLE - each for name, each in digits.items() if each < _SINGLE}


def _nearness(kernel: Kernel, case: Case, whole: Measured, given: Tensors, hidden: dict[str, int]) -> Tensors:
    """Returns 1 for exact results in the middle of two neighbours, and less by their distance in ULP of float32."""
    found = _called(baseline_of(kernel), case, whole, {name: value.double() for name, value in given.items()})
    bits = {name: value.double().contiguous().view(torch.int64) for name, value in found.items() if name in hidden}
    away = {name: (each & (1 << hidden[name]) - 1) - (1 << hidden[name] - 1) for name, each in bits.items()}
    return {name: 1 / (1 + each.abs() / (1 << _DOUBLE - _SINGLE)) for name, each in away.items()}


def _paired(subject: Subject, few: Case, many: Case) -> Measured:
    """Returns the results of the case of few numbers: of those of many that come nearest to borders of rounding.

    Each number of a tensor meets 64 of the others, since a gradient is a product with the one that arrives, and a gate
    one of two operands. Of 65,536 numbers with their best partners 128 give a product within one ULP of float32.
    """
    kernel, device = subject.kernel, subject.backend.device
    whole = run_kernel(kernel, few, device)
    hidden = _hidden({name: value for name, value in whole.results.items() if value.shape == few.dims})
    others = [name for name, value in _given(whole).items() if value.shape == few.dims]
    if not hidden or len(others) < 2:
        return whole
    every = run_kernel(baseline_of(kernel), many, device)
    given = chosen = _given(every)
    nearest = torch.full(many.dims, -1.0, device=given[others[0]].device)
    for turn in range(_PARTNERS):
        turned = {name: given[name].flatten().roll(turn * at).view(many.dims) for at, name in enumerate(others)}
        near = torch.stack([*_nearness(kernel, many, every, given | turned, hidden).values()]).sum(0)
        chosen = chosen | {name: torch.where(near > nearest, value, chosen[name]) for name, value in turned.items()}
        nearest = torch.maximum(near, nearest)
    best = nearest.topk(few.dims[0], 0).indices  # in each column, whose numbers of a row for all elements stay
    chosen |= {name: chosen[name].gather(0, best) for name in others}
    inputs = {name: chosen.get(name, value) for name, value in whole.inputs.items()}
    upstream = {name: chosen[f"d{name}"] for name in whole.upstream}
    return Measured(inputs, upstream, _called(kernel, few, whole, chosen))


def _in_rows(count: int, size: int, rank: int) -> tuple[int, ...]:
    """Returns the dims of at least so many numbers in rows of a size; those of a vector if the rank is 1."""
    return (count,) if rank == 1 else (-(-count // size), *(1,) * (rank - 2), size)


def _piece(subject: Subject, case: Case) -> int:
    """Returns how many numbers a call of a piece has."""
    before = subject.backend.launches()
    with suppress(KernelError):
        run_kernel(subject.kernel, case, subject.backend.device)
    return _PART_OF_BLOCK if subject.backend.launches() > before else _PIECE


def _filled(case: Case, fill: str, dims: tuple[int, ...]) -> Case:
    upstream, regime = fill if case.upstream else "", fill if case.regime else ""
    return msgspec.structs.replace(case, dims=dims, fill=fill, upstream=upstream, regime=regime)


def _differing(subject: Subject, pool: Case, rows: Rows, piece: int, whole: Measured) -> Iterator[list[int]]:
    """Yields places of numbers of a pool that have other bits in a call of few rows, or in another setting."""
    sides = [(_in_pieces(subject, pool, whole, rows, piece, rows.count), whole.results)]
    for name in ("layout", *subject.kernel.same_bits_as):
        for each in compared(name, subject, pool, whole):
            with suppress(KernelError):  # it takes no such layout
                sides.append((each.call(), each.expected))
    for got, expected in sides:
        if all(same_bits([expected[name]], [whole.results[name]]) for name in got):  # an expanded operand is another
            for name in sides[0][0]:
                differ = bits_beside_nan(got[name]) != bits_beside_nan(expected[name])
                if places := differ.reshape(-1).nonzero()[:, 0].tolist():
                    yield places[:: -(-len(places) // _HARD)]


def at_borders(subject: Subject, case: Case) -> list[Case]:
    """Returns the case with an element of each row replaced, so that exact results are next to borders of rounding.

    So is an element of each row of the gradients that arrive. [] if every result has the digits of float32, or no
    operand has rows.
    """
    changed = case
    for rows in separate_rows(subject.kernel, case):
        changed = _at_borders(subject, changed, rows)
    return [changed] if changed.edits else []


def _at_borders(subject: Subject, case: Case, rows: Rows) -> Case:
    kernel, whole = subject.kernel, run_kernel(subject.kernel, case, subject.backend.device)
    given, hidden = _given(whole), _hidden(rows.local(whole.results, slice(None)))
    free = {each.name for each in kernel.op.operands if not each.derive}
    operands = [name for name in given if name in free and name in rows.axes]
    if not hidden or not operands or rows.count < 2:
        return case

    def places(name: str, value: Tensor) -> Tensor:
        """Returns the places in memory of the elements of each row."""
        numbered = torch.arange(value.numel(), device=value.device).view(value.shape)
        return numbered.movedim(rows.axis(name) or 0, 0).reshape(value.shape[rows.axis(name) or 0], -1)

    edited = {name: places(name, given[name]) for name in (operands[0], *(f"d{name}" for name in whole.upstream))}
    count = min(rows.count, _EDITED)
    tries = int(max(1, min(_TRIES, _TRIED * rows.count // (count * _work(kernel, case.dims)))))
    at = torch.arange(tries * count, device=given[operands[0]].device)
    row, stream = at % count, Stream(case.seed, "borders", at.device)
    other = (row + 1 + stream.below(len(at), rows.count - 1)) % rows.count
    tried = Measured(*rows.pick(whole.inputs, whole.upstream, row), {})
    made, changes = _given(tried), {}
    for name, memory in edited.items():
        column = stream.below(len(at), memory.shape[1], name)
        changes[name] = memory[row, column], given[name].reshape(-1)[memory[other, column]]
        made[name].view(-1)[places(name, made[name])[at, column]] = changes[name][1]
    near = torch.zeros(len(at), device=at.device)
    for name, each in _nearness(kernel, case, tried, made, hidden).items():
        near += each.movedim(rows.axis(name) or 0, 0).reshape(len(at), -1).sum(1)
    best = near.reshape(-1, count).argmax(0) * count + at[:count]
    edits = dict(case.edits)
    for name, (place, numbers) in changes.items():
        spelled = zip(map(str, place[best].tolist()), map(spell, torch.split(numbers[best], 1)), strict=True)
        edits[name] = edits.get(name, {}) | dict(spelled)
    return msgspec.structs.replace(case, edits=edits)


_RULES = {
    "rows": "the number of rows changes bits of a row",
    "position": "the place of a row changes its bits",
    "layout": "the layout of an operand changes bits",
    "configuration": "the configuration of an autotuner changes bits",
}


def _work(kernel: Kernel, dims: tuple[int, ...]) -> float:
    """Returns how many numbers a call computes."""
    return work_of(kernel.op, dims) if kernel.op.geometry.named else math.prod(dims)


def cases_of(subject: Subject, fills: Sequence[str] = FILLS) -> list[Case]:
    """Returns cases with many rows and long sums, of values of several kinds, hard ones, and some at borders.

    If each element is computed by itself, there is one kind.
    """
    kernel, scale = subject.kernel, subject.backend.scale
    shapes = batch.space_of_rows(subject).shapes
    plain = plain_case(subject, shapes[0])
    geometry, every = kernel.op.geometry, separate_rows(kernel, plain)
    of_rows = [geometry.dims.index(rows.dimension) if rows.dimension else 0 for rows in every]
    dims = plain.dims
    widest = _WIDEST.get(subject.backend.triton, 1031)
    for at in sorted(range(len(dims)), key=of_rows[1:].__contains__):  # long sums before other dimensions of rows
        if at in of_rows:
            larger = _MANY.get(subject.backend.triton, 257) if at == of_rows[0] else _OTHERS
        else:
            larger = max((each[at] for each in shapes if at < len(each) and each[at] <= widest), default=dims[at])
        longer = [(*dims[:at], larger // part, *dims[at + 1 :]) for part in (1, 4, 16) if larger // part > dims[at]]
        dims = next((each for each in longer if kernel.allows(each) and _work(kernel, each) <= _WORK[scale]), dims)
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
