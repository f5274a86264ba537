"""Functions that are rounded correctly to any format, and so have the same bits on every machine.

NumPy, PyTorch and the C library choose their code by the processor: the last bits of `np.exp` are others with
AVX-512 than without. Here they only propose. A result narrower than float64 is taken from the proposal unless a
rounding boundary lies within 2^-44 of it (one element in a million for float32, fewer for the 16-bit formats); that
one, and every result in float64, is enclosed in an Arb ball and rounded once. An exact value has one correct
rounding, whoever computes it: it depends on no instruction set, no library version and no order of operations.

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

NEAR = 2.0**-44  # more than any proposal is off, relatively
_BELOW, _ABOVE = 1.0 - NEAR, 1.0 + NEAR
_BITS = (96, 192, 384, 768, 1536)
_KNOWN = 1 << 16  # values of a function that are remembered: kernels are called with the same input again and again
_SHORT = 128  # more bits than any tie between neighbours of a format has


@dataclass(frozen=True)
class Evaluated:
    """A function of float64 arrays: `propose` is near its value, `ball` encloses it at Arb's precision.

    Where the value is not finite, is zero, or an argument is a zero or not finite, the proposal decides: it knows
    poles, limits and the signs of zeros. `far(*arguments, proposed)` says where it is asked for nothing else.
    """

    propose: Callable[..., F64]
    ball: Callable[..., Any]
    far: Callable[..., Array] | None = None
    _known: dict[Callable[[Any], float], dict[Any, float]] = field(default_factory=dict)

    def __call__(self, *arguments: F64) -> F64:
        """The correctly rounded float64; 2 to 6 microseconds an element."""
        proposed = self.propose(*arguments)
        return self._settled(arguments, proposed, ~np.isnan(proposed), float)

    def rounded(self, name: str, *arguments: F64) -> Array:
        """The correctly rounded value in the storage of the Triton type `name`. Every NaN is one."""
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
        """The proposal, with NaN made one and the doubtful elements replaced by what `read` makes of their balls."""
        out = np.where(np.isnan(proposed), np.nan, proposed)
        chosen = [np.ascontiguousarray(np.broadcast_to(a, out.shape)[doubtful]) for a in arguments]
        # Blocks are padded, with one value in most of a small tensor's lanes: each argument is enclosed once.
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
        """What `read` makes of the exact value, as soon as it makes the same of both ends of its ball."""
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
            low = read(_short(ball.mid()))  # no precision tells it from a boundary, so it lies on one
        return math.copysign(low, guess) if low == 0.0 or 0.0 in values else low


def _rows(columns: Sequence[F64]) -> Array:
    """Columns of equal length as one array of opaque rows, which compare by their bits."""
    rows = np.stack(columns, axis=-1)
    return rows.view(np.dtype((np.void, rows.itemsize * len(columns))))[:, 0]


def _short(exact: Any) -> Any:
    """A number of Arb rounded to nearest at `_SHORT` bits; Arb's own operations truncate."""
    mantissa, exponent = (int(part) for part in exact.man_exp())
    drop = max(mantissa.bit_length() - _SHORT, 0)
    return flint.arb((mantissa + ((1 << drop) >> 1)) >> drop) * flint.arb(2) ** (exponent + drop)


def _narrow(values: F64, name: str) -> Array:
    return values.astype(np.float32) if name == "fp32" else narrow(values, name)


def _odd(exact: Any) -> float:
    """A number of Arb as float64, rounded to odd: the next rounding, to a narrower format, is then the only one."""
    nearest = float(exact)
    if nearest == exact or math.isinf(nearest) or np.float64(nearest).view(np.int64) & 1:
        return nearest
    return math.nextafter(nearest, math.inf if exact > nearest else -math.inf)
