"""Addition, product, quotient, root and reciprocal in a stated rounding direction.

libdevice's float32 versions (`__nv_fadd_rz`, ...) flush subnormals, its float64 versions do not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from verify.backends.interpreter import functions
from verify.backends.interpreter.fma import fma, fma_float64, step
from verify.backends.interpreter.rounding import F32, F64, Array, flush, to_float32, to_odd, two_sum

Function = Callable[..., Array]
#: Suffixes of libdevice and their PTX directions.
DIRECTIONS = {"rn": "rn", "rz": "rz", "rd": "rm", "ru": "rp"}


def _wide(f: Callable[..., F64]) -> Callable[..., F64]:
    """Returns f on operands widened to float64."""
    return lambda *args: f(*(a.astype(np.float64) for a in args))


def _add_odd(x: F32, y: F32) -> F64:
    """Returns x + y of float32, exact or rounded to odd."""
    return to_odd(*two_sum(x.astype(np.float64), y.astype(np.float64)))


#: float32 operations whose float64 value rounds correctly to float32 in every direction. A float64 quotient, root or
#: reciprocal of 24-bit numbers cannot lie on a 25-bit boundary unless it is exact.
OPERATIONS32: dict[str, Callable[..., F64]] = {
    "add": _add_odd,
    "sub": lambda x, y: _add_odd(x, -y),
    "mul": _wide(np.multiply),
    "div": _wide(np.divide),
    "rcp": _wide(functions.reciprocal),
    "sqrt": _wide(np.sqrt),
}


def arithmetic() -> dict[str, Function]:
    """Returns the libdevice symbols of arithmetic and their functions."""
    table: dict[str, Function] = {"__nv_fmaf": _fma32("rn"), "__nv_fma": _fma64("rn")}
    for suffix, direction in DIRECTIONS.items():
        for name in ("mul", "div", "rcp", "sqrt"):
            table[f"__nv_f{name}_{suffix}"] = _directed(OPERATIONS32[name], direction)
        for name in ("ddiv", "drcp", "dsqrt"):
            table[f"__nv_{name}_{suffix}"] = _divide64(name, direction)
        table |= {
            f"__nv_fmaf_{suffix}": _fma32(direction),
            f"__nv_fma_{suffix}": _fma64(direction),
            f"__nv_fadd_{suffix}": _add32(direction, 1),
            f"__nv_dadd_{suffix}": _add64(direction, 1),
            f"__nv_fsub_{suffix}": _add32(direction, -1),
            f"__nv_dsub_{suffix}": _add64(direction, -1),
            f"__nv_dmul_{suffix}": _mul64(direction),
            f"__nv_double2float_{suffix}": _narrow(direction),
        }
    return table


def _narrow(direction: str) -> Function:
    return lambda x: flush(to_float32(x, direction))


def _directed(f: Callable[..., F64], direction: str) -> Function:
    return lambda *args: flush(to_float32(f(*(flush(a) for a in args)), direction))


def _fma32(direction: str) -> Function:
    return lambda x, y, z: flush(fma(flush(x), flush(y), flush(z), "fp32", direction))


def _add32(direction: str, sign: int) -> Function:
    # fma(x, 1, y) also gives an exact zero the sign of its rounding direction.
    def call(x: F32, y: F32) -> F32:
        addend = flush(y) if sign > 0 else -flush(y)
        return flush(fma(flush(x), np.ones_like(x), addend, "fp32", direction))

    return call


def _fma64(direction: str) -> Function:
    return lambda x, y, z: fma_float64(x, y, z, direction)


def _add64(direction: str, sign: int) -> Function:
    return lambda x, y: fma_float64(x, np.ones_like(x), y if sign > 0 else -y, direction)


def _mul64(direction: str) -> Function:
    # The added zero has the sign of the product, so a zero product keeps its sign.
    def call(x: F64, y: F64) -> F64:
        zero = np.where(np.signbit(x) ^ np.signbit(y), -0.0, 0.0)
        return fma_float64(x, y, zero, direction)

    return call


def _divide64(name: str, direction: str) -> Function:
    """Returns a float64 quotient, reciprocal or root: the nearest on mantissas, moved by its exact residual."""
    if direction == "rn":
        nearest: dict[str, Function] = {"ddiv": np.divide, "drcp": functions.reciprocal, "dsqrt": np.sqrt}
        return nearest[name]

    def root(x: F64) -> tuple[F64, F64, Array]:
        m, e = np.frexp(x)
        odd = e % 2
        m = np.ldexp(m, odd)
        q = np.sqrt(m)
        return q, fma_float64(-q, q, m), (e - odd) // 2

    def quotient(x: F64, y: F64) -> tuple[F64, F64, Array]:
        (mx, ex), (my, ey) = np.frexp(x), np.frexp(y)
        q = mx / my
        return q, fma_float64(-q, my, mx) * np.sign(my), ex - ey

    def call(x: F64, y: F64 | None = None) -> F64:
        top, bottom = (np.ones_like(x), x) if y is None else (x, y)
        q, rest, exponent = root(x) if name == "dsqrt" else quotient(top, bottom)
        out = np.ldexp(q, exponent)
        lost = q - np.ldexp(out, -exponent)
        rest = np.where(np.isinf(out), -np.sign(out), np.where(lost == 0, rest, lost))
        plain = np.sqrt(x) if name == "dsqrt" else top / bottom
        usable = np.isfinite(x) & (x > 0) if name == "dsqrt" else np.isfinite(top) & np.isfinite(bottom)
        usable = usable & (top != 0) & (bottom != 0)
        return np.where(usable, step(out, np.where(usable, rest, 0.0), direction), plain)

    return call
