"""Converts single elements of tensors exactly to Python floats, mpf and arb."""

import math
from collections.abc import Sequence
from typing import Any

import flint
import mpmath
import torch
from torch import Tensor

from verify.ops.op import Point


def pick(tensor: Tensor, indices: Sequence[int]) -> list[float]:
    """Returns the elements at flat row-major positions as floats. Copies only these elements from the device."""
    source = tensor.detach()
    if source.dtype.itemsize == 1:
        # float8 tensors cannot be indexed everywhere; their bits can.
        bits = source.view(torch.uint8)
        positions = torch.as_tensor(list(indices), dtype=torch.int64, device=bits.device)
        chosen = torch.take(bits, positions).view(source.dtype)
    else:
        positions = torch.as_tensor(list(indices), dtype=torch.int64, device=source.device)
        chosen = torch.take(source, positions)
    widened: list[float] = chosen.to(torch.float64).tolist()
    return widened


def to_arb(value: float) -> Any:
    """Returns the same number as an exact ball, or as Arb's infinity or NaN."""
    return flint.arb(value) if not math.isnan(value) else flint.arb.nan()


def point_of(number: float) -> Point:
    """Returns the point of a number that is known."""
    return Point(lambda prec: mpmath.mpf(number), lambda prec: to_arb(number))


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
