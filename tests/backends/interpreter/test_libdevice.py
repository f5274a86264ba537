"""libdevice symbols that have one right answer, and the flush-to-zero that Triton compiles them with."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

from verify.backends.interpreter import libdevice
from verify.backends.interpreter.libdevice import lookup
from verify.errors import UsageError

F = np.float32
SUB = F(1e-40)  # subnormal


def one(symbol: str, *args: object) -> object:
    return lookup(symbol)(*(np.array([a]) for a in args))[0]


def test_every_cuda_libdevice_function_but_the_bessel_ones_is_there() -> None:
    cuda = pytest.importorskip("triton.language.extra.cuda.libdevice")
    symbols = set(re.findall(r"\"(__nv_\w+)\"", inspect.getsource(cuda)))
    assert len(symbols) > 280
    missing = {s for s in symbols if s not in libdevice.SYMBOLS}
    assert missing == {s for s in symbols if re.fullmatch(r"__nv_(j0|j1|jn|y0|y1|yn|cyl_bessel_i[01])f?", s)}


def test_an_unknown_symbol_is_named_with_the_way_to_add_it() -> None:
    with pytest.raises(UsageError) as error:
        lookup("__nv_besselkf")
    assert "the interpreter backend has no __nv_besselkf" in str(error.value)
    assert "next: add '__nv_besselkf' to SYMBOLS in verify/backends/interpreter/libdevice.py" in str(error.value)


def test_directed_operations_bracket_the_exact_value() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 2000)).astype(F)
    exact = {
        "add": x.astype(float) + y.astype(float),  # exponents are close: exact in float64
        "mul": x.astype(float) * y.astype(float),
        "div": x.astype(float) / y.astype(float),
        "sqrt": np.sqrt(np.abs(x).astype(float)),
        "rcp": 1 / x.astype(float),
    }
    for name, value in exact.items():
        args = {"sqrt": (np.abs(x),), "rcp": (x,)}.get(name, (x, y))
        down, up, zero, near = (lookup(f"__nv_f{name}_{d}")(*args) for d in ("rd", "ru", "rz", "rn"))
        assert (down <= value).all() and (up >= value).all(), name
        assert ((np.nextafter(down, F(np.inf)) == up) | (down == up)).all(), name
        assert np.array_equal(zero, np.where(value > 0, down, up)), name
        assert np.array_equal(near, value.astype(F)), name
        assert (down != up).mean() > 0.4, name


def test_float64_division_and_root_in_a_direction_agree_with_exact_rationals() -> None:
    from fractions import Fraction

    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 500)) * 2.0 ** rng.integers(-300, 300, (2, 500))
    down, up = lookup("__nv_ddiv_rd")(x, y), lookup("__nv_ddiv_ru")(x, y)
    for a, b, low, high in zip(x.tolist(), y.tolist(), down.tolist(), up.tolist(), strict=True):
        assert Fraction(low) <= Fraction(a) / Fraction(b) <= Fraction(high)
        assert high == np.nextafter(low, np.inf) or high == low
    size = np.abs(x)
    down, up = lookup("__nv_dsqrt_rd")(size), lookup("__nv_dsqrt_ru")(size)
    for a, low, high in zip(size.tolist(), down.tolist(), up.tolist(), strict=True):
        assert Fraction(low) ** 2 <= Fraction(a) <= Fraction(high) ** 2


def test_float32_functions_flush_subnormals_and_tritons_operators_do_not() -> None:
    assert one("__nv_fadd_rn", SUB, SUB) == 0
    assert one("__nv_fmaf", SUB, F(1e20), F(0)) == 0
    assert one("__nv_fmul_rn", F(1e-20), F(1e-20)) == 0
    assert np.signbit(one("__nv_fmul_rn", F(-1e-20), F(1e-20)))
    assert one("__nv_floorf", -SUB) == 0
    assert one("__nv_ceilf", SUB) == 0
    assert one("__nv_floor", -1e-310) == -1
    assert one("__nv_exp2f", F(-130)) == 0
    assert one("__nv_logf", SUB) == pytest.approx(np.log(1e-40), rel=1e-4)
    from verify.backends.interpreter.fma import fma

    assert fma(np.array([SUB]), np.array([F(1e20)]), np.array([F(0)]), "fp32")[0] > 0


def test_integer_and_bit_functions() -> None:
    i32, u32, i64 = np.int32, np.uint32, np.int64
    assert [one("__nv_clz", i32(v)) for v in (0, 1, -1, 0x00F0)] == [32, 31, 0, 24]
    assert one("__nv_clzll", i64(1)) == 63
    assert [one("__nv_popc", i32(v)) for v in (0, -1, 0x0F0F)] == [0, 32, 8]
    assert [one("__nv_ffs", i32(v)) for v in (0, 1, 8, -(2**31))] == [0, 1, 4, 32]
    assert one("__nv_ffsll", i64(2**40)) == 41
    assert one("__nv_brev", i32(1)) == -(2**31)
    assert one("__nv_byte_perm", i32(0x33221100), i32(0x77665544), i32(0x7531)) == 0x77553311
    assert one("__nv_mulhi", i32(-1), i32(3)) == -1
    assert one("__nv_umulhi", u32(2**32 - 1), u32(3)) == 2
    for a, b in ((-(2**63), 2**62 + 5), (123456789012345678, -987654321098765432), (-1, -1)):
        assert int(one("__nv_mul64hi", i64(a), i64(b))) == (a * b) >> 64
    assert int(one("__nv_umul64hi", np.uint64(2**64 - 1), np.uint64(2**64 - 2))) == ((2**64 - 1) * (2**64 - 2)) >> 64
    assert one("__nv_mul24", i32(-2), i32(3)) == -6
    assert one("__nv_sad", i32(3), i32(-4), u32(1)) == 8
    assert [one("__nv_hadd", i32(-3), i32(2)), one("__nv_rhadd", i32(-3), i32(2))] == [-1, 0]
    assert one("__nv_float_as_int", F(1.0)) == 0x3F800000
    assert one("__nv_int_as_float", i32(0x40490FDB)) == F(np.pi)
    assert one("__nv_hiloint2double", i32(0x3FF00000), i32(0)) == 1.0
    assert one("__nv_double2hiint", -2.0) == -(2**30)


def test_conversions_in_every_direction() -> None:
    assert [one(f"__nv_float2int_{d}", F(2.5)) for d in ("rn", "rz", "rd", "ru")] == [2, 2, 2, 3]
    assert [one(f"__nv_double2ll_{d}", -2.5) for d in ("rn", "rz", "rd", "ru")] == [-2, -2, -3, -2]
    assert one("__nv_float2int_ru", SUB) == 0  # flushed before it is rounded up
    near = {d: int(one(f"__nv_int2float_{d}", np.int32(2**24 + 1))) for d in ("rn", "rz", "rd", "ru")}
    assert near == {"rn": 2**24, "rz": 2**24, "rd": 2**24, "ru": 2**24 + 2}
    wide = {d: int(one(f"__nv_ll2double_{d}", np.int64(-(2**53) - 1))) for d in ("rn", "rz", "rd", "ru")}
    assert wide == {"rn": -(2**53), "rz": -(2**53), "rd": -(2**53) - 2, "ru": -(2**53)}
    assert one("__nv_ull2float_ru", np.uint64(2**64 - 1)) == F(2.0**64)
    assert one("__nv_ull2float_rz", np.uint64(2**64 - 1)) < F(2.0**64)
    assert one("__nv_double2float_ru", 1 + 2.0**-50) == F(1 + 2.0**-23)


def test_rounding_and_classification() -> None:
    x = np.array([0.5, -0.5, 1.5, 2.5, 0.49999997, 8388609.0, -0.0], F)
    assert lookup("__nv_roundf")(x).tolist() == [1, -1, 2, 3, 0, 8388609, 0]
    assert lookup("__nv_rintf")(x).tolist() == [0, 0, 2, 2, 0, 8388609, 0]
    assert [one("__nv_ilogbf", F(v)) for v in (1.0, 0.75, 8.0, np.inf, 0.0)] == [
        0,
        -1,
        3,
        2**31 - 1,
        -(2**31),
    ]
    assert [one("__nv_logb", v) for v in (0.75, -8.0, 0.0)] == [-1, 3, -np.inf]
    assert [
        one("__nv_isnanf", F(np.nan)),
        one("__nv_isinfd", -np.inf),
        one("__nv_finitef", F(1)),
    ] == [1, 1, 1]
    assert [one("__nv_saturatef", F(v)) for v in (-1, 0.25, 7, np.nan)] == [0, 0.25, 1, 0]
    assert one("__nv_ldexpf", F(1.5), np.int32(4)) == 24
    assert one("__nv_copysignf", F(3), F(-0.0)) == -3
    assert one("__nv_fdimf", F(3), F(5)) == 0


def test_fast_exp_keeps_the_error_of_its_sequence() -> None:
    """log2(e) x is rounded to float32 first: at 88 the result is 62 ULP off, on a GPU as here."""
    x = np.linspace(80, 88, 500, dtype=F)
    exact = np.exp(x.astype(float))
    worst = {}
    for symbol in ("__nv_expf", "__nv_fast_expf"):
        got = lookup(symbol)(x).astype(float)
        worst[symbol] = float(np.max(np.abs(got - exact) / np.spacing(exact.astype(F)).astype(float)))
    assert worst["__nv_expf"] <= 0.51
    assert 55 < worst["__nv_fast_expf"] < 70
