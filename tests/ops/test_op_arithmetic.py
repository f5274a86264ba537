"""The exact arithmetic below the ops: sums of two floats, the precision of both arithmetics, elements by place."""

from __future__ import annotations

from fractions import Fraction

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verify.ops.graph.spans import two_sum

moderate = st.floats(-1e100, 1e100, allow_nan=False).filter(lambda v: v == 0 or abs(v) > 1e-100)
deterministic = settings(derandomize=True, max_examples=60, deadline=None)


@deterministic
@given(moderate, moderate)
def test_two_sum_is_exact(a: float, b: float) -> None:
    high, low = two_sum(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))
    assert Fraction(high.item()) + Fraction(low.item()) == Fraction(a) + Fraction(b)
