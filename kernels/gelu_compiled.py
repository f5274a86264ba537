"""GELU as torch.compile makes it from the stable formula: no kernel code, any device.

    gelu(x)                      x erfc(-x / sqrt 2) / 2                ("none", the erf form)
    gelu(x, approximate="tanh")  x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3))

`1 + erf` and `1 + tanh` lose every digit of the negative tail (100% wrong by -6 in float32); erfc and sigmoid do not.
This is the baseline for gelu.py: the accuracy of the compiler's own erfc and exp, at the speed of its generated code.

Rounding points: float16 and bfloat16 are widened to float32 once, computed there, and rounded once at the end. In
float32 and float64, every operation rounds. A tail that the format cannot hold is lost: erfc in float32 is 0 from
x = -14.2 on, where GELU still has the subnormal value -2e-44.

autograd differentiates the compiled graph. torch.compile does not support double backward.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

from kernels.checks import check_approximate, check_dtype

# 2 sqrt(2 / pi). Beyond |x| = 32, where the clamps below cut, sigmoid(2 z) is 0 or 1 in every format: exp(-2 z) is
# below the smallest float64 from x = 21.6 on.
_SLOPE = 2 * math.sqrt(2 / math.pi)


def _erf_form(x: torch.Tensor) -> torch.Tensor:
    # At x = -inf, -inf * 0 would be NaN; the limit is -0. The clamp keeps NaN, and erfc is 0 at -64 in every format.
    return 0.5 * x.clamp(min=-64.0) * torch.erfc(x * -math.sqrt(0.5))


def _tanh_form(x: torch.Tensor) -> torch.Tensor:
    # The clamps keep x^3 finite and prevent -inf * 0. NaN passes through them.
    c = x.clamp(min=-32.0, max=32.0)
    return x.clamp(min=-32.0) * torch.sigmoid(_SLOPE * c * (1 + 0.044715 * c * c))


def _widened(
    form: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns `form` with 16-bit inputs widened to float32 and its result rounded back."""

    def f(x: torch.Tensor) -> torch.Tensor:
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        return form(wide).to(x.dtype)

    return f


@functools.cache
def _compiled(approximate: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns the compiled function of a form, compiled at its first call."""
    form = _tanh_form if approximate == "tanh" else _erf_form
    return torch.compile(_widened(form), dynamic=True)


def gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """Returns GELU of x, elementwise, with the signature of torch.nn.functional.gelu."""
    check_approximate("gelu", approximate)
    check_dtype("gelu", "x", x)
    return _compiled(approximate)(x)
