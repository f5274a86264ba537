"""Describes where a gate curve (gelu, silu) changes its behaviour: its regimes, and the numbers between them.

All these curves have the same shape. They fulfil y(x) - y(-x) = x, decay to zero on the left, have one minimum, and
approach y = x on the right. So the same points matter: where a format underflows, where the slope is zero, and where y
rounds to x. `tests/ops/test_op_curves.py` solves for these points again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from verify.ops.op import Regime

_FORMATS = (torch.float32, torch.bfloat16, torch.float16)  # their thresholds bound the bins of every error curve


@dataclass(frozen=True)
class Thresholds:
    """The points of one curve; those with three numbers belong to float32, bfloat16 and float16."""

    root: float  # the curve has its minimum
    peak: float  # the slope is largest
    vanishing: tuple[float, float, float]  # further left, |y| is below half the smallest subnormal number
    subnormal: tuple[float, float, float]  # further left, |y| is below the smallest normal number
    saturated: tuple[float, float, float]  # further right, y rounds to x
    tail: float  # the regime of the left tail begins, in accuracy rather than in a format

    @property
    def boundaries(self) -> tuple[float, ...]:
        """All numbers at which the curve or its slope starts to round differently in some format."""
        found = [*self.vanishing, *self.subnormal]
        for each in (self.root, self.peak, *self.saturated):
            found += [each, -each]
        for kind in _FORMATS:
            limits = torch.finfo(kind)
            # y = x / 2 becomes subnormal, then zero
            for size in (limits.smallest_normal, limits.smallest_normal * limits.eps):
                found += [size, -size, 2 * size, -2 * size]
        return tuple(sorted(set(found)))

    @property
    def regimes(self) -> tuple[Regime, ...]:
        """The named regions, bounded by the numbers for float32."""
        edges = (
            ("vanishing", -math.inf, self.vanishing[0]),
            ("negative tail", self.vanishing[0], self.tail),
            ("negative", self.tail, self.root - 0.25),
            ("slope root", self.root - 0.25, self.root + 0.25),
            ("around zero", self.root + 0.25, -self.root - 0.25),
            ("positive", -self.root - 0.25, self.saturated[0]),
            ("saturated", self.saturated[0], math.inf),
        )
        return tuple(Regime(*each) for each in edges)
