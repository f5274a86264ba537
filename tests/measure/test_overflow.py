"""Gradients where an exact output overflows: a backward pass that reads the stored output has an infinity there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import verify
from tests.measure.test_kernel import CPU, few_cases
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.records.record import Result


class _Product(torch.autograd.Function):
    """The product of two numbers. The gradient divides the stored product, as PyTorch's does where none is 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.float().prod(-1).to(x.dtype)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        x, y = ctx.saved_tensors
        return ((dy.float() * y.float())[..., None] / x.float()).to(x.dtype)


def gradient(monkeypatch: pytest.MonkeyPatch, dtype: str) -> Result:
    few_cases(monkeypatch, "mean 1e3")
    declare = verify.kernel(
        like=lambda x: x.prod(-1), shapes={"x": "n d"}, where="d == 2", dtypes=[dtype], name="k", max_noise=50.0
    )
    done = measure_kernel(declare(lambda x: _Product.apply(x)), Measure("here.py::k"), CPU)
    return next(each for each in done.results if each.output == "dx")


def test_the_gradient_beside_an_output_that_overflows_is_of_extreme_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = gradient(monkeypatch, "float16")  # a product of 10^6, whose gradients are 1,000
    assert {each.name for each in found.classes} == {"extreme"} and found.figures.nonfinite > 0, found


def test_the_gradient_beside_an_output_that_the_format_holds_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    found = gradient(monkeypatch, "float32")
    assert {each.name for each in found.classes} == {"demanding"} and not found.figures.nonfinite, found
