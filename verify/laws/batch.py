"""Batch invariance: what a row (an element, for elementwise ops) gives depends on nothing but that row.

The rows are run all at once, in two halves, one of them alone, and with all others replaced, once by ordinary
numbers and once by NaN. Outputs and gradients of the data have the same bits each time. A model served in batches
answers differently when this fails, and a NaN in one request reaches its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import torch
from torch import Tensor

from verify.cases import Case, counter
from verify.cases.strategies import EITHER_PATH, CaseSpace, space
from verify.laws.compare import Comparison, demand_each_same
from verify.laws.law import Law, Subject
from verify.laws.locality import data_operands, filled_like, local_results, local_rows, pick_rows
from verify.measure.call import Unchanged, run_kernel, run_tensors, sent, sent_all

_ROWS = (2, 3, 5, 8, 17, 33, 65)
_WIDTHS = (3, 1, 8, 65, 257, 1000)
_DEPTHS = (3, 16, 65, 300)


def _space(subject: Subject) -> CaseSpace:
    widths = [width for width in _WIDTHS if width <= subject.sizes.width]
    shapes: list[tuple[int, ...]] = list(product(_ROWS, widths))
    if subject.kernel.op.kind == "contraction":
        depths = [depth for depth in _DEPTHS if depth <= subject.sizes.depth]
        shapes = list(product(_ROWS, depths, _ROWS))
    return space(subject.kernel, subject.dtype, sizes=subject.sizes, shapes=shapes, upstream=EITHER_PATH)


def _examples(subject: Subject, chosen: CaseSpace) -> tuple[Case, ...]:
    # each number of rows once, and each width (depth) once: the pairs are for the search
    count = max(len(set(sizes)) for sizes in zip(*chosen.shapes, strict=True))
    sides = [sorted(set(sizes)) for sizes in zip(*chosen.shapes, strict=True)]
    return chosen.each_choice([tuple(side[at % len(side)] for side in sides) for at in range(count)])


def _check(subject: Subject, case: Case) -> None:
    kernel, device = subject.kernel, subject.backend.device
    whole = run_kernel(kernel, case, device)
    near = whole.to_read
    count = case.dims[0]
    chosen = int(counter.below(case.seed, "batch/row", 1, count)[0])
    half = (count + 1) // 2
    unchanged, runs, told = Unchanged(), [], []
    for rows, label in (
        (slice(0, half), "the first half alone"),
        (slice(half, count), "the second half alone"),
        (slice(chosen, chosen + 1), "one row alone"),
    ):
        inputs, upstream = pick_rows(kernel, whole.inputs, whole.upstream, rows)
        originals = {name: value[rows] for name, value in near.upstream.items()}
        runs.append(run_tensors(kernel, inputs, case.params, upstream, unchanged=unchanged, originals=originals))
        rule = "a row's result depends on how many rows there are"
        labels, facts = (label, "all rows at once"), {"rows": f"{rows.start} to {rows.stop - 1} of {count}"}
        told.append((rows, slice(None), rule, labels, facts))
    keep = slice(chosen, chosen + 1)
    for value, label in ((1.5, "other rows 1.5"), (torch.nan, "other rows NaN")):
        inputs = {
            name: _replaced(near.inputs[name], keep, value, device) if name in data_operands(kernel) else tensor
            for name, tensor in whole.inputs.items()
        }
        originals = {name: _replaced_here(tensor, keep, value) for name, tensor in near.upstream.items()}
        upstream = sent_all(originals, device)
        runs.append(run_tensors(kernel, inputs, case.params, upstream, unchanged=unchanged, originals=originals))
        rule = "a row's result depends on the values of other rows"
        labels, facts = (label, "other rows as drawn"), {"row": f"{chosen} of {count}"}
        told.append((keep, keep, rule, labels, facts))
    comparisons = []
    names = local_results(kernel)
    found = unchanged.demand(*({name: part[name] for name in names if name in part} for part in runs))
    for part, (rows, mine, rule, labels, facts) in zip(found, told, strict=True):
        got, expected = local_rows(kernel, part, mine), _only(local_rows(kernel, near.results, rows))
        comparisons.append(Comparison(got, expected, rule, labels, facts))
    demand_each_same(case, comparisons)


def _only(results: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.contiguous() for name, value in results.items()}


def _replaced(tensor: Tensor | None, keep: slice, value: float, device: str) -> Tensor | None:
    return None if tensor is None else sent(_replaced_here(tensor, keep, value), device)


def _replaced_here(tensor: Tensor, keep: slice, value: float) -> Tensor:
    changed = filled_like(tensor, value)
    changed[keep] = tensor[keep]
    return changed


LAWS: Sequence[Law] = (
    Law(
        name="batch invariance",
        rows=True,
        summary="a row's result does not depend on other rows or on how many there are",
        space=_space,
        check=_check,
        examples=_examples,
        share=0.5,
    ),
)
