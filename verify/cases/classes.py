"""Assigns a class to each input: ordinary, demanding or extreme.

An error at 1e30 and an error in every batch are different findings. Training and inference see ordinary inputs. If
cases have a recipe for their rows, the recipe has the class. Elements of an elementwise op have a class by magnitude:
the most extreme class of all numbers that an element depends on.
"""

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from verify.cases.case import Case
from verify.cases.values import ENDLESS, MASKED, MEDLEY, NEAR, row_recipe
from verify.ops.op import Largest, Op, Problem, Regime, up_to
from verify.records.readings import APART, BEYOND, NONFINITE
from verify.records.record import CLASSES, DEMANDING, EXTREME, ORDINARY
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


# Magnitudes, both ends included; 0 is ordinary. 2^-24 is the smallest number of float16, 65,504 its largest.
ORDINARY_FROM, ORDINARY_TO = 2.0**-24, 8.0
DEMANDING_FROM, DEMANDING_TO = 2.0**-100, 65_504.0

_RECIPES = {
    DEMANDING: (
        *("mean 1e3", "mean 1e4", "mean -1e3", "constant", "nearly constant", "outlier", "ramp", "spread"),
        *("scores below -87", "rising maxima", "falling maxima", "repeated tokens", "lone outlier", "active", MEDLEY),
    ),
    EXTREME: ("tiny 1e-20", "tiny 1e-38", "huge 1e30", *ENDLESS),
}


def class_of_recipe(recipe: str) -> str:
    """Returns the class of the rows that a recipe makes."""
    if recipe.startswith(NEAR) and row_recipe(recipe) is not None:
        size = float(recipe.removeprefix(NEAR))
        return ORDINARY if size >= ORDINARY_FROM else DEMANDING if size >= DEMANDING_FROM else EXTREME
    return next((name for name, recipes in _RECIPES.items() if recipe in recipes), ORDINARY)


def classed(
    op: Op, case: Case, problem: Problem, result: str, shape: tuple[int, ...], largest: Largest | None = None
) -> tuple[Tensor | None, tuple[tuple[Regime, str], ...]]:
    """Returns the part number of every element of a result, and the parts: pairs of a regime and a class.

    See `segments_of`.
    """
    segments, regimes = segments_of(op, case, problem, result, shape, largest)
    if segments is None:
        return None, tuple((regime, class_of_recipe(case.regime or case.fill)) for regime in regimes)
    level = by_element(problem, result, shape, _level).reshape(-1)
    part = segments * len(CLASSES) + level
    used = torch.zeros(len(regimes) * len(CLASSES), dtype=torch.bool, device=part.device).index_fill_(0, part, True)
    places = (used.cumsum(0) - 1)[part]  # numbers the parts that have an element, in their order
    found = (divmod(each, len(CLASSES)) for each in torch.nonzero(used).reshape(-1).tolist())
    return places, tuple((regimes[regime], CLASSES[name]) for regime, name in found)


def special_parts(
    case: Case, problem: Problem, truth: Tensor, beside: Tensor | None
) -> tuple[Tensor, tuple[tuple[Regime, str], ...]]:
    """Returns the part number of every element, and the parts, of a case with NaN and infinities in some rows.

    An element may depend on them if its exact value, or PyTorch's result `beside`, is not finite, or a number in the
    same row of an operand. Other rows have the class of their largest or smallest number: what is beside an infinity is
    as right as without it. NaN of masks has no verdict: a right kernel skips what the program multiplies by 0, and may
    have 0 in a row that is masked as a whole.
    """
    strange, none = ~torch.isfinite(truth), truth.isnan()
    if beside is not None:
        strange |= ~torch.isfinite(beside.to(truth.device))
        none |= beside.to(truth.device).isnan()
    level = torch.zeros(truth.shape, dtype=torch.int64, device=truth.device)
    for name, each in problem.inputs.items():
        if each is None:
            continue
        pairs = zip(each.shape[:-1], truth.shape, strict=False)
        alike = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        row, wide = (*truth.shape[:alike], *[1] * (truth.ndim - alike)), widen(each.detach()).to(truth.device)
        level = torch.maximum(level, _level(wide, name).reshape(*truth.shape[:alike], -1).amax(-1).reshape(row))
        if alike:
            strange |= (~torch.isfinite(wide)).reshape(*truth.shape[:alike], -1).any(-1).reshape(row)
    segments = torch.where(strange, len(CLASSES), level)
    segments = segments if case.fill != MASKED else torch.where(none, len(CLASSES) + 1, segments)
    own = [(Regime("all", -math.inf, math.inf), name) for name in CLASSES]
    return segments.reshape(-1), (*own, *((Regime(name, math.nan, math.nan), EXTREME) for name in APART))


def class_of(regime: Regime, found: str) -> str:
    """Returns the class that a part counts for; "" beyond a kernel's domain."""
    return "" if regime.name == BEYOND else EXTREME if regime.name == NONFINITE else found


def _level(tensor: Tensor, name: str) -> Tensor:
    """Returns the position of each element's class in CLASSES."""
    size = widen(tensor.detach()).abs()
    ordinary = (size == 0) | ((size >= ORDINARY_FROM) & (size <= ORDINARY_TO))
    demanding = (size >= DEMANDING_FROM) & (size <= DEMANDING_TO)
    return torch.where(ordinary, 0, torch.where(demanding, 1, 2))
