"""The memory of a hunt: the best candidate of every niche, so that one peak cannot crowd out the others.

A niche is a coarse description of a candidate: its leading bits where it has few numbers, its origin and
spread where it is a row. Parents are drawn from the niches by rank, every octave of rank as likely
(Mouret and Clune, "Illuminating search spaces by mapping elites", arXiv:1504.04909).
"""

from __future__ import annotations

import torch
from torch import Tensor

from verify.hunt.draws import Draws
from verify.hunt.space import Population, SearchSpace, one_of

LEADING = 13  # bits of a number that make its niche where a candidate is one number
_CELLS_SHORT, _CELLS_ROWS, _CELLS_ALONE = 16, 12, 8
_MIX = -7046029254386353131  # odd: the golden ratio in 64 bits


class Archive:
    """Best candidates by niche. Nothing depends on the order in which a device does its work."""

    def __init__(self, space: SearchSpace, device: str) -> None:
        self.space = space
        self.rows = any(gene.row for gene in space.genes)
        cells = 1 << (_CELLS_ALONE if space.alone else _CELLS_ROWS if self.rows else _CELLS_SHORT)
        self.fitness = torch.full((cells,), -1.0, dtype=torch.float64, device=device)
        self.candidates: Population = {
            gene.name: torch.zeros(cells, gene.size, dtype=torch.int64, device=device) for gene in space.genes
        }
        self.facts = torch.zeros(cells, 4, dtype=torch.int64, device=device)  # lineage, epoch, element, bits got

    def niche(self, population: Population, lineage: Tensor) -> Tensor:
        """The niche of every candidate."""
        if self.space.enumerable:
            gene = self.space.genes[0]
            ordinals = population[gene.name][:, 0]
            side = (ordinals < 0).to(torch.int64) << (LEADING - 1)
            return side | (ordinals.abs() >> (gene.fmt.bits - LEADING))
        code = lineage.clone() if self.rows else torch.zeros_like(lineage)
        for gene in self.space.genes:
            magnitude = population[gene.name].abs() >> gene.fmt.mantissa_bits
            if not gene.row:
                features = [
                    population[gene.name][:, place].sign() * (1 + magnitude[:, place]) for place in range(gene.size)
                ]
            else:
                high, low = magnitude.amax(1), magnitude.amin(1)
                ordinals = population[gene.name]
                span = ordinals.amax(1) - ordinals.amin(1)
                features = [high // 4, (high - low) // 8, (span >> max(0, gene.fmt.mantissa_bits - 4)).clamp(max=16)]
            for feature in features:
                code = (code + feature) * _MIX
                code = code ^ (code >> 29)
        return (code >> 11) & (self.fitness.shape[0] - 1)

    def insert(self, population: Population, lineage: Tensor, fitness: Tensor, facts: Tensor) -> None:
        """Keep what is better than its niche's best; the first of equals."""
        niche = self.niche(population, lineage)
        best = torch.full_like(self.fitness, -1.0).scatter_reduce(0, niche, fitness, "amax")
        better = (fitness == best[niche]) & (fitness > self.fitness[niche])
        count = fitness.shape[0]
        place = torch.where(better, torch.arange(count, device=fitness.device), count)
        first = torch.full(self.fitness.shape, count, dtype=torch.int64, device=fitness.device)
        first = first.scatter_reduce(0, niche, place, "amin")
        cells = torch.nonzero(first < count).reshape(-1)
        chosen = first[cells]
        self.fitness[cells] = fitness[chosen]
        self.facts[cells] = facts[chosen]
        for name, value in self.candidates.items():
            value[cells] = population[name][chosen]

    def ranked(self) -> Tensor:
        """The filled niches, best first; ties in order of niche."""
        order = torch.argsort(self.fitness, descending=True, stable=True)
        return order[: int((self.fitness >= 0).sum())]

    def parents(self, count: int, draws: Draws) -> tuple[Population, Tensor]:
        """Candidates drawn by rank, and their origins."""
        ranked = self.ranked()
        rank = torch.floor(float(ranked.shape[0]) ** draws.uniform(count)).to(torch.int64) - 1
        cells = ranked[rank.clamp(0, ranked.shape[0] - 1)]
        return {name: value[cells] for name, value in self.candidates.items()}, self.facts[cells, 0]

    def best(self, count: int) -> list[tuple[float, Population, list[int]]]:
        """The best candidates of the best niches: (fitness, candidate, facts)."""
        cells = self.ranked()[:count].tolist()
        return [(float(self.fitness[cell]), one_of(self.candidates, cell), self.facts[cell].tolist()) for cell in cells]
