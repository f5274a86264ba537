"""Cuts a program down to the part that some elements of a result need.

A box names elements of a tensor: some indices of each dimension, and every combination of them. `Cut` follows a box of
a result back through the steps and finds the box that each step needs: rows of a product, windows of a convolution,
heads of attention. The smaller program has the same kinds of steps. So its intervals, noise and exact values are
evaluated in the same way.

    cut = Cut(program, run, "y", box, most=1 << 24)
    cut.work                      # number of elements that it evaluates
    small, its_run = cut.made()   # its result "y" has the shape of the box
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verify.errors import BeyondEffort
from verify.ops.graph.elementwise import Map
from verify.ops.graph.program import Program
from verify.ops.graph.reducing import Contract, Reduce, Running, Spread
from verify.ops.graph.selecting import AtRank, IsExtreme, Ranked, RankIndex, WhereExtreme
from verify.ops.graph.steps import NOTHING, Leaf, Move, Plain, Run, Step

Line = NDArray[np.int64]  # indices of one dimension, ascending
Box = tuple[Line, ...]
Needs = tuple[list[Box | None], Callable[[list[Any]], Step]]  # boxes of the inputs; a function from cut inputs to step

_PRODUCTS = 16  # multiply-adds of a matrix product that cost as much as one element of another step
_INTERVAL, _VALUE = 8, 4  # numbers in memory for each element of the step at hand, for its interval and its value alone
_OF_INPUTS = {True: 0.25, False: 0.75}  # the same for each element that a sum takes: of an operand (True), of a step
_NUMBERED = 1 << 27  # most elements of a move for which a table of places is made
_REMEMBERED = 1 << 22  # most elements of such a table that is kept for the next box


def size_of(box: Box) -> int:
    """Returns the number of elements of a box."""
    return math.prod(map(len, box))


def places_in(box: Box, shape: Sequence[int]) -> Line:
    """Returns the flat places of a box's elements in a tensor of this shape, in the order of the box."""
    found = np.zeros((1,) * len(box), dtype=np.int64)
    for dim, (line, size) in enumerate(zip(box, shape, strict=True)):
        found = found * size + _along(line, dim, len(box))
    return found.reshape(-1)


