"""Turns a PyTorch function into a program over the real numbers, and evaluates it in two ways.

`trace` records the function and rewrites the record into steps. A program denotes a real-valued function: a cast to a
dtype narrower than the operands' rounds, other casts of real numbers are the identity, and a constant is the number
that Python holds. Autograd gives the gradients, and `trace` records them too. Two routes lead to the values:

- `spans` uses PyTorch's float64 arithmetic on whole tensors, with a bound of its error;
- `elements` evaluates single elements by the same steps in Arb or mpmath.
"""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verify.errors import BeyondEffort, UsageError, VerifyError
from verify.ops.autograd import gradients
from verify.ops.graph import rules_elementwise, rules_moving, rules_reducing
from verify.ops.graph.arithmetic import Arithmetic
from verify.ops.graph.decompositions import table
from verify.ops.graph.elementwise import Map
from verify.ops.graph.real import Real
from verify.ops.graph.recorder import Node, Recorder, digest_of
from verify.ops.graph.reducing import Contract, Reduce, Running, Spread
from verify.ops.graph.rewrite import Rewriter
from verify.ops.graph.steps import ABSENT, Leaf, Move, Places, Plain, Run, Step, copies, ends_of, moved_from
from verify.ops.graph.stored import in_order, kinds_of, note_narrow, stored_in, widens
from verify.ops.op import Problem

RULE_MODULES = (rules_moving, rules_elementwise, rules_reducing)  # imported for the rules that they add
_OWN = "verify.ops.graph."  # the functions of this package have right gradients
_FEW = 16  # demanded places up to which a Python set is faster than NumPy
_ZEROS = 1 << 16  # most elements of all operands for which a function is called on zeros before it is traced
Make = Callable[[Step, list[Tensor]], tuple[Tensor, Tensor]]
Elements = dict[int, dict[int, Any]]  # evaluated elements: id(step) -> flat index -> value
Needed = dict[int, tuple[Places, list[Places]]]  # id(step) -> (elements to evaluate, elements to read of each input)


