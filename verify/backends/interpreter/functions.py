"""Defines elementary and special functions, correctly rounded, for the interpreter in place of the GPU's libdevice.

Each is an `Evaluated`: NumPy or PyTorch proposes a float64 value, and a ball of Arb decides. A proposal must be within
2^-44 of the value; near zeros and in tails this needs the formulas below. Gamma has no proposal, and its logarithm has
no good one near the zeros on the negative axis: balls compute all values there. fmod is exact in float64.

NumPy, PyTorch and the C library choose their code by the processor: the last bits of `np.exp` differ with AVX-512 and
without. So they only propose a value. For a format narrower than float64 the proposal is rounded, unless a rounding
boundary lies within 2^-44 of it (one element in a million for float32, fewer for the 16-bit formats). These elements,
and every result in float64, are enclosed in an Arb ball and rounded once. The correct rounding of an exact value does
not depend on an instruction set, a library version or an order of operations: it has the same bits on every machine.

The proposals were within 2^-50 of the exact value with AVX-512, with AVX2 and with neither
(tests/backends/interpreter/test_evaluated.py).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import flint
import numpy as np
from flint import arb

from verify.backends.interpreter.casts import narrow
from verify.backends.interpreter.fma import fma_float64
from verify.backends.interpreter.rounding import F64, Array

NEAR = 2.0**-44  # an upper bound of the relative error of any proposal
_BELOW, _ABOVE = 1.0 - NEAR, 1.0 + NEAR
_BITS = (96, 192, 384, 768, 1536)
_KNOWN = 1 << 16  # cached values of a function: kernels are called many times with the same input
_SHORT = 128  # more bits than a tie of any format has


@dataclass(frozen=True)
class Evaluated:
    """A function of float64 arrays: `propose` returns a value near its own, `ball` encloses it at Arb's precision.

    The proposal decides if the value is not finite or zero, or an argument is zero or not finite, because it knows
    poles, limits and the signs of zeros. `far(*arguments, proposed)` is True for elements whose proposal may be far
    off: a ball decides them.
    """

    propose: Callable[..., F64]
    ball: Callable[..., Any]
    far: Callable[..., Array] | None = None
    _known: dict[Callable[[Any], float], dict[Any, float]] = field(default_factory=dict)

    def __call__(self, *arguments: F64) -> F64:
        """Returns the correctly rounded float64; 2 to 6 microseconds an element."""
        proposed = self.propose(*arguments)
        return self._settled(arguments, proposed, ~np.isnan(proposed), float)

    def rounded(self, name: str, *arguments: F64) -> Array:
        """Returns the correctly rounded value in the storage of the Triton type `name`. All NaN have one pattern."""
        if name == "fp64":
            return self(*arguments)
        proposed = self.propose(*arguments)
        low, out = _narrow(proposed * _BELOW, name), _narrow(proposed * _ABOVE, name)
        doubtful = low != out
        if self.far is not None:
            doubtful |= self.far(*arguments, proposed)
        if not np.count_nonzero(doubtful):
            return out
        doubtful &= ~np.isnan(proposed)
        return _narrow(self._settled(arguments, proposed, doubtful, _odd), name)

    def _settled(self, arguments: Sequence[F64], proposed: F64, doubtful: Array, read: Callable[[Any], float]) -> F64:
        """Returns the proposal with one NaN pattern, and `read` of the ball for each doubtful element."""
        out = np.where(np.isnan(proposed), np.nan, proposed)
        chosen = [np.ascontiguousarray(np.broadcast_to(a, out.shape)[doubtful]) for a in arguments]
        # Blocks are padded, so most lanes of a small tensor hold one value: each distinct argument is enclosed once.
        rows = np.stack(chosen, axis=-1)  # as opaque rows, which compare by their bits
        bits = chosen[0].view(np.int64) if len(chosen) == 1 else rows.view(np.dtype((np.void, 8 * len(chosen))))[:, 0]
        _, first, places = np.unique(bits, return_index=True, return_inverse=True)
        columns = [a[first].tolist() for a in chosen]
        proposals = zip(*columns, out[doubtful][first].tolist(), strict=True)
        known, before = self._known.setdefault(read, {}), flint.ctx.prec
        if len(known) > _KNOWN:
            known.clear()
        try:
            keys = bits[first].tolist()
            settled = [
                known[key] if key in known else known.setdefault(key, self._value(values, guess, read))
                for key, (*values, guess) in zip(keys, proposals, strict=True)
            ]
        finally:
            flint.ctx.prec = before
        out[doubtful] = np.array(settled, np.float64)[places.reshape(-1)]
        return out

    def _value(self, values: list[float], guess: float, read: Callable[[Any], float]) -> float:
        """Returns `read` of the exact value, at the first precision where both ends of the ball give the same."""
        if not all(map(math.isfinite, values)):
            return guess
        exact = [flint.arb(value) for value in values]
        for bits in _BITS:
            flint.ctx.prec = bits
            ball = self.ball(*exact)
            if ball.is_finite():
                low, high = read(ball.lower()), read(ball.upper())
                if low == high:
                    break
        else:
            if not ball.is_finite():
                return guess
            low = read(_short(ball.mid()))  # it lies on a boundary, as no precision separates them
        return math.copysign(low, guess) if low == 0.0 or 0.0 in values else low


def _short(exact: Any) -> Any:
    """Returns an Arb number rounded to nearest at `_SHORT` bits; Arb's own operations truncate."""
    mantissa, exponent = (int(part) for part in exact.man_exp())
    drop = max(mantissa.bit_length() - _SHORT, 0)
    return flint.arb((mantissa + ((1 << drop) >> 1)) >> drop) * flint.arb(2) ** (exponent + drop)


