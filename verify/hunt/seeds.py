"""Fresh candidates: the recipes of `verify run`, mixed over a population. They start every climb of a hunt.

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
# An edit changes signs, so the mirror of "mean 1e3" adds nothing.
_ROWS = (*(name for name in ROW_REGIMES if not name.startswith("mean -")), "bits", "active")
_UPSTREAM_ROWS = ("randn", "constant", "outlier", "alternating", "spread", "ones")
_PLAIN = {"scale": ("around one", "ones", "spread"), "shift": ("around zero", "around one", "spread")}
_MATRIX = ("around zero", "spread", *_ROWS)


def recipes(gene: Gene) -> tuple[str, ...]:
    """The recipes of one gene."""
    if gene.role in _PLAIN:
        return _PLAIN[gene.role]
    if gene.role == "matrix":
        return _MATRIX
    if not gene.row:
        return _UPSTREAM if gene.role == "upstream" else _ELEMENT
    return _UPSTREAM_ROWS if gene.role == "upstream" else _ROWS


def fresh(space: SearchSpace, count: int, draws: Draws) -> Population:
    """New candidates, each gene of each by a recipe that is drawn."""
    return {gene.name: _filled(space, gene, draws.below(count, len(recipes(gene))), draws) for gene in space.genes}


def fresh_shared(space: SearchSpace, turn: int, draws: Draws) -> Population:
    """What all candidates of a climb share: vectors, each turn by the next recipe of each, and whole numbers."""
    found = whole_numbers(space.kernel, space.unit.dims, draws)
    for gene in space.shared:
        chosen = torch.full((1,), turn % len(recipes(gene)), dtype=torch.int64, device=draws.device)
        found[gene.name] = _filled(space, gene, chosen, draws)
    return found


def _filled(space: SearchSpace, gene: Gene, chosen: Tensor, draws: Draws) -> Tensor:
    """One line of ordinals for each number of a recipe in `chosen`."""
    landmarks = space.kernel.op.boundaries(space.kernel.op.resolve(space.kernel.params))
    ordinals = torch.zeros(chosen.shape[0], gene.size, dtype=torch.int64, device=draws.device)
    for number, name in enumerate(recipes(gene)):
        lines = torch.nonzero(chosen == number).reshape(-1)
        shape = (int(lines.numel()) * gene.lines, gene.size // gene.lines)
        made = fill(
            name, gene.fmt, shape, seed=draws.seed, stream=draws.stream(), landmarks=landmarks, device=draws.device
        )
        ordinals[lines] = of_tensor(made, gene.fmt).reshape(-1, gene.size)
    return gene.within(ordinals)
