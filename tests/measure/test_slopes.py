"""Slopes at kinks: a kernel may take another side than PyTorch, which a note says, unless ties= demands PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import verify
from tests.measure.test_kernel import few_cases, measured
from verify.errors import UsageError
from verify.records.record import KernelRun


class UpperRelu(torch.autograd.Function):
    """Has the slope 1 at 0, where PyTorch has 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.relu()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return torch.where(ctx.saved_tensors[0] < 0, 0.0, dy)


class FirstOfLargest(torch.autograd.Function):
    """Gives the gradient to the first of equal largest numbers. PyTorch's amax divides it among them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        largest, place = x.max(-1)
        ctx.save_for_backward(place)
        ctx.shape = x.shape
        return largest

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy.new_zeros(ctx.shape).scatter(-1, ctx.saved_tensors[0][..., None], dy[..., None])


class LastOfLargest(FirstOfLargest):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        largest, place = x.flip(-1).max(-1)
        ctx.save_for_backward(x.shape[-1] - 1 - place)
        ctx.shape = x.shape
        return largest


def run(monkeypatch: pytest.MonkeyPatch, like: Any, function: Any, ties: str, **options: Any) -> KernelRun:
    few_cases(monkeypatch, "randn", "signs")
    return measured(verify.kernel(like=like, dtypes=["bfloat16"], ties=ties, **options)(lambda x: function(x)))


LARGEST = {"shapes": {"x": "r n"}}
TWINS = {
    "relu": (torch.relu, UpperRelu.apply, {}, "maximum(x, 0)"),
    "amax": (lambda x: x.amax(-1), FirstOfLargest.apply, LARGEST, "max(x)"),
    "max": (lambda x: x.max(-1).values, LastOfLargest.apply, LARGEST, "argmax(x)"),
}


@pytest.mark.parametrize("name", TWINS)
def test_another_slope_is_a_note_and_wrong_where_pytorchs_is_promised(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    like, function, options, tie = TWINS[name]
    free = run(monkeypatch, like, function, "", **options)
    assert free.status == "ok", free
    notes = [note for note in free.notes if "the slope is not PyTorch's" in note]
    assert notes and all(note.startswith("dx bfloat16: at equal numbers") and tie in note for note in notes)
    held = run(monkeypatch, like, function, "as like", **options)
    assert held.status == "wrong" and not any("the slope is not" in note for note in held.notes)
    assert {result.status for result in held.results if result.output == "y"} == {"ok"}


@pytest.mark.parametrize("ties", ["", "as like"])
def test_pytorchs_own_slopes_are_right_without_a_note(ties: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def layer(x: Tensor) -> Tensor:
        return x.relu() + x.abs() + x.amax(-1, True) - x.max(-1, True).values.clamp(-1, 1)

    found = run(monkeypatch, layer, layer, ties, shapes={"x": "r n"})
    assert found.status == "ok" and not any("the slope is not" in note for note in found.notes), found


def test_a_promise_of_slopes_is_checked_where_it_is_declared() -> None:
    with pytest.raises(UsageError, match="ties is one of"):
        verify.kernel(like=torch.relu, ties="first")(torch.relu)
    with pytest.raises(UsageError, match="ties=, which belong"):
        verify.kernel(op="silu", ties="as like")(torch.nn.functional.silu)
    assert "ties as like" in verify.kernel(like=torch.relu, ties="as like")(lambda x: x.relu()).promise
