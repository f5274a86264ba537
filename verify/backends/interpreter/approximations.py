"""The GPU's approximate instructions: what they do for certain, with the approximation itself rounded.

A `.approx` instruction has a defined part (what `.ftz` flushes, which bits of the operand are read, how an
argument is reduced) and an approximation of some accuracy. The defined part is imitated; the approximation is
replaced by the correctly rounded value. On an H200 (compare_hardware.py) the difference is at most 2 ULP for
ex2, rcp, rsqrt, sqrt and div; 2^-22 absolute for lg2 near 1 and for sin and cos; 2^-11 relative for tanh.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from verify.backends.interpreter import functions
from verify.backends.interpreter.evaluated import Evaluated
from verify.backends.interpreter.rounding import F32, F64, Array, flush, to_float32

Function = Callable[..., Array]
_LOG2_E = np.float32(1.4426950408889634)
_TINY64 = 2.0**-1022
#: 1 / (2 pi) as the hardware has it: a float32 one ULP below the nearest.
_TURNS = 0.15915493667125702


def in_float32(f: Callable[..., Any], *, inputs: bool = True, result: bool = True) -> Function:
    """A float32 function rounded once; the flags say what is flushed.

    `f` is an `Evaluated`, or an operation whose float64 result rounds on correctly.
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
    """tl.exp on float32: 2^(x log2 e) with the product rounded to float32, up to 62 ULP off at 88."""
    return ex2_keeping_subnormals(x * _LOG2_E)


def _of_turns(f: Evaluated) -> Function:
    """Sine or cosine of the angle that is left after x / (2 pi) is cut to float32.

    A large argument loses its fraction there: sin.approx(2^24) has nothing to do with the sine. Of the
    rest 25 fraction bits are read, so that sin.approx(1e-7) is 0. `f` takes half turns.
    """

    def call(x: F32) -> F32:
        turns = to_float32(flush(x).astype(np.float64) * _TURNS, "rz").astype(np.float64)
        rest = np.trunc((turns - np.rint(turns)) * 2.0**25) * 2.0**-25
        out = f.rounded("fp32", 2.0 * rest)
        return np.where(out == 0, np.copysign(np.float32(0), x), out)

    return call


sin_approx, cos_approx = _of_turns(functions.sinpi), _of_turns(functions.cospi)


def div_approx(x: F32, y: F32, *, ftz: bool = True) -> F32:
    """`div.approx`: x times the reciprocal of y, which is 0 for divisors beyond 2^126."""
    if ftz:
        x, y = flush(x), flush(y)
    out = (x.astype(np.float64) / y.astype(np.float64)).astype(np.float32)
    huge = (np.abs(y) > np.float32(2.0**126)) & np.isfinite(y)
    lost = np.where(np.isinf(x), np.float32(np.nan), np.copysign(np.float32(0), out))
    out = np.where(huge & ~np.isnan(x), lost, out)
    return flush(out) if ftz else out


def upper_words(f: Callable[[F64], F64]) -> Function:
    """`rcp.approx.ftz.f64` and its like: upper 32 bits of the operand in, upper 32 of the result out.

    That is a seed of 20 bits, not a reciprocal; what a kernel makes of it with Newton steps starts
    there. Of 3,800 reciprocals 93% had the hardware's bits, the others its neighbour's.
    """

    def upper(x: Array) -> F64:
        bits: F64 = (x.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)
        return bits

    def call(x: F64) -> F64:
        out = f(np.where(np.abs(x) < _TINY64, np.copysign(0.0, x), upper(x)))
        return np.where(np.abs(out) < _TINY64, np.copysign(0.0, out), upper(out))

    return call


def saturate(x: F32) -> F32:
    """Clamp to [0, 1]; NaN and -0 give +0."""
    return np.where(x > 0, np.minimum(x, np.float32(1)), np.float32(0)).astype(np.float32)
