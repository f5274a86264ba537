"""Defines `Curve`, a function of one number with its slope, in float64.

Elementwise ops and the activations of `linear` are built from these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verify.ops.op import Fast

if TYPE_CHECKING:
    from torch import Tensor

Formula = Callable[..., Fast]  # takes float64 tensors; has the limit at infinite ones, and NaN if there is no limit


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
