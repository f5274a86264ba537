"""Operands that are computed from others: rounded once, in an order in which each finds what it takes."""

from __future__ import annotations

import pytest
import torch

import verify
from verify.errors import UsageError
from verify.ops.graph.derived import derivations
from verify.ops.graph.rounded import GRIDS
from verify.truth.formats import FORMATS, named, torch_dtype
from verify.truth.ulp import widen


@pytest.mark.parametrize("name", [name for name in FORMATS if name in GRIDS])
def test_a_derived_operand_is_correctly_rounded_where_float64_does_not_decide(name: str) -> None:
    fmt = named(name)
    # x + y is within 2^-70 of a midpoint: an interval of float64 holds both neighbours
    ulp = 2.0**-fmt.mantissa_bits
    x = torch.full((3,), 1 + ulp / 2, dtype=torch.float64)
    y = torch.tensor([2.0**-70, 0.0, -(2.0**-70)], dtype=torch.float64)
    each = derivations({"s": lambda x, y: x + y}, ["x", "y", "s"])["s"]
    made = each.of({"x": x, "y": y}, torch_dtype(fmt), (3,))
    assert widen(made).tolist() == [1 + ulp, 1.0, 1.0]


def test_operands_are_derived_after_those_that_they_are_derived_from() -> None:
    found = derivations({"b": lambda a: a, "a": lambda x: x, "c": lambda b, x: b + x}, ["x", "c", "b", "a"])
    assert sorted(found, key=lambda name: found[name].depth) == ["a", "b", "c"]
    with pytest.raises(UsageError, match="computes operands from each other: a, b"):
        derivations({"a": lambda b: b, "b": lambda a: a}, ["a", "b"])


def test_a_function_of_derived_operands_sees_integers_in_their_range() -> None:
    def last(lengths: torch.Tensor) -> torch.Tensor:
        assert bool((lengths >= 1).all()), "no length is 0"
        return lengths - 1

    @verify.kernel(
        like=lambda x, lengths: x * lengths[:, None],
        shapes={"x": "n d", "lengths": "n", "last": "n"},
        integers={"lengths": "1 <= lengths <= d"},
        derive={"last": last},
        gradients=False,
    )
    def scaled(x: torch.Tensor, lengths: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        return x * (last + 1)[:, None]

    assert scaled.operands == ("x", "lengths", "last")