def _narrow(values: F64, name: str) -> Array:
    """Returns float64 values rounded to the Triton type `name`, in its storage."""
    return values.astype(np.float32) if name == "fp32" else narrow(values, name)


def _odd(exact: Any) -> float:
    """Returns an Arb number as float64 rounded to odd, so a later rounding to a narrower format is the only one."""
    nearest = float(exact)
    if nearest == exact or math.isinf(nearest) or np.float64(nearest).view(np.int64) & 1:
        return nearest
    return math.nextafter(nearest, math.inf if exact > nearest else -math.inf)


Unary = Callable[[F64], F64]
_SQRT_HALF = math.sqrt(0.5)
#: sqrt(1/2) - _SQRT_HALF: with it x / sqrt(2) has twice the precision.
_SQRT_HALF_LOW = -4.833646656726457e-17
_TWO_OVER_SQRT_PI = 1.1283791670955126


def reciprocal(x: F64) -> F64:
    """Returns 1 / x: one division, which every machine rounds alike."""
    return 1.0 / x


# -- functions that Arb and NumPy both have -------------------------------------------------------


acos = Evaluated(np.arccos, lambda x: x.acos())
acosh = Evaluated(np.arccosh, lambda x: x.acosh())
asin = Evaluated(np.arcsin, lambda x: x.asin())
asinh = Evaluated(np.arcsinh, lambda x: x.asinh())
atan = Evaluated(np.arctan, lambda x: x.atan())
atan2 = Evaluated(np.arctan2, lambda y, x: arb.atan2(y, x))
atanh = Evaluated(np.arctanh, lambda x: x.atanh())
cbrt = Evaluated(np.cbrt, lambda x: -((-x).root(3)) if x < 0 else x.root(3))
cos = Evaluated(np.cos, lambda x: x.cos())
cosh = Evaluated(np.cosh, lambda x: x.cosh())
exp = Evaluated(np.exp, lambda x: x.exp())
exp2 = Evaluated(np.exp2, lambda x: arb(2) ** x)
exp10 = Evaluated(lambda x: np.power(10.0, x), lambda x: arb(10) ** x)
hypot = Evaluated(np.hypot, lambda x, y: (x * x + y * y).sqrt())
expm1 = Evaluated(np.expm1, lambda x: x.expm1())
log = Evaluated(np.log, lambda x: x.log())
log1p = Evaluated(np.log1p, lambda x: x.log1p())
log2 = Evaluated(np.log2, lambda x: x.log() / arb(2).log())
log10 = Evaluated(np.log10, lambda x: x.log() / arb(10).log())
power = Evaluated(np.power, lambda x, y: x**y)
rsqrt = Evaluated(lambda x: 1.0 / np.sqrt(x), lambda x: x.rsqrt())
sin = Evaluated(np.sin, lambda x: x.sin())
sinh = Evaluated(np.sinh, lambda x: x.sinh())
tan = Evaluated(np.tan, lambda x: x.tan())
tanh = Evaluated(np.tanh, lambda x: x.tanh())


