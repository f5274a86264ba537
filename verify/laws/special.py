"""Special values: NaN, infinities, zeros of both signs, subnormals and the largest numbers give what mathematics says.

Each case plants every kind of special value into ordinary data: one per element (per row, where a row decides), in
turn in each operand and in the upstream gradient. NaN must come out exactly where the real function has no value, an
infinity where it is infinite, and a number within the kernel's limit everywhere else, subnormals included unless the
kernel's policy flushes them. The sign of a zero counts when the kernel's policy says so.

Two special values never meet in one element: infinity times a number that underflows is a question of what the
format can hold on the way, on which correct kernels differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from verify import formats
from verify.cases import Case, counter, inputs_of, problem_of, upstream_of
from verify.cases.strategies import Space, space
from verify.cases.values import SMALL, special_patterns
from verify.formats import Format
from verify.laws.accuracy import judge_results
from verify.laws.compare import place, show
from verify.laws.law import Broken, Law, Subject
from verify.laws.locality import data_operands, is_packed
from verify.measure import call_tensors, gradients_of
from verify.truth.fast import evaluate
from verify.ulp import from_bits

_DIMS: dict[str, tuple[tuple[int, ...], ...]] = {
    "elementwise": ((96,), (5, 7), (193,), (3,)),
    "rowwise": ((48, 5), (24, 1), (24, 33), (8, 2)),
    "contraction": ((48, 5, 3), (8, 33, 2), (24, 1, 4)),
}
_FILL = {"elementwise": "normal", "rowwise": "randn", "contraction": "randn"}


def _space(subject: Subject) -> Space:
    kind = subject.kernel.op.kind
    return space(
        subject.kernel,
        subject.dtype,
        sizes=subject.sizes,
        shapes=_DIMS[kind],
        fill=(_FILL[kind],),
        upstream=("normal", "ones"),
    )


def plant(
    tensor: Tensor, seed: int, lane: int, lanes: int, *, rows: bool, infinite: bool, largest: bool, single: bool = False
) -> None:
    """Put special values in place into every `lanes`-th element, or into one element of every `lanes`-th row.

    `infinite` and `largest` say whether infinities and the largest finite numbers are among them; with `single` only
    one place gets one.
    """
    if tensor.is_cuda and tensor.numel() <= SMALL:  # a dozen launches take longer than the way there and back
        planted = tensor.cpu()
        plant(planted, seed, lane, lanes, rows=rows, infinite=infinite, largest=largest, single=single)
        tensor.copy_(planted)
        return
    fmt = formats.of(tensor.dtype)
    signed = _signed(fmt, infinite, largest)
    specials = from_bits(torch.tensor(signed, dtype=torch.int64, device=tensor.device), fmt)
    width = tensor.shape[-1] if rows else 1
    count = tensor.numel() // width
    chosen = torch.arange(lane, count, lanes, device=tensor.device)
    if single:
        chosen = chosen[:1]
    start = int(counter.below(seed, f"special/{lane}", 1, len(signed))[0])
    value = specials[(chosen // lanes + start) % len(signed)]
    column = counter.below(seed, f"special/{lane}/column", chosen.numel(), width, device=tensor.device)
    place = chosen * width + column
    flat = tensor.reshape(-1)
    flat[place] = value
    tensor.copy_(flat.reshape(tensor.shape))  # a half of a packed operand is no flat view


@lru_cache
def _signed(fmt: Format, infinite: bool, largest: bool) -> tuple[int, ...]:
    """The patterns of special values, as signed integers."""
    patterns = special_patterns(fmt)
    if not infinite:
        patterns = [bits for bits in patterns if not fmt.is_inf(bits)]
    if not largest:
        patterns = [bits for bits in patterns if not fmt.is_finite(bits) or bits & ~fmt.sign_bit < fmt.max_bits - 1]
    return tuple(map(fmt.signed, patterns))


def _check(subject: Subject, case: Case) -> None:
    kernel = subject.kernel
    rows = kernel.op.kind != "elementwise"
    inputs = inputs_of(kernel.op, case, subject.backend.device)
    tensors = [value for name in data_operands(kernel) if (value := inputs[name]) is not None]
    if is_packed(kernel):
        tensors = list(tensors[0].chunk(2, -1))
    lanes = len(tensors) + (len(kernel.outputs) if case.upstream else 0)
    # The product of several factors may overflow on the way to a number that fits, in whatever order it is taken.
    largest = rows or len(tensors) == 1
    # The gradient of a weight sums over all rows: two large ones of opposite sign overflow on the way to their sum.
    single = kernel.op.kind == "contraction"
    for lane, tensor in enumerate(tensors):
        plant(tensor, case.seed, lane, lanes, rows=rows, infinite=True, largest=largest, single=single)
    graph = call_tensors(kernel, inputs, case.params, differentiate=bool(case.upstream))
    upstream = upstream_of(kernel.op, case, graph.values)
    for lane, tensor in enumerate(upstream.values(), len(tensors)):
        # In a sum, an infinite upstream gradient leaves infinities of both signs to subtract, and the largest finite
        # one overflows on the way to a finite sum: neither says anything about a kernel.
        plant(tensor, case.seed, lane, lanes, rows=rows, infinite=not rows, largest=largest and not rows)
    results = graph.values | gradients_of(kernel, graph, upstream)
    judge_results(subject, case, inputs, upstream, results)
    if kernel.policy.signed_zero == "strict" and not rows:  # a sum that cancels has no sign of its own
        _check_zeros(subject, case, inputs, upstream, results)


def _check_zeros(
    subject: Subject,
    case: Case,
    inputs: dict[str, Tensor | None],
    upstream: dict[str, Tensor],
    results: dict[str, Tensor],
) -> None:
    problem = problem_of(subject.kernel.op, case, inputs, upstream, tuple(results))
    kinds = {name: formats.of(tensor.dtype) for name, tensor in results.items()}
    for name, truth in evaluate(subject.kernel.op, problem, kinds).items():
        got = results[name]
        wrong = (truth.value == 0) & (got == 0) & (torch.signbit(got) != torch.signbit(truth.value))
        places = torch.nonzero(wrong.reshape(-1))
        if places.numel():
            index = int(places[0])
            facts = {"at": f"{name} {place(got, index)}", "got": show(got, index)}
            raise Broken("a zero has the wrong sign", case, facts, result=name, index=index)


LAWS: Sequence[Law] = (
    Law(
        name="special values",
        summary="NaN, infinities, zeros, subnormals and the largest numbers give what mathematics says",
        space=_space,
        check=_check,
    ),
)
