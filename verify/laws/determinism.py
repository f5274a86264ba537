"""Run-to-run determinism: the same call gives the same bits each time, also after other calls.

The law repeats a call, and repeats it again after a call on another shape. All must have the same bits, gradients
included. One case of three elements is called 300 times first, so that state which builds up over many calls shows.

Details:

The caches of all Triton autotuners are empty before the first call, so that call tunes and runs the kernel twice per
configuration. The interpreter is slow at calls. It repeats the case of three elements in the kernel's first dtype
alone, for at most 20 seconds. A kernel that writes into operands or buffers is called twice on the same ones.
"""

import time
from dataclasses import replace
from functools import partial

import msgspec
from torch import Tensor

from verify.cases import Case, inputs_of
from verify.cases.sizes import Dims, another, shapes_for, sizes_of
from verify.cases.strategies import EITHER_PATH, CaseSpace
from verify.declare.calling import Writing
from verify.declare.declaration import Kernel
from verify.laws.accuracy import broken_by
from verify.laws.law import Subject, demand_same, law, plain_case, space_of
from verify.measure.autotuners import launched
from verify.measure.call import run_kernel, run_tensors
from verify.ops.geometry import alike

# Dims of the case with many calls: as few elements as have a neighbour, and not the dims of a fixed case.
_MANY, _DTYPES = alike((1, 3, 1)), alike((3, 37, 4))
_CALLS = 300
_SECONDS = 20.0  # for all calls together: the interpreter needs half a second for a call of some kernels


def _check_same_buffers(subject: Subject, case: Case, writing: Writing) -> None:
    """Makes a second call on the buffers of the first. It must have the bits of a call on copies of these buffers."""
    kernel = subject.kernel
    given = [inputs_of(kernel.op, case, subject.backend.device)[name] for name in kernel.operands]
    buffers = writing.buffers(given)
    first = dict(zip(kernel.outputs, (each.clone() for each in writing.call(buffers, given)), strict=True))
    second = [each.clone() for each in writing.call(buffers, given)]
    changed = (writing.writes.get(name) for name in kernel.operands)
    after = [value if name is None else first[name] for name, value in zip(changed, given, strict=True)]
    expected = dict(zip(kernel.outputs, writing.call(writing.buffers(after), after), strict=True))
    rule, labels = "a second call on the same buffers gives other bits", ("same buffers", "copies of them")
    demand_same(case, dict(zip(kernel.outputs, second, strict=True)), expected, rule, labels=labels)


def _check_many(subject: Subject, case: Case, results: dict[str, Tensor]) -> None:
    until = min(time.monotonic() + _SECONDS, subject.until)
    for count in range(4, _CALLS + 1):
        if time.monotonic() > until:
            return
        found = run_kernel(subject.kernel, case, subject.backend.device).to_read.results
        rule, labels = f"the results change after {count - 1} calls", (f"call {count}", "first call")
        demand_same(case, found, results, rule, labels=labels)


def _many(kernel: Kernel) -> Dims:
    """Returns the shape of the case with many calls."""
    return shapes_for(kernel, _MANY, 64)[0]


def _of_dtypes(kernel: Kernel) -> Dims | None:
    """Returns the shape that other dtypes get first, which no fixed case has; None if there is one dtype."""
    if len(kernel.dtypes) < 2:
        return None
    if kernel.op.geometry.named:
        return sizes_of(kernel.op, 700)[-2:][0]  # the last one is for comparison
    return shapes_for(kernel, _DTYPES, 64)[0]


def _check_dtypes(subject: Subject, case: Case) -> None:
    """Judges one shape in each dtype in turn. A kernel that keeps state by shape alone then fails."""
    kernel = subject.kernel
    graph = kernel.op.geometry.named
    alone = sizes_of(kernel.op, 700)[-1] if graph else tuple(size + 1 for size in case.dims)
    for dtype in (*(each for each in kernel.dtypes if each != subject.dtype), subject.dtype):
        now, device = replace(subject, dtype=dtype), subject.backend.device
        same, new = plain_case(now, case.dims), plain_case(now, alone)
        broken = broken_by(now, same, run_kernel(kernel, same, device))
        if broken is None or broken.excess is None or broken.excess.at_most(2):
            continue  # small errors, and errors in a new shape, belong to the law of accuracy
        if not broken_by(now, new, run_kernel(kernel, new, device)):
            rule = f"{broken.rule} in {dtype}, where another dtype had the shape before"
            raise broken.restated(rule, case, broken.facts)


def _examples(subject: Subject, chosen: CaseSpace) -> tuple[Case, ...]:
    """Returns the fixed cases. The case with many calls comes first, before other calls change the kernel's state."""
    dtypes = _of_dtypes(subject.kernel)
    first = [_many(subject.kernel)] if _has_time(subject) else []
    first += [dtypes] if dtypes else []
    return (*(plain_case(subject, dims) for dims in first), *chosen.each_choice())


def _has_time(subject: Subject) -> bool:
    return subject.backend.scale == "large" or subject.dtype == subject.kernel.dtypes[0]


def _reason(subject: Subject) -> str | None:
    unseeded = "" in subject.kernel.draws.values()
    return "its random numbers have no seed, so each call draws others" if unseeded else None


@law("determinism", partial(space_of, upstream=EITHER_PATH), applies=_reason, examples=_examples, of_draws=True)
def determinism(subject: Subject, case: Case) -> None:
    """The same call gives the same bits every time."""
    kernel, device = subject.kernel, subject.backend.device
    if case.dims == _of_dtypes(kernel):
        _check_dtypes(subject, case)
    with launched():
        first = run_kernel(kernel, case, device)
        results = first.snapshot()
        second = run_kernel(kernel, case, device)
        rule = "the same call gives other bits"
        demand_same(case, second.to_read.results, results, rule, labels=("second call", "first call"))
        other = msgspec.structs.replace(case, dims=another(kernel, case.dims), layouts={})
        run_tensors(kernel, inputs_of(kernel.op, other, device), case.params, {})
        third = run_kernel(kernel, case, device)
        rule = "the same call gives other bits after a call on another shape"
        facts = {"call between": f"dims {list(other.dims)}"}
        demand_same(case, third.to_read.results, results, rule, labels=("third call", "first call"), facts=facts)
        if (writing := getattr(kernel.function, "writing", None)) is not None:
            _check_same_buffers(subject, case, writing)
        if case == plain_case(subject, _many(kernel)) and _has_time(subject):
            _check_many(subject, case, results)


LAWS = (determinism,)
