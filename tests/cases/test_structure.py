"""A structure that all samples of an argument have is found, and other numbers get it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from verify.cases.structure import found_in, kept


def symmetric(size: int) -> Tensor:
    drawn = torch.randn(size, size)
    return (drawn + drawn.T) / 2


def definite(size: int) -> Tensor:
    drawn = torch.randn(size, size)
    return drawn @ drawn.T + torch.eye(size)


SAMPLES: dict[str, Callable[[], Tensor]] = {
    "": lambda: torch.randn(8, 100),
    "upper triangular": lambda: torch.randn(3, 16, 16).triu(),
    "lower triangular": lambda: torch.randn(16, 16).tril(),
    "symmetric, upper triangular, lower triangular": lambda: torch.diag(torch.randn(24)),
    "symmetric": lambda: symmetric(32),
    "positive definite": lambda: definite(8),
    "one-hot": lambda: functional.one_hot(torch.randint(0, 10, (16,)), 10).float(),
    "few numbers": lambda: torch.randint(0, 2, (16, 64)) * 2.0 - 1,
    "whole numbers": lambda: torch.randint(0, 50, (64,)).float(),
    "unit vectors along -1": lambda: functional.normalize(torch.randn(8, 32), dim=-1),
    "unit vectors along -2": lambda: functional.normalize(torch.randn(8, 32, 5), dim=1).bfloat16(),
    "probabilities along -1": lambda: torch.rand(8, 32).softmax(-1),
    "rising": lambda: torch.randn(64).sort().values,
    "zeros at the same places": lambda: torch.block_diag(torch.randn(4, 4), torch.randn(4, 4)),
    "constant": lambda: torch.zeros(8, 8).masked_fill(torch.ones(8, 8).triu(1).bool(), float("-inf")),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_structure_is_found_and_kept(name: str) -> None:
    samples = [SAMPLES[name]() for _ in range(3)]
    names = found_in(samples)
    assert ", ".join(names) == name
    for scale in (1.0, 1e-20, 1e20):
        drawn = [
            kept((scale * torch.randn(samples[0].shape)).to(samples[0].dtype), names, samples[0]) for _ in range(3)
        ]
        assert drawn[0].dtype == samples[0].dtype and bool((~torch.isnan(drawn[0])).all())
        assert found_in(drawn) == names


@pytest.mark.parametrize(
    "x",
    [torch.zeros(4, 4), torch.randn(9, 9).relu(), torch.ones(1), torch.tensor([True, False]), torch.randn(2)],
    ids=["zeros", "relu", "one", "condition", "two"],
)
def test_what_chance_or_a_function_makes_is_no_structure(x: Tensor) -> None:
    assert found_in([x, *([torch.randn(9, 9).relu()] if x.numel() == 81 else [])]) == ()
