"""Makes fresh candidates by the recipes of `verify run`, mixed over a population. They start every climb of a hunt.

The search is compared with them: a hunt whose candidates are all fresh is random sampling.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from verify.cases.scores import RECIPES as SCORE_RECIPES
from verify.cases.scores import fill_scores
from verify.cases.values import ROW_REGIMES, fill
from verify.search.hunt.draws import Draws
from verify.search.hunt.space import Candidates, SearchSpace, Variable, whole_numbers
from verify.truth.ordinals import of_tensor

_ELEMENT = ("bits", "active", "near", "normal")
_UPSTREAM = ("normal", "ones", "active", "bits")
# An edit changes signs, so the mirror of "mean 1e3" adds nothing.
_ROWS = (*(name for name in ROW_REGIMES if not name.startswith("mean -")), "bits", "active")
_UPSTREAM_ROWS = ("randn", "constant", "outlier", "alternating", "spread", "ones")
_PLAIN = {"scale": ("around one", "ones", "spread"), "shift": ("around zero", "around one", "spread")}
_SCORED = 4  # one candidate in four is made by the recipes of scores
_MATRIX = ("around zero", "spread", *_ROWS)


def recipes(variable: Variable) -> tuple[str, ...]:
    """Returns the names of the recipes of one variable."""
    if variable.role in _PLAIN:
        return _PLAIN[variable.role]
    if variable.role == "matrix":
        return _MATRIX
    if not variable.row:
        return _UPSTREAM if variable.role == "upstream" else _ELEMENT
    return _UPSTREAM_ROWS if variable.role == "upstream" else _ROWS


def fresh(space: SearchSpace, count: int, draws: Draws) -> Candidates:
    """Returns new candidates. A recipe is drawn for each variable of each candidate.

    If the op has a softmax over products, the recipes of scores make a quarter of the candidates: they fill queries,
    keys and values together.
    """
    found = {
        variable.name: _filled(space, variable, draws.below(count, len(recipes(variable))), draws)
        for variable in space.variables
    }
    for turn, recipe in enumerate(SCORE_RECIPES if space.kernel.op.scores else ()):
        chosen = torch.arange(min(turn, count), count, _SCORED * len(SCORE_RECIPES), device=draws.device)
        _score(space, recipe, found, chosen, draws)
    return found


def _score(space: SearchSpace, recipe: str, found: Candidates, chosen: Tensor, draws: Draws) -> None:
    """Fills the queries, keys and values of the chosen candidates by a recipe of scores."""
    joint, parts = draws.stream().name, space.kernel.op.scores or {}
    for variable in space.variables:
        if variable.name in parts and chosen.numel():
            part = parts[variable.name]
            moved = replace(part, tokens=part.tokens + 1, features=part.features + 1 if part.features >= 0 else -1)
            shape = (int(chosen.numel()), *variable.shape)
            made = fill_scores(recipe, moved, variable.fmt, shape, draws.stream(), joint)
            ordinals = of_tensor(made, variable.fmt).reshape(-1, variable.size)
            found[variable.name][chosen] = variable.within(ordinals)


def fresh_shared(space: SearchSpace, turn: int, draws: Draws) -> Candidates:
    """Makes the shared variables and integer operands of a climb. Each turn uses the next recipe of each variable."""
    found = whole_numbers(space.kernel, space.layout.dims, draws)
    for variable in space.shared:
        chosen = torch.full((1,), turn % len(recipes(variable)), dtype=torch.int64, device=draws.device)
        found[variable.name] = _filled(space, variable, chosen, draws)
    return found


def _filled(space: SearchSpace, variable: Variable, chosen: Tensor, draws: Draws) -> Tensor:
    """Returns one line of ordinals for each entry of `chosen`, which holds numbers of recipes."""
    landmarks = space.landmarks
    ordinals = torch.zeros(chosen.shape[0], variable.size, dtype=torch.int64, device=draws.device)
    for number, name in enumerate(recipes(variable)):
        lines = torch.nonzero(chosen == number).reshape(-1)
        shape = (int(lines.numel()) * variable.lines, variable.size // variable.lines)
        made = fill(name, variable.fmt, shape, draws.stream(), landmarks=landmarks)
        ordinals[lines] = of_tensor(made, variable.fmt).reshape(-1, variable.size)
    return variable.within(ordinals)
