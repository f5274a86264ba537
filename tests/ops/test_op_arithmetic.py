"""The exact arithmetic below the ops and their formulas, against fractions."""

from __future__ import annotations

from fractions import Fraction

import flint
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp

from tests.ops.exactly import (
    add_rows,
    at_exponent,
    dot,
    dyadic,
    dyadics,
    exact_product,
    magnitude,
    mpf_to_arb,
    multiply_rows,
    summed,
)
from verify.ops.elements import arb_bits, mp_bits, pick, to_arb
from verify.ops.normalize import two_sum

finite = st.floats(allow_nan=False, allow_infinity=False)
moderate = st.floats(-1e100, 1e100, allow_nan=False).filter(lambda v: v == 0 or abs(v) > 1e-100)
deterministic = settings(derandomize=True, max_examples=60, deadline=None)


def value(integer: int, exponent: int) -> Fraction:
    return Fraction(integer) * Fraction(2) ** exponent


@deterministic
@given(st.lists(finite, min_size=1, max_size=12), st.data())
def test_dyadics_are_the_floats(values: list[float], data: st.DataObject) -> None:
    row = dyadics(values)
    assert [value(each, row.exponent) for each in row.integers] == [Fraction(v) for v in values]
    assert [at_exponent(v, row.exponent) for v in values] == row.integers
    others = data.draw(st.lists(finite, min_size=len(values), max_size=len(values)))
    other = dyadics(others)
    pairs = list(zip(map(Fraction, values), map(Fraction, others), strict=True))
    total = add_rows([row, other])
    assert [value(v, total.exponent) for v in total.integers] == [a + b for a, b in pairs]
    product = multiply_rows(row, other)
    assert [value(v, product.exponent) for v in product.integers] == [a * b for a, b in pairs]
    exact = sum((a * b for a, b in pairs), Fraction(0))
    assert value(dot(row.integers, other.integers), row.exponent + other.exponent) == exact


@deterministic
@given(finite)
def test_dyadic_is_the_float(number: float) -> None:
    assert value(*dyadic(number)) == Fraction(number)
    with mp.workprec(53):
        assert float(dyadic(number).mpf()) == number
    with mp.workprec(200):
        assert mpf_to_arb(mp.mpf(number)) == to_arb(number)


@deterministic
@given(moderate, moderate)
def test_two_sum_is_exact(a: float, b: float) -> None:
    high, low = two_sum(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))
    assert Fraction(high.item()) + Fraction(low.item()) == Fraction(a) + Fraction(b)


def test_summed_pays_for_cancellation() -> None:
    """pi - (a 300-bit pi) is known to 200 relative bits, though 300 bits cancel."""
    with mp.workprec(300):
        near = +mp.pi
    difference = summed(lambda bits: [+mp.pi, -near], 200)
    with mp.workprec(1000):
        exact = mp.pi - near
        assert abs(difference - exact) <= mp.ldexp(abs(exact), -200)
    # An exact zero of irrational terms ends, as zero.
    assert summed(lambda bits: [mp.sqrt(2), -1 / mp.sqrt(mp.mpf(1) / 2)], 100) == 0
    assert mp.isnan(summed(lambda bits: [mp.inf, mp.ninf], 100))
    assert summed(lambda bits: [mp.inf, mp.one], 100) == mp.inf
    assert summed(lambda bits: [], 100) == 0


def test_precision_is_restored() -> None:
    before = (flint.ctx.prec, mp.prec)

    def fail() -> None:
        with arb_bits(333), mp_bits(444):
            assert (flint.ctx.prec, mp.prec) == (333, 444)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (flint.ctx.prec, mp.prec) == before


def test_exact_product_does_not_round() -> None:
    a, b = mp.mpf(2**53 - 1), mp.mpf(2**53 - 3)
    assert exact_product(a, b) == (2**53 - 1) * (2**53 - 3)
    assert mp.isnan(exact_product(mp.zero, mp.inf))
    assert [magnitude(mp.mpf(v)) for v in (0, 1, 0.75, -4, mp.inf)] == [0, 1, 0, 3, 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_pick_reads_logical_positions(dtype: torch.dtype) -> None:
    base = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, -0.5]]).to(dtype)
    assert pick(base, [0, 4, 5]) == [1.0, 5.0, -0.5]
    assert pick(base.t(), [0, 1, 5]) == [1.0, 4.0, -0.5]
    assert pick(base[:, 1:], [2]) == [5.0]
    assert pick(base[0, 1], [0]) == [2.0]
    assert pick(base, []) == []
