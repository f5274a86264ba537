"""The PTX instructions of the interpreter, as functions from register patterns to register patterns.

`decode("fma.rn.ftz.f32")` returns an `Instruction`, or None for an unknown one. Patterns are unsigned integer arrays;
the type in the opcode says how to read them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from verify.backends.interpreter import approximations, casts, functions, minmax
from verify.backends.interpreter.dot import round_tf32
from verify.backends.interpreter.fma import fma
from verify.backends.interpreter.libdevice import OPERATIONS32, mulhi32, mulhi64
from verify.backends.interpreter.rounding import DIRECTIONS, Array, flush, to_float32

#: PTX float type -> Triton's name; the x2 types are two of the narrow ones in one register.
_FLOATS = {"f64": "fp64", "f32": "fp32", "f16": "fp16", "bf16": "bf16"}
_PAIRS = {"f16x2": "f16", "bf16x2": "bf16"}
_INTEGERS = {f"{kind}{bits}": np.dtype(f"{kind.replace('s', 'i').replace('b', 'u')}{bits // 8}")
             for kind in "sub" for bits in (16, 32, 64)}  # fmt: skip
_UNARY: dict[str, Callable[..., Array]] = {
    "ex2": functions.exp2, "lg2": functions.log2, "rcp": functions.reciprocal, "rsqrt": functions.rsqrt,
    "sqrt": np.sqrt, "sin": functions.sin, "cos": functions.cos, "tanh": functions.tanh,
}  # fmt: skip
_BINARY: dict[str, Callable[..., Array]] = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
_COMPARISONS: dict[str, Callable[..., Array]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal,
}  # fmt: skip
_ROUND: dict[str, Callable[..., Array]] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
BASES = frozenset(
    "abs add and copysign cos cvt div ex2 fma lg2 mad max min mov mul neg not or rcp rsqrt selp setp shl shr sin "
    "sqrt sub tanh xor".split()
)


@dataclass(frozen=True)
class Instruction:
    """An instruction: the number of its sources, their widths in bits, and its function."""

    operands: int
    widths: tuple[int, ...]
    compute: Callable[..., Array]

    def width(self, i: int) -> int:
        """Returns the width of source i; the last width serves all later sources."""
        return self.widths[min(i, len(self.widths) - 1)]


def decode(opcode: str) -> Instruction | None:
    """Returns the instruction of an opcode with its modifiers, or None."""
    base, *modifiers = opcode.split(".")
    if base not in BASES or not modifiers:
        return None
    if base == "cvt":
        return _conversion(modifiers)
    kind, flags = modifiers[-1], modifiers[:-1]
    if base == "selp":
        return Instruction(3, (_width(kind), _width(kind), 0), _select)
    if base == "mov":
        return Instruction(1, (_width(kind),), lambda a: a)
    if base == "setp":
        return _comparison(flags, kind)
    if kind in _PAIRS:
        return _pairwise(base, flags, _PAIRS[kind])
    if kind in _FLOATS:
        return _float(base, flags, _FLOATS[kind])
    return _integer(base, flags, kind)


def _select(a: Array, b: Array, p: Array) -> Array:
    return np.where(p, a, b)


def _width(kind: str) -> int:
    """Returns the bits of a PTX type; 0 for an unknown one."""
    return {"f64": 64, "f32": 32, "f16": 16, "bf16": 16, "f16x2": 32, "bf16x2": 32}.get(kind) or (
        _INTEGERS[kind].itemsize * 8 if kind in _INTEGERS else 0
    )


def _read(bits: Array, name: str) -> Array:
    """Returns patterns in the interpreter's storage of a Triton float type."""
    return bits.view(casts.STORAGE[name])


def _write(values: Array) -> Array:
    """Returns values as patterns."""
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def _pairwise(base: str, flags: list[str], kind: str) -> Instruction | None:
    """Returns an instruction that computes two 16-bit operations in one register."""
    single = _float(base, flags, _FLOATS[kind])
    if single is None:
        return None

    def compute(*values: Array) -> Array:
        low = single.compute(*((v & np.uint32(0xFFFF)).astype(np.uint16) for v in values))
        high = single.compute(*((v >> np.uint32(16)).astype(np.uint16) for v in values))
        return low.astype(np.uint32) | (high.astype(np.uint32) << np.uint32(16))

    return Instruction(single.operands, (32,), compute)


def _float(base: str, flags: list[str], name: str) -> Instruction | None:
    """Returns an arithmetic instruction on one float type, or None."""
    known = {*DIRECTIONS, "ftz", "sat", "approx", "full", "NaN", "xorsign", "abs"}
    if not set(flags) <= known:
        return None
    direction = next((f for f in flags if f in DIRECTIONS), "rn")
    operands, f = _float_function(base, flags, name, direction)
    if f is None:
        return None
    ftz, sat = "ftz" in flags and name == "fp32", "sat" in flags

    def compute(*bits: Array) -> Array:
        values = [_read(b, name) for b in bits]
        out = f(*(flush(v) for v in values)) if ftz else f(*values)
        out = flush(out) if ftz else out
        return _write(approximations.saturate(out) if sat else out)

    if sat and name != "fp32":
        return None
    return Instruction(operands, (casts.STORAGE[name].itemsize * 8,), compute)


