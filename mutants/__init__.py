"""The zoo: kernels with exactly one seeded bug, each beside its correct twin. `mutants()` lists them.

The families are imported on demand, because a backend must be chosen before Triton is imported.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from mutants.mutant import Mutant

FAMILIES = (
    "gelu",
    "geglu",
    "layer_norm",
    "layer_norm_rows",
    "rms_norm",
    "softmax",
    "linear",
    "memory",
    "seldom",
    "launch",
    "shaped",
    "attention",
    "stochastic",
    "samplers",
    "company",
    "crossed",
    "laws",
)


@cache
def mutants() -> tuple[Mutant, ...]:
    """Every mutant, family by family."""
    return tuple(mutant for name in FAMILIES for mutant in family(name))


def family(name: str) -> tuple[Mutant, ...]:
    """The mutants of one module."""
    found: tuple[Mutant, ...] = import_module(f"mutants.{name}").MUTANTS
    return found
