"""GELU: formulas, constants, forms, strides of an elementwise kernel, forward and backward."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from mutants import formulas
from mutants.formulas import CUBIC, SQRT_2_OVER_PI, SQRT_HALF, wide
from mutants.mutant import LAYOUT, UPSTREAM, Family, declare, differentiable
from verify.declare.declaration import Kernel

OTHER = {"none": "tanh", "tanh": "none"}


def _exp_form_tanh(u: Tensor) -> Tensor:
    grown = torch.exp(2.0 * u)
    return (grown - 1.0) / (grown + 1.0)


def _forward(x: Tensor, *, form: str, bug: str | None) -> Any:
    v, narrow = wide(x), x.contiguous().float()
    y = formulas.gelu(v, form)
    if bug == "exp-form tanh":
        y = 0.5 * narrow * (1.0 + _exp_form_tanh(formulas.inner(narrow)))
    elif bug == "1 + erf":
        y = 0.5 * narrow * (1.0 + torch.erf(narrow * SQRT_HALF))
    elif bug == "1 + tanh":
        y = 0.5 * narrow * (1.0 + torch.tanh(formulas.inner(narrow)))
    elif bug == "the other form":
        y = formulas.gelu(v, OTHER[form])
    elif bug == "sigmoid form":
        y = v.clamp(min=-400.0) * torch.sigmoid(1.702 * v)
    elif bug == "0.7071":
        y = v.clamp(min=-40.0) * formulas.normal_cdf(v.clamp(min=-40.0), 0.7071)
    elif bug == "0.79788456":
        y = v.clamp(min=-40.0) * torch.sigmoid(2.0 * formulas.inner(v.clamp(min=-40.0), 0.79788456))
    elif bug == "0.0447":
        y = v.clamp(min=-40.0) * torch.sigmoid(2.0 * formulas.inner(v.clamp(min=-40.0), cubic=0.0447))
    elif bug == "rounded between":
        y = narrow * formulas.normal_cdf(v.clamp(-40.0, 40.0)).to(x.dtype)
    result = y.to(x.dtype)
    if bug == "output flushed":
        result = torch.where(result.abs() < torch.finfo(x.dtype).tiny, torch.zeros_like(result), result)
    elif bug == "input flushed":
        result = torch.where(x.abs() < torch.finfo(x.dtype).tiny, torch.zeros_like(result), result)
    elif bug == "strides ignored":
        result = formulas.gelu(wide(formulas.raw(x, x.numel())), form).to(x.dtype).reshape(x.shape)
    elif bug == "output strides ignored":
        # written in the order of x's elements into memory that has x's strides
        result = torch.as_strided(result, x.shape, torch.empty_like(x).stride())
    elif bug == "NaN becomes zero":
        result = torch.where(torch.isnan(x), torch.zeros_like(result), result)
    return result, (x,)


def _backward(saved: tuple[Tensor, ...], dy: Tensor, *, form: str, bug: str | None) -> Tensor:
    (x,) = saved
    if bug == "backward always raises":
        raise NotImplementedError("gelu backward: no kernel for this configuration")
    if bug == "backward raises for three dimensions" and x.ndim > 2:
        raise RuntimeError("gelu backward: dY must be a matrix")
    v, narrow, upstream = wide(x), x.contiguous().float().clamp(-40.0, 40.0), wide(dy)
    slope = formulas.slope(v, form)
    if bug == "exp-form tanh backward":
        t = _exp_form_tanh(formulas.inner(narrow))
        slope = _tanh_slope(narrow, t)
    elif bug == "1 + tanh backward":
        slope = _tanh_slope(narrow, torch.tanh(formulas.inner(narrow)))
    elif bug == "1 + erf backward":
        slope = 0.5 * (1.0 + torch.erf(narrow * SQRT_HALF)) + narrow * formulas.density(narrow)
    elif bug == "the other form backward":
        slope = formulas.slope(v, OTHER[form])
    elif bug == "0.3989 backward":
        low = formulas.bounded(v)
        slope = formulas.normal_cdf(low) + low * formulas.density(low, 0.3989)
    elif bug == "density dropped backward":
        slope = formulas.normal_cdf(formulas.bounded(v))
    elif bug == "slope rounded backward":
        slope = slope.to(x.dtype).to(torch.float64)
    if bug == "dY read as contiguous":
        upstream = wide(formulas.raw(dy, dy.numel())).reshape(dy.shape)
    elif bug == "dY assumed one":
        upstream = torch.ones_like(upstream)
    elif bug == "dY's last stride assumed":
        upstream = _unit_last_stride(dy)
    dx = (upstream * slope).to(x.dtype)
    if bug == "gradient flushed":
        dx = torch.where(dx.abs() < torch.finfo(x.dtype).tiny, torch.zeros_like(dx), dx)
    return dx


def _tanh_slope(x: Tensor, t: Tensor) -> Tensor:
    rate = SQRT_2_OVER_PI * (1.0 + 3.0 * CUBIC * x * x)
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * rate


def _unit_last_stride(dy: Tensor) -> Tensor:
    """Rows found by the row stride, elements of a row taken to lie side by side."""
    if dy.ndim != 2 or dy.numel() == 0:
        return wide(dy)
    return torch.stack([wide(formulas.raw(dy[row], dy.shape[1])) for row in range(dy.shape[0])])


def make(
    *,
    bug: str | None,
    name: str,
    form: str = "none",
    dtypes: tuple[str, ...] = ("float32",),
    max_ulp: float = 2.0,
    layouts: str = "any",
) -> Kernel:
    """A GELU kernel of one form, with at most one bug."""
    pair = differentiable(partial(_forward, form=form, bug=bug), partial(_backward, form=form, bug=bug))

    def function(x: Tensor) -> Tensor:
        if layouts == "contiguous" and not x.is_contiguous() and bug != "contiguity not checked":
            raise ValueError(f"{name}: x must be contiguous; received strides {tuple(x.stride())}")
        if bug == "contiguity not checked" and not x.is_contiguous():
            x = formulas.raw(x, x.numel()).reshape(x.shape)
        return pair(x)

    options: dict[str, Any] = {"params": {"approximate": form}, "layouts": layouts}
    return declare("gelu", function, name=name, dtypes=dtypes, max_ulp=max_ulp, **options)


FAMILY = Family("gelu", make)
_add = FAMILY.add
BF16: dict[str, Any] = {"dtypes": ("bfloat16",), "max_ulp": 0.6}

_add("exp-form tanh", "exp-form tanh", "forward", "inf/inf for x > 11", form="tanh")
_add("exp-form tanh backward", "exp-form tanh", "backward", "dx is NaN for x > 11", form="tanh")
_add("1 + erf", "1+erf / 1+tanh cancels", "forward", "the negative tail is zero or noise")
_add("1 + tanh", "1+erf / 1+tanh cancels", "forward", "the negative tail is zero or noise", form="tanh")
_add("1 + erf", "1+erf / 1+tanh cancels", "forward", "bfloat16 shows it too", dtypes=("bfloat16",), max_ulp=4.0)
_add("1 + erf backward", "1+erf / 1+tanh cancels", "backward", "wrong sign and size in the negative tail")
_add("1 + tanh backward", "1+erf / 1+tanh cancels", "backward", "1 - t^2 cancels as well", form="tanh")
_add("the other form", "erf and tanh forms mixed up", "forward", "tanh computed where erf is promised")
_add("the other form", "erf and tanh forms mixed up", "forward", "erf computed where tanh is promised", form="tanh")
_add("sigmoid form", "erf and tanh forms mixed up", "forward", "x * sigmoid(1.702 x), a third form", form="tanh")
_add("the other form backward", "erf and tanh forms mixed up", "backward", "forward erf, backward tanh")
_add("the other form backward", "erf and tanh forms mixed up", "backward", "forward tanh, backward erf", form="tanh")
_add("0.7071", "truncated constant", "forward", "0.7071 for 1/sqrt(2)")
_add("0.79788456", "truncated constant", "forward", "nine digits of sqrt(2/pi)", form="tanh", max_ulp=0.6)
_add("0.0447", "truncated constant", "forward", "0.0447 for 0.044715", form="tanh")
_add("0.3989 backward", "truncated constant", "backward", "0.3989 for 1/sqrt(2 pi)")
_add("density dropped backward", "term of a formula lost", "backward", "the term x * density(x) is missing")
_add("rounded between", "rounding point moved", "forward", "the cdf is rounded to bfloat16 before the product", **BF16)
_add("slope rounded backward", "rounding point moved", "backward", "the slope is rounded before the product", **BF16)
_add("output flushed", "subnormals flushed", "forward", "subnormal results become zero")
_add("input flushed", "subnormals flushed", "forward", "subnormal inputs are taken as zero")
_add("gradient flushed", "subnormals flushed", "backward", "subnormal gradients become zero")
_add(
    "strides ignored",
    "non-contiguous input taken as contiguous",
    "forward",
    "memory read in order",
    killed_by=(LAYOUT,),
)
_add(
    "output strides ignored",
    "non-contiguous input taken as contiguous",
    "forward",
    "empty_like keeps x's strides, the kernel writes in order",
    killed_by=(LAYOUT,),
)
_add(
    "contiguity not checked",
    "non-contiguous input taken as contiguous",
    "forward",
    "declares contiguous, but does not refuse the rest",
    layouts="contiguous",
    killed_by=(LAYOUT,),
)
_add(
    "dY read as contiguous",
    "strided or expanded upstream gradient",
    "backward",
    "memory of dY read in order",
    killed_by=(UPSTREAM,),
)
_add(
    "dY's last stride assumed",
    "strided or expanded upstream gradient",
    "backward",
    "rows by stride, elements taken to be neighbours: `.sum()` gives stride 0",
    killed_by=(UPSTREAM,),
)
_add("dY assumed one", "strided or expanded upstream gradient", "backward", "written for `.sum().backward()` only")
_add("backward always raises", "backward always raises", "backward", "a path that was never run")
_add("backward raises for three dimensions", "backward always raises", "backward", "only matrices were ever tried")
_add("NaN becomes zero", "NaN or infinity swallowed", "forward", "a NaN input is silently a number")
MUTANTS = tuple(FAMILY.mutants)
