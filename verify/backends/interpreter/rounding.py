"""Exact residuals and rounding, on numpy arrays; fma and the casts use them.

The backend relies on *rounding to odd* (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
First an exact value is rounded to p + 2 or more bits such that an inexact result has its last bit set. A second
rounding to p bits, in any direction, then gives what one rounding of the exact value gives. So float64 is an exact
middle step for all narrower formats, although it cannot hold the exact value.
"""

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

#: Rounding directions by their PTX names: nearest even, toward zero.
DIRECTIONS = ("rn", "rz")
_SILENT: ContextVar[bool] = ContextVar("numpy gives no warnings here", default=False)


@contextmanager
def silent() -> Iterator[None]:
    """Turns numpy's warnings off inside a with block: NaN, infinity and underflow are results."""
    token = _SILENT.set(True)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        _SILENT.reset(token)


def quiet(function: Callable[P, T]) -> Callable[P, T]:
    """Returns the function without numpy's warnings.

    `np.errstate` as a decorator costs more than a small array. So it is entered only once, by a launch or by the
    outermost such function.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if _SILENT.get():
            return function(*args, **kwargs)
        with silent():
            return function(*args, **kwargs)

    return call


def two_sum(a: F64, b: F64) -> tuple[F64, F64]:
    """Returns the rounded sum a + b and its exact error; the error is NaN if the sum is not finite."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def to_odd(s: F64, residual: F64) -> F64:
    """Returns s + residual rounded to odd; s is its nearest float64 and residual the exact rest.

    Only the sign of the residual matters. A NaN residual (of an infinite or NaN s) counts as exact.
    """
    bits = np.ascontiguousarray(s).view(np.int64)
    inexact_even = (np.abs(residual) > 0) & ((bits & 1) == 0)
    away_from_zero = (residual > 0) == (s > 0)
    step = np.where(away_from_zero, np.int64(1), np.int64(-1))
    return np.where(inexact_even, bits + step, bits).view(np.float64)


@quiet
def narrow_to_odd(x: F64) -> F32:
    """Returns float64 as float32 rounded to odd: the safe middle step to every format of at most 22 bits."""
    y = x.astype(np.float32)
    bits = y.view(np.int32)
    back = y.astype(np.float64)
    inexact_even = (back != x) & ((bits & 1) == 0) & (x == x)
    step = np.where(np.abs(back) < np.abs(x), np.int32(1), np.int32(-1))
    return np.where(inexact_even, bits + step, bits).view(np.float32)


@quiet
def to_float32(x: F64, direction: str = "rn") -> F32:
    """Returns float64 rounded to float32, to nearest or toward zero, subnormals and overflow included."""
    y = x.astype(np.float32)
    if direction == "rn":
        return y
    return (y.view(np.int32) - (np.abs(y.astype(np.float64)) > np.abs(x))).view(np.float32)


def flush(x: Array) -> Array:
    """Returns float32 with zeros of the same sign for subnormals, as `.ftz` does to inputs and results."""
    subnormal = (np.abs(x) < np.float32(2.0**-126)) & (x != 0)
    if not np.count_nonzero(subnormal):
        return x
    return np.where(subnormal, np.copysign(np.float32(0.0), x), x)
