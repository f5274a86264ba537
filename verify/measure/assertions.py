"""`verify.assert_ulp`: the exact-answer check for tests that exist already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from verify import ops
from verify.errors import UsageError
from verify.measure.judge import judge_result
from verify.ops.op import Op, Problem
from verify.records.record import value_of
from verify.truth import formats
from verify.truth.exact import digits
from verify.truth.fast import evaluate
from verify.truth.figure import shown
from verify.truth.ulp import Policy, pattern_at


def assert_ulp(
    actual: Tensor,
    *,
    op: str | Op,
    inputs: Sequence[Tensor | None],
    max_ulp: float,
    params: Mapping[str, Any] | None = None,
    result: str = "y",
    upstream: Sequence[Tensor] = (),
    policy: Policy | None = None,
) -> None:
    """Raise AssertionError unless every element of `actual` is within `max_ulp` of the exact answer.

        verify.assert_ulp(fast_gelu(x), op="gelu", inputs=(x,), max_ulp=1)

    `inputs` are the tensors that the kernel received, in the op's order (None for an absent one). For a
    gradient, `result` is its name, such as "dx", and `upstream` the gradients that arrived at the outputs.
    Ops that cancel are judged by the scaled error, as in `verify run`.
    """
    definition = op if isinstance(op, Op) else ops.get(op)
    names = [operand.name for operand in definition.operands]
    if len(inputs) > len(names):
        raise UsageError(f"op {definition.name!r} takes {', '.join(names)}; assert_ulp received {len(inputs)} inputs")
    if not isinstance(actual, Tensor):
        raise UsageError(f"assert_ulp compares a torch.Tensor; received {type(actual).__name__}")
    given = dict(zip(names, (*inputs, *[None] * (len(names) - len(inputs))), strict=True))
    problem = Problem(
        inputs={name: None if value is None else value.detach() for name, value in given.items()},
        params=definition.resolve(params or {}),
        upstream=dict(zip(definition.outputs, (g.detach() for g in upstream), strict=False)),
        results=(result,),
    )
    known = (*definition.all_outputs, *definition.gradients)
    if result not in known:
        raise UsageError(f"op {definition.name!r} has results {', '.join(known)}; received {result!r}")
    if result in definition.gradients and not upstream:
        raise UsageError(f"{result} needs upstream=(dy,): the gradient that arrived at the output")
    fmt = formats.of(actual.dtype)
    truth = evaluate(definition, problem, {result: fmt})[result]
    if tuple(truth.value.shape) != tuple(actual.shape):
        raise AssertionError(
            f"{definition.name}.{result} has shape {tuple(truth.value.shape)}; received {tuple(actual.shape)}"
        )
    outcome = judge_result(definition, problem, result, actual, truth, fmt, policy=policy or Policy())
    tally = outcome.tallies[0]
    upper = value_of(tally.maximum(definition.gate).upper)
    # not (x <= bound): a NaN must fail
    if not (upper <= max_ulp) or tally.nan:
        error, index = value_of(tally.leaders[0].upper), tally.leaders[0].place
        pattern = pattern_at(actual.detach(), index)
        exact = digits(definition.points(problem, result, [index])[0])
        unit = "ULP of scale" if definition.gate == "scaled" else "ULP"
        raise AssertionError(
            f"{definition.name}.{result} is {shown(error)} {unit} off at flat index {index}, the bound is {max_ulp:g}\n"
            f"  got   {fmt.to_float(pattern)!r} ({fmt.hex(pattern)})\n"
            f"  truth {exact}"
        )
