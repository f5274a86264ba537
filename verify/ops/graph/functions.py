"""Defines the real functions of one argument that programs use: in float64 with an error bound, in Arb and in mpmath.

The bound of each float64 function holds on CPUs and GPUs. For common functions, it is more than four times the error
that the libraries state: the CUDA C++ Programming Guide (mathematical functions), SLEEF and PyTorch's own kernels. For
special functions, it is at least twice the largest error seen against Arb, over all magnitudes. tests/ops/graph
compares every entry with Arb.

Where PyTorch is too inaccurate, a formula replaces it: its trigamma errs by 5e-10. Polygamma has no float64 bound at
negative arguments; Arb decides there.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import flint
import torch
from mpmath import mp
from torch import Tensor

arb = flint.arb
_special = torch.special
_INFINITE, _POSITIVE, _NAN = (-math.inf, math.inf), (0.0, math.inf), (math.nan, math.nan)
_MANY_BITS = 4_096
_LONG, _SHORT = 1_024, 64  # bits of precision and of x; mp.erfc is faster for fewer, and for a longer x


class Pole(float):
    """The value of a function at an exact zero where the sign of the zero decides between inf and -inf.

    Real numbers have no signed zero. So the caller finds the sign by IEEE arithmetic.
    """


POLE = Pole("nan")


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
    codomain: tuple[float, float] = _INFINITE  # every result lies inside
    domain: tuple[float, float] = _INFINITE
    # arguments at which `torch` is exact, or a function of arguments and results that returns a mask of them
    exact: tuple[float, ...] | Callable[[Tensor, Tensor], Tensor] = ()
    spread: float | Callable[[Tensor], Tensor] = 0.0  # absolute error in addition to `ulps`, in 2^-52
    slope: Callable[[Tensor, Tensor], Tensor] | None = None

    def is_exact(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns a mask of the arguments at which `torch` has no error; `y` are its results."""
        if callable(self.exact):
            return self.exact(x, y)
        return reduce(torch.logical_or, [x == each for each in self.exact], torch.zeros_like(x, dtype=torch.bool))


FUNCTIONS: dict[str, Function] = {}


def _add(name: str, limits: tuple[Any, Any], shape: Any = "up", **options: Any) -> None:
    """Adds a function to `FUNCTIONS`. `options` are other fields of `Function`.

    A library has the function under its own name unless a field says otherwise. The results of a monotone function lie
    between its limits.
    """
    for library, parts in {"torch": (torch, _special), "arb": (arb,), "mp": (mp,)}.items():
        if library not in options:
            options[library] = next(getattr(part, name) for part in parts if hasattr(part, name))
    if shape in ("up", "down"):
        ends = limits if shape == "up" else limits[::-1]
        unknown = (not isinstance(end, float) or math.isnan(end) for end in ends)
        pairs = zip(unknown, _INFINITE, ends, strict=True)
        options.setdefault("codomain", tuple(end if is_unknown else known for is_unknown, end, known in pairs))
    FUNCTIONS[name] = Function(name, limits=limits, shape=shape, **options)


def _square_ulps(x: Tensor) -> Tensor:
    """Bounds the error of exp(-x^2 / 2) and the like.

    The exponent is rounded. Its absolute error, which grows with x^2, becomes the relative error of the result.
    """
    return 16.0 + 4.0 * (x * x).clamp(max=1e300)


def _square_below(x: Tensor) -> Tensor:
    """Bounds the error of a function that falls like exp(-x^2) for negative x, and is near a constant above 1."""
    return _square_ulps(x.clamp(max=1.0))


def _square_above(x: Tensor) -> Tensor:
    """Bounds the error of a function that falls like exp(-x^2) for positive x, and is near a constant below -1."""
    return _square_ulps(x.clamp(min=-1.0))


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


def _half_pi(sign: int) -> Any:
    return lambda arithmetic: arithmetic.pi() * arithmetic.number(sign * 0.5)


