"""Cuts a program down to the part that some elements of a result need.

A box names elements of a tensor: some indices of each dimension, and every combination of them. `Cut` follows a box of
a result back through the steps and finds the box that each step needs: rows of a product, windows of a convolution,
heads of attention. The smaller program has the same kinds of steps. So its intervals, noise and exact values are
evaluated in the same way.

    cut = Cut(program, run, "y", box, most=1 << 24)
    cut.work                      # number of elements that it evaluates
    small, its_run = cut.made()   # its result "y" has the shape of the box
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verify.errors import BeyondEffort
from verify.ops.graph.boxes import (
    Box,
    Line,
    along,
    digits_of,
    distinct,
    joined_boxes,
    same_boxes,
    shape_of,
    size_of,
    taken,
    whole,
)
from verify.ops.graph.chunks import PART, Known, Totals
from verify.ops.graph.elementwise import Map
from verify.ops.graph.program import Program
from verify.ops.graph.reducing import Contract, Reduce, Running, Spread
from verify.ops.graph.selecting import AtOrder, First, Order, Positioned, ToOrder
from verify.ops.graph.steps import NOTHING, Leaf, Move, Plain, Run, Step

Needs = tuple[list[Box | None], Callable[[list[Any]], Step]]  # boxes of the inputs; a function from cut inputs to step
Replacements = dict[int, tuple[Box, Known]]  # id(step) -> elements of it, and what replaces these
Slices = dict[int, tuple[int, int]]  # dimension of the terms of a sum -> its first index, and the one after the last
Part = tuple[Slices, Replacements]  # the terms of a sum that are added, and what replaces steps before it

_PRODUCTS = 16  # multiply-adds of a matrix product that cost as much as one element of another step
_INTERVAL, _VALUE = 8, 4  # numbers in memory for each element of the step at hand, for its interval and its value alone
_OF_INPUTS = {True: 0.5, False: 0.75}  # the same for each element that a sum takes: of an operand (True), of a step
_LONG = 1 << 10  # fewest terms of a sum that is evaluated part by part
_LIVE = 512  # bytes for each term of a sum, with the steps before it, by which its parts are planned first
_PARTS = 1 << 11  # a sum is divided no further than into this many parts
_SHARE = 4  # a part of a sum takes at most one of this many shares of the memory
_NUMBERED = 1 << 28  # most elements of a move for which a table of places is made
_REMEMBERED = 1 << 22  # most elements of such a table that is kept for the next box


def cost_of(steps: Sequence[Step], size: Callable[[Step], float]) -> tuple[float, float]:
    """Returns the number of elements that some steps evaluate, weighted by cost, and the bytes of memory at the peak.

    `size(step)` returns the number of elements of a step. Numbers stay in memory until the last step that needs them:
    both ends of an interval, one of an operand or a constant; or the values, with the deviation of each step that
    rounds. A view takes no memory, but the tensor that it shows stays.
    """
    shown: dict[int, Step] = {}
    last: dict[int, int] = {}
    for number, step in enumerate(steps):
        inputs = [shown[id(each)] for each in step.inputs if id(each) in shown]  # of some a part needs nothing
        shown[id(step)] = inputs[0] if inputs and isinstance(step, Move) and step.view else step
        last |= {id(each): number for each in inputs}
    work = enclosed = valued = rounded = 0.0
    live = np.zeros(2)  # ends of intervals, and values
    ends: dict[int, Any] = {}
    for number, step in enumerate(steps):
        count, given = size(step), isinstance(step, Leaf | Plain)
        work += _work(step, count)
        sums = isinstance(step, Contract | Reduce | Running | Spread)
        terms = sum(size(each) * _OF_INPUTS[isinstance(shown.get(id(each)), Leaf | Plain)] for each in step.inputs)
        own = max(count, terms) if sums else count
        rounded += 0.0 if given or isinstance(step, Move) else count
        if shown[id(step)] is step:
            held = np.array([count if given else 2 * count, count])
            live += held
            end = last.get(id(step), len(steps))
            ends[end] = ends.get(end, 0.0) + held
        enclosed, valued = max(enclosed, live[0] + _INTERVAL * own), max(valued, live[1] + _VALUE * own)
        live -= ends.pop(number, 0.0)
    return work, 8 * max(enclosed, valued + rounded)


class Cut:
    """The part of a program that a box of a result needs.

    Raises BeyondEffort if it evaluates more than `most` numbers. Long sums that exceed `memory` are evaluated part by
    part (`Chunked`). With `part`, the result is a sum, only some of its terms are added, and what the parts need alike
    is replaced.
    """

    def __init__(
        self,
        program: Program,
        run: Run,
        result: str,
        box: Box,
        most: float = math.inf,
        memory: float = math.inf,
        part: Part = ({}, {}),
    ) -> None:
        self.program, self.run, self.result, self.box = program, run, result, box
        self.work, self._largest = 0.0, 0.0
        self._steps = program.needed_for([result])
        self._boxes: dict[int, Box] = {}
        self._needs: dict[int, tuple[Sequence[Step], Needs]] = {}  # id(step) -> inputs in the part, and their boxes
        self.known: list[Step] = []  # the steps that are replaced
        root = program.results[result]
        asked: dict[int, list[Box]] = {id(root): [box]}
        for step in reversed(self._steps):
            if id(step) not in asked:
                continue
            mine = self._boxes[id(step)] = _grown(step, joined_boxes(asked.pop(id(step))))
            held, known = part[1].get(id(step), (mine, None))
            if known is not None and same_boxes(held, mine):
                self.known.append(step)
                self._needs[id(step)] = (), ([], _always(known))
                continue
            totals = None if math.isinf(memory) else _totals(program, run, step, mine, memory)
            if totals is None:
                terms = part[0] if step is root else {}
                self.work += _work(step, size_of(mine), terms)
                inputs, needs = step.inputs, _needs(step, run, mine, terms)
            else:
                self.work, self._largest = self.work + totals.work, max(self._largest, totals.bytes)
                inputs, needs = totals.inputs, (list(totals.boxes), totals.chunked)
            if self.work > most:
                raise BeyondEffort(f"{size_of(box):,} elements of {result} need more than {most:,.0f} numbers")
            self._needs[id(step)] = inputs, needs
            for each, wanted in zip(inputs, needs[0], strict=True):
                if wanted is not None:
                    asked.setdefault(id(each), []).append(wanted)

    @property
    def chunked(self) -> bool:
        """True if a sum is evaluated part by part."""
        return self._largest > 0

    @property
    def bytes(self) -> float:
        """The bytes of memory that the evaluation takes at its peak."""
        steps = [step for step in self._steps if id(step) in self._boxes]
        size = lambda step: size_of(self._boxes[id(step)]) if id(step) in self._boxes else 0  # noqa: E731
        return cost_of(steps, size)[1] + self._largest

    def replacements(self) -> Replacements:
        """Maps id(step) to the elements of each computed step but the result, and to a step that may replace them."""
        steps = [step for step in self._steps if id(step) in self._boxes and not isinstance(step, Leaf | Plain)]
        boxes = [(step, self._boxes[id(step)]) for step in steps if step is not self.program.results[self.result]]
        return {id(step): (box, Known(shape_of(box), (), step.real, step.origin)) for step, box in boxes}

    def made(self) -> tuple[Program, Run]:
        """Returns the smaller program, and a run with its tensors, on the device of the whole run."""
        program, steps = self.program, list[Step]()
        made: dict[int, Step] = {}
        selected: dict[tuple[Any, ...], Step] = {}
        leaves: dict[str, Tensor] = {}
        stored: dict[int, torch.dtype] = {}

        def at(step: Step, box: Box) -> Step:
            """Returns a step with the elements of a box. The part may hold more elements of the step."""
            base, whole = made[id(step)], self._boxes[id(step)]
            if all(len(line) == len(each) for line, each in zip(box, whole, strict=True)):
                return base
            key = id(step), *(line.tobytes() for line in box)
            if key not in selected:
                lines = tuple(np.searchsorted(each, line) for line, each in zip(box, whole, strict=True))
                selected[key] = _moved(base, shape_of(box), partial(taken, box=lines, kept={}))
                steps.append(selected[key])
            return selected[key]

        for step in self._steps:
            if id(step) not in self._boxes:
                continue
            inputs, (boxes, make) = self._needs[id(step)]
            if isinstance(step, Leaf):
                leaves[step.name] = taken(self.run.leaves[step.name], self._boxes[id(step)]).to(self.run.device)
            pairs = zip(inputs, boxes, strict=True)
            new = make([None if box is None else at(each, box) for each, box in pairs])
            made[id(step)], new.narrow = new, step.narrow
            if id(step) in program.stored:
                stored[id(new)] = program.stored[id(step)]
            steps.append(new)
        if self._largest:  # the formats of all operands count, also of those that the parts of a sum use alone
            used = {step.name: self.run.leaves[step.name] for step in self._steps if isinstance(step, Leaf)}
            leaves = {name: leaf[:0] if leaf.ndim else leaf for name, leaf in used.items()} | leaves
        results = {self.result: at(program.results[self.result], self.box)}
        integers = tuple(name for name in program.integers if name == self.result)
        cut = Program(list(dict.fromkeys(steps)), results, program.leaves, {}, integers, program.typed, stored)
        return cut, Run(leaves, self.run.device)


def _always(step: Step) -> Callable[[list[Any]], Step]:
    return lambda given: step


# -- long sums --------------------------------------------------------------------------------------------


def _totals(program: Program, run: Run, step: Step, box: Box, memory: float) -> Totals | None:
    """Returns the parts of a step that adds many terms; None if all terms fit into memory together."""
    if isinstance(step, Contract):
        sizes = {2: step.inputs[0].shape[2]}
    elif isinstance(step, Reduce) and step.function in ("sum", "amax", "amin"):
        sizes = {dim: step.inputs[0].shape[dim] for dim in sorted(step.dims)}
    else:
        return None
    if math.prod(sizes.values()) < _LONG:
        return None
    key = step, memory, *(line.tobytes() for line in box)
    if key not in run.totals:
        run.totals[key] = _split(program, run, step, box, sizes, memory / _SHARE)
    found: Totals | None = run.totals[key]
    return found


def _split(program: Program, run: Run, step: Step, box: Box, sizes: dict[int, int], memory: float) -> Totals | None:
    """Divides the terms of a step until each part fits into `memory`; None if it fits whole."""
    stored = {key: kind for key, kind in program.stored.items() if key != id(step)}

    def made(terms: Slices) -> tuple[Program, Run]:
        return Cut(rooted, run, PART, box, part=(terms, known)).made()

    rooted = Program(program.steps, {PART: step}, program.leaves, {}, (), program.typed, stored)
    terms = math.prod(sizes.values())
    count = math.ceil(terms * size_of(box) * _LIVE / memory)
    if count == 1 and Cut(rooted, run, PART, box).bytes <= memory:
        return None
    count = max(count, 2)
    while True:
        pieces = _pieces(sizes, count)
        known = Cut(rooted, run, PART, box, part=(pieces[0], {})).replacements()
        for at in (len(pieces) // 2, -1, 0):  # only what these parts need alike remains
            first = Cut(rooted, run, PART, box, part=(pieces[at], known))
            known = {id(step): known[id(step)] for step in first.known}
        if first.bytes <= memory or len(pieces) >= min(terms, _PARTS):
            break
        count = 2 * len(pieces)
    return Totals(
        step,
        shape_of(box),
        [partial(made, each) for each in pieces],
        tuple(first.known),
        tuple(place for place, _ in known.values()),
        tuple(each for _, each in known.values()),
        first.work * len(pieces),
        first.bytes,
    )


def _pieces(sizes: dict[int, int], count: int) -> list[Slices]:
    """Divides dimensions of these sizes into about `count` pieces, the first dimensions first."""
    lines = []
    for dim, size in sizes.items():
        parts = min(size, count)
        ends = [size * part // parts for part in range(parts + 1)]
        lines.append([(dim, (first, end)) for first, end in pairwise(ends)])
        count = math.ceil(count / parts)
    return [dict(piece) for piece in product(*lines)]


def _grown(step: Step, box: Box) -> Box:
    """Enlarges a box by the elements that a step must evaluate with it.

    These are the whole row if the step orders elements, and the beginning of a cumulative sum.
    """
    if isinstance(step, Order | AtOrder | ToOrder) and not isinstance(step, First):
        return (*box[:-1], np.arange(step.shape[-1]))
    if isinstance(step, Running):
        return (*box[: step.dim], np.arange(int(box[step.dim][-1]) + 1), *box[step.dim + 1 :])
    return box


def _work(step: Step, count: float, slices: Slices | None = None) -> float:
    """Returns the cost of `count` elements of a step, in elements of an elementwise step."""
    if not isinstance(step, Contract):
        return count
    first, end = (slices or {}).get(2, (0, step.inputs[0].shape[2]))
    return count * (1 + (end - first) / _PRODUCTS)


def _needs(step: Step, run: Run, box: Box, slices: Slices) -> Needs:
    """Returns the boxes of a step's inputs that a box of it needs, and a function that makes the smaller step.

    `slices` limits the terms of a sum.
    """
    if isinstance(step, Leaf):
        return [], lambda given: replace(step, shape=shape_of(box))
    if isinstance(step, Plain):
        return [], lambda given: _constant(step, taken(run.fixed(step), box))
    if isinstance(step, Move):
        return _of_view(step, run, box) if step.view and len(step.inputs) == 1 else _of_move(step, run, box)
    if isinstance(step, Spread):
        return _of_spread(step, run, box)
    return _inputs(step, box, slices), lambda given: replace(step, shape=shape_of(box), inputs=tuple(given))


def _inputs(step: Step, box: Box, slices: Slices) -> list[Box | None]:
    """Returns the boxes of the inputs for a step that computes."""
    if isinstance(step, Map):
        return [_broadcast(box, each.shape) for each in step.inputs]
    if isinstance(step, Reduce):
        lines, inner = iter(box), []
        for dim, size in enumerate(step.inputs[0].shape):
            mine = next(lines) if step.keep or dim not in step.dims else None
            inner.append(np.arange(*slices.get(dim, (0, size))) if mine is None or dim in step.dims else mine)
        return [tuple(inner)]
    if isinstance(step, Contract):
        terms = np.arange(*slices.get(2, (0, step.inputs[0].shape[2])))
        return [(box[0], box[1], terms), (box[0], terms, box[2])]
    if isinstance(step, Running):
        return [box]
    if isinstance(step, First):
        return [(*box, np.arange(step.inputs[0].shape[-1]))]
    if isinstance(step, Positioned):
        raise BeyondEffort(f"{step.origin} moves elements by computed positions, so no part of it is evaluated alone")
    assert isinstance(step, Order | AtOrder | ToOrder), type(step)
    return [(*box[:-1], np.arange(each.shape[-1])) for each in step.inputs]


def _broadcast(box: Box, shape: tuple[int, ...]) -> Box:
    """Returns the box of an input of this shape that is broadcast to the elements of `box`."""
    mine = box[len(box) - len(shape) :]
    return tuple(np.zeros(1, dtype=np.int64) if size == 1 else line for size, line in zip(shape, mine, strict=True))


def _constant(like: Step, value: Tensor) -> Step:
    """Returns a step with a fixed value, which replaces a part of `like`."""
    held = Plain(tuple(value.shape), (), like.real, like.origin, compute=lambda given: value)
    # If `like` depends on operands, so does the new step: its value is no power of two by definition, only by chance.
    of = (held,) if getattr(like, "of", ()) else ()
    return replace(held, of=of, compute=lambda given: value)


def _moved(step: Step, shape: tuple[int, ...], change: Callable[[Tensor], Tensor], *, view: bool = False) -> Move:
    return Move(shape, (step,), step.real, move=lambda tensors, fixed, fill: change(tensors[0]), view=view)


# -- steps that only move elements ------------------------------------------------------------------------


def _of_view(step: Move, run: Run, box: Box) -> Needs:
    """Returns the needs of a box of a view.

    The place that an element reads is a sum over the dimensions of the view. `_groups` splits these into groups that
    read different dimensions of the input. Each group is followed by itself.
    """
    source = step.inputs[0].shape
    shadow = step.move([torch.empty(source, device="meta")], [], 0.0)
    if shadow.is_contiguous() and shadow.numel() == math.prod(source) and (rows := _of_rows(box, source)):
        return rows
    parts = [line * int(stride) for line, stride in zip(box, shadow.stride(), strict=True)]
    start = digits_of(np.array([int(shadow.storage_offset())]), source)
    lines = list(start)
    spots: list[tuple[list[int], list[Line]]] = []  # for each group: dimensions of the input, and coordinates there
    for dims, own in _groups(parts, source):
        total = np.zeros((1,) * len(box), dtype=np.int64)
        for dim in dims:
            total = total + along(parts[dim], dim, len(box))
        total = total + sum(int(start[at][0]) * math.prod(source[at + 1 :]) for at in own)
        coordinates = digits_of(total, source)
        for at in own:
            lines[at] = distinct(coordinates[at], source[at])
        spots.append((own, [coordinates[at] for at in own]))
    shape, inner = shape_of(box), tuple(lines)

    def make(given: list[Any]) -> Step:
        steps = np.cumprod([1, *(len(line) for line in reversed(inner))])[::-1][1:]
        found = [
            sum((_within(inner[at], each) * steps[at] for at, each in zip(*spot, strict=True)), np.int64(0))
            for spot in spots
        ]
        strided = _strided(found, len(box))
        if strided is not None:  # a view in memory too: nothing is copied
            return _moved(given[0], shape, partial(_strided_view, shape, *strided), view=True)
        index = sum(found, np.zeros((1,) * len(box), dtype=np.int64))
        where = torch.from_numpy(np.broadcast_to(index, shape).reshape(-1).copy()).to(run.device)
        return _moved(given[0], shape, lambda tensor: tensor.reshape(-1)[where.to(tensor.device)].reshape(shape))

    return [inner], make


def _of_rows(box: Box, source: tuple[int, ...]) -> Needs | None:
    """Returns the needs of a range of a flattened tensor, which are whole rows; None for any other box."""
    if len(box) != 1 or len(source) < 2 or not size_of(box):
        return None
    size, [line] = math.prod(source[1:]), box
    first, last = int(line[0]) // size, int(line[-1]) // size
    if line[-1] - line[0] != line.size - 1 or first == last:
        return None
    flat = partial(_strided_view, shape_of(box), [1], int(line[0]) - first * size)
    return [(np.arange(first, last + 1), *whole(source[1:]))], lambda given: _moved(
        given[0], shape_of(box), flat, view=True
    )


def _strided(parts: Sequence[Any], count: int) -> tuple[list[int], int] | None:
    """Returns the strides and the start of a view that reads these places; None if no view does."""
    strides, start = [0] * count, 0
    for part in parts:
        if not part.size:
            return None
        first = int(part.flat[0])
        even = np.full((1,) * count, first)
        for dim, size in enumerate(part.shape):
            stride = int(part.take(1, dim).flat[0]) - first if size > 1 else 0
            even = even + along(np.arange(size) * stride, dim, count)
            strides[dim] += stride
        if not np.array_equal(part, even):
            return None
        start += first
    return strides, start


def _strided_view(shape: tuple[int, ...], strides: list[int], start: int, tensor: Tensor) -> Tensor:
    line = tensor.contiguous()
    return line.as_strided(shape, strides, line.storage_offset() + start)


def _within(line: Line, indices: Line) -> Line:
    """Returns the positions of indices in a line that holds them."""
    return indices - line[0] if line[-1] - line[0] == line.size - 1 else np.searchsorted(line, indices)


def _groups(parts: list[Line], source: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Groups the dimensions of a view that read the same dimensions of the input; each pair is (view's, input's)."""
    groups: list[tuple[list[int], set[int]]] = []
    for dim, part in enumerate(parts):
        reads = {at for at, digit in enumerate(digits_of(part, source)) if bool(digit.any())}
        shared = [group for group in groups if group[1] & reads]
        if reads:
            groups = [group for group in groups if group not in shared]
            groups.append((sorted([dim, *(d for g in shared for d in g[0])]), reads.union(*(g[1] for g in shared))))
    for dims, reads in groups:  # if a sum carries into another dimension, all dimensions form one group
        most = sum(int(parts[dim].max()) for dim in dims)
        if any(digit and at not in reads for at, digit in enumerate(digits_of(np.array([most]), source))):
            return [(list(range(len(parts))), list(range(len(source))))]
    return [(dims, sorted(reads)) for dims, reads in groups]


