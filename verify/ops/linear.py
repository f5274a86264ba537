"""Defines a linear layer with an activation: pre = x @ weight^T + bias, y = act(pre).

x is [M, K], weight [N, K], bias [N]. For the gated activations, weight is [2N, K], bias is [2N], and y = p1 * gelu(p2)
with p1, p2 = pre.chunk(2, -1). Let dpre be the gradient of pre: dy act'(pre), for both halves of a gated layer, plus
the upstream gradient of "pre" if that is an output. Then

    dx = dpre @ weight,      dweight = dpre^T @ x,      dbias = sum over rows of dpre.

Scales: pre has the scale S = |x| @ |weight|^T + |bias|. Then y has |act'| S + |y|, and dpre has
|dy| (|act''| S + the terms of act'). If the products cancel, the error of pre may exceed pre. So act' and act'' are the
largest values within REACH S of pre, where REACH is the error of a float32 sum of 4,096 products.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from verify.ops import gelu
from verify.ops.formula import Curve
from verify.ops.geometry import Contraction
from verify.ops.graph.baseline import exact_points
from verify.ops.op import Fast, Op, Operand, Problem

# ---------------------------------------------------------------------------------- the activations

IDENTITY = Curve(
    value=lambda x: Fast(x, x.abs()),
    slope=lambda x: Fast(torch.ones_like(x), torch.ones_like(x)),
    bend=torch.zeros_like,
)


def _squared_relu(x: Tensor) -> Fast:
    value = x.clamp(min=0.0).square()
    return Fast(value, value)


def _squared_relu_slope(x: Tensor) -> Fast:
    value = 2.0 * x.clamp(min=0.0)
    return Fast(value, value)


SQUARED_RELU = Curve(value=_squared_relu, slope=_squared_relu_slope, bend=lambda x: torch.full_like(x, 2.0))
_CURVES = {
    "id": IDENTITY,
    "gelu": gelu.ERF,
    "gelu_tanh": gelu.TANH,
    "squared_relu": SQUARED_RELU,
    "geglu": gelu.ERF,
    "geglu_tanh": gelu.TANH,
}
_GATED = ("geglu", "geglu_tanh")

# ------------------------------------------------------------------------------------------ float64

# Largest expected error of a computed pre-activation, in units of S. Within this distance the slope of an activation
# may differ much from the slope at pre: gelu is 0 left of -40 and the identity right of 40.
REACH = 2.0**-12


def _within(function: Callable[[Tensor], Tensor], pre: Tensor, size: Tensor, tops: tuple[float, ...]) -> Tensor:
    """Returns the largest value of a function within REACH * size of pre. Its local maxima are at `tops`."""
    low, high = pre - REACH * size, pre + REACH * size
    largest = torch.maximum(function(low), function(high))
    for top in tops:
        largest = torch.maximum(largest, function(torch.full_like(pre, top).clamp(low, high)))
    return largest


def _output(curve: Curve, pre: Tensor, size: Tensor) -> Fast:
    """Returns act(pre) and its scale, given the scale `size` of pre."""
    fast = curve.value(pre)
    steepest = _within(lambda x: curve.slope(x).value.abs(), pre, size, curve.steep)
    return Fast(fast.value, fast.scale + steepest * size)


def _slope(curve: Curve, pre: Tensor, size: Tensor) -> Fast:
    """Returns act'(pre) and its scale, given the scale `size` of pre."""
    fast = curve.slope(pre)
    return Fast(fast.value, fast.scale + _within(curve.bend, pre, size, (0.0,)) * size)


