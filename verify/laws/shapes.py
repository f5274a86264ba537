"""Many rows: a kernel computes all rows, however many there are.

`many rows` tries more rows than a kernel launches programs, and than a grid axis holds (65,535). It judges gradients
that sum over rows at up to 4,097 rows, and at 1,048,576 in long profiles on a GPU.

Details:

The rows give the bits of the same rows given a few at a time. So do more elements of an elementwise op than other tests
judge one by one. Gradients that sum over rows are within the kernel's limit of the exact sum at 9, 66, 257 and 4,097
rows, and at 1,048,576 in long profiles on a GPU. A kernel that loses the rows beyond one of its blocks is right below
that number. In a PyTorch function, each named dimension alone gets as many indices. No result may exceed 16 times the
limit, unless its row gives the same result alone.
"""

from dataclasses import replace

import numpy as np
import torch

from verify.cases import Case
from verify.cases.plan import PLAN_SIZES, SUMMED_ROWS, summed_dims, summed_results
from verify.cases.sizes import REACHES_OF_LAWS, fitted_rows, long_sizes, sizes_of
from verify.cases.strategies import CaseSpace, row_counts
from verify.laws.accuracy import broken_by, judge_measured
from verify.laws.law import Broken, Subject, demand_same, law, plain_cases, space_of
from verify.laws.locality import Rows, independent_rows, lacks_rows, separate_rows
from verify.measure.call import Measured, run_kernel, run_tensors

Dims = tuple[int, ...]

# multiple of the limit: among so many elements some exceed the limit slightly, which the law of accuracy reports
_LOST = 16
_FEW_ROWS = 200  # profiles with at most this many rows are for quick answers
_GRID = 65_535  # number of programs on an axis of a grid
_GROUP = 60_000


def _some_rows(subject: Subject) -> list[Dims]:
    """Returns dims with a few columns and more rows than a kernel launches programs, so each program has several.

    For an elementwise op they have more elements than other tests judge one by one, so that every position is compared.
    """
    geometry, counts = subject.kernel.op.geometry, row_counts(subject.sizes.rows)
    if geometry.by_element:
        effort = PLAN_SIZES[subject.backend.scale]
        judged = effort.float64_elements if subject.dtype == "float64" else effort.elements
        counts = tuple(judged // 3 + more for more in row_counts(judged // 9)[-8:])
    return [fitted_rows(subject.kernel, geometry.dims_of(count, 3, 5)) for count in counts]


def _most_rows(subject: Subject) -> list[Dims]:
    """Returns dims with more rows than a grid axis holds, if the profile allows it."""
    rows, geometry = subject.sizes.many_rows, subject.kernel.op.geometry
    wanted = [geometry.dims_of(rows, width, 5) for width in (1, 3, 32) if rows > _GRID]
    return list(dict.fromkeys(fitted_rows(subject.kernel, dims) for dims in wanted))


def _summed(subject: Subject) -> list[Dims]:
    """Returns dims whose sums over rows are judged."""
    few = [number for number in SUMMED_ROWS if number <= 2 * subject.sizes.elements]
    return summed_dims(subject.kernel, few) if summed_results(subject.kernel) else []


def _rows_of_graph(subject: Subject) -> list[Dims]:
    """Returns the largest sizes of each dimension that the law of accuracy omits, as each index may be a program."""
    reach = REACHES_OF_LAWS[subject.backend.scale]
    more = replace(reach, rows=max(4097, reach.rows)) if subject.sizes.rows > _FEW_ROWS else reach
    known = long_sizes(subject.kernel.op, reach)
    return [some[-1] for name, some in long_sizes(subject.kernel.op, more).items() if some[-1:] != known[name][-1:]]


def _many_rows(subject: Subject) -> CaseSpace:
    if subject.kernel.op.geometry.named:
        shapes = _rows_of_graph(subject) or list(sizes_of(subject.kernel.op, 512)[:1])
        return space_of(subject, shapes=shapes, fill=("randn",))
    shapes = [*_summed(subject), *_some_rows(subject), *_most_rows(subject)]
    # for equal rows the exact sum is quickly known
    fill = ("normal",) if subject.kernel.op.geometry.by_element else ("repeated rows",)
    return space_of(subject, shapes=shapes, fill=fill)


def _rows_applies(subject: Subject) -> str | None:
    if not subject.kernel.op.geometry.named:
        return lacks_rows(subject.kernel, _many_rows(subject).shapes)
    return None if _rows_of_graph(subject) else "the law of accuracy tries the longest sizes that this profile has"


def _many_examples(subject: Subject, chosen: CaseSpace) -> tuple[Case, ...]:
    if subject.kernel.op.geometry.named:
        return plain_cases(subject, chosen)
    return chosen.each_choice([*_summed(subject), _some_rows(subject)[-1], *_most_rows(subject)])


def _same_alone(subject: Subject, case: Case, whole: Measured, broken: Broken) -> bool:
    """True if a row alone gives the same wrong result, which the law of accuracy reports."""
    name, wrong = broken.result, whole.results[broken.result]
    for rows in independent_rows(subject.kernel, case):
        axis = rows.axis(name)
        if axis is not None and rows.count == max(case.dims):
            at = int(np.unravel_index(broken.index or 0, wrong.shape)[axis])
            inputs, upstream = rows.pick(whole.inputs, whole.upstream, slice(at, at + 1))
            alone = run_tensors(subject.kernel, inputs, case.params, upstream)[name]
            return torch.equal(alone, rows.of(name, wrong, slice(at, at + 1)))
    return False


@law("many rows", _many_rows, applies=_rows_applies, examples=_many_examples, share=0.05)
def many_rows(subject: Subject, case: Case) -> None:
    """Sums over rows have all of them; many rows give the bits of a few at a time.

    Judges sums over many rows, and compares many rows at once with a few at a time.
    """
    kernel = subject.kernel
    whole = run_kernel(kernel, case, subject.backend.device)
    if kernel.op.geometry.named:
        if broken := broken_by(subject, case, whole):
            little = broken.excess is None or broken.excess.at_most(_LOST)
            if not little and not _same_alone(subject, case, whole, broken):
                raise broken
        return
    sums = {name: whole.results[name] for name in summed_results(kernel) if name in whole.results}
    if sums:
        judge_measured(subject, case, Measured(whole.inputs, whole.upstream, sums))
    for belonging in separate_rows(kernel, case):
        # a case for the sums is not cut; the rows a few at a time would take as long again
        if belonging.count > _GRID or case.dims not in _summed(subject):
            _compare_cut(subject, case, whole, belonging)


def _compare_cut(subject: Subject, case: Case, whole: Measured, belonging: Rows) -> None:
    """Compares the results of all rows at once and of a few rows at a time."""
    kernel, count = subject.kernel, belonging.count
    group = min(_GROUP, count // 2 + 1)
    for start in range(0, count, group):
        rows = slice(start, min(start + group, count))
        if not belonging.allowed(kernel, case, rows.stop - start):
            continue
        inputs, upstream = belonging.pick(whole.inputs, whole.upstream, rows)
        part = run_tensors(kernel, inputs, case.params, upstream)
        demand_same(
            case,
            belonging.local(whole.results, rows),
            belonging.local(part, slice(None)),
            "many rows at once give other results than a few at a time",
            labels=(f"{count} rows", f"{rows.stop - rows.start} rows"),
            facts={"rows": f"{rows.start} to {rows.stop - 1}"},
        )


LAWS = (many_rows,)