@dataclass
class Program:
    """Holds the steps in order and, in `results`, the outputs by name and then the gradients ("d" + operand)."""

    steps: list[Step]
    results: dict[str, Step]
    leaves: tuple[str, ...]
    needed: dict[str, list[Step]] = field(default_factory=dict)  # cache of `needed_for`
    integers: tuple[str, ...] = ()  # outputs that are integers or booleans
    typed: bool = False  # True: the program holds for one set of operand dtypes only
    stored: dict[int, torch.dtype] = field(default_factory=dict)  # id(step) -> the 16-bit dtype that stores its result
    recorded: tuple[Sequence[Node], Sequence[Node | None]] = ((), ())  # all calls, and the calls that make the results
    chosen: dict[Any, list[int]] = field(default_factory=dict)  # cache of the sizes of boxes that a budget affords
    orders: dict[str, list[tuple[Step, list[int], bool, set[int]]]] = field(default_factory=dict)  # see `_order_of`
    kinds: dict[str, torch.dtype] = field(default_factory=dict)  # the dtypes that the function returns its outputs in
    rounds: bool = False  # True: the program rounds to a format by `verify.rounds`
    mixed: bool = False  # True: a result depends on numbers that are computed in a narrower dtype than its own
    at: Step | None = None  # the step that is evaluated now

    @cached_property
    def digest(self) -> str:
        """Returns 12 hex digits that identify the recorded calls, before any rewriting."""
        return digest_of(*self.recorded)

    def sums(self, wanted: Sequence[str], *, reduces: bool = True) -> bool:
        """True if results add terms up, or the program mixes dtypes. Errors are then measured in units of its noise.

        `reduces` counts reductions. The largest of some numbers is one, which has no noise of its own.
        Two numbers count as terms if they depend on different operands, or on different parts of one, as in
        x cos - y sin: rounding either to any format loses their difference. If a function of one number cancels, the
        formula is at fault, so that does not count.
        """
        adds = (Contract, Running, Spread, *([Reduce] if reduces else []))
        steps = self.needed_for(wanted)
        if self.mixed or any(isinstance(getattr(step, "inner", step), adds) and step.real for step in steps):
            return True
        follows: dict[int, frozenset[int]] = {}
        for step in steps:
            part = isinstance(step, Move) and (
                math.prod(step.shape) < math.prod(step.inputs[0].shape)
                or not (step.view or step.within)  # such as roll: an element now stands beside other elements
            )
            if isinstance(step, Leaf) or part:
                follows[id(step)] = frozenset({id(step)})
            else:
                follows[id(step)] = frozenset().union(*(follows[id(each)] for each in step.inputs))
            if isinstance(step, Map) and step.function in ("add", "subtract"):
                first, second = (follows[id(each)] for each in step.inputs)
                if first and second and first != second and not all(isinstance(each, Leaf) for each in step.inputs):
                    return True
        return False

    @property
    def decides(self) -> bool:
        """True if some step compares numbers, selects among them or rounds them to integers."""
        return any(step.decides for step in self.steps)

    @property
    def quantises(self) -> bool:
        """True if an output is a computed number that is rounded to an integer."""
        ends = (moved_from(self.results[name])[-1] for name in self.integers)
        return any(isinstance(step, Map) and step.function == "integer" for step in ends)

    @property
    def elementwise(self) -> bool:
        """True if every element of every result depends only on elements at the same place."""
        widest = max((step.shape for step in self.steps if isinstance(step, Leaf)), key=len, default=())
        return all(isinstance(step, Leaf | Plain | Map) for step in self.steps) and all(
            len(widest) <= len(result.shape)
            and all(a in (1, b) for a, b in zip(widest[::-1], result.shape[::-1], strict=False))
            for result in self.results.values()
        )

    def spans(self, run: Run, wanted: Sequence[str]) -> dict[str, Any]:
        """Returns the intervals of the wanted results. Frees each step's interval after its last use."""
        self.decide(run, wanted)
        steps = self.needed_for(wanted)
        uses = Counter(id(each) for step in steps for each in step.inputs)
        uses.update(id(self.results[name]) for name in wanted)
        held: dict[int, Any] = {}
        with self.refusing():
            for self.at in steps:
                held[id(self.at)] = self.at.span(run, [held[id(each)] for each in self.at.inputs])
                for each in self.at.inputs:
                    uses[id(each)] -= 1
                    if not uses[id(each)]:
                        del held[id(each)]
        return {name: held[id(self.results[name])] for name in wanted}

    def decide(self, run: Run, wanted: Sequence[str]) -> None:
        """Takes the decisions that the wanted results depend on, in float64, unless the run has recorded them."""
        steps = self.needed_for(wanted)
        deciding = [step for step in steps if step.decides and id(step) not in run.decisions]
        if deciding:
            ends = {str(number): step for number, step in enumerate(deciding)}
            replace(self, results=ends, needed={}, orders={}).values(run, list(ends), undisturbed(run))

    def values(self, run: Run, wanted: Sequence[str], make: Make) -> dict[str, Tensor]:
        """Evaluates the wanted results in float64.

        `make` returns two values of a step: the one reported if the step is a result, and the one that later steps use.
        They differ if a result is stored in 16 bits: the error of a kernel is measured from the value before rounding,
        and later steps use the rounded value.
        """
        used: dict[int, Tensor] = {}
        shown: dict[int, Tensor] = {}
        found: dict[int, Tensor] = {}
        for step, inputs, is_end, last in self._order_of(wanted):
            self.at = step
            own, used[id(step)] = make(step, [used[each] for each in inputs])
            if shown and copies(step) and any(each in shown for each in inputs):
                own = step.value(run, [shown.get(each, used[each]) for each in inputs])
            if own is not used[id(step)]:
                shown[id(step)] = own
            if is_end:
                found[id(step)] = own
            for each in last:
                del used[each]
                shown.pop(each, None)
        return {name: found[id(self.results[name])] for name in wanted}

    def _order_of(self, wanted: Sequence[str]) -> list[tuple[Step, list[int], bool, set[int]]]:
        """Returns the steps of `values`: each with the ids of its inputs, whether it is a result, and its last inputs.

        These are the ids of the inputs that no later step needs.
        """
        key = ",".join(wanted)
        if key not in self.orders:
            ends, later, order = {id(self.results[name]) for name in wanted}, set[int](), []
            for step in reversed(self.needed_for(wanted)):
                inputs = list(map(id, step.inputs))
                order.append((step, inputs, id(step) in ends, set(inputs) - later))
                later.update(inputs)
            self.orders[key] = order[::-1]
        return self.orders[key]

    def elements(
        self,
        run: Run,
        arithmetic: Arithmetic,
        result: str,
        wanted: Sequence[int],
        known: Elements | None = None,
        places_of: Needed | None = None,
    ) -> list[Any]:
        """Evaluates single elements of a result, and in every step only the elements that they need.

        Args:
            wanted: Flat indices into the result.
            known: Maps id(step) to the elements of this run that are evaluated already. New ones are added to it.
            places_of: What `places` returns for the same arguments, if the caller has it.
        """
        known = {} if known is None else known
        self.decide(run, [result])
        places_of = self.places(run, result, wanted, known) if places_of is None else places_of
        for step in self.needed_for([result]):
            if id(step) not in places_of:
                continue
            given: list[Any] = []
            wanted_of_step, sources = places_of[id(step)]
            for each, places in zip(step.reads, sources, strict=True):
                if each is None:
                    given.append([])
                    continue
                held = known.get(id(each), {})
                given.append([held[place] if place >= 0 else ABSENT for place in places.reshape(-1).tolist()])
            self.at = step
            with self.refusing():
                made = step.elements(run, arithmetic, wanted_of_step, given)
            known.setdefault(id(step), {}).update(zip(wanted_of_step.tolist(), made, strict=True))
        held = known[id(self.results[result])]
        return [held[place] for place in wanted]

    def places(
        self,
        run: Run,
        result: str,
        wanted: Sequence[int],
        known: Elements,
        most: float = math.inf,
        *,
        every: bool = False,
    ) -> Needed:
        """Maps id(step) to the elements that the wanted ones need and `known` lacks, and to what those read.

        Omits steps without a needed element and, unless every=True, steps that are not evaluated. Raises BeyondEffort
        if more than `most` elements are needed in all.
        """
        self.decide(run, [result])
        demands: dict[int, list[Places]] = {id(self.results[result]): [np.asarray(wanted, dtype=np.int64)]}
        found: Needed = {}
        for step in reversed(self.needed_for([result])):
            if id(step) not in demands:
                continue
            places, held = _distinct(demands.pop(id(step)), math.prod(step.shape)), known.get(id(step))
            if held:
                places = np.array([place for place in places.tolist() if place not in held], dtype=np.int64)
            if not places.size:
                continue
            most -= places.size
            # the sources of a sum over millions of elements take a quarter of a second to list
            first = len(known.get(id(step.reads[0]), ())) if step.reads and step.reads[0] is not None else math.inf
            if most < max(0, step.least_read(places.size) - first):
                raise BeyondEffort(f"the elements that {result} needs are more than may be evaluated")
            found[id(step)] = places, step.sources(run, places)
            for each, needed in zip(step.inputs if every else step.reads, found[id(step)][1], strict=True):
                if each is not None:
                    demands.setdefault(id(each), []).append(needed)
        return found

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Turns an unexpected exception of a step into a UsageError that names its operator and line."""
        try:
            yield
        except (VerifyError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise _refusal(error, self.at.origin if self.at is not None else "") from error

    def needed_for(self, wanted: Sequence[str]) -> list[Step]:
        """Returns the steps that the wanted results depend on, in order."""
        key = ",".join(wanted)
        if key not in self.needed:
            keep = set()
            for step in reversed(self.steps):
                if id(step) in keep or any(step is self.results[name] for name in wanted):
                    keep.add(id(step))
                    keep.update(id(each) for each in step.inputs)
            self.needed[key] = [step for step in self.steps if id(step) in keep]
        return self.needed[key]


def undisturbed(run: Run) -> Make:
    """Returns a `make` of `Program.values` that evaluates each step as it is."""

    def make(step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
        value = step.value(run, given)
        return value, value

    return make


def _distinct(demanded: Sequence[Places], size: int) -> Places:
    """Returns the demanded places among `size`, in ascending order and each once. Omits negative places."""
    count = sum(each.size for each in demanded)
    if count <= _FEW:  # NumPy's calls would cost more than the work
        found = {place for each in demanded for place in each.reshape(-1).tolist() if place >= 0}
        return np.array(sorted(found), dtype=np.int64)
    if size <= 64 * count:  # marking all places is faster than sorting the demanded ones
        marked = np.zeros(size + 1, dtype=bool)  # index -1, which means "no element", marks the last one
        for each in demanded:
            marked[each] = True
        return np.flatnonzero(marked[:-1])
    places = np.unique(np.concatenate([each.reshape(-1) for each in demanded]))
    return places[np.searchsorted(places, 0) :]


def trace(
    function: Callable[..., Any],
    operands: Mapping[str, Tensor],
    *,
    outputs: Sequence[str] | None = None,
    differentiable: Sequence[str] = (),
    on_zeros: bool = True,
) -> Program:
    """Runs a function once on traced float64 tensors and returns its program.

    The leaves of the program are the operands and, for each output with a gradient, "grad " + its name.

    Args:
        operands: Give the shapes, and the dtypes that the function sees.
        outputs: Names of the returned tensors; None: those of `names_of`.
        differentiable: The operands whose gradients become results.
        on_zeros: False: the function never receives a tensor with memory, which a GPU kernel could not read.

    Raises UsageError if the function fails, cannot be traced or has no gradient.
    """
    record = _recorded(function, operands, differentiable, on_zeros=on_zeros)
    recorder, made = record.recorder, record.made
    labels = list(outputs or names_of(len(made)))
    if len(labels) != len(made):
        raise UsageError(
            f"like= returns {len(made)} tensors; outputs= names {len(labels)}: {', '.join(labels)}",
            hint="name each tensor that the function returns, in its order",
        )
    # a kernel stores its result in the same dtype, and is judged in it
    ends = [recorder.unrounded.get(node, node) for node in record.ends]  # type: ignore[arg-type]
    leaves: list[Step] = []
    for name, value in operands.items():
        leaves.append(Leaf(tuple(value.shape), (), value.is_floating_point(), name=name))
    smooth = [(label, value) for label, value in zip(labels, made, strict=True) if value.is_floating_point()]
    for label, value in smooth if differentiable else []:
        leaves.append(Leaf(tuple(value.shape), (), name=f"grad {label}", operand=False))
    rewriter = Rewriter(dict(zip(record.first, leaves, strict=True)), dict(recorder.stored()))
    steps = iter(_rewritten(rewriter, recorder, [node for node in ends if node is not None]))
    results: dict[str, Step] = {}
    names_of_results = (*labels, *(f"d{name}" for name in differentiable))
    for name, node in zip(names_of_results, ends, strict=True):
        if node is None:
            shape = tuple(operands[name.removeprefix("d")].shape)
            results[name] = Plain(shape, (), True, compute=lambda given, s=shape: torch.zeros(s, dtype=torch.float64))  # type: ignore[misc]
        else:
            results[name] = next(steps)
    integers = tuple(label for label, value in zip(labels, made, strict=True) if not value.is_floating_point())
    names_of_leaves = tuple(leaf.name for leaf in leaves if isinstance(leaf, Leaf))
    outputs_of = [results[label] for label in labels]
    stored = stored_in(recorder, rewriter, record.real, in_order(results.values()))
    note_narrow(recorder, rewriter)
    mixed = widens(outputs_of, [value.dtype for value in made], kinds_of(record.forward, rewriter))
    for name, value in zip(names_of_results, (*made, *(operands[name] for name in differentiable)), strict=True):
        held = [stored[each] for each in ends_of(results[name]) if each in stored]
        if any(kind.itemsize < value.dtype.itemsize for kind in held):  # stored numbers, so the result is one more step
            results[name] = rewriter.map("multiply", results[name], 1.0)
    ordered = in_order(results.values())
    typed = record.real.reads_dtype or bool(recorder.unrounded) or any(kind.itemsize == 2 for kind in recorder.kinds)
    more: Any = {
        "recorded": (recorder.nodes, ends),
        "kinds": {label: value.dtype for label, value in zip(labels, made, strict=True)},
        "rounds": recorder.asked,
        "mixed": mixed,
    }
    return Program(ordered, results, names_of_leaves, {}, integers, typed, stored, **more)


@dataclass
class _Recorded:
    """A function that was run once, with its gradients."""

    recorder: Recorder
    real: Real
    first: list[Node]  # of the operands and the upstream gradients
    forward: list[tuple[Node, torch.dtype]]  # numbers that the function itself computes, and their dtypes
    made: list[Tensor]
    ends: list[Node | None]  # of the results and the gradients


def _recorded(
    function: Callable[..., Any], operands: Mapping[str, Tensor], differentiable: Sequence[str], *, on_zeros: bool
) -> _Recorded:
    """Runs a function once on traced tensors; see `trace`."""
    names = list(operands)
    kinds = [value.dtype for value in operands.values() if value.is_floating_point()] or [torch.get_default_dtype()]
    recorder = Recorder(table(), kinds)
    real = Real(recorder)
    upstream: list[Tensor] = []
    forward: list[tuple[Node, torch.dtype]] = []
    first: list[Node] = []

    def called(values: Sequence[Tensor]) -> list[Tensor]:
        with real:
            made = tensors_of_call(function, values)
        forward.extend(each for each in recorder.returned if each[0] not in recorder.unrounded)
        return made

    def joint(given: list[Tensor]) -> tuple[list[Tensor], list[Tensor | None]]:
        """Returns the outputs, and the gradients of the differentiable operands for the upstream gradients."""
        if not differentiable:
            return called(given), []
        with torch.enable_grad():
            values = [
                value.detach().requires_grad_(name in differentiable) for name, value in zip(names, given, strict=True)
            ]
            made = called(values)
            _refuse_functions(made)
            ends = [value for value in made if value.is_floating_point()]
            upstream.extend(recorder.operand(value.shape, value.dtype) for value in ends)
            first.extend(map(recorder.node, upstream))
            pairs = [pair for pair in zip(ends, upstream, strict=True) if pair[0].requires_grad]
            if not pairs:
                raise UsageError(
                    "like= has no gradient: no result of it can be differentiated", hint="declare gradients=False"
                )
            wanted = [values[names.index(name)] for name in differentiable]
            found = gradients([value for value, _ in pairs], wanted, [gradient for _, gradient in pairs])
        return [value.detach() for value in made], list(found)

    with _following():
        try:
            given = [recorder.operand(value.shape, value.dtype) for value in operands.values()]
            first.extend(map(recorder.node, given))
            with recorder:
                made, slopes = joint(given)
            ends = [None if value is None else recorder.node(value) for value in (*made, *slopes)]
        except UsageError:
            raise
        except Exception as error:
            raise _not_traced(function, operands, error, on_zeros=on_zeros) from error
    return _Recorded(recorder, real, first, forward, made, ends)


def _rewritten(rewriter: Rewriter, recorder: Recorder, wanted: Sequence[Node]) -> list[Step]:
    """Returns the steps of the wanted nodes. Names the operator if a rule fails."""
    try:
        return rewriter.steps(recorder.nodes, wanted)
    except VerifyError:
        raise
    except Exception as error:
        raise _refusal(error, f"{rewriter.node.target}{rewriter.node.place}") from error


def _not_traced(
    function: Callable[..., Any], operands: Mapping[str, Tensor], error: Exception, *, on_zeros: bool
) -> UsageError:
    """Returns the error to raise if a trace failed. It says if the function fails for zeros too, without a trace."""
    if on_zeros and sum(value.numel() for value in operands.values()) <= _ZEROS:
        try:
            function(
                *[
                    torch.zeros(value.shape, dtype=value.dtype)
                    if value.is_meta or value.is_floating_point()
                    else value.detach().clone()
                    for value in operands.values()
                ]
            )
        except Exception as plain:
            shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in operands.items())
            return UsageError(
                f"like= fails for zeros of the shapes {shapes}: {_said(plain)}",
                hint="it has to run on zeros; shapes= and integers= declare which ones (docs/like.md)",
            )
    return UsageError(
        f"like= cannot be traced: {_said(error)}",
        hint="replace branches on values by torch.where; docs/like.md lists what is refused",
    )


def _refusal(error: Exception, place: str) -> UsageError:
    """Returns the error to raise if a rule fails at an operator."""
    return UsageError(
        f"like= cannot judge {place or 'this program'}: {_said(error)}",
        hint="write this part of the definition with other operators; docs/like.md lists what is refused",
    )


def _said(error: Exception) -> str:
    """Returns the type of an exception and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"


