"""The builder methods of the faithful interpreter, which replace Triton's own.

Triton's frontend calls a builder for each operation (`create_fadd`, `create_exp`, ...). In the interpreter a builder
method takes and returns handles: a numpy array and a Triton type. Each function here computes what the PTX computes
that Triton emits for the same call on sm_90. The PTX was read for Triton 3.6.0. For 56 operations in four dtypes it was
compared with that of 3.7.1, 3.8.0 and 3.9.0 (docs/toolchains.md lists the differences):

- bfloat16 and float16 arithmetic is one rounding of the exact result per operation. The shipped interpreter adds the
  *patterns* of bfloat16 numbers.
- `x % y` is x - trunc(x / y) * y with a fused last step, not fmod.
- float32 `tl.exp2`, `tl.sqrt`, `tl.rsqrt`, `tl.floor` and `tl.ceil` flush subnormals (`.ftz` in the PTX). `tl.exp`,
  `tl.sqrt_rn` and the arithmetic operators do not.
- float32 `tl.exp` is 2^(x * log2(e)) with the product rounded to float32, which costs up to 62 ULP at 88, as on a GPU.
- `-x` is 0 - x until Triton 3.7, so -0.0 never results from x = +0.0. From 3.8 it flips the sign bit. The frontend of
  each version calls the right method.
- A bfloat16 constant goes through C's "%f", so 1e-7 becomes 0; a float16 constant goes through float32.

Three things are not imitated: the compiler's freedom to fuse `a * b + c` (here each written operation rounds once), the
last ULPs of the hardware's approximations (here correctly rounded), and its order of summation.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton.language as tl
from triton._C.libtriton import interpreter as native
from triton._C.libtriton import ir
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from verify.backends.interpreter import approximations, assembly, casts, libdevice, minmax
from verify.backends.interpreter.dot import dot
from verify.backends.interpreter.fma import fma
from verify.backends.interpreter.programs import np_dtype
from verify.backends.interpreter.rounding import Array

Method = Callable[..., Any]


def _name(handle: Any) -> str:
    return str(handle.dtype.scalar.name)


def _refuse_float8(name: str, operation: str) -> None:
    if name.startswith("fp8"):
        raise TypeError(
            f"{operation}: Triton compiles no arithmetic on {name}; got {name} operands. "
            f"Next: cast to tl.float16 or tl.float32 first"
        )


# -- arithmetic -----------------------------------------------------------------------------------


def _arithmetic(operation: str, ufunc: Callable[..., Any]) -> Method:
    def method(self: Any, lhs: Any, rhs: Any) -> Any:
        name = _name(lhs)
        if name in ("fp32", "fp64"):
            return TensorHandle(ufunc(lhs.data, rhs.data), lhs.dtype.scalar)
        _refuse_float8(name, operation)
        # float32 holds 24 >= 2 * 11 + 2 bits, so rounding to it first does not change the result. A product of two
        # bfloat16 that float32 cannot hold is too small to change a bfloat16.
        out = ufunc(casts.widen(lhs.data, name), casts.widen(rhs.data, name))
        return TensorHandle(casts.narrow(out, name), lhs.dtype.scalar)

    return method


def _negate(self: Any, x: Any) -> Any:
    """Flips the sign bit, also of NaN. Triton 3.8 and later call it."""
    _refuse_float8(_name(x), "-")
    bits = x.data.view(np.dtype(f"u{x.data.dtype.itemsize}"))
    return TensorHandle((bits ^ bits.dtype.type(1 << (8 * bits.dtype.itemsize - 1))).view(x.data.dtype), x.dtype.scalar)


def _remainder(self: Any, lhs: Any, rhs: Any) -> Any:
    name, x, y = _name(lhs), lhs.data, rhs.data
    if name not in ("fp32", "fp64"):
        raise TypeError(f"%: Triton computes float remainders in float32 or float64; got {name}")
    rest = fma(-np.trunc(x / y), y, x, name)
    return TensorHandle(np.where(np.isinf(y), x, rest), lhs.dtype.scalar)


def _fma(self: Any, x: Any, y: Any, z: Any) -> Any:
    name = _name(z)
    if not casts.is_float(name):
        return TensorHandle(x.data * y.data + z.data, z.dtype.scalar)
    _refuse_float8(name, "fma")
    return TensorHandle(fma(x.data, y.data, z.data, name), z.dtype.scalar)


def _extremum(operation: str, function: Callable[..., Array], propagate_nan: bool) -> Method:
    def method(self: Any, lhs: Any, rhs: Any) -> Any:
        name = _name(lhs)
        _refuse_float8(name, operation)
        return TensorHandle(function(lhs.data, rhs.data, name, propagate_nan=propagate_nan), lhs.dtype.scalar)

    return method


def _clamp(self: Any, x: Any, low: Any, high: Any, propagate_nans: Any) -> Any:
    name = _name(x)
    _refuse_float8(name, "clamp")
    every = propagate_nans == tl.PropagateNan.ALL
    return TensorHandle(minmax.clamp(x.data, low.data, high.data, name, propagate_nan=every), x.dtype.scalar)


# -- comparisons ----------------------------------------------------------------------------------


def _ordered(ufunc: Callable[..., Any], *, negate: bool = False, ordered_only: bool = False) -> Method:
    """Returns a float comparison; `negate` turns OGE into ULT, which is true for NaN, and so on."""

    def method(self: Any, lhs: Any, rhs: Any) -> Any:
        name = _name(lhs)
        _refuse_float8(name, "comparison")
        x, y = casts.widen(lhs.data, name), casts.widen(rhs.data, name)
        out = ufunc(x, y)
        if ordered_only:
            out = out & ~(np.isnan(x) | np.isnan(y))
        return TensorHandle(~out if negate else out, tl.int1)

    return method


def _integer(ufunc: Callable[..., Any]) -> Method:
    # The shipped result has the operands' type, so a later cast would read booleans as that type.
    return lambda self, lhs, rhs: TensorHandle(ufunc(lhs.data, rhs.data), tl.int1)


# -- casts and constants --------------------------------------------------------------------------


def _cast(self: Any, src: Any, dst_type: Any) -> Any:
    source, target = _name(src), str(dst_type.scalar.name)
    if casts.is_float(source) and casts.is_float(target):
        data = casts.convert(src.data, source, target)
    elif casts.is_float(source):
        data = casts.float_to_int(src.data, source, np_dtype(dst_type))
    elif casts.is_float(target):
        data = casts.int_to_float(src.data, target)
    else:
        data = src.data.astype(np_dtype(dst_type))
    return TensorHandle(data, dst_type.scalar)


def _float_to_float(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
    rounding = "rtz" if rounding_mode == ir.ROUNDING_MODE.RTZ else "rtne"
    target = str(dst_type.scalar.name)
    return TensorHandle(casts.convert(src.data, _name(src), target, rounding), dst_type.scalar)


def _bfloat16_constant(self: Any, value: float) -> Any:
    single = np.float32(value)
    # The compiler prints the number with six decimals and parses it back: std::to_string in its builder.
    printed = np.float64(f"{float(single):f}") if np.isfinite(single) else np.float64(single)
    return TensorHandle(casts.narrow(np.array([printed]), "bf16"), tl.bfloat16)


# -- functions ------------------------------------------------------------------------------------

_FLOAT32: dict[str, libdevice.Function] = {
    "exp": approximations.exp_by_ex2,
    "exp2": approximations.ex2,
    "precise_sqrt": np.sqrt,
    **{
        name: libdevice.SYMBOLS[f"__nv_{name}f"]
        for name in ("log", "log2", "sin", "cos", "erf", "sqrt", "rsqrt", "floor", "ceil")
    },
}
_FLOAT64: dict[str, libdevice.Function] = {
    "precise_sqrt": np.sqrt,
    **{name: libdevice.SYMBOLS[f"__nv_{name}"] for name in _FLOAT32 if name != "precise_sqrt"},
}


def _unary(operation: str) -> Method:
    tables = {"fp32": _FLOAT32, "fp64": _FLOAT64}

    def method(self: Any, arg: Any) -> Any:
        name = _name(arg)
        if name not in tables:
            raise TypeError(f"tl.{operation} takes float32 or float64; got {name}. Next: cast the operand")
        return TensorHandle(tables[name][operation](arg.data), arg.dtype.scalar)

    return method


def _extern(self: Any, lib_name: str, lib_path: str, symbol: str, args: Any, ret_type: Any, is_pure: bool) -> Any:
    out = libdevice.lookup(symbol)(*(a.data for a in args))
    return TensorHandle(out.astype(np_dtype(ret_type), copy=False), ret_type.scalar)


def _inline_asm(self: Any, asm: str, constraints: str, values: Any, types: Any, is_pure: bool, pack: int) -> Any:
    outputs = assembly.run(asm, constraints, [v.data for v in values], list(map(np_dtype, types)), pack)
    handles = [TensorHandle(o, t.scalar) for o, t in zip(outputs, types, strict=True)]
    return SimpleNamespace(get_result=handles.__getitem__)  # the frontend fetches each output by its index


def _dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
    precision = getattr(input_precision, "name", str(input_precision))
    out = dot(a.data, b.data, d.data, _name(a), _name(b), _name(d), precision)
    return TensorHandle(out, d.dtype.scalar)


# -- memory ---------------------------------------------------------------------------------------


def _padding(option: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Returns the value outside a block: None, zeros, or NaN in the patterns of the type."""
    if option is None:
        return None
    if option not in (ir.PADDING_OPTION.PAD_ZERO, ir.PADDING_OPTION.PAD_NAN):
        raise ValueError(f"padding option is zero or nan; got {option}")
    value = np.nan if option == ir.PADDING_OPTION.PAD_NAN else 0.0
    name = str(dtype.scalar.name)
    fill = casts.narrow(np.array([value]), name) if casts.is_float(name) else np.zeros(1, np_dtype(dtype))
    return TensorHandle(np.broadcast_to(fill, shape).copy(), dtype)


