"""Memory safety: a kernel writes only its results and reads only its operands.

`memory bounds` puts every tensor that the kernel gets or allocates between guard bands. `initialised memory` changes
what fresh memory and the memory around operands contain. A kernel that caches by address or shape breaks `no stale
results`.

Details:

* memory bounds: every tensor that the kernel gets or allocates lies between guard bands. No byte of a band changes, nor
  any byte of an operand or of an upstream gradient.
* initialised memory: the results have the same bits for any contents of fresh memory and around operands. So
  the kernel writes every element, uses no lane beyond the end, and keeps nothing from an earlier call.
* nothing overwritten: the backward pass changes neither operands nor outputs nor tensors saved for it. A second
  backward pass over the same graph gives the bits of the first.
* no stale results: new values in the same memory give new results, so nothing is cached by address or shape. Results
  with the same bits are judged if they are farther from PyTorch's. The first values there give the first results again.
  A later call does not change the results of an earlier one. In the plain case, eight later calls do not either. A call
  between a forward pass and its backward pass changes no gradient.
"""

import math
from functools import partial

import msgspec
import torch
from torch import Tensor

from verify.cases import Case, inputs_of, upstream_of
from verify.cases.strategies import EITHER_PATH, CaseSpace, Layouts
from verify.errors import KernelError
from verify.laws.accuracy import broken_by
from verify.laws.guard import NAN_FILL, NUMBER_FILL, Guard
from verify.laws.law import Broken, Subject, demand_same, has_gradients, laid, law, space_of
from verify.laws.locality import data_operands
from verify.measure.call import (
    Measured,
    Unchanged,
    call_tensors,
    copies,
    gradients_of,
    run_baseline,
    run_tensors,
    sent_all,
)
from verify.measure.effort import distances
from verify.truth.ulp import pattern_at, same_bits

_LAYOUTS = ("contiguous", "padded", "stepped", "transposed")


def _space(subject: Subject) -> CaseSpace:
    layouts = Layouts(_LAYOUTS, ("contiguous", *_LAYOUTS), subject.kernel.contiguous)
    return space_of(subject, layouts=layouts, upstream=EITHER_PATH)


def guarded_runs(subject: Subject, case: Case, *guards: Guard) -> list[dict[str, Tensor]]:
    """Returns the results of one call in each guard's memory, on the same operands and upstream gradients."""
    op, device, runs, unchanged = subject.kernel.op, subject.backend.device, [], Unchanged()
    operands = inputs_of(op, case, device, shared=True)
    upstream: dict[str, Tensor] | None = None
    for guard in guards:
        inputs = {
            name: None if value is None else guard.embed(value, f"operand {name}", device)
            for name, value in operands.items()
        }
        with guard:
            graph = call_tensors(subject.kernel, inputs, case.params, differentiate=bool(case.upstream))
        if upstream is None:
            upstream = upstream_of(op, case, graph.values, shared=True)
        arriving = {name: guard.embed(value, f"upstream gradient d{name}", device) for name, value in upstream.items()}
        with guard:
            gradients = gradients_of(subject.kernel, graph, arriving, unchanged=unchanged, originals=upstream)
        runs.append(graph.values | gradients)
    return unchanged.demand(*runs)


@law("memory bounds", _space, of_draws=True)
def memory_bounds(subject: Subject, case: Case) -> None:
    """Nothing is written outside of the results, nor into operands."""
    guard = Guard(NUMBER_FILL)
    guarded_runs(subject, case, guard)
    if found := guard.damage():
        also = {"also": f"{len(found) - 1} more tensors"} if len(found) > 1 else {}
        facts = {"written": found[0], **also}
        raise Broken("something is written outside of the results", case, facts)


@law("initialised memory", _space)
def initialised_memory(subject: Subject, case: Case) -> None:
    """Results do not depend on what lay in memory before the call."""
    guards = Guard(NAN_FILL, watched=False), Guard(NUMBER_FILL, watched=False)
    with_nan, with_numbers = guarded_runs(subject, case, *guards)
    rule, labels = "results depend on what lay in memory before the call", ("full of NaN", "full of numbers")
    try:
        demand_same(case, with_nan, with_numbers, rule, labels=labels, facts=laid(case))
    except Broken as broken:
        if broken.index is None:
            raise
        width = with_nan[broken.result].element_size()
        fills = [int.from_bytes(bytes([fill] * width)) for fill in (NAN_FILL, NUMBER_FILL)]
        if [pattern_at(some[broken.result], broken.index) for some in (with_nan, with_numbers)] == fills:
            raise broken.restated("an element of a result is never written", case, broken.facts) from None
        raise


@law("nothing overwritten", applies=has_gradients)
def nothing_overwritten(subject: Subject, case: Case) -> None:
    """Backward changes nothing and can run twice.

    Compares operands, outputs and saved tensors after a backward pass, and the gradients of a second one.
    """
    kernel, device = subject.kernel, subject.backend.device
    originals = inputs_of(kernel.op, case, device, shared=True)
    inputs = sent_all(originals, device)
    operands = {name: value for name, value in inputs.items() if value is not None}
    operands_before = {name: value for name, value in originals.items() if value is not None}
    saved: list[tuple[Tensor, Tensor]] = []

    def remember(tensor: Tensor) -> Tensor:
        saved.append((tensor.detach(), tensor.detach().clone()))
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        graph = call_tensors(kernel, inputs, case.params)
    outputs = graph.values
    outputs_before = copies(outputs)
    arriving = upstream_of(kernel.op, case, outputs, shared=True)
    upstream = sent_all(arriving, device)
    unchanged = Unchanged()
    first = copies(gradients_of(kernel, graph, upstream, retain=True, unchanged=unchanged, originals=arriving))
    kept = {f"saved tensor {place}": pair for place, pair in enumerate(saved)}
    now, past = ({label: pair[side] for label, pair in kept.items()} for side in (0, 1))
    operands, outputs, outputs_before, now, past = unchanged.demand(operands, outputs, outputs_before, now, past)
    demand_same(case, operands, operands_before, "an operand is changed by the call or by its backward pass")
    demand_same(case, outputs, outputs_before, "an output is changed by the backward pass")
    demand_same(case, now, past, "a tensor saved for backward is changed by it")
    if first:
        again = sent_all(arriving, device)
        second = gradients_of(kernel, graph, again, unchanged=unchanged, originals=arriving)
        second, first = unchanged.demand(second, first)
        rule = "a second backward pass over the same graph gives other gradients"
        demand_same(case, second, first, rule, labels=("second", "first"))


