"""Results that are too large for the host stay on their device, and meet no tensor of the host there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import verify
from tests.measure.second_device import DEVICE, OnDevice, SecondDevice, on_device
from verify.cases import Case, problem_of
from verify.cases.plan import Group
from verify.cases.values import ENDLESS
from verify.measure.call import run_kernel
from verify.measure.case import judge_case, question_of
from verify.ops.graph import coins, noise

FUNCTIONS: dict[str, tuple[Callable[..., Tensor], dict[str, str], tuple[int, ...]]] = {
    "product": (lambda x, y: x @ y, {"x": "m k", "y": "k n"}, (5, 6, 7)),
    "softmax": (lambda x: functional.softmax(x, -1), {"x": "m n"}, (5, 6)),
    "gelu": (functional.gelu, {"x": "n"}, (9,)),
    "top": (lambda x: x.topk(2).values, {"x": "m n"}, (5, 6)),
}


class PlacedCoins(coins.Coins):
    """Random numbers drawn here and used on either device."""

    def __init__(self, seed: int, device: torch.device) -> None:
        super().__init__(seed, torch.device("cpu"))
        self._numbers = OnDevice(self._numbers) if device == DEVICE else self._numbers


def test_tensors_of_two_devices_do_not_meet() -> None:
    with SecondDevice():
        there = torch.ones(3, device=DEVICE)
        assert there.device.type == "cuda" and (there + 1).device.type == "cuda" and there.cpu().device.type == "cpu"
        with pytest.raises(RuntimeError, match="same device"):
            there + torch.ones(3)


@pytest.mark.parametrize("fill", ["randn", *ENDLESS])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_large_result_is_judged_where_it_is(name: str, fill: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`small=0`: every result counts as too large for the host."""
    monkeypatch.setattr(noise, "Coins", PlacedCoins)
    function, shapes, dims = FUNCTIONS[name]
    kernel = verify.kernel(like=function, shapes=shapes, dtypes=["float32"], gradients=False, name=name)(function)
    case = Case(dtype="float32", dims=dims, fill=fill, regime="randn" if fill == "randn" else "")
    measured = run_kernel(kernel, case, "cpu")
    with SecondDevice():
        measured = dataclasses.replace(measured, inputs=on_device(measured.inputs), results=on_device(measured.results))
        problem = problem_of(kernel.op, case, measured.inputs, measured.upstream, tuple(measured.results))
        question = question_of(kernel, case, measured, problem, "t", 0, 0)
        given = {"kernel": measured.results, "baseline": measured.results}
        found = judge_case(kernel, Group((case,)), question.explaining(given), given, {"kernel": {}, "baseline": {}})
    assert not question.on_host and found["kernel"]["y"].wrong == [False]
