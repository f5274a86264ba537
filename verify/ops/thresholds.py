"""Finds where a gate curve (gelu, silu) changes its behaviour: its regimes, and the numbers between them.

All these curves have the same shape. They fulfil y(x) - y(-x) = x, decay to zero on the left, have one minimum, and
approach y = x on the right. So the same points matter: where a format underflows, where the slope is zero, and where y
rounds to x. This module solves for these points.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from mpmath import mp

from verify.ops.formula import Curve
from verify.ops.geometry import Params
from verify.ops.op import Landmarks, Regime

_FORMATS = (torch.float32, torch.bfloat16, torch.float16)  # their thresholds bound the bins of every error curve
_PREC = 80  # bits of working precision
_CLOSER = 16  # bits by which an interval shrinks if one of its ends is next to the crossing


def crossing(function: Callable[[Any], Any], level: Any, low: float, high: float) -> float:
    """Returns the x in [low, high] where an increasing `function` reaches `level`.

    Uses the Illinois method, which is fast: each process with a kernel of a gate needs twenty crossings at its start.
    """

    def beyond(x: Any) -> Any:
        """Returns a number that is negative below the crossing and nearly linear, also in an exponential tail."""
        value = function(x)
        return mp.log(value / level) * mp.sign(level) if level and value / level > 0 else value - level

    with mp.workprec(_PREC):
        below, above = mp.mpf(low), mp.mpf(high)
        under, over = beyond(below), beyond(above)
        last = 0
        while float(below) != float(above):
            # If an end is next to the crossing, a point this far from it lies beyond and replaces the other end.
            least = mp.ldexp(above - below, -_CLOSER)
            middle = below + (above - below) * under / (under - over)
            middle = min(max(middle, below + least), above - least)
            found = beyond(middle)
            side = -1 if found < 0 else 1
            if side < 0:
                below, under, over = middle, found, over / 2 if last == side else over
            else:
                above, over, under = middle, found, under / 2 if last == side else under
            last = side
    return float(above)


def slope_root(curve: Curve) -> float:
    """Returns the x where the curve has its minimum."""
    return crossing(lambda x: curve.slope.mp(x, prec=_PREC), 0, -1.5, -0.5)


def underflow(curve: Curve, exponent: int, far: float) -> float:
    """Returns the x in the left tail where |y| = 2^exponent. `far` is an x still further left."""
    return crossing(lambda x: abs(curve.value.mp(x, prec=_PREC)), mp.ldexp(1, exponent), far, slope_root(curve))


def saturation(curve: Curve, precision: int, far: float) -> float:
    """Returns the x on the right from which y rounds to x: x - y(x) = |y(-x)| = 2^-(precision + 1) x."""
    return crossing(lambda x: -abs(curve.value.mp(-x, prec=_PREC)) / x, -mp.ldexp(1, -precision - 1), 1.0, -far)


def slope_extreme(curve: Curve, low: float, high: float) -> float:
    """Returns the x in [low, high] where the slope is largest, by the sign of the slope's central difference."""

    def falling(x: Any) -> Any:
        step = mp.ldexp(1, -20)
        return curve.slope.mp(x - step, prec=_PREC) - curve.slope.mp(x + step, prec=_PREC)

    return crossing(falling, 0, low, high)


def _ends(kind: torch.dtype) -> tuple[int, int, int]:
    """Returns the bits of precision, and the exponents of the smallest subnormal and the smallest normal number."""
    found = torch.finfo(kind)
    precision, normal = 1 - int(math.log2(found.eps)), int(math.log2(found.smallest_normal))
    return precision, normal - precision + 1, normal


def gate_boundaries(curve: Curve, far: float) -> tuple[float, ...]:
    """Returns all numbers at which the curve or its slope starts to round differently in some format."""
    found = [slope_root(curve), -slope_root(curve)]
    peak = slope_extreme(curve, 0.5, 4.0)
    found += [peak, -peak]
    for precision, subnormal, normal in map(_ends, _FORMATS):
        found += [underflow(curve, subnormal - 1, far), underflow(curve, normal, far)]
        saturated = saturation(curve, precision, far)
        found += [saturated, -saturated]
        # y = x / 2 becomes subnormal, then zero.
        for exponent in (normal, normal + 1, subnormal, subnormal + 1):
            found += [2.0**exponent, -(2.0**exponent)]
    return tuple(sorted(set(found)))


def gate_regimes(curve: Curve, far: float, tail: float) -> tuple[Regime, ...]:
    """Returns the named regions, bounded by the numbers for float32. `tail` is where the left tail begins."""
    precision, subnormal, _ = _ends(torch.float32)
    vanished = underflow(curve, subnormal - 1, far)
    saturated = saturation(curve, precision, far)
    root = slope_root(curve)
    edges = (
        ("vanishing", -mp.inf, vanished),
        ("negative tail", vanished, tail),
        ("negative", tail, root - 0.25),
        ("slope root", root - 0.25, root + 0.25),
        ("around zero", root + 0.25, -root - 0.25),
        ("positive", -root - 0.25, saturated),
        ("saturated", saturated, mp.inf),
    )
    return tuple(Regime(name, float(low), float(high)) for name, low, high in edges)


def gate_landmarks(curve: Callable[[Params], Curve], far: float, tail: float) -> Landmarks:
    """Returns the landmarks of an op whose parameters choose the curve."""
    regimes = lru_cache(lambda chosen: gate_regimes(chosen, far, tail))
    boundaries = lru_cache(lambda chosen: gate_boundaries(chosen, far))
    return Landmarks(regimes=lambda params: regimes(curve(params)), boundaries=lambda params: boundaries(curve(params)))
