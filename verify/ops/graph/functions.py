"""Defines the real functions of one argument that programs use: in float64 with an error bound, in Arb and in mpmath.

The bound of each float64 function holds on CPUs and GPUs. It is more than four times the error that the libraries
state: the CUDA C++ Programming Guide (mathematical functions), SLEEF and PyTorch's own kernels. tests/ops/graph
compares every entry with Arb.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import flint
import torch
from mpmath import mp
from torch import Tensor

arb = flint.arb


@dataclass(frozen=True)
class Function:
    """One function with three evaluations, and the properties that map an interval through it.

    `shape` chooses how an interval is mapped:

    - "up", "down": monotone, by the ends of the interval;
    - "even up", "even down": even and monotone in |x|, by the ends of |x|;
    - "waves": the slope is at most 1;
    - "bent": the slope between a and b is at most `slope(a, b)`.
    """

    name: str
    torch: Callable[[Tensor], Tensor]
    arb: Callable[[Any], Any]
    mp: Callable[[Any], Any]
    limits: tuple[Any, Any]  # values at -inf and inf
    shape: Literal["up", "down", "even up", "even down", "waves", "bent"] = "up"
    ulps: float | Callable[[Tensor], Tensor] = 8.0  # bound of the error of `torch`, relative to its result, in 2^-52
    codomain: tuple[float, float] = (-math.inf, math.inf)  # every result lies inside
    domain: tuple[float, float] = (-math.inf, math.inf)
    # arguments at which `torch` is exact, or a function of arguments and results that returns a mask of them
    exact: tuple[float, ...] | Callable[[Tensor, Tensor], Tensor] = ()
    spread: float | Callable[[Tensor], Tensor] = 0.0  # absolute error in addition to `ulps`, in 2^-52
    slope: Callable[[Tensor, Tensor], Tensor] | None = None


FUNCTIONS: dict[str, Function] = {}


def add(name: str, *rest: Any, **options: Any) -> None:
    """Adds a function to `FUNCTIONS`. The arguments are the fields of `Function`."""
    FUNCTIONS[name] = Function(name, *rest, **options)


_ROOT_HALF = math.sqrt(0.5)
_INFINITE = (-math.inf, math.inf)
_MANY_BITS = 4_096
_LONG, _SHORT = 1_024, 64  # bits of precision and of x; mp.erfc is faster for fewer, and for a longer x


def _ndtr(x: Tensor) -> Tensor:
    return torch.special.erfc(x * -_ROOT_HALF) * 0.5  # type: ignore[no-any-return]


def _normal(x: Tensor) -> Tensor:
    return torch.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))


def square_ulps(x: Tensor) -> Tensor:
    """Bounds the error of exp(-x^2 / 2) and the like.

    The exponent is rounded. Its absolute error, which grows with x^2, becomes the relative error of the result.
    """
    return 16.0 + 4.0 * (x * x).clamp(max=1e300)


def square_below(x: Tensor) -> Tensor:
    """Bounds the error of a function that falls like exp(-x^2) for negative x, and is near a constant above 1."""
    return square_ulps(x.clamp(max=1.0))


def square_above(x: Tensor) -> Tensor:
    """Bounds the error of a function that falls like exp(-x^2) for positive x, and is near a constant below -1."""
    return square_ulps(x.clamp(min=-1.0))


def _arb_sigmoid(x: Any) -> Any:
    """Uses the exponential of -|x|, which cannot overflow, and no subtraction."""
    if x < 0:
        grown = x.exp()
        return grown / (1 + grown)
    return 1 / (1 + (-x).exp())


def _arb_ndtr(x: Any) -> Any:
    """Uses Kummer's function of x^2 / 2 where erfc has no short expansion. For a short x, that takes half the time."""
    if x > 0 and flint.ctx.prec > _MANY_BITS and x.is_exact() and x * x < 0.6 * flint.ctx.prec:
        half = x * x / 2
        return arb(0.5) + x * (-half).exp() / (2 * arb.pi()).sqrt() * half.hypgeom_1f1(1, 1.5)
    return (-x * arb(0.5).sqrt()).erfc() / 2


