"""Defines `Formula`, a scalar function in mpmath and in float64, and `Curve`, a function of one number with its slope.

Elementwise ops and the activations of `linear` are built from these.
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

    `mp(*values, prec)` takes exact mpf arguments of any length. It returns an mpf with a relative error of at most
    2^-(prec - 8). `fast(*tensors)` takes float64 tensors. Both return the limit at infinite arguments, and NaN if there
    is no limit.
    """

    mp: Callable[..., Any]
    fast: Callable[..., Fast]


@dataclass(frozen=True)
class Curve:
    """A function of one real variable and its derivative.

    `bend(x)` returns an upper bound of |f''(x)| in float64: the sum of the magnitudes of its terms. From it
    `ops/linear.py` computes how much an error of the argument changes the slope. `steep` lists the places where the
    magnitude of the slope has a local maximum.
    """

    value: Formula
    slope: Formula
    bend: Callable[[Tensor], Tensor]
    steep: tuple[float, ...] = ()
