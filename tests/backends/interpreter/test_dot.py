"""tl.dot where the recorded products of test_hardware.py do not reach: roundings by hand, limits, batches."""

from __future__ import annotations

import math

import numpy as np
import pytest

from verify.backends.interpreter.casts import narrow
from verify.backends.interpreter.dot import dot, round_tf32, truncate_tf32

F = np.float32


def product(a: list[list[float]], b: list[list[float]], kind: str, precision: str = "tf32", acc: float = 0.0) -> float:
    x, y = (narrow(np.array(m), kind) for m in (a, b))
    out = dot(x, y, np.full((len(a), len(b[0])), acc, F), kind, kind, "fp32", precision)
    return float(out[0, 0])


def test_the_two_roundings_to_tf32() -> None:
    x = np.array([1 + 2.0**-11, 1 + 2.0**-11 - 2.0**-23, -1 - 2.0**-11, np.inf, 3.4e38, np.nan], F)
    assert truncate_tf32(x)[:3].tolist() == [1.0, 1.0, -1.0]
    assert round_tf32(x)[:4].tolist() == [1 + 2.0**-10, 1.0, -1 - 2.0**-10, math.inf]  # ties away from zero
    assert round_tf32(x)[4] == np.inf or np.isfinite(round_tf32(x)[4])
    assert np.isnan(round_tf32(x)[5])


def test_the_matrix_unit_cuts_bits_below_the_largest_term_and_truncates() -> None:
    # bfloat16: 25 fraction bits below the largest exponent, here 2^10; then float32 towards zero.
    big, tiny = 2.0**10, 2.0**-16
    assert product([[big, tiny]], [[1.0], [1.0]], "bf16") == big  # 2^-16 is cut off by the alignment
    assert product([[1.0, 2.0**-24]], [[1.0], [1.0]], "bf16") == 1.0  # kept, then truncated from float32
    assert product([[1.0, 2.0**-23]], [[1.0], [1.0]], "bf16") == 1 + 2.0**-23
    # Two halves of an ULP add up before the truncation: the sum inside one instruction is exact.
    assert product([[1.0, 2.0**-24, 2.0**-24]], [[1.0]] * 3, "bf16") == 1 + 2.0**-23
    assert product([[-1.0, -(2.0**-24)]], [[1.0]] * 2, "bf16") == -1.0


def test_infinity_and_nan() -> None:
    for kind in ("bf16", "fp16", "fp32"):
        assert product([[math.inf, 1.0]], [[1.0], [1.0]], kind) == math.inf
        assert math.isnan(product([[math.inf, math.inf]], [[1.0], [-1.0]], kind))
        assert math.isnan(product([[math.nan, 1.0]], [[1.0], [1.0]], kind))
        assert math.isnan(product([[math.inf]], [[0.0]], kind))
    assert product([[0.0]], [[0.0]], "bf16") == 0.0
    assert product([[1.0]], [[math.inf]], "fp32", "tf32x3") == math.inf  # 0 * inf among the small terms is dropped


@pytest.mark.parametrize("kind", ["bf16", "fp16", "fp32", "fp8e5"])
def test_batches_are_independent_products(kind: str) -> None:
    rng = np.random.default_rng(0)
    a, b = narrow(rng.normal(size=(3, 8, 48)), kind), narrow(rng.normal(size=(3, 48, 4)), kind)
    acc = rng.normal(size=(3, 8, 4)).astype(F)
    together = dot(a, b, acc, kind, kind, "fp32", "tf32")
    for i in range(3):
        assert np.array_equal(together[i], dot(a[i], b[i], acc[i], kind, kind, "fp32", "tf32"))


def test_int8_is_exact() -> None:
    rng = np.random.default_rng(1)
    x, y = (rng.integers(-128, 128, s).astype(np.int8) for s in ((6, 40), (40, 5)))
    total = dot(x, y, np.full((6, 5), 7, np.int32), "int8", "int8", "int32", "tf32")
    assert np.array_equal(total, x.astype(int) @ y.astype(int) + 7)


@pytest.mark.parametrize(("acc", "sign"), [(-0.0, -1.0), (0.0, 1.0)])
def test_a_sum_of_nothing_but_negative_zeros_is_one(acc: float, sign: float) -> None:
    assert math.copysign(1.0, product([[-1.0, -1.0]], [[0.0], [0.0]], "bf16", acc=acc)) == sign
