"""The GPU's approximate instructions: their defined part exactly, the approximation correctly rounded.

A `.approx` instruction has a defined part (what `.ftz` flushes, how many bits of the operand it reads, how it reduces
an argument) and an approximation of some accuracy. The defined part is imitated; the correctly rounded value replaces
the approximation. On an H200 the difference is at most 2 ULP for ex2, rcp, rsqrt, sqrt and div,
2^-22 absolute for lg2 near 1 and for sin and cos, and 2^-11 relative for tanh.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from verify.backends.interpreter import functions
from verify.backends.interpreter.functions import Evaluated
from verify.backends.interpreter.rounding import F32, F64, Array, flush, to_float32

Function = Callable[..., Array]
_LOG2_E = np.float32(1.4426950408889634)
_TINY64 = 2.0**-1022
#: 1 / (2 pi) in the hardware: a float32 one ULP below the nearest.
_TURNS = 0.15915493667125702


def in_float32(f: Callable[..., Any], *, inputs: bool = True, result: bool = True) -> Function:
    """Returns f as a float32 function, rounded once.

    Args:
        f: an `Evaluated`, or an operation whose float64 result rounds correctly to float32
        inputs: True flushes subnormal arguments
        result: True flushes subnormal results
    """

    def call(*args: F32) -> F32:
        wide = [(flush(a) if inputs else a).astype(np.float64) for a in args]
        out = f.rounded("fp32", *wide) if isinstance(f, Evaluated) else np.asarray(f(*wide)).astype(np.float32)
        return flush(out) if result else out

    return call


ex2 = in_float32(functions.exp2)
ex2_keeping_subnormals = in_float32(functions.exp2, inputs=False, result=False)
lg2 = in_float32(functions.log2)


def exp_by_ex2(x: F32) -> F32:
    """Computes tl.exp in float32: 2^(x log2 e) with the product rounded to float32, up to 62 ULP off at 88."""
    return ex2_keeping_subnormals(x * _LOG2_E)


def _of_turns(f: Evaluated) -> Function:
    """Returns sine or cosine after the hardware's reduction: x / (2 pi) is cut to float32.

    A large argument loses its fraction, so sin.approx(2^24) is unrelated to the sine. Of the fraction 25 bits are used,
    so sin.approx(1e-7) is 0. `f` takes half turns.
    """

    def call(x: F32) -> F32:
        turns = to_float32(flush(x).astype(np.float64) * _TURNS, "rz").astype(np.float64)
        rest = np.trunc((turns - np.rint(turns)) * 2.0**25) * 2.0**-25
        out = f.rounded("fp32", 2.0 * rest)
        return np.where(out == 0, np.copysign(np.float32(0), x), out)

    return call


sin_approx, cos_approx = _of_turns(functions.sinpi), _of_turns(functions.cospi)


def div_approx(x: F32, y: F32, *, ftz: bool = True) -> F32:
    """Computes `div.approx`: x times the reciprocal of y, which is 0 for divisors beyond 2^126."""
    if ftz:
        x, y = flush(x), flush(y)
    out = (x.astype(np.float64) / y.astype(np.float64)).astype(np.float32)
    huge = (np.abs(y) > np.float32(2.0**126)) & np.isfinite(y)
    lost = np.where(np.isinf(x), np.float32(np.nan), np.copysign(np.float32(0), out))
    out = np.where(huge & ~np.isnan(x), lost, out)
    return flush(out) if ftz else out


def upper_words(f: Callable[[F64], F64]) -> Function:
    """Returns f like `rcp.approx.ftz.f64`: it reads the upper 32 bits of the operand and gives the upper 32 of the
    result.

    The result is a seed of 20 bits for Newton steps, not a reciprocal. Of 3,800 reciprocals 93% had the hardware's
    bits, the others the neighbour's.
    """

    def upper(x: Array) -> F64:
        bits: F64 = (x.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)
        return bits

    def call(x: F64) -> F64:
        out = f(np.where(np.abs(x) < _TINY64, np.copysign(0.0, x), upper(x)))
        return np.where(np.abs(out) < _TINY64, np.copysign(0.0, out), upper(out))

    return call


def saturate(x: F32) -> F32:
    """Clamps to [0, 1]; NaN and -0 give +0."""
    return np.where(x > 0, np.minimum(x, np.float32(1)), np.float32(0)).astype(np.float32)
