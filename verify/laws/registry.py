"""Lists all laws in the order in which they are tried. The laws that break most often and explain most come first."""

from __future__ import annotations

from verify.laws import (
    accuracy,
    attention,
    batch,
    bits,
    composition,
    configuration,
    contract,
    determinism,
    device,
    experts,
    gradcheck,
    identities,
    layouts,
    memory,
    roundings,
    sequences,
    shapes,
    special,
    stochastic,
)
from verify.laws.law import Law
from verify.laws.profiles import named

ALL: tuple[Law, ...] = (
    *determinism.LAWS,  # first: if a kernel is not deterministic, no other verdict can be trusted
    *accuracy.LAWS,
    *stochastic.LAWS,
    *special.LAWS,
    *gradcheck.LAWS,
    *layouts.LAWS,
    *memory.LAWS,
    *batch.LAWS,
    *bits.LAWS,
    *roundings.LAWS,
    *attention.LAWS,
    *sequences.LAWS,
    *experts.LAWS,
    *shapes.LAWS,
    *identities.LAWS,
    *configuration.LAWS,
    *contract.LAWS,
    *composition.LAWS,
    *device.LAWS,
)


_BY_NAME = {law.name: law for law in ALL}


def get(name: str) -> Law:
    """Returns the law with a name."""
    return _BY_NAME[named(name)]
