"""Defines the steps of a program: how each evaluates whole tensors as intervals, and single elements exactly.

This module has the base class, operands, constants and steps that move elements. The modules `elementwise`, `reducing`
and `selecting` have the others. Each step has these methods:

- `span` evaluates all elements, from the spans of the inputs;
- `sources` returns the elements of the inputs that given elements need;
- `elements` computes single elements from those, in an `Arithmetic`.

Some steps decide: which number is larger, which place it has in an order, to which integer it rounds. A decision is
data. PyTorch's float64 takes it once, the run records it (`Run.decisions`), and every other evaluation reads it. So
intervals, exact values and noise belong to the same choice at a tie.

PyTorch computes numbers that depend on integers alone (positions, labels, masks), because it does not round them
(`Plain`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verify.ops.elements import pick
from verify.ops.graph.arithmetic import Arithmetic
from verify.ops.graph.spans import Span, point

Places = NDArray[np.int64]
ABSENT: Any = object()  # the value at a negative place
NOTHING = -1  # a place without an element, where padding puts its constant


@dataclass(eq=False)
class Step:
    """One operation of a program, with its inputs and the shape of its result."""

    shape: tuple[int, ...]
    inputs: tuple[Step, ...] = ()
    real: bool = True  # False: the result is booleans or integers
    origin: str = ""  # PyTorch's operator, and the source line that called it
    narrow: torch.dtype | None = None  # 16-bit dtype that PyTorch keeps the result in, inside of an operator

    def __post_init__(self) -> None:
        # true if the step depends on values of an operand: kept, because a network may have thousands of steps
        self.on_operands: bool = isinstance(self, Leaf) or any(each.on_operands for each in self.inputs)

    @property
    def decides(self) -> bool:
        """True if the step turns numbers into a choice: a rounding of them changes it wholly or not at all."""
        return False

    @property
    def reads(self) -> tuple[Step | None, ...]:
        """The steps that `elements` reads: one for each input, either the input or a step before it.

        None: no element of this input is evaluated.
        """
        return self.inputs

    def span(self, run: Run, given: Sequence[Any]) -> Any:
        """Returns the result as a `Span` if it is real, else its integers; `given` holds the same of the inputs.

        By default, the value of each end: right for a step that only moves or selects numbers.
        """
        if not self.real:
            return self.value(run, given)
        lo, hi = ([getattr(each, end) if isinstance(each, Span) else each for each in given] for end in ("lo", "hi"))
        least = self.value(run, lo)
        known = all(each.is_point for each in given if isinstance(each, Span))
        return point(least) if known else Span(least, self.value(run, hi))

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        """Returns the result in PyTorch's float64 (or as booleans or integers), without a bound of its error."""
        raise NotImplementedError

    def sources(self, run: Run, wanted: Places) -> list[Places]:
        """Returns, for each of `reads`, the places that the wanted elements need: one row of equal length for each."""
        return []

    def least_read(self, count: int) -> int:
        """Returns a number of elements of the first of `reads` that `count` elements need at least."""
        return 0

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        """Returns the wanted elements; `given` holds, for each of `reads`, the values at the places of `sources`."""
        raise NotImplementedError


