"""The search among the oracle's choices finds what some kernel may return, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.oracle.choices import Evaluation, choices, noise, rounded
from tests.oracle.searching import Choices

T = torch.tensor


def explains(f: Callable[..., Any], x: Tensor, results: Sequence[Tensor], dy: Tensor | None = None) -> bool:
    """Says whether one choice explains all results: outputs, then the gradient."""

    def off(found: Evaluation) -> float:
        pairs = zip(found.values, results, strict=False)
        close = [torch.isclose(rounded(v, torch.float64), got.double(), rtol=1e-5, atol=1e-6) for v, got in pairs]
        return float(sum((~each).sum() for each in close))

    return Choices(f, [x], [] if dy is None else [dy]).explained(off)


def placed(x: Any) -> Any:
    return x.argsort(-1) * x


def above_mean(x: Any) -> Any:
    return torch.where(x > x.mean(-1, keepdim=True), x, 0.0)


def above_sum(x: Any) -> Any:
    return torch.where(x.sum(-1, keepdim=True) > 1.0, x, 0.0)


def counted(x: Any) -> Any:
    return torch.bucketize(x.detach(), T([-1.0, 0.0, 1.0])) * x


def gated(x: Any) -> Any:
    y = torch.relu(x) * 2
    return torch.where(y > 0.0, y, x)


def cast(x: Any) -> Any:
    return (x * 1.1).half().float()


def saturated(x: Any) -> Any:
    return torch.floor(torch.nn.functional.hardsigmoid(x))


def largest(x: Any) -> Any:
    y = x * 1.1
    return y * (y >= y.detach().max())


def centred(x: Any) -> Any:
    return torch.floor(torch.nn.functional.layer_norm(x, (4,)))


def limit(x: Any) -> Any:
    return torch.floor(x.tanh())


QUARTERS, ZEROS = T([0.25] * 5), T([0.0, 0.0, 3.0, 0.0])


@pytest.mark.parametrize(
    ("f", "x", "y", "right"),
    [
        (placed, ZEROS, T([0.0, 0.0, 9.0, 0.0]), True),  # zeros come in any order, the largest number last
        (placed, ZEROS, T([0.0, 0.0, 0.0, 0.0]), True),
        (placed, ZEROS, T([0.0, 0.0, 4.5, 0.0]), False),
        (above_mean, QUARTERS, QUARTERS * 0, True),
        (above_mean, QUARTERS, QUARTERS, True),  # a kernel that multiplies by the rounded 1 / 5 may get less
        (above_mean, QUARTERS, T([0.25, 0.25, 0.0, 0.25, 0.25]), False),  # but the same mean for all of them
        (above_mean, T([0.5] * 4), T([0.5] * 4), False),  # every kernel gets this mean exactly
        (above_sum, T([0.5, 0.25, 0.25]), T([0.0, 0.0, 0.0]), True),
        (above_sum, T([0.5, 0.25, 0.25]), T([0.5, 0.25, 0.25]), False),
        (above_sum, T([0.7, 0.2, 0.1]), T([0.7, 0.2, 0.1]), True),
        (saturated, T([9.0]), T([1.0]), True),
        (saturated, T([9.0]), T([0.0]), True),
        (saturated, T([9.0]), T([2.0]), False),
        (cast, T([1.0]), T([1.1]).half().float(), True),
        (cast, T([1.0]), T([1.1]), False),
        (largest, T([1.0] * 4), T([1.1] * 4), True),
        (largest, T([1.0] * 4), T([1.1, 0.0, 0.0, 1.1]), True),  # these two may be computed above the others, and equal
        (largest, T([1.0] * 4), T([0.0] * 4), False),
        (centred, T([1.0] * 4), T([-1.0, 0.0, 0.0, 0.0]), True),  # a kernel may multiply before it subtracts
        (centred, T([1.0] * 4), T([-2.0, 0.0, 0.0, 0.0]), False),
        (limit, T([200.0]), T([1.0]), True),
        (limit, T([200.0]), T([0.0]), True),  # the real tanh is below 1
    ],
)
def test_an_output_of_another_choice(f: Callable[..., Any], x: Tensor, y: Tensor, right: bool) -> None:
    assert explains(f, x, [y]) is right


@pytest.mark.parametrize(
    ("f", "slope", "right"),
    [
        *[(counted, slope, right) for slope, right in ((1.0, True), (2.0, True), (1.5, False), (0.0, False))],
        *[(gated, slope, right) for slope, right in ((1.0, True), (2.0, True), (0.0, False), (4.0, False))],
    ],
)
def test_a_gradient_takes_a_side_where_no_output_changes(f: Callable[..., Any], slope: float, right: bool) -> None:
    x = T([0.0, -0.5])
    assert explains(f, x, [f(x), T([slope, 1.0])], torch.ones(2)) is right


@pytest.mark.parametrize(("slope", "right"), [(0.1, True), (1.0, True), (0.0, True), (0.5, False)])
def test_many_gradients_take_a_side_together(slope: float, right: bool) -> None:
    def masked(x: Any) -> Any:
        return torch.nn.functional.leaky_relu(x.masked_fill(x > 0.0, 0.0), 0.1)

    x, dy = torch.zeros(32), torch.linspace(1, 2, 32)
    assert explains(masked, x, [x, dy * slope], dy) is right


@pytest.mark.parametrize(
    ("slope", "right"), [(0.0, True), (1.0507, True), (1.7581, True), (2.1014, True), (1.4044, False), (0.525, False)]
)
def test_each_kink_may_have_pytorchs_slope_or_that_of_the_direction(slope: float, right: bool) -> None:
    """selu has 1.0507 above 0 and 1.7581 below and at it, and |y| has 1, -1 and 0."""

    def kinked(x: Any) -> Any:
        y = torch.nn.functional.selu(x)
        return y + y.abs()

    x = T([0.0])
    assert explains(kinked, x, [x, T([slope]) * (1 if slope else 0)], torch.ones(1)) is right


@pytest.mark.parametrize(("slope", "right"), [(0.0, True), (1.0, True), (0.5, False)])
def test_an_integer_lies_on_either_side_of_a_threshold_in_a_gradient(slope: float, right: bool) -> None:
    def masked(x: Any) -> Any:
        y = x + (torch.round(x) - x).detach()
        return y.masked_fill(y > 0.0, 0.0)

    x = T([0.25, -0.5])
    assert explains(masked, x, [x * 0, T([slope, slope])], torch.ones(2)) is right


def test_a_tanh_form_of_gelu_is_0_far_below() -> None:
    def like(x: Any) -> Any:
        return torch.nn.functional.gelu(x, approximate="tanh")

    assert all(not values.any() for values in noise(like, [T([-127.0])], [torch.ones(1)]))


def test_noise_of_a_narrow_format_counts_a_neighbour_that_roundings_reach() -> None:
    def cast(x: Any) -> Any:
        return (x * 1.1).half().float()

    near = 2049 / 2048 * (1 + 2e-7) / 1.1  # 3 roundings above the middle of 1 and 1.00098
    far = 1.0002 / 1.1
    assert float(noise(cast, [T([near])], [None])[0][0]) > 2.0**-15 > float(noise(cast, [T([far])], [None])[0][0])


def test_an_output_takes_no_side_at_an_exact_threshold() -> None:
    def kept(x: Any) -> Any:
        return torch.where(x > 0.0, x + 1, x)

    assert not explains(kept, T([0.0, 2.0]), [T([1.0, 3.0])])


@pytest.mark.parametrize(
    ("y", "order", "right"),
    [(0.0, [1, 3, 0, 2], True), (9.0, [0, 1, 3, 2], True), (9.0, [1, 3, 0, 2], False), (0.0, [1, 2, 0, 3], False)],
)
def test_one_choice_must_explain_all_results(y: float, order: list[int], right: bool) -> None:
    def both(x: Any) -> Any:
        order = x.argsort(-1)
        return order * x, order

    assert explains(both, ZEROS, [T([0.0, 0.0, y, 0.0]), T(order)]) is right


def test_the_least_of_a_column_may_be_the_largest_of_all() -> None:
    def largest_of_least(x: Any) -> Any:
        return x.amin(-2).cummax(-1).values

    x, dy = T([[1.0] * 5] * 5), torch.linspace(1, 2, 5)
    found = [each.values[1] for each in Choices(largest_of_least, [x], [dy]).others(60, toward=(0, 11))]
    assert any(abs(float(dx[2, 1]) - float(dy[1:].sum())) < 1e-6 for dx in found)


def test_copies_of_one_number_have_choices() -> None:
    def ordered(x: Any) -> Any:
        return x.cummax(-1).values.argsort(-1)

    found = choices(ordered, [T([3.0, 1.0, 2.0])], [None])
    assert len({tuple(int(v) for v in each.values[0]) for each in found}) > 1


def test_a_gradient_is_rounded_to_a_narrow_format_after_it_was_stored() -> None:
    """14.0938 lies between two bfloat16 numbers, and float16 holds 14.1425 up to 0.004."""

    def cast(x: Any) -> Any:
        return x.bfloat16().to(x.dtype) * 2

    x, dy = T([1.0]).half(), T([7.07126]).half()
    assert all(explains(cast, x, [T([2.0]), T([dx])], dy) for dx in (14.125, 14.0625))
    assert not explains(cast, x, [T([2.0]), T([14.0])], dy)


def test_a_stored_step_of_a_function_may_decide() -> None:
    def floored(x: Any) -> Any:
        return (torch.nn.functional.tanhshrink(x) * 316.0).floor()  # tanh(x) is stored: 0.565 +- 0.0011

    x = T([0.640625]).bfloat16()
    found = {float(each.values[0][0]) for each in Choices(floored, [x], [None]).others(40)}
    assert min(found) < 22 and max(found) > 25 and found <= set(range(15, 34))