def _fast(problem: Problem) -> dict[str, Fast]:
    """Evaluates the requested results in float64, with their scales.

    A float64 sum of n products is off by at most n units of 2^-53 of S, in any order (Higham, Accuracy and Stability of
    Numerical Algorithms, section 3.1).
    """
    given, weights, activation = problem.inputs["x"], problem.inputs["weight"], problem.params["activation"]
    if given is None or weights is None:
        raise ValueError("operands x and weight are required")
    x, weight = given.to(torch.float64), weights.to(torch.float64)
    curve, gated = _CURVES[activation], activation in _GATED
    bias = problem.inputs.get("bias")
    pre, size = x @ weight.mT, x.abs() @ weight.abs().mT
    if bias is not None:
        offset = bias.to(torch.float64)
        pre, size = pre + offset, size + offset.abs()
    width = pre.shape[-1] // (2 if gated else 1)
    p1, p2 = pre[:, :width], pre[:, width:]
    results = {}
    if "pre" in problem.results:
        results["pre"] = Fast(pre, size)
    # Below the normal numbers, errors of products and sums are absolute. So S is at least the smallest normal number.
    smallest = torch.finfo(torch.float64 if given.dtype == torch.float64 else torch.float32).tiny
    size = size.clamp_min(smallest)
    s1, s2 = size[:, :width], size[:, width:]
    # At an infinite pre-activation the limit is exact, without rounding errors of terms.
    s1, s2, size = (each.masked_fill(~torch.isfinite(each), 0.0) for each in (s1, s2, size))
    if "y" in problem.results:
        if gated:
            gate = _output(curve, p2, s2)
            scale = (p1.abs() + REACH * s1) * gate.scale + gate.value.abs() * s1
            results["y"] = Fast(p1 * gate.value, scale)
        else:
            results["y"] = _output(curve, pre, size)
    if not {"dx", "dweight", "dbias"} & set(problem.results):
        return results

    back = torch.zeros_like(pre)
    back_scale = torch.zeros_like(pre)
    if "y" in problem.upstream:
        dy = problem.upstream["y"].to(torch.float64)
        if gated:
            gate, slope = _output(curve, p2, s2), _slope(curve, p2, s2)
            back = torch.cat([dy * gate.value, dy * p1 * slope.value], -1)
            second = (p1.abs() + REACH * s1) * slope.scale + s1 * slope.value.abs()
            back_scale = torch.cat([dy.abs() * gate.scale, dy.abs() * second], -1)
        else:
            slope = _slope(curve, pre, size)
            back, back_scale = dy * slope.value, dy.abs() * slope.scale
    if curve is not IDENTITY:
        # The gradient of the pre-activation is a number of the dtype. If it is subnormal, its error is absolute, and
        # the sums below magnify it (gradual underflow: Higham, section 2.2).
        back_scale = back_scale.clamp_min(float(torch.finfo(given.dtype).tiny))
    if "pre" in problem.upstream:
        direct = problem.upstream["pre"].to(torch.float64)
        back, back_scale = back + direct, back_scale + direct.abs()
    if "dx" in problem.results:
        results["dx"] = Fast(back @ weight, back_scale @ weight.abs())
    if "dweight" in problem.results:
        results["dweight"] = Fast(back.mT @ x, back_scale.mT @ x.abs())
    if "dbias" in problem.results:
        results["dbias"] = Fast(back.sum(0), back_scale.sum(0))
    return results


# ------------------------------------------------------------------------------------------- the op


def _baseline(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str = "id"
) -> tuple[Tensor, Tensor]:
    functional = torch.nn.functional
    pre = functional.linear(x, weight, bias)
    approximate = "tanh" if activation.endswith("tanh") else "none"
    if activation in _GATED:
        p1, p2 = pre.chunk(2, -1)
        return p1 * functional.gelu(p2, approximate=approximate), pre
    if activation == "squared_relu":
        return functional.relu(pre).square(), pre
    return (pre if activation == "id" else functional.gelu(pre, approximate=approximate)), pre


LINEAR = Op(
    name="linear",
    geometry=Contraction(factor=lambda params: 2 if params.get("activation") in _GATED else 1),
    operands=(
        Operand("x"),
        Operand("weight", role="matrix"),
        Operand("bias", role="shift", optional=True),
    ),
    outputs=("y", "pre"),
    optional_outputs=("pre",),
    fast=_fast,
    points=exact_points(("x", "weight", "bias"), ("y", "pre"), _baseline, _fast, summed=("dweight", "dbias")),
    baseline=_baseline,
    params={"activation": "id"},
    choices={"activation": tuple(_CURVES)},
    gate="scaled",
    symmetry="linear",
    summary="act(x @ weight^T + bias)",
)
