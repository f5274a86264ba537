"""Defines a linear layer with an activation: pre = x @ weight^T + bias, y = act(pre).

x is [M, K], weight [N, K], bias [N]. For the gated activations, weight is [2N, K], bias is [2N], and y = p1 * gelu(p2)
with p1, p2 = pre.chunk(2, -1). Let dpre be the gradient of pre: dy act'(pre), for both halves of a gated layer, plus
the upstream gradient of "pre" if that is an output. Then

    dx = dpre @ weight,      dweight = dpre^T @ x,      dbias = sum over rows of dpre.

Scales: pre has the scale S = |x| @ |weight|^T + |bias|. Then y has |act'| S + |y|, and dpre has
|dy| (|act''| S + the terms of act'). If the products cancel, the error of pre may exceed pre. So act' and act'' are the
largest values within REACH S of pre, where REACH is the error of a float32 sum of 4,096 products.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from verify.ops.geometry import Contraction
from verify.ops.graph.shipped import Limits, Scales, Shipped
from verify.ops.op import Operand, Problem

# ---------------------------------------------------------------------------------- the activations

_GATED = ("geglu", "geglu_tanh")
_FAR = 2.0**200  # means an infinite argument: the activation has its limit there


def _gelu(x: Tensor, *, approximate: str) -> Tensor:
    """Returns GELU with its limits at infinite numbers, where PyTorch has NaN."""
    inner = torch.nn.functional.gelu(x.clamp(-_FAR, _FAR), approximate=approximate)
    return torch.where(x == math.inf, x, inner)


def _layer(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "id",
    gelu: Callable[..., Tensor] = torch.nn.functional.gelu,
) -> tuple[Tensor, Tensor]:
    pre = torch.nn.functional.linear(x, weight, bias)
    approximate = "tanh" if activation.endswith("tanh") else "none"
    if activation in _GATED:
        p1, p2 = pre.chunk(2, -1)
        return p1 * gelu(p2, approximate=approximate), pre
    if activation == "squared_relu":
        return torch.relu(pre).square(), pre
    return (pre if activation == "id" else gelu(pre, approximate=approximate)), pre


# ---------------------------------------------------------------------------------------- the scales

# Largest expected error of a computed pre-activation, in units of S. Within this distance the slope of an activation
# may differ much from the slope at pre: gelu is 0 left of -40 and the identity right of 40.
REACH = 2.0**-12


@dataclass(frozen=True)
class _Terms:
    """The magnitudes of an activation's value and of its derivatives, from which scales are made.

    `terms` are those of the slope, which a scale adds up; `bend` bounds the second derivative. The slope has its
    largest magnitudes at `steep`.
    """

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    terms: Callable[[Tensor], Tensor]
    bend: Callable[[Tensor], Tensor]
    steep: tuple[float, ...] = ()


def _gate_terms(factors: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]], edge: float, steep: float) -> _Terms:
    """Returns the magnitudes of x s(x), from s, its derivative, and a bound of |2 s' + x s''|.

    Beyond `edge`, s and its derivative leave the normal range of float64, so they are those of the edge.
    """

    def slope(x: Tensor) -> tuple[Tensor, Tensor]:
        inner = x.clamp(-edge, edge)
        factor, change, _ = factors(inner)
        return factor, inner * change

    return _Terms(
        value=lambda x: (x * factors(x.clamp(-edge, edge))[0]).masked_fill(x == -math.inf, 0.0).abs(),  # its limit
        slope=lambda x: sum(slope(x)).abs(),  # type: ignore[union-attr]
        terms=lambda x: slope(x)[0] + slope(x)[1].abs(),
        bend=lambda x: factors(x.clamp(-edge, edge))[2],
        steep=(-steep, steep),
    )


def _erf_factors(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    density = torch.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    return torch.special.ndtr(x), density, density * (2.0 + x * x)


def _tanh_factors(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    linear, cubic = math.sqrt(8.0 / math.pi), math.sqrt(8.0 / math.pi) * 0.044715
    exponent, grows = x * (linear + cubic * x * x), linear + 3.0 * cubic * x * x
    left, right = torch.sigmoid(exponent), torch.sigmoid(-exponent)
    return left, grows * left * right, left * right * (2.0 * grows + 6.0 * cubic * x * x + x.abs() * grows * grows)


_ERF = _gate_terms(_erf_factors, 37.5, math.sqrt(2.0))
_TANH = _gate_terms(_tanh_factors, 21.0, 1.4185040087908284)
_ACTIVATIONS = {
    "id": _Terms(torch.abs, torch.ones_like, torch.ones_like, torch.zeros_like),
    "gelu": _ERF,
    "gelu_tanh": _TANH,
    "squared_relu": _Terms(
        value=lambda x: x.clamp(min=0.0).square(),
        slope=lambda x: 2.0 * x.clamp(min=0.0),
        terms=lambda x: 2.0 * x.clamp(min=0.0),
        bend=lambda x: torch.full_like(x, 2.0),
    ),
    "geglu": _ERF,
    "geglu_tanh": _TANH,
}


def _within(function: Callable[[Tensor], Tensor], pre: Tensor, size: Tensor, tops: tuple[float, ...]) -> Tensor:
    """Returns the largest value of a function within REACH * size of pre. Its local maxima are at `tops`."""
    low, high = pre - REACH * size, pre + REACH * size
    largest = torch.maximum(function(low), function(high))
    for top in tops:
        largest = torch.maximum(largest, function(torch.full_like(pre, top).clamp(low, high)))
    return largest


def _scales(problem: Problem) -> Scales:
    """Returns the scale of each requested result."""
    given, weights, activation = problem.inputs["x"], problem.inputs["weight"], problem.params["activation"]
    if given is None or weights is None:
        raise ValueError("operands x and weight are required")
    x, weight, own = given.double(), weights.double(), _ACTIVATIONS[activation]
    bias = problem.inputs.get("bias")
    pre = torch.nn.functional.linear(x, weight, None if bias is None else bias.double())
    size = torch.nn.functional.linear(x.abs(), weight.abs(), None if bias is None else bias.double().abs())
    found: dict[str, Tensor] = {"pre": size}
    # Below the normal numbers, errors of products and sums are absolute. So S is at least the smallest normal number.
    size = size.clamp_min(torch.finfo(torch.float64 if given.dtype == torch.float64 else torch.float32).tiny)
    # At an infinite pre-activation the limit is exact, without rounding errors of terms.
    size = size.masked_fill(~torch.isfinite(size), 0.0)
    gated = activation in _GATED
    (p1, p2), (s1, s2) = (each.chunk(2, -1) if gated else (each, each) for each in (pre, size))
    y = own.value(p2) + _within(own.slope, p2, s2, own.steep) * s2
    found["y"] = y if not gated else (p1.abs() + REACH * s1) * y + own.value(p2) * s1
    if {"dx", "dweight", "dbias"} & set(problem.results):
        back = torch.zeros_like(pre)
        if "y" in problem.upstream:
            dy = problem.upstream["y"].double().abs()
            slope = own.terms(p2) + _within(own.bend, p2, s2, (0.0,)) * s2
            back = dy * slope
            if gated:
                second = (p1.abs() + REACH * s1) * slope + s1 * own.slope(p2)
                back = torch.cat([dy * y, dy * second], -1)
        if activation != "id":
            # The gradient of the pre-activation is a number of the dtype. If it is subnormal, its error is absolute,
            # and the sums below magnify it (gradual underflow: Higham, section 2.2).
            back = back.clamp_min(float(torch.finfo(given.dtype).tiny))
        if "pre" in problem.upstream:
            back = back + problem.upstream["pre"].double().abs()
        found |= {"dx": back @ weight.abs(), "dweight": back.mT @ x.abs(), "dbias": back.sum(0)}
    return {name: (scale, None) for name, scale in found.items() if name in problem.results}


def _limits(problem: Problem) -> Limits:
    """Returns NaN for gradients at a NaN, and where one half is infinite and the gate -infinity: one factor vanishes.

    The clamp in `_gelu` would cut the gradient off instead.
    """
    x, weight, bias = (problem.inputs.get(name) for name in ("x", "weight", "bias"))
    activation = problem.params["activation"]
    if x is None or weight is None or activation in ("id", "squared_relu"):
        return {}
    pre = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    lost = torch.isnan(pre)
    if activation in _GATED:
        p1, p2 = pre.chunk(2, -1)
        none = torch.isnan(p1) | torch.isnan(p2)
        # the first half's own gradient has the gate's limit, 0
        lost = torch.cat([none, none | (p2 == -math.inf) & torch.isinf(p1)], -1)
    units = lost.any(0)
    masks = {"dx": lost.any(-1, keepdim=True).expand(x.shape), "dweight": units[:, None].expand(weight.shape)}
    found = {**masks, "dbias": units}
    return {
        name: (mask, torch.tensor(math.nan)) for name, mask in found.items() if name in problem.results and mask.any()
    }


_OPERANDS = Operand("x"), Operand("weight", role="matrix"), Operand("bias", role="shift", optional=True)
_MEANING = partial(_layer, gelu=_gelu)
_SUMMED = ("dweight", "dbias")
LINEAR = Shipped(_MEANING, _OPERANDS, ("y", "pre"), scales=_scales, limits=_limits, summed=_SUMMED).op(
    "linear",
    Contraction(factor=lambda params: 2 if params.get("activation") in _GATED else 1),
    baseline=_layer,
    optional_outputs=("pre",),
    params={"activation": "id"},
    choices={"activation": tuple(_ACTIVATIONS)},
    gate="scaled",
    summary="act(x @ weight^T + bias)",
)
