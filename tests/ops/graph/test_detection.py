"""What a derived scale does not excuse: kernels that are wrong in ways that a scale could hide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import verify
from tests.measure.test_kernel import CPU, few_cases
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure


def _norm(x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:])


def _positive(x: Tensor, w: Tensor) -> Tensor:
    return x.abs() @ w.abs()


def lost_mean(x: Tensor) -> Tensor:
    """The variance around a mean that was left out of the numerator."""
    wide = x.double()
    return (wide * torch.rsqrt(wide.var(-1, correction=0, keepdim=True) + 1e-5)).to(x.dtype)


def short_mean(x: Tensor) -> Tensor:
    """The mean in one word of float32."""
    around = x.float() - x.float().mean(-1, keepdim=True) * (1 + 2.0**-12)
    return (around * torch.rsqrt((around * around).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def column_off(x: Tensor) -> Tensor:
    y = functional.softmax(x.double(), -1)
    return torch.cat([y[..., :1] * 1.01, y[..., 1:]], -1).to(x.dtype)


def short_tail(x: Tensor, w: Tensor) -> Tensor:
    kept = max(x.shape[-1] - 1, 1)
    return (x[:, :kept].double() @ w[:kept].double()).to(x.dtype)


def product_off(x: Tensor, w: Tensor) -> Tensor:
    y = x.double() @ w.double()
    return torch.cat([y[..., :1] * 1.01, y[..., 1:]], -1).to(x.dtype)


def rounded_sums(x: Tensor, w: Tensor) -> Tensor:
    """A bfloat16 accumulator."""
    total = torch.zeros(x.shape[0], w.shape[1], dtype=torch.bfloat16)
    for place in range(x.shape[1]):
        total = total + (x[:, place, None].abs() * w[place].abs()).bfloat16()
    return total.to(x.dtype)


def _turned(x: Tensor, w: Tensor) -> Tensor:
    """RoPE of one head: x on halves, w the angles."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * w.cos() - b * w.sin(), a * w.sin() + b * w.cos()), -1)


def wrongly_turned(x: Tensor, w: Tensor) -> Tensor:
    """By angles that are off by 2^-12."""
    return _turned(x.double(), w.double() * (1 + 2.0**-12)).to(x.dtype)


LONG = {"x": "2 64", "w": "64 3"}  # a tail of a 64th, sums of bfloat16 that stand still
WRONG: list[tuple[Callable[..., Any], Callable[..., Any], dict[str, str], str]] = [
    (lost_mean, _norm, {"x": "3 8"}, "float32"),
    (short_mean, _norm, {"x": "3 8"}, "float32"),
    (column_off, lambda x: functional.softmax(x, -1), {"x": "3 8"}, "float32"),
    (product_off, torch.mm, {"x": "3 8", "w": "8 5"}, "float32"),
    (short_tail, torch.mm, LONG, "bfloat16"),
    (rounded_sums, _positive, LONG, "bfloat16"),
    (wrongly_turned, _turned, {"x": "3 8", "w": "3 4"}, "float32"),
]


@pytest.mark.parametrize(("wrong", "like", "shapes", "dtype"), WRONG, ids=[each[0].__name__ for each in WRONG])
def test_a_derived_scale_excuses_no_wrong_kernel(
    wrong: Callable[..., Any],
    like: Callable[..., Any],
    shapes: dict[str, str],
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few_cases(monkeypatch, "randn", "mean 1e3", "outlier", "spread")
    declare = verify.kernel(like=like, shapes=shapes, dtypes=[dtype], gradients=False)
    assert measure_kernel(declare(wrong), Measure("a.py::wrong"), CPU).status == "wrong"
    if wrong is not lost_mean:
        assert measure_kernel(declare(_rightly(like, tuple(shapes))), Measure("a.py::right"), CPU).status == "ok"


def test_products_that_are_rounded_before_they_are_subtracted_are_no_error() -> None:
    """As every kernel in float32 has them: where x cos and y sin nearly cancel, few digits are left."""
    declare = verify.kernel(like=_turned, shapes={"x": "64 64", "w": "64 32"}, dtypes=["float32"], gradients=False)
    measured = measure_kernel(declare(lambda x, w: _turned(x, w)), Measure("a.py::right"), CPU)
    assert measured.status == "ok" and measured.results[0].gate == "noise"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_mean_in_the_dtype_of_its_operand_is_an_error(dtype: torch.dtype) -> None:
    """PyTorch stores it for the backward pass in that dtype, but computes y with the mean in float32."""
    x = (torch.randn(8, 64, generator=torch.Generator().manual_seed(0)) + 100.0).to(dtype)

    def normalised(mean: Tensor) -> Tensor:
        around = x.float() - mean.float()
        return (around * torch.rsqrt((around * around).mean(-1, keepdim=True) + 1e-5)).to(dtype)

    mean = x.float().mean(-1, keepdim=True)
    verify.assert_close(normalised(mean), like=_norm, inputs=(x,))
    with pytest.raises(AssertionError, match="is wrong"):
        verify.assert_close(normalised(mean.to(dtype)), like=_norm, inputs=(x,))


def _rightly(like: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """The function itself in float64."""

    def one(x: Tensor) -> Any:
        return like(x.double()).to(x.dtype)

    def two(x: Tensor, w: Tensor) -> Any:
        return like(x.double(), w.double()).to(x.dtype)

    return one if len(names) == 1 else two