# -- the error function and its relatives ---------------------------------------------------------


def _torch(name: str) -> Unary:
    """Returns a float64 function of torch.special that takes numpy arrays."""

    def call(x: F64) -> F64:
        import torch

        out: F64 = getattr(torch.special, name)(torch.from_numpy(np.ascontiguousarray(x))).numpy()
        return out

    return call


_erfc = _torch("erfc")


def _normcdf(x: F64) -> F64:
    """Returns the normal distribution function erfc(-x / sqrt 2) / 2.

    Rounding the argument alone would cost x^2 / 2 ULP (700 at -37). So its error is corrected to first order:
    d/dt erfc(t) = -2/sqrt(pi) exp(-t^2).
    """
    t = -x * _SQRT_HALF
    t_low = fma_float64(-x, np.full_like(x, _SQRT_HALF), -t) - x * _SQRT_HALF_LOW
    slope = _TWO_OVER_SQRT_PI * np.exp(-t * t)
    correction = np.where(np.isfinite(t_low), slope * t_low, 0.0)
    return 0.5 * (_erfc(t) - correction)


erf = Evaluated(_torch("erf"), lambda x: x.erf())
erfc = Evaluated(_erfc, lambda x: x.erfc())
erfinv = Evaluated(_torch("erfinv"), lambda x: x.erfinv())
normcdf = Evaluated(_normcdf, lambda x: (-x / arb(2).sqrt()).erfc() / 2)


# -- sine and cosine of half turns ----------------------------------------------------------------


def _of_half_turns(x: F64, more: int, zero: Any) -> F64:
    """Returns sin(pi x + `more` quarter turns), and `zero` in place of zeros.

    x = quadrant / 2 + rest modulo 2, both exact, and |rest| <= 1/4: pi x is some quarter turns and the angle pi rest.
    """
    r = np.fmod(x, 2.0)
    quadrant = np.rint(2.0 * r)
    angle = np.pi * (r - 0.5 * quadrant)
    s, c = np.sin(angle), np.cos(angle)
    out = np.choose(np.where(np.isfinite(x), np.mod(quadrant + more, 4.0), 0).astype(np.int64), [s, c, -s, -c])
    return np.where(out == 0, zero, out)


# Exact at the zeros: a zero of the sine has the sign of x, a zero of the cosine is +0.
sinpi = Evaluated(lambda x: _of_half_turns(x, 0, np.copysign(0.0, x)), lambda x: x.sin_pi())
cospi = Evaluated(lambda x: _of_half_turns(x, 1, 0.0), lambda x: x.cos_pi())


# -- gamma ----------------------------------------------------------------------------------------


def _tgamma_limits(x: F64) -> F64:
    """Returns gamma(x) at poles and where it overflows or underflows; elsewhere 1 or -1, because a ball decides."""
    whole = np.floor(x)
    odd = np.fmod(whole, 2.0) != 0
    out = np.where(x > 180, np.inf, np.where((x < 0) & odd, -1.0, 1.0))
    out = np.where(x < -190, np.where(odd, -0.0, 0.0), out)
    out = np.where(x == 0, np.copysign(np.inf, x), out)
    return np.where((x < 0) & ((x == whole) | np.isinf(x)) | np.isnan(x), np.nan, out)


tgamma = Evaluated(
    _tgamma_limits,
    lambda x: x.gamma() if abs(x) < 2**20 else arb.nan(),  # beyond, _tgamma_limits gives the value
    far=lambda x, proposed: np.isfinite(proposed),
)
lgamma = Evaluated(
    _torch("gammaln"),
    # on the negative axis by reflection
    lambda x: x.lgamma() if x > 0 else abs(arb.pi() / (x * x.sin_pi())).log() - (-x).lgamma(),
    far=lambda x, proposed: (x < 0) & (np.abs(proposed) < 0.25),
)


# -- exact ----------------------------------------------------------------------------------------


def fmod(x: F64, y: F64) -> F64:
    """Returns the remainder of x / y with the sign of x, exact."""
    return np.fmod(x, y)
