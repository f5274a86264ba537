"""Compares results with the exact answer in a user's tests: `verify.assert_close` and `verify.close_to`."""

import copy
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from verify.cases import Case, problem_of
from verify.cases.plan import Group
from verify.declare.declaration import Kernel, kernel
from verify.declare.promises import DEFAULT_LIMIT, WIDE, default_limit, differing, of_program
from verify.declare.standin import baseline_of
from verify.errors import KernelError, UsageError, said_by
from verify.measure.call import Measured, run_tensors
from verify.measure.case import Question, judge_case, question_of
from verify.measure.findings import BASELINE, KERNEL, CaseFindings, Findings
from verify.measure.form import items_of, outputs_of, unlike_plain
from verify.measure.kernel import SMALL
from verify.measure.result import check_limit, finite
from verify.measure.tally import BIAS_LIMIT
from verify.ops.graph.called import name_of
from verify.ops.graph.like import Definition
from verify.records.figure import UNIT
from verify.records.record import Worst
from verify.truth import formats
from verify.truth.ulp import bits_of

P = ParamSpec("P")
R = TypeVar("R")


def _at_the_callers_line(check: Callable[P, R]) -> Callable[P, R]:
    """Makes pytest show the line of the user's test, and none of verify, for errors that are about the test."""

    @functools.wraps(check)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        try:
            return check(*args, **kwargs)
        except (AssertionError, UsageError, KernelError) as error:
            raise error.with_traceback(None) from None

    return called


def _shown(worst: Worst, at: str = "") -> list[str]:
    """Returns the lines of a message about one element."""
    inputs = [f"  {name:<7} {text}" for name, text in worst.inputs.items()]
    return [*inputs, f"  got     {worst.got} ({worst.got_hex}){at}", f"  truth   {worst.truth}"]


@_at_the_callers_line
def assert_close(
    actual: Any,
    *,
    like: Callable[..., Any],
    inputs: Sequence[Any],
    grads: Tensor | Sequence[Tensor | None] | Mapping[str, Tensor] = (),
    upstream: Tensor | Sequence[Tensor | None] | None = None,
    accumulate: str = "float32",
    intermediate: str = "",
    vacuous: Mapping[str, str] | None = None,
    check_dtype: bool = True,
    as_pytorch: bool = False,
    max_ulp: float | None = None,
) -> None:
    """Raises AssertionError unless `actual` is as close to the exact answer as `like` can be computed.

        verify.assert_close(my_layer(x, w), like=layer, inputs=(x, w))

    The caller gives no tolerance. The limits are the same as in `verify run` with `like=`. They follow from the
    rounding noise of the program and from the format of each result (docs/how-a-verdict-is-made.md). All inputs count
    as ordinary.

    actual: a tensor, or several tensors as `like` returns them. None: the gradients alone are compared.
    inputs: the arguments of `like`, with the tensors that the kernel received.
    grads: one gradient for each input, in their order, or some by name. None omits one, and means an input that
        has none, such as a number.
    upstream: the gradient that arrived at each output, None where none did. The default is 1 if the only output is one
        number.
    accumulate, intermediate, vacuous: as in `verify.kernel`.
    check_dtype: True: a result must have the dtype that `like` gives it, and a gradient that of its input. False: each
    result is judged in its own dtype.
    as_pytorch: True: an element may be as far from the exact answer as PyTorch's own result of `like` is there, also if
        that is beyond the limits.
    max_ulp: a limit in ULP in place of the default one, as in `verify.kernel`.

    A NaN never passes where the answer is a number. Three kinds of results do not pass either: a vacuous one, which
    zeros or other trivial answers would pass too; an undecided one; and one without elements.
    """
    said = of_program("assert_close", accumulate, intermediate)
    _Closeness(like, inputs, upstream, said, vacuous, check_dtype, as_pytorch, max_ulp).demand(actual, grads)


