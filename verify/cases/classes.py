"""Assigns a class to each input: ordinary, demanding or extreme.

An error at 1e30 and an error in every batch are different findings. Training and inference see ordinary inputs. If
cases have a recipe for their rows, the recipe has the class. Elements of an elementwise op have a class by magnitude:
the most extreme class of all numbers that an element depends on.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from verify.cases.case import Case
from verify.cases.regimes import by_element, segments_of
from verify.cases.values import ENDLESS, MASKED, MEDLEY, NEAR, row_recipe
from verify.ops.op import Largest, Op, Problem, Regime
from verify.records.readings import APART, BEYOND, NONFINITE
from verify.records.record import CLASSES, DEMANDING, EXTREME, ORDINARY
from verify.truth.ulp import widen

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
    same row of an operand. NaN of masks has no verdict: a right kernel skips what the program multiplies by 0, and may
    have 0 in a row that is masked as a whole.
    """
    strange, none = ~torch.isfinite(truth), truth.isnan()
    if beside is not None:
        strange |= ~torch.isfinite(beside.to(truth.device))
        none |= beside.to(truth.device).isnan()
    for each in problem.inputs.values():
        if each is None:
            continue
        pairs = zip(each.shape[:-1], truth.shape, strict=False)
        alike = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        if alike:
            rows = (~torch.isfinite(widen(each.detach()))).reshape(*truth.shape[:alike], -1).any(-1)
            strange |= rows.reshape(*rows.shape, *[1] * (truth.ndim - alike)).to(truth.device)
    segments = strange.long() if case.fill != MASKED else torch.where(none, 2, strange.long())
    regimes = [Regime("all", -math.inf, math.inf), *(Regime(name, math.nan, math.nan) for name in APART)]
    return segments.reshape(-1), tuple((regime, EXTREME) for regime in regimes)


def class_of(regime: Regime, found: str) -> str:
    """Returns the class that a part counts for; "" beyond a kernel's domain."""
    return "" if regime.name == BEYOND else EXTREME if regime.name == NONFINITE else found


def _level(tensor: Tensor, name: str) -> Tensor:
    """Returns the position of each element's class in CLASSES."""
    size = widen(tensor.detach()).abs()
    ordinary = (size == 0) | ((size >= ORDINARY_FROM) & (size <= ORDINARY_TO))
    demanding = (size >= DEMANDING_FROM) & (size <= DEMANDING_TO)
    return torch.where(ordinary, 0, torch.where(demanding, 1, 2))
