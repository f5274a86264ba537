"""Layout independence: a tensor's strides are not its values.

Every result of a kernel on strided, offset, padded, transposed or expanded operands and upstream gradients is,
bit for bit, its result on contiguous copies of them. A kernel that declares `layouts="contiguous"` must refuse
other layouts with an error instead: silently wrong is a failure, and so is silently right where it promised not to
look. Transposed operands have whole tiles of 64 in one case, and more than one tile in another.

A kernel for a PyTorch function that sums is often made of PyTorch's own operators, which choose by the strides in which
order a product adds: where the bits of such a one differ, the results of strided tensors are held to its limit instead.

Two operands that are one tensor give the outputs of two copies of it. Keys and values of an attention are expanded
together, as heads that share them are, with one key more than blocks hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import msgspec

from verify.cases import Case, inputs_of
from verify.cases.layouts import LAYOUTS
from verify.cases.sizes import with_keys
from verify.cases.strategies import EITHER_PATH, CaseSpace, Layouts, space
from verify.errors import KernelError
from verify.laws.accuracy import keeps
from verify.laws.compare import demand_same, laid
from verify.laws.law import Law, Subject, plain_case
from verify.measure.call import run_contiguous, run_kernel, run_tensors
from verify.truth.ulp import same_bits

_ONE_OVER = (33, 129)
_LAYOUTS = tuple(name for name in LAYOUTS if name != "expanded matrices")  # which matters to keys and values alone


def _compare(subject: Subject, case: Case, rule: str) -> None:
    strided = run_kernel(subject.kernel, case, subject.backend.device)
    plain = run_contiguous(subject.kernel, case, subject.backend.device)
    got, wanted = strided.to_read.results, plain.to_read.results
    op = subject.kernel.op
    if op.geometry.named and op.gate != "plain" and not same_bits(list(got.values()), list(wanted.values())):
        near, compact = strided.to_read, plain.to_read
        # what contiguous tensors do not keep either is the law of accuracy's
        if keeps(subject, case, near.inputs, near.upstream, got) or not keeps(
            subject, case, compact.inputs, compact.upstream, wanted
        ):
            return
    demand_same(case, got, wanted, rule, labels=("got", "contiguous"), facts=laid(case))


def _examples(subject: Subject, chosen: CaseSpace) -> tuple[Case, ...]:
    """Every layout of every tensor, and every shape, and no gradients, with a mixture of layouts.

    Of contiguous tensors, in which the other choices come, a call would be held against its own repetition.
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
    """Outputs where two operands of one shape and dtype are one tensor, and where they are two copies of it."""
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
    """The cases of `_examples`, and a plain one where two operands may be one tensor."""
    plain = chosen.each_choice()[:1] if len(subject.kernel.operands) > 1 else ()
    return (*plain, *_examples(subject, chosen), *_shared_keys(subject))


def _shared_keys(subject: Subject) -> tuple[Case, ...]:
    """Keys and values that all heads share, as `expand` makes them, at numbers of keys with one over a block."""
    op = subject.kernel.op
    names = [name for name, part in (op.scores or {}).items() if part.role != "query"]
    return tuple(
        msgspec.structs.replace(plain_case(subject, dims), layouts=dict.fromkeys(names, layout))
        for dims in with_keys(op, _ONE_OVER)
        for layout in ("expanded", "expanded matrices")
    )


def _operands(subject: Subject) -> CaseSpace:
    return space(subject.kernel, subject.dtype, sizes=subject.sizes, layouts=Layouts(_LAYOUTS), upstream=EITHER_PATH)


def _check_operands(subject: Subject, case: Case) -> None:
    if not case.layouts:
        _compare_shared(subject, case)
    if subject.kernel.layouts == "contiguous":
        _check_refusal(subject, case)
        return
    _compare(subject, case, "results depend on the layout of the operands, not only on their values")


def _check_refusal(subject: Subject, case: Case) -> None:
    """A kernel for contiguous tensors raises, or happens to be right; it is never silently wrong."""
    try:
        _compare(subject, case, "an unpromised layout gives wrong results instead of an error")
    except KernelError:
        return


def _upstream(subject: Subject) -> CaseSpace:
    return space(subject.kernel, subject.dtype, sizes=subject.sizes, layouts=Layouts(upstream=_LAYOUTS))


def _check_upstream(subject: Subject, case: Case) -> None:
    # autograd hands over whatever layout it has: no kernel may refuse an upstream gradient
    _compare(subject, case, "gradients depend on the layout of the upstream gradient, not only on its values")


def _differentiable(subject: Subject) -> str | None:
    return None if subject.kernel.differentiable else "the kernel has no gradients"


LAWS: Sequence[Law] = (
    Law(
        name="layout independence",
        summary="strided operands give the bits of their contiguous copies",
        space=_operands,
        check=_check_operands,
        examples=_with_plain,
    ),
    Law(
        name="upstream layout independence",
        summary="strided and expanded upstream gradients give the bits of their contiguous copies",
        space=_upstream,
        check=_check_upstream,
        applies=_differentiable,
        examples=_examples,
    ),
)
