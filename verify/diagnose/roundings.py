"""Measures the effect of rounding each step of a program on one element of its result.

A program (`verify.ops.graph`) is evaluated in float64. Then the numbers of one step are rounded to a format, while all
other steps remain exact. The change of the element is the effect of that step. A step with a large effect needs a wider
format. At last every step is rounded, each sum once, which gives the bits of a kernel that works in that format
throughout. Steps that round nothing (moved elements, a maximum, a condition) have no row. Their text is part of the
name of the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from verify.ops.graph.program import Program
from verify.ops.graph.spans import point
from verify.ops.graph.steps import Leaf, Plain, Run, Step
from verify.ops.graph.wording import names, rounds

_MOST = 128  # at most this many steps are rounded alone


@dataclass(frozen=True)
class Rounding:
    """Holds one step and its effect on the element in each format.

    `value` is set if the element needs one number of it.
    """

    text: str
    value: float | None
    needed: int  # how many of the step's numbers the element needs
    moves: tuple[float, ...]


@dataclass(frozen=True)
class Roundings:
    """Holds the effects of all steps that round and that the element depends on, in order.

    `ends` enclose the element with no step rounded. `wholes` has the result with every step rounded, for each format.
    """

    steps: list[Rounding]
    ends: tuple[float, float]
    wholes: list[Tensor]


def roundings(program: Program, run: Run, result: str, index: int, dtypes: Sequence[torch.dtype]) -> Roundings:
    """Returns the effect of each step of a program on one element, in each of the formats."""
    program.decide(run, [result])
    end, steps = program.results[result], program.needed_for([result])
    held: dict[int, Any] = {}
    for step in steps:
        held[id(step)] = step.span(run, [held[id(each)] for each in step.inputs])
    places = program.places(run, result, [index], {}, every=True)
    before = _at(held[id(end)], index)
    found = []
    texts = names(steps)
    for step in [step for step in steps if id(step) in places and rounds(step)][:_MOST]:
        moves = []
        for dtype in dtypes:
            changed = {id(step): _rounded(held[id(step)], dtype)}
            _follow(steps, run, held, changed, lambda step, span: span)
            moves.append(_at(changed.get(id(end), held[id(end)]), index) - before)
        mine, _ = places[id(step)]
        value = _at(held[id(step)], int(mine[0])) if mine.size == 1 else None
        found.append(Rounding(texts[id(step)], value, int(mine.size), tuple(moves)))
    wholes = []
    for dtype in dtypes:
        changed = {id(step): held[id(step)] for step in steps if isinstance(step, Leaf | Plain)}
        _follow(steps, run, held, changed, partial(_if_it_rounds, dtype))
        wholes.append(changed[id(end)].mid())
    least, most = (float(side.reshape(-1)[index]) for side in (held[id(end)].lo, held[id(end)].hi))
    return Roundings(found, (least, most), wholes)


def _rounded(span: Any, dtype: torch.dtype) -> Any:
    return point(span.mid().to(dtype).to(torch.float64))


def _if_it_rounds(dtype: torch.dtype, step: Step, span: Any) -> Any:
    return _rounded(span, dtype) if rounds(step) else span


def _at(span: Any, place: int) -> float:
    return float(span.mid().reshape(-1)[place])


def _follow(
    steps: Sequence[Step],
    run: Run,
    held: dict[int, Any],
    changed: dict[int, Any],
    made: Callable[[Step, Any], Any],
) -> None:
    """Evaluates again all steps that depend on `changed` spans."""
    for step in steps:
        if id(step) not in changed and any(id(each) in changed for each in step.inputs):
            given = [changed.get(id(each), held[id(each)]) for each in step.inputs]
            changed[id(step)] = made(step, step.span(run, given))
