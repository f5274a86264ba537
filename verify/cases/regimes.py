"""Assigns a regime to every element of a result: a named region of the input, or the row recipe of its case."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from verify.cases.case import Case
from verify.ops.op import Largest, Op, Problem, Regime, up_to
from verify.records.readings import BEYOND, NONFINITE
from verify.truth.ulp import widen


def segments_of(
    op: Op, case: Case, problem: Problem, result: str, shape: tuple[int, ...], largest: Largest | None = None
) -> tuple[Tensor | None, tuple[Regime, ...]]:
    """Returns the regime number of every element of a result, and the regimes.

    The regimes of an elementwise op cover all numbers. Two more regimes follow: infinite and NaN inputs and, if the
    kernel declares a `largest` magnitude or a domain, inputs beyond it. For other ops the segments are None, and one
    regime covers all elements.
    """
    if not op.geometry.by_element:
        return None, (Regime(case.regime or "all", -math.inf, math.inf),)
    regimes = op.landmarks.regimes(problem.params) or (Regime("all", -math.inf, math.inf),)
    numbers = widen(deciding_values(op, problem, result).detach()).reshape(-1)
    segments = torch.full(numbers.shape, len(regimes) - 1, dtype=torch.int64, device=numbers.device)
    for place, regime in enumerate(regimes):
        segments[(numbers >= regime.low) & (numbers < regime.high)] = place
    special = [Regime(NONFINITE, math.nan, math.nan)]
    strange = by_element(problem, result, shape, lambda each, name: ~torch.isfinite(widen(each)))
    segments[strange.reshape(-1)] = len(regimes)
    domains = op.domains
    if largest is not None or domains:  # an infinite operand is beyond any magnitude, and NaN outside of any domain

        def outside(each: Tensor, name: str) -> Tensor:
            wide, domain = widen(each), domains.get(name)
            return (wide.abs() > up_to(largest, name)) | (False if domain is None else ~domain.holds(wide))

        special.append(Regime(BEYOND, math.nan, math.nan))
        beyond = by_element(problem, result, shape, outside)
        segments[beyond.reshape(-1)] = len(regimes) + 1
    return segments, (*regimes, *special)


def deciding_operand(op: Op) -> str:
    """Returns the operand whose value decides an element's regime; `x2` for the second half of a packed x."""
    if not op.geometry.by_element:
        return ""
    return f"{op.landmarks.of}2" if op.landmarks.values else op.landmarks.of


def deciding_values(op: Op, problem: Problem, result: str) -> Tensor:
    """Returns the value of that operand for every element of a result."""
    values = op.landmarks.values(problem, result) if op.landmarks.values else problem.inputs[op.landmarks.of]
    assert values is not None
    return values


def by_element(problem: Problem, result: str, shape: tuple[int, ...], rank: Callable[[Tensor, str], Tensor]) -> Tensor:
    """Returns the largest rank among the inputs and upstream gradients that each element of a result depends on.

    `rank` gets a tensor and the name of its operand ("" for an upstream gradient), and returns the rank of each
    element.
    """
    found: Tensor | None = None
    named = [(name, value) for name, value in problem.inputs.items() if value is not None]
    named += [("", value) for value in problem.upstream.values()] if result.startswith("d") else []
    for place, (name, tensor) in enumerate(named):
        ranks = rank(tensor.detach(), name)
        if ranks.shape != shape and ranks.shape[-1] == 2 * shape[-1]:  # two packed halves in, one out
            ranks = torch.maximum(*ranks.chunk(2, -1))
        elif ranks.shape != shape:  # one in, two packed halves out
            ranks = torch.cat([ranks, ranks], -1)
        elif place == 0 and len(named) > 1 and shape and named[-1][1].shape[-1] * 2 == shape[-1]:
            # the operand has two halves and the upstream gradient belongs to one
            either = torch.maximum(*ranks.chunk(2, -1))
            ranks = torch.cat([either, either], -1)
        found = ranks if found is None else torch.maximum(found, ranks)
    assert found is not None
    return found
