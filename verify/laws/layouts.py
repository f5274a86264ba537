"""Layout independence: results depend on a tensor's values, not on its strides.

Operands and upstream gradients are strided, offset, padded, transposed or expanded. Every result must have the bits
of the result for contiguous copies. Where `layouts=` declares an operand contiguous, the kernel must refuse other
layouts with an error, or be right. Results of a PyTorch function that sums may have other bits within the kernel's
limit.

Details:

Transposed operands have whole tiles of 64 in one case, and more than one tile in another.

A kernel for a PyTorch function that sums often consists of PyTorch's own operators. These choose the order of a sum
by the strides, so the law allows other bits.

If two operands are the same tensor, the outputs must equal those for two copies. Keys and values of attention are
expanded together, as for heads that share them, with one key more than whole blocks.
"""

from contextlib import suppress
from functools import partial
from itertools import combinations

import msgspec

from verify.cases import Case, inputs_of
from verify.cases.layouts import LAYOUTS
from verify.cases.sizes import with_keys
from verify.cases.strategies import EITHER_PATH, CaseSpace, Layouts
from verify.errors import KernelError
from verify.laws.accuracy import broken_by
from verify.laws.law import Subject, demand_same, has_gradients, laid, law, plain_case, space_of
from verify.measure.call import run_kernel, run_tensors

_ONE_OVER = (33, 129)
_OF_GRADIENTS = "gradients depend on the layout of the upstream gradient, not only on its values"
# "expanded matrices" matters to keys and values alone
_LAYOUTS = tuple(name for name in LAYOUTS if name != "expanded matrices")


def _compare(subject: Subject, case: Case, rule: str) -> None:
    """Compares the results of a case and of its contiguous copies."""
    strided = run_kernel(subject.kernel, case, subject.backend.device)
    plain = run_kernel(subject.kernel, case, subject.backend.device, contiguous=True)
    got, wanted = strided.to_read.results, plain.to_read.results
    # if contiguous tensors break the limit too, the law of accuracy reports that
    demand_same(
        case, got, wanted, rule, labels=("got", "contiguous"), facts=laid(case),
        excused=lambda: subject.sums and (not broken_by(subject, case, strided) or broken_by(subject, case, plain)),
    )  # fmt: skip


def _examples(subject: Subject, chosen: CaseSpace) -> tuple[Case, ...]:
    """Returns a case for every layout of every tensor, and every shape and the case without gradients in mixed layouts.

    Other choices come with contiguous tensors. With these, the law would compare a call with its own repetition.
    """
    kernel, plain = subject.kernel, chosen.each_choice()[0]
    operands = kernel.operands if len(chosen.layouts.operands) > 1 else ()
    placed = [*operands, *("d" + output for output in kernel.outputs if len(chosen.layouts.upstream) > 1)]
    others = [name for name in _LAYOUTS if name != "contiguous"]
    found: list[Case] = []
    for case in chosen.each_choice():
        if not case.layouts and (case.dims, case.upstream) != (plain.dims, plain.upstream):
            mixed = {name: others[(len(found) + place) % len(others)] for place, name in enumerate(placed)}
            case = msgspec.structs.replace(case, layouts=mixed)
        found += [case] if case.layouts else []
    return tuple(found)


def _compare_shared(subject: Subject, case: Case) -> None:
    """Compares outputs for two operands of one shape and dtype: once as one tensor, once as two copies of it."""
    kernel, device = subject.kernel, subject.backend.device
    inputs = {name: value for name, value in inputs_of(kernel.op, case, device).items() if value is not None}
    numbers = [name for name in kernel.operands if name in inputs and inputs[name].is_floating_point()]
    for first, second in combinations(numbers, 2):
        one = inputs[first]
        if one.shape == inputs[second].shape and one.dtype == inputs[second].dtype:
            given = {name: inputs.get(name) for name in kernel.operands}
            apart = run_tensors(kernel, given | {second: one.clone()}, case.params, {})
            shared = run_tensors(kernel, given | {second: one}, case.params, {})
            rule = "results change where two operands are one tensor"
            labels, facts = ("one tensor", "two copies"), {"operands": f"{first} is {second}"}
            demand_same(case, shared, apart, rule, labels=labels, facts=facts)


def _with_plain(subject: Subject, chosen: CaseSpace) -> tuple[Case, ...]:
    """Returns the cases of `_examples`, a plain one if two operands may be one tensor, and shared keys and values.

    Heads share these as `expand` makes them, with one key more than whole blocks.
    """
    op = subject.kernel.op
    plain = chosen.each_choice()[:1] if len(subject.kernel.operands) > 1 else ()
    names = [name for name, part in (op.scores or {}).items() if part.role != "query"]
    shared = tuple(
        msgspec.structs.replace(plain_case(subject, dims), layouts=dict.fromkeys(names, layout))
        for dims in with_keys(op, _ONE_OVER)
        for layout in ("expanded", "expanded matrices")
    )
    return (*plain, *_examples(subject, chosen), *shared)


@law(
    "layout independence",
    partial(space_of, layouts=Layouts(_LAYOUTS), upstream=EITHER_PATH),
    examples=_with_plain,
)
def layout_independence(subject: Subject, case: Case) -> None:
    """Strided operands give the bits of their contiguous copies.

    The kernel may refuse an operand that is declared contiguous.
    """
    if not case.layouts:
        _compare_shared(subject, case)
    if not set(case.layouts) & set(subject.kernel.contiguous):
        _compare(subject, case, "results depend on the layout of the operands, not only on their values")
        return
    with suppress(KernelError):
        _compare(subject, case, "an unpromised layout gives wrong results instead of an error")


@law(
    "upstream layout independence",
    partial(space_of, layouts=Layouts(upstream=_LAYOUTS)),
    applies=has_gradients,
    examples=_examples,
)
def upstream_layout_independence(subject: Subject, case: Case) -> None:
    """Strided and expanded upstream gradients give the bits of their contiguous copies.

    Autograd passes gradients in any layout, so no kernel may refuse one.
    """
    _compare(subject, case, _OF_GRADIENTS)


LAWS = (layout_independence, upstream_layout_independence)
