"""Finds blind spots of a limit: errors in a definition that the limit would not catch.

Each constant and each step of a `like=` program is changed by 1% or left out. The result is judged on the inputs of one
case as if a kernel had returned it. Changes that move the results by less than their noise are ignored: no accuracy
could show them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from verify.cases import Case
from verify.cases.values import SIGNS
from verify.measure.counting import tally
from verify.measure.judge import JudgedBy
from verify.measure.tally import rms_limit
from verify.ops.graph.blind import mutated
from verify.records.figure import UNIT, shown
from verify.records.record import value_of
from verify.truth.formats import torch_dtype

BUDGET = 24  # the number of changed definitions tried in one case
KEPT = 5
_MOST = 1 << 14  # the largest product of a case's sizes
# The least rms of a change that is reported, in units of the rms that noise and rounding explain. No accuracy could
# show a smaller change.
LEAST_SEEN = 0.5


def blind_spots(
    results: Sequence[JudgedBy],
    limits: Mapping[str, float],
    budget: int = BUDGET,
    *,
    least: float = LEAST_SEEN,
    constants: bool = False,
) -> list[tuple[float, str]]:
    """Returns the errors that pass in all results of a case, with their share of the limit, the largest first.

    An error is omitted if it moves no result by `least` times the rms that noise and rounding explain. With
    `constants=True` only changed constants are tried.
    """
    if not results or (op := results[0].op).gate != "noise":
        return []
    program, run = op.program(results[0].problem)
    numbers = {by.result: by for by in results if by.result not in op.integers}
    spots = []
    for mutation, values in mutated(program, run, list(numbers), budget, constants=constants):
        figures_of = []
        for name, by in numbers.items():
            # the host's operands make the changed result, while the truth of a large one stays on the GPU
            changed = values[name].to(by.truth.value.device, torch_dtype(by.fmt))
            figures = tally(by.compared(changed)[1])[0].figures()
            figure = value_of(figures.scaled_max or 0.0)
            figures_of.append((figure / limits[name], figures.rms or 0.0, figure, limits[name]))
        share, _, figure, limit = max(figures_of)
        rms = max(each[1] for each in figures_of)
        if share <= 1.0 and least <= rms <= min(rms_limit(by.fmt.name) for by in numbers.values()):
            size = f"at most {shown(figure)}{UNIT['noise']}, the limit is {limit:g}"
            spots.append((share, f"{mutation.words} would pass on inputs of one ordinary case: {size}"))
    return sorted(spots, reverse=True)


def case_of(cases: Sequence[Case]) -> Case | None:
    """Returns the largest case with ordinary inputs and at most `_MOST` elements, for this search; None if there is
    none.
    """
    ordinary = [case for case in cases if case.fill in ("randn", SIGNS) and not case.values]
    fit = [case for case in ordinary if 0 < math.prod(case.dims) <= _MOST]
    return max(fit, key=lambda case: (bool(case.upstream), math.prod(case.dims)), default=None)
