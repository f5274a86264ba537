"""libdevice's integer and bit functions on numpy arrays: exact, signed or unsigned by the symbol."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from verify.backends.interpreter.rounding import Array


def _unsigned(x: Array) -> Array:
    return x.view(f"u{x.dtype.itemsize}")


def _bits(x: Array) -> Array:
    """Returns the bits of each element along a last axis, most significant first."""
    big_endian = np.ascontiguousarray(x).astype(x.dtype.newbyteorder(">"))
    size = x.dtype.itemsize
    return np.unpackbits(big_endian.view(np.uint8).reshape(*x.shape, size), axis=-1)


def clz(x: Array) -> Array:
    """Counts leading zeros; the width for 0."""
    bits = _bits(x)
    out: Array = np.where(bits.any(axis=-1), bits.argmax(axis=-1), bits.shape[-1]).astype(np.int32)
    return out


def popc(x: Array) -> Array:
    """Counts set bits."""
    out: Array = _bits(x).sum(axis=-1).astype(np.int32)
    return out


def ffs(x: Array) -> Array:
    """Returns 1 + the position of the lowest set bit; 0 for 0."""
    bits = _bits(x)[..., ::-1]
    return np.where(bits.any(axis=-1), bits.argmax(axis=-1) + 1, 0).astype(np.int32)


def brev(x: Array) -> Array:
    """Returns the bits in reverse order."""
    packed = np.packbits(_bits(x)[..., ::-1], axis=-1)
    return packed.view(x.dtype.newbyteorder(">")).reshape(x.shape).astype(x.dtype)


def byte_perm(x: Array, y: Array, selector: Array) -> Array:
    """Returns four bytes of the eight of (y, x), chosen by the low three bits of each nibble of the selector."""
    both = (_unsigned(y).astype(np.uint64) << np.uint64(32)) | _unsigned(x).astype(np.uint64)
    out = np.zeros_like(both)
    for i in range(4):
        choice = (_unsigned(selector).astype(np.uint64) >> np.uint64(4 * i)) & np.uint64(7)
        out |= ((both >> (choice * np.uint64(8))) & np.uint64(0xFF)) << np.uint64(8 * i)
    return out.astype(np.uint32).view(np.int32)


def mulhi32(x: Array, y: Array) -> Array:
    """Returns the high half of the 64-bit product, signed or unsigned by the arrays' type."""
    wide = np.int64 if x.dtype.kind == "i" else np.uint64
    return ((x.astype(wide) * y.astype(wide)) >> 32).astype(x.dtype)


def mulhi64(x: Array, y: Array) -> Array:
    """Returns the high half of the 128-bit product, by 32-bit halves; signed operands are corrected afterwards."""
    a, b = _unsigned(x), _unsigned(y)
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    al, ah, bl, bh = a & low, a >> shift, b & low, b >> shift
    middle = (al * bl >> shift) + (ah * bl & low) + (al * bh & low)
    high: Array = ah * bh + (ah * bl >> shift) + (al * bh >> shift) + (middle >> shift)
    if x.dtype.kind == "i":
        high = high - np.where(x < 0, b, np.uint64(0)) - np.where(y < 0, a, np.uint64(0))
    return high.view(x.dtype)


def mul24(x: Array, y: Array) -> Array:
    """Returns the low 32 bits of the product of the low 24 bits, sign-extended for signed types."""

    def low24(v: Array) -> Array:
        eight = v.dtype.type(8)
        out: Array = (v << eight) >> eight
        return out

    return low24(x) * low24(y)


def sad(x: Array, y: Array, z: Array) -> Array:
    """Returns |x - y| + z, modulo 2^32."""
    distance = np.abs(x.astype(np.int64) - y.astype(np.int64)).astype(np.uint32)
    return (distance + _unsigned(z)).view(x.dtype)


def _average(rounding: int) -> Callable[[Array, Array], Array]:
    return lambda x, y: ((x.astype(np.int64) + y.astype(np.int64) + rounding) >> 1).astype(x.dtype)


def _word(shift: int) -> Callable[[Array], Array]:
    return lambda x: (x.view(np.uint64) >> np.uint64(shift)).astype(np.uint32).view(np.int32)


def _from_words(high: Array, low: Array) -> Array:
    words = (_unsigned(high).astype(np.uint64) << np.uint64(32)) | _unsigned(low).astype(np.uint64)
    return words.view(np.float64)


SYMBOLS: dict[str, Callable[..., Array]] = {
    "__nv_clz": clz, "__nv_clzll": clz, "__nv_popc": popc, "__nv_popcll": popc,
    "__nv_ffs": ffs, "__nv_ffsll": ffs, "__nv_brev": brev, "__nv_brevll": brev,
    "__nv_byte_perm": byte_perm, "__nv_mulhi": mulhi32, "__nv_umulhi": mulhi32,
    "__nv_mul64hi": mulhi64, "__nv_umul64hi": mulhi64, "__nv_mul24": mul24, "__nv_umul24": mul24,
    "__nv_sad": sad, "__nv_usad": sad, "__nv_abs": np.abs, "__nv_llabs": np.abs,
    "__nv_hadd": _average(0), "__nv_uhadd": _average(0), "__nv_rhadd": _average(1),
    "__nv_urhadd": _average(1),
    "__nv_int_as_float": lambda x: x.view(np.float32),
    "__nv_uint_as_float": lambda x: x.view(np.float32),
    "__nv_float_as_int": lambda x: x.view(np.int32),
    "__nv_float_as_uint": lambda x: x.view(np.int32),
    "__nv_longlong_as_double": lambda x: x.view(np.float64),
    "__nv_double_as_longlong": lambda x: x.view(np.int64),
    "__nv_double2loint": _word(0), "__nv_double2hiint": _word(32), "__nv_hiloint2double": _from_words,
}  # fmt: skip
