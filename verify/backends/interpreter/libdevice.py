"""libdevice on the CPU: its symbols as functions on numpy arrays.

`lookup("__nv_erff")(x)` takes and returns the arrays of Triton's interpreter. There are three kinds of symbols:

- *exact* (arithmetic, of float32 toward zero too, fma, conversions, rounding to integers, bit operations):
  the hardware's bits, checked for all 145 such symbols with 4,096 arguments each.
- *evaluated* (erf, exp, tanh, ...): the correctly rounded value, from `functions`. The hardware's result differs by 1
  to 3 ULP for the measured float32 functions (more for lgamma, tgamma and integer powers). So results here do not show
  the hardware's error.
- *fast* (`fast_expf`, `fast_powf`, ...): the instruction sequence of the hardware, each instruction correctly rounded.
  The sequence causes their large errors, so these appear here too.

Triton compiles libdevice with flush-to-zero (`enable_reflect_ftz`, on by default). Most float32 functions take
subnormal arguments as zeros and return zeros for subnormal results. Triton's own operators (+, *, tl.fma) do not. Which
function flushes what comes from the PTX for sm_90 and was measured on an H200.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from verify.backends.interpreter import functions
from verify.backends.interpreter.approximations import (
    _LOG2_E,
    cos_approx,
    div_approx,
    ex2,
    in_float32,
    lg2,
    saturate,
    sin_approx,
    upper_words,
)
from verify.backends.interpreter.casts import float_to_int, int64_parts
from verify.backends.interpreter.fma import fma, fma_float64
from verify.backends.interpreter.minmax import maximum, minimum
from verify.backends.interpreter.rounding import DIRECTIONS, F32, F64, Array, flush, quiet, to_float32, to_odd, two_sum
from verify.errors import UsageError

Function = Callable[..., Array]


def _wide(f: Callable[..., F64]) -> Callable[..., F64]:
    """Returns f on operands widened to float64."""
    return lambda *args: f(*(a.astype(np.float64) for a in args))


def _add_odd(x: F32, y: F32) -> F64:
    """Returns x + y of float32, exact or rounded to odd."""
    return to_odd(*two_sum(x.astype(np.float64), y.astype(np.float64)))


#: float32 operations whose float64 value rounds correctly to float32 in each direction. A float64 quotient, root or
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
    """Returns the libdevice symbols of arithmetic and their functions: to nearest, and of float32 toward zero.

    No public kernel rounds results in another direction.
    """
    table: dict[str, Function] = {
        "__nv_fmaf": _fma32("rn"),
        **dict.fromkeys(("__nv_fma", "__nv_fma_rn"), fma_float64),
        "__nv_dadd_rn": np.add,
        "__nv_dsub_rn": np.subtract,
        "__nv_dmul_rn": np.multiply,
        "__nv_ddiv_rn": np.divide,
        "__nv_drcp_rn": functions.reciprocal,
        "__nv_dsqrt_rn": np.sqrt,
    }
    for direction in DIRECTIONS:
        for name, operation in OPERATIONS32.items():
            table[f"__nv_f{name}_{direction}"] = _directed(operation, direction)
        table[f"__nv_fmaf_{direction}"] = _fma32(direction)
        table[f"__nv_double2float_{direction}"] = _narrow(direction)
    return table


def _narrow(direction: str) -> Function:
    return lambda x: flush(to_float32(x, direction))


def _directed(f: Callable[..., F64], direction: str) -> Function:
    return lambda *args: flush(to_float32(f(*(flush(a) for a in args)), direction))


def _fma32(direction: str) -> Function:
    return lambda x, y, z: flush(fma(flush(x), flush(y), flush(z), "fp32", direction))


_TINY = np.float32(2.0**-126)
_LOG_TINY = 87.33654475055310  # -log(_TINY)


def lookup(symbol: str) -> Function:
    """Returns the function of a libdevice symbol. Raises UsageError if there is none."""
    try:
        return SYMBOLS[symbol]
    except KeyError:
        raise UsageError(
            f"libdevice: the interpreter backend has no {symbol}; it has {len(SYMBOLS)} symbols",
            hint=f"add {symbol!r} to SYMBOLS in verify/backends/interpreter/libdevice.py, or run on a GPU",
        ) from None


# -- conversions ----------------------------------------------------------------------------------

_ROUND: dict[str, Callable[[Array], Array]] = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}
_INTEGERS = {"int": np.int32, "uint": np.uint32, "ll": np.int64, "ull": np.uint64}


def _to_integer(source: str, target: str, suffix: str) -> Function:
    dtype, integral = np.dtype(_INTEGERS[target]), _ROUND[suffix]

    def call(x: Array) -> Array:
        whole = integral(flush(x) if source == "fp32" else x)
        # libdevice declares unsigned results as signed ones of the same bits.
        return float_to_int(whole, source, dtype).view(f"i{dtype.itemsize}")

    return call


def _from_integer(source: str, target: str, direction: str) -> Function:
    unsigned = source.startswith("u")

    def call(x: Array) -> Array:
        exact = x.view(f"{'u' if unsigned else 'i'}{x.dtype.itemsize}")
        if x.dtype.itemsize == 8:
            nearest, rest = int64_parts(exact)
        else:
            nearest, rest = exact.astype(np.float64), np.zeros(exact.shape)
        if target == "double":
            return nearest
        return to_float32(to_odd(nearest, rest), direction)

    return call


def _conversions() -> dict[str, Function]:
    table: dict[str, Function] = {}
    for integer in _INTEGERS:
        for suffix in _ROUND:
            table[f"__nv_float2{integer}_{suffix}"] = _to_integer("fp32", integer, suffix)
            table[f"__nv_double2{integer}_{suffix}"] = _to_integer("fp64", integer, suffix)
        for direction in DIRECTIONS:
            table[f"__nv_{integer}2float_{direction}"] = _from_integer(integer, "float", direction)
        table[f"__nv_{integer}2double_rn"] = _from_integer(integer, "double", "rn")
    to_ll = _to_integer("fp64", "ll", "rz")
    table |= {
        "__nv_llrintf": _to_integer("fp32", "ll", "rn"),
        "__nv_llrint": _to_integer("fp64", "ll", "rn"),
        "__nv_llroundf": lambda x: to_ll(half_away(flush(x).astype(np.float64))),
        "__nv_llround": lambda x: to_ll(half_away(x)),
    }
    return table


def half_away(x: Array) -> Array:
    """Rounds to the nearest integer, ties away from zero."""
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(x.dtype.type(1), x), whole)


# -- evaluated functions --------------------------------------------------------------------------

_EVALUATED: dict[str, Callable[..., Any]] = {
    name: getattr(functions, name)
    for name in (
        "acos acosh asin asinh atan atan2 atanh cbrt cos cosh cospi erf erfc erfinv exp exp10 exp2 expm1 fmod "
        "hypot lgamma log log10 log1p log2 normcdf rsqrt sin sinh sinpi tan tanh tgamma"
    ).split()
} | {
    "ceil": np.ceil, "fabs": np.abs, "floor": np.floor, "nearbyint": np.rint, "pow": functions.power,
    "rint": np.rint, "round": half_away, "sqrt": np.sqrt, "trunc": np.trunc,
}  # fmt: skip
#: float32: (flushes subnormal arguments, flushes subnormal results); functions not listed do both.
_FLUSHES: dict[str, tuple[bool, bool]] = {
    "exp": (True, False), "exp10": (True, False), "log": (False, False), "log2": (False, False),
    "log10": (False, False), "erfinv": (False, False), "pow": (False, True),
    "tgamma": (True, False),
}  # fmt: skip


def _evaluated() -> dict[str, Function]:
    table: dict[str, Function] = {}
    for name, f in _EVALUATED.items():
        inputs, result = _FLUSHES.get(name, (True, True))
        table[f"__nv_{name}"] = f
        table[f"__nv_{name}f"] = in_float32(f, inputs=inputs, result=result)
    power, cube_root = in_float32(functions.power, result=False), in_float32(functions.cbrt)
    table |= {
        "__nv_frsqrt_rn": in_float32(functions.rsqrt),
        "__nv_powif": lambda x, n: power(x, n.astype(np.float64)),
        "__nv_powi": lambda x, n: functions.power(x, n.astype(np.float64)),
        "__nv_erfcf": _vanishing(functions.erfc, lambda x: x * x),
        "__nv_normcdff": _vanishing(functions.normcdf, lambda x: 0.5 * x * x),
        # NaN for a subnormal: it combines a flushed exponent with an unflushed one
        "__nv_cbrtf": lambda x: np.where(_subnormal32(x), np.float32(np.nan), cube_root(x)),
    }
    return table


def _vanishing(f: Callable[..., Any], exponent: Callable[[Array], Array]) -> Function:
    """Returns f for erfcf and normcdff: they multiply by exp(-exponent(x)) and flush only that factor."""
    plain = in_float32(f, result=False)

    def call(x: F32) -> F32:
        out = plain(x)
        gone = (out < 0.25) & (exponent(x.astype(np.float64)) > _LOG_TINY)
        return np.where(gone, np.float32(0), out)

    return call


# -- fast functions: the hardware's sequences -----------------------------------------------------


def _fast() -> dict[str, Function]:
    return {
        "__nv_fast_sinf": sin_approx,
        "__nv_fast_cosf": cos_approx,
        "__nv_fast_tanf": lambda x: div_approx(sin_approx(x), cos_approx(x)),
        "__nv_fast_log2f": lg2,
        "__nv_fast_logf": lambda x: lg2(x) * np.float32(0.6931471805599453),
        "__nv_fast_log10f": lambda x: lg2(x) * np.float32(0.30102999566398120),
        "__nv_fast_expf": lambda x: ex2(x * _LOG2_E),
        "__nv_fast_exp10f": lambda x: ex2(x * np.float32(3.3219280948873624)),
        "__nv_fast_powf": lambda x, y: ex2(lg2(x) * y),
        "__nv_fast_fdividef": div_approx,
        "__nv_rcp64h": upper_words(functions.reciprocal),
    }


# -- the rest of float ----------------------------------------------------------------------------


def _subnormal32(x: Array) -> Array:
    if x.dtype != np.float32:
        return np.zeros(x.shape, dtype=bool)
    subnormal: Array = (np.abs(x) < _TINY) & (x != 0)
    return subnormal


def _ilogb(x: Array) -> Array:
    none = (x == 0) | np.isnan(x) | _subnormal32(x)
    out = np.where(none, np.int32(-(2**31)), (np.frexp(x)[1] - 1).astype(np.int32))
    return np.where(np.isinf(x), np.int32(2**31 - 1), out)


def _logb(x: Array) -> Array:
    exponent = np.where(_subnormal32(x), -150.0, np.frexp(x)[1] - 1.0)
    out = np.where(x == 0, -np.inf, exponent)
    return np.where(np.isfinite(x), out, np.abs(x)).astype(x.dtype)


def _ldexp(x: Array, n: Array) -> Array:
    # float32 libdevice multiplies a subnormal by two for any n.
    return np.where(_subnormal32(x), x + x, np.ldexp(x, n))


def _nextafter(x: Array, y: Array) -> Array:
    if x.dtype == np.float64:
        return np.nextafter(x, y)
    x, y = flush(x), flush(y)
    from_zero = np.where(y > 0, _TINY, -_TINY)
    out = np.where(x == 0, from_zero, np.nextafter(x, y))
    return np.where(x == y, y, np.where(np.isnan(y), y, out))


def _as_int(test: Callable[[Array], Array]) -> Function:
    return lambda x: test(x).astype(np.int32)


def _extremum(f: Callable[..., Array], name: str) -> Function:
    return lambda x, y: f(x, y, name, propagate_nan=False)


def _float_rest() -> dict[str, Function]:
    table: dict[str, Function] = {"__nv_saturatef": lambda x: saturate(flush(x))}
    for suffix, name in (("", "fp64"), ("f", "fp32")):
        table |= {
            f"__nv_fmax{suffix}": _extremum(maximum, name),
            f"__nv_fmin{suffix}": _extremum(minimum, name),
            f"__nv_copysign{suffix}": np.copysign,
            f"__nv_nextafter{suffix}": _nextafter,
            f"__nv_ldexp{suffix}": _ldexp,
            f"__nv_scalbn{suffix}": _ldexp,
            f"__nv_ilogb{suffix}": _ilogb,
            f"__nv_logb{suffix}": _logb,
            f"__nv_fdim{suffix}": lambda x, y: np.where(x <= y, x.dtype.type(0), x - y),
            f"__nv_isnan{suffix or 'd'}": _as_int(np.isnan),
            f"__nv_isinf{suffix or 'd'}": _as_int(np.isinf),
            f"__nv_signbit{suffix or 'd'}": _as_int(np.signbit),
        }
    return table | {"__nv_finitef": _as_int(np.isfinite), "__nv_isfinited": _as_int(np.isfinite)}


# -- integers and bits: exact, signed or unsigned by the symbol -------------------------------------------


def _unsigned(x: Array) -> Array:
    return x.view(f"u{x.dtype.itemsize}")


def _bits(x: Array) -> Array:
    """Returns the bits of each element along a last axis, most significant first."""
    big_endian = np.ascontiguousarray(x).astype(x.dtype.newbyteorder(">"))
    return np.unpackbits(big_endian.view(np.uint8).reshape(*x.shape, x.dtype.itemsize), axis=-1)


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


def _word(shift: int) -> Callable[[Array], Array]:
    return lambda x: (x.view(np.uint64) >> np.uint64(shift)).astype(np.uint32).view(np.int32)


def _from_words(high: Array, low: Array) -> Array:
    words = (_unsigned(high).astype(np.uint64) << np.uint64(32)) | _unsigned(low).astype(np.uint64)
    return words.view(np.float64)


_BITS: dict[str, Callable[..., Array]] = {
    "__nv_clz": clz, "__nv_clzll": clz, "__nv_popc": popc, "__nv_popcll": popc,
    "__nv_ffs": ffs, "__nv_ffsll": ffs, "__nv_brev": brev, "__nv_brevll": brev,
    "__nv_byte_perm": byte_perm, "__nv_mulhi": mulhi32, "__nv_umulhi": mulhi32,
    "__nv_mul64hi": mulhi64, "__nv_umul64hi": mulhi64, "__nv_abs": np.abs, "__nv_llabs": np.abs,
    "__nv_int_as_float": lambda x: x.view(np.float32),
    "__nv_uint_as_float": lambda x: x.view(np.float32),
    "__nv_float_as_int": lambda x: x.view(np.int32),
    "__nv_float_as_uint": lambda x: x.view(np.int32),
    "__nv_longlong_as_double": lambda x: x.view(np.float64),
    "__nv_double_as_longlong": lambda x: x.view(np.int64),
    "__nv_double2loint": _word(0), "__nv_double2hiint": _word(32), "__nv_hiloint2double": _from_words,
}  # fmt: skip


SYMBOLS: dict[str, Function] = {
    name: quiet(f)
    for table in (arithmetic(), _conversions(), _evaluated(), _fast(), _float_rest(), _BITS)
    for name, f in table.items()
}
