"""Run-to-run determinism: the same call gives the same bits, however often, and whatever was called between.

The first call is made with the caches of every Triton autotuner empty, so that it is the one that tunes (and runs
the kernel twice per configuration); the second repeats it; a call on another shape follows; the third must still
give the first call's bits, gradients included.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from verify.cases import Case, inputs_of
from verify.cases.strategies import Space, space
from verify.laws.autotuners import launched
from verify.laws.compare import demand_same
from verify.laws.law import Law, Subject
from verify.measure.call import run_kernel, run_tensors


def _space(subject: Subject) -> Space:
    return space(subject.kernel, subject.dtype, sizes=subject.sizes)


def _other_shape(case: Case) -> tuple[int, ...]:
    """Another legal shape: one more in every dimension."""
    return tuple(size + 1 for size in case.dims)


def _check(subject: Subject, case: Case) -> None:
    kernel, device = subject.kernel, subject.backend.device
    with launched():
        first = run_kernel(kernel, case, device)
        results = first.snapshot()
        second = run_kernel(kernel, case, device)
        rule = "the same call gives other bits"
        demand_same(case, second.to_read.results, results, rule, labels=("second call", "first call"))
        other = msgspec.structs.replace(case, dims=_other_shape(case), layouts={})
        run_tensors(kernel, inputs_of(kernel.op, other, device), case.params, {})
        third = run_kernel(kernel, case, device)
        rule = "the same call gives other bits after a call on another shape"
        facts = {"call between": f"dims {list(other.dims)}"}
        demand_same(case, third.to_read.results, results, rule, labels=("third call", "first call"), facts=facts)


LAWS: Sequence[Law] = (
    Law(
        name="determinism",
        summary="the same call gives the same bits every time",
        space=_space,
        check=_check,
    ),
)
