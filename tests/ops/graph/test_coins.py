"""Runs that are evaluated together have the results that they have one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from verify.ops.graph import coins as of_coins
from verify.ops.graph.coins import Coins
from verify.ops.graph.noise import noise_of
from verify.ops.graph.program import Program, trace
from verify.ops.graph.rounding import Rounding
from verify.ops.graph.steps import Run

DEVICE = torch.device("cpu")
FUNCTIONS: dict[str, tuple[Callable[..., Any], bool]] = {  # and whether torch.vmap can evaluate several runs together
    "softmax": (lambda x: x.softmax(-1), True),
    "norm": (lambda x: functional.layer_norm(x, x.shape[-1:]), True),
    "product": (lambda x: x @ x.T, True),
    "most": (lambda x: (x * 3).amax(-1), True),
    "order": (lambda x: (x.exp() * 3).sort(-1).values, True),
    "scan": (lambda x: (x / 3).cumsum(-1), True),
    "pooled": (lambda x: functional.avg_pool1d(x[None] / 3, 3), False),
}


def traced(function: Callable[..., Any]) -> tuple[Program, Run]:
    x = torch.randn(6, 12, generator=torch.Generator().manual_seed(3)).double()
    program = trace(function, {"x": x}, differentiable=["x"])
    upstream = torch.ones(program.results["y"].shape, dtype=torch.float64)
    return program, Run({"x": x, "grad y": upstream}, DEVICE)


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lists the sizes of the groups that are evaluated together."""
    sizes, together = list[int](), Coins._together

    def counted(self: Coins, count: int, *rest: Any) -> Any:
        found = together(self, count, *rest)
        sizes.append(count)
        return found

    monkeypatch.setattr(Coins, "_together", counted)
    return sizes


def noise(function: Callable[..., Any]) -> tuple[dict[str, Any], dict[Any, Tensor], bool]:
    program, run = traced(function)
    found, reaches = noise_of(program, run, ["y", "dx"], Rounding.of(run))
    places: dict[Any, Any] = {}
    for place, step in enumerate(program.steps):
        places |= {id(step): place, -id(step): -place, ("own", id(step)): ("own", place)}
    return found, {places[key]: reach for key, reach in reaches.items()}, program.apart


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_noise_is_that_of_runs_one_after_the_other(
    name: str, groups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    function, possible = FUNCTIONS[name]
    found, reaches, apart = noise(function)
    assert bool(groups) is possible is not apart
    groups.clear()
    monkeypatch.setattr(of_coins, "_TOGETHER", {True: 0, False: 0})
    alone, wanted, _ = noise(function)
    assert not groups and found.keys() == alone.keys() and reaches.keys() == wanted.keys()
    assert bool((alone["y"].deviation > 0).any())
    for result, one in alone.items():
        assert torch.equal(found[result].deviation, one.deviation), result
        assert found[result].together == one.together
    for place, reach in wanted.items():
        assert torch.equal(reaches[place], reach)


def test_without_random_numbers_one_run_is_all() -> None:
    calls, coins = list[int](), Coins(0, DEVICE)
    assert list(coins.runs(4, lambda: calls.append(1) or 3, 10)) == [3] * 4  # type: ignore[func-returns-value]
    assert len(calls) == 1
