"""Adds to `FUNCTIONS` those special functions of PyTorch that Arb and mpmath have too.

The error bound of each float64 function is at least twice the largest error seen against Arb, over all magnitudes.
Where PyTorch is too inaccurate, a formula replaces it: its Bessel functions of the first and second kind err by up to
4e-7 between 3 and 30, and its trigamma by 5e-10. Polygamma has no float64 bound at negative arguments; Arb decides
there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import flint
import torch
from mpmath import mp
from torch import Tensor

from verify.ops.graph.arithmetic import POLE
from verify.ops.graph.functions import FUNCTIONS, add, square_above, square_below

__all__ = ["FUNCTIONS", "polygamma"]  # import FUNCTIONS from here, where it is complete

arb = flint.arb
_special = torch.special
_NAN = (math.nan, math.nan)
_POSITIVE = (0.0, math.inf)


def _is_pole(x: Any) -> bool:
    """True if an Arb ball, or a number of mpmath, is exactly 0 or a negative integer."""
    if isinstance(x, arb):
        return bool(x <= 0 and x.is_exact() and x.floor() == x)
    return bool(x <= 0 and mp.isint(x))


def _but_at_poles(value: Callable[[Any], Any], function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a function that is `value` at poles and `function` elsewhere."""
    return lambda x: value(x) if _is_pole(x) else function(x)


# -- the gamma family -------------------------------------------------------------------------------------


def _jump(x: Any) -> Any:
    """Returns the value at a pole between inf and -inf: POLE at 0, where the sign of the zero decides, else NaN."""
    return POLE if x == 0 else math.nan


def _gamma_slope(lo: Tensor, hi: Tensor) -> Tensor:
    """Returns a bound of the slope of lgamma between two numbers; infinity if a pole may lie between."""
    return torch.where(
        (lo > 0) | (lo == hi), torch.maximum(*(torch.digamma(end).abs() for end in (lo, hi))) * (1 + 1e-9), math.inf
    )


def _arb_lgamma(x: Any) -> Any:
    if x > 0:
        return x.lgamma()
    return (arb.pi() / abs(x * (x * arb.pi()).sin())).log() - (-x).lgamma()


def _mp_lgamma(x: Any) -> Any:
    return mp.loggamma(x) if x > 0 else mp.log(mp.pi / abs(x * mp.sinpi(x))) - mp.loggamma(-x)


add(
    "lgamma",
    torch.lgamma,
    _but_at_poles(lambda x: math.inf, _arb_lgamma),
    _but_at_poles(lambda x: math.inf, _mp_lgamma),
    (math.inf, math.inf),
    shape="bent",
    slope=_gamma_slope,
    ulps=16.0,
    spread=lambda x: torch.where(x < 0, 128.0 + 32.0 * torch.lgamma(-x).abs(), 0.0),  # of the subtracted terms
    exact=(1.0, 2.0),
)


def _zeta(order: int, x: Tensor) -> Tensor:
    """Returns Hurwitz's zeta function for x >= 0, and NaN for negative x.

    PyTorch's does not end for some negative x, because it counts up from there, and is 0 too early for large x.
    """
    found = _special.zeta(torch.full_like(x, order), x.clamp(0.0, 1e9))
    far = (1 / x) ** (order - 1) * (1 / (order - 1) + 0.5 / x)
    return torch.where(x > 1e8, far, found).masked_fill(x < 0, math.nan)


