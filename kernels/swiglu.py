"""SwiGLU, x1 silu(x2), with one rounding per result and one kernel each way (Triton).

    swiglu(x)             x = [.., 2 d] holds (x1, x2) side by side in its last dimension
    swiglu_split(x1, x2)  the same on two tensors

    y    = x1 silu(x2)          silu(x) = x / (1 + exp(-x))
    dx1  = dy silu(x2)
    dx2  = dy x1 silu'(x2)

The kernels and launches are geglu.py's with the gate of silu_math.py, which has the arithmetic and rounding points of
each dtype. silu(x2) is never rounded to 16 bits; only the product is. dy x1 is exact, or its power of two is separate.
Errors against the real-valued function: float16 and bfloat16 at most 0.51 ULP, float32 at most 1, forward and both
gradients.
"""

from __future__ import annotations

from torch import Tensor

from .checks import Contract, under
from .geglu import checks, gate_of

__all__ = ["swiglu", "swiglu_split"]

_check = checks("swiglu")


def swiglu(x: Tensor, *, gate_last: bool = True, contract: Contract = "once", inplace: bool = False) -> Tensor:
    """Returns x1 silu(x2) for x1, x2 = x.chunk(2, -1).

    gate_last=False returns silu(x1) x2, for models that store the gate first, such as Llama.

    x may have any strides between rows. A last dimension that is not consecutive is copied first. contract="model"
    rounds silu(x2) to 16 bits too, as a model of two operators does. inplace=True writes the gradient over x.
    """
    return gate_of("swiglu", _check, inplace, x, None, under(contract, "swiglu", "silu"), gate_last)


def swiglu_split(x1: Tensor, x2: Tensor, *, contract: Contract = "once", inplace: bool = False) -> Tensor:
    """Returns x1 silu(x2) for two tensors of one shape, dtype and device. inplace=True overwrites both by gradients."""
    return gate_of("swiglu_split", _check, inplace, x1, x2, under(contract, "swiglu_split", "silu"))
