"""Blind spots of a limit: errors of a definition that it would not notice.

Each constant and each step of a `like=` program is put 1% off, or left out, and judged on the inputs of a case as if a
kernel had returned what follows. An error that no accuracy can see is none: it moves results less than their noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
from torch import Tensor

from verify.cases import Case
from verify.measure.counting import tally
from verify.measure.result import rms_limit
from verify.ops.graph.blind import mutated
from verify.ops.op import Op, Problem
from verify.records.figure import UNIT, shown
from verify.records.record import Figures, value_of
from verify.truth.fast import Truth
from verify.truth.formats import Format, torch_dtype
from verify.truth.ulp import errors

BUDGET = 24  # errors of a definition that are tried in one case
KEPT = 5
_MOST = 1 << 14  # elements, by the sizes of the case
SEEN = 0.5  # of the rms that noise and rounding explain: an error that moves results less is seen by no accuracy


class Blind(msgspec.Struct, frozen=True, order=True):
    """One error that passes: how much of the limit it takes, and what it is."""

    share: float
    words: str


def blind_spots(
    op: Op,
    problem: Problem,
    truths: Mapping[str, Truth],
    formats: Mapping[str, Format],
    floors: Mapping[str, float],
    limits: Mapping[str, float],
    budget: int = BUDGET,
    *,
    least: float = SEEN,
    constants: bool = False,
) -> list[Blind]:
    """Returns the errors that pass in all results, those first that come closest to the limit.

    Those that move no result by `least` of what noise and rounding explain are left out; with `constants` all but
    errors of constants.
    """
    if op.meaning is None or op.gate != "noise":
        return []
    program, run = op.meaning.program(problem)
    wanted = [name for name in truths if name not in op.integers]
    found = []
    for mutation, results in mutated(program, run, wanted, budget, constants=constants):
        seen = []
        for name in wanted:
            figures = _judged(op, truths[name], results[name], formats[name], floors[name], name)
            figure = value_of(figures.scaled_max or 0.0)
            seen.append((figure / limits[name], figures.rms or 0.0, figure, limits[name]))
        share, _, figure, limit = max(seen)
        rms = max(each[1] for each in seen)
        if share <= 1.0 and least <= rms <= min(rms_limit(formats[name].name) for name in wanted):
            words = f"{mutation.words} would pass: at most {shown(figure)}{UNIT['noise']}, the limit is {limit:g}"
            found.append(Blind(share, words))
    return sorted(found, reverse=True)


def _judged(op: Op, truth: Truth, value: Tensor, fmt: Format, floor: float, result: str) -> Figures:
    answer = value.to(torch_dtype(fmt))
    near = truth.for_result(answer)
    unit = truth.unit(op.gate_of(result), floor)
    return tally(errors(answer, near.value, fmt, low=near.low, bound=near.bound, scale=unit))[0].figures()


def case_of(cases: Sequence[Case]) -> Case | None:
    """Returns the case of ordinary inputs on which blind spots are looked for: the largest that is not large."""
    fit = [case for case in cases if case.fill == "randn" and not case.values and 0 < math.prod(case.dims) <= _MOST]
    return max(fit, key=lambda case: (bool(case.upstream), math.prod(case.dims)), default=None)
