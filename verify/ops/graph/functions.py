"""Real functions of one argument that a program is made of: in float64 with a bound, in balls, in mpmath.

`ulps` bounds the error of `torch` in float64 relative to its own result, in units of 2^-52, on a CPU and on a GPU: more
than four times what the makers of the libraries state (CUDA C++ Programming Guide, mathematical functions; SLEEF;
PyTorch's own kernels). tests/ops/graph holds every entry against Arb.
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
    """One function. `shape` says how an interval is mapped: by its ends, or, of an even function, by those of |x|;
    "waves" is any function whose slope is at most 1, "bent" one whose slope between two numbers is at most `slope` of
    them. `spread` is an error beside that of `ulps`, in units of 2^-52. `limits` are the values at -inf and inf,
    `exact` the arguments at which float64 gives the exact result, `codomain` what no result can leave.
    """

    name: str
    torch: Callable[[Tensor], Tensor]
    arb: Callable[[Any], Any]
    mp: Callable[[Any], Any]
    limits: tuple[Any, Any]
    shape: Literal["up", "down", "even up", "even down", "waves", "bent"] = "up"
    ulps: float | Callable[[Tensor], Tensor] = 8.0
    codomain: tuple[float, float] = (-math.inf, math.inf)
    domain: tuple[float, float] = (-math.inf, math.inf)
    exact: tuple[float, ...] | Callable[[Tensor, Tensor], Tensor] = ()  # or where results of arguments are exact
    spread: float | Callable[[Tensor], Tensor] = 0.0
    slope: Callable[[Tensor, Tensor], Tensor] | None = None
    steps: bool = False  # constant between jumps: no rounding, and an argument near a jump decides


FUNCTIONS: dict[str, Function] = {}


def add(name: str, *rest: Any, **options: Any) -> None:
    """One more function."""
    FUNCTIONS[name] = Function(name, *rest, **options)


_ROOT_HALF = math.sqrt(0.5)
_INFINITE = (-math.inf, math.inf)


def _ndtr(x: Tensor) -> Tensor:
    return torch.special.erfc(x * -_ROOT_HALF) * 0.5  # type: ignore[no-any-return]


def _normal(x: Tensor) -> Tensor:
    return torch.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))


def square_ulps(x: Tensor) -> Tensor:
    """The argument of an exponential of x^2 is rounded: its relative error is the absolute one of the argument."""
    return 16.0 + 4.0 * (x * x).clamp(max=1e300)


def square_below(x: Tensor) -> Tensor:
    """The same of a function that is small there, and near a constant above."""
    return square_ulps(x.clamp(max=1.0))


def square_above(x: Tensor) -> Tensor:
    return square_ulps(x.clamp(min=-1.0))


def _arb_sigmoid(x: Any) -> Any:
    """By the exponential that is below 1, of any number, and without a difference."""
    if x < 0:
        grown = x.exp()
        return grown / (1 + grown)
    return 1 / (1 + (-x).exp())


def _arb_bell(x: Any) -> Any:
    """The slope of the sigmoid; by Arb's sech there is none of a wide ball far out."""
    grown = (-abs(x)).exp()
    return grown / ((1 + grown) * (1 + grown))


def _mp_sech_squared(x: Any) -> Any:
    grown = mp.exp(-2 * abs(x))
    return 4 * grown / (1 + grown) ** 2


def _torch_sech_squared(x: Tensor) -> Tensor:
    grown = torch.exp(-2 * x.abs())
    return 4 * grown / ((1 + grown) * (1 + grown))


def _torch_sigmoid(x: Tensor) -> Tensor:
    """PyTorch's is 0 where exp(-x) overflows, before the result is."""
    return torch.where(x < -40, torch.exp(x), torch.sigmoid(x))


def _torch_bell(x: Tensor) -> Tensor:
    return _torch_sigmoid(x) * _torch_sigmoid(-x)


def _half_pi(sign: int) -> Any:
    return lambda arithmetic: arithmetic.pi() * arithmetic.number(sign * 0.5)


add("exp", torch.exp, arb.exp, mp.exp, (0.0, math.inf), codomain=(0.0, math.inf), exact=(0.0,))


def _whole(x: Tensor) -> Tensor:
    """Exponents of which the power of two is a normal float64."""
    return (x == x.round()) & (x >= -1022) & (x <= 1023)


def _exp2(x: Tensor) -> Tensor:
    """Of whole numbers the power of two, made of its bits."""
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
    """Of powers of two the exponent, which all routes have."""
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
add("erfc", torch.special.erfc, arb.erfc, mp.erfc, (2.0, 0.0), shape="down", codomain=(0.0, 2.0), ulps=square_above)
add(
    "ndtr",
    _ndtr,
    lambda x: (-x * arb(0.5).sqrt()).erfc() / 2,
    lambda x: mp.erfc(-x / mp.sqrt(2)) / 2,
    (0.0, 1.0),
    codomain=(0.0, 1.0),
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
add(
    "sech squared",
    _torch_sech_squared,
    lambda x: 4 * _arb_bell(2 * x),
    _mp_sech_squared,
    (0.0, 0.0),
    shape="even down",
    codomain=(0.0, 1.0),
    exact=(0.0,),
    ulps=32.0,
)
add(
    "sigmoid slope",
    _torch_bell,
    _arb_bell,
    lambda x: mp.exp(-abs(x)) / (1 + mp.exp(-abs(x))) ** 2,
    (0.0, 0.0),
    shape="even down",
    codomain=(0.0, 0.25),
    ulps=32.0,
)
add("sin", torch.sin, arb.sin, mp.sin, (math.nan, math.nan), shape="waves", codomain=(-1.0, 1.0), exact=(0.0,))
add("cos", torch.cos, arb.cos, mp.cos, (math.nan, math.nan), shape="waves", codomain=(-1.0, 1.0), exact=(0.0,))
add("floor", torch.floor, arb.floor, mp.floor, _INFINITE, ulps=0.0, steps=True)
add("ceil", torch.ceil, arb.ceil, mp.ceil, _INFINITE, ulps=0.0, steps=True)
add(
    "trunc",
    torch.trunc,
    lambda x: x.floor() if x >= 0 else x.ceil() if x <= 0 else x.floor().union(x.ceil()),
    lambda x: mp.floor(x) if x >= 0 else mp.ceil(x),
    _INFINITE,
    ulps=0.0,
    steps=True,
)


def _arb_round(x: Any) -> Any:
    """To the nearest integer, halves to even: decided only where the whole ball goes one way."""
    low, high = (_exact_round(end) for end in (x.lower(), x.upper()))
    return low.union(high) if low != high else low


def _exact_round(x: Any) -> Any:
    lower = x.floor()
    if not lower.is_exact():
        return lower
    rest = x - lower
    if rest == arb(0.5):
        return lower if int((lower / 2).floor() * 2 - lower == 0) else lower + 1
    return lower + 1 if rest > arb(0.5) else lower


add("round", torch.round, _arb_round, mp.nint, _INFINITE, ulps=0.0, steps=True)
add("sign", torch.sign, arb.sgn, mp.sign, (-1.0, 1.0), ulps=0.0, steps=True)
