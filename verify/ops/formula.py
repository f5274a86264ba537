"""A scalar formula by three routes (mpmath, Arb, float64), and a curve: a formula with its slope.

Elementwise ops are assembled from these, and so are the activations of `linear`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from verify.ops.op import Fast

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Formula:
    """A real function of real arguments.

    `mp(*values, prec)` takes exact mpf arguments (of any length) and returns an mpf within
    2^-(prec - 8) relative. `arb(*values, prec)` takes exact arb arguments and returns an enclosing
    ball. `fast(*tensors)` takes float64 tensors. All three give the limit at infinite arguments
    and NaN where there is none. `ends(*values, prec)` gives the least and the greatest value where every
    number between them is right (a derivative at a kink), and None elsewhere. `pole(*floats)` gives these two where
    an argument is a zero whose sign an mpf does not hold and the function tends to an infinity there, else None.
    `probe(*values)` is the value by one evaluation at the precision in force, for a user's formula: it claims nothing.
    """

    mp: Callable[..., Any]
    fast: Callable[..., Fast]
    arb: Callable[..., Any] | None = None
    ends: Callable[..., tuple[Any, Any] | None] | None = None
    pole: Callable[..., tuple[Any, Any] | None] | None = None
    probe: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Curve:
    """A function of one real variable and its derivative.

    `bend(x)` is the magnitude of the terms of the second derivative in float64: it says how an
    error of the argument reaches the slope, which the scale of a fused linear layer needs. `steep`
    are the places where the magnitude of the slope has a maximum.
    """

    value: Formula
    slope: Formula
    bend: Callable[[Tensor], Tensor]
    steep: tuple[float, ...] = ()
