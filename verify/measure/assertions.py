"""Compares results with the exact answer in a user's tests: `verify.assert_ulp` and `verify.assert_close`."""

from __future__ import annotations

import copy
import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from verify import ops
from verify.cases import Case, problem_of
from verify.cases.explicit import spell
from verify.cases.plan import Group
from verify.declare.declaration import Kernel, kernel
from verify.declare.promises import DEFAULT_LIMIT, WIDE, default_limit, default_noise, differing
from verify.errors import UsageError, said_by
from verify.measure.call import Measured, items_of, outputs_of
from verify.measure.case import KERNEL, Piece, Question, judge_case, question_of
from verify.measure.element import worst_element
from verify.measure.judge import JudgedBy, judge_by, with_noise_again
from verify.measure.kernel import SMALL
from verify.measure.result import check_limit
from verify.ops.graph.like import Definition
from verify.ops.op import Op, Problem
from verify.records.figure import UNIT, shown
from verify.records.record import Origin, value_of
from verify.truth import formats
from verify.truth.fast import evaluate
from verify.truth.ulp import Policy

SPELLED = 32  # a message's command spells out the inputs of at most this many elements


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
    """Raises AssertionError unless every element of `actual` is within `max_ulp` of the exact answer.

        verify.assert_ulp(fast_gelu(x), op="gelu", inputs=(x,), max_ulp=1)

    inputs: the tensors that the kernel received, in the op's order. None marks an absent operand.
    result: the name of the compared result. For a gradient this is a name such as "dx".
    upstream: the gradients that arrived at the outputs. Only a gradient needs them.

    As in `verify run`, the scaled error judges ops whose terms cancel, and a program of `like=` is judged by its noise
    too. The message gives the number of failing elements and the worst input with its bits.
    """
    __tracebackhide__ = True  # pytest then shows the line of the user's test
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
    if definition.gate_of(result) == "noise":  # the ULP limit also holds where a program's noise is smaller
        limit = default_noise(fmt.name)
        floor = (max_ulp - 0.5) / limit
    by = JudgedBy(definition, problem, result, truth, fmt, policy or Policy(), floor=floor)
    outcome = judge_by(by, actual)
    tally = outcome.tallies[0]
    upper = value_of(tally.maximum(definition.gate_of(result)).upper)
    # not (x <= bound): a NaN must fail
    if not (upper <= limit) or tally.nan:
        index, found = tally.leaders[0].place, outcome.errors
        case = _case(definition, problem, result, actual, index)
        error = value_of(tally.leaders[0].upper)
        scaled = found.scaled is not None
        origin = Origin("FILE.py::KERNEL", case.to_json(), result, index)
        worst = worst_element(definition, problem, actual, outcome.exact[index], origin)
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


def assert_close(
    actual: Any,
    *,
    like: Callable[..., Any],
    inputs: Sequence[Any],
    grads: Sequence[Tensor | None] | Mapping[str, Tensor] = (),
    upstream: Tensor | Sequence[Tensor] | None = None,
    accumulate: str = "float32",
    intermediate: str = "eager",
    vacuous: Mapping[str, str] | None = None,
    check_dtype: bool = True,
) -> None:
    """Raises AssertionError unless `actual` is as close to the exact answer as `like` can be computed.

        verify.assert_close(my_layer(x, w), like=layer, inputs=(x, w))

    The caller gives no tolerance. The limits are the same as in `verify run` with `like=`. They follow from the
    rounding noise of the program and from the format of each result (docs/how-a-verdict-is-made.md). All inputs count
    as ordinary.

    actual: a tensor, or several tensors as `like` returns them.
    inputs: the arguments of `like`, with the tensors that the kernel received.
    grads: the gradients of the inputs, in their order (None omits one) or by name.
    upstream: the gradient that arrived at the output. The default is 1 if the output is one number.
    accumulate, intermediate, vacuous: as in `verify.kernel`.
    check_dtype: True: a result must have the dtype that `like` gives it, and a gradient that of its input. False: each
    result is judged in its own dtype.

    A NaN never passes where the answer is a number. Three kinds of results do not pass either: a vacuous one, which
    zeros or other trivial answers would pass too; an undecided one; and one without elements.
    """
    __tracebackhide__ = True  # pytest then shows the line of the user's test
    said = {"accumulate": accumulate, "intermediate": intermediate}
    _Closeness(like, inputs, upstream, said, vacuous, check_dtype).demand(actual, grads)