def run_of(program: Program, problem: Problem) -> Run:
    """Returns a run with the tensors of a problem; upstream gradients that it lacks are zero."""
    leaves = {name: value for name, value in problem.inputs.items() if value is not None}
    device = next(iter(leaves.values())).device
    for name in (each for each in program.leaves if each.startswith("grad ")):
        output = name.removeprefix("grad ")
        zero = torch.zeros(program.results[output].shape, dtype=torch.float64, device=device)
        leaves[name] = problem.upstream.get(output, zero)
    return Run(leaves, device)


def names_of(count: int) -> list[str]:
    """Returns the default names of `count` outputs."""
    return ["y"] if count == 1 else [f"y{place + 1}" for place in range(count)]


@contextmanager
def _following() -> Iterator[None]:
    """Prepares PyTorch for tracing.

    Attention is its formula, in the dtype of its operands. Nothing warns, no torch.autograd.Function is called, and no
    operator of oneDNN, which has no formula.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    cuda = torch.backends.cuda
    before = torch._C._get_math_sdp_allow_fp16_bf16_reduction(), torch._C._get_mkldnn_enabled()
    casts = {kind: torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")}  # around the call, not of the function
    cuda.allow_fp16_bf16_reduction_math_sdp(True)
    torch._C._set_mkldnn_enabled(False)
    for kind in casts:
        torch.set_autocast_enabled(kind, False)
    try:
        with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH), _no_functions():
            warnings.simplefilter("ignore")
            yield
    finally:
        cuda.allow_fp16_bf16_reduction_math_sdp(before[0])
        torch._C._set_mkldnn_enabled(before[1])
        for kind, enabled in casts.items():
            torch.set_autocast_enabled(kind, enabled)


def tensors_of_call(function: Callable[..., Any], values: Sequence[Tensor]) -> list[Tensor]:
    """Calls the function and returns its tensors as a list. Raises UsageError if it returns anything else."""
    made = function(*values)
    if isinstance(made, Mapping):
        made = list(made.values())
    made = list(made) if isinstance(made, tuple | list) else [made]
    made = [value for value in made if value is not None]
    strange = [value for value in made if not isinstance(value, Tensor)] if made else [None]
    if strange:
        raise UsageError(
            f"like= is a function of tensors that returns tensors; it returned {type(strange[0]).__name__}",
            hint="return a scalar as a tensor (x.sum(), not float(x.sum())), and tensors of a nested tuple one by one",
        )
    return made


class _no_functions:  # noqa: N801
    """Makes every call of a torch.autograd.Function raise UsageError while entered.

    Its author writes its gradient by hand, so it may be wrong and cannot serve as the truth.
    """

    def __enter__(self) -> None:
        self.before = torch.autograd.Function.__dict__["apply"]

        def refused(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if cls.__module__.startswith(_OWN):
                return self.before.__get__(None, cls)(*args, **kwargs)
            raise _written_by_hand(cls)

        torch.autograd.Function.apply = classmethod(refused)  # type: ignore[assignment]

    def __exit__(self, *raised: object) -> None:
        torch.autograd.Function.apply = self.before  # type: ignore[method-assign]


def _written_by_hand(cls: type) -> UsageError:
    return UsageError(
        f"like= calls the torch.autograd.Function {cls.__name__}, whose gradient is written by hand",
        hint="write the computation with PyTorch's own operators",
    )


def _refuse_functions(made: Sequence[Tensor]) -> None:
    """Raises UsageError if a torch.autograd.Function made one of the tensors or a step before it.

    `_no_functions` does not see the calls of an `apply` that was taken from its class before, as `like=T.apply` does.
    """
    seen, waiting = set[Any](), [value.grad_fn for value in made]
    while waiting:
        step = waiting.pop()
        if step is None or step in seen:
            continue
        seen.add(step)
        cls = getattr(step, "_forward_cls", None)
        if cls is not None and not cls.__module__.startswith(_OWN):
            raise _written_by_hand(cls)
        waiting.extend(before for before, _ in step.next_functions)