def _polygamma_slope(order: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns a function that bounds the slope of polygamma between two numbers."""

    def slope(lo: Tensor, hi: Tensor) -> Tensor:
        steepest = math.factorial(order + 1) * _zeta(order + 2, lo)
        return torch.where((lo > 0) & (steepest > 1e-300), steepest * (1 + 1e-9), math.inf)

    return slope


def _digamma_spread(x: Tensor) -> Tensor:
    """Bounds the error of digamma, in units of 2^-52.

    For negative x, PyTorch's formula contains the tangent of a rounded argument, which is steep near integers.
    """
    turned = math.pi / torch.tan(math.pi * (x - x.trunc()))
    return torch.where(x < 0, 256.0 + 64.0 * torch.log1p(x.abs()) + 16.0 * turned * turned, 32.0)


add(
    "digamma",
    torch.digamma,
    _but_at_poles(_jump, arb.digamma),
    _but_at_poles(_jump, mp.digamma),
    (math.nan, math.inf),
    shape="bent",
    slope=_polygamma_slope(0),
    ulps=32.0,
    spread=_digamma_spread,
)


def polygamma(order: int) -> str:
    """Returns the name of the derivative of this order of digamma. Adds it to `FUNCTIONS` at the first call."""
    if order == 0:
        return "digamma"
    name = f"polygamma {order}"
    if name not in FUNCTIONS:
        sign = -math.factorial(order) * (-1) ** order
        at_pole = (lambda x: math.inf) if order % 2 else _jump
        add(
            name,
            lambda x: sign * _zeta(order + 1, x),
            _but_at_poles(at_pole, lambda x: flint.acb(x).polygamma(order).real),
            _but_at_poles(at_pole, lambda x: mp.polygamma(order, x) if x > -1e5 else math.nan),
            (math.nan, 0.0),
            shape="bent",
            slope=_polygamma_slope(order),
            ulps=128.0,
        )
    return name


for _order in (1, 2, 3):
    polygamma(_order)

# -- the error function and its inverses ------------------------------------------------------------------


def _arb_erfcx(x: Any) -> Any:
    if x > 3:
        return (x * x).hypgeom_u(arb(0.5), arb(0.5)) / arb.pi().sqrt()
    return (x * x).exp() * x.erfc()


def _mp_erfcx(x: Any) -> Any:
    return mp.hyperu(0.5, 0.5, x * x) / mp.sqrt(mp.pi) if x > 3 else mp.exp(x * x) * mp.erfc(x)


def _arb_log_ndtr(x: Any) -> Any:
    z = -x / arb(2).sqrt()
    if z > 3:
        return (_arb_erfcx(z) / 2).log() - z * z
    return (z.erfc() / 2).log() if not x > 0 else (-((-z).erfc()) / 2).log1p()


def _mp_log_ndtr(x: Any) -> Any:
    z = -x / mp.sqrt(2)
    if z > 3:
        return mp.log(_mp_erfcx(z) / 2) - z * z
    return mp.log(mp.erfc(z) / 2) if x <= 0 else mp.log1p(-mp.erfc(-z) / 2)


def _mp_ndtri(p: Any) -> Any:
    """Solves ndtr(y) = p by Newton's method for p <= 0.5, where no digit of p is lost."""
    if p > 0.5:
        return -_mp_ndtri(mp.fsub(1, p, exact=True))
    if p > 0.25:
        return mp.sqrt(2) * mp.erfinv(mp.fsub(2 * p, 1, exact=True))
    near = float(p)
    y = mp.mpf(_special.ndtri(torch.tensor(near, dtype=torch.float64)).item()) if near else -mp.sqrt(-2 * mp.log(p))
    for _ in range(int(math.log2(mp.prec)) + 8):
        half = mp.erfc(-y / mp.sqrt(2)) / 2
        step = (half - p) * mp.exp(y * y / 2) * mp.sqrt(2 * mp.pi)
        y -= step / (1 + y * step / 2)
        if abs(step) < abs(y) * mp.ldexp(1, -mp.prec // 2 - 8):
            break
    return y


add(
    "erfcx",
    _special.erfcx,
    _arb_erfcx,
    _mp_erfcx,
    (math.inf, 0.0),
    shape="down",
    codomain=_POSITIVE,
    ulps=square_below,
)
add(
    "log_ndtr",
    _special.log_ndtr,
    _arb_log_ndtr,
    _mp_log_ndtr,
    (-math.inf, 0.0),
    codomain=(-math.inf, 0.0),
    ulps=square_above,
)
add("erfinv", torch.erfinv, arb.erfinv, mp.erfinv, _NAN, domain=(-1.0, 1.0), exact=(0.0,), ulps=32.0)
add(
    "ndtri",
    _special.ndtri,
    lambda p: -(2 * p).erfcinv() * arb(2).sqrt(),
    _mp_ndtri,
    _NAN,
    domain=(0.0, 1.0),
    exact=(0.5,),
    ulps=64.0,
    spread=8.0,
)

# -- Bessel functions -------------------------------------------------------------------------------------

_NODES = 80  # of the trapezoidal rule over half a turn, whose error is about J_160(|x|)
_FAR = 32.0  # PyTorch's asymptotic series is used from here on


@lru_cache(maxsize=1)
def _nodes() -> tuple[list[float], list[float]]:
    """Returns sin(t), and the sum of (-1)^k / k cos(2 k t), at the midpoints t of equal parts of a quarter turn."""
    with mp.workprec(120):
        turns = [mp.pi * (place + mp.mpf(0.5)) / _NODES for place in range(_NODES // 2)]
        weights = [mp.fsum((-1) ** k * mp.cos(2 * k * t) / k for k in range(1, _NODES // 2)) for t in turns]
        return [float(mp.sin(t)) for t in turns], [float(weight) for weight in weights]


def _bessel(order: int, second: bool) -> Callable[[Tensor], Tensor]:
    """Returns the Bessel function J (or Y if `second`) of order 0 or 1 in float64.

    Uses Bessel's integral and Neumann's series below 32, and PyTorch's asymptotic series from there on.
    """
    far = getattr(_special, f"bessel_{'jy'[second]}{order}")

    def function(x: Tensor) -> Tensor:
        near = x.clamp(-_FAR, _FAR)
        j0, j1, series, slope = (torch.zeros_like(near) for _ in range(4))
        for sine, weight in zip(*_nodes(), strict=True):
            wave, turned = torch.cos(near * sine), torch.sin(near * sine) * sine
            j0, j1 = j0 + wave, j1 + turned
            series, slope = series + weight * wave, slope + weight * turned
        j0, j1, series, slope = (each * (2 / _NODES) for each in (j0, j1, series, slope))
        if second:
            log = torch.log(near) - 0.11593151565841245  # log(x / 2) + Euler's constant
            y0 = (log * j0 - 2 * series) * (2 / math.pi)
            found = y0 if order == 0 else (log * j1 - j0 / near - 2 * slope) * (2 / math.pi)
            found = torch.where(near == 0, -math.inf, found)
        else:
            found = j1 if order else j0
        return torch.where(x.abs() < _FAR, found, far(x))

    return function


def _bessel_spread(second: bool, order: int) -> Callable[[Tensor], Tensor]:
    """Returns a function that bounds the absolute error of `_bessel`, in units of 2^-52."""

    def spread(x: Tensor) -> Tensor:
        size = x.abs()
        reach = 8.0 * size + 1e-290 if order and not second else 8.0 * (1 + size)  # sines of subnormal numbers are 0
        if second:
            reach = reach * (1 + torch.log(size.clamp(min=1e-300)).abs()) + (8 / size if order else 0.0)
        return torch.where(size < _FAR, reach, torch.where(size < 1e9, 32 + 4 * size.sqrt(), math.inf))

    return spread


J0, J1, Y0, Y1 = (_bessel(order, second) for second in (False, True) for order in (0, 1))


def _steep(lo: Tensor) -> Tensor:
    """Returns a bound of |Y0| and |Y1| above `lo`."""
    return 0.64 / lo.abs() + 0.6


_SLOPES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "bessel_j0": lambda lo, hi: J1((lo + hi) / 2).abs() + (hi - lo),
    "bessel_j1": lambda lo, hi: _quotient_slope(J0, J1, (lo + hi) / 2) + (hi - lo),
    "bessel_y0": lambda lo, hi: Y1((lo + hi) / 2).abs() + (hi - lo) * _steep(lo) * (1 + 1 / lo.abs()),
    "bessel_y1": lambda lo, hi: (
        _quotient_slope(Y0, Y1, (lo + hi) / 2) + (hi - lo) * 2 * _steep(lo) * (1 + 1 / lo.abs()) ** 2
    ),
}


def _quotient_slope(zeroth: Callable[[Tensor], Tensor], first: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Returns |f0(x) - f1(x) / x|, the slope of the function of order 1."""
    return torch.where(x == 0, 0.5, (zeroth(x) - first(x) / x).abs())


for _place, (_name, _function) in enumerate(zip(_SLOPES, (J0, J1, Y0, Y1), strict=True)):
    _first, _second = _place % 2, _place > 1
    add(
        _name,
        _function,
        lambda x, kind=_name[-2], order=_first: getattr(x, f"bessel_{kind}")(order),
        lambda x, kind=_name[-2], order=_first: getattr(mp, f"bessel{kind}")(order, x),
        (math.nan if _second else 0.0, 0.0),
        shape="bent",
        slope=_SLOPES[_name],
        spread=_bessel_spread(_second, _first),
        codomain=(-math.inf, 0.53) if _second else (-0.6, 1.0),
        domain=_POSITIVE if _second else (-math.inf, math.inf),
        ulps=16.0,
        exact=() if _second else (0.0,),
    )


def _scaled(order: int) -> Callable[[Any], Any]:
    return lambda x: abs(x).bessel_i(order, scaled=True) * (x.sgn() if order else 1)


def _mp_scaled(order: int) -> Callable[[Any], Any]:
    return lambda x: mp.besseli(order, x) * mp.exp(-abs(x))


add("i0", torch.i0, lambda x: x.bessel_i(0), lambda x: mp.besseli(0, x), (math.inf, math.inf), shape="even up",
    codomain=(1.0, math.inf), exact=(0.0,), ulps=32.0)  # fmt: skip
add(
    "i1",
    _special.i1,
    lambda x: x.bessel_i(1),
    lambda x: mp.besseli(1, x),
    (-math.inf, math.inf),
    exact=(0.0,),
    ulps=32.0,
)
add("i0e", _special.i0e, _scaled(0), _mp_scaled(0), (0.0, 0.0), shape="even down", codomain=(0.0, 1.0), exact=(0.0,),
    ulps=32.0)  # fmt: skip
add("i1e", _special.i1e, _scaled(1), _mp_scaled(1), (0.0, 0.0), shape="waves", codomain=(-0.22, 0.22), exact=(0.0,),
    ulps=32.0)  # fmt: skip


def _sinc_pi(x: Tensor) -> Tensor:
    whole = x.round()
    divisor = torch.where(x == 0, 1.0, x) * math.pi
    return torch.where(x == 0, 1.0, torch.sin((x - whole) * math.pi) * (1 - 2 * (whole.remainder(2.0))) / divisor)


add("sinc", _sinc_pi, lambda x: x.sinc_pi(), mp.sincpi, (0.0, 0.0), shape="bent", codomain=(-0.22, 1.0), ulps=16.0,
    slope=lambda lo, hi: torch.full_like(lo, 1.4), exact=lambda x, y: x == x.round())  # fmt: skip


def _sinc(x: Tensor) -> Tensor:
    divisor = torch.where(x == 0, 1.0, x)
    return torch.where(x == 0, 1.0, torch.sin(divisor) / divisor)


add("spherical_bessel_j0", _sinc, arb.sinc, mp.sinc, (0.0, 0.0), shape="waves", codomain=(-0.22, 1.0), exact=(0.0,))


def _arb_k(order: int, scaled: bool) -> Callable[[Any], Any]:
    """Returns the modified Bessel function K, by a confluent hypergeometric function.

    Arb's own K takes a second where its sum cancels.
    """

    def function(x: Any) -> Any:
        found = (2 * x).hypgeom_u(arb(order) + arb(0.5), arb(2 * order + 1)) * arb.pi().sqrt() * (2 * x) ** order
        return found if scaled else found * (-x).exp()

    return function


def _near_zero(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Replaces K of order 0 by its logarithm near 0, where PyTorch halves subnormal numbers."""
    return lambda x: torch.where(x < 1e-30, 0.11593151565841245 - torch.log(x), function(x))


_K0, _K1 = _special.modified_bessel_k0, _special.modified_bessel_k1
_K0E, _K1E = _special.scaled_modified_bessel_k0, _special.scaled_modified_bessel_k1
for _name, _function, _slope in (
    ("modified_bessel_k0", _near_zero(_K0), lambda lo, hi: _K1(lo)),
    ("modified_bessel_k1", _K1, lambda lo, hi: _K0(lo) + _K1(lo) / lo),
    ("scaled_modified_bessel_k0", _near_zero(_K0E), lambda lo, hi: (_K1E(lo) - _K0E(lo)).abs()),
    ("scaled_modified_bessel_k1", _K1E, lambda lo, hi: (_K0E(lo) - _K1E(lo) + _K1E(lo) / lo).abs()),
):
    _first, _is_scaled = int(_name[-1]), "scaled" in _name
    add(
        _name,
        _function,
        _arb_k(_first, _is_scaled),
        lambda x, order=_first, scaled=_is_scaled: mp.besselk(order, x) * (mp.exp(x) if scaled else 1),
        (math.nan, 0.0),
        shape="down",
        slope=_slope,
        domain=_POSITIVE,
        codomain=_POSITIVE,
        ulps=32.0,
    )
