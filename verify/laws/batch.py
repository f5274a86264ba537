"""Batch invariance: the result of a row (of an element, for elementwise ops) depends on that row alone.

The law runs all rows at once, each half of them, one row alone, and that row among replaced rows. If the bits of the
row differ, a model that is served in batches gives different answers, and a NaN in one request reaches others. A
PyTorch function that sums may differ within the kernel's limit for another number of rows.

Details:

The other rows are replaced by ordinary numbers, then by NaN, within the domains of operands. The law compares outputs
and gradients of the data.

In a PyTorch function, rows are the indices of a named dimension along which each output depends on operands at the
same index alone. PyTorch may split a sum differently for another number of rows, which is why other bits are allowed
there.
"""

import math
from itertools import product
from typing import Any

import msgspec
import torch
from torch import Tensor

from verify.cases import Case, counter
from verify.cases.case import derive_all
from verify.cases.sizes import REACHES_OF_LAWS, fitted_rows, long_sizes, sizes_of
from verify.cases.strategies import EITHER_PATH, CaseSpace
from verify.cases.values import inside
from verify.laws.accuracy import broken_by
from verify.laws.law import Subject, demand_same, law, plain_case, plain_cases, space_of
from verify.laws.locality import Rows, contiguous, filled_like, independent_rows, lacks_rows, separate_rows
from verify.measure.call import Measured, Unchanged, run_kernel, run_tensors, sent, sent_all

_ROWS = (2, 3, 5, 8, 17, 33, 65)
_WIDTHS = (3, 1, 8, 65, 257, 1000)
_DEPTHS = (3, 16, 65, 300)


def space_of_rows(subject: Subject) -> CaseSpace:
    shapes: list[tuple[int, ...]]
    if subject.kernel.op.geometry.named:
        op, reach = subject.kernel.op, REACHES_OF_LAWS[subject.backend.scale]
        shapes = [*sizes_of(op, 512)[:3], *(dims for some in long_sizes(op, reach).values() for dims in some[1:2])]
        return space_of(subject, shapes=shapes, upstream=EITHER_PATH)
    widths = [width for width in _WIDTHS if width <= subject.sizes.width]
    shapes = list(product(_ROWS, widths))
    if subject.kernel.op.geometry.multiplies:
        depths = [depth for depth in _DEPTHS if depth <= subject.sizes.depth]
        shapes = list(product(_ROWS, depths, _ROWS))
    shapes = list(dict.fromkeys(fitted_rows(subject.kernel, dims) for dims in shapes))
    return space_of(subject, shapes=shapes, upstream=EITHER_PATH)


def _applies(subject: Subject) -> str | None:
    kernel = subject.kernel
    if not kernel.op.geometry.named:
        return lacks_rows(kernel, space_of_rows(subject).shapes)
    if independent_rows(kernel, plain_case(subject, sizes_of(kernel.op, 512)[0])):
        return None
    return "no dimension of this PyTorch function has indices that are independent of each other"


def _examples(subject: Subject, chosen: CaseSpace) -> tuple[Case, ...]:
    if subject.kernel.op.geometry.named:
        plain = plain_cases(subject, chosen)
        return (*plain, msgspec.structs.replace(plain[0], upstream=""))
    # each number of rows once, and each width (depth) once; the search tries combinations
    sides = [sorted(set(sizes)) for sizes in zip(*chosen.shapes, strict=False)]
    shapes = [tuple(side[at % len(side)] for side in sides) for at in range(max(map(len, sides)))]
    return chosen.each_choice([fitted_rows(subject.kernel, dims) for dims in shapes])


def _check_rows(subject: Subject, case: Case, whole: Measured, belonging: Rows) -> None:
    """Compares the results of rows alone, and among replaced rows, with the results of all rows at once."""
    kernel, device = subject.kernel, subject.backend.device
    near, count = whole.to_read, belonging.count
    chosen = int(counter.below(case.seed, "batch/row", 1, count)[0])
    half = (count + 1) // 2
    of = {"dimension": belonging.dimension} if belonging.dimension else {}
    unchanged, runs = Unchanged(), []
    told: list[tuple[slice, slice, str, tuple[str, str], dict[str, str], Any]] = []
    for rows, label in (
        (slice(0, half), "the first half alone"),
        (slice(half, count), "the second half alone"),
        (slice(chosen, chosen + 1), "one row alone"),
    ):
        if not belonging.allowed(kernel, case, rows.stop - rows.start):
            continue
        inputs, upstream = belonging.pick(whole.inputs, whole.upstream, rows)
        originals = {name: belonging.of(name, value, rows) for name, value in near.upstream.items()}
        runs.append(run_tensors(kernel, inputs, case.params, upstream, unchanged=unchanged, originals=originals))
        rule = "a row's result depends on how many rows there are"
        labels, facts = (label, "all rows at once"), {**of, "rows": f"{rows.start} to {rows.stop - 1} of {count}"}
        told.append((rows, slice(None), rule, labels, facts, (inputs, upstream)))
    keep = slice(chosen, chosen + 1)
    domains = kernel.op.domains
    for value, label in ((1.5, "other rows 1.5"), (torch.nan, "other rows NaN")):

        def replaced(name: str, tensor: Tensor, value: float = value) -> Tensor:
            changed, domain = filled_like(tensor, value), domains.get(name)
            if domain is not None:  # NaN is outside of a domain, so these rows remain
                changed = tensor.clone() if math.isnan(value) else inside(changed, domain)
            belonging.of(name, changed, keep).copy_(belonging.of(name, tensor, keep))
            return changed

        free = {each.name for each in kernel.op.operands if each.derive is None} & belonging.axes.keys()
        numbers = {n: v for n, v in near.inputs.items() if v is not None and v.is_floating_point() and n in free}
        inputs = whole.inputs | {name: sent(replaced(name, value), device) for name, value in numbers.items()}
        inputs = derive_all(kernel.op, case, inputs, device) if kernel.op.derived else inputs
        originals = {name: replaced(name, tensor) for name, tensor in near.upstream.items()}
        upstream = sent_all(originals, device)
        runs.append(run_tensors(kernel, inputs, case.params, upstream, unchanged=unchanged, originals=originals))
        rule = "a row's result depends on the values of other rows"
        labels, facts = (label, "other rows as drawn"), {**of, "row": f"{chosen} of {count}"}
        told.append((keep, keep, rule, labels, facts, None))
    found = unchanged.demand(*(belonging.local(part, slice(None)) for part in runs))
    for part, (rows, mine, rule, labels, facts, alone) in zip(found, told, strict=True):
        got, expected = belonging.local(part, mine), contiguous(belonging.local(near.results, rows))

        def within(alone: Any = alone, got: dict[str, Tensor] = got) -> bool:
            return alone and subject.sums and not broken_by(subject, case, Measured(alone[0], alone[1], got))

        demand_same(case, got, expected, rule, labels=labels, facts=facts, excused=within)


@law("batch invariance", space_of_rows, applies=_applies, examples=_examples, share=0.5, nearest=True)
def batch_invariance(subject: Subject, case: Case) -> None:
    """A row's result does not depend on other rows or on how many there are."""
    whole = run_kernel(subject.kernel, case, subject.backend.device)
    for rows in separate_rows(subject.kernel, case):
        _check_rows(subject, case, whole, rows)


LAWS = (batch_invariance,)