def _of_move(step: Move, run: Run, box: Box) -> Needs:
    """Returns the needs of a box of any other move, by a table of the places that elements come from.

    The table leaves out the first `kept` and the last `after` dimensions, over which the move repeats.
    """
    end = len(box) - step.after
    lead, tail, rest = box[: step.kept], box[step.kept : end], box[end:]
    tails = [each.shape[step.kept : len(each.shape) - step.after] for each in step.inputs]
    sizes = [math.prod(each) for each in tails]
    starts = np.cumsum([0, *sizes])
    places = taken(_numbers(step, run, tails, starts), tail).cpu().reshape(-1).numpy()
    boxes: list[Box | None] = []
    index, count = np.full(places.shape, NOTHING, dtype=np.int64), 0
    for inner, start, size in zip(tails, starts, sizes, strict=False):
        mine = (places >= start) & (places < start + size)
        if not mine.any():
            boxes.append(None)
            continue
        digits = digits_of(places[mine] - start, inner)
        lines = tuple(map(distinct, digits, inner))
        own = np.zeros(int(mine.sum()), dtype=np.int64)
        for line, digit in zip(lines, digits, strict=True):
            own = own * len(line) + np.searchsorted(line, digit)
        index[mine] = own + count
        count += size_of(lines)
        boxes.append((*lead, *lines, *rest))
    padded = bool((index == NOTHING).any())
    where = torch.from_numpy(np.where(index == NOTHING, count, index)).to(run.device)
    shape, outer, apart = shape_of(box), size_of(lead), size_of(rest)

    def move(tensors: list[Tensor], fixed: list[Tensor], fill: float) -> Tensor:
        lines = [tensor.reshape(outer, -1, apart) for tensor in tensors]
        if padded:
            lines.append(torch.full((outer, 1, apart), fill, dtype=lines[0].dtype, device=lines[0].device))
        line = lines[0] if len(lines) == 1 else torch.cat(lines, 1)
        return line[:, where.to(line.device)].reshape(shape)

    def make(given: list[Any]) -> Step:
        needed = tuple(each for each in given if each is not None)
        if needed:
            return Move(shape, needed, step.real, step.origin, move=move, fill=step.fill)
        fill = torch.full(shape, step.fill, dtype=torch.float64 if step.real else torch.bool, device=run.device)
        return _constant(step, fill)

    return boxes, make


