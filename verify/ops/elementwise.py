"""Defines GELU and SiLU, and the gates of both: GEGLU and SwiGLU, y = x1 * g(x2).

GELU is x * Phi(x) ("none", the erf form), or its tanh approximation ("tanh"): x * logistic(2u) with
u = sqrt(2/pi) (x + 0.044715 x^3). The truth uses the decimal number 0.044715 and the real number sqrt(2/pi). SiLU is
x / (1 + exp(-x)).

A gate takes two tensors (`geglu_split`), or one packed [..., 2d] tensor with x1, x2 = x.chunk(2, -1) (`geglu`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from verify.ops.geometry import Elementwise, Params
from verify.ops.graph.shipped import Limits, Shipped
from verify.ops.op import Landmarks, Op, Operand, Problem, Regime

_FORMATS = (torch.float32, torch.bfloat16, torch.float16)  # their thresholds bound the bins of every error curve


@dataclass(frozen=True)
class Thresholds:
    """The points of one curve; those with three numbers belong to float32, bfloat16 and float16.

    All curves fulfil y(x) - y(-x) = x, decay to zero on the left, have one minimum, and approach y = x on the right. So
    the same points matter: where a format underflows, where the slope is zero, and where y rounds to x.
    `tests/ops/test_op_curves.py` solves for these points again.
    """

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


_LEFT, _SMALL = -30.0, 2.0**-500  # any number whose products are no zero means what is only known to be negative
Curve = Callable[..., Tensor]  # g, of a tensor and the parameters


def _halves(problem: Problem) -> tuple[Tensor, Tensor]:
    """Returns x1 and x2 of a packed operand."""
    x = problem.inputs["x"]
    if x is None or x.ndim == 0 or x.shape[-1] % 2:
        received = "nothing" if x is None else f"shape {tuple(x.shape)}"
        raise ValueError(f"x is packed as [..., 2d], so its last dimension is even; got {received}")
    first, second = x.chunk(2, -1)
    return first, second


def _gate_values(problem: Problem, result: str) -> Tensor:
    """Returns x2 for every element of a result of the packed op."""
    second = _halves(problem)[1]
    return second if result == "y" else torch.cat([second, second], -1)


def _limits(parts: Callable[[Problem], tuple[Tensor | None, Tensor | None]], problem: Problem) -> Limits:
    """Returns the limits where the curve's argument is infinite: of its value -0 and infinity, of its slope 0 and 1.

    Other factors keep the rules of IEEE arithmetic, as in infinity * 0. So left of `_LEFT`, where intervals and balls
    may reach 0 though value and slope are negative, infinity times them is an infinity.
    """
    x1, x2 = (None if each is None else each.double() for each in parts(problem))
    assert x2 is not None
    end, one = torch.isinf(x2), torch.ones_like(x2)
    factor, dy = (one if each is None else each.double() for each in (x1, problem.upstream.get("y")))
    left = (x2 < _LEFT) & ~end & (torch.isinf(factor) | torch.isinf(dy))
    if not bool((end | left).any()):
        return {}
    value = torch.where(x2 > 0, math.inf, torch.where(left, -_SMALL, -0.0 * one))
    slope = torch.where(x2 > 0, 1.0, torch.where(left, -_SMALL, 0.0 * one))
    limits = {"y": factor * value, "dx1": dy * value, "dx2": dy * (factor * slope)}
    found = {name: (end | (left & torch.isinf(limit)), limit) for name, limit in limits.items()}
    if "dx" in problem.results:  # of one operand: the curve alone, or both halves
        pairs = zip(found["dx1"], found["dx2"], strict=True)
        mask, limit = found["dx2"] if x1 is None else (torch.cat(each, -1) for each in pairs)
        found["dx"] = mask, limit
    return {name: each for name, each in found.items() if name in problem.results}


def _family(
    names: tuple[str, str, str], curve: Curve, table: Callable[[Params], Thresholds], summary: str, **options: Any
) -> tuple[Op, Op, Op]:
    """Returns a curve as an op, its gate on a packed tensor, and its gate on two tensors. `summary` is the curve's."""

    def split(x1: Tensor, x2: Tensor, **params: Any) -> Tensor:
        return x1 * curve(x2, **params)

    def packed(x: Tensor, **params: Any) -> Tensor:
        return split(*x.chunk(2, -1), **params)

    at = Landmarks(regimes=lambda params: table(params).regimes, boundaries=lambda params: table(params).boundaries)
    alone, joined, apart = names
    return (
        Shipped(curve, (Operand("x"),), limits=partial(_limits, lambda problem: (None, problem.inputs["x"]))).op(
            alone, Elementwise(), landmarks=at, summary=summary, **options
        ),
        Shipped(packed, (Operand("x"),), limits=partial(_limits, _halves)).op(
            joined,
            Elementwise(halves=2),
            landmarks=replace(at, of="x2", values=_gate_values),
            summary=f"x1 * {alone}(x2) on packed [..., 2d]",
            **options,
        ),
        Shipped(
            split,
            (Operand("x1"), Operand("x2")),
            limits=partial(_limits, lambda problem: (problem.inputs["x1"], problem.inputs["x2"])),
        ).op(
            apart, Elementwise(), landmarks=replace(at, of="x2"), summary=f"x1 * {alone}(x2) on two tensors", **options
        ),
    )


_GELU = {
    "none": Thresholds(
        root=-0.7517915246935645,
        peak=1.4142135623734167,
        vanishing=(-14.356067982158693, -13.561520443081282, -5.723854819963261),
        subnormal=(-13.146246717861361, -13.146246717861361, -4.17956713942291),
        saturated=(5.419983174916868, 2.8856349124267573, 3.4871041041144313),
        tail=-5.0,
    ),
    "tanh": Thresholds(
        root=-0.7524614220710163,
        peak=1.4185040087911482,
        vanishing=(-10.770868253746146, -10.333197547431512, -5.2886215275068444),
        subnormal=(-10.100637393537946, -10.100637393537946, -4.029301447894288),
        saturated=(5.061380380273073, 2.8609619268268607, 3.421384809285688),
        tail=-5.0,
    ),
}
_SILU = Thresholds(
    root=-1.2784645427610737,
    peak=2.39935728051572,
    vanishing=(-108.66030361932556, -97.46117630196233, -20.34133451118791),
    subnormal=(-91.85677532459547, -91.85677532459547, -12.20598165888704),
    saturated=(17.32867948419631, 6.236369590203704, 8.31752199628717),
    tail=-16.0,
)

GELU, GEGLU, GEGLU_SPLIT = _family(
    ("gelu", "geglu", "geglu_split"),
    torch.nn.functional.gelu,
    lambda params: _GELU[params.get("approximate", "none")],
    "x * Phi(x), or its tanh approximation",
    params={"approximate": "none"},
    choices={"approximate": tuple(_GELU)},
)
SILU, SWIGLU, SWIGLU_SPLIT = _family(
    ("silu", "swiglu", "swiglu_split"), torch.nn.functional.silu, lambda params: _SILU, "x * logistic(x)"
)