def _mp_ndtr(x: Any) -> Any:
    """Uses a Taylor series of a short x at many bits: there mp.erfc takes ten times as long."""
    square = mp.mpf(x * x)
    if mp.prec < _LONG or not x or x.man.bit_length() > _SHORT or square > 1.25 * mp.prec:
        return mp.erfc(-x / mp.sqrt(2)) / 2
    lost = 0 if x > 0 else int(square) + 2 * max(0, mp.mag(x)) + 8  # in 1/2 - part
    return +_series_of_ndtr(x, mp.prec + lost)


def _series_of_ndtr(x: Any, bits: int) -> Any:
    """Returns ndtr(x) with an absolute error below 2^-bits, by the Taylor series of ndtr - 1/2 in integers.

    Each term has the factor x^2 / 2, which is a short integer and a shift for a short x. A rounding error changes all
    later terms. The sum of these changes alternates, so it is at most that error.
    """
    places = bits + 64
    square, shift = x.man * x.man, 1 - 2 * x.exp
    term = total = x.man << places + x.exp if places + x.exp >= 0 else x.man >> -places - x.exp
    n = 0
    while term:
        n += 1
        term = (term * square >> shift if shift >= 0 else term * square << -shift) // n
        total += -(term // (2 * n + 1)) if n % 2 else term // (2 * n + 1)
    with mp.workprec(places):
        part = mp.ldexp(mp.mpf(total), -places) / mp.sqrt(2 * mp.pi)
        return mp.mpf(0.5) + part if x > 0 else mp.mpf(0.5) - part


def _torch_sigmoid(x: Tensor) -> Tensor:
    """Uses exp(x) below -40. PyTorch's sigmoid is 0 where exp(-x) overflows, though the result is not 0 yet."""
    return torch.where(x < -40, torch.exp(x), torch.sigmoid(x))


def _half_pi(sign: int) -> Any:
    return lambda arithmetic: arithmetic.pi() * arithmetic.number(sign * 0.5)


def _mp_exp(x: Any) -> Any:
    """Returns e^x; 0 for x below -2^64, which mpmath cannot evaluate and which lies below every other number."""
    negative, _, exponent, size = x._mpf_
    return mp.exp(x) if not negative or exponent + size <= 64 else mp.zero


add("exp", torch.exp, arb.exp, _mp_exp, (0.0, math.inf), codomain=(0.0, math.inf), exact=(0.0,))


def _whole(x: Tensor) -> Tensor:
    """True for integers whose power of two is a normal float64 number."""
    return (x == x.round()) & (x >= -1022) & (x <= 1023)


def _exp2(x: Tensor) -> Tensor:
    """Returns 2^x. For an integer x, it sets the exponent bits, which is exact."""
    whole = _whole(x)
    bits = (torch.where(whole, x, 0.0).to(torch.int64) + 1023) << 52
    return torch.where(whole, bits.view(torch.float64), torch.exp2(x))


add(
    "exp2",
    _exp2,
    lambda x: arb(2) ** x,
    lambda x: mp.power(2, x),
    (0.0, math.inf),
    codomain=(0.0, math.inf),
    exact=lambda x, y: _whole(x),
)
add("expm1", torch.expm1, arb.expm1, mp.expm1, (-1.0, math.inf), codomain=(-1.0, math.inf), exact=(0.0,))
add("log", torch.log, arb.log, mp.log, (math.nan, math.inf), domain=(0.0, math.inf), exact=(1.0,))


def _log2(x: Tensor) -> Tensor:
    """Returns log2(x). For a power of two, it reads the exponent, which is exact."""
    mantissa, exponent = torch.frexp(x)
    return torch.where(mantissa == 0.5, exponent.to(torch.float64) - 1, torch.log2(x))


def _arb_log2(x: Any) -> Any:
    mantissa, exponent = x.man_exp() if x.is_exact() else (0, 0)
    return arb(exponent) if mantissa == 1 else x.log() / arb.const_log2()


add(
    "log2",
    _log2,
    _arb_log2,
    lambda x: mp.mpf(x.exp) if x.man == 1 else mp.log(x) / mp.log(2),
    (math.nan, math.inf),
    domain=(0.0, math.inf),
    exact=lambda x, y: torch.frexp(x)[0] == 0.5,
)
add(
    "log10",
    torch.log10,
    lambda x: x.log() / arb.const_log10(),
    mp.log10,
    (math.nan, math.inf),
    domain=(0.0, math.inf),
    exact=(1.0,),
)
add("log1p", torch.log1p, arb.log1p, mp.log1p, (math.nan, math.inf), domain=(-1.0, math.inf), exact=(0.0,))
add(
    "sqrt",
    torch.sqrt,
    arb.sqrt,
    mp.sqrt,
    (math.nan, math.inf),
    domain=(0.0, math.inf),
    codomain=(0.0, math.inf),
    exact=(0.0,),
    ulps=1.0,
)
add(
    "rsqrt",
    torch.rsqrt,
    arb.rsqrt,
    lambda x: 1 / mp.sqrt(x),
    (math.nan, 0.0),
    shape="down",
    domain=(0.0, math.inf),
)
add("tanh", torch.tanh, arb.tanh, mp.tanh, (-1.0, 1.0), codomain=(-1.0, 1.0), exact=(0.0,))
add("sinh", torch.sinh, arb.sinh, mp.sinh, _INFINITE, exact=(0.0,), ulps=16.0)
add("asinh", torch.asinh, arb.asinh, mp.asinh, _INFINITE, exact=(0.0,), ulps=16.0)
add("atan", torch.atan, arb.atan, mp.atan, (_half_pi(-1), _half_pi(1)), exact=(0.0,))
add(
    "sigmoid",
    _torch_sigmoid,
    _arb_sigmoid,
    lambda x: 1 / (1 + mp.exp(-x)),
    (0.0, 1.0),
    codomain=(0.0, 1.0),
    exact=(0.0,),
)
add(
    "log_sigmoid",
    torch.nn.functional.logsigmoid,
    lambda x: -((-x).exp().log1p()) if not x < 0 else x - x.exp().log1p(),
    lambda x: -mp.log1p(mp.exp(-x)),
    (-math.inf, 0.0),
    codomain=(-math.inf, 0.0),
)
add("erf", torch.erf, arb.erf, mp.erf, (-1.0, 1.0), codomain=(-1.0, 1.0), exact=(0.0,), ulps=16.0)
add("erfc", torch.special.erfc, arb.erfc, mp.erfc, (2.0, 0.0), shape="down", codomain=(0.0, 2.0), exact=(0.0,),
    ulps=square_above)  # fmt: skip
add(
    "ndtr",
    _ndtr,
    _arb_ndtr,
    _mp_ndtr,
    (0.0, 1.0),
    codomain=(0.0, 1.0),
    exact=(0.0,),
    ulps=square_below,
)
add(
    "normal",
    _normal,
    lambda x: (-x * x / 2).exp() / (2 * arb.pi()).sqrt(),
    lambda x: mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi),
    (0.0, 0.0),
    shape="even down",
    codomain=(0.0, 0.4),
    ulps=square_ulps,
)
add("sin", torch.sin, arb.sin, mp.sin, (math.nan, math.nan), shape="waves", codomain=(-1.0, 1.0), exact=(0.0,))
add("cos", torch.cos, arb.cos, mp.cos, (math.nan, math.nan), shape="waves", codomain=(-1.0, 1.0), exact=(0.0,))

# Constant between jumps. Such a function decides, and every evaluation but the first reads its decision.
STEPPED: dict[str, Callable[[Tensor], Tensor]] = {
    name: getattr(torch, name) for name in ("floor", "ceil", "trunc", "round", "sign")
}
