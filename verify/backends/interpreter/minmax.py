"""Minimum, maximum and clamp as PTX defines them, for every float type the interpreter stores.

`min.f32` returns the number where one operand is NaN, `min.NaN.f32` returns NaN, and both hold -0 smaller
than +0. numpy's fmin and minimum return either zero.
"""

from __future__ import annotations

import numpy as np

from verify.backends.interpreter.casts import narrow, widen
from verify.backends.interpreter.rounding import Array, quiet


@quiet
def minimum(x: Array, y: Array, name: str, *, propagate_nan: bool) -> Array:
    """The smaller of two arrays of the Triton type `name`."""
    return _select(x, y, name, np.minimum if propagate_nan else np.fmin, np.bitwise_or)


@quiet
def maximum(x: Array, y: Array, name: str, *, propagate_nan: bool) -> Array:
    """The larger of two arrays of the Triton type `name`."""
    return _select(x, y, name, np.maximum if propagate_nan else np.fmax, np.bitwise_and)


def clamp(x: Array, low: Array, high: Array, name: str, *, propagate_nan: bool) -> Array:
    """min(max(x, low), high), in this order: a NaN x becomes `low` unless NaN propagates.

    For limits that the compiler sees to be -c and c it uses another instruction, which turns NaN into c with
    the sign of the NaN; no such limits are told apart here.
    """
    raised = maximum(x, low, name, propagate_nan=propagate_nan)
    return minimum(raised, high, name, propagate_nan=propagate_nan)


def _select(x: Array, y: Array, name: str, choose: np.ufunc, merge_signs: np.ufunc) -> Array:
    a, b = widen(x, name), widen(y, name)
    out = choose(a, b)
    # Equal operands of different bits are zeros of opposite sign: merging the bits picks the right one.
    zeros = (out == 0) & (a == b)
    if np.count_nonzero(zeros):
        bits = np.uint64 if out.dtype == np.float64 else np.uint32
        merged = merge_signs(np.ascontiguousarray(a).view(bits), np.ascontiguousarray(b).view(bits))
        out = np.where(zeros, merged.view(out.dtype), out)
    return narrow(out, name)
