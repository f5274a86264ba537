"""Defines softmax, layer norm and RMS norm over the last dimension.

The norms are plain, or of a sum with a residual, which is an output too.

The row s is the exact sum of its summands (x, a residual, a broadcast bias). Let m be its mean, or 0 for RMS norm. Let
c = s - m, var = mean(c^2), r = 1 / sqrt(var + eps) and xhat = c r. Then

    y  = xhat w + b,
    ds = r (g - mean(g) - xhat mean(g xhat)) + upstream of s,    where g = w dy,
    dw = sum over rows of dy xhat,
    db = sum over rows of dy.

Without centring, mean(g) is absent. ds is the gradient of every summand, summed over rows for the broadcast bias. The
truth takes the exact value of the Python float eps. s and y both belong to the exact, unrounded sum.

The scale of y is |w| size + |b|, and that of dw is the sum of |dy| size. Without centring, size = |xhat|. With
centring, terms cancel in an element near the mean of its row, even to an exact 0. A scale of |xhat| would demand digits
that no computed mean has. So size = max(|xhat|, u rms). Here rms = sqrt(var) r is the root mean square of the row's
xhat, at most 1, and u is the unit roundoff of float32, 2^-24, or of float64 for float64 data, 2^-53. One ulp of u rms
in that format is at least u^2 rms, which is the error of a mean in two words of the format (docs/reductions.md).

A row with an infinity or a NaN has no xhat: all its elements are NaN. There is one exception: without centring, a
finite number beside an infinity has the limit 0. The infinity itself would be infinity / infinity, which has no value.

Softmax is y_i = exp(x_i) / Z with Z = sum_j exp(x_j). Its gradient is y_i (g_i - sum_j g_j y_j). The terms of that
cancel without limit if one element dominates the row, so its scale is y_i (|g_i| + sum_j |g_j y_j|). Nothing cancels in
y, but every softmax rounds d = x_i - max x, which moves exp by up to |d| ULP, and GPUs round d log2 e, which moves it
by as much. So y stands for y (1 + |d| / 2) in both scales: a limit of 4 ULP is one of 4 + 2 |d|. Data of 16 bits have a
2^-16 or 2^-13 part of that, because kernels compute in float32. An input of -inf among finite ones is a masked element
(y = 0). A row has no limit if it holds +inf or NaN, or -inf alone. The gradient of a row has no limit if an upstream
gradient of the row is not finite.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from verify.ops.geometry import Rowwise
from verify.ops.graph.shipped import Scales, Shipped
from verify.ops.graph.spans import two_sum
from verify.ops.op import Landmarks, Op, Operand, Problem

_LEAST, _LEAST_FLOAT64 = 2.0**-24, 2.0**-53  # u: no element counts as smaller than this part of its row's deviation
_EXPONENTS = (-1000, 1000)  # rows are scaled by a power of two in this range, so that squares stay in float64


def _rows(parts: Sequence[Tensor], eps: float, least: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """Normalises the sum of the parts in float64: returns xhat, the value used for |xhat|, and r.

    `least` is u; None: without centring.
    """
    total, rest = parts[0], torch.zeros_like(parts[0])
    for part in parts[1:]:
        total, lost = two_sum(total, part.expand_as(total))
        rest = rest + lost
    exponent = torch.frexp(total.abs().amax(-1, keepdim=True)).exponent.clamp(*_EXPONENTS)
    factor = torch.ldexp(torch.ones_like(exponent, dtype=torch.float64), -exponent)
    centred, rest = total * factor, rest * factor
    if least is not None:
        centred = (centred - centred.mean(-1, keepdim=True)) + rest
        # again, because the first mean is rounded in units of the mean itself
        centred = centred - centred.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    rstd = torch.rsqrt(variance + eps * factor * factor)
    xhat = centred * rstd
    size = xhat.abs() if least is None else torch.maximum(xhat.abs(), variance.sqrt() * rstd * least)
    return xhat, size, rstd * factor


def _scales(problem: Problem, centre: bool, summands: Sequence[str]) -> Scales:
    """Returns the scale of each result; without elements the values, which are 0, are their own."""
    given = {name: value for name, value in problem.inputs.items() if value is not None}
    if not given["x"].numel():
        return {}
    parts = [given[name].double() for name in summands]
    least = _LEAST_FLOAT64 if any(given[name].dtype == torch.float64 for name in summands) else _LEAST
    xhat, size, rstd = _rows(parts, float(problem.params["eps"]), least if centre else None)
    weight, bias = (abs(given[name].double()) if name in given else None for name in ("weight", "bias"))
    y = size if weight is None else size * weight
    found: dict[str, tuple[Tensor, Tensor | None]] = {"y": (y if bias is None else y + bias, None)}
    found["s"] = sum(abs(part) for part in parts[1:]) + abs(parts[0]), None
    if problem.upstream:
        dy, ds = (problem.upstream[n].double().abs() if n in problem.upstream else None for n in ("y", "s"))
        dy = torch.zeros_like(size) if dy is None else dy
        grown = dy if weight is None else dy * weight
        terms = grown + xhat.abs() * (grown * xhat.abs()).mean(-1, keepdim=True)
        terms = rstd * (terms + grown.mean(-1, keepdim=True) if centre else terms)
        terms = terms if ds is None else terms + ds
        found |= dict.fromkeys(("dx", "dresidual"), (terms, None))
        sums = {"dweight": dy * size, "dbias": dy, "dinput_bias": terms}
        for name, each in sums.items():
            flat = each.reshape(-1, each.shape[-1])
            found[name] = flat.sum(0), flat.square().sum(0).sqrt()
    return {name: each for name, each in found.items() if name in problem.results}


def _layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float) -> Tensor:
    weight, bias = (None if each is None else each.to(x.dtype) for each in (weight, bias))
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def _centred_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float) -> Tensor:
    """Returns the same, over the real numbers. Multiplies by n before it subtracts the sum, not by 1 / n afterwards.

    float64 computes n x and most sums exactly, so intervals keep the digits of a number near the mean of its row.
    """
    count = max(x.shape[-1], 1)
    centred = (count * x - x.sum(-1, keepdim=True)) / count
    xhat = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    y = xhat if weight is None else xhat * weight
    return y if bias is None else y + bias


def _rms_norm(x: Tensor, weight: Tensor | None = None, *, eps: float) -> Tensor:
    weight = None if weight is None else weight.to(x.dtype)
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


def _of_sum(norm: Callable[..., Tensor], count: int) -> Callable[..., Any]:
    """Returns the norm of the sum of the first `count` operands, with that sum."""

    def function(x: Tensor, *others: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        s = sum(others[: count - 1], x)
        return norm(s, *others[count - 1 :], eps=eps), s

    return function


def _normalization(name: str, norm: Callable[..., Tensor], operands: Sequence[Operand], eps: float, summary: str) -> Op:
    """Returns the op that normalises the sum of all operands except `weight` and `bias`."""
    summands = [each.name for each in operands if each.name not in ("weight", "bias")]
    alone = len(summands) == 1
    centres = norm is _layer_norm
    function, baseline = (
        each if alone else _of_sum(each, len(summands)) for each in (_centred_norm if centres else norm, norm)
    )
    made = Shipped(
        function,
        tuple(operands),
        ("y",) if alone else ("y", "s"),
        scales=partial(_scales, centre=centres, summands=summands),
        summed=["d" + each.name for each in operands if each.role != "data"],
    )
    return made.op(
        name,
        Rowwise(),
        baseline=baseline,
        params={"eps": eps},
        gate="scaled",
        landmarks=Landmarks(of="x"),
        summary=summary,
    )


_SUM = Operand("x"), Operand("residual")
_WEIGHT = Operand("weight", role="scale", optional=True)
_BOTH = _WEIGHT, Operand("bias", role="shift", optional=True)
_INPUT_BIAS = Operand("input_bias", role="shift")

NORMS = (
    _normalization(
        "layer_norm", _layer_norm, (Operand("x"), *_BOTH), 1e-5, "(x - mean) / sqrt(var + eps) * weight + bias"
    ),
    _normalization("layer_norm_residual", _layer_norm, (*_SUM, *_BOTH), 1e-5, "layer norm of s = x + residual, and s"),
    _normalization(
        "layer_norm_residual_bias",
        _layer_norm,
        (*_SUM, _INPUT_BIAS, *_BOTH),
        1e-5,
        "layer norm of s = x + residual + input_bias, and s",
    ),
    _normalization("rms_norm", _rms_norm, (Operand("x"), _WEIGHT), 1e-6, "x / sqrt(mean(x^2) + eps) * weight"),
    _normalization("rms_norm_residual", _rms_norm, (*_SUM, _WEIGHT), 1e-6, "RMS norm of s = x + residual, and s"),
)


def _softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1) if x.numel() else x


def _softmax_scales(problem: Problem) -> Scales:
    x = problem.inputs["x"]
    if x is None or not x.numel():
        return {}
    wide = x.double()
    below = (wide.amax(-1, keepdim=True) - wide) * (min(2.0**-23 / torch.finfo(x.dtype).eps, 1.0) / 2)
    y = _softmax(wide)
    y = y + (y * below).nan_to_num(0.0)
    found: dict[str, tuple[Tensor, Tensor | None]] = {"y": (y, None)}
    if "dx" in problem.results:
        g = problem.upstream["y"].double().abs()
        found["dx"] = y * (g + (g * y).sum(-1, keepdim=True)), None
    return {name: scale for name, scale in found.items() if name in problem.results}


SOFTMAX = Shipped(_softmax, (Operand("x"),), scales=_softmax_scales).op(
    "softmax", Rowwise(), gate="scaled", normalised=("x",), summary="exp(x) / sum(exp(x)) over the last dimension"
)