_AS_FAR = 4  # up to this factor, PyTorch's rounding explains the larger of two mean distances
_BUFFERS = 8  # in the plain case this many later calls must not change a result: a kernel may use buffers in turn


@law("no stale results", partial(space_of, upstream=EITHER_PATH))
def no_stale_results(subject: Subject, case: Case) -> None:
    """New values in the same memory give new results.

    Makes two forward passes before the backward pass of either.

    Then puts new values into the memory of the first, and its own values again.
    """
    kernel, device, unchanged = subject.kernel, subject.backend.device, Unchanged()
    cases = case, msgspec.structs.replace(case, seed=case.seed + 1)
    given = [inputs_of(kernel.op, each, device) for each in cases]
    graphs, arriving, live, kept = [], [], [], []
    for each, inputs in zip(cases, given, strict=True):
        graphs.append(call_tensors(kernel, inputs, case.params, differentiate=bool(case.upstream)))
        arriving.append(upstream_of(kernel.op, each, graphs[-1].values, shared=True))
        live.append(dict(graphs[-1].values))
        kept.append(copies(live[-1]))
    for at in (0, 1) if case.seed % 2 else (1, 0):
        upstream = sent_all(arriving[at], device)
        found = gradients_of(kernel, graphs[at], upstream, unchanged=unchanged, originals=arriving[at])
        live[at] |= found
        kept[at] |= copies(found)

    def in_the_first_memory(at: int) -> dict[str, Tensor]:
        """Calls the kernel with the values of one case in the memory of the first."""
        for name, value in given[0].items():
            fresh = values[at][name]
            if value is not None and fresh is not None:
                # no version counter changes, as with a write by a kernel or with recycled memory
                value.data.copy_(fresh)
        upstream, originals = sent_all(arriving[at], device), arriving[at]
        return copies(run_tensors(kernel, given[0], case.params, upstream, unchanged=unchanged, originals=originals))

    values = [inputs_of(kernel.op, each, device, shared=True) for each in cases]
    late = in_the_first_memory(1)
    for _ in range(_BUFFERS if case.seed == 0 else 0):
        run_tensors(kernel, given[1], case.params, {})
    now = copies(live[0])
    again = in_the_first_memory(0)
    late, now, again, early, other = unchanged.demand(late, now, again, *kept)
    stale = "new values in the same memory do not give the results of those values"
    changed = "what an earlier call returned is changed by a later call"
    between = "the gradients of a call depend on another call before its backward pass"
    demand_same(case, now, early, changed, labels=("after", "before"))
    demand_same(case, late, other, stale, labels=("same memory", "fresh memory"))
    outputs_again, outputs_early = ({name: some[name] for name in kernel.outputs} for some in (again, early))
    demand_same(case, outputs_again, outputs_early, stale, labels=("again", "at first"))
    demand_same(case, again, early, between, labels=("no call between", "a call between"))
    # results cached by shape would pass all comparisons above
    same = {name: value for name, value in late.items() if value.numel() and same_bits([value], [early[name]])}
    data = [[value for name in data_operands(kernel) if (value := some[name]) is not None] for some in values]
    if not same or same_bits(*data):
        return

    def of(at: int, device: str | torch.device) -> Measured:
        """Returns the equal results as results of the first (0) or the second (1) values."""
        return Measured(sent_all(values[at], device), sent_all(arriving[at], device), same)

    def away(at: int) -> dict[str, float]:
        """Returns how far the equal results are from PyTorch's of the first (0) or the second (1) values.

        The mean: one element that is a spacing off is as far as most elements of other values, if results vary little.
        """
        try:
            theirs = run_baseline(kernel, cases[at], device, of(at, device)).results
        except KernelError:  # PyTorch may lack the memory or refuse the operands
            return {}
        both = {name: (value, theirs[name].to(value.device)) for name, value in same.items() if name in theirs}
        return {name: float(distances(ours.double(), other.double()).mean()) for name, (ours, other) in both.items()}

    # Right results, as gradients of 0 of rows of one number, are about as far in both. Exact values would cost minutes.
    first, second = away(0), away(1)
    same = {name: v for name, v in same.items() if not second.get(name, math.inf) <= _AS_FAR * first.get(name, 0.0)}

    def wrong(at: int) -> Broken | None:
        """Judges equal results as results of the first (0) or the second (1) values. Returns None if right."""
        where = next(iter(same.values())).device
        return broken_by(subject, cases[at], of(at, where))

    # if both are wrong, as with an overflow everywhere, the law of accuracy reports that
    if same and (broken := wrong(1)) is not None and wrong(0) is None:
        facts = {"result": f"{broken.result}, the same bits as for the values before"}
        raise broken.restated(stale, case, facts | broken.facts) from None


LAWS = (memory_bounds, initialised_memory, nothing_overwritten, no_stale_results)
