"""Two runs that must have the same bits, and what is said of the first element that differs."""

from __future__ import annotations

import pytest
import torch

from verify.cases import Case
from verify.laws.law import Broken, demand_same

CASE = Case(dtype="float32", dims=(3,), fill="normal")


def values(*numbers: float) -> dict[str, torch.Tensor]:
    return {"y": torch.tensor(numbers)}


def test_equal_bits_and_any_two_nan_are_the_same() -> None:
    nan = float("nan")
    demand_same(CASE, values(1.0, nan), values(1.0, nan), "a")
    other_nan = {"y": torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)}
    demand_same(CASE, other_nan, values(nan), "a")  # payloads are nobody's promise


@pytest.mark.parametrize(
    ("got", "facts"),
    [
        (values(1.0, 2.5), {"at": "y [1] of shape [2]", "before": "2.5 (0x40200000)", "after": "2.0 (0x40000000)"}),
        (values(1.0), {"at": "y", "before": "torch.float32 [1]", "after": "torch.float32 [2]"}),
        ({}, {"rule": "second"}),
    ],
    ids=["a bit", "a shape", "missing"],
)
def test_a_difference_has_its_rule_and_both_values(got: dict[str, torch.Tensor], facts: dict[str, str]) -> None:
    labels, rows = ("before", "after"), {"rows": "0 to 1"}
    with pytest.raises(Broken) as broken:
        demand_same(CASE, got, values(1.0, 2.0), "second", labels=labels, facts=rows)
    assert broken.value.rule == ("second" if got else "y is missing")
    assert broken.value.facts == {"rows": "0 to 1", **facts}
