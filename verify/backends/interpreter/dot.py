"""tl.dot on the CPU with the roundings of the GPU's units: bit for bit an H200's.

- float32 with `input_precision="ieee"` is a chain of `fma.rn.f32` in the order of k; float64 likewise.
- float32 with "tf32": Triton passes the float32 patterns to the matrix unit, which ignores the low 13 bits. Operands
  are truncated to 11 significant bits, not rounded.
- float32 with "tf32x3": each operand is a rounded tf32 (`cvt.rna`: ties away from zero) plus the rest, truncated.
  small * big, then big * small, then big * big are added from zero. NaN among the small terms is replaced by 0. The
  accumulator is added last.
- float16, bfloat16, float8: products are exact.

The matrix units do not add as IEEE 754 requires; `_matrix_unit` imitates them. It was fitted to 104 products of 64 x k
by k x 64 matrices (k = 16 to 128) recorded on an H200, and agrees with all 425,984 elements.

Three things can still differ on a GPU. The compiler turns `acc += tl.dot(a, b)` into `tl.dot(a, b, acc)`. Other
architectures, and blocks too small for `wgmma`, may sum other groups with other widths. A `max_num_imprecise_acc` below
k makes float8 products leave the matrix unit in between.
"""

from dataclasses import dataclass

import numpy as np

from verify.backends.interpreter.casts import narrow, widen
from verify.backends.interpreter.fma import fma
from verify.backends.interpreter.rounding import F32, F64, Array, quiet, to_float32


@dataclass(frozen=True)
class _Unit:
    """A matrix instruction: products per instruction, and fraction bits below the largest exponent."""

    group: int
    fraction: int


_UNITS = {
    "fp32": _Unit(8, 25),
    "fp16": _Unit(16, 25),
    "bf16": _Unit(16, 25),
    "fp8e4nv": _Unit(32, 13),
    "fp8e5": _Unit(32, 13),
}
_ABSENT = -(2**20)  # the exponent of a zero, below every other


@quiet
def dot(a: Array, b: Array, acc: Array, operands: str, other: str, result: str, precision: str) -> Array:
    """Returns a @ b + acc in the storage of the Triton type `result`; batches lead.

    `operands` is the type of a, `other` the type of b; they differ only for float8.
    """
    if operands.startswith(("int", "uint")):
        product: Array = np.matmul(a, b, dtype=acc.dtype)
        return product + acc
    if operands == "fp64" or (operands == "fp32" and precision.lower() == "ieee"):
        return _fma_chain(a, b, acc, operands)
    if operands == "fp32":
        if precision.lower() == "tf32x3":
            return _three_products(a, b) + acc
        a, b = truncate_tf32(a), truncate_tf32(b)
    else:
        a, b = widen(a, operands), widen(b, other)
    return _matrix_unit(a, b, acc, operands, result)


def truncate_tf32(x: F32) -> F32:
    """Returns a float32 as the matrix unit reads it, without the low 13 bits."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


def round_tf32(x: F32) -> F32:
    """Computes `cvt.rna.tf32.f32`: the nearest tf32, ties away from zero; infinities and NaN unchanged."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(x), rounded, x)


def _fma_chain(a: Array, b: Array, acc: Array, name: str) -> Array:
    """Computes a product by one chain of fma per element, in the order of k."""
    out = np.ascontiguousarray(acc)
    a, b = a.astype(np.float64), b.astype(np.float64)  # converted once, not in each step
    for k in range(a.shape[-1]):
        out = fma(a[..., :, k : k + 1], b[..., k : k + 1, :], out, name)
    return out


def _three_products(a: F32, b: F32) -> Array:
    """Computes a tf32x3 product of float32, without the accumulator."""
    a_big, b_big = round_tf32(a), round_tf32(b)
    a_small, b_small = truncate_tf32(a - a_big), truncate_tf32(b - b_big)
    zero = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32)
    small = _matrix_unit(a_small, b_big, zero, "fp32", "fp32")
    small = _matrix_unit(a_big, b_small, small, "fp32", "fp32")
    small = np.where(np.isnan(small), np.float32(0), small)
    return _matrix_unit(a_big, b_big, small, "fp32", "fp32")


def _matrix_unit(a: F32, b: F32, acc: Array, operands: str, result: str) -> Array:
    """Adds products to the accumulator group by group of k: cuts both to fixed point, then adds exactly.

    The largest exponent among the products and the accumulator sets the fixed point; a product's exponent is the sum of
    its operands', even if the product carries. `fraction` bits below it are kept, the rest is cut off. Then the sum is
    truncated to float32, to 14 significant bits for float8 operands, or rounded to nearest for a float16 accumulator.
    """
    unit = _UNITS[operands]
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    a_exponent, b_exponent = _exponent(a64), _exponent(b64)
    out = widen(acc, result).astype(np.float64)
    for start in range(0, a.shape[-1], unit.group):
        ks = slice(start, min(start + unit.group, a.shape[-1]))
        # One group at a time, k between rows and columns. The addends are whole numbers below 2^33, so any order is
        # exact. The sum starts from -0, so a sum of only -0 keeps its sign.
        exponents = a_exponent[..., :, ks, None] + b_exponent[..., None, ks, :]
        top = np.maximum(_exponent(out), exponents.max(axis=-2))
        # -400: if all terms are zero or tiny, any scale that float64 holds is exact.
        scale = np.ldexp(1.0, unit.fraction - np.maximum(top, -400))
        products = a64[..., :, ks, None] * b64[..., None, ks, :]
        products *= scale[..., :, None, :]
        total = np.trunc(out * scale) + np.trunc(products, out=products).sum(axis=-2, initial=-0.0)
        summed = _leave(total / scale, operands, result)
        if not np.isfinite(summed).all():
            plain = np.matmul(a64[..., start : ks.stop], b64[..., start : ks.stop, :]) + out
            summed = np.where(np.isfinite(plain), summed, plain)
        out = summed
    return narrow(out, result)


def _exponent(x: F64) -> Array:
    """Returns floor(log2 |x|), and _ABSENT for 0."""
    return np.where(x == 0, _ABSENT, np.frexp(x)[1] - 1)


def _leave(total: F64, operands: str, result: str) -> F64:
    """Returns the unit's output for its exact sum."""
    if result == "fp16":
        return widen(narrow(total, "fp16"), "fp16").astype(np.float64)
    if operands.startswith("fp8"):
        mantissa, exponent = np.frexp(total)
        cut: F64 = np.ldexp(np.trunc(np.ldexp(mantissa, 14)), exponent - 14)
        return cut
    return to_float32(total, "rz").astype(np.float64)