def _block_load(
    self: Any, ptr: Any, boundary_check: Any, padding: Any, cache_modifier: Any, eviction_policy: Any, is_volatile: Any
) -> Any:
    ptrs, masks = ptr.materialize_pointers(boundary_check)
    other = _padding(padding, ptrs.data.shape, ptrs.get_element_ty())
    return self.create_masked_load(ptrs, masks, other, cache_modifier, eviction_policy, is_volatile)


def _descriptor_load(self: Any, desc: Any, indices: Any, *policy: Any) -> Any:
    # The policy is (cache_modifier, eviction_policy) until Triton 3.8 and one value from 3.9.
    ptrs, mask = desc.materialize_pointers(indices)
    other = _padding(desc.padding, ptrs.data.shape, ptrs.get_element_ty())
    out = self.create_masked_load(ptrs, mask, other, *policy, False)
    if getattr(desc, "round_f32_to_tf32", False) and _name(out) == "fp32":
        # A descriptor of Triton 3.9 can make the copy engine round to tf32: nearest, ties to even.
        return TensorHandle(interpreter._round_f32_to_tf32(out.data), out.dtype.scalar)
    return out


def _atomic(shipped: Method) -> Method:
    """Returns atomic operations with addition of bfloat16, which the shipped interpreter lacks."""

    def method(self: Any, operation: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
        if _name(val) != "bf16" or operation != ir.ATOMIC_OP.FADD:
            return shipped(self, operation, ptr, val, mask, sem, scope)
        old = np.zeros_like(val.data)
        for at in zip(*np.nonzero(np.broadcast_to(mask.data, val.data.shape)), strict=True):
            address = np.ascontiguousarray(ptr.data[at]).reshape(1)
            there = np.ones(1, dtype=bool)
            before = native.load(address, there, np.zeros(1, np.uint16), np.dtype(np.uint16))
            total = casts.widen(before, "bf16") + casts.widen(val.data[at].reshape(1), "bf16")
            native.store(address, casts.narrow(total, "bf16"), there)
            old[at] = before[0]
        return TensorHandle(old, val.dtype.scalar)

    return method


METHODS: dict[str, Method] = {
    "create_fadd": _arithmetic("+", np.add),
    "create_fsub": _arithmetic("-", np.subtract),
    "create_fmul": _arithmetic("*", np.multiply),
    "create_fdiv": _arithmetic("/", np.divide),
    "create_precise_divf": _arithmetic("div_rn", np.divide),
    "create_frem": _remainder,
    "create_fma": _fma,
    "create_minimumf": _extremum("minimum", minmax.minimum, True),
    "create_minnumf": _extremum("minimum", minmax.minimum, False),
    "create_maximumf": _extremum("maximum", minmax.maximum, True),
    "create_maxnumf": _extremum("maximum", minmax.maximum, False),
    "create_clampf": _clamp,
    "create_fcmpOLT": _ordered(np.less),
    "create_fcmpOGT": _ordered(np.greater),
    "create_fcmpOLE": _ordered(np.less_equal),
    "create_fcmpOGE": _ordered(np.greater_equal),
    "create_fcmpOEQ": _ordered(np.equal),
    "create_fcmpONE": _ordered(np.not_equal, ordered_only=True),
    "create_fcmpULT": _ordered(np.greater_equal, negate=True),
    "create_fcmpUGT": _ordered(np.less_equal, negate=True),
    "create_fcmpULE": _ordered(np.greater, negate=True),
    "create_fcmpUGE": _ordered(np.less, negate=True),
    "create_fcmpUEQ": _ordered(np.not_equal, ordered_only=True, negate=True),
    "create_fcmpUNE": _ordered(np.not_equal),
    **{
        f"create_icmp{code}": _integer(ufunc)
        for codes, ufunc in (
            (("SLE", "ULE"), np.less_equal),
            (("SLT", "ULT"), np.less),
            (("SGE", "UGE"), np.greater_equal),
            (("SGT", "UGT"), np.greater),
            (("EQ",), np.equal),
            (("NE",), np.not_equal),
        )
        for code in codes
    },
    "cast_impl": _cast,
    "create_fp_to_fp": _float_to_float,
    "get_fp16": lambda self, value: TensorHandle(casts.narrow(np.array([value], np.float32), "fp16"), tl.float16),
    **{f"create_{name}": _unary(name) for name in _FLOAT32},
    "create_extern_elementwise": _extern,
    "create_inline_asm": _inline_asm,
    "create_dot": _dot,
    "create_descriptor_load": _descriptor_load,
    "create_atomic_rmw": _atomic(InterpreterBuilder.create_atomic_rmw),
}
#: Methods that some versions of the shipped builder lack; those versions do not call them, or need ours.
NEW_METHODS: dict[str, Method] = {
    "get_bf16": _bfloat16_constant,  # from 3.9
    "create_fneg": _negate,  # from 3.8
    # from 3.9, for tl.fdiv(x, y, approx=True): div.approx.f32, which keeps subnormals
    "create_approx_divf": lambda self, x, y: TensorHandle(
        approximations.div_approx(x.data, y.data, ftz=False), x.dtype.scalar
    ),
    "create_tensor_pointer_load": _block_load,  # until 3.7: later versions have no block pointers
}