@dataclass
class Run:
    """One evaluation: the tensors of the operands, the decisions that are taken, and caches."""

    leaves: dict[str, Tensor]
    device: torch.device
    decisions: dict[int, Tensor] = field(default_factory=dict)  # id(step that decides) -> what it decided
    plain: dict[int, Tensor] = field(default_factory=dict)  # cache of `fixed`
    maps: dict[Any, Any] = field(default_factory=dict)  # caches of steps and of `on_host`
    numbers: dict[int, Tensor] = field(default_factory=dict)  # id(step) -> source place of each element that it moves
    signs: dict[int, NDArray[np.bool_]] = field(default_factory=dict)  # id(step) -> True for a negative float64 number
    totals: dict[Any, Any] = field(default_factory=dict)  # results of long sums, which boxes share (`slices.py`)

    def decision(self, step: Step, make: Callable[[], Tensor]) -> Tensor:
        """Returns what a step decided. The first evaluation decides by `make`, and the run records it."""
        found = self.decisions.get(id(step))
        if found is None:
            found = self.decisions[id(step)] = make()
        return found.to(self.device)

    def decided_at(self, step: Step, wanted: Places) -> list[Any]:
        """Returns the recorded decisions at some places."""
        key = "decided", id(step)
        if key not in self.maps:
            self.maps[key] = self.decisions[id(step)].cpu().reshape(-1).numpy()
        return self.maps[key][wanted].tolist()  # type: ignore[no-any-return]

    def decided_rows(self, step: Step, rows: Places) -> NDArray[np.int64]:
        """Returns the recorded decisions of some rows, the last dimension of a step."""
        places = rows[:, None] * step.shape[-1] + np.arange(step.shape[-1])
        return np.asarray(self.decided_at(step, places.reshape(-1)), dtype=np.int64).reshape(places.shape)

    def fixed(self, step: Step) -> Tensor:
        """Returns the value of a step that depends on integers and constants alone."""
        if id(step) not in self.plain:
            if isinstance(step, Leaf):
                found = self.leaves[step.name]
            elif isinstance(step, Plain):
                found = _placed(step.compute([self.fixed(each) for each in step.of]), self.device)
            else:
                found = self.span_of(step)
            self.plain[id(step)] = found
        return self.plain[id(step)]

    def is_minus(self, step: Step, place: int) -> bool:
        """True if IEEE arithmetic gives -0 for an element that is zero. The real numbers have one zero only."""
        if id(step) not in self.signs:
            self.signs[id(step)] = torch.signbit(self.span_of(step).mid()).cpu().reshape(-1).numpy()
        return bool(self.signs[id(step)][place])

    def span_of(self, step: Step) -> Any:
        """Evaluates the interval of one step, after all steps before it."""
        known: dict[int, Any] = {}
        pending = [step]
        while pending:
            missing = [each for each in pending[-1].inputs if id(each) not in known]
            pending += missing
            if not missing:
                each = pending.pop()
                known[id(each)] = each.span(self, [known[id(one)] for one in each.inputs])
        return known[id(step)]

    def on_host(self, step: Step) -> NDArray[Any]:
        """Returns `fixed(step)` as a flat NumPy array in host memory."""
        key = -id(step)
        if key not in self.maps:
            self.maps[key] = self.fixed(step).detach().cpu().reshape(-1).numpy()
        return self.maps[key]  # type: ignore[no-any-return]


def _placed(value: Tensor, device: torch.device) -> Tensor:
    """Moves a tensor to a device. Numbers that are repeated in memory stay one number there."""
    if value.device == device or 0 not in value.stride():
        return value.to(device)
    once = value[tuple(slice(0, 1) if step == 0 else slice(None) for step in value.stride())]
    return once.to(device).expand(value.shape)


@dataclass(eq=False)
class Leaf(Step):
    """An operand, or the upstream gradient of an output (operand=False)."""

    name: str = ""
    operand: bool = True

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        held = run.leaves[self.name]
        return held.to(torch.float64) if self.real else held

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        tensor = run.leaves[self.name]
        if self.real:
            return arithmetic.numbers(pick(tensor, wanted.tolist()))
        chosen: list[Any] = torch.take(tensor, torch.from_numpy(wanted).to(tensor.device)).tolist()
        return chosen


@dataclass(eq=False)
class Plain(Step):
    """A constant, or a value that depends on the integers of other steps alone. PyTorch does not round it."""

    of: tuple[Step, ...] = ()  # the steps whose integers `compute` receives
    compute: Callable[[list[Tensor]], Tensor] = lambda given: given[0]

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        held = run.fixed(self)
        return held.to(torch.float64) if self.real else held

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        chosen = run.on_host(self)[wanted].tolist()
        return arithmetic.numbers(map(float, chosen)) if self.real else chosen


def broadcast(wanted: Places, shape: tuple[int, ...], source: tuple[int, ...]) -> Places:
    """Maps places in a tensor of `shape` to places in the tensor of shape `source` that was broadcast to it."""
    if shape == source:
        return wanted
    if math.prod(source) == 1:
        return np.zeros_like(wanted)
    coordinates = np.unravel_index(wanted, shape)[len(shape) - len(source) :]
    kept = tuple(np.zeros_like(c) if size == 1 else c for c, size in zip(coordinates, source, strict=True))
    return np.ravel_multi_index(kept, source)


