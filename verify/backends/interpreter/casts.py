"""Casts between Triton's number types, bit for bit as an NVIDIA GPU performs them, on numpy arrays.

`convert(data, "fp32", "bf16")` takes and returns arrays as Triton's interpreter stores them: bfloat16 as uint16, float8
as uint8, others as numpy's own types. Types have Triton's names.

The hardware's rules come from the PTX that Triton 3.6.0 emits for sm_90 (and sm_80 if it differs):

- Float to narrower float: one rounding to nearest even, also for float64 to bfloat16 and float16 (`cvt.rn.bf16.f64`;
  on sm_80 the compiler goes through float32 rounded to odd, which gives the same value). NaN becomes 0x7fff.
- Float to float8: `cvt.rn.satfinite`. Everything beyond the largest finite number (448, 57344), infinity included,
  becomes that number. NaN stays NaN (0x7f). PyTorch's own casts do not saturate.
- `fp_downcast_rounding="rtz"` truncates. To float8e5, it goes through float16 and keeps infinity. Pairs that Triton
  cannot compile (rtz from float64, rtz to float8e4nv, float64 to float8) give the single rounding here.
- float8e5 to bfloat16 is a shift and a multiplication by 2^112 on sm_90. It maps infinity to 65536 and the three NaNs
  to 81920, 98304 and 114688; so does this module.
- Float to integer (`cvt.rzi`): truncation, saturation at the ends of the range. NaN gives 0 for float16, bfloat16 and
  float32 sources with destinations up to 32 bits, else the pattern 100...0. 8-bit destinations saturate to 16 bits
  and keep the low byte: 300.0 becomes 44.
- Integer to float: one rounding to nearest even.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from verify.backends.interpreter.rounding import F32, F64, Array, narrow_to_odd, quiet, to_float32, to_odd, two_sum


@dataclass(frozen=True)
class Float8:
    """The layout of a float8 type; `max_bits` is its largest finite pattern, after which `has_inf` puts infinity."""

    mantissa: int
    bias: int
    max_bits: int
    has_inf: bool


FLOAT8 = {
    "fp8e4nv": Float8(mantissa=3, bias=7, max_bits=0x7E, has_inf=False),
    "fp8e5": Float8(mantissa=2, bias=15, max_bits=0x7B, has_inf=True),
}
#: The numpy type that the interpreter stores for each float type.
STORAGE: dict[str, np.dtype[Any]] = {
    "fp64": np.dtype(np.float64),
    "fp32": np.dtype(np.float32),
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),
    "fp8e4nv": np.dtype(np.uint8),
    "fp8e5": np.dtype(np.uint8),
}


def is_float(name: str) -> bool:
    """True if a Triton type name is a float type that this module converts."""
    return name in STORAGE


@quiet
def convert(data: Array, src: str, dst: str, rounding: str = "rtne") -> Array:
    """Casts between two float types; `rounding` is Triton's "rtne" or "rtz" and matters for narrower types."""
    _known(src)
    _known(dst)
    if src == dst:
        return data
    if src == "fp8e5" and dst == "bf16":
        return _float8e5_to_bfloat16()[data]
    return narrow(widen(data, src), dst, rounding)


