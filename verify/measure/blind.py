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
from verify.measure.judge import JudgedBy
from verify.measure.result import rms_limit
from verify.ops.graph.blind import mutated
from verify.records.figure import UNIT, shown
from verify.records.record import Figures, value_of
from verify.truth.formats import torch_dtype
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
    judged: Sequence[JudgedBy],
    limits: Mapping[str, float],
    budget: int = BUDGET,
    *,
    least: float = SEEN,
    constants: bool = False,
) -> list[Blind]:
    """Returns the errors that pass in all results of a case, those first that come closest to the limit.

    Those that move no result by `least` of what noise and rounding explain are left out; with `constants` all but
    errors of constants.
    """
    if not judged or (op := judged[0].op).meaning is None or op.gate != "noise":
        return []
    program, run = op.meaning.program(judged[0].problem)
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
            words = f"{mutation.words} would pass: at most {shown(figure)}{UNIT['noise']}, the limit is {limit:g}"
            found.append(Blind(share, words))
    return sorted(found, reverse=True)


def _judged(by: JudgedBy, value: Tensor) -> Figures:
    answer = value.to(torch_dtype(by.fmt))
    near = by.truth.for_result(answer)
    unit = by.truth.unit(by.op.gate_of(by.result), by.floor)
    return tally(errors(answer, near.value, by.fmt, low=near.low, bound=near.bound, scale=unit))[0].figures()


def case_of(cases: Sequence[Case]) -> Case | None:
    """Returns the case of ordinary inputs on which blind spots are looked for: the largest that is not large."""
    fit = [case for case in cases if case.fill == "randn" and not case.values and 0 < math.prod(case.dims) <= _MOST]
    return max(fit, key=lambda case: (bool(case.upstream), math.prod(case.dims)), default=None)
