"""Fresh candidates: the recipes of `verify run`, mixed over a population. They start a hunt and keep it open.

They are also what the search is compared with: a hunt whose candidates are all fresh is random sampling.
"""

from __future__ import annotations

import torch
from torch import Tensor

from verify.cases.values import ROW_REGIMES, fill
from verify.hunt.draws import Draws
from verify.hunt.ordinals import of_tensor
from verify.hunt.space import Gene, Population, SearchSpace
from verify.hunt.units import whole_numbers

_ELEMENT = ("bits", "active", "near", "normal")
_UPSTREAM = ("normal", "ones", "active", "bits")
# Without the mirror of "mean 1e3": what a hunt of a seed finds stays as recorded, and a mutation changes signs.
_ROWS = (*(name for name in ROW_REGIMES if not name.startswith("mean -")), "bits", "active")
_UPSTREAM_ROWS = ("randn", "constant", "outlier", "alternating", "spread", "ones")
_PLAIN = {"scale": ("around one", "ones", "spread"), "shift": ("around zero", "around one", "spread")}
_MATRIX = ("around zero", "spread", *_ROWS)


def recipes(space: SearchSpace, gene: Gene) -> tuple[str, ...]:
    """The recipes of one gene."""
    if gene.role in _PLAIN:
        return _PLAIN[gene.role]
    if gene.role == "matrix":
        return _MATRIX
    if not gene.row:
        return _UPSTREAM if gene.role == "upstream" else _ELEMENT
    return _UPSTREAM_ROWS if gene.role == "upstream" else _ROWS


def fresh(space: SearchSpace, count: int, draws: Draws) -> tuple[Population, Tensor]:
    """New candidates, and the number of the recipe that each came from."""
    population, lineage = {}, torch.zeros(count, dtype=torch.int64, device=draws.device)
    for place, gene in enumerate(space.genes):
        names = recipes(space, gene)
        chosen = draws.below(count, len(names))
        if place == 0:
            lineage = chosen
        population[gene.name] = _filled(space, gene, names, chosen, draws)
    return population, lineage


def fresh_shared(space: SearchSpace, turn: int, draws: Draws) -> Population:
    """New shared vectors, each turn by the next recipe of each, and whole numbers, the same for all candidates."""
    found = whole_numbers(space.kernel, (1, 1) if space.unit is None else space.unit.dims, draws)
    for gene in space.shared:
        names = recipes(space, gene)
        chosen = torch.full((1,), turn % len(names), dtype=torch.int64, device=draws.device)
        found[gene.name] = _filled(space, gene, names, chosen, draws)
    return found


def _filled(space: SearchSpace, gene: Gene, names: tuple[str, ...], chosen: Tensor, draws: Draws) -> Tensor:
    count = chosen.shape[0]
    landmarks = space.kernel.op.boundaries(space.kernel.op.resolve(space.kernel.params))
    ordinals = torch.zeros(count, gene.size, dtype=torch.int64, device=draws.device)
    for number, name in enumerate(names):
        lines = torch.nonzero(chosen == number).reshape(-1)
        shape = (int(lines.numel()) * gene.lines, gene.size // gene.lines)
        made = fill(
            name, gene.fmt, shape, seed=draws.seed, stream=draws.stream(), landmarks=landmarks, device=draws.device
        )
        ordinals[lines] = of_tensor(made, gene.fmt).reshape(-1, gene.size)
    return gene.within(ordinals)
