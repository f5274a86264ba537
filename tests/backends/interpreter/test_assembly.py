"""Inline PTX: parsing, packing, instructions against numpy, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from verify.backends.interpreter.assembly import run
from verify.backends.interpreter.casts import narrow, widen
from verify.errors import UsageError

F = np.float32
RNG = np.random.default_rng(0)
F32_OUT = [np.dtype(F)]


def one(instruction: str, *values: float) -> float:
    """An instruction on float32 scalars, in the usual one-line form."""
    operands = ", ".join(f"${i}" for i in range(len(values) + 1))
    inputs = [np.array([v], F) for v in values]
    return float(run(f"{instruction} {operands};", "=f" + ",f" * len(values), inputs, F32_OUT, 1)[0][0])


def test_a_sequence_with_registers_and_immediates() -> None:
    x, y = RNG.normal(size=(2, 64)).astype(F)
    text = "{ .reg .f32 a; mul.rn.f32 a, $1, $2; add.f32 a, a, 0f3F800000; sub.f32 $0, a, 2.5; }"
    (got,) = run(text, "=f,f,f", [x, y], F32_OUT, 1)
    assert np.array_equal(got, ((x * y).astype(F) + F(1)) - F(2.5))


def test_rounding_directions_saturation_and_flush() -> None:
    assert one("div.rz.f32", 1.0, 3.0) < 1 / 3 < one("div.rn.f32", 1.0, 3.0)
    assert one("fma.rz.f32", -1.0, 1.0, 1e-30) == 2.0**-24 - 1
    assert [one("add.sat.f32", 0.75, 0.75), one("fma.rn.sat.f32", -2.0, 1.0, 0.5)] == [1.0, 0.0]
    assert one("mul.f32", 1e-20, 1e-20) > 0 and one("mul.ftz.f32", 1e-20, 1e-20) == 0
    assert one("add.rz.f32", 1.0, 1.5 * 2.0**-24) == 1.0 and not np.signbit(one("sub.rz.f32", 1.0, 1.0))
    assert one("sqrt.rz.f32", 3.0) < np.sqrt(3.0)


def test_approximations_are_the_rounded_values() -> None:
    assert one("ex2.approx.f32", 0.5) == F(np.sqrt(2))
    assert one("ex2.approx.ftz.f32", -130.0) == 0 and one("ex2.approx.f32", -130.0) == 2.0**-130
    assert one("tanh.approx.f32", 0.5) == F(np.tanh(0.5))
    assert one("rsqrt.approx.f32", 2.0) == F(1 / np.sqrt(2)) and one("lg2.approx.f32", 8.0) == 3.0
    assert one("rcp.approx.ftz.f32", 1e-40) == np.inf
    assert one("div.full.f32", 1.0, 3e38) > 0 and one("div.approx.f32", 1.0, 3e38) == 0


def test_the_float64_reciprocal_is_a_seed_of_20_bits() -> None:
    x = RNG.uniform(1, 2, 200)
    (got,) = run("rcp.approx.ftz.f64 $0, $1;", "=d,d", [x], [np.dtype(float)], 1)
    assert (got.view(np.uint64) & np.uint64(0xFFFFFFFF) == 0).all()
    error = np.abs(got * x - 1)
    assert 2.0**-23 < error.max() < 2.0**-18


@pytest.mark.parametrize(("suffix", "kind"), [("f16x2", "fp16"), ("bf16x2", "bf16")])
def test_two_halves_in_one_register(suffix: str, kind: str) -> None:
    x, y, z = (narrow(RNG.normal(size=64), kind) for _ in range(3))
    (got,) = run(f"fma.rn.{suffix} $0, $1, $2, $3;", "=r,r,r,r", [x, y, z], [x.dtype], 2)
    exact = widen(x, kind).astype(float) * widen(y, kind) + widen(z, kind)
    assert np.array_equal(got.view(np.uint16), narrow(exact, kind).view(np.uint16))
    (got,) = run(f"tanh.approx.{suffix} $0, $1;", "=r,r", [x], [x.dtype], 2)
    want = narrow(np.tanh(widen(x, kind).astype(float)), kind)
    assert np.array_equal(got.view(np.uint16), want.view(np.uint16))


def test_integers_conversions_and_selection() -> None:
    x = np.array([1.5, -2.5, 3e9, np.nan], F)
    i32 = [np.dtype(np.int32)]
    (got,) = run("cvt.rni.s32.f32 $0, $1;", "=r,f", [x], i32, 1)
    assert got.tolist() == [2, -2, 2**31 - 1, 0]
    (got,) = run("{ .reg .b32 t; shl.b32 t, $1, 1; and.b32 $0, t, 0xff; }", "=r,f", [x], i32, 1)
    assert got.tolist() == ((x.view(np.uint32) << 1) & 0xFF).astype(int).tolist()
    text = "{ .reg .pred p; setp.lt.f32 p, $1, 0f00000000; selp.f32 $0, 0f3F800000, $1, p; }"
    (picked,) = run(text, "=f,f", [x], F32_OUT, 1)
    assert picked[:3].tolist() == [1.5, 1.0, F(3e9)] and np.isnan(picked[3])
    (packed,) = run("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [x], [np.dtype(np.uint16)], 2)
    assert np.array_equal(packed, narrow(x, "bf16"))
    (swapped,) = run(
        "{ .reg .b16 a, b; mov.b32 {a, b}, $1; mov.b32 $0, {b, a}; }",
        "=r,r", [np.array([0x11112222], np.int32)], i32, 1,
    )  # fmt: skip
    assert swapped.tolist() == [0x22221111]


def test_several_outputs() -> None:
    x = RNG.normal(size=16).astype(F)
    text = "add.f32 $0, $2, $2; mul.f32 $1, $2, $2;"
    a, b = run(text, "=f,=f,f", [x], F32_OUT * 2, 1)
    assert np.array_equal(a, x + x) and np.array_equal(b, x * x)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mma.sync.aligned.m16n8k8 $0, $1;", "the interpreter backend has no 'mma.sync.aligned.m16n8k8'"),
        ("@p mov.f32 $0, $1;", "the interpreter backend has no '@p'"),
        ("add.f32 $0, $1;", "add.f32 takes 2 sources: 'add.f32 $0, $1'"),
        ("add.f32 $0, $1, x;", "'x' is read before it is written in 'add.f32 $0, $1, x'"),
        ("mov.f32 t, $1;", "nothing is written to $0 in 'mov.f32 t, $1;'"),
        ("ld.global.f32 $0, $1;", "the interpreter backend has no 'ld.global.f32'"),
    ],
)
def test_refusals_name_the_instruction(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        run(text, "=f,f", [np.ones(4, F)], F32_OUT, 1)
    assert message in str(error.value)


def test_register_counts_and_packing_are_checked() -> None:
    with pytest.raises(UsageError, match=r"need 1 output registers \(pack=1\); the constraints '=f,=f,f' declare 2"):
        run("mov.f32 $0, $1;", "=f,=f,f", [np.ones(4, F)], F32_OUT, 1)
    with pytest.raises(UsageError, match="pack=4 must divide the number of elements; got 6 elements"):
        run("mov.f32 $0, $1;", "=f,f", [np.ones(6, F)], F32_OUT, 4)