def taken(tensor: Tensor, box: Box) -> Tensor:
    """Returns the elements of a tensor that a box names."""
    dims = [dim for dim, line in enumerate(box) if len(line) != tensor.shape[dim]]
    for dim in sorted(dims, key=lambda dim: len(box[dim]) / tensor.shape[dim]):
        line = box[dim]
        if line.size and line[-1] - line[0] == line.size - 1:
            tensor = tensor.narrow(dim, int(line[0]), line.size)
        else:
            tensor = tensor.index_select(dim, torch.from_numpy(line).to(tensor.device))
    return tensor


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

    Raises BeyondEffort if it evaluates more than `most` numbers.
    """

    def __init__(self, program: Program, run: Run, result: str, box: Box, most: float = math.inf) -> None:
        self.program, self.run, self.result, self.box = program, run, result, box
        self.work = 0.0
        self._steps = program.needed_for([result])
        self._boxes: dict[int, Box] = {}
        self._needs: dict[int, Needs] = {}
        asked: dict[int, list[Box]] = {id(program.results[result]): [box]}
        for step in reversed(self._steps):
            if id(step) not in asked:
                continue
            mine = self._boxes[id(step)] = _grown(step, _joined(asked.pop(id(step))))
            self.work += _work(step, size_of(mine))
            if self.work > most:
                raise BeyondEffort(f"{size_of(box):,} elements of {result} need more than {most:,.0f} numbers")
            needs = self._needs[id(step)] = _needs(step, run, mine)
            for each, wanted in zip(step.inputs, needs[0], strict=True):
                if wanted is not None:
                    asked.setdefault(id(each), []).append(wanted)

    @property
    def bytes(self) -> float:
        """The bytes of memory that the evaluation takes at its peak."""
        steps = [step for step in self._steps if id(step) in self._boxes]
        return cost_of(steps, lambda step: size_of(self._boxes[id(step)]) if id(step) in self._boxes else 0)[1]

    def made(self) -> tuple[Program, Run]:
        """Returns the smaller program, and a run with its tensors."""
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
                selected[key] = _moved(base, _shape(box), lambda tensor: taken(tensor, lines))
                steps.append(selected[key])
            return selected[key]

        for step in self._steps:
            if id(step) not in self._boxes:
                continue
            boxes, make = self._needs[id(step)]
            if isinstance(step, Leaf):
                leaves[step.name] = taken(self.run.leaves[step.name], self._boxes[id(step)])
            pairs = zip(step.inputs, boxes, strict=True)
            new = make([None if box is None else at(each, box) for each, box in pairs])
            made[id(step)] = new
            if id(step) in program.stored:
                stored[id(new)] = program.stored[id(step)]
            steps.append(new)
        results = {self.result: at(program.results[self.result], self.box)}
        integers = tuple(name for name in program.integers if name == self.result)
        cut = Program(list(dict.fromkeys(steps)), results, program.leaves, {}, integers, program.typed, stored)
        return cut, Run(leaves, self.run.device)


def whole(shape: Sequence[int]) -> Box:
    """Returns the box of all elements."""
    return tuple(np.arange(size) for size in shape)


def _shape(box: Box) -> tuple[int, ...]:
    """Returns the shape of a tensor with the elements of a box."""
    return tuple(map(len, box))


def _along(line: Line, dim: int, count: int) -> Line:
    """Reshapes a line to `count` dimensions, all of size 1 but `dim`."""
    return line.reshape((1,) * dim + (-1,) + (1,) * (count - dim - 1))


def _joined(boxes: list[Box]) -> Box:
    """Returns the smallest box that contains all boxes."""
    first, *rest = boxes
    for box in rest:
        first = tuple(_union(a, b) for a, b in zip(first, box, strict=True))
    return first


def _union(a: Line, b: Line) -> Line:
    """Returns the indices of two lines. A line without a gap often holds the other; this is tested first."""
    if not (a.size and b.size):
        return a if a.size else b
    for one, other in ((a, b), (b, a)):
        if one[0] <= other[0] and other[-1] <= one[-1] == one[0] + one.size - 1:
            return one
    return distinct(np.concatenate([a, b]), int(max(a[-1], b[-1])) + 1)


def distinct(indices: Line, size: int) -> Line:
    """Returns the indices below `size`, each once, ascending. Marking is faster than sorting many."""
    if size > 64 * indices.size:
        ordered = np.sort(indices, axis=None)
        return ordered[np.diff(ordered, prepend=-1) > 0]
    marked = np.zeros(size, dtype=bool)
    marked[indices] = True
    return np.flatnonzero(marked)


def _grown(step: Step, box: Box) -> Box:
    """Enlarges a box by the elements that a step must evaluate with it.

    These are the whole row if the step orders elements, and the beginning of a cumulative sum.
    """
    if isinstance(step, IsExtreme | Ranked | RankIndex | AtRank):
        return (*box[:-1], np.arange(step.shape[-1]))
    if isinstance(step, Running):
        return (*box[: step.dim], np.arange(int(box[step.dim][-1]) + 1), *box[step.dim + 1 :])
    return box


def _work(step: Step, count: float) -> float:
    """Returns the cost of `count` elements of a step, in elements of an elementwise step."""
    return count * (1 + step.inputs[0].shape[2] / _PRODUCTS) if isinstance(step, Contract) else count


def _needs(step: Step, run: Run, box: Box) -> Needs:
    """Returns the boxes of a step's inputs that a box of it needs, and a function that makes the smaller step."""
    if isinstance(step, Leaf):
        return [], lambda given: replace(step, shape=_shape(box))
    if isinstance(step, Plain):
        return [], lambda given: _constant(step, taken(run.fixed(step), box))
    if isinstance(step, Move):
        return _of_view(step, run, box) if step.view and len(step.inputs) == 1 else _of_move(step, run, box)
    if isinstance(step, Spread):
        return _of_spread(step, run, box)
    return _inputs(step, box), lambda given: replace(step, shape=_shape(box), inputs=tuple(given))


def _inputs(step: Step, box: Box) -> list[Box | None]:
    """Returns the boxes of the inputs for a step that computes."""
    if isinstance(step, Map):
        return [_broadcast(box, each.shape) for each in step.inputs]
    if isinstance(step, Reduce):
        lines, inner = iter(box), []
        for dim, size in enumerate(step.inputs[0].shape):
            mine = next(lines) if step.keep or dim not in step.dims else None
            inner.append(np.arange(size) if mine is None or dim in step.dims else mine)
        return [tuple(inner)]
    if isinstance(step, Contract):
        terms = np.arange(step.inputs[0].shape[2])
        return [(box[0], box[1], terms), (box[0], terms, box[2])]
    if isinstance(step, Running):
        return [box]
    if isinstance(step, WhereExtreme):
        return [(*box, np.arange(step.inputs[0].shape[-1]))]
    assert isinstance(step, IsExtreme | Ranked | RankIndex | AtRank), type(step)
    return [(*box[:-1], np.arange(each.shape[-1])) for each in step.inputs]


