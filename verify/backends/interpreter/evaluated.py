"""Functions that are correctly rounded to any format, and so have the same bits on every machine.

NumPy, PyTorch and the C library choose their code by the processor: the last bits of `np.exp` differ with AVX-512 and
without. So they only propose a value. For a format narrower than float64 the proposal is rounded, unless a rounding
boundary lies within 2^-44 of it (one element in a million for float32, fewer for the 16-bit formats). These elements,
and every result in float64, are enclosed in an Arb ball and rounded once. The correct rounding of an exact value does
not depend on an instruction set, a library version or an order of operations.

The proposals were within 2^-50 of the exact value with AVX-512, with AVX2 and with neither
(tests/backends/interpreter/test_evaluated.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import flint
import numpy as np

from verify.backends.interpreter.casts import narrow
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
        bits = chosen[0].view(np.int64) if len(chosen) == 1 else _rows(chosen)
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


def _rows(columns: Sequence[F64]) -> Array:
    """Returns columns of equal length as one array of opaque rows, which compare by their bits."""
    rows = np.stack(columns, axis=-1)
    return rows.view(np.dtype((np.void, rows.itemsize * len(columns))))[:, 0]


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
