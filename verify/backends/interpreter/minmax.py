"""Minimum, maximum and clamp as PTX defines them, for every float type of the interpreter.

`min.f32` returns the number if one operand is NaN, `min.NaN.f32` returns NaN. For both -0 is smaller than +0. numpy's
fmin and minimum return either zero.
"""

import numpy as np

from verify.backends.interpreter.casts import narrow, widen
from verify.backends.interpreter.rounding import Array, quiet


@quiet
def minimum(x: Array, y: Array, name: str, *, propagate_nan: bool) -> Array:
    """Returns the smaller of two arrays of the Triton type `name`."""
    return _select(x, y, name, np.minimum if propagate_nan else np.fmin, np.bitwise_or)


@quiet
def maximum(x: Array, y: Array, name: str, *, propagate_nan: bool) -> Array:
    """Returns the larger of two arrays of the Triton type `name`."""
    return _select(x, y, name, np.maximum if propagate_nan else np.fmax, np.bitwise_and)


def clamp(x: Array, low: Array, high: Array, name: str, *, propagate_nan: bool) -> Array:
    """Returns min(max(x, low), high), in this order: a NaN x becomes `low` unless NaN propagates.

    If the compiler sees that the limits are -c and c, it uses another instruction, which turns NaN into c with the sign
    of the NaN. This function does not imitate that.
    """
    raised = maximum(x, low, name, propagate_nan=propagate_nan)
    return minimum(raised, high, name, propagate_nan=propagate_nan)


def _select(x: Array, y: Array, name: str, choose: np.ufunc, merge_signs: np.ufunc) -> Array:
    a, b = widen(x, name), widen(y, name)
    out = choose(a, b)
    # Equal operands with different bits are zeros of opposite sign; merging their bits gives the right one.
    zeros = (out == 0) & (a == b)
    if np.count_nonzero(zeros):
        bits = np.uint64 if out.dtype == np.float64 else np.uint32
        merged = merge_signs(np.ascontiguousarray(a).view(bits), np.ascontiguousarray(b).view(bits))
        out = np.where(zeros, merged.view(out.dtype), out)
    return narrow(out, name)
