"""The seam: how this project judges results at its default limit. Only this function knows the yardstick."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from verify.declare.declaration import Kernel
from verify.measure.effort import Effort
from verify.measure.judge import JudgedBy, judge_by
from verify.measure.result import FEWEST, check_limit
from verify.measure.trivial import blind_spots as named_errors
from verify.measure.trivial import trivial_answers
from verify.ops.op import Problem
from verify.records.record import ORDINARY, value_of
from verify.truth.fast import evaluate
from verify.truth.formats import named

Results = Mapping[str, Tensor]


@dataclass(frozen=True)
class Judgement:
    """Says whether one result of one kernel passes, the figure that decides it, and its share of open elements.

    `right` says that the result is the truth, rounded: such zeros are no breakage. `vacuous` says that it is within the
    limit, and that trivial answers would be too. `rms` is the root mean square of what noise and rounding explain.
    """

    passes: bool
    figure: float
    open: float = 0.0
    right: bool = False
    vacuous: bool = False
    rms: float = 0.0


def judge(
    kernel: Kernel, inputs: Results, upstream: Results, candidates: Mapping[str, Results], dtype: str
) -> dict[str, dict[str, Judgement]]:
    """Judges the results of several kernels by one truth: candidate, then result, to its judgement.

    `kernel` is a declaration with a `like=` program and no limit of its own. Intervals of float64 decide; only a result
    that they leave undecided at the limit is judged again with exact values, as many as in a verdict: deep gradients
    have intervals wider than the limit at most elements.
    """
    results = tuple(dict.fromkeys(name for each in candidates.values() for name in each))
    problem = Problem(inputs=inputs, upstream=upstream, results=results)
    fmt = named(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        truths = evaluate(kernel.op, problem, dict.fromkeys(results, fmt))

    trivial = {}
    for name, truth in truths.items():
        everywhere = torch.ones(truth.value.numel(), dtype=torch.bool, device=truth.value.device)
        by = JudgedBy(kernel.op, problem, name, truth, fmt, floor=kernel.noise_floor(dtype, name))
        trivial[name] = trivial_answers(by, everywhere)

    def one(result: str, got: Tensor) -> Judgement:
        floor = kernel.noise_floor(dtype, result)
        by = JudgedBy(kernel.op, problem, result, truths[result], fmt, floor=floor).with_noise_again(got)
        for effort in (Effort(sample=0, keep=0, open_limit=0, rounds=0), Effort(sample=0, keep=1)):
            judged = judge_by(by, got, effort=effort)
            checked = check_limit(kernel, dtype, result, {("", ORDINARY): judged.tallies[0]}, trivial[result])
            if checked.status != "undecided":
                break
        figures = judged.tallies[0].figures()
        upper = figures.max_upper if figures.scaled_upper is None else figures.scaled_upper
        return Judgement(
            checked.status == "ok",
            math.nan if upper is None else value_of(upper),
            judged.tallies[0].open / max(figures.n, 1),
            not figures.misrounded and value_of(figures.max_ulp) <= 0.5,
            checked.status == "vacuous",
            figures.rms or 0.0 if figures.weighed >= FEWEST else 0.0,
        )

    return {label: {name: one(name, got) for name, got in each.items()} for label, each in candidates.items()}


def blind_spots(kernel: Kernel, inputs: Results, upstream: Results, dtype: str) -> frozenset[str]:
    """Returns the constants of the definition that could be 1% off within the limit, as verify names them."""
    results = tuple(kernel.outputs) + tuple(f"d{name}" for name in inputs if inputs[name].is_floating_point())
    problem = Problem(inputs=inputs, upstream=upstream, results=results)
    fmt = named(dtype)
    limits = {name: kernel.limit(dtype, name) for name in results}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        judged = [
            JudgedBy(kernel.op, problem, name, truth, fmt, floor=kernel.noise_floor(dtype, name))
            for name, truth in evaluate(kernel.op, problem, dict.fromkeys(results, fmt)).items()
        ]
        found = named_errors(judged, limits, 1 << 16, least=0.0, constants=True)
    return frozenset(words.partition(" 1% off")[0] for _, words in found)
