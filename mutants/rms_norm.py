"""RMS norm: squares, eps and the weight's rounding points."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from mutants import formulas
from mutants.formulas import total, wide
from mutants.mutant import Family, declare, differentiable
from verify.declare.declaration import Kernel


def _rstd(x: Tensor, eps: float, bug: str | None) -> Tensor:
    v = wide(x)
    count = max(v.shape[-1], 1)
    if bug == "square in the input's dtype":
        squares = total((x * x).to(torch.float64)) / count
    elif bug == "sum of squares in float32":
        squares = (total(x.float() * x.float()) / count).to(torch.float64)
    else:
        squares = total(v * v) / count
    if bug == "eps outside the root":
        return 1.0 / (torch.sqrt(squares) + eps)
    if bug == "eps added to the sum":
        return 1.0 / torch.sqrt(squares + eps / count)
    if bug == "eps in the input's dtype":
        eps = float(torch.tensor(eps, dtype=x.dtype))
    return 1.0 / torch.sqrt(squares + eps)


def _scale(weight: Tensor, bug: str | None) -> Tensor:
    if bug == "weight - 1 stored":
        return wide((weight - 1.0) + 1.0)
    if bug == "weight read in order":
        return wide(formulas.raw(weight, weight.numel()))
    return wide(weight)


def _forward(x: Tensor, weight: Tensor, *, eps: float, bug: str | None) -> Any:
    rstd = _rstd(x, eps, bug)
    xhat = wide(x) * rstd
    if bug == "xhat rounded":
        xhat = xhat.to(x.dtype).to(torch.float64)
    return (xhat * _scale(weight, bug)).to(x.dtype), (x, weight, rstd)


def _backward(saved: tuple[Tensor, ...], dy: Tensor, *, eps: float, bug: str | None) -> Any:
    x, weight, rstd = saved
    if bug == "rstd saved in the input's dtype":
        rstd = rstd.to(x.dtype).to(torch.float64)
    elif bug == "rstd recomputed with the wrong eps":
        rstd = _rstd(x, 1e-5, None)
    v, upstream = wide(x), wide(dy)
    xhat = v * rstd
    g = upstream * wide(weight)
    if bug == "g rounded backward":
        g = g.to(x.dtype).to(torch.float64)
    inner = total(g * xhat) / max(v.shape[-1], 1)
    dx = (rstd * (g - xhat * inner)).to(x.dtype)
    products = upstream * xhat
    if bug == "product for dweight rounded":
        products = products.to(x.dtype).to(torch.float64)
    return dx, total(formulas.rows(products), 0)[0].to(weight.dtype)


def make(*, bug: str | None, name: str, dtypes: tuple[str, ...] = ("float32",), max_ulp: float = 2.0) -> Kernel:
    """An RMS norm with at most one bug."""

    def function(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        pair = differentiable(partial(_forward, eps=eps, bug=bug), partial(_backward, eps=eps, bug=bug))
        return pair(x, weight)

    return declare("rms_norm", function, name=name, dtypes=dtypes, max_ulp=max_ulp, eps=True)


BF16: dict[str, Any] = {"dtypes": ("bfloat16",), "max_ulp": 0.6}
FP16: dict[str, Any] = {"dtypes": ("float16",), "max_ulp": 0.6}
FAMILY = Family("rms_norm", make)
_add = FAMILY.add
_add("square in the input's dtype", "square overflows", "forward", "x^2 in float16", **FP16)
_add(
    "sum of squares in float32",
    "square overflows",
    "forward",
    "overflows for x near 1e18 and beyond",
    killed_by=("special values", "accuracy"),
)
_add("eps outside the root", "eps lost or misplaced", "forward", "1/(rms + eps)")
_add("eps added to the sum", "eps lost or misplaced", "forward", "eps joins the sum before the division by N")
_add("eps in the input's dtype", "eps lost or misplaced", "forward", "1e-12 is 0 in float16", **FP16)
_add(
    "rstd recomputed with the wrong eps",
    "eps lost or misplaced",
    "backward",
    "1e-5 whatever was asked for",
    killed_by=("special values", "accuracy"),
)
_add("weight - 1 stored", "rounding point moved", "forward", "(weight - 1) + 1 in bfloat16", **BF16)
_add("xhat rounded", "rounding point moved", "forward", "xhat is rounded before the weight", **BF16)
_add("g rounded backward", "rounding point moved", "backward", "dY * weight is rounded to bfloat16", **BF16)
_add("product for dweight rounded", "rounding point moved", "backward", "each dY * xhat is rounded", **BF16)
_add("rstd saved in the input's dtype", "mean/rstd saved in the input dtype", "backward", "bfloat16", **BF16)
_add(
    "weight read in order",
    "non-contiguous input taken as contiguous",
    "forward",
    "the weight's stride is ignored",
    killed_by=("initialised memory", "layout independence"),
)
MUTANTS = tuple(FAMILY.mutants)
