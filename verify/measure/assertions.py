"""`verify.assert_ulp`: the exact-answer check for tests that exist already."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from verify import ops
from verify.cases import Case
from verify.cases.explicit import spell
from verify.declare.promises import default_noise
from verify.errors import UsageError
from verify.measure.element import describe
from verify.measure.judge import judge_result, with_noise_again
from verify.ops.op import Op, Problem
from verify.records.record import value_of
from verify.truth import formats
from verify.truth.fast import evaluate
from verify.truth.figure import UNIT, shown
from verify.truth.ulp import Policy

SPELLED = 32  # elements that a command in a message spells out


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
    Ops that cancel are judged by the scaled error, programs of `like=` also by their noise, as in `verify run`. The
    message says how many elements fail, and has the worst input with its bits.
    """
    __tracebackhide__ = True  # of pytest: what failed is the line that calls this
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
    truth = with_noise_again(definition, problem, result, actual, truth, fmt)
    floor, limit = 0.0, max_ulp
    if definition.gate_of(result) == "noise":  # beside that a program's noise is right
        limit = default_noise(fmt.name)
        floor = (max_ulp - 0.5) / limit
    outcome = judge_result(definition, problem, result, actual, truth, fmt, policy=policy or Policy(), floor=floor)
    tally = outcome.tallies[0]
    upper = value_of(tally.maximum(definition.gate_of(result)).upper)
    # not (x <= bound): a NaN must fail
    if not (upper <= limit) or tally.nan:
        index, found = tally.leaders[0].place, outcome.errors
        case = _case(definition, problem, result, actual, index)
        error = value_of(tally.leaders[0].upper)
        scaled = found.scaled is not None
        worst = describe(
            definition, case, problem, result, actual, index, outcome.exact[index], "FILE.py::KERNEL", scaled=None
        )
        size, width = (found.scaled, found.scaled_width) if scaled else (found.ulp, found.width)
        assert size is not None and width is not None
        failing = max(1, int((~(size.abs() + width <= limit)).sum()))
        at = f"[{', '.join(map(str, worst.index))}]"
        off = f"{shown(error)}{UNIT[definition.gate_of(result)]} off at {at}, the bound is {limit:g}"
        lines = [
            f"{definition.name}.{result} is {off}; {failing:,} of {actual.numel():,} elements fail",
            *(f"  {name:<7} {text}" for name, text in worst.inputs.items()),
            f"  got     {worst.got} ({worst.got_hex})",
            f"  truth   {worst.truth}",
            f"  explain {_explain(result, case, index)}",
        ]
        raise AssertionError("\n".join(lines))


def _case(op: Op, problem: Problem, result: str, actual: Tensor, index: int) -> Case:
    """The case of the worst element alone where the op is elementwise, else of the tensors whose dims are known."""
    tensors = {name: value for name, value in problem.inputs.items() if value is not None}
    upstream = {"d" + name: value for name, value in problem.upstream.items()} if result in op.gradients else {}
    dims = _dims(op, problem, actual)
    given = tensors | upstream
    if op.kind == "elementwise" and all(value.shape == actual.shape for value in given.values()):
        given, dims = {name: value.reshape(-1)[index : index + 1] for name, value in given.items()}, (1,)
    kinds = {name: formats.of(value.dtype).name for name, value in tensors.items() if value.is_floating_point()}
    dtype = next(iter(kinds.values()), formats.of(actual.dtype).name)
    params = {name: value for name, value in problem.params.items() if op.resolve({}).get(name) != value}
    known = dims is not None and len(kinds) == len(tensors)  # a case has no place for given integers
    short = known and sum(value.numel() for value in given.values()) <= SPELLED
    return Case(
        dtype=dtype,
        dims=dims or (),
        fill="normal" if op.kind == "elementwise" else "randn",
        params=params,
        upstream="normal" if upstream else "",
        absent=tuple(name for name, value in problem.inputs.items() if value is None),
        dtypes={name: kind for name, kind in kinds.items() if kind != dtype},
        values={name: spell(value) for name, value in given.items()} if short else {},
    )


def _dims(op: Op, problem: Problem, actual: Tensor) -> tuple[int, ...] | None:
    """The dims of a case with these shapes: those of an operand or the result, or of a product; None where none fit."""
    shapes = {name: tuple(value.shape) for name, value in problem.inputs.items() if value is not None}
    first, last = next(iter(shapes.values())), tuple(actual.shape)
    for dims in (first, last, (*first, *last[-1:])):
        try:
            if {name: shape for name, shape in op.shapes(dims, problem.params).items() if name in shapes} == shapes:
                return dims
        except (LookupError, TypeError, ValueError, UsageError):
            continue
    return None


def _explain(result: str, case: Case, index: int) -> str:
    """The command that says which step makes the error; a kernel has to be declared for it."""
    if not case.values:
        return "verify run FILE.py --json run.json, then verify explain --run run.json (FILE.py declares the kernel)"
    place = ["--result", result, "--index", "0" if case.dims == (1,) else str(index)]
    return shlex.join(["verify", "explain", "FILE.py::KERNEL", case.to_json(), *place])
