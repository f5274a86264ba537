"""Definitions with one error each: what a limit has to notice.

Every constant and every step of a program is scaled by 1%, or a step is left out, and the results are evaluated again.
Nothing is said about a kernel: `verify.measure.blind` judges such results as if a kernel had returned them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from verify.ops.graph.elementwise import Map
from verify.ops.graph.program import Program
from verify.ops.graph.reducing import Contract, Reduce, Running, Spread
from verify.ops.graph.steps import Plain, Run, Step

OFF = 1.01
_LINE = re.compile(r"line (\d+), in (\w+)")


@dataclass(frozen=True)
class Mutation:
    """One error of a definition: a step whose result is scaled, or replaced by its input number `instead`."""

    words: str
    step: Step
    instead: int | None = None

    def value(self, run: Run, step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Returns what a step gives, with the error if it is the one."""
        made = step.value(run, given)
        if step is self.step:
            made = made * OFF if self.instead is None else given[self.instead].expand(made.shape)
        return made, made


def mutations(program: Program, wanted: Sequence[str]) -> list[Mutation]:
    """Returns the errors of a definition on which the wanted results may depend, in the order of its steps."""
    return [each for step in program.needed_for(wanted) if step.real for each in _of_step(step)]


def _of_step(step: Step) -> Iterator[Mutation]:
    if isinstance(step, Plain):
        if not step.of and step.shape == ():
            value = float(step.compute([]))
            if value not in (0.0, 1.0, -1.0) and value == value and abs(value) != float("inf"):
                yield Mutation(f"{value:g} 1% off", step)
        return
    name = getattr(step, "function", type(step).__name__.lower())
    rounds = isinstance(step, Contract | Running | Spread) or (isinstance(step, Reduce) and name == "sum")
    if isinstance(step, Map):
        rounds = step.rounds
    if not rounds:
        return
    found = None if "<frozen" in step.origin else _LINE.search(step.origin)  # a gradient has no line
    words = name + (f" at line {found[1]}" if found else "")
    yield Mutation(f"{words} 1% off", step)
    if isinstance(step, Map) and name in ("add", "subtract"):
        for place, each in enumerate(step.inputs):
            if each.shape == step.shape and not isinstance(step.inputs[1 - place], Plain):
                yield Mutation(f"{words} left out", step, place)


def mutated(
    program: Program, run: Run, wanted: Sequence[str], budget: int, *, constants: bool = False, seed: int = 0
) -> Iterator[tuple[Mutation, dict[str, Tensor]]]:
    """Evaluates the wanted results under up to `budget` errors of the definition, drawn where there are more.

    With `constants` they are errors of constants alone.
    """
    every = [each for each in mutations(program, wanted) if not constants or isinstance(each.step, Plain)]
    chosen = sorted(random.Random(seed).sample(range(len(every)), min(budget, len(every))))
    for each in (every[at] for at in chosen):
        with torch.no_grad():
            yield each, program.values(run, wanted, partial(each.value, run))
