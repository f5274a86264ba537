"""Finds blind spots of a limit: errors in a definition that the limit would not catch.

Each constant and each step of a `like=` program is changed by 1% or left out. The result is judged on the inputs of one
case as if a kernel had returned it. Changes that move the results by less than their noise are ignored: no accuracy
could show them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from verify.cases import Case
from verify.cases.values import SIGNS
from verify.measure.counting import tally
from verify.measure.judge import JudgedBy
from verify.measure.result import rms_limit
from verify.ops.graph.blind import mutated
from verify.records.figure import UNIT, shown
from verify.records.record import Figures, value_of
from verify.truth.formats import torch_dtype

BUDGET = 24  # the number of changed definitions tried in one case
KEPT = 5
_MOST = 1 << 14  # the largest product of a case's sizes
# The least rms of a change that is reported, in units of the rms that noise and rounding explain. No accuracy could
# show a smaller change.
SEEN = 0.5


def blind_spots(
    judged: Sequence[JudgedBy],
    limits: Mapping[str, float],
    budget: int = BUDGET,
    *,
    least: float = SEEN,
    constants: bool = False,
) -> list[tuple[float, str]]:
    """Returns the errors that pass in all results of a case, with their share of the limit, the largest first.

    An error is omitted if it moves no result by `least` times the rms that noise and rounding explain. With
    `constants=True` only changed constants are tried.
    """
    if not judged or (op := judged[0].op).gate != "noise":
        return []
    program, run = op.program(judged[0].problem)
    wanted = {by.result: by for by in judged if by.result not in op.integers}
    found = []
    for mutation, results in mutated(program, run, list(wanted), budget, constants=constants):
        seen = []
        for name, by in wanted.items():
            figures = _judged(by, results[name])
            figure = value_of(figures.scaled_max or 0.0)
            seen.append((figure / limits[name], figures.rms or 0.0, figure, limits[name]))
        share, _, figure, limit = max(seen)
        rms = max(each[1] for each in seen)
        if share <= 1.0 and least <= rms <= min(rms_limit(by.fmt.name) for by in wanted.values()):
            size = f"at most {shown(figure)}{UNIT['noise']}, the limit is {limit:g}"
            found.append((share, f"{mutation.words} would pass on inputs of one ordinary case: {size}"))
    return sorted(found, reverse=True)


def _judged(by: JudgedBy, value: Tensor) -> Figures:
    # the mutated program runs on the host's operands, while the truth of a large result stays on the GPU
    answer = value.to(by.truth.value.device, torch_dtype(by.fmt))
    return tally(by.compared(answer)[1])[0].figures()


def case_of(cases: Sequence[Case]) -> Case | None:
    """Returns the largest case with ordinary inputs and at most `_MOST` elements, for this search; None if there is
    none.
    """
    ordinary = [case for case in cases if case.fill in ("randn", SIGNS) and not case.values]
    fit = [case for case in ordinary if 0 < math.prod(case.dims) <= _MOST]
    return max(fit, key=lambda case: (bool(case.upstream), math.prod(case.dims)), default=None)
