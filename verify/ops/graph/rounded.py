"""Defines `verify.rounds`, which rounds numbers to a format in the middle of a program.

    like=lambda s, v: verify.rounds(s.softmax(-1), "bfloat16") @ v

The result is the number of the format that is nearest to the exact number. A kernel's own roundings may put its number
on the other side of a midpoint. Then both neighbours are right, as with `round`. The gradient is that of a cast: the
identity.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import flint
import torch
from torch import Tensor

from verify.errors import UsageError
from verify.ops.graph.functions import STEPPED
from verify.ops.graph.inference import new_tensor


@dataclass(frozen=True)
class Grid:
    """The numbers of a floating-point format."""

    precision: int  # bits of the significand, with the hidden bit
    least: int  # exponent of the smallest normal number
    largest: float
    saturates: bool = False  # True: the format has no infinity, and larger numbers become the largest

    def beyond(self, sign: float) -> float:
        """Returns the result for a number beyond the largest: infinity, or the largest number if it saturates."""
        return math.copysign(self.largest if self.saturates else math.inf, sign)


GRIDS = {
    "float32": Grid(24, -126, float(torch.finfo(torch.float32).max)),
    "bfloat16": Grid(8, -126, float(torch.finfo(torch.bfloat16).max)),
    "float16": Grid(11, -14, 65504.0),
    "float8_e4m3fn": Grid(4, -6, 448.0, saturates=True),
    "float8_e5m2": Grid(3, -14, 57344.0),
}


def rounded(x: Tensor, format: str) -> Tensor:
    """Rounds float64 numbers to the nearest numbers of a format, ties to even, and returns them in float64."""
    if format == "float64":
        return x
    grid = GRIDS[format]
    unit = (torch.frexp(x)[1].long() - grid.precision).clamp(min=grid.least - grid.precision + 1)
    found = (x * _power(-unit)).round() * _power(unit)
    found = torch.where(found.abs() > grid.largest, torch.copysign(torch.full_like(x, grid.beyond(1.0)), x), found)
    held = torch.isnan(x) | (torch.isinf(x) & (not grid.saturates))
    return torch.where(held, x, found)


def _power(exponent: Tensor) -> Tensor:
    """Returns 2^exponent for the exponents of normal float64 numbers."""
    return ((exponent.clamp(-1022, 1023) + 1023) << 52).view(torch.float64)


def nearest(mantissa: int, exponent: int, grid: Grid) -> tuple[int, int]:
    """Rounds mantissa 2^exponent to a grid without a largest number; returns mantissa and exponent."""
    unit = max(exponent + abs(mantissa).bit_length() - grid.precision, grid.least - grid.precision + 1)
    if unit <= exponent:
        return mantissa, exponent
    shift = unit - exponent
    if shift > abs(mantissa).bit_length() + 1:
        return 0, 0
    down, rest = divmod(abs(mantissa), 1 << shift)
    up = 2 * rest > 1 << shift or (2 * rest == 1 << shift and down % 2 == 1)
    return (down + up) * (-1 if mantissa < 0 else 1), unit


def nearest_ball(x: Any, grid: Grid) -> Any:
    """Rounds an exact ball to the nearest number of a grid: a ball, or a float if it is infinite."""
    digits, exponent = x.man_exp()
    mantissa, unit = nearest(int(digits), int(exponent), grid)
    found = flint.arb((mantissa, unit))
    if abs(found) <= flint.arb(grid.largest):
        return found
    beyond = grid.beyond(1.0 if mantissa > 0 else -1.0)
    return beyond if math.isinf(beyond) else flint.arb(beyond)


STEPPED.update({f"to {name}": partial(rounded, format=name) for name in GRIDS})

# -- in a program -----------------------------------------------------------------------------------------

_LIBRARY: Any = torch.library.Library("verify", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("rounds(Tensor x, str format) -> Tensor")


def _eager(x: Tensor, format: str) -> Tensor:
    return new_tensor(tuple(x.shape), x.dtype, [x]) if x.is_meta else rounded(x.double(), format).to(x.dtype)


_LIBRARY.impl("rounds", _eager, "CompositeExplicitAutograd")


class StraightThrough(torch.autograd.Function):
    """Rounds in the forward pass, and passes the gradient through unchanged, as a cast does."""

    @staticmethod
    def forward(x: Tensor, format: str) -> Tensor:
        """Rounds x to the format."""
        return torch.ops.verify.rounds(x, format)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keeps nothing."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Returns the gradient as it is."""
        return gradient, None


def rounds(x: Tensor, format: str | torch.dtype) -> Tensor:
    """Rounds numbers to a format, to nearest and ties to even. Returns them in their own dtype.

    Call it in a function for `like=` to declare that a kernel rounds here. float8_e4m3fn has no infinity: a number
    beyond its largest becomes the largest.
    """
    name = str(format).removeprefix("torch.")
    if name not in GRIDS:
        raise UsageError(
            f"verify.rounds rounds to {', '.join(GRIDS)}; received {format!r}", hint='verify.rounds(x, "bfloat16")'
        )
    return StraightThrough.apply(x, name)  # type: ignore[no-any-return, no-untyped-call]