def _broadcast(box: Box, shape: tuple[int, ...]) -> Box:
    """Returns the box of an input of this shape that is broadcast to the elements of `box`."""
    mine = box[len(box) - len(shape) :]
    return tuple(np.zeros(1, dtype=np.int64) if size == 1 else line for size, line in zip(shape, mine, strict=True))


def _digits(places: Line, shape: tuple[int, ...]) -> Box:
    """Returns the indices of flat places in each dimension.

    NumPy 2.4's unravel_index is wrong beyond 8,192 places in arrays whose last dimensions have size 1.
    """
    found = list[Line]()
    for size in reversed(shape):
        places, digit = np.divmod(places, size)
        found.append(digit)
    return tuple(reversed(found))


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
    parts = [line * int(stride) for line, stride in zip(box, shadow.stride(), strict=True)]
    start = _digits(np.array([int(shadow.storage_offset())]), source)
    lines = list(start)
    spots: list[tuple[list[int], list[Line]]] = []  # for each group: dimensions of the input, and coordinates there
    for dims, own in _groups(parts, source):
        total = np.zeros((1,) * len(box), dtype=np.int64)
        for dim in dims:
            total = total + _along(parts[dim], dim, len(box))
        total = total + sum(int(start[at][0]) * math.prod(source[at + 1 :]) for at in own)
        coordinates = _digits(total, source)
        for at in own:
            lines[at] = distinct(coordinates[at], source[at])
        spots.append((own, [coordinates[at] for at in own]))
    shape, inner = _shape(box), tuple(lines)

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
            even = even + _along(np.arange(size) * stride, dim, count)
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
        reads = {at for at, digit in enumerate(_digits(part, source)) if bool(digit.any())}
        shared = [group for group in groups if group[1] & reads]
        if reads:
            groups = [group for group in groups if group not in shared]
            groups.append((sorted([dim, *(d for g in shared for d in g[0])]), reads.union(*(g[1] for g in shared))))
    for dims, reads in groups:  # if a sum carries into another dimension, all dimensions form one group
        most = sum(int(parts[dim].max()) for dim in dims)
        if any(digit and at not in reads for at, digit in enumerate(_digits(np.array([most]), source))):
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
        digits = _digits(places[mine] - start, inner)
        lines = tuple(map(distinct, digits, inner))
        own = np.zeros(int(mine.sum()), dtype=np.int64)
        for line, digit in zip(lines, digits, strict=True):
            own = own * len(line) + np.searchsorted(line, digit)
        index[mine] = own + count
        count += size_of(lines)
        boxes.append((*lead, *lines, *rest))
    padded = bool((index == NOTHING).any())
    where = torch.from_numpy(np.where(index == NOTHING, count, index)).to(run.device)
    shape, outer, apart = _shape(box), size_of(lead), size_of(rest)

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
    before, after = (1,) * step.kept, (1,) * step.after
    given = [
        torch.arange(int(first), int(last), device=run.device).reshape((*before, *tail, *after))
        for first, last, tail in zip(starts[:-1], starts[1:], tails, strict=True)
    ]
    found = step.move(given, [run.fixed(each) for each in step.by], NOTHING).reshape(shape)
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
                step, shape=_shape(box), inputs=tuple(given), places=lambda fixed: places, by=(), whole=False
            )
        if len(given) > 1:
            return _moved(given[1], _shape(box), lambda tensor: tensor, view=True)
        return _constant(step, torch.zeros(_shape(box), dtype=torch.float64, device=run.device))

    return boxes, make


def _slices_to(step: Spread, run: Run, box: Box) -> tuple[Box, Tensor]:
    """Returns the slices of the first dimension that are added to a box, and the places of their elements there."""
    index = run.fixed(step.by[0])
    at = torch.full((step.shape[step.kept],), NOTHING, device=index.device)
    at[torch.from_numpy(box[0]).to(index.device)] = torch.arange(len(box[0]), device=index.device)
    goes = at[index]
    mine = torch.nonzero(goes >= 0).reshape(-1)
    inner = np.arange(size_of(box[1:])).reshape(_shape(box[1:]))
    places = _along(goes[mine].cpu().numpy(), 0, len(box)) * inner.size + inner
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
    digits = _digits(torch.nonzero(inside).reshape(-1).cpu().numpy(), inner)
    lines = tuple(map(distinct, digits, inner))
    return lines, taken(local, lines) if all(map(len, lines)) else local