def _float_function(base: str, flags: list[str], name: str, direction: str) -> tuple[int, Callable[..., Array] | None]:
    """Returns the number of sources and the function of a float instruction; None: unknown."""
    if base in ("fma", "mad") and (direction == "rn" or name == "fp32"):
        return 3, (lambda x, y, z: fma(x, y, z, name, direction))
    if base in ("min", "max"):
        return 2, _extremum(base, flags, name)
    if base == "abs":
        return 1, (lambda x: x & x.dtype.type(0x7FFF)) if name == "bf16" else np.abs
    if base == "neg":
        return 1, (lambda x: x ^ x.dtype.type(0x8000)) if name == "bf16" else np.negative
    if base == "copysign" and name in ("fp32", "fp64"):
        return 2, (lambda sign, size: np.copysign(size, sign))
    if base == "div" and "approx" in flags:
        return 2, (lambda x, y: approximations.div_approx(x, y, ftz=False)) if name == "fp32" else None
    if base in _UNARY:
        return 1, _elementary(base, flags, name, direction)
    if base in _BINARY:
        return 2, _arithmetic(base, name, direction)
    return 0, None


def _arithmetic(base: str, name: str, direction: str) -> Callable[..., Array] | None:
    if direction == "rn":
        return lambda x, y: casts.narrow(_BINARY[base](casts.widen(x, name), casts.widen(y, name)), name)
    if name == "fp32":
        return lambda x, y: to_float32(OPERATIONS32[base](x, y), direction)
    return None


def _elementary(base: str, flags: list[str], name: str, direction: str) -> Callable[..., Array] | None:
    f = _UNARY[base]
    if direction != "rn":
        return (lambda x: to_float32(OPERATIONS32[base](x), direction)) if base in OPERATIONS32 else None
    if name == "fp64":
        return approximations.upper_words(f) if "approx" in flags and "ftz" in flags else f
    if name == "fp32" and base in ("sin", "cos"):
        return approximations.sin_approx if base == "sin" else approximations.cos_approx
    if name == "fp32":
        return approximations.in_float32(f, inputs=False, result=False)
    if isinstance(f, functions.Evaluated):
        return lambda x: f.rounded(name, casts.widen(x, name).astype(np.float64))
    return lambda x: casts.narrow(f(casts.widen(x, name).astype(np.float64)), name)


def _extremum(base: str, flags: list[str], name: str) -> Callable[..., Array]:
    function = minmax.minimum if base == "min" else minmax.maximum
    nan = "NaN" in flags
    if "xorsign" not in flags:
        return lambda x, y: function(x, y, name, propagate_nan=nan)

    def with_signs(x: Array, y: Array) -> Array:
        size = function(np.abs(x), np.abs(y), name, propagate_nan=nan)
        return np.where(np.signbit(x) ^ np.signbit(y), -size, size)

    return with_signs


def _comparison(flags: list[str], kind: str) -> Instruction | None:
    """Returns a setp instruction, or None."""
    if len(flags) != 1:
        return None
    unordered = (flags[0].endswith("u") and flags[0] != "neu") or flags[0] == "neu"
    compare = _COMPARISONS.get(flags[0].removesuffix("u"))
    if compare is None or (kind not in _FLOATS and kind not in _INTEGERS):
        return None

    def compute(a: Array, b: Array) -> Array:
        if kind in _INTEGERS:
            return compare(a.view(_INTEGERS[kind]), b.view(_INTEGERS[kind]))
        x, y = (casts.widen(_read(v, _FLOATS[kind]), _FLOATS[kind]) for v in (a, b))
        nan = np.isnan(x) | np.isnan(y)
        return np.where(nan, unordered, compare(x, y))

    return Instruction(2, (_width(kind),), compute)


