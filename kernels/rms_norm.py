"""RMS norm in Triton, forward and backward: layer norm's kernels without a mean, with one rounding per output.

>>> y = rms_norm(x, weight, eps=1e-6)
>>> y, s = rms_norm_residual(x, residual, weight)  # s = x + residual

Each row v of N numbers gives

    rstd = 1 / sqrt(sum(v^2) / N + eps)         xhat = v rstd         y = xhat weight

v is x, or the sum s *before* it is rounded to the residual's dtype. For upstream gradients dy (of y) and ds (of s),
with g = dy weight and c2 = sum(g xhat) / N, a row gives

    dx = dresidual = rstd (g - xhat c2) + ds                dweight = sum over rows of dy xhat

The kernels are those of layer_norm/, compiled with CENTRE = 0. Its modules explain the paths, hard rows, column sums,
orders of sums and layouts. Rounding points, in ULP of |weight xhat|, of rstd (|g| + |xhat| mean|g xhat|) and of
sum|dy xhat|:

- A sum of squares has only positive terms and is a float64 sum. It is off by less than N 2^-53 of itself, rstd by half
  of that. No row is hard because of its mean. 16-bit sums that leave float32 are computed in float64 pairs.
- FAST (16 bits): v up is exact, because `up` is a power of two. rstd, the product with it and the product with weight
  round to 24 bits: at worst 0.5 + 2^-11.4 for float16, 2^-14.4 for bfloat16. A residual adds one rounding of v to 24
  bits. backward.py has the backward pass.
- EXACT (float32 rows): float64 throughout, one rounding at the output. PAIRED: backward_paired.py, without C.
- WIDE (float64): the squares are added with an error-free cut, and rows are scaled by a power of two. Then v up rstd
  weight has three roundings, rstd two: below 4.

Layouts: results have the bits that contiguous operands give (layer_norm/launch.py). Derivatives of any order.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kernels.layer_norm import _checks
from kernels.layer_norm.operators import forward_op

__all__ = ["rms_norm", "rms_norm_residual"]


_CHECK = {name: _checks(name) for name in __all__}


def _call(name: str, x: Tensor, residual: Tensor | None, weight: Tensor | None, eps: float) -> Any:
    eps = float(eps) if isinstance(eps, int) else eps
    return forward_op.checked(_CHECK[name], x, residual, None, weight, None, eps, False)


def rms_norm(x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-6) -> Tensor:
    """Returns the RMS norm of x over its last dimension, in x's dtype; weight has any dtype."""
    return _call("rms_norm", x, None, weight, eps)[0]


def rms_norm_residual(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, *, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """Returns y and s: s = x + residual in the residual's dtype, y the RMS norm of the unrounded sum."""
    return _call("rms_norm_residual", x, residual, weight, eps)[:2]