@dataclass(eq=False)
class Move(Step):
    """A step that puts elements of its inputs in other places: a view, copy, gather or padding.

    `move(tensors, fixed, fill)` moves the elements of tensors of any dtype. `fixed` are the values of `by`: integer
    tensors that give positions. `fill` is the value where no element arrives.
    """

    move: Callable[[list[Tensor], list[Tensor], float], Tensor] = lambda tensors, fixed, fill: tensors[0]
    by: tuple[Step, ...] = ()
    fill: float = 0.0
    view: bool = False
    within: bool = False  # True: the result is the first input, with a part overwritten by the second
    kept: int = 0  # number of leading dimensions over which it repeats the same movement; 0 for a view
    after: int = 0  # the same of the last dimensions

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        return self.move(
            list(given), [run.fixed(each) for each in self.by], self.fill if self.real else bool(self.fill)
        )

    def sources(self, run: Run, wanted: Places) -> list[Places]:
        places = self._places(run, wanted)
        found, first = [], 0
        for each in self.inputs:
            size = math.prod(each.shape)
            mine = (places >= first) & (places < first + size)
            found.append(np.where(mine, places - first, NOTHING))
            first += size
        return found

    def _places(self, run: Run, wanted: Places) -> Places:
        """Maps wanted places to places in the inputs, which are numbered one after the other; NOTHING: filled."""
        if self.view and len(self.inputs) == 1:
            if id(self) not in run.maps:
                shadow = self.move([torch.empty(self.inputs[0].shape, device="meta")], [], 0.0)
                run.maps[id(self)] = (tuple(shadow.shape), shadow.stride(), shadow.storage_offset())
            shape, strides, offset = run.maps[id(self)]
            if not shape:
                return np.full_like(wanted, offset)
            coordinates = np.unravel_index(wanted, shape)
            return sum((c * s for c, s in zip(coordinates, strides, strict=True)), np.full_like(wanted, offset))
        if id(self) not in run.maps:
            found = self.numbered(run, [each.shape for each in self.inputs], torch.device("cpu"))
            run.maps[id(self)] = found.reshape(-1).numpy()
        return run.maps[id(self)][wanted]  # type: ignore[no-any-return]

    def numbered(self, run: Run, shapes: Sequence[tuple[int, ...]], device: torch.device) -> Tensor:
        """Returns the place that each element comes from. The places of inputs of these shapes are numbered in turn."""
        ends = np.cumsum([0, *map(math.prod, shapes)]).tolist()
        given = [torch.arange(*pair, device=device).reshape(s) for pair, s in zip(pairwise(ends), shapes, strict=True)]
        return self.move(given, [run.fixed(each).to(device) for each in self.by], NOTHING)

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        fill = arithmetic.number(self.fill) if self.real else bool(self.fill)
        if len(given) == 1:
            return [fill if value is ABSENT else value for value in given[0]]
        return [next((v for v in values if v is not ABSENT), fill) for values in zip(*given, strict=True)]


def moved_from(step: Step) -> list[Step]:
    """Returns the step and, if it only moves numbers, the steps before it up to the one that makes the numbers."""
    found = [step]
    while isinstance(found[-1], Move) and len(found[-1].inputs) == 1:
        found.append(found[-1].inputs[0])
    return found


def places_of(step: Step, source: Step, run: Run) -> Tensor:
    """Returns, for each element of a step that only moves elements, its place in `source`."""
    if step is source:
        return torch.arange(math.prod(source.shape), device=run.device).reshape(source.shape)
    assert isinstance(step, Move)
    return step.move([places_of(step.inputs[0], source, run)], [run.fixed(each) for each in step.by], 0)


def reached(first: Iterable[Step], onward: Callable[[Step], Iterable[Step]]) -> Iterator[Step]:
    """Yields some steps and all those that `onward` leads to from each, every step once."""
    ahead, seen = list(first), set[int]()
    while ahead:
        each = ahead.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            ahead += onward(each)


def copies(step: Step) -> bool:
    """True if a step only moves, selects or negates numbers, which no format rounds."""
    return isinstance(step, Move) or getattr(step, "function", "") in ("where", "negative")


def ends_of(step: Step) -> set[int]:
    """Returns the ids of a step and, before steps that only copy numbers, of those that make or copy these."""
    return set(map(id, reached([step], lambda each: each.inputs if copies(each) else ())))


def strides_of(shape: Sequence[int]) -> list[int]:
    """Returns the strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return strides[::-1]


def offsets(places: Places, shape: tuple[int, ...], strides: Sequence[int]) -> Places:
    """Maps flat places in a tensor of `shape` to offsets in memory with these strides."""
    if not shape:
        return np.zeros_like(places)
    coordinates = np.unravel_index(places, shape)
    return sum((c * s for c, s in zip(coordinates, strides, strict=True)), np.zeros_like(places))


def rows_of(values: list[Any], count: int) -> list[list[Any]]:
    """Splits a list into `count` lists of equal length."""
    width = len(values) // count if count else 0
    return [values[place * width : (place + 1) * width] for place in range(count)]