def _mp_exp(x: Any) -> Any:
    """Returns e^x; 0 for x below -2^64, which mpmath cannot evaluate and which lies below every other number."""
    negative, _, exponent, size = x._mpf_
    return mp.exp(x) if not negative or exponent + size <= 64 else mp.zero


def _whole(x: Tensor) -> Tensor:
    """True for integers whose power of two is a normal float64 number."""
    return (x == x.round()) & (x >= -1022) & (x <= 1023)


def _exp2(x: Tensor) -> Tensor:
    """Returns 2^x. For an integer x, it sets the exponent bits, which is exact."""
    whole = _whole(x)
    bits = (torch.where(whole, x, 0.0).to(torch.int64) + 1023) << 52
    return torch.where(whole, bits.view(torch.float64), torch.exp2(x))


_add(
    "exp2", _POSITIVE, torch=_exp2, arb=lambda x: arb(2) ** x, mp=lambda x: mp.power(2, x), exact=lambda x, y: _whole(x)
)


def _log2(x: Tensor) -> Tensor:
    """Returns log2(x). For a power of two, it reads the exponent, which is exact."""
    mantissa, exponent = torch.frexp(x)
    return torch.where(mantissa == 0.5, exponent.to(torch.float64) - 1, torch.log2(x))


def _arb_log2(x: Any) -> Any:
    mantissa, exponent = x.man_exp() if x.is_exact() else (0, 0)
    return arb(exponent) if mantissa == 1 else x.log() / arb.const_log2()


_add(
    "log2",
    (math.nan, math.inf),
    torch=_log2,
    arb=_arb_log2,
    mp=lambda x: mp.mpf(x.exp) if x.man == 1 else mp.log(x) / mp.log(2),
    domain=_POSITIVE,
    exact=lambda x, y: torch.frexp(x)[0] == 0.5,
)

_add("exp", _POSITIVE, mp=_mp_exp, exact=(0.0,))
_add("expm1", (-1.0, math.inf), exact=(0.0,))
_add("log", (math.nan, math.inf), domain=_POSITIVE, exact=(1.0,))
_add("log10", (math.nan, math.inf), arb=lambda x: x.log() / arb.const_log10(), domain=_POSITIVE, exact=(1.0,))
_add("log1p", (math.nan, math.inf), domain=(-1.0, math.inf), exact=(0.0,))
_add("sqrt", (math.nan, math.inf), domain=_POSITIVE, codomain=_POSITIVE, exact=(0.0,), ulps=1.0)
# at -0 it is -inf
_add("rsqrt", (math.nan, 0.0), "down", mp=lambda x: 1 / mp.sqrt(x), domain=_POSITIVE, codomain=_INFINITE)
_add("tanh", (-1.0, 1.0), exact=(0.0,))
_add("sinh", _INFINITE, exact=(0.0,), ulps=16.0)
_add("asinh", _INFINITE, exact=(0.0,), ulps=16.0)
_add("atan", (_half_pi(-1), _half_pi(1)), exact=(0.0,))
_add("erf", (-1.0, 1.0), exact=(0.0,), ulps=16.0)
_add("erfc", (2.0, 0.0), "down", exact=(0.0,), ulps=_square_above)
_add("sin", _NAN, "waves", codomain=(-1.0, 1.0), exact=(0.0,))
_add("cos", _NAN, "waves", codomain=(-1.0, 1.0), exact=(0.0,))
_add(
    "ndtr",
    (0.0, 1.0),
    torch=lambda x: _special.erfc(x * -math.sqrt(0.5)) * 0.5,
    arb=_arb_ndtr,
    mp=_mp_ndtr,
    exact=(0.0,),
    ulps=_square_below,
)
# below -40 as exp(x): PyTorch's sigmoid is 0 where exp(-x) overflows, though the result is not 0 yet
_add("sigmoid", (0.0, 1.0), torch=lambda x: torch.where(x < -40, torch.exp(x), torch.sigmoid(x)), arb=_arb_sigmoid,
     mp=lambda x: 1 / (1 + mp.exp(-x)), exact=(0.0,))  # fmt: skip
