"""Gives results the unit of a promise below their format, `@verify.kernel(promise=verify.relative_rms(0.02))`.

Kernels that quantise inside, as attention of int8 scores, promise an error of a row in terms of the row. The unit of
such a result is that share of the root mean square of its row, in the place of the program's noise.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from verify.errors import UsageError, one_of

Per = Literal["row", "head", "tensor"]
_AXES = {"row": 1, "head": 2, "tensor": 0}  # the last dimensions that an error is averaged over; 0: all


@dataclass(frozen=True)
class RelativeRms:
    """Promises the root mean square of the error as a share of that of the result, for each row, head or tensor."""

    share: float
    per: Per

    @property
    def words(self) -> str:
        """Returns the promise as text."""
        return f"within {self.share:g} of the root mean square of each {self.per}"

    def unit(self, value: Tensor) -> Tensor:
        """Returns the share of the root mean square around each element. Where that is 0, the tensor's."""
        known = torch.where(value.isfinite(), value, 0.0)
        own, whole = (self._mean(known, axes) for axes in (_AXES[self.per], 0))
        return self.share * torch.where(own > 0, own, whole)

    def broken(self, got: Tensor, value: Tensor) -> Tensor:
        """Returns a mask of the elements in rows whose error is larger. Elements without a finite truth have none."""
        error = torch.where(value.isfinite(), got - value, 0.0)
        return ~(self._mean(error, _AXES[self.per]) <= self.unit(value))  # a NaN is beyond it

    @staticmethod
    def _mean(value: Tensor, axes: int) -> Tensor:
        """Returns the root mean square over the last axes, 0 for all, at each element."""
        kept = max(value.ndim - axes, 0) if axes else 0
        mean = value.square().reshape(*value.shape[:kept], -1).mean(-1).sqrt()
        return mean.reshape(*mean.shape, *[1] * (value.ndim - kept)).expand(value.shape)


def relative_rms(share: float, *, per: Per = "row") -> RelativeRms:
    """Promises an error of at most `share` of the root mean square of each row, the last dimension of a result.

    per: "row", "head" (the last two dimensions) or "tensor".
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 0.4:
        raise UsageError(
            f"relative_rms is a share above 0 and below 0.4, as half of the right values has 0.5; received {share!r}",
            hint="promise=verify.relative_rms(0.02)",
        )
    return RelativeRms(float(share), one_of("relative_rms", "per", per, get_args(Per)))
