"""Sets the working precision of mpmath and Arb."""

from __future__ import annotations

from typing import Any

import flint
import mpmath

GUARD = 40  # bits added to a requested precision


class arb_bits:  # noqa: N801  (used like a function; a class takes a third of the time of a generator)
    """Sets Arb's precision to `bits` inside a `with` block, and restores it afterwards."""

    __slots__ = ("before", "bits")

    def __init__(self, bits: int) -> None:
        self.bits = bits

    def __enter__(self) -> None:
        self.before: int = flint.ctx.prec
        flint.ctx.prec = self.bits

    def __exit__(self, *raised: object) -> None:
        flint.ctx.prec = self.before


def mp_bits(bits: int) -> Any:
    """Sets mpmath's precision to `bits` inside a `with` block, and restores it afterwards."""
    return mpmath.workprec(bits)