def close_to(
    *,
    like: Callable[..., Any],
    inputs: Sequence[Any],
    accumulate: str = "float32",
    intermediate: str = "eager",
    vacuous: Mapping[str, str] | None = None,
    check_dtype: bool = True,
) -> Callable[..., None]:
    """Returns a check of results for one set of inputs. The exact answer is computed once.

        check = verify.close_to(like=layer, inputs=(x, w))
        check(my_layer(x, w))

    The check raises AssertionError as `assert_close` does. The hook of an autotuner, such as Helion's
    autotune_baseline_accuracy_check_fn, passes a second result to compare with. The check ignores it, because the exact
    answer is known.
    """
    said = {"accumulate": accumulate, "intermediate": intermediate}
    found = _Closeness(like, inputs, None, said, vacuous, check_dtype)

    def check(actual: Any, expected: Any = None) -> None:
        __tracebackhide__ = True
        found.demand(actual, ())

    return check


class _Closeness:
    """Holds a program and its inputs. The exact answer is computed once for each combination of result formats."""

    def __init__(
        self,
        like: Callable[..., Any],
        inputs: Sequence[Any],
        upstream: Tensor | Sequence[Tensor] | None,
        said: Mapping[str, str],
        vacuous: Mapping[str, str] | None,
        check_dtype: bool,
    ) -> None:
        given = [value.detach().clone() if isinstance(value, Tensor) else value for value in inputs]
        names = _operands(like, given)
        if not names:
            raise UsageError(
                f"inputs are the arguments of like=, at least one tensor; received {inputs!r}",
                hint="verify.assert_close(got, like=torch.nn.functional.gelu, inputs=(x,))",
            )
        self.inputs = dict(zip(names, (value for value in given if isinstance(value, Tensor)), strict=True))
        self.op, self.vacuous = Definition(like, names, examples=[tuple(given)], **said).op(), vacuous  # type: ignore[arg-type]
        self.check_dtype, self.like, self.given = check_dtype, like, given
        self.label = self.op.name.split()[1]
        each = [] if upstream is None else [upstream] if isinstance(upstream, Tensor) else list(upstream)
        self.upstream = {name: value.detach().clone() for name, value in zip(self.op.outputs, each, strict=False)}
        self.questions: dict[tuple[tuple[str, torch.dtype], ...], tuple[Kernel, Group, Question]] = {}

    def demand(self, actual: Any, grads: Sequence[Tensor | None] | Mapping[str, Tensor]) -> None:
        """Raises AssertionError unless every result keeps its limits."""
        __tracebackhide__ = True
        results = outputs_of(actual, self.op.outputs, "what is compared", self.op.integers)
        kinds = {name: value.dtype for name, value in zip(self.op.outputs, items_of(actual), strict=True)}
        results = {name: value.detach() for name, value in (results | self._gradients(grads, results)).items()}
        for name, value in results.items():
            if not value.numel():
                raise AssertionError(f"{self.label}.{name} has no elements: nothing was compared, which is no pass")
        if self.check_dtype:
            self._demand_dtypes({name: value.dtype for name, value in results.items()} | kinds)
        key = tuple((name, value.dtype) for name, value in results.items())
        if key not in self.questions:
            self.questions[key] = self._question(results)
        declared, group, question = self.questions[key]
        for name, value in results.items():
            reference = question.fast[name]
            assert reference is not None, "all elements are judged here"
            if (wanted := tuple(reference.value.shape)) != tuple(value.shape):
                raise AssertionError(f"{self.label}.{name} has shape {wanted}; received {tuple(value.shape)}")
        given = {KERNEL: results}
        pieces = judge_case(declared, group, question.explaining(given), given, {})[KERNEL]
        failed = [text for name, piece in pieces.items() if (text := self._failure(declared, question, name, piece))]
        if failed or set(pieces) != set(results):
            raise AssertionError("\n".join(failed) or "a result was not judged, which is no pass")

    def _gradients(
        self, grads: Sequence[Tensor | None] | Mapping[str, Tensor], results: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Returns the gradients to compare, by result. Sets the upstream gradient to 1 for an output of one number."""
        pairs = grads.items() if isinstance(grads, Mapping) else zip(self.inputs, grads, strict=False)
        found = {f"d{name}": value for name, value in pairs if value is not None}
        if unknown := set(found) - set(self.op.gradients):
            known = ", ".join(self.op.gradients) or "none"
            raise UsageError(f"{self.label} has the gradients {known}; received {', '.join(sorted(unknown))}")
        if found and not self.upstream:
            name, output = next(iter(results.items()))
            if len(self.op.outputs) > 1 or output.numel() != 1:
                raise UsageError(
                    f"the gradients of {self.label} depend on what arrived at its output; received no upstream=",
                    hint="assert_close(y, ..., grads=torch.autograd.grad(y, (x, w), dy), upstream=dy)",
                )
            self.upstream = {name: torch.ones_like(output)}
        return found

    def _demand_dtypes(self, kinds: Mapping[str, torch.dtype]) -> None:
        """Raises AssertionError if an output has another dtype than PyTorch's, or a gradient than its input."""
        __tracebackhide__ = True
        wanted = {"d" + name: value.dtype for name, value in self.inputs.items()} | self.dtypes
        for name, kind in kinds.items():
            if kind != wanted[name]:
                raise AssertionError(
                    f"{self.label}.{name} has dtype {wanted[name]}; received {kind}\n"
                    f"  next    check_dtype=False judges it as {kind}"
                )

    @cached_property
    def dtypes(self) -> dict[str, torch.dtype]:
        """The dtypes of PyTorch's own outputs, without autocast, on copies of the inputs and of a module."""
        like, device = self.like, next(iter(self.inputs.values())).device
        given = [value.clone() if isinstance(value, Tensor) else value for value in self.given]
        try:
            with torch.autocast(device.type, enabled=False):
                returned = (copy.deepcopy(like).to(device) if isinstance(like, torch.nn.Module) else like)(*given)
            made = [each.dtype for each in items_of(returned) if each is not None]
            return dict(zip(self.op.outputs, made, strict=True))
        except Exception as error:
            raise UsageError(
                f"a result has PyTorch's dtype, and {self.label} raised on these inputs: {said_by(error)}",
                hint="check_dtype=False judges each result in its own dtype",
            ) from error

    def _question(self, results: Mapping[str, Tensor]) -> tuple[Kernel, Group, Question]:
        """Returns the kernel declaration for the formats of these results, its group, and the question to judge."""
        kinds = {name: formats.of(each.dtype).name for name, each in self.inputs.items() if each.is_floating_point()}
        of_results = {name: formats.of(value.dtype).name for name, value in results.items()}
        dtype = next(iter(kinds.values()), of_results[next(iter(results))])
        outputs = {name: kind for name, kind in of_results.items() if name in self.op.outputs}
        numbers = {name: kind for name, kind in outputs.items() if name not in self.op.integers}
        wide = WIDE if self.op.gate == "plain" else DEFAULT_LIMIT
        declared = kernel(
            op=self.op,
            name=self.label,
            dtypes=[dtype],
            max_ulp={kind: default_limit(kind, wide) for kind in (dtype, *kinds.values(), *numbers.values())},
            operand_dtypes={dtype: differing(dtype, kinds)} if differing(dtype, kinds) else None,
            output_dtypes={dtype: differing(dtype, numbers)} if differing(dtype, numbers) else None,
            vacuous=self.vacuous,
        )(lambda *tensors: None)
        # the recipe marks the inputs as ordinary; no values are drawn from it
        case = Case(dtype=dtype, dims=(0,), fill="normal", upstream="normal" if self.upstream else "")
        group = Group((case,))
        measured = Measured(dict(self.inputs), dict(self.upstream), dict(results))
        wanted = tuple(filter(group.judges, results))
        problem = problem_of(self.op, case, measured.inputs, measured.upstream, wanted)
        return declared, group, question_of(declared, case, measured, problem, "", 0, SMALL)

    def _failure(self, declared: Kernel, question: Question, name: str, piece: Piece) -> str:
        """Returns the message about a result that breaks its limits, with its worst element; empty if it keeps them."""
        found = check_limit(declared, question.case.dtype, name, piece.parts, piece.trivial)
        if found.status == "ok" and any(part.n > 0 for part in piece.parts.values()):
            return ""
        reason = (found.reason or "nothing was judged").replace(" on ordinary inputs", "")
        lines = [f"{self.label}.{name} is {found.status}: {reason}"]
        if piece.worst:
            worst = piece.worst[0][1]
            at = f" at [{', '.join(map(str, worst.index))}]" if worst.index else ""
            lines += [f"  {operand:<7} {text}" for operand, text in worst.inputs.items()]
            lines += [f"  got     {worst.got} ({worst.got_hex}){at}", f"  truth   {worst.truth}"]
        limit, gate = declared.limit(question.case.dtype, name), self.op.gate_of(name)
        also = f" or {declared.ulp_limit(question.case.dtype, name):g} ULP" if gate == "noise" else ""
        lines.append(f"  limit   {limit:g}{UNIT[gate]}{also}")
        if found.status == "vacuous":
            lines.append(f"  next    inputs on which trivial answers fail, or vacuous={{{name!r}: 'REASON'}}")
        return "\n".join(lines)


def _operands(like: Callable[..., Any], given: Sequence[Any]) -> list[str]:
    """Returns the names of the tensors among the inputs: the parameter names of `like`, if its signature is known."""
    try:
        known = list(inspect.signature(like.forward if isinstance(like, torch.nn.Module) else like).parameters.values())
    except (TypeError, ValueError):
        known = []
    plain = [each.name for each in known if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    names = [*plain, *(f"x{place}" for place in range(len(plain), len(given)))]
    return [name for name, value in zip(names, given, strict=False) if isinstance(value, Tensor)]


def _case(op: Op, problem: Problem, result: str, actual: Tensor, index: int) -> Case:
    """Returns a case for the message's command.

    For an elementwise op it has the worst element alone. Otherwise it has all tensors, if their dims are known.
    """
    tensors = {name: value for name, value in problem.inputs.items() if value is not None}
    upstream = {"d" + name: value for name, value in problem.upstream.items()} if result in op.gradients else {}
    dims = _dims(op, problem, actual)
    given = tensors | upstream
    if op.geometry.by_element and all(value.shape == actual.shape for value in given.values()):
        given, dims = {name: value.reshape(-1)[index : index + 1] for name, value in given.items()}, (1,)
    kinds = {name: formats.of(value.dtype).name for name, value in tensors.items() if value.is_floating_point()}
    dtype = next(iter(kinds.values()), formats.of(actual.dtype).name)
    params = {name: value for name, value in problem.params.items() if op.resolve({}).get(name) != value}
    known = dims is not None and len(kinds) == len(tensors)  # a case cannot store integer inputs
    derived = [operand.name for operand in op.derived]
    short = known and sum(value.numel() for value in given.values()) <= SPELLED
    return Case(
        dtype=dtype,
        dims=dims or (),
        fill=op.geometry.fill,
        params=params,
        upstream="normal" if upstream else "",
        absent=tuple(name for name, value in problem.inputs.items() if value is None),
        dtypes={name: kind for name, kind in kinds.items() if kind != dtype},
        values={name: spell(value) for name, value in given.items() if name not in derived} if short else {},
    )


def _dims(op: Op, problem: Problem, actual: Tensor) -> tuple[int, ...] | None:
    """Returns the dims of a case whose operands have these shapes; None if no dims fit.

    Tries the shape of the first operand, the shape of the result, and the dims of a matrix product.
    """
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
    """Returns the command that finds the step with the error. The user must declare the kernel first."""
    if not case.values:
        return "verify run FILE.py --json run.json, then verify explain --run run.json (FILE.py declares the kernel)"
    place = ["--result", result, "--index", "0" if case.dims == (1,) else str(index)]
    return shlex.join(["verify", "explain", "FILE.py::KERNEL", case.to_json(), *place])
