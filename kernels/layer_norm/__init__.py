"""Layer norm in Triton, forward and backward; results are nearly always rounded only once.

>>> y = layer_norm(x, weight, bias, eps=1e-5)
>>> y, s = layer_norm_residual(x, residual, weight, bias)  # s = x + residual
>>> y, s = layer_norm_residual_bias(x, residual, input_bias)  # s = x + input_bias + residual

Each row v of N numbers gives

    mean = sum(v) / N      var = sum((v - mean)^2) / N      rstd = 1 / sqrt(var + eps)
    xhat = (v - mean) rstd                                  y = xhat weight + bias

v is x, or the exact sum s *before* it is rounded to the residual's dtype. For upstream gradients dy (of y) and ds (of
s), with g = dy weight, c1 = sum(g) / N and c2 = sum(g xhat) / N, a row gives

    dx = dresidual = rstd (g - c1 - xhat c2) + ds           dinput_bias = sum over rows of dx
    dweight = sum over rows of dy xhat                      dbias = sum over rows of dy

The module of each path names its rounding points, in ULP, and derives them. plan.py chooses the path of a call by its
sizes and dtypes, and lists the paths and their modules.

**Order.** (M, N, dtypes) and the set of hard rows fix the order of every sum. There are no atomics, and results depend
neither on scheduling nor on the number of multiprocessors. A row's y, s and dx do not depend on M. Each of a fixed
number of programs sums the columns over its own rows; a second kernel adds these partial sums in float64. A faithful
interpreter gives the same bits with two exceptions, the order inside a block's sum and rsqrt (1 ULP): about 2^-52
before a rounding to 24 bits or fewer, and 2^-22 before one to 16 bits where RMS norm adds squares in float32.

EXACT and WIDE are much slower on a GPU with few float64 units than on an H200.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..checks import DTYPES, Contract, under
from ..launch import autocasts
from .operators import Maybe, forward_op
from .plan import LONGEST

__all__ = ["layer_norm", "layer_norm_residual", "layer_norm_residual_bias"]


def check_rows(name: str, x: Tensor, *others: Maybe) -> None:
    """Raises if a gated or quantised norm cannot have these operands."""
    if any(t is not None and t.dtype == torch.float64 for t in (x, *others)):
        raise TypeError(f"{name}: operands are float32, float16 or bfloat16; one is float64")
    if x.shape[-1] > LONGEST:
        raise ValueError(f"{name}: x's last dimension is at most {LONGEST:,}; it is {x.shape[-1]:,}")


def checks(name: str) -> Callable[..., None]:
    """Returns a function that raises if the arguments of the function `name` break a rule."""

    def check(
        x: Tensor, residual: Maybe, input_bias: Maybe, weight: Maybe, bias: Maybe, eps: float, centre: bool,
        gate: Maybe = None, form: str = "once",
    ) -> None:  # fmt: skip
        if x.dim() == 0:
            raise ValueError(f"{name}: x needs a last dimension to normalise; x has 0 dimensions")
        if not (isinstance(eps, (int, float)) and 0 <= eps < math.inf):
            raise ValueError(f"{name}: eps is a finite number >= 0; it is {eps!r}")
        n = x.shape[-1]
        vectors = (("input_bias", input_bias), ("weight", weight), ("bias", bias))
        given = [
            (label, t) for label, t in (("x", x), ("residual", residual), ("gate", gate), *vectors) if t is not None
        ]
        for label, t in given:
            if t.dtype not in DTYPES:
                names = ", ".join(str(d).removeprefix("torch.") for d in DTYPES)
                raise TypeError(f"{name}: {label} is one of {names}; it is {str(t.dtype).removeprefix('torch.')}")
            if form.startswith("model") and x.dtype.itemsize == 2 and t.dtype != x.dtype:
                raise TypeError(
                    f'{name}: contract="model" takes 16-bit operands of one dtype; {label} is {t.dtype}, x is {x.dtype}'
                )
            if t.device != x.device:
                raise ValueError(f"{name}: {label} is on {t.device}, x is on {x.device}")
        if gate is not None:
            check_rows(name, x, weight)
            if gate.dtype != x.dtype:
                raise TypeError(f"{name}: gate has x's dtype; gate is {gate.dtype}, x is {x.dtype}")
        for label, t in given:
            if label in ("x", "residual", "gate"):
                if t.shape != x.shape:
                    raise ValueError(f"{name}: {label} has shape {tuple(t.shape)}, x has {tuple(x.shape)}")
            elif t.dim() != 1:
                raise ValueError(f"{name}: {label} has 1 dimension; its shape is {tuple(t.shape)}")
            elif t.shape[0] != n:
                raise ValueError(f"{name}: {label} has {t.shape[0]} elements, x's last dimension is {n}")

    return check


_CHECK = {name: checks(name) for name in __all__}


def layer_norm(
    x: Tensor, weight: Maybe = None, bias: Maybe = None, *, eps: float = 1e-5, contract: Contract = "once"
) -> Tensor:
    """Returns the layer norm of x over its last dimension, in x's dtype; weight and bias have any dtype.

    torch.nn.functional.layer_norm rounds once too, so both contracts give the same bits.

    Under torch.autocast 16-bit operands are cast to float32, as PyTorch does.
    """
    if autocasts(x):
        wide: Any = (t.float() if t is not None and t.dtype.itemsize == 2 else t for t in (x, weight, bias))
        x, weight, bias = wide
    form = under(contract, "layer_norm", "once")
    return forward_op.checked(_CHECK["layer_norm"], x, None, None, weight, bias, eps, True, None, form)[0]


def layer_norm_residual(
    x: Tensor, residual: Tensor, weight: Maybe = None, bias: Maybe = None, *, eps: float = 1e-5,
    contract: Contract = "once",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Returns y and s: s = x + residual in the residual's dtype, y the layer norm of the unrounded sum.

    contract="model": the norm of s, the rounded sum. torch.autocast does not change dtypes here.
    """
    check, form = _CHECK["layer_norm_residual"], under(contract, "layer_norm_residual", "once")
    return forward_op.checked(check, x, residual, None, weight, bias, eps, True, None, form)[:2]


def layer_norm_residual_bias(
    x: Tensor, residual: Tensor, input_bias: Tensor, weight: Maybe = None, bias: Maybe = None, *, eps: float = 1e-5,
    contract: Contract = "once",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Returns y and s: s = x + input_bias + residual; everything else as in layer_norm_residual."""
    check, form = _CHECK["layer_norm_residual_bias"], under(contract, "layer_norm_residual_bias", "once")
    return forward_op.checked(check, x, residual, input_bias, weight, bias, eps, True, None, form)[:2]
