"""Solves for the numbers at which a gate curve (gelu, silu) changes its behaviour, by its formula in mpmath."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from mpmath import mp

from tests.ops.formulas import Curve
from verify.ops.elementwise import Thresholds

FORMATS = (torch.float32, torch.bfloat16, torch.float16)
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
    return crossing(lambda x: curve.slope(x, prec=_PREC), 0, -1.5, -0.5)


def underflow(curve: Curve, exponent: int, far: float) -> float:
    """Returns the x in the left tail where |y| = 2^exponent. `far` is an x still further left."""
    return crossing(lambda x: abs(curve.value(x, prec=_PREC)), mp.ldexp(1, exponent), far, slope_root(curve))


def saturation(curve: Curve, precision: int, far: float) -> float:
    """Returns the x on the right from which y rounds to x: x - y(x) = |y(-x)| = 2^-(precision + 1) x."""
    return crossing(lambda x: -abs(curve.value(-x, prec=_PREC)) / x, -mp.ldexp(1, -precision - 1), 1.0, -far)


def slope_extreme(curve: Curve, low: float, high: float) -> float:
    """Returns the x in [low, high] where the slope is largest, by the sign of the slope's central difference."""

    def falling(x: Any) -> Any:
        step = mp.ldexp(1, -20)
        return curve.slope(x - step, prec=_PREC) - curve.slope(x + step, prec=_PREC)

    return crossing(falling, 0, low, high)


def _ends(kind: torch.dtype) -> tuple[int, int, int]:
    """Returns the bits of precision, and the exponents of the smallest subnormal and the smallest normal number."""
    found = torch.finfo(kind)
    precision, normal = 1 - int(math.log2(found.eps)), int(math.log2(found.smallest_normal))
    return precision, normal - precision + 1, normal


def solved(curve: Curve, far: float, tail: float) -> Thresholds:
    """The thresholds of a curve. `far` is a number where |y| is below 2^-200."""
    vanishing, subnormal, saturated = [], [], []
    for precision, smallest, normal in map(_ends, FORMATS):
        vanishing.append(underflow(curve, smallest - 1, far))
        subnormal.append(underflow(curve, normal, far))
        saturated.append(saturation(curve, precision, far))
    peak = slope_extreme(curve, 0.5, 4.0)
    return Thresholds(slope_root(curve), peak, *map(tuple, (vanishing, subnormal, saturated)), tail)  # type: ignore[arg-type]
