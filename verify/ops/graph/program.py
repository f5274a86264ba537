"""A PyTorch function as a program over the real numbers: traced, rewritten into steps, evaluated in two ways.

What a program means is the real-valued function that the PyTorch code denotes: its casts between formats of floating
point are the identity, its constants are the numbers that Python holds. Gradients are the program's own, traced through
autograd. Two routes lead to its values, PyTorch's float64 arithmetic with a bound of its error that runs along
(`spans`), and the same steps in Arb and in mpmath for the elements that are asked for (`elements`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verify.errors import BeyondEffort, UsageError
from verify.ops.graph import rules_elementwise, rules_moving, rules_reducing
from verify.ops.graph.arithmetic import Arithmetic
from verify.ops.graph.decompositions import table
from verify.ops.graph.elementwise import Map
from verify.ops.graph.real import Real, with_kind
from verify.ops.graph.recorder import Node, Recorder, Traced, digest_of
from verify.ops.graph.reducing import Contract, Reduce, Running, Spread
from verify.ops.graph.rewrite import Rewriter
from verify.ops.graph.rounded import StraightThrough
from verify.ops.graph.selecting import AtRank, IsExtreme, RankIndex, WhereExtreme
from verify.ops.graph.steps import ABSENT, Leaf, Move, Places, Plain, Run, Step, moved_from

RULE_MODULES = (rules_moving, rules_elementwise, rules_reducing)  # imported for the rules that they add
_FEW = 16
_ZEROS = 1 << 16  # elements of operands up to which a function is called on zeros before it is followed
Make = Callable[[Step, list[Tensor]], tuple[Tensor, Tensor]]
Needed = dict[int, tuple[Places, list[Places]]]  # by step: elements to evaluate, and what each needs of the inputs


@dataclass
class Program:
    """The steps in order, and which of them are results: outputs by name, then gradients ("d" + operand)."""

    steps: list[Step]
    results: dict[str, Step]
    leaves: tuple[str, ...]
    needed: dict[str, list[Step]] = field(default_factory=dict)
    integers: tuple[str, ...] = ()  # outputs that are whole numbers or conditions
    typed: bool = False  # whether the program is about one set of types of its operands
    stored: dict[int, torch.dtype] = field(default_factory=dict)  # steps whose results lie in memory in 16 bits
    recorded: tuple[Sequence[Node], Sequence[Node | None]] = ((), ())  # calls, and those that give the results

    @cached_property
    def digest(self) -> str:
        """Returns 12 hex digits of what was recorded, before any rewriting: another function has others."""
        return digest_of(*self.recorded)

    @property
    def sums(self) -> bool:
        """Whether anything is added up: errors are then told by the scale of the terms.

        Two numbers count as terms where they follow from different operands, or parts of one, as in x cos - y sin: no
        format that either is rounded to keeps their difference. What a function of one number cancels is the formula's
        fault.
        """
        adds = (Contract, Reduce, Running, Spread)
        if any(isinstance(getattr(step, "inner", step), adds) and step.real for step in self.steps):
            return True
        follows: dict[int, frozenset[int]] = {}
        for step in self.steps:
            part = isinstance(step, Move) and (
                math.prod(step.shape) < math.prod(step.inputs[0].shape)
                or not (step.view or step.within)  # others, as roll makes them
            )
            if isinstance(step, Leaf) or part:
                follows[id(step)] = frozenset({id(step)})
            else:
                follows[id(step)] = frozenset().union(*(follows[id(each)] for each in step.inputs))
            if isinstance(step, Map) and step.function in ("add", "subtract"):
                first, second = (follows[id(each)] for each in step.inputs)
                inputs = all(isinstance(each, Leaf) for each in step.inputs)
                if first and second and first != second and not inputs:
                    return True
        return False

    @property
    def decides(self) -> bool:
        """Whether anything is decided by comparing, selecting or rounding to integers."""
        return any(
            isinstance(step, IsExtreme | WhereExtreme | RankIndex | AtRank) or (isinstance(step, Map) and step.decides)
            for step in self.steps
        )

    @property
    def rounds(self) -> bool:
        """True if the program rounds to a format on purpose (`verify.rounds`)."""
        return any(isinstance(step, Map) and step.function.startswith("to ") for step in self.steps)

    @property
    def elementwise(self) -> bool:
        """Whether every element of every result depends on elements at its own place alone."""
        widest = max((step.shape for step in self.steps if isinstance(step, Leaf)), key=len, default=())
        return all(isinstance(step, Leaf | Plain | Map) for step in self.steps) and all(
            len(widest) <= len(result.shape)
            and all(a in (1, b) for a, b in zip(widest[::-1], result.shape[::-1], strict=False))
            for result in self.results.values()
        )

    def spans(self, run: Run, wanted: Sequence[str]) -> dict[str, Any]:
        """Intervals of the wanted results; what is not needed any more is let go."""
        steps = self.needed_for(wanted)
        uses: dict[int, int] = {}
        for step in steps:
            for each in step.inputs:
                uses[id(each)] = uses.get(id(each), 0) + 1
        for name in wanted:
            uses[id(self.results[name])] = uses.get(id(self.results[name]), 0) + 1
        held: dict[int, Any] = {}
        for step in steps:
            held[id(step)] = step.span(run, [held[id(each)] for each in step.inputs])
            for each in step.inputs:
                uses[id(each)] -= 1
                if not uses[id(each)]:
                    del held[id(each)]
        return {name: held[id(self.results[name])] for name in wanted}

    def values(self, run: Run, wanted: Sequence[str], make: Make) -> dict[str, Tensor]:
        """Evaluates the wanted results in float64. `make` returns what a step shows as a result, and what others use.

        They differ where a result is stored in 16 bits: the error of a kernel is told from what it is before.
        """
        steps = self.needed_for(wanted)
        uses: dict[int, int] = {}
        for step in steps:
            for each in step.inputs:
                uses[id(each)] = uses.get(id(each), 0) + 1
        ends = {id(self.results[name]) for name in wanted}
        used: dict[int, Tensor] = {}
        shown: dict[int, Tensor] = {}
        found: dict[int, Tensor] = {}
        for step in steps:
            own, used[id(step)] = make(step, [used[id(each)] for each in step.inputs])
            if isinstance(step, Move) and any(id(each) in shown for each in step.inputs):
                own = step.value(run, [shown.get(id(each), used[id(each)]) for each in step.inputs])
            if own is not used[id(step)]:
                shown[id(step)] = own
            if id(step) in ends:
                found[id(step)] = own
            for each in step.inputs:
                uses[id(each)] -= 1
                if not uses[id(each)]:
                    del used[id(each)]
                    shown.pop(id(each), None)
        return {name: found[id(self.results[name])] for name in wanted}

    def elements(
        self,
        run: Run,
        arithmetic: Arithmetic,
        result: str,
        wanted: Sequence[int],
        known: dict[int, dict[int, Any]] | None = None,
        places_of: Needed | None = None,
    ) -> list[Any]:
        """Single elements of a result, from those elements of every step that they need: `places_of`, where known.

        `known` has, by the identity of a step, the elements of the same run that were evaluated before.
        """
        known = {} if known is None else known
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
            made = step.elements(run, arithmetic, wanted_of_step, given)
            known.setdefault(id(step), {}).update(zip(wanted_of_step.tolist(), made, strict=True))
        held = known[id(self.results[result])]
        return [held[place] for place in wanted]

    def places(
        self,
        run: Run,
        result: str,
        wanted: Sequence[int],
        known: dict[int, dict[int, Any]],
        most: float = math.inf,
        *,
        every: bool = False,
    ) -> Needed:
        """Which elements of every step, but those of `known`, the wanted ones need, and what these need of its inputs.

        By the identity of a step; one of which nothing is needed is not there, nor, unless `every` step is wanted, one
        whose elements are not evaluated. BeyondEffort where they are more than `most` in all.
        """
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
            if most < 0:
                raise BeyondEffort(f"the elements that {result} needs are more than may be evaluated")
            found[id(step)] = places, step.sources(run, places)
            for each, needed in zip(step.inputs if every else step.reads, found[id(step)][1], strict=True):
                if each is not None:
                    demands.setdefault(id(each), []).append(needed)
        return found

    def needed_for(self, wanted: Sequence[str]) -> list[Step]:
        """The steps that some results depend on, in order."""
        key = ",".join(wanted)
        if key not in self.needed:
            keep = set()
            for step in reversed(self.steps):
                if id(step) in keep or any(step is self.results[name] for name in wanted):
                    keep.add(id(step))
                    keep.update(id(each) for each in step.inputs)
            self.needed[key] = [step for step in self.steps if id(step) in keep]
        return self.needed[key]


def _distinct(demanded: Sequence[Places], size: int) -> Places:
    """The places that are demanded among so many, in order, each once; without those where nothing is."""
    count = sum(each.size for each in demanded)
    if count <= _FEW:  # as of one element: NumPy costs by the call
        found = {place for each in demanded for place in each.reshape(-1).tolist() if place >= 0}
        return np.array(sorted(found), dtype=np.int64)
    if size <= 64 * count:  # a mark costs less than a comparison of sorting
        marked = np.zeros(size + 1, dtype=bool)  # the last for -1, where nothing is
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
) -> Program:
    """Follow a function once, in float64. `operands` give shapes and the dtypes that the function sees.

    The program's leaves are the operands and, for each output with a gradient, "grad " + its name.
    """
    names = list(operands)
    small = _is_small(operands)
    examples = [_example(value, small=small) for value in operands.values()]
    kinds = [value.dtype for value in operands.values()]
    real = Real(next((kind for kind in kinds if kind.is_floating_point), torch.get_default_dtype()))

    def called(values: Sequence[Tensor]) -> list[Tensor]:
        with real:
            return _called(function, list(map(with_kind, values, kinds)))

    try:
        plain = called(examples) if small else _shown(function, examples, kinds)
    except UsageError:
        raise
    except Exception as error:
        said = str(error).strip().splitlines() or [""]
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in operands.items())
        raise UsageError(
            f"like= fails for zeros of the shapes {shapes}: {type(error).__name__}: {said[0][:300]}",
            hint="shapes= and integers= say which shapes and whole numbers it takes; docs/like.md",
        ) from error
    labels = list(outputs or names_of(len(plain)))
    if len(labels) != len(plain):
        raise UsageError(
            f"like= returns {len(plain)} tensors; outputs= names {len(labels)}: {', '.join(labels)}",
            hint="name each tensor that the function returns, in its order",
        )
    smooth = [place for place, value in enumerate(plain) if value.is_floating_point()]

    def joint(given: list[Tensor], upstream: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor | None]]:
        if not differentiable:
            return called(given), []
        with torch.enable_grad():
            values = [
                value.detach().requires_grad_(name in differentiable) for name, value in zip(names, given, strict=True)
            ]
            made = called(values)
            ends = [(made[place], gradient) for place, gradient in zip(smooth, upstream, strict=True)]
            sums = [_ending(value, gradient) for value, gradient in ends if value.requires_grad]
            if not sums:
                raise UsageError("like= has no gradient: PyTorch has none for what it returns")
            wanted = [values[names.index(name)] for name in differentiable]
            found = torch.autograd.grad(sums, wanted, allow_unused=True)
        return [value.detach() for value in made], list(found)

    with _following():
        try:
            recorder = Recorder(table())
            given = [recorder.operand(value.shape, value.dtype) for value in examples]
            upstream = [recorder.operand(plain[place].shape, torch.float64) for place in smooth if differentiable]
            first = [recorder.node(value) for value in (*given, *upstream)]
            with recorder:
                made, gradients = joint(given, upstream)
            ends = [None if value is None else recorder.node(value) for value in (*made, *gradients)]
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(
                f"like= cannot be followed: {type(error).__name__}: {str(error).strip().splitlines()[0][:300]}",
                hint="a program without branches on the values of tensors; docs/like.md says what can be followed",
            ) from error

    leaves: list[Step] = []
    for name, value in operands.items():
        leaves.append(Leaf(tuple(value.shape), (), value.is_floating_point(), name=name))
    for place in smooth if differentiable else []:
        leaves.append(Leaf(tuple(plain[place].shape), (), name=f"grad {labels[place]}", operand=False))
    known = dict(zip(first, leaves, strict=True))
    rewriter = Rewriter(known)
    steps = iter(rewriter.steps(recorder.nodes, [node for node in ends if node is not None]))
    results: dict[str, Step] = {}
    for name, node in zip((*labels, *(f"d{name}" for name in differentiable)), ends, strict=True):
        if node is None:
            shape = tuple(operands[name.removeprefix("d")].shape)
            results[name] = Plain(shape, (), True, compute=lambda given, s=shape: torch.zeros(s, dtype=torch.float64))  # type: ignore[misc]
        else:
            results[name] = next(steps)
    integers = tuple(label for label, value in zip(labels, plain, strict=True) if not value.is_floating_point())
    names_of_leaves = tuple(leaf.name for leaf in leaves if isinstance(leaf, Leaf))
    ordered = _in_order(results.values())
    stored = _stored(recorder, rewriter, real, ordered)
    typed = real.asked or real.main.itemsize == 2
    recorded = recorder.nodes, ends
    return Program(ordered, results, names_of_leaves, {}, integers, typed, stored, recorded)


def _stored(recorder: Recorder, rewriter: Rewriter, real: Real, steps: Sequence[Step]) -> dict[int, torch.dtype]:
    """Maps id(step) to the 16-bit type that eager PyTorch stores its result in.

    Where all numbers have one type, so have the gradients; else those of the function are known.
    """
    returned: list[tuple[Node, torch.dtype]] = []
    if real.main.itemsize == 2 and all(kind == real.main for _, kind in real.made):
        returned = [(node, real.main) for node in recorder.returned]
    elif any(kind.itemsize == 2 for _, kind in real.made):
        returned = [
            (recorder.node(made), kind) for made, kind in real.made if kind.itemsize == 2 and isinstance(made, Traced)
        ]

    def made_by(node: Node) -> Step | None:
        step = rewriter.known.get(node)
        step = moved_from(step)[-1] if isinstance(step, Step) else None
        return None if isinstance(step, Leaf | Plain) else step

    found = {id(step): kind for node, kind in returned if (step := made_by(node))}
    ours = {id(step) for made, _ in real.made if isinstance(made, Traced) and (step := made_by(recorder.node(made)))}
    for made in real.attention:
        step = made_by(recorder.node(made)) if isinstance(made, Traced) else None
        if isinstance(step, Contract):
            for fused in _within_attention(step, ours, steps):
                found.pop(fused, None)
    return found


def _within_attention(y: Contract, ours: Collection[int], steps: Sequence[Step]) -> set[int]:
    """The steps of PyTorch's attention that no kernel stores in 16 bits, by their identity.

    Kernels keep the scores and their gradient in float32. They round probabilities, and their gradient, before the
    products with v, k and q, and round these products once, after the scale.
    """
    weights = moved_from(y.inputs[0])[-1]
    found: set[int] = set()
    ahead = list(weights.inputs)
    while ahead:
        step = ahead.pop()
        if id(step) not in ours and id(step) not in found:
            found.add(id(step))
            ahead.extend(step.inputs)
    for step in steps:
        if isinstance(step, Map) and step.function == "multiply":
            a, b = (moved_from(each)[-1] for each in step.inputs)
            scaled = next((x for x, by in ((a, b), (b, a)) if isinstance(by, Plain) or by is weights), None)
            if isinstance(scaled, Contract) and id(scaled) not in ours:
                found.add(id(scaled))
    return found


def names_of(count: int) -> list[str]:
    """What outputs are called that nobody named."""
    return ["y"] if count == 1 else [f"y{place + 1}" for place in range(count)]


def _is_small(operands: Mapping[str, Tensor]) -> bool:
    """True if the function may be called on zeros to learn what it returns."""
    return sum(value.numel() for value in operands.values()) <= _ZEROS


def _example(value: Tensor, *, small: bool) -> Tensor:
    if small and not (value.is_meta or value.is_floating_point()):
        return value.detach().clone()  # whole numbers may have a structure that the function relies on
    dtype = torch.float64 if value.is_floating_point() else value.dtype
    return torch.zeros(value.shape, dtype=dtype, device="cpu" if small else "meta")


@contextmanager
def _following() -> Iterator[None]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH), _no_functions():
        warnings.simplefilter("ignore")
        yield


def _shown(function: Callable[..., Any], examples: Sequence[Tensor], kinds: Sequence[torch.dtype]) -> list[Tensor]:
    """What the function returns, by shape and type: it is followed once, and computes nothing."""
    recorder = Recorder(table())
    real = Real(next((kind for kind in kinds if kind.is_floating_point), torch.get_default_dtype()))
    given = [recorder.operand(value.shape, value.dtype) for value in examples]
    with _following(), recorder, real:
        return _called(function, list(map(with_kind, given, kinds)))


def _called(function: Callable[..., Any], values: Sequence[Tensor]) -> list[Tensor]:
    made = function(*values)
    if isinstance(made, Mapping):
        made = list(made.values())
    made = list(made) if isinstance(made, tuple | list) else [made]
    made = [value for value in made if value is not None]
    strange = [value for value in made if not isinstance(value, Tensor)] if made else [None]
    if strange:
        raise UsageError(
            f"like= is a function of tensors that returns tensors; it returned {type(strange[0]).__name__}",
            hint="a scalar is a tensor too: x.sum(), not float(x.sum()); of a tuple in a tuple, as nn.LSTM's, return "
            "the tensors",
        )
    return made


def _ending(value: Tensor, gradient: Tensor) -> Tensor:
    """A number whose gradient is that of a result: gradients that are given to PyTorch make it import sympy."""
    end: Tensor = torch.ops.aten.alias.default(value)
    end.register_hook(lambda _: gradient)  # type: ignore[no-untyped-call]
    return end.sum()


class _no_functions:  # noqa: N801
    """While this is entered a torch.autograd.Function is refused: its gradient is whatever its author wrote."""

    def __enter__(self) -> None:
        self.before = torch.autograd.Function.__dict__["apply"]

        def refused(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if cls is StraightThrough:
                return self.before.__get__(None, cls)(*args, **kwargs)
            raise UsageError(
                f"like= calls the torch.autograd.Function {cls.__name__}, whose gradient is written by hand",
                hint="the truth is made of PyTorch's own operators; write what the function computes",
            )

        torch.autograd.Function.apply = classmethod(refused)  # type: ignore[assignment]

    def __exit__(self, *raised: object) -> None:
        torch.autograd.Function.apply = self.before  # type: ignore[method-assign]


def _in_order(results: Any) -> list[Step]:
    order: list[Step] = []
    seen: set[int] = set()
    for last in results:
        pending = [(last, iter(last.inputs))]
        if id(last) in seen:
            continue
        seen.add(id(last))
        while pending:
            step, rest = pending[-1]
            for each in rest:
                if id(each) not in seen:
                    seen.add(id(each))
                    pending.append((each, iter(each.inputs)))
                    break
            else:
                order.append(step)
                pending.pop()
    return order