def _numbers(step: Move, run: Run, tails: Sequence[tuple[int, ...]], starts: Line) -> Tensor:
    """Returns the place that each element of a move comes from. The inputs' places are numbered in turn."""
    shape = step.shape[step.kept : len(step.shape) - step.after]
    if id(step) in run.numbers:
        return run.numbers[id(step)]
    if max(math.prod(shape), int(starts[-1])) > _NUMBERED:
        raise BeyondEffort(f"{step.origin} moves {math.prod(step.shape):,} elements by positions")
    shapes = [(*(1,) * step.kept, *tail, *(1,) * step.after) for tail in tails]
    found = step.numbered(run, shapes, run.device).reshape(shape)
    if found.numel() <= _REMEMBERED:
        run.numbers[id(step)] = found
    return found


def _of_spread(step: Spread, run: Run, box: Box) -> Needs:
    """Returns the needs of a box of a spread: the elements that it adds to the elements of the box."""
    lead, tail = box[: step.kept], box[step.kept :]
    lines, here = (_slices_to if step.whole else _elements_to)(step, run, tail)
    added = all(map(len, lines))
    boxes: list[Box | None] = [(*lead, *lines) if added else None]
    boxes += [box] * (len(step.inputs) - 1)

    def make(given: list[Any]) -> Step:
        if added:
            places = here.to(run.device)
            return replace(
                step, shape=shape_of(box), inputs=tuple(given), places=lambda fixed: places, by=(), whole=False
            )
        if len(given) > 1:
            return _moved(given[1], shape_of(box), lambda tensor: tensor, view=True)
        return _constant(step, torch.zeros(shape_of(box), dtype=torch.float64, device=run.device))

    return boxes, make