_add(
    "log_sigmoid",
    (-math.inf, 0.0),
    torch=torch.nn.functional.logsigmoid,
    arb=lambda x: -((-x).exp().log1p()) if not x < 0 else x - x.exp().log1p(),
    mp=lambda x: -mp.log1p(mp.exp(-x)),
)
_add(
    "normal",
    (0.0, 0.0),
    "even down",
    torch=lambda x: torch.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi)),
    arb=lambda x: (-x * x / 2).exp() / (2 * arb.pi()).sqrt(),
    mp=lambda x: mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi),
    codomain=(0.0, 0.4),
    ulps=_square_ulps,
)


# Constant between jumps. Such a function decides, and every evaluation but the first reads its decision.
STEPPED: dict[str, Callable[[Tensor], Tensor]] = {
    name: getattr(torch, name) for name in ("floor", "ceil", "trunc", "round", "sign")
}


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


_add(
    "lgamma",
    (math.inf, math.inf),
    "bent",
    arb=_but_at_poles(lambda x: math.inf, _arb_lgamma),
    mp=_but_at_poles(lambda x: math.inf, _mp_lgamma),
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


_add(
    "digamma",
    (math.nan, math.inf),
    "bent",
    arb=_but_at_poles(_jump, arb.digamma),
    mp=_but_at_poles(_jump, mp.digamma),
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
        _add(
            name,
            (math.nan, 0.0),
            "bent",
            torch=lambda x: sign * _zeta(order + 1, x),
            arb=_but_at_poles(at_pole, lambda x: flint.acb(x).polygamma(order).real),
            mp=_but_at_poles(at_pole, lambda x: mp.polygamma(order, x) if x > -1e5 else math.nan),
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


_add("erfcx", (math.inf, 0.0), "down", arb=_arb_erfcx, mp=_mp_erfcx, ulps=_square_below)
_add("log_ndtr", (-math.inf, 0.0), arb=_arb_log_ndtr, mp=_mp_log_ndtr, ulps=_square_above)
_add("erfinv", _NAN, domain=(-1.0, 1.0), exact=(0.0,), ulps=32.0)
_add("ndtri", _NAN, arb=lambda p: -(2 * p).erfcinv() * arb(2).sqrt(), mp=_mp_ndtri, domain=(0.0, 1.0), exact=(0.5,),
     ulps=64.0, spread=8.0)  # fmt: skip

# -- modified Bessel functions ----------------------------------------------------------------------------

for _name, _limits, _shape, _codomain in (
    ("i0", (math.inf, math.inf), "even up", (1.0, math.inf)),
    ("i1", _INFINITE, "up", _INFINITE),
    ("i0e", (0.0, 0.0), "even down", (0.0, 1.0)),
    ("i1e", (0.0, 0.0), "waves", (-0.22, 0.22)),
):
    _first, _is_scaled = int(_name[1]), _name.endswith("e")
    _add(
        _name,
        _limits,
        _shape,
        arb=lambda x, order=_first, scaled=_is_scaled: (
            abs(x).bessel_i(order, scaled=True) * (x.sgn() if order else 1) if scaled else x.bessel_i(order)
        ),
        mp=lambda x, order=_first, scaled=_is_scaled: mp.besseli(order, x) * (mp.exp(-abs(x)) if scaled else 1),
        codomain=_codomain,
        exact=(0.0,),
        ulps=32.0,
    )


def _sinc_pi(x: Tensor) -> Tensor:
    whole = x.round()
    divisor = torch.where(x == 0, 1.0, x) * math.pi
    return torch.where(x == 0, 1.0, torch.sin((x - whole) * math.pi) * (1 - 2 * (whole.remainder(2.0))) / divisor)


_add("sinc", (0.0, 0.0), "bent", torch=_sinc_pi, arb=lambda x: x.sinc_pi(), mp=mp.sincpi, codomain=(-0.22, 1.0),
     ulps=16.0, slope=lambda lo, hi: torch.full_like(lo, 1.4), exact=lambda x, y: x == x.round())  # fmt: skip
