"""Finds the numbers at which the small constants of a PyTorch function show, such as 1e-8 that is added to a root.

A kernel that lacks the constant, or adds it elsewhere, differs most where the number beside it is about as large. The
root of a mean of squares is 1e-8 for other operands than the root of an operand. So the program is evaluated for
operands of several sizes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress

import torch
from torch import Tensor

from verify.cases.case import Case, inputs_of
from verify.cases.sizes import program_of, sizes_of, work_of
from verify.cases.values import NEAR
from verify.errors import VerifyError
from verify.ops.graph.elementwise import COMPARISONS, Map
from verify.ops.graph.program import undisturbed
from verify.ops.graph.steps import Plain, Step, moved_from
from verify.ops.op import Op, Problem

_TINY, _SMALL = 2.0**-60, 2.0**-7  # a constant in between is small beside ordinary numbers, and not a least number
_BESIDE = ("add", "subtract", "maximum", "minimum", *COMPARISONS)
_MOST = 2  # constants
_OCTAVES = 100  # operands of 2^-100 are the smallest that are no extreme inputs
_WORK = 1 << 20  # elements of all steps; for a larger program, operands are as large as its constants

Places = Mapping[int, tuple[float, int]]  # id(step) -> a constant, and which input of the step is beside it


def near_constants(op: Op) -> tuple[float, ...]:
    """Returns the sizes of operands at which a small constant shows, those of the largest constants first."""
    if op.meaning.shipped:
        return ()
    dims = op.geometry.examples[0] if op.geometry.examples else sizes_of(op, 1 << 12)[0]
    program = program_of(op, dims)
    constants = sorted({each for each, _ in _places(program).values()}, reverse=True)[:_MOST] if program else []
    if op.geometry.examples or not work_of(op, dims) <= _WORK:
        return tuple(constants)
    known: dict[int, dict[float, float]] = {}

    def beside(constant: float, octave: int) -> float:
        if octave not in known:
            known[octave] = _beside(op, dims, 2.0**-octave)
        return known[octave].get(constant, 0.0)

    found = []
    for each in constants:
        octave = bisect_left(range(_OCTAVES), True, key=lambda octave: beside(each, octave) <= each)
        # if it is larger or smaller beside all operands, such as a variance of equal numbers
        found.append(2.0**-octave if 0 < octave < _OCTAVES else each)
    return tuple(dict.fromkeys(float(f"{size:.2g}") for size in found))


def _places(program: object) -> Places:
    found: dict[int, tuple[float, int]] = {}
    for step in getattr(program, "steps", ()):
        for at in range(2 if isinstance(step, Map) and step.function in _BESIDE else 0):
            constant = _constant(step.inputs[1 - at])
            if constant and step.inputs[at].on_operands and step.inputs[at].real:
                found[id(step)] = constant, at
    return found


def _constant(step: Step) -> float:
    """Returns the magnitude of a small constant; 0.0 if the step is none."""
    made = moved_from(step)[-1]
    if not isinstance(made, Plain) or made.of or not made.real:
        return 0.0
    value = max((abs(float(each)) for each in made.compute([]).reshape(-1)[:1]), default=0.0)
    return value if _TINY < value <= _SMALL else 0.0


def _beside(op: Op, dims: tuple[int, ...], size: float) -> dict[float, float]:
    """Maps each small constant to the median of the largest number beside it, for operands of a size."""
    seen: dict[float, float] = {}
    with suppress(VerifyError), torch.no_grad():
        inputs = inputs_of(op, Case("float32", dims, f"{NEAR}{size!r}"), "cpu", shared=True)
        program, run = op.program(Problem(inputs=inputs, params=op.params, results=op.outputs))
        places, plain = _places(program), undisturbed(run)

        def make(step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
            if id(step) in places:
                constant, at = places[id(step)]
                seen[constant] = max(seen.get(constant, 0.0), float(given[at].abs().nanmedian()))
            return plain(step, given)

        program.values(run, list(program.results), make)
    return seen
