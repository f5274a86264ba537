"""At infinities and NaN a definition has IEEE's value, or the limit of one operand; nothing else is right."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import verify

T, INF, NAN = torch.tensor, math.inf, math.nan


def passes(got: Tensor, function: Callable[..., Any], *inputs: Tensor, **options: Any) -> bool:
    """True if `assert_close` accepts the result."""
    try:
        verify.assert_close(got, like=function, inputs=inputs, **options)
    except AssertionError:
        return False
    return True


BOUNDED: list[Callable[[Tensor], Tensor]] = [
    torch.tanh,
    torch.sigmoid,
    lambda y: y.clamp(-1, 1),
    lambda y: functional.relu(torch.tanh(y)),
    lambda y: torch.exp(-y * y),
    lambda y: y.amax(-1, keepdim=True).sigmoid().expand(y.shape) + 0 * y.sigmoid(),
    lambda y: functional.hardtanh(torch.maximum(y, y * 0.5)),
]


@pytest.mark.parametrize("function", BOUNDED)
@pytest.mark.parametrize("special", [INF, -INF, NAN])
def test_a_bounded_function_of_a_product_with_a_special_operand_has_one_value(
    function: Callable[[Tensor], Tensor], special: float
) -> None:
    """The interval of such a product, from -inf to inf, became [-1, 1] under tanh, and any number of it passed."""
    x, w = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), T([[1.0, 0.5, 0.25], [0.5, 1.0, 2.0]])
    x[-1, 0] = special
    whole = lambda x, w: function(functional.linear(x, w))  # noqa: E731
    y = whole(x, w)
    assert passes(y, whole, x, w)
    for wrong in (0.3, -0.4, 0.75):
        bad = y.clone()
        bad[-1] = wrong
        assert not passes(bad, whole, x, w)


# function, an infinite operand, its limit there (NaN: none)
LIMITS = [
    (functional.silu, -INF, 0.0),
    (functional.mish, -INF, 0.0),
    (lambda x: x * 0, INF, 0.0),
    (lambda x: x - x, INF, 0.0),
    (lambda x: x / (x.abs() + 1), -INF, -1.0),
    (lambda x: x * x - x, INF, INF),
    (lambda x: torch.sin(x), INF, NAN),
]


@pytest.mark.parametrize(("function", "at", "limit"), LIMITS)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
def test_at_an_infinity_nan_or_the_limit_is_right(
    function: Callable[[Tensor], Tensor], at: float, limit: float, kind: torch.dtype
) -> None:
    """Every number passed there, because a program takes no limits."""
    x = T([at, 0.5], dtype=kind)
    y = function(x)
    assert math.isnan(y[0]) and passes(y, function, x)
    for got in (limit, 5.0, -INF):
        assert passes(T([got, float(y[1])], dtype=kind), function, x) == (got == limit or math.isnan(got))


def test_two_infinite_operands_have_no_limit() -> None:
    x, y = T([INF, 1.0]), T([INF, 3.0])
    difference = lambda x, y: x - y  # noqa: E731
    assert passes(T([NAN, -2.0]), difference, x, y)
    assert not passes(T([0.0, -2.0]), difference, x, y)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_gradient_at_nan_is_nan_or_that_of_pytorch(kind: torch.dtype) -> None:
    x, y, dy = T([NAN, 0.5], dtype=kind), T([NAN, 0.5], dtype=kind), T([3.0, 1.0], dtype=kind)
    for got, right in ((NAN, True), (3.0, True), (5.0, False), (0.0, False)):
        grads = (T([got, 1.0], dtype=kind),)
        assert passes(y, functional.relu, x, grads=grads, upstream=dy) == right


def _gated(x: Tensor, w: Tensor) -> Tensor:
    return functional.silu(x) * w


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_number_below_its_format_may_be_zero_beside_an_infinity(kind: torch.dtype, summed: bool) -> None:
    """silu(-60000) is a tiny number, times -inf infinity; in every format of a kernel it is 0, times -inf NaN."""
    x, w = T([[-6e4, 1.0], [2.0, 3.0]], dtype=kind), T([[-INF, 1.0], [2.0, 3.0]], dtype=kind)
    like = (lambda x, w: _gated(x, w).sum(-1)) if summed else _gated
    right = like(x[1:].double(), w[1:].double()).to(kind)
    first = [] if summed else [functional.silu(T(1.0).double()).item()]
    for got, accepted in ((NAN, True), (INF, True), (-INF, False), (0.0, False), (5.0, False)):
        whole = torch.cat([T([got, *first], dtype=kind).reshape(1, *right.shape[1:]), right])
        assert passes(whole, like, x, w) == accepted, got
    lost = torch.full_like(right, NAN)
    assert not passes(torch.cat([T([INF, *first], dtype=kind).reshape(1, *right.shape[1:]), lost]), like, x, w)


def test_a_function_without_a_value_in_float64_is_no_underflow() -> None:
    """Arb knows trigamma(-3.3), float64's series does not: NaN there is wrong, an infinity in the row or not."""
    x, right = torch.tensor([-3.3, math.inf]), torch.tensor([14.8177428, 0.0])
    verify.assert_close(right, like=lambda x: torch.polygamma(1, x), inputs=[x])
    with pytest.raises(AssertionError, match="NaN"):
        verify.assert_close(torch.tensor([math.nan, 0.0]), like=lambda x: torch.polygamma(1, x), inputs=[x])


def test_a_number_that_the_format_holds_makes_no_nan_of_an_infinity() -> None:
    x, w = T([-60.0, 1.0]), T([-INF, 1.0])
    right = T([INF, 0.7310585786300049])
    assert passes(right, _gated, x, w)
    right[0] = NAN
    assert not passes(right, _gated, x, w)


@pytest.mark.parametrize("row", [[1.0, NAN, 2.0, NAN, 3.0], [INF, 1.0, NAN, NAN, INF], [NAN] * 5])
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_the_last_nan_of_a_running_extreme_has_the_gradient(name: str, row: list[float]) -> None:
    def like(x: Tensor) -> Tensor:
        return getattr(x, name)(-1).values  # type: ignore[no-any-return]

    x, dy = T([row], requires_grad=True), T([[1.0, 2.0, 4.0, 8.0, 16.0]])
    (dx,) = torch.autograd.grad(like(x), x, dy)
    given = x.detach()
    assert passes(like(given), like, given, grads=(dx,), upstream=dy)
    assert not passes(like(given), like, given, grads=(dx.roll(1, -1) + 1,), upstream=dy)


def test_the_place_of_a_median_beside_nan_is_that_of_a_nan() -> None:
    x = T([[1.0, NAN, 2.0, NAN, 3.0], [INF, 1.0, 0.5, NAN, INF], [1.0, 3.0, 2.0, 0.0, 5.0]])
    assert passes(T([1, 3, 2]), lambda x: x.median(-1).indices, x)
    assert not passes(T([2, 3, 2]), lambda x: x.median(-1).indices, x)