def widen(data: Array, src: str) -> Array:
    """Returns the values as float32, or float64 for float64. This is exact, because float32 holds every other type."""
    if src == "bf16":
        return (data.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if src in FLOAT8:
        return _float8_values(src)[data]
    if src == "fp16":
        return data.astype(np.float32)
    return data


@quiet
def narrow(values: Array, dst: str, rounding: str = "rtne") -> Array:
    """Rounds float32 or float64 values once to the type `dst`, in its storage."""
    if rounding not in ("rtne", "rtz"):
        raise ValueError(f"fp_downcast_rounding is 'rtne' or 'rtz'; got {rounding!r}")
    wide = values.dtype == np.float64
    if dst == "fp64":
        return values.astype(np.float64)
    if dst == "fp32":
        return to_float32(values, "rn" if rounding == "rtne" else "rz") if wide else values
    # 24 bits rounded to odd leave room for every 16-bit and 8-bit format: no double rounding.
    x: F32 = narrow_to_odd(values) if wide else values.astype(np.float32, copy=False)
    if dst == "bf16":
        return _to_bfloat16(x, rounding)
    if dst == "fp16":
        return _to_float16(x, rounding)
    return _to_float8(x, dst, rounding)


def _known(name: str) -> None:
    if name not in STORAGE:
        raise TypeError(
            f"cast: the faithful interpreter knows the float types {', '.join(STORAGE)}; got {name}. "
            f"Next: use one of these, or add the type to verify/backends/interpreter/casts.py"
        )


def _to_bfloat16(x: F32, rounding: str) -> Array:
    bits = np.ascontiguousarray(x).view(np.uint32)
    if rounding != "rtz":
        bits = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    out = (bits >> np.uint32(16)).astype(np.uint16)
    nan = np.isnan(x)
    if np.count_nonzero(nan):
        out[nan] = 0x7FFF
    return out


def _to_float16(x: F32, rounding: str) -> Array:
    out = x.astype(np.float16)
    if rounding == "rtz":
        too_far = np.abs(out.astype(np.float32)) > np.abs(x)
        # One step towards zero is one less in sign-magnitude bits, also from infinity to 65504.
        out = (out.view(np.uint16) - too_far).astype(np.uint16).view(np.float16)
    nan = np.isnan(x)
    if np.count_nonzero(nan):
        out.view(np.uint16)[nan] = 0x7FFF
    return out


def _to_float8(x: F32, dst: str, rounding: str) -> Array:
    spec = FLOAT8[dst]
    bits = np.ascontiguousarray(x).view(np.uint32)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    drop = np.uint32(23 - spec.mantissa)
    rebias = np.uint32((127 - spec.bias) << spec.mantissa)
    size = np.abs(x)
    min_normal = np.float32(2.0 ** (1 - spec.bias))
    steps = size * np.float32(2.0 ** (spec.bias - 1 + spec.mantissa))
    if rounding == "rtne":
        half = ((np.uint32(1) << (drop - np.uint32(1))) - np.uint32(1)) + ((magnitude >> drop) & np.uint32(1))
        normal = ((magnitude + half) >> drop) - rebias
        small = np.rint(np.minimum(steps, np.float32(256))).astype(np.uint32)
    else:
        normal = (magnitude >> drop) - rebias
        small = np.minimum(steps, np.float32(256)).astype(np.uint32)
    out = np.where(size < min_normal, small, normal)
    out = np.where(size >= min_normal, np.minimum(out, np.uint32(spec.max_bits)), out)
    if rounding == "rtz" and spec.has_inf:
        out = np.where(np.isinf(x), np.uint32(spec.max_bits + 1), out)
    codes: Array = (out | ((bits >> np.uint32(24)) & np.uint32(0x80))).astype(np.uint8)
    codes[np.isnan(x)] = 0x7F
    return codes


@functools.cache
def _float8_values(name: str) -> F32:
    """Returns all 256 values of a float8 type."""
    spec = FLOAT8[name]
    code = np.arange(256)
    exponent, fraction = (code & 0x7F) >> spec.mantissa, code & ((1 << spec.mantissa) - 1)
    hidden = np.where(exponent > 0, 1 << spec.mantissa, 0)
    scale = np.maximum(exponent, 1) - spec.bias - spec.mantissa
    values = np.ldexp((hidden + fraction).astype(np.float64), scale)
    values = np.where((code & 0x7F) > spec.max_bits, np.nan, values)
    if spec.has_inf:
        values = np.where((code & 0x7F) == spec.max_bits + 1, np.inf, values)
    return np.where(code >= 128, -values, values).astype(np.float32)


@functools.cache
def _float8e5_to_bfloat16() -> Array:
    """Returns sm_90's result for all 256 codes: mantissa and exponent shifted into place, then times 2^112."""
    code = np.arange(256, dtype=np.uint16)
    moved = ((code & 0x7F) << 5) | ((code & 0x80) << 8)
    return _to_bfloat16(widen(moved, "bf16") * np.float32(2.0**112), "rtne")


@quiet
def float_to_int(data: Array, src: str, dst: np.dtype[np.generic]) -> Array:
    """Truncates to an integer type as `cvt.rzi` does: saturating, with PTX's own rule for NaN."""
    values = widen(data, src)
    bits = dst.itemsize * 8
    # PTX has no 8-bit conversion: the compiler converts to 16 bits and the store keeps the low byte.
    target = np.dtype(f"{dst.kind}{max(bits, 16) // 8}")
    info = np.iinfo(target)
    wide: F64 = values.astype(np.float64)
    whole = np.trunc(wide)
    low, high = float(info.min), float(info.max) + (1.0 if target.itemsize == 8 else 0.0)
    inside = (whole >= low) & ((whole < high) if target.itemsize == 8 else (whole <= high))
    out = np.where(inside, whole, 0.0).astype(target)
    out = np.where(whole >= high, target.type(info.max), out)
    out = np.where(whole <= low, target.type(info.min), out)
    nan = np.isnan(wide)
    if np.count_nonzero(nan):
        keeps_zero = src != "fp64" and target.itemsize < 8
        pattern = 0 if keeps_zero else (info.min if target.kind == "i" else 1 << (target.itemsize * 8 - 1))
        out = np.where(nan, target.type(pattern), out)
    return out.astype(dst)


@quiet
def int_to_float(data: Array, dst: str) -> Array:
    """Converts an integer or bool to a float type, rounded once to nearest even."""
    _known(dst)
    if dst in ("fp32", "fp64"):
        return data.astype(STORAGE[dst])  # a single hardware conversion from every integer type
    if data.dtype.kind == "b" or data.dtype.itemsize <= 4:
        return narrow(data.astype(np.float64), dst)
    return narrow(to_odd(*int64_parts(data)), dst)  # rounded to odd, so this rounding is the only one


def int64_parts(data: Array) -> tuple[F64, F64]:
    """Returns 64-bit integers as (nearest float64, exact rest)."""
    high = (data >> 32).astype(np.float64) * 4294967296.0
    return two_sum(high, (data & 0xFFFFFFFF).astype(np.float64))