def _integer(base: str, flags: list[str], kind: str) -> Instruction | None:
    """Returns an integer instruction, or None."""
    if kind not in _INTEGERS:
        return None
    dtype = _INTEGERS[kind]
    bits = dtype.itemsize * 8
    unsigned = np.dtype(f"u{dtype.itemsize}")

    def typed(f: Callable[..., Array]) -> Callable[..., Array]:
        return lambda *values: f(*(v.view(dtype) for v in values)).astype(dtype).view(unsigned)

    def shift(f: Callable[..., Array]) -> Callable[..., Array]:
        # PTX clamps the amount: from the width on, a shift gives 0, or the sign for shr.s.
        def compute(a: Array, amount: Array) -> Array:
            count = np.minimum(amount, amount.dtype.type(bits - 1)).astype(dtype)
            out = f(a.view(dtype), count)
            gone = (amount >= bits) & ~((base == "shr") & (dtype.kind == "i"))
            return np.where(gone, dtype.type(0), out).astype(dtype).view(unsigned)

        return compute

    table: dict[tuple[str, ...], tuple[int, Callable[..., Array]]] = {
        ("add",): (2, typed(np.add)),
        ("sub",): (2, typed(np.subtract)),
        ("mul", "lo"): (2, typed(np.multiply)),
        ("mul", "hi"): (2, typed(mulhi64 if bits == 64 else mulhi32)),
        ("mad", "lo"): (3, typed(lambda a, b, c: a * b + c)),
        ("min",): (2, typed(np.minimum)),
        ("max",): (2, typed(np.maximum)),
        ("abs",): (1, typed(np.abs)),
        ("neg",): (1, typed(np.negative)),
        ("not",): (1, typed(np.invert)),
        ("and",): (2, typed(np.bitwise_and)),
        ("or",): (2, typed(np.bitwise_or)),
        ("xor",): (2, typed(np.bitwise_xor)),
        ("shl",): (2, shift(np.left_shift)),
        ("shr",): (2, shift(np.right_shift)),
    }
    entry = table.get((base, *flags))
    if entry is None:
        return None
    return Instruction(entry[0], (bits, 32) if base in ("shl", "shr") else (bits,), entry[1])


# -- conversions ----------------------------------------------------------------------------------


def _conversion(modifiers: list[str]) -> Instruction | None:
    """Returns a `cvt` instruction, or None; destination and source types come last in the opcode."""
    if len(modifiers) < 2:
        return None
    *flags, target, source = modifiers
    if not set(flags) <= {*DIRECTIONS, *_ROUND, "rna", "ftz", "sat", "satfinite"}:
        return None
    ftz = "ftz" in flags

    def wide(bits: Array) -> Array:
        values = _read(bits, _FLOATS[source])
        return flush(values) if ftz and source == "f32" else values

    width = _width(source)
    if target == "tf32" and source == "f32" and flags == ["rna"]:
        return Instruction(1, (32,), lambda a: _write(round_tf32(wide(a))))
    halves = {**_PAIRS, "e4m3x2": "fp8e4nv", "e5m2x2": "fp8e5"}
    if target in halves and source == "f32" and ("rn" in flags or "rz" in flags):
        name = _FLOATS.get(halves[target], halves[target])
        rounding = "rtz" if "rz" in flags else "rtne"

        def both(high: Array, low: Array) -> Array:
            h, v = (_write(casts.narrow(wide(x), name, rounding)) for x in (high, low))
            word = np.dtype(f"u{2 * h.dtype.itemsize}")
            out: Array = (h.astype(word) << word.type(8 * h.dtype.itemsize)) | v.astype(word)
            return out

        return Instruction(2, (32,), both)
    if source in _FLOATS and target in _FLOATS:
        return _float_conversion(flags, source, target, wide)
    if source in _FLOATS and target in _INTEGERS:
        integral = next((_ROUND[f] for f in flags if f in _ROUND), None)
        if integral is None:
            return None
        dtype, name = _INTEGERS[target], _FLOATS[source]

        def to_integer(bits: Array) -> Array:
            whole = casts.narrow(integral(casts.widen(wide(bits), name)), name)
            return _write(casts.float_to_int(whole, name, dtype))

        return Instruction(1, (width,), to_integer)
    if source in _INTEGERS and target in _FLOATS and flags == ["rn"]:
        name = _FLOATS[target]
        return Instruction(1, (width,), lambda a: _write(casts.int_to_float(a.view(_INTEGERS[source]), name)))
    if source in _INTEGERS and target in _INTEGERS and not flags:
        return Instruction(1, (width,), lambda a: _write(a.view(_INTEGERS[source]).astype(_INTEGERS[target])))
    return None


def _float_conversion(flags: list[str], source: str, target: str, wide: Callable[[Array], Array]) -> Instruction | None:
    name, origin = _FLOATS[target], _FLOATS[source]
    integral = next((_ROUND[f] for f in flags if f in _ROUND), None)
    direction = next((f for f in flags if f in DIRECTIONS), "rn")

    def compute(bits: Array) -> Array:
        values = casts.widen(wide(bits), origin)
        if integral is not None:
            values = integral(values)
        out = casts.narrow(values, name, "rtz" if direction == "rz" else "rtne")
        if "ftz" in flags and name == "fp32":
            out = flush(out)
        return _write(approximations.saturate(out) if "sat" in flags else out)

    if "sat" in flags and name != "fp32":
        return None
    return Instruction(1, (_width(source),), compute)