def _slices_to(step: Spread, run: Run, box: Box) -> tuple[Box, Tensor]:
    """Returns the slices of the first dimension that are added to a box, and the places of their elements there."""
    index = run.fixed(step.by[0])
    at = torch.full((step.shape[step.kept],), NOTHING, device=index.device)
    at[torch.from_numpy(box[0]).to(index.device)] = torch.arange(len(box[0]), device=index.device)
    goes = at[index]
    mine = torch.nonzero(goes >= 0).reshape(-1)
    inner = np.arange(size_of(box[1:])).reshape(shape_of(box[1:]))
    places = along(goes[mine].cpu().numpy(), 0, len(box)) * inner.size + inner
    return (mine.cpu().numpy(), *box[1:]), torch.from_numpy(places)


def _elements_to(step: Spread, run: Run, box: Box) -> tuple[Box, Tensor]:
    """Returns the elements that are added to a box, and the place of each there."""
    if max(math.prod(each.shape[step.kept :]) for each in step.inputs) > _NUMBERED:
        raise BeyondEffort(f"{step.origin} adds elements at positions that are too many to follow")
    goes = step.places([run.fixed(each) for each in step.by])
    inner = tuple(goes.shape)
    left, local, inside = goes.reshape(-1), torch.zeros_like(goes.reshape(-1)), goes.reshape(-1) >= 0
    stride = 1
    for size, line in zip(reversed(step.shape[step.kept :]), reversed(box), strict=True):
        at = torch.full((size,), NOTHING, dtype=torch.int64, device=goes.device)
        at[torch.from_numpy(line).to(goes.device)] = torch.arange(len(line), device=goes.device)
        found = at[left.clamp(min=0) % size]
        inside = inside & (found >= 0)
        local, left, stride = local + found * stride, left.clamp(min=0) // size, stride * len(line)
    local = torch.where(inside, local, NOTHING).reshape(inner)
    digits = digits_of(torch.nonzero(inside).reshape(-1).cpu().numpy(), inner)
    lines = tuple(map(distinct, digits, inner))
    return lines, taken(local, lines) if all(map(len, lines)) else local
