"""The steps of a program: what each does to intervals of whole tensors, and to single elements.

This module has what all steps share, the operands, the constants and what moves elements; `elementwise`, `reducing` and
`selecting` have the others. `span` evaluates a step for all elements from the spans of its inputs. `sources` says which
elements of its inputs single elements need, and `elements` computes these from them in an `Arithmetic`. Numbers that
follow from integers alone (positions, labels, masks) are computed by PyTorch as they are (`Plain`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verify.errors import UsageError
from verify.ops.elements import pick
from verify.ops.graph.arithmetic import Arithmetic
from verify.ops.graph.spans import Span, point

Places = NDArray[np.int64]
_BLUR = 2.0**-21  # of a number whose noise is not known: a few roundings in float32
ABSENT: Any = object()  # the element at a place below 0
NOTHING = -1  # in a map of places: no element, but the constant that a padding has


@dataclass(frozen=True)
class Truths:
    """A condition on every element: PyTorch's answer, and where another answer is possible."""

    value: Tensor
    open: Tensor | None = None


@dataclass(eq=False)
class Step:
    """One step. `shape` is that of its result, `real` says that this is numbers (else booleans or integers)."""

    shape: tuple[int, ...]
    inputs: tuple[Step, ...] = ()
    real: bool = True
    origin: str = ""  # the operator of PyTorch, and the line that called it

    @property
    def reads(self) -> tuple[Step | None, ...]:
        """The steps whose elements single elements are made of: the inputs, or as many steps before them.

        None replaces an input without evaluated elements.
        """
        return self.inputs

    def span(self, run: Run, given: Sequence[Any]) -> Any:
        """The result as a `Span` or as `Truths`."""
        raise NotImplementedError

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        """Returns the result as PyTorch's float64 numbers (or conditions, integers) have it, without a bound."""
        raise NotImplementedError

    def sources(self, run: Run, wanted: Places) -> list[Places]:
        """For each of `reads` the places of the elements that `wanted` ones need, in rows of equal length."""
        raise NotImplementedError

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        """The wanted elements; `given` has, for each of `reads`, the list of values at the places of `sources`."""
        raise NotImplementedError


@dataclass
class Run:
    """One evaluation: the tensors of the operands, and how decisions are read that rounding may change.

    Where a program decides (which element is larger, to which integer a number rounds) by numbers that it computed
    itself, a kernel that rounds them otherwise may decide otherwise. With `opens` = "rounding" both answers are
    followed then, with "ties" also where two inputs are exactly equal: there a derivative has two sides. With "face"
    every decision is as PyTorch's float64 numbers have it, even where their intervals leave it open. `reach` maps
    id(step) to how far a kernel's numbers may be from the exact ones: a multiple of their noise.
    """

    leaves: dict[str, Tensor]
    device: torch.device
    opens: Literal["", "face", "rounding", "ties"] = ""
    reach: dict[int, Tensor] | None = None
    met_tie: bool = False  # whether a decision could have been another
    plain: dict[int, Tensor] = field(default_factory=dict)
    maps: dict[int, Any] = field(default_factory=dict)
    numbers: dict[int, Tensor] = field(default_factory=dict)  # by step, where elements that it moves come from
    signs: dict[int, NDArray[np.bool_]] = field(default_factory=dict)  # by step, where its float64 numbers have a minus

    def blurred(self, step: Step, a: Span) -> Span:
        """Returns what a kernel may hold for the numbers of a step, whose interval is `a`."""
        if a.given:
            return a
        reach = a.size() * _BLUR if self.reach is None else self.reach.get(id(step))
        return a if reach is None else Span(a.lo - reach, a.hi + reach)

    def fixed(self, step: Step) -> Tensor:
        """The value of a step that follows from integers alone."""
        if id(step) not in self.plain:
            if isinstance(step, Leaf):
                found = self.leaves[step.name]
            elif isinstance(step, Plain):
                found = step.compute([self.fixed(each) for each in step.of]).to(self.device)
            else:
                found = self._computed(step)
            self.plain[id(step)] = found
        return self.plain[id(step)]

    def is_minus(self, step: Step, place: int) -> bool:
        """Whether IEEE arithmetic puts a minus before a number, which is 0: real numbers have one zero."""
        if id(step) not in self.signs:
            self.signs[id(step)] = torch.signbit(self.span_of(step).mid()).cpu().reshape(-1).numpy()
        return bool(self.signs[id(step)][place])

    def span_of(self, step: Step) -> Any:
        """Evaluates a step, with all that it follows from."""
        known: dict[int, Any] = {}
        pending = [step]
        while pending:
            missing = [each for each in pending[-1].inputs if id(each) not in known]
            pending += missing
            if not missing:
                each = pending.pop()
                known[id(each)] = each.span(self, [known[id(one)] for one in each.inputs])
        return known[id(step)]

    def _computed(self, step: Step) -> Tensor:
        """Integers that numbers on the way to them decide, none of which depends on an operand: scaled positions."""
        found = self.span_of(step)
        if found.open is not None and bool(found.open.any()):
            raise UsageError(f"like= picks elements by positions that rounding decides: {step.origin}")
        value: Tensor = found.value
        return value

    def on_host(self, step: Step) -> NDArray[Any]:
        """The same, flat, in the memory of the host."""
        key = -id(step)
        if key not in self.maps:
            self.maps[key] = self.fixed(step).detach().cpu().reshape(-1).numpy()
        return self.maps[key]  # type: ignore[no-any-return]


