"""Reproduce one element of one case: the same bits in, the whole case run again, one element judged exactly."""

from __future__ import annotations

import math

import msgspec
import torch

from verify import formats
from verify.backends import Backend
from verify.cases import Case, problem_of
from verify.declaration import Kernel
from verify.element import describe
from verify.errors import UsageError
from verify.measure import Measured, run_baseline, run_kernel
from verify.record import Worst
from verify.truth.exact import judge
from verify.truth.fast import evaluate
from verify.ulp import bits_of, pattern_at, ulp_exponent


class Replay(msgspec.Struct, frozen=True):
    """What the replayed element looks like now."""

    kernel: str
    op: str
    result: str
    dtype: str
    backend: str
    worst: Worst
    right: str  # the correctly rounded value
    right_hex: str
    misrounded: bool
    repeatable: bool  # a second call gave the same bits everywhere
    baseline: Worst | None
    limit: float
    gate: str


def replay(kernel: Kernel, target: str, backend: Backend, case: Case, *, result: str, index: int) -> Replay:
    """Run the case and judge element `index` (flat) of `result`."""
    measured = run_kernel(kernel, case, backend.device)
    again = run_kernel(kernel, case, backend.device)
    if result not in measured.results:
        raise UsageError(f"kernel {kernel.name!r} has no result {result!r} here; it has: {', '.join(measured.results)}")
    got = measured.results[result]
    if not 0 <= index < got.numel():
        raise UsageError(f"{result} has {got.numel()} elements; --index received {index}")
    same = all(torch.equal(bits_of(first), bits_of(again.results[name])) for name, first in measured.results.items())
    worst, right, misrounded = _judge(kernel, target, case, measured, result, index)
    baseline: Worst | None = None
    if not kernel.peer:
        theirs = run_baseline(kernel.op, case, backend.device, kernel.outputs)
        if result in theirs.results:
            baseline, _, _ = _judge(kernel, target, case, theirs, result, index)
    fmt = formats.of(got.dtype)
    return Replay(
        kernel=kernel.name,
        op=kernel.op.name,
        result=result,
        dtype=fmt.name,
        backend=backend.name,
        worst=worst,
        right="nan" if right is None else repr(fmt.to_float(right)),
        right_hex="any NaN" if right is None else fmt.hex(right),
        misrounded=misrounded,
        repeatable=same,
        baseline=baseline,
        limit=kernel.limit(case.dtype),
        gate=kernel.op.gate,
    )


def _judge(
    kernel: Kernel, target: str, case: Case, measured: Measured, result: str, index: int
) -> tuple[Worst, int | None, bool]:
    got = measured.results[result]
    fmt = formats.of(got.dtype)
    problem = problem_of(kernel.op, case, measured.inputs, measured.upstream, (result,))
    pattern = pattern_at(got, index)
    judged = judge(kernel.op.points(problem, result, [index])[0], fmt, pattern, both=True, policy=kernel.policy)
    scaled = None
    if kernel.op.gate == "scaled":
        truth = evaluate(kernel.op, problem, {result: formats.named("float32")})[result]
        scale = torch.maximum(truth.scale.reshape(-1)[index], truth.value.reshape(-1)[index].abs())
        exponent = int(ulp_exponent(scale.reshape(1), fmt)[0])
        try:
            scaled = math.ldexp(judged.ulp, judged.exponent - exponent)
        except OverflowError:
            scaled = math.copysign(math.inf, judged.ulp)
    worst = describe(kernel.op, case, problem, result, got, index, judged, target, scaled=scaled)
    return worst, judged.right_bits, judged.misrounded
