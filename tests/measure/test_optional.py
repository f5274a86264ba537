"""Operands of a like= kernel that may be None: a run tries each absent, and all."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import verify
from tests.measure.test_kernel import few_cases, measured
from verify.cases.plan import plan


def layer(x: Tensor, weight: Tensor, bias: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
    y = functional.linear(x, weight, bias)
    return y if scale is None else y * scale


@pytest.fixture(autouse=True)
def _one_regime(monkeypatch: pytest.MonkeyPatch) -> None:
    few_cases(monkeypatch, "randn")


SHAPES = {"x": "m k", "weight": "n k", "bias": "n", "scale": "n"}


def test_a_kernel_is_tried_without_each_operand_that_may_be_none_and_without_all() -> None:
    @verify.kernel(like=layer, shapes=SHAPES, dtypes=["float32"])
    def right(x: Tensor, weight: Tensor, bias: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
        return layer(x, weight, bias, scale)

    absent = [case.absent for group in plan(right, "float32", "cpu", 0) for case in group.cases if case.absent]
    assert absent == [("bias",), ("scale",), ("bias", "scale")]
    run = measured(right)
    assert run.status == "ok", run
    assert {result.output for result in run.results} == {"y", "dx", "dweight", "dbias", "dscale"}


def test_a_mistake_without_an_operand_is_found_and_named() -> None:
    @verify.kernel(like=layer, shapes=SHAPES, dtypes=["float32"], gradients=False)
    def wrong(x: Tensor, weight: Tensor, bias: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
        y = layer(x, weight, bias, scale)
        return y if bias is not None else y + 1

    [result] = measured(wrong).results
    assert result.status == "wrong" and "without bias" in result.where


def test_a_kernel_that_takes_no_none_gets_none() -> None:
    @verify.kernel(like=layer, shapes=SHAPES, dtypes=["float32"])
    def demanding(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor) -> Tensor:
        return layer(x, weight, bias, scale)

    assert not any(case.absent for group in plan(demanding, "float32", "cpu", 0) for case in group.cases)


def test_a_gradient_without_an_operand_is_judged() -> None:
    class Forgets(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias):  # type: ignore[no-untyped-def]
            ctx.save_for_backward(x, weight)
            ctx.bias = bias is not None
            return functional.linear(x, weight, bias)

        @staticmethod
        def backward(ctx, dy):  # type: ignore[no-untyped-def]
            x, weight = ctx.saved_tensors
            return dy @ weight, dy.mT @ (x if ctx.bias else 2 * x), dy.sum(0) if ctx.bias else None

    @verify.kernel(
        like=lambda x, weight, bias=None: functional.linear(x, weight, bias),
        shapes={"x": "m k", "weight": "n k", "bias": "n"},
        dtypes=["float32"],
    )
    def half(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return Forgets.apply(x, weight, bias)

    status = {result.output: result.status for result in measured(half).results}
    assert status == {"y": "ok", "dx": "ok", "dweight": "wrong", "dbias": "ok"}
