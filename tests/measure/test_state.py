"""What a kernel leaves of its process: replaced functions, and methods that are added over inherited ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from verify.measure import judge
from verify.measure.state import ProcessState


def _replaced(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, value: Any) -> list[tuple[str, str]]:
    before = ProcessState.now()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, value, raising=False)
        return [(left.kind, left.text) for left in before.left("call")]


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (torch.Tensor, "abs"),
        (torch.Tensor, "isnan"),
        (torch.Tensor, "__eq__"),
        (torch.Tensor, "__array__"),
        (torch.Tensor, "backward"),
        (torch.nn.functional, "silu"),
        (torch, "sum"),
    ],
)
def test_a_function_that_judges_is_replaced(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    label = f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__
    wanted = [("judge", f"replaced {label.replace('torch._tensor', 'torch')}.{name}")]
    assert _replaced(monkeypatch, owner, name, lambda *given: None) == wanted


def test_a_property_that_judges_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [("judge", "replaced torch.Tensor.shape")]
    assert _replaced(monkeypatch, torch.Tensor, "shape", property(lambda self: ())) == wanted


def test_a_function_with_other_code_and_one_that_is_gone_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*given: Any) -> None:
        pass

    wanted = [("judge", "replaced verify.measure.judge._contenders")]
    assert _replaced(monkeypatch, judge._contenders, "__code__", nothing.__code__) == wanted
    assert _replaced(monkeypatch, judge, "_contenders", 1) == wanted
    before = ProcessState.now()
    monkeypatch.delattr(judge, "_contenders")
    assert [(left.kind, left.text) for left in before.left("call")] == wanted


def test_nothing_is_replaced() -> None:
    before = ProcessState.now()
    torch.ones(2).abs().sum()
    assert before.left("call") == []
