"""Comparisons that are asked together are judged one by one when they fail."""

from __future__ import annotations

import pytest
import torch

from verify.cases import Case
from verify.laws.compare import Comparison, demand_each_same
from verify.laws.law import Broken

CASE = Case(dtype="float32", dims=(3,), fill="normal")


def values(*numbers: float) -> dict[str, torch.Tensor]:
    return {"y": torch.tensor(numbers)}


def test_comparisons_that_hold() -> None:
    nan = float("nan")
    demand_each_same(CASE, [])
    demand_each_same(CASE, [Comparison(values(1.0), values(1.0), "a"), Comparison(values(nan), values(nan), "b")])
    other_nan = {"y": torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)}
    demand_each_same(CASE, [Comparison(other_nan, values(nan), "a")])  # payloads are nobody's promise


@pytest.mark.parametrize(
    ("got", "facts"),
    [
        (values(1.0, 2.5), {"at": "y [1] of shape [2]", "before": "2.5 (0x40200000)", "after": "2.0 (0x40000000)"}),
        (values(1.0), {"at": "y", "before": "torch.float32 [1]", "after": "torch.float32 [2]"}),
        ({}, {"rule": "second"}),
    ],
    ids=["a bit", "a shape", "missing"],
)
def test_the_first_that_fails_is_told_with_its_own_rule(got: dict[str, torch.Tensor], facts: dict[str, str]) -> None:
    same = Comparison(values(1.0), values(1.0), "first")
    wrong = Comparison(got, values(1.0, 2.0), "second", ("before", "after"), {"rows": "0 to 1"})
    last = Comparison(values(1.0), values(2.0), "third")
    with pytest.raises(Broken) as broken:
        demand_each_same(CASE, [same, wrong, last])
    assert broken.value.rule == ("second" if got else "y is missing")
    assert broken.value.facts == {"rows": "0 to 1", **facts}
