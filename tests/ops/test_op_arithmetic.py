"""The exact arithmetic below the ops: sums of two floats, the precision of both arithmetics, elements by place."""

from __future__ import annotations

from fractions import Fraction

import flint
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp

from verify.ops.elements import arb_bits, mp_bits, pick
from verify.ops.normalize import two_sum

finite = st.floats(allow_nan=False, allow_infinity=False)
moderate = st.floats(-1e100, 1e100, allow_nan=False).filter(lambda v: v == 0 or abs(v) > 1e-100)
deterministic = settings(derandomize=True, max_examples=60, deadline=None)


@deterministic
@given(moderate, moderate)
def test_two_sum_is_exact(a: float, b: float) -> None:
    high, low = two_sum(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))
    assert Fraction(high.item()) + Fraction(low.item()) == Fraction(a) + Fraction(b)


def test_precision_is_restored() -> None:
    before = (flint.ctx.prec, mp.prec)

    def fail() -> None:
        with arb_bits(333), mp_bits(444):
            assert (flint.ctx.prec, mp.prec) == (333, 444)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (flint.ctx.prec, mp.prec) == before


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_pick_reads_logical_positions(dtype: torch.dtype) -> None:
    base = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, -0.5]]).to(dtype)
    assert pick(base, [0, 4, 5]) == [1.0, 5.0, -0.5]
    assert pick(base.t(), [0, 1, 5]) == [1.0, 4.0, -0.5]
    assert pick(base[:, 1:], [2]) == [5.0]
    assert pick(base[0, 1], [0]) == [2.0]
    assert pick(base, []) == []
