"""A scalar formula in mpmath and in float64, and a curve: a formula with its slope.

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
    2^-(prec - 8) relative. `fast(*tensors)` takes float64 tensors. Both give the limit at infinite arguments
    and NaN where there is none.
    """

    mp: Callable[..., Any]
    fast: Callable[..., Fast]


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
