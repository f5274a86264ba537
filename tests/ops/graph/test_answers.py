"""Integers and conditions as results: exact, up to ties and to what a few roundings decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import verify
from tests.measure.test_kernel import CPU, few_cases
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.ops.graph.like import Definition
from verify.ops.op import Problem

ORDINARY = {"ordinary": 4.0, "demanding": None, "extreme": None}


def _wrong(function: Callable[..., Any], x: Tensor, got: list[Any], output: str = "y") -> list[bool]:
    """Which elements of an answer are none of the right ones."""
    op = Definition(function, ["x"], examples=[(x,)]).op()
    problem = Problem({"x": x}, {}, {}, op.outputs)
    assert output in op.integers
    shape = op.fast(problem)[output].value.shape
    answer = torch.tensor(got, dtype=torch.float64).reshape(shape)
    problem = op.meaning.chosen(problem, {output: answer.nan_to_num(-1.0).long()})
    value = op.fast(problem)[output].value
    points = op.points(problem, output, range(value.numel()))
    for point, known in zip(points, value.reshape(-1).tolist(), strict=True):
        assert point.arb is not None and float(point.arb(160)) == float(point.mp(160)) == known
    found: list[bool] = (answer != value).reshape(-1).tolist()
    return found


def test_the_place_of_a_largest_element_is_any_of_those_that_are_equal() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 2.0]])
    answers = (1, 2, 0, 3, -1, 4, 1.5, float("nan"))
    assert [_wrong(lambda x: x.argmax(-1), x, [each]) for each in answers] == [[False]] * 2 + [[True]] * 6
    assert _wrong(lambda x: x.argmin(0, keepdim=True), x, [0, 0, 0, 1]) == [False, False, False, True]
    assert _wrong(lambda x: x.max(-1), torch.tensor([[float("nan"), 5.0, float("nan")]]), [2], "y2") == [False]


def test_numbers_that_a_kernel_rounds_may_be_in_another_order() -> None:
    x = torch.tensor([[1.0, 1.0 + 2.0**-23, 2.0]])
    assert _wrong(lambda x: x.argmin(-1), x, [1]) == [True]
    assert _wrong(lambda x: (x * 3.0).argmin(-1), x, [1]) == [False]
    assert _wrong(lambda x: (x * 3.0).argmin(-1), x, [2]) == [True]
    assert _wrong(lambda x: x * 3.0 > 3.0, x, [True, False, True]) == [True, False, False], "1 * 3 is exact"
    assert _wrong(lambda x: x * 3.0 > 3.0, x, [False, False, False]) == [False, False, True]


def test_an_order_names_every_element_once() -> None:
    x = torch.tensor([[2.0, 1.0, 2.0, 0.0]])
    assert _wrong(lambda x: x.topk(2), x, [2, 0], "y2") == [False, False]
    assert sum(_wrong(lambda x: x.topk(2), x, [2, 2], "y2")) == 1
    assert _wrong(lambda x: x.argsort(-1), x, [3, 1, 2, 0]) == [False] * 4
    assert sum(_wrong(lambda x: x.argsort(-1), x, [3, 0, 2, 1])) >= 2


def test_integers_that_a_number_was_rounded_to_are_those_beside_it() -> None:
    x = torch.tensor([0.25, 0.75])
    rounded: Callable[[Tensor], Tensor] = lambda x: torch.round(x * 10.0 / 1.25 * 0.625 * 2.0).to(torch.int8)  # noqa: E731
    assert _wrong(rounded, x, [3, 7]) == [False, False]
    assert _wrong(rounded, x, [2, 8]) == [False, False]
    assert _wrong(rounded, x, [4, 6]) == [True, True]


@pytest.mark.parametrize("bug", [False, True])
def test_a_kernel_for_argmax_is_verified(bug: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    few_cases(monkeypatch, "randn", "constant", "mean 1e3")

    @verify.kernel(
        like=lambda x, w: (x @ w).argmax(-1), shapes={"x": "n k", "w": "k 4"}, dtypes=["float32"], max_ulp=ORDINARY
    )
    def kernel(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).flip(-1).argmax(-1).mul(-1).add(2 if bug else 3)  # the last of those that are equal

    run = measure_kernel(kernel, Measure("answers.py::kernel"), CPU)
    assert (run.status, [result.output for result in run.results]) == ("wrong" if bug else "ok", ["y"]), run.message
    floating = verify.kernel(like=torch.argmax, examples=[(torch.ones(3),)], dtypes=["float32"], name="floating")
    made = floating(lambda x: x.argmax().float())
    run = measure_kernel(made, Measure("answers.py::floating"), CPU)
    assert "must return integers or conditions as y" in run.message


def _codes(x: Tensor, scale: Callable[[Tensor], Tensor] = lambda s: s) -> Tensor:
    s = scale(x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127)
    return (x / s).round().clamp(-128, 127).to(torch.int8)


def test_codes_of_int8_with_a_scale_in_bfloat16_are_wrong() -> None:
    """The definition's own 16-bit steps excused them: in a row, every fifth code may be one off then."""
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    for codes, wrong in ((_codes(x.float()), False), (_codes(x.float(), lambda s: s.bfloat16().float()), True)):
        assert any(_wrong(_codes, x, codes.flatten().tolist())) == wrong
