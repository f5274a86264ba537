"""Exact residuals and every rounding direction, on numpy arrays: what fma and the casts are built from.

The idea that carries the whole backend is *rounding to odd* (Boldo and Melquiond, "Emulation of a FMA and
correctly rounded sums", 2008): if an exact value is first squeezed into p + 2 or more bits in such a way that
an inexact result always has its last bit set, a second rounding to p bits, in any direction, gives what one
single rounding of the exact value would have given. float64 therefore serves as an exact middle step for
everything narrower, although it cannot hold the exact value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

P = ParamSpec("P")
T = TypeVar("T")

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]

#: Rounding directions by their PTX names: nearest even, toward zero, toward -inf, toward +inf.
DIRECTIONS = ("rn", "rz", "rm", "rp")
_SILENT: ContextVar[bool] = ContextVar("numpy gives no warnings here", default=False)


@contextmanager
def silent() -> Iterator[None]:
    """Without numpy's warnings: NaN, infinity and underflow are results."""
    token = _SILENT.set(True)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        _SILENT.reset(token)


def quiet(function: Callable[P, T]) -> Callable[P, T]:
    """A function that is `silent`. `np.errstate` as a decorator costs more than a small array does, so a launch, or
    another such function, asks for it once."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if _SILENT.get():
            return function(*args, **kwargs)
        with silent():
            return function(*args, **kwargs)

    return call


def two_sum(a: F64, b: F64) -> tuple[F64, F64]:
    """a + b as (rounded sum, exact error); the error is NaN where the sum is not finite."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def to_odd(s: F64, residual: F64) -> F64:
    """The value s + residual rounded to odd, where s is its nearest float64 and residual the exact rest.

    Only the sign of the residual matters, so any value of the right sign does. A NaN residual (of an
    infinite or NaN s) counts as exact.
    """
    bits = np.ascontiguousarray(s).view(np.int64)
    inexact_even = (np.abs(residual) > 0) & ((bits & 1) == 0)
    away_from_zero = (residual > 0) == (s > 0)
    step = np.where(away_from_zero, np.int64(1), np.int64(-1))
    return np.where(inexact_even, bits + step, bits).view(np.float64)


@quiet
def narrow_to_odd(x: F64) -> F32:
    """float64 to float32, rounded to odd: the safe middle step towards every format of at most 22 bits."""
    y = x.astype(np.float32)
    bits = y.view(np.int32)
    back = y.astype(np.float64)
    inexact_even = (back != x) & ((bits & 1) == 0) & (x == x)
    step = np.where(np.abs(back) < np.abs(x), np.int32(1), np.int32(-1))
    return np.where(inexact_even, bits + step, bits).view(np.float32)


@quiet
def to_float32(x: F64, direction: str = "rn") -> F32:
    """float64 to float32 in one of the four PTX directions, subnormals and overflow included."""
    y = x.astype(np.float32)
    if direction == "rn":
        return y
    return toward(y, x, y.astype(np.float64), direction)


def toward(nearest: Array, exact: Array, back: Array, direction: str) -> Array:
    """Move `nearest` one step where it lies on the wrong side of `exact`; `back` is `nearest`, widened."""
    if direction == "rz":
        wrong = np.abs(back) > np.abs(exact)
        target: Array = np.zeros_like(nearest)
    elif direction == "rm":
        wrong, target = back > exact, np.full_like(nearest, -np.inf)
    elif direction == "rp":
        wrong, target = back < exact, np.full_like(nearest, np.inf)
    else:
        raise ValueError(f"rounding direction is one of {', '.join(DIRECTIONS)}; got {direction!r}")
    return np.where(wrong, np.nextafter(nearest, target), nearest)


def flush(x: Array) -> Array:
    """float32 with subnormals replaced by zeros of the same sign: what `.ftz` does to inputs and results."""
    subnormal = (np.abs(x) < np.float32(2.0**-126)) & (x != 0)
    if not np.count_nonzero(subnormal):
        return x
    return np.where(subnormal, np.copysign(np.float32(0.0), x), x)