@dataclass(eq=False)
class Leaf(Step):
    """An operand, or the gradient that arrives at an output."""

    name: str = ""
    operand: bool = True

    def span(self, run: Run, given: Sequence[Any]) -> Any:
        value = run.leaves[self.name]
        return point(value.to(torch.float64), given=True) if self.real else Truths(value)

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        held = run.leaves[self.name]
        return held.to(torch.float64) if self.real else held

    def sources(self, run: Run, wanted: Places) -> list[Places]:
        return []

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        tensor = run.leaves[self.name]
        if self.real:
            return [arithmetic.number(value) for value in pick(tensor, wanted.tolist())]
        chosen: list[Any] = torch.take(tensor, torch.from_numpy(wanted).to(tensor.device)).tolist()
        return chosen


@dataclass(eq=False)
class Plain(Step):
    """A value that follows from integers alone, those `of` other steps, or a constant: PyTorch does not round it."""

    of: tuple[Step, ...] = ()
    compute: Callable[[list[Tensor]], Tensor] = lambda given: given[0]

    def span(self, run: Run, given: Sequence[Any]) -> Any:
        value = self.value(run, given)
        return point(value, given=True) if self.real else Truths(value)

    def value(self, run: Run, given: Sequence[Tensor]) -> Tensor:
        held = run.fixed(self)
        return held.to(torch.float64) if self.real else held

    def sources(self, run: Run, wanted: Places) -> list[Places]:
        return []

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        chosen = run.on_host(self)[wanted].tolist()
        return [arithmetic.number(float(value)) for value in chosen] if self.real else chosen


def broadcast(wanted: Places, shape: tuple[int, ...], source: tuple[int, ...]) -> Places:
    """The places in a tensor of shape `source` that elements of a broadcast `shape` come from."""
    if shape == source:
        return wanted
    if math.prod(source) == 1:
        return np.zeros_like(wanted)
    coordinates = np.unravel_index(wanted, shape)[len(shape) - len(source) :]
    kept = tuple(np.zeros_like(c) if size == 1 else c for c, size in zip(coordinates, source, strict=True))
    return np.ravel_multi_index(kept, source)


@dataclass(eq=False)
class Move(Step):
    """Elements of the inputs elsewhere: views, copies, gathers, padding.

    `move(tensors, fixed, fill)` does it to tensors of any dtype; `fixed` are integer tensors it goes by, and `fill` is
    what stands where no element goes.
    """

    move: Callable[[list[Tensor], list[Tensor], float], Tensor] = lambda tensors, fixed, fill: tensors[0]
    by: tuple[Step, ...] = ()
    fill: float = 0.0
    view: bool = False
    within: bool = False  # the first input, with elements of the second written to a part of it
    kept: int = 0  # the first dimensions, at each index of which it does the same; never of a view

    def span(self, run: Run, given: Sequence[Any]) -> Any:
        fixed = [run.fixed(each) for each in self.by]
        if not self.real:
            fill = bool(self.fill)
            value = self.move([each.value for each in given], fixed, fill)
            if all(each.open is None for each in given):
                return Truths(value)
            masks = [
                torch.zeros_like(each.value, dtype=torch.bool) if each.open is None else each.open for each in given
            ]
            return Truths(value, self.move(masks, fixed, False))

        def moved(ends: list[Tensor], fill: float) -> Tensor:
            return self.move(ends, fixed, fill)

        lo = moved([each.lo for each in given], self.fill)
        hi = lo if all(each.is_point for each in given) else moved([each.hi for each in given], self.fill)
        return Span(lo, hi, all(each.given for each in given))

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
            sizes = [math.prod(each.shape) for each in self.inputs]
            starts = np.cumsum([0, *sizes[:-1]])
            numbered = [
                torch.arange(int(first), int(first) + size).reshape(each.shape)
                for first, size, each in zip(starts, sizes, self.inputs, strict=True)
            ]
            fixed = [run.fixed(each).cpu() for each in self.by]
            run.maps[id(self)] = self.move(numbered, fixed, NOTHING).reshape(-1).numpy()
        return run.maps[id(self)][wanted]  # type: ignore[no-any-return]

    def elements(self, run: Run, arithmetic: Arithmetic, wanted: Places, given: Sequence[Any]) -> list[Any]:
        fill = arithmetic.number(self.fill) if self.real else bool(self.fill)
        if len(given) == 1:
            return [fill if value is ABSENT else value for value in given[0]]
        return [next((v for v in values if v is not ABSENT), fill) for values in zip(*given, strict=True)]


def moved_from(step: Step) -> list[Step]:
    """Returns the step and those whose numbers it only moves, the one that makes the numbers last."""
    found = [step]
    while isinstance(found[-1], Move) and len(found[-1].inputs) == 1:
        found.append(found[-1].inputs[0])
    return found


def strides_of(shape: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return strides[::-1]


def offsets(places: Places, shape: tuple[int, ...], strides: Sequence[int]) -> Places:
    if not shape:
        return np.zeros_like(places)
    coordinates = np.unravel_index(places, shape)
    return sum((c * s for c, s in zip(coordinates, strides, strict=True)), np.zeros_like(places))


def rows_of(values: list[Any], count: int) -> list[list[Any]]:
    width = len(values) // count if count else 0
    return [values[place * width : (place + 1) * width] for place in range(count)]
