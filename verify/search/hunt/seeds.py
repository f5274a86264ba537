"""Fresh candidates: the recipes of `verify run`, mixed over a population. They start every climb of a hunt.

They are also what the search is compared with: a hunt whose candidates are all fresh is random sampling.
"""

from __future__ import annotations

import torch
from torch import Tensor

from verify.cases.values import ROW_REGIMES, fill
from verify.search.hunt.draws import Draws
from verify.search.hunt.space import Candidates, SearchSpace, Variable
from verify.search.hunt.units import whole_numbers
from verify.truth.ordinals import of_tensor

_ELEMENT = ("bits", "active", "near", "normal")
_UPSTREAM = ("normal", "ones", "active", "bits")
# An edit changes signs, so the mirror of "mean 1e3" adds nothing.
_ROWS = (*(name for name in ROW_REGIMES if not name.startswith("mean -")), "bits", "active")
_UPSTREAM_ROWS = ("randn", "constant", "outlier", "alternating", "spread", "ones")
_PLAIN = {"scale": ("around one", "ones", "spread"), "shift": ("around zero", "around one", "spread")}
_MATRIX = ("around zero", "spread", *_ROWS)


def recipes(variable: Variable) -> tuple[str, ...]:
    """The recipes of one variable."""
    if variable.role in _PLAIN:
        return _PLAIN[variable.role]
    if variable.role == "matrix":
        return _MATRIX
    if not variable.row:
        return _UPSTREAM if variable.role == "upstream" else _ELEMENT
    return _UPSTREAM_ROWS if variable.role == "upstream" else _ROWS


def fresh(space: SearchSpace, count: int, draws: Draws) -> Candidates:
    """New candidates, each variable of each by a recipe that is drawn."""
    return {
        variable.name: _filled(space, variable, draws.below(count, len(recipes(variable))), draws)
        for variable in space.variables
    }


def fresh_shared(space: SearchSpace, turn: int, draws: Draws) -> Candidates:
    """Makes the shared variables of a climb, each turn by the next recipe of each, and whole numbers."""
    found = whole_numbers(space.kernel, space.unit.dims, draws)
    for variable in space.shared:
        chosen = torch.full((1,), turn % len(recipes(variable)), dtype=torch.int64, device=draws.device)
        found[variable.name] = _filled(space, variable, chosen, draws)
    return found


def _filled(space: SearchSpace, variable: Variable, chosen: Tensor, draws: Draws) -> Tensor:
    """One line of ordinals for each number of a recipe in `chosen`."""
    landmarks = space.landmarks
    ordinals = torch.zeros(chosen.shape[0], variable.size, dtype=torch.int64, device=draws.device)
    for number, name in enumerate(recipes(variable)):
        lines = torch.nonzero(chosen == number).reshape(-1)
        shape = (int(lines.numel()) * variable.lines, variable.size // variable.lines)
        made = fill(name, variable.fmt, shape, draws.stream(), landmarks=landmarks)
        ordinals[lines] = of_tensor(made, variable.fmt).reshape(-1, variable.size)
    return variable.within(ordinals)
