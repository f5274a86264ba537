"""Evaluates definitions that contain one error each, to test whether a limit notices the error.

An error scales one constant or one step of the program by 1%, or leaves one step out. `verify.measure.trivial` judges
the results as if a kernel had returned them. No kernel is involved.
"""

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

OFF = 1.01  # the factor of an error of 1%
_LINE = re.compile(r"line (\d+), in (\w+)")


@dataclass(frozen=True)
class Mutation:
    """One error of a definition: it scales the result of `step` by `OFF`, or replaces it by an input of `step`."""

    words: str  # names the error in reports
    step: Step
    instead: int | None = None  # number of the input that replaces the result; None: the result is scaled

    def value(self, run: Run, step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Returns the value of a step twice, as `make` of `Program.values` does. Only `self.step` has the error."""
        made = step.value(run, given)
        if step is self.step:
            made = made * OFF if self.instead is None else given[self.instead].expand(made.shape)
        return made, made


def mutations(program: Program, wanted: Sequence[str]) -> list[Mutation]:
    """Returns all errors that may change the wanted results, in the order of the steps."""
    return [each for step in program.needed_for(wanted) if step.real for each in _of_step(step)]


def _of_step(step: Step) -> Iterator[Mutation]:
    """Yields the errors of one step: none if it rounds nothing, or if it is the constant 0, 1 or -1."""
    if isinstance(step, Plain):
        if not step.of and step.shape == ():
            value = float(step.compute([]))
            if value not in (0.0, 1.0, -1.0) and value == value and abs(value) != float("inf"):
                yield Mutation(f"the constant {value:g} 1% off", step)
        return
    name = getattr(step, "function", type(step).__name__.lower())
    adds = isinstance(step, Contract | Running | Spread) or (isinstance(step, Reduce) and name == "sum")
    if not (step.rounds if isinstance(step, Map) else adds):
        return
    found = None if "<frozen" in step.origin else _LINE.search(step.origin)  # a step of a gradient has no source line
    words = name + (f" at line {found[1]} of {found[2]}" if found else "")
    yield Mutation(f"{words} 1% off", step)
    if isinstance(step, Map) and name in ("add", "subtract"):
        for place, each in enumerate(step.inputs):
            if each.shape == step.shape and not isinstance(step.inputs[1 - place], Plain):
                yield Mutation(f"{words} left out", step, place)


def mutated(
    program: Program, run: Run, wanted: Sequence[str], budget: int, *, constants: bool = False, seed: int = 0
) -> Iterator[tuple[Mutation, dict[str, Tensor]]]:
    """Yields each error with the results that it gives, for at most `budget` errors.

    Draws them by `seed` if there are more. With constants=True, only constants have errors.
    """
    every = [each for each in mutations(program, wanted) if not constants or isinstance(each.step, Plain)]
    chosen = sorted(random.Random(seed).sample(range(len(every)), min(budget, len(every))))
    for each in (every[at] for at in chosen):
        with torch.no_grad():
            yield each, program.values(run, wanted, partial(each.value, run))
