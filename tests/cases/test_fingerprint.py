"""The property hash of a PyTorch function: a changed meaning has another hash, in whatever way it was changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import verify
from verify.cases.case import case_of, fingerprint
from verify.ops.graph.like import Definition

SCALE = 1.0


def _hash(function: Callable[..., Any], dims: tuple[int, ...] = (2, 8), **options: Any) -> str:
    kernel = verify.kernel(like=function, name="k", dtypes=["float16"], **options)(lambda x: x)
    return fingerprint(kernel, "y", "float16", [case_of(kernel, "float16", dims=dims, fill="normal")])


def _closure(constant: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x / (x.abs() + constant)


class _Scaled(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class _Other(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


class _Held(torch.nn.Module):
    def __init__(self, value: float, *, buffer: bool) -> None:
        super().__init__()
        held = torch.tensor(value)
        if buffer:
            self.register_buffer("held", held)
        else:
            self.held = torch.nn.Parameter(held)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.held


def _global(x: Tensor) -> Tensor:
    return x * SCALE


def _default(value: float) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor, factor: float = value) -> Tensor:
        return x * factor

    return function


def _tensor(value: float) -> Callable[[Tensor], Tensor]:
    held = torch.tensor([1.0, value])[1:]
    return lambda x: x * held


def _helped(helper: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: helper(x) + 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_closure(1e-5), _closure(0.1)),
        (_default(1.5), _default(2.5)),
        (_tensor(1.5), _tensor(1.5000001)),
        (_helped(torch.exp), _helped(torch.sin)),
        (_Scaled(1.5), _Scaled(3.0)),
        (_Scaled(1.5), type("_Scaled", (_Other,), {})()),
        (_Held(1.5, buffer=False), _Held(2.5, buffer=False)),
        (_Held(1.5, buffer=True), _Held(2.5, buffer=True)),
        (lambda x: functional.softplus(x, 1.0), lambda x: functional.softplus(x, 1.5)),
        (lambda x: x - x.abs(), lambda x: x.abs() - x),
        (lambda x: x.exp() * x, lambda x: x.exp().detach() * x),  # another gradient
    ],
    ids="closure default tensor helper attribute code parameter buffer option wiring gradient".split(),
)
def test_another_meaning_has_another_hash(one: Any, other: Any) -> None:
    assert _hash(one) != _hash(other)


def test_a_global_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _hash(_global)
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert _hash(_global) != before


def test_a_branch_on_sizes_that_the_cases_take() -> None:
    def function(most: int) -> Callable[[Tensor], Tensor]:
        return lambda x: x.exp() if x.shape[-1] <= most else x.sin()

    assert _hash(function(100), (2, 300)) != _hash(function(400), (2, 300))
    assert (
        Definition(function(100), ["x"]).op().name == Definition(function(400), ["x"]).op().name
    )  # small sizes do not tell


def test_what_means_the_same_keeps_its_hash() -> None:
    def first(x: Tensor) -> Tensor:
        return torch.exp(x) + 1.0

    def function(y: Tensor) -> Tensor:
        unused = y * 3  # noqa: F841
        made = y.exp()
        return made + 1.0

    function.__name__ = "first"
    assert _hash(first) == _hash(function)