@_at_the_callers_line
def close_to(
    *,
    like: Callable[..., Any],
    inputs: Sequence[Any],
    accumulate: str = "float32",
    intermediate: str = "",
    vacuous: Mapping[str, str] | None = None,
    check_dtype: bool = True,
    as_pytorch: bool = False,
    max_ulp: float | None = None,
) -> Callable[..., None]:
    """Returns a check of results for one set of inputs. The exact answer is computed once.

        check = verify.close_to(like=layer, inputs=(x, w))
        check(my_layer(x, w))

    The check raises AssertionError as `assert_close` does. The hook of an autotuner, such as Helion's
    autotune_baseline_accuracy_check_fn, passes a second result to compare with. The check ignores it, because the exact
    answer is known.
    """
    said = of_program("close_to", accumulate, intermediate)
    found = _Closeness(like, inputs, None, said, vacuous, check_dtype, as_pytorch, max_ulp)

    @_at_the_callers_line
    def check(actual: Any, expected: Any = None) -> None:
        found.demand(actual, ())

    return check


class _Closeness:
    """Holds a program and its inputs. The exact answer is computed once for each combination of result formats."""

    def __init__(
        self,
        like: Callable[..., Any],
        inputs: Any,
        upstream: Any,
        said: Mapping[str, Any],
        vacuous: Mapping[str, str] | None,
        check_dtype: bool,
        as_pytorch: bool,
        max_ulp: float | None,
    ) -> None:
        hint = "verify.assert_close(got, like=torch.nn.functional.gelu, inputs=(x,))"
        if not callable(like):
            raise UsageError(f"like= is a PyTorch function or module; received {like!r}", hint=hint)
        self.label, signature = name_of(like), None
        with suppress(TypeError, ValueError):  # Python knows no signature of some functions
            signature = inspect.signature(like.forward if isinstance(like, torch.nn.Module) else like)
        bound = _inputs(self.label, signature, inputs)
        copied = {name: value.detach().clone() if isinstance(value, Tensor) else value for name, value in bound.items()}
        self.inputs = {name: value for name, value in copied.items() if isinstance(value, Tensor)}
        if not self.inputs:
            raise UsageError(f"inputs are the arguments of like=, at least one tensor; received {inputs!r}", hint=hint)
        self.check_dtype, self.like, self.given, self.vacuous = check_dtype, like, list(copied.values()), vacuous
        self.as_pytorch, self.max_ulp = as_pytorch, max_ulp
        self.op = Definition(like, list(self.inputs), examples=[tuple(self.given)], **said).op()
        self.shapes = {f"d{name}": shape for name, shape in self.op.shapes((0,), {}).items()}
        self.shapes |= self.op.result_shapes((0,), {})
        self.slots = {name: f"d{name}" in self.op.gradients for name in bound}  # True: the input has a gradient
        self.upstream = _arrived(self.op.outputs, self.op.integers, self.shapes, upstream)
        self.questions: dict[tuple[tuple[str, torch.dtype], ...], tuple[Kernel, Group, Question]] = {}

    def demand(self, actual: Any, grads: Any) -> None:
        """Raises AssertionError unless every result keeps its limits."""
        outputs = () if actual is None else self.op.outputs
        results = outputs_of(actual, outputs, "what is compared", self.op.integers) if outputs else {}
        kinds = {name: value.dtype for name, value in zip(outputs, items_of(actual, outputs), strict=False)}
        results = {name: value.detach() for name, value in results.items()}
        results |= {f"d{name}": value for name, value in _matched("grads", self.slots, grads).items()}
        _demand_compared(self.label, results, self.shapes)
        if len(results) > len(outputs) and not self.upstream:
            self.upstream = self._one()
        if self.check_dtype:
            self._demand_dtypes({name: value.dtype for name, value in results.items()} | kinds)
        key = tuple((name, value.dtype) for name, value in results.items())
        if key not in self.questions:
            self.questions[key] = self._question(results)
        declared, group, question = self.questions[key]
        given = {KERNEL: results}
        question = question.explaining(given)
        found = judge_case(declared, group, question, given, {})
        if any(finite(each.parts).bias.sure > BIAS_LIMIT for each in found[KERNEL].values()):
            given[BASELINE] = self._theirs(declared, results)  # whose bias excuses one as large
            question = question.explaining(given)
            found = judge_case(declared, group, question, given, {})
        failures = self._failures(declared, question, found)
        if failures:
            theirs = given.get(BASELINE) or self._theirs(declared, results)
            alike = {
                each: self._no_worse(declared, question, each, results[each], theirs.get(each)) for each in failures
            }
            if self.as_pytorch:
                accepted = [name for name, mask in alike.items() if bool(mask.all())]
                found = judge_case(declared, group, replace(question, excused=alike), given, {})
                broken = self._failures(declared, question, found)
                failures = {name: text for name, text in broken.items() if name not in accepted}
            else:
                for name, mask in alike.items():
                    if count := int(mask.sum()):
                        shown = f"as wrong in {count:,} of {mask.numel():,} elements"
                        failures[name] += f"\n  PyTorch {shown}; as_pytorch=True accepts them"
        own = found[KERNEL]
        if failures or set(own) != set(results):
            raise AssertionError("\n".join(failures.values()) or "a result was not judged, which is no pass")

    def _failures(self, declared: Kernel, question: Question, found: CaseFindings) -> dict[str, str]:
        """Returns the message about each result that breaks its limits."""
        said, beside = dict[str, str](), found.get(BASELINE, {})
        for name, findings in found[KERNEL].items():
            if text := self._failure(declared, question, name, findings, beside.get(name, Findings())):
                said[name] = text
        return said

    def _no_worse(self, declared: Kernel, question: Question, name: str, got: Tensor, theirs: Tensor | None) -> Tensor:
        """Returns the mask of the elements beyond the limit where PyTorch's own result is as far off; NaN is none."""
        if theirs is None:
            return torch.zeros(got.numel(), dtype=torch.bool)
        by = question.others.get(KERNEL, question).judged_by(name)
        got, theirs = got.to(by.truth.value.device), theirs.to(by.truth.value.device)
        own, other = by.compared(got)[1], by.compared(theirs)[1]
        beyond = own.beyond(declared.limit(question.case.dtype, name))
        same = (bits_of(got) == bits_of(theirs)).reshape(-1).to(beyond.device)
        return beyond & ~own.nan & (same | (own.upper <= other.least[-1]))

    def _one(self) -> dict[str, Tensor]:
        """Returns 1 as the gradient that arrives at an only output of one number. Raises UsageError for others."""
        (name, *more), like = self.op.outputs, next(iter(self.inputs.values()))
        if more or math.prod(self.shapes[name]) != 1:
            text = f"the gradients of {self.label} depend on what arrived at its output; received no upstream="
            raise UsageError(text, hint="assert_close(y, ..., grads=torch.autograd.grad(y, (x, w), dy), upstream=dy)")
        return {name: torch.ones(self.shapes[name], device=like.device)}

    def _demand_dtypes(self, kinds: Mapping[str, torch.dtype]) -> None:
        """Raises AssertionError if an output has another dtype than PyTorch's, or a gradient than its input."""
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
            made = [each.dtype for each in items_of(returned)]
            return dict(zip(self.op.outputs, made, strict=True))
        except Exception as error:
            text = f"a result has PyTorch's dtype, and {self.label} raised on these inputs: {said_by(error)}"
            raise UsageError(text, hint="check_dtype=False judges each result in its own dtype") from error

    def _theirs(self, declared: Kernel, results: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns PyTorch's own results of the same names and dtypes; none if it raises."""
        upstream = self.upstream if any(name not in self.op.outputs for name in results) else {}
        with suppress(Exception):
            found = run_tensors(baseline_of(declared), self.inputs, {}, upstream)
            same = {name: value for name, value in found.items() if name in results}
            return {name: value for name, value in same.items() if value.dtype == results[name].dtype}
        return {}

    def _question(self, results: Mapping[str, Tensor]) -> tuple[Kernel, Group, Question]:
        """Returns the kernel declaration for the formats of these results, its group, and the question to judge."""
        kinds = {name: formats.of(each.dtype).name for name, each in self.inputs.items() if each.is_floating_point()}
        of_results = {name: formats.of(value.dtype).name for name, value in results.items()}
        dtype = next(iter(kinds.values()), of_results[next(iter(results))])
        outputs = {name: kind for name, kind in of_results.items() if name in self.op.outputs}
        numbers = {name: kind for name, kind in outputs.items() if name not in self.op.integers}
        wide = WIDE if self.op.gate == "plain" else DEFAULT_LIMIT

        def limit(kind: str, wide: float) -> float:
            return default_limit(kind, wide) if self.max_ulp is None else self.max_ulp

        declared = kernel(
            op=self.op,
            name=self.label,
            dtypes=[dtype],
            max_ulp={kind: limit(kind, wide) for kind in (dtype, *kinds.values(), *numbers.values())},
            operand_dtypes={dtype: differing(dtype, kinds)} if differing(dtype, kinds) else None,
            output_dtypes={dtype: differing(dtype, numbers)} if differing(dtype, numbers) else None,
            vacuous=self.vacuous,
        )(lambda *tensors: None)
        alone = {f"{name} {kind}": limit(kind, WIDE) for name in self.op.unsummed for kind in declared.max_ulp}
        beside = self.op.gate == "plain" and self.max_ulp is None
        declared = replace(declared, beside_noise=beside, max_ulp={**declared.max_ulp, **alone})
        # the recipe marks the inputs as ordinary; no values are drawn from it
        case = Case(dtype=dtype, dims=(0,), fill="normal", upstream="normal" if self.upstream else "")
        group = Group((case,))
        measured = Measured(dict(self.inputs), dict(self.upstream), dict(results))
        wanted = tuple(filter(group.judges, results))
        problem = problem_of(self.op, case, measured.inputs, measured.upstream, wanted)
        return declared, group, question_of(declared, case, measured, problem, "", 0, SMALL)

    def _failure(self, declared: Kernel, question: Question, name: str, findings: Findings, theirs: Findings) -> str:
        """Returns the message about a result that breaks its limits, with its worst element; empty if it keeps them."""
        parts, dtype = findings.parts, question.case.dtype
        found = check_limit(declared, dtype, name, parts, findings.trivial, theirs.parts, findings.whole)
        if found.status == "ok":
            return ""
        reason = found.reason.replace(" on ordinary inputs", "")
        lines = [f"{self.label}.{name} is {found.status}: {reason}"]
        for worst in findings.ordinary[:1]:
            lines += _shown(worst, f" at [{', '.join(map(str, worst.index))}]" if worst.index else "")
        limit, gate = declared.limit(question.case.dtype, name), self.op.gate_of(name)
        also = f" or {declared.ulp_limit(question.case.dtype, name):g} ULP" if gate == "noise" else ""
        lines.append(f"  limit   {limit:g}{UNIT[gate]}{also}")
        if found.status == "vacuous":
            lines.append(f"  next    inputs on which trivial answers fail, or vacuous={{{name!r}: 'REASON'}}")
        return "\n".join(lines)


def _unlike(value: Any) -> str:
    """Returns what an object is in place of a plain tensor with its values in memory; else ""."""
    return "one on the device meta" if isinstance(value, Tensor) and value.is_meta else unlike_plain(value)


# -- what belongs together: inputs and parameters, gradients and inputs or outputs -----------------------------------


def _inputs(label: str, signature: inspect.Signature | None, inputs: Any) -> dict[str, Any]:
    """Maps parameters to the inputs that they receive. An input without a parameter of its own is x and its number."""
    if isinstance(inputs, str) or not isinstance(inputs, Sequence):
        text = f"inputs are the arguments of {label} as a tuple; received {type(inputs).__name__}"
        raise UsageError(text, hint="inputs=(x,)")
    names: list[str] = []
    if signature is not None:
        try:
            signature.bind(*inputs)
        except TypeError as error:
            raise UsageError(
                f"{label} takes {', '.join(signature.parameters) or 'nothing'}; inputs has {len(inputs)}: {error}",
                hint="inputs are the arguments in their order; functools.partial fixes others",
            ) from None
        known = signature.parameters.values()
        names = [each.name for each in known if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    numbered = (f"x{place}" + "_" * (f"x{place}" in names) for place in range(len(names), len(inputs)))
    found = dict(zip((*names, *numbered), inputs, strict=False))
    for name, value in found.items():
        if isinstance(value, Tensor) and (what := _unlike(value)):
            raise UsageError(f"{label} takes {name} as a plain tensor with its values in memory; received {what}")
    return found


def _matched(what: str, slots: Mapping[str, bool], given: Any) -> dict[str, Tensor]:
    """Maps names to tensors that are given one for each slot, or by name. A slot with False takes None alone."""
    if given is None or (not isinstance(given, Tensor) and isinstance(given, Sequence | Mapping) and not given):
        return {}
    if isinstance(given, Mapping):
        pairs = dict(given)
    else:
        items = [given] if isinstance(given, Tensor) else list(given) if isinstance(given, tuple | list) else None
        if items is None or len(items) != len(slots):
            wanted = ", ".join(name if takes else f"None for {name}" for name, takes in slots.items())
            received = type(given).__name__ if items is None else len(items)
            raise UsageError(
                f"{what} has one item for each of {wanted}; received {received}",
                hint=f"{what}=({', '.join('d' + name if takes else 'None' for name, takes in slots.items())},)",
            )
        pairs = dict(zip(slots, items, strict=True))
    found = {name: value for name, value in pairs.items() if value is not None}
    for name, value in found.items():
        if not slots.get(name):
            known = ", ".join(each for each, takes in slots.items() if takes) or "nothing"
            raise UsageError(f"{what} has gradients of {known}; received one of {name!r}")
        if bad := _unlike(value):
            raise UsageError(f"{what} has tensors; received {bad} for {name}")
    return {name: value.detach() for name, value in found.items()}


def _arrived(
    outputs: Sequence[str], integers: Sequence[str], shapes: Mapping[str, tuple[int, ...]], given: Any
) -> dict[str, Tensor]:
    """Returns copies of the gradients that arrived, by output. Each has the shape of its output."""
    found = _matched("upstream", {name: name not in integers for name in outputs}, given)
    for name, value in found.items():
        if tuple(value.shape) != shapes[name] or not value.is_floating_point():
            raise UsageError(
                f"upstream has the gradient of {name}, numbers of the shape {shapes[name]}; "
                f"received {tuple(value.shape)} in {value.dtype}"
            )
    return {name: value.clone() for name, value in found.items()}


def _demand_compared(label: str, results: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises AssertionError unless there are results, each with elements and its shape."""
    for name, value in results.items():
        if what := _unlike(value):
            raise UsageError(f"{label}.{name} is compared as a plain tensor with its values in memory; received {what}")
        if tuple(value.shape) != shapes[name]:
            raise AssertionError(f"{label}.{name} has shape {shapes[name]}; received {tuple(value.shape)}")
        if not value.numel():
            raise AssertionError(f"{label}.{name} has no elements: nothing was compared, which is no pass")
    if not results:
        raise AssertionError(f"{label} has no results: nothing was compared, which is no pass")
