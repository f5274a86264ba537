"""Ties: a consistent choice is right, a mixture of choices is not. Asked through `assert_close`, as users do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import verify
from verify.ops.graph.choices import Choices

T = torch.tensor


def passes(like: Callable[..., Any], x: Tensor, got: Any, dx: Tensor | None = None, upstream: Any = None) -> bool:
    """True unless a result is wrong. On examples as small as these, some limits say nothing, which is no error."""
    try:
        verify.assert_close(got, like=like, inputs=(x,), grads=(dx,), upstream=upstream, check_dtype=False)
    except AssertionError as error:
        return " is wrong" not in str(error)
    return True


def slope(like: Callable[[Tensor], Any], x: Tensor, upstream: Tensor) -> Tensor:
    """PyTorch's own gradient."""
    leaf = x.clone().requires_grad_()
    [found] = torch.autograd.grad(like(leaf), leaf, upstream)
    return found


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# -- positions as numbers -------------------------------------------------------------------------------------

Y = T([[1.0, 1.0, 0.5], [0.2, 0.9, 0.9]])
POSITIONS: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
    "argmax + x": (lambda x: x.argmax(-1, keepdim=True) + x, Y),
    "topk ids": (lambda x: x.topk(2).indices * 0.5, Y),
    "argsort * x": (lambda x: x.argsort(-1, descending=True) * x, Y),
    "one_hot": (lambda x: functional.one_hot(x.argmax(-1), 3) * x, Y),
    "ranks": (lambda x: x.argsort(-1).argsort(-1) * x, T([[0.5, -1.0, 0.5, 2.0]])),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_a_position_used_as_a_number_is_one_of_those_that_tie(name: str) -> None:
    like, x = POSITIONS[name]
    right = like(x)
    assert passes(like, x, right)
    for wrong in (right * 0 - 7777.0, right * 0.5, right + 0.25):
        assert not passes(like, x, wrong)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("ranks", [[1.0, -0.0, 0.5, 6.0]]),
        ("one_hot", [[0.0, 1.0, 0.0], [0.0, 0.0, 0.9]]),
        ("one_hot", [[1.0, 0.0, 0.0], [0.0, 0.0, 0.9]]),
        ("argmax + x", [[2.0, 2.0, 1.5], [2.2, 2.9, 2.9]]),
    ],
)
def test_each_row_may_choose_for_itself(name: str, other: list[list[float]]) -> None:
    like, x = POSITIONS[name]
    assert passes(like, x, T(other))


def test_ranks_of_bfloat16_tie_in_every_row() -> None:
    x = draw(8, 64).bfloat16()

    def sorting(x: Tensor) -> Tensor:
        return x.sort(-1).values * torch.arange(64) + x.argsort(-1)

    right = sorting(x.double()).float()
    assert passes(sorting, x, right)
    assert not passes(sorting, x, right + functional.one_hot(T(7), 64))


# -- thresholds -----------------------------------------------------------------------------------------------

THRESHOLDS: dict[str, Callable[[Tensor], Tensor]] = {
    "amin of topk": lambda x: torch.where(x >= x.topk(3, -1).values.amin(-1, keepdim=True), x * 2, 0.0),
    "last of topk": lambda x: torch.where(x >= x.topk(3, -1).values[..., -1:], x * 2, 0.0),
    "min of topk": lambda x: torch.where(x >= x.topk(3, -1).values.min(-1, keepdim=True).values, x * 2, 0.0),
    "amax": lambda x: x * (x >= x.amax(-1, keepdim=True)),
    "peaks": lambda x: torch.where(x == functional.max_pool1d(x, 3, 1, 1), x * 2, 0.0),
    "detached": lambda x: x * (x >= x.detach().amax(-1, keepdim=True)),
}


@pytest.mark.parametrize("name", THRESHOLDS)
def test_a_number_compared_with_itself_is_no_tie(name: str) -> None:
    """Random numbers have no tie, so a lost gradient is wrong."""
    like, x, up = THRESHOLDS[name], draw(3, 12), draw(3, 12, seed=1)
    y, dx = like(x), slope(like, x, up)
    assert passes(like, x, y, dx, up)
    kept = dx != 0
    one = kept & (kept.cumsum(-1) == 1)
    for wrong in (torch.where(one, 0.0, dx), dx * 1.001):
        assert not passes(like, x, y, wrong, up)


@pytest.mark.parametrize(("share", "right"), [(1.0, True), (1.2, False), (1.5, False), (0.0, False)])
def test_an_element_at_a_threshold_opens_nothing_else(share: float, right: bool) -> None:
    def masked(y: Tensor) -> Tensor:
        return y.masked_fill(y > 1, -1e4).softmax(-1)

    x, up = draw(1, 14), draw(1, 14, seed=1)
    x[0, 5] = 1.0
    assert passes(masked, x, masked(x), slope(masked, x, up) * share, up) == right


@pytest.mark.parametrize(
    ("got", "right"),
    [([0.5, 0.5, 0.0], True), ([0.0, 0.0, 0.0], False), ([0.25, 0.25, 0.0], False), ([0.1, 0.4, 0.0], False)],
)
def test_equal_computed_numbers_are_all_the_largest(got: list[float], right: bool) -> None:
    def like(x: Tensor) -> Tensor:
        t = x.clamp(max=0.5)
        return (t == t.amax(-1, keepdim=True)) * t

    assert passes(like, T([[0.7, 0.9, -0.2]]), T([got])) == right


def largest_product(x: Tensor) -> Tensor:
    a = x * 3.3
    return a * (a >= a.amax())


def largest_share(x: Tensor) -> Tensor:
    a = x.softmax(-1)
    return a * (a >= a.detach().max())


@pytest.mark.parametrize(
    ("like", "x", "keeps"),
    [(largest_product, T([[1.0, 2.0, 2.0], [2.0, 1.0, 1.0]]), 6.6), (largest_share, torch.zeros(2, 3), 1 / 3)],
)
def test_one_of_equal_numbers_is_the_largest_of_all_rows(like: Callable[..., Tensor], x: Tensor, keeps: float) -> None:
    """The extreme is one of the numbers. Rows that each lose to another row are no choice."""
    y = like(x)
    assert passes(like, x, y)
    one = torch.zeros_like(x)
    one[0, 1] = keeps
    assert passes(like, x, one), "roundings may make any of them the largest"
    assert not passes(like, x, one * 0) and not passes(like, x, one * 0, one * 0, torch.ones_like(x))
    assert not passes(like, x, y * 1.001)


def test_a_threshold_met_exactly_changes_no_number_that_decides_later() -> None:
    """A zero is not above zero. If it were, seven of eight would leave the softmax, and the last one would be 1."""

    def masked(x: Tensor) -> Tensor:
        a = x.masked_fill(x > 0.0, -torch.inf).softmax(-1)
        b = functional.tanhshrink(functional.selu(a * (a >= a.detach().max())))
        return b.masked_fill(~(b < 0.25), 0.0)

    x = torch.zeros(1, 8)
    assert passes(masked, x, masked(x)) and not passes(masked, x, x)


@pytest.mark.parametrize(
    ("like", "below"),
    [
        (lambda x: (b := torch.zeros_like(x).index_add(-1, T([1, 1, 0, 0]), x)).long() + b, [1.0, 1.0, 0.0, 0.0]),
        (lambda x: (b := x.cumsum(-1)).to(torch.int32) * b, [0.0, 0.0, 1.5, 2.0]),
    ],
)
def test_a_sum_that_is_exact_in_every_order_is_not_below_an_integer(
    like: Callable[[Tensor], Tensor], below: list[float]
) -> None:
    x = torch.full((4,), 0.5)
    assert passes(like, x, like(x)) and not passes(like, x, T(below))


# -- slopes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dx", "right"),
    [
        ((3.0, 1.0, 1.0), True),
        ((1.0, 3.0, 1.0), True),
        ((2.0, 2.0, 1.0), True),
        ((0.0, 0.0, 1.0), False),
        ((6.0, -2.0, 1.0), False),
        ((3.0, 3.0, 1.0), False),
    ],
)
def test_the_slope_at_equal_maxima_is_that_of_one_choice_or_pytorchs(dx: Sequence[float], right: bool) -> None:
    x = T([[1.0, 1.0, 0.0]])
    assert passes(lambda x: x.amax(-1) * x.sum(-1), x, T([2.0]), T([dx]), torch.ones(1)) == right


@pytest.mark.parametrize(("slope_at_0", "right"), [(0.0, True), (1.0, True), (0.5, False), (-1.0, False), (2.0, False)])
def test_relu_has_the_slopes_of_its_two_sides(slope_at_0: float, right: bool) -> None:
    x = T([0.0, -1.0, 2.0])
    assert passes(functional.relu, x, functional.relu(x), T([slope_at_0, 0.0, 1.0]), torch.ones(3)) == right
    assert not passes(functional.relu, x, functional.relu(x), T([slope_at_0, 1.0, 1.0]), torch.ones(3))


@pytest.mark.parametrize(("slope_at_0", "right"), [(1.0, True), (2.0, True), (0.0, False), (4.0, False)])
def test_what_every_kernel_computes_exactly_decides_as_the_operands_do(slope_at_0: float, right: bool) -> None:
    """Where 2 relu(x) is positive its slope is 2. That it has the slope 0 and is greater than 0 is no choice."""

    def gated(x: Tensor) -> Tensor:
        y = torch.relu(x) * 2
        return torch.where(y > 0.0, y, x)

    x = T([0.0, -1.0, 2.0])
    assert passes(gated, x, gated(x), T([slope_at_0, 1.0, 2.0]), torch.ones(3)) is right


@pytest.mark.parametrize("way", [1, -1])
def test_equal_operands_and_the_copies_of_each_come_in_any_order(way: int) -> None:
    """A sum over all places shows no single one, so the search must know these directions."""
    x, w = T([[1.0, 2.0, 1.0, 2.0, 1.0, 1.0, 2.0, 2.0]]).expand(4, 8), draw(4, 16)
    first = -way * 1e-6 * torch.arange(8.0).double()
    order = ((x.double() + first).repeat_interleave(2, -1) + way * 1e-9 * torch.arange(16.0).double()).argsort(-1)

    def places(x: Tensor) -> Tensor:
        return (w * (x.repeat_interleave(2, -1) ** 3).argsort(-1)).sum()

    assert passes(places, x.contiguous(), (w * order).sum())


@pytest.mark.parametrize(("slope_at_0", "right"), [(3.0, True), (-3.0, True), (0.0, True), (1.5, False)])
def test_a_gradient_may_take_a_side_where_an_output_has_one_answer(slope_at_0: float, right: bool) -> None:
    def counted(x: Tensor) -> Tensor:
        return x.abs() * 3 + (x == 0.0) * 1.0

    x = T([0.0, 2.0, -1.0])
    assert passes(counted, x, counted(x), T([slope_at_0, 3.0, -3.0]), torch.ones(3)) is right
    assert not passes(counted, x, x.abs() * 3, T([slope_at_0, 3.0, -3.0]), torch.ones(3))


@pytest.mark.parametrize(("share", "right"), [(1.0, True), (0.0, False)])
def test_a_running_sum_of_exponentials_decides_far_below_the_largest_number(share: float, right: bool) -> None:
    def limited(x: Tensor) -> Tensor:
        return x.logcumsumexp(-1).clamp(min=0.5)

    x, dy = T([[10.0, 1000.0, 5000.0]]).double(), T([[1.0, 2.0, 3.0]]).double()
    assert passes(limited, x, x, dy * T([[share, 1.0, 1.0]]), dy) is right


def test_what_follows_from_an_exact_threshold_has_ties_of_its_own() -> None:
    """Every number is kept, as each equals the largest. Which one amax takes is free, and the same in the gradient."""

    def kept(x: Tensor) -> Tensor:
        y = x.to(torch.int32) * x
        return (y * (y >= y.detach().max())).amax(-1).norm()

    x = torch.full((4, 8), 2.0)
    first = torch.zeros(4, 8)
    first[:, 0] = 1.0  # 2 times the share of a row in the norm, 1 / 2
    assert passes(kept, x, kept(x), first, torch.ones(()))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize(("y", "right"), [([0.0, 0.0], True), ([1.0, 0.0], True), ([2.0, 0.0], False)])
def test_a_share_of_one_half_may_be_rounded_either_way(kind: torch.dtype, y: list[float], right: bool) -> None:
    def shares(x: Tensor) -> Tensor:
        return torch.round(x.sigmoid().softmax(-1))

    assert passes(shares, T([-2.5, -2.5], dtype=kind), T(y, dtype=kind)) is right


@pytest.mark.parametrize("y", [6.0, 5.0])
def test_a_product_of_small_integers_is_exact(y: float) -> None:
    assert passes(lambda x: x.prod(-1).floor(), T([2.0, 3.0, 1.0]), T(y)) is (y == 6.0)


@pytest.mark.parametrize("y", [1.0, 0.0])
def test_the_complement_of_the_error_function_is_exact_at_0(y: float) -> None:
    assert passes(lambda x: torch.erfc(x).floor(), T([0.0]), T([y])) is (y == 1.0)


def test_no_choice_makes_a_gradient_nan_where_pytorchs_is_a_number() -> None:
    """The length of a row of zeros: its gradient is 0 in PyTorch, and no direction of x + tiny p has 0 / 0."""

    def length(x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, dim=-1)

    x, dy = draw(4, 5), torch.ones(4)
    x[1] = 0.0
    dx = x / length(x)[:, None]
    assert passes(length, x, length(x), slope(length, x, dy), dy)
    assert not passes(length, x, length(x), dx, dy)


def test_pytorchs_own_slopes_of_running_extremes_are_right() -> None:
    x, up = T([1.0, 1.0, 1.0, 0.0, 0.0]), T([1.0, 2.0, 4.0, 8.0, 16.0])

    def like(x: Tensor) -> Tensor:
        return x.cummin(0)[0].cummin(0)[0]

    dx = slope(like, x, up)
    assert passes(like, x, like(x), dx, up) and not passes(like, x, like(x), dx * 0, up)


@pytest.mark.parametrize(("row", "right"), [(0, True), (2, True), (None, False)])
def test_the_first_of_equal_numbers_may_win_where_no_direction_moves_it(row: int | None, right: bool) -> None:
    """The two columns of a softmax move against each other, and yet a kernel takes the first of both."""

    def like(x: Tensor) -> Tensor:
        return x.softmax(-1).cummin(-2).values

    x, dy = torch.full((3, 2), -0.5), T([[1.0, 3.0], [0.5, 0.25], [2.0, 1.0]])
    dx = torch.zeros(3, 2)
    if row == 0:
        dx[0] = (dy.sum(0) / 2) - dy.sum() / 4
    elif row == 2:  # the last wins, as in PyTorch
        dx = slope(like, x, dy)
    assert passes(like, x, torch.full((3, 2), 0.5), dx, dy) is right


@pytest.mark.parametrize("largest", [lambda a: a.detach().max(), lambda a: a.max()])
def test_a_largest_number_is_not_less_than_itself(largest: Callable[[Tensor], Tensor]) -> None:
    """With >= some element keeps its gradient, whichever wins. All are 0 there, so no output tells."""

    def like(x: Tensor) -> Tensor:
        a = x + (torch.round(x) - x).detach()
        return a * (a >= largest(a))

    x, dy = T([[0.4, 0.4, -1.0], [-1.0, -0.3, -1.0]]), torch.arange(1.0, 7.0).reshape(2, 3)
    alone = torch.zeros(2, 3)
    alone[1, 1] = 5.0
    for dx, right in ((slope(like, x, dy), True), (alone, True), (torch.zeros(2, 3), False)):
        assert passes(like, x, like(x), dx, dy) is right


@pytest.mark.parametrize(("got", "right"), [(2.0, True), (1.0, True), (1.5, False), (0.0, False)])
def test_a_choice_may_round_a_number_that_is_exact_in_pytorchs_own(got: float, right: bool) -> None:
    """The logarithms are equal but for their rounding. With a sign, their difference is not 0 and erfc is below 1."""

    def like(x: Tensor) -> Tensor:
        c = torch.log2(x.abs() + 0.25).diff(dim=-1)
        e = torch.erfc(torch.sign(c) * c)
        return torch.floor(e) + e

    x = T([0.59169483, 0.59169483])
    assert passes(like, x, like(x)) and passes(like, x, T([got])) is right


def test_zeros_of_one_row_come_in_an_order_of_their_own() -> None:
    """The search starts at the order of copies that is best so far, and changes one row of it."""

    def places(x: Tensor) -> Tensor:
        a = torch.sinh(x)
        d = (b := a.to(torch.int32) * a).argsort(-1) * b
        return d.argmax(-2, keepdim=True) + d

    x = T([[-0.43, -1.58, -1.67, -0.48, -0.08], [-1.1, -0.99, 0.41, -0.65, 0.52], [0.7, 0.3, 1.46, -0.99, 0.1]])
    y = places(x)
    order = T([3, 4, 2])  # of the zeros
    right = y.clone()
    right[1, :2] += (order[:2] - T([2, 3])) * (a := torch.sinh(x[1, :2])) * a.to(torch.int32)
    assert passes(places, x, y) and passes(places, x, right)
    assert not passes(places, x, right + 1.0)


@pytest.mark.parametrize("rounded", [1, -1])
def test_rounded_numbers_come_in_an_order_of_their_own(rounded: int) -> None:
    """No x + tiny p moves round(x). So its copies may keep their order where equal operands change theirs."""

    def like(x: Tensor) -> Tensor:
        return T([1.0, 2.0, 4.0, 8.0, 16.0, 32.0]) * torch.maximum(x.round(), x).argsort(-1)

    x = T([[0.75, 0.25, 0.75, 0.25, 1.75, 1.75]]) - T([[0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    equal = T([[3, 1, 0, 2, 4, 5]] if rounded > 0 else [[1, 3, 2, 0, 5, 4]])
    assert passes(like, x, T([1.0, 2.0, 4.0, 8.0, 16.0, 32.0]) * equal)


@pytest.mark.parametrize(("kept", "right"), [([1, 0, 1, 1], True), ([0, 1, 0, 0], True), ([0, 0, 0, 0], False)])
def test_some_of_several_equal_computed_numbers_stay_equal(kept: list[int], right: bool) -> None:
    def like(x: Tensor) -> Tensor:
        c = functional.cosine_similarity(x, x, -1)
        return (c == c.amax()) * c

    x = T([[-0.65, 0.28], [1.17, -1.83], [1.55, 0.11], [-0.65, 0.28]])
    assert passes(like, x, T(kept).float()) is right


def test_what_breaks_ties_of_zeros_stays_below_a_small_constant() -> None:
    def like(x: Tensor) -> Tensor:
        return functional.normalize(x, p=1, dim=-1).abs()

    x, dy = torch.zeros(3, 1), T([[1.0], [2.0], [3.0]])
    for signs in ([1.0, 1.0, 1.0], [-1.0, 1.0, -1.0]):
        assert passes(like, x, torch.zeros(3, 1), dy * T(signs)[:, None] * 1e12, dy)
    assert not passes(like, x, torch.zeros(3, 1), dy * 0.5e12, dy)


def test_a_running_extreme_has_pytorchs_slopes_beside_another_tie() -> None:
    """The last of equal numbers gets its gradient, while the maximum of all divides its own among equal ones."""

    def largest(x: Tensor) -> Tensor:
        return functional.silu(x.cummax(0).values).max()

    x = T([[1.0, 0.5, 1.0], [0.5, 1.0, 1.0], [1.0, 1.0, 0.5], [0.5, 0.5, 0.5]])
    dx = slope(largest, x, T(1.0))
    assert passes(largest, x, largest(x), dx, T(1.0))
    assert not passes(largest, x, largest(x), dx.flip(0), T(1.0)) and not passes(largest, x, largest(x), dx * 2, T(1.0))


def of_whole_numbers(x: Tensor) -> Tensor:
    return (x.to(torch.int32) * x).cummax(0).values


def of_all_rows(x: Tensor) -> Tensor:
    return x.flatten().cummax(0).values


@pytest.mark.parametrize(
    ("like", "x"),
    [
        (
            of_whole_numbers,
            T([2.0, -2.0, 1.0, -1.0, 0.5, 0.3, -0.4])[T([[4, 3], [0, 2], [1, 2], [6, 3], [4, 5], [2, 0]])],
        ),
        (of_all_rows, T([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]).repeat(2, 2)),
    ],
)
def test_the_last_of_equal_numbers_may_win(like: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """An operand that wins a tie keeps its whole part, and the last of a flat row lies in its last column."""
    up = draw(*like(x).shape, seed=1)
    dx = slope(like, x, up)
    assert passes(like, x, like(x), dx, up)
    assert not passes(like, x, like(x), dx * 1.5, up)


# -- routers and choices of several ---------------------------------------------------------------------------


def router(s: Tensor) -> tuple[Tensor, Tensor]:
    found = s.softmax(-1).topk(2)
    return found.values, found.indices


def test_a_router_returns_the_ids_of_its_weights() -> None:
    s = draw(32, 8).round()  # ties in nearly every row
    values, ids = router(s)
    assert passes(router, s, (values, ids))
    last = s.flip(-1).softmax(-1).topk(2)
    assert passes(router, s, (last.values, 7 - last.indices)), "ties go to the last"
    assert not passes(router, s, (values, ids.roll(1, 0))), "ids of another row"
    assert not passes(router, s, (values * 0.5, ids))


def test_any_five_of_ten_equal_numbers_may_be_kept_but_the_same_in_the_gradient() -> None:
    def fives(x: Tensor) -> Tensor:
        return torch.zeros_like(x).scatter(-1, x.topk(5, -1).indices, 1.0) * x

    x, up = torch.ones(4, 10), torch.full((4, 10), 3.0)
    places = torch.rand((4, 10), generator=torch.Generator().manual_seed(1)).topk(5, -1).indices
    mine = torch.zeros(4, 10).scatter(-1, places, 1.0)
    assert passes(fives, x, mine) and passes(fives, x, mine, mine * 3, up)
    assert not passes(fives, x, mine, mine.roll(1, -1) * 3, up), "another five in the gradient"
    six = torch.ones(4, 10).scatter(-1, T([[0, 1, 2, 3]]).expand(4, 4), 0.0)
    assert not passes(fives, x, six) and not passes(fives, x, x * 0)


def test_a_sum_over_rows_belongs_to_the_choice_of_each_row() -> None:
    """dw adds up what each row's tie decides. y and dx show the choice, and dw has to follow it."""
    x = T([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    up = T([1.0, 10.0, 100.0])

    def like(x: Tensor, v: Tensor) -> Tensor:
        return (x * v).gather(-1, x.argmax(-1, keepdim=True))[:, 0]

    v = T([5.0, 7.0])
    pick = T([0, 1, 0])
    rows = torch.arange(3)
    y = (x * v)[rows, pick]
    dv = torch.zeros(2).index_add(0, pick, up * x[rows, pick])
    verify.assert_close(y, like=like, inputs=(x, v), grads=(None, dv), upstream=up)
    with pytest.raises(AssertionError, match="dv is wrong"):
        verify.assert_close(y, like=like, inputs=(x, v), grads=(None, dv.flip(0)), upstream=up)


# -- decisions that follow from others --------------------------------------------------------------------------


@pytest.mark.parametrize(("y", "slope_at_y", "right"), [(4.0, 1.0, True), (4.0, -1.0, False), (2.0, -1.0, True)])
def test_a_decision_about_a_chosen_position_follows_from_it(y: float, slope_at_y: float, right: bool) -> None:
    """The place of the least is 0 to 3, twice that is 2 below 2 to 4 above: the slope of the distance follows."""

    def distance(x: Tensor) -> Tensor:
        return (x[..., :-1].argmin(-1) * 2 - x[..., -1] - 1).abs()

    x, dx = T([[9.0, 9.0, 9.0, 9.0, 1.0]]), T([[0, 0, 0, 0, -slope_at_y]])
    assert passes(distance, x, T([y]), dx, torch.ones(1)) is right


def test_a_threshold_of_a_chosen_position_follows_from_it() -> None:
    def doubled(x: Tensor) -> Tensor:
        ranks = x.argsort(-1) * torch.exp(x)
        return torch.where(ranks >= 2.0, ranks * 2, ranks / 2)

    x = torch.full((1, 4), 0.5)
    ranks = torch.arange(3, -1, -1) * x.exp()
    assert passes(doubled, x, torch.where(ranks >= 2.0, ranks * 2, ranks / 2))
    assert not passes(doubled, x, torch.where(ranks.flip(-1) >= 2.0, ranks * 2, ranks / 2))


BEYOND = T([3e9, -3e9, torch.inf, torch.nan, 7.5])


@pytest.mark.parametrize(
    ("integers", "right"),
    [
        ([-(2.0**31)] * 4, True),
        ([2.0**31, -(2.0**31), 2.0**31, 0.0], True),
        ([2.0**31, -(2.0**31), 5.0, 0.0], False),
        ([0.0, 2.0**31, 2.0**31, 0.0], False),
    ],
)
def test_a_number_beyond_an_integer_dtype_becomes_what_a_processor_makes_of_it(
    integers: list[float], right: bool
) -> None:
    def like(x: Tensor) -> Tensor:
        return x.to(torch.int32) * T(0.5)

    assert passes(like, BEYOND, T([*integers, 7.0]) * 0.5) is right
    assert not passes(like, BEYOND, T([*integers, 8.0]) * 0.5)


def of_excluding(x: Tensor) -> Tensor:
    above = torch.log1p(x).diff(dim=-2)
    rest = (above > 0.0).to(x.dtype) - above
    return torch.where((rest > 1.0) & (rest < 2.0), rest, 0.0)


def of_masked(x: Tensor) -> Tensor:
    largest = functional.one_hot(x.argmax(-1), 3) * (x + 0.3)
    return torch.where(largest <= x + 0.3, largest, 100.0)


@pytest.mark.parametrize(
    ("like", "x", "other"),
    [
        (of_excluding, torch.ones(2, 3, dtype=torch.float16), T([[1.0, 0.0, 0.0]]).half()),
        (of_masked, T([[0.25, 1.5, -2.0]]), T([[0.0, 100.0, 100.0]])),
    ],
)
def test_decisions_on_one_number_do_not_exclude_each_other(
    like: Callable[[Tensor], Tensor], x: Tensor, other: Tensor
) -> None:
    assert passes(like, x, like(x))
    assert not passes(like, x, other)


def test_a_result_far_beyond_all_choices_is_not_searched_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []
    own = Choices.proposed
    monkeypatch.setattr(Choices, "proposed", lambda *a, **k: tried.append(a) or own(*a, **k))
    x = T([0.5, 0.5, -1.0, 0.5, 2.0, 0.5]).repeat(4, 3)
    assert not passes(lambda x: x.topk(3).indices * x.exp().sum(-1, keepdim=True), x, torch.full((4, 3), -1000.0))
    assert len(tried) < 150


@pytest.mark.parametrize("largest", [torch.inf, 3e38])
def test_an_infinity_or_a_number_that_overflows_is_not_the_least(largest: float) -> None:
    x = T([largest, -0.6, 0.8])
    assert passes(lambda x: (x * 2 - torch.tanh(x)).argmin(-1), x, T(1))
    assert not passes(lambda x: (x * 2 - torch.tanh(x)).argmin(-1), x, T(0))


def test_nan_as_an_integer_stays_what_it_was_decided_to_be() -> None:
    def like(x: Tensor) -> Tensor:
        return torch.sqrt(x.std(-1) + 0.25).to(torch.int8) * T(2.0)

    x = T([[0.5, torch.inf, 1.0], [0.5, 1.0, 4.0]])
    assert passes(like, x, T([0.0, 2.0]))
    assert not passes(like, x, T([0.0, 4.0]))


@pytest.mark.parametrize(("dx", "right"), [(0.1, True), (1.0, True), (0.0, True), (0.5, False), (-1.0, False)])
def test_a_slope_is_free_where_a_comparison_before_it_stays(dx: float, right: bool) -> None:
    """0 > 0 is false, so 0 reaches leaky_relu, which has two slopes there. At x + tiny p with p > 0 it does not."""

    def masked(x: Tensor) -> Tensor:
        return functional.leaky_relu(x.masked_fill(x > 0.0, 0.0), 0.1)

    x = T([0.0, 1.0, -1.0])
    assert passes(masked, x, masked(x), T([dx, 0.0, 0.1]), torch.ones(3)) is right


@pytest.mark.parametrize("first", [True, False])
def test_a_floor_of_an_exact_number_stays_where_a_tie_is_broken(first: bool) -> None:
    """The rows choose one by one: what floor makes of 2.0 - tiny is 2, as in every kernel."""

    def ranked(x: Tensor) -> Tensor:
        size = torch.sign(x) * x
        b = size.floor() + size
        return b.argsort(-2).argsort(-2) * b

    x = (draw(8, 7, 1) * 2).round() / 2
    moved = x.double() + (1 if first else -1) * torch.arange(56, 0, -1).reshape(8, 7, 1) * 1e-9
    ranks = moved.abs().argsort(-2).argsort(-2)
    right = ranks * (x.abs() + x.abs().floor())
    assert passes(ranked, x, right)
    assert not passes(ranked, x, right.flip(0))


def test_a_comparison_of_rounded_numbers_takes_one_side() -> None:
    """ceil(0.78) / 2 is not above 0.5, at x + tiny p neither. So the gradient goes to the other row."""

    def rounded(x: Tensor) -> Tensor:
        a = (x[0] * 2).ceil() / 2
        return torch.where(a > 0.5, a, x[1]).sigmoid()

    x, dy = T([[0.39], [0.5]]), T([1.0])
    assert passes(rounded, x, rounded(x), slope(rounded, x, dy), dy)
    assert not passes(rounded, x, rounded(x), torch.zeros(2, 1), dy)


def test_a_number_that_is_0_in_pytorchs_choice_is_rounded_in_another() -> None:
    """PyTorch's three numbers are equal, and none is above the least. Two that are may be computed apart again."""

    def above(x: Tensor) -> tuple[Tensor, Tensor]:
        a = x.tanh()
        b = (a > a.amin(-1, keepdim=True)) * a
        c = b.square()
        return (c == c.amax(-1, keepdim=True)) * c, c

    x = torch.full((3,), -0.033203125).bfloat16()
    y, none = x[0].tanh().square(), torch.zeros(())
    assert passes(above, x, (torch.stack([none, y, none]).bfloat16(), torch.stack([y, y, none]).bfloat16()))
    assert not passes(above, x, (torch.stack([y, none, y]).bfloat16(), torch.stack([y, y, none]).bfloat16()))


@pytest.mark.parametrize("dx", [0.002, -0.002, 0.0, 0.004])
def test_a_slope_beside_0_is_searched_for(dx: float) -> None:
    def small(x: Tensor) -> Tensor:
        return x.abs() * 0.002

    x = T([0.0, 1.0]).bfloat16()
    assert passes(small, x, small(x), T([dx, 0.002]).bfloat16(), torch.ones_like(x)) is (dx != 0.004)


def test_a_slope_may_overflow_its_format() -> None:
    def steep(x: Tensor) -> Tensor:
        return x.abs() * 1e5

    x = T([0.0, 0.25]).half()
    assert passes(steep, x, steep(x), T([torch.inf, torch.inf]).half(), torch.ones_like(x))
    assert not passes(steep, x, steep(x), T([1e4, torch.inf]).half(), torch.ones_like(x))


@pytest.mark.parametrize("first", [True, False])
def test_the_first_of_equal_quotients_wins_whatever_they_are_quotients_of(first: bool) -> None:
    """1 / 2 and 2 / 4 are equal. The largest of each column is chosen among equal ones too, and so is a slope at 0."""

    def scaled(x: Tensor) -> Tensor:
        a = x / x.abs().amax(-2, keepdim=True)
        return torch.relu(a.gather(-1, a.topk(8, -1).indices) + 0.5)

    x = torch.randint(-6, 7, (7, 9), generator=torch.Generator().manual_seed(1)) / 2
    dy = draw(7, 8, seed=1)
    moved = x.double() + (1 if first else -1) * torch.arange(63, 0, -1).reshape(7, 9) * 1e-9
    assert passes(scaled, x, scaled(x), slope(scaled, moved, dy.double()).float(), dy)


# -- any order of equal numbers -----------------------------------------------------------------------------------


def in_order(x: Tensor) -> Tensor:
    return x.sort(-1).values.exp()


@pytest.mark.parametrize("rows", [1, 5])
def test_equal_numbers_may_be_sorted_into_any_order(rows: int) -> None:
    """Two values, six times each: no direction at random gives an order that is drawn for each of them."""
    x = T([0.5, -1.0]).repeat(rows, 6)
    dy = draw(rows, 12, seed=1)
    order = draw(rows, 12, seed=2).argsort(-1)
    order = order.gather(-1, x.gather(-1, order).argsort(dim=-1, stable=True))
    right = torch.zeros_like(x).scatter(-1, order, dy * in_order(x))
    assert passes(in_order, x, in_order(x), right, dy)
    assert not passes(in_order, x, in_order(x), right.flip(-1), dy)
    assert not passes(in_order, x, in_order(x), torch.where(x > 0, right.mean(), right), dy)


def test_a_sum_over_rows_may_hold_any_winner_of_each() -> None:
    def best(x: Tensor) -> Tensor:
        return (x.argmax(-1) * T([1.0, 10.0, 100.0])).sum()

    x = torch.ones(3, 6)
    assert passes(best, x, T(4.0 + 20.0 + 500.0))
    assert not passes(best, x, T(4.0 + 20.0 + 505.0 + 0.5))


@pytest.mark.parametrize(("kept", "right"), [([1, 0, 0], True), ([0, 1, 0], True), ([1, 1, 0], False)])
def test_equal_numbers_that_no_step_rounds_tie(kept: list[int], right: bool) -> None:
    """All numbers become 0 by an exact comparison, and their cosine is exactly 1."""

    def largest(x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.cos((x > x.amin(-1, keepdim=True)) * x)
        y = torch.where(y.abs() < 2.0, 0.5 * y * y, y.abs() - 0.5)
        return functional.one_hot(y.argmax(-1), 3) * y, y

    assert passes(largest, T([3.0, 3.0, 3.0]), (T(kept) * 0.5, T([0.5] * 3))) is right


def kept_places(x: Tensor) -> Tensor:
    return x.clamp(max=0.5).topk(2, -1).indices * 0.5


def places_by_column(x: Tensor) -> Tensor:
    return x.masked_fill(x > 0.5, 0.5).topk(2, 0).indices * 0.5


def of_conditions(x: Tensor) -> Tensor:
    return (x > 0.5).argsort(-1) * 0.5


@pytest.mark.parametrize(
    ("like", "places", "wrong"),
    [
        (kept_places, [[3, 1], [0, 3]], [[3, 1], [2, 3]]),
        (places_by_column, [[1, 0, 1, 0], [0, 1, 0, 1]], [[1, 0, 0, 0], [0, 1, 0, 1]]),
        (of_conditions, [[2, 0, 3, 1], [2, 1, 3, 0]], [[2, 0, 3, 1], [1, 2, 3, 0]]),
    ],
)
def test_copies_of_a_number_may_come_in_any_order(
    like: Callable[[Tensor], Tensor], places: list[list[int]], wrong: list[list[int]]
) -> None:
    """A mask or a limit makes equal numbers, and so does a count. No operand moves them apart."""
    x = T([[0.1, 0.7, 0.2, 0.9], [0.8, 0.6, 0.3, 0.7]])
    assert passes(like, x, like(x)) and passes(like, x, T(places) * 0.5)
    assert not passes(like, x, T(wrong) * 0.5)


@pytest.mark.parametrize(("second", "right"), [(0.0, True), (1.0, True), (0.5, False)])
def test_all_but_one_of_computed_numbers_stay_equal(second: float, right: bool) -> None:
    """Each cosine is 1 but for roundings, and so are the square roots before it. The largest are three, or all four."""

    def largest(x: Tensor) -> Tensor:
        a = torch.expm1(x.clamp(max=4))
        share = functional.softmin(functional.cosine_similarity(a, a, dim=-1), -1)
        return functional.selu((share == share.amax(-1, keepdim=True)) * share)

    one, other = [-0.6529632210731506, 0.2785835564136505], [1.1740663051605225, -1.8282926082611084]
    x = T([one, other, [1.551309585571289, 0.11396563053131104], one])
    assert passes(largest, x, functional.selu(T([0.25, 0.25 * second, 0.25, 0.25]))) is right


def test_the_winners_of_two_columns_are_found_one_after_the_other() -> None:
    """Of a column's least numbers any is right, and a running maximum goes on with the last of equal columns."""

    def running(x: Tensor) -> tuple[Tensor, Tensor]:
        sizes = torch.log(x.abs() + 0.5)
        return functional.celu(sizes.kthvalue(1, -2).values).cummax(-1).values, sizes

    def gradient(x: Tensor) -> Tensor:
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(running(leaf), leaf, [each.to(x.dtype) for each in upstream])[0]

    x = T(
        [
            [1.5, -3.0, 2.5, 1.5, 2.5, 0.0, -2.5, 0.0],
            [-2.0, -2.5, 1.5, -0.5, 2.5, -0.5, -1.5, 2.5],
            [-1.5, -3.0, -1.0, 2.5, 2.5, -1.5, 1.5, -1.5],
            [1.5, 1.5, -1.5, -0.5, -1.0, -1.0, 3.0, -1.0],
            [3.0, -1.0, 0.5, 1.5, 1.5, -2.0, 1.5, -3.0],
        ]
    )
    upstream = T([1.7, -0.5, 1.2, -0.7, -0.5, 0.2, 1.4, -1.2]), draw(5, 8)
    near = x.double()
    near[3, 0], near[2, 6] = 1.5 - 2e-12, 1.5 - 1e-12  # either is the least of its column, and the second the larger
    right = gradient(near).float()
    for by, said in ((1.0, True), (1.01, False)):
        assert passes(running, x, running(x), by * right, upstream) is said


def test_copies_are_exchanged_within_their_rows() -> None:
    """The orders of all rows together decide which number of a column is the largest, so all are one part."""
    index = T([0, 0, 4, 1, 2])

    def numbers(x: Tensor) -> Tensor:
        a = torch.sinh(x.clamp(-3, 3))
        return (a.to(torch.int32) * a)[..., index]

    def places(x: Tensor) -> Tensor:
        scaled = numbers(x).argsort(-1) * numbers(x)
        return scaled.argmax(-2, keepdim=True) + scaled

    x = T(
        [
            [-0.42942065, -1.57851923, -1.67222142, -0.48190859, -0.08134382],
            [-0.98743796, 0.41463789, -0.65022337, 0.51815474, -0.46754277],
            [0.70851946, 0.3036235, -0.9975977, -torch.inf, 1.45667160],
            [-0.54109961, 0.18053971, 0.23679394, 0.89501351, 2.72534513],
            [0.39841136, 1.68145406, 0.45458193, 1.00170958, 0.48355693],
            [-0.78464091, 0.21796183, 1.17244077, -0.21546657, 1.68775833],
        ]
    )
    order = T([[0, 1, 2, 3, 4], [3, 4, 2, 0, 1], [0, 1, 3, 4, 2], [0, 1, 3, 4, 2], [0, 1, 4, 2, 3], [0, 1, 3, 4, 2]])
    scaled = order * numbers(x)
    right = scaled.argmax(-2, keepdim=True) + scaled
    assert passes(places, x, right)
    right[1, 0] += 1.16
    assert not passes(places, x, right)


def test_a_running_product_of_conditions_is_an_integer() -> None:
    def like(x: Tensor) -> Tensor:
        return functional.threshold((x > 2.0).cumprod(-1), 1.0, -1.0)

    x = T([3.0, 1.0, 5.0])
    assert passes(like, x, T([-1, -1, -1])) and not passes(like, x, T([1, 1, 1]))


def test_neighbours_that_share_a_choice_are_one_part() -> None:
    """Of two equal largest numbers, one of a running product and the next, the last wins. No other element decides."""

    def scaled(x: Tensor) -> Tensor:
        a = x.cumprod(-1)
        return torch.exp(-(a / a.abs().amax(-1, keepdim=True)).abs())

    x, dy = T([-3.0, 2.0, 0.5, 3.0, -2.5, -1.0]), T([0.5, -0.25, 1.0, 0.75, -0.5, 1.366924])
    moved = x.double() * (1 + T([0.0, 0.0, 0.0, 0.0, 0.0, 1e-9]).double())
    right = slope(scaled, moved, dy.double()).float()
    assert passes(scaled, x, scaled(x), right, dy)
    assert not passes(scaled, x, scaled(x), right * T([1.0, 1.0, 1.0, 1.0, 1.0, 1.5]), dy)


def test_each_column_may_choose_for_itself() -> None:
    """Sorted columns of equal numbers, each in an order of its own, which no choice for all of them together finds."""

    def columns(x: Tensor) -> Tensor:
        return x.gather(0, x.argsort(0)) * 2

    x, dy = torch.ones(4, 5), draw(4, 5, seed=1)
    order = draw(4, 5, seed=2).argsort(0)
    right = torch.zeros_like(x).scatter(0, order, dy * 2)
    assert passes(columns, x, columns(x), right, dy)
    right[:, 3] = right[:, 3].mean()
    assert not passes(columns, x, columns(x), right, dy)


def test_copies_that_an_index_makes_are_chosen_by_their_places() -> None:
    """What an integer result shows is read off through moves whose places are computed, too."""
    x, index = torch.tensor([0.3, -0.7, -0.5]), torch.tensor([1, 1, 0])

    def like(x: Tensor, index: Tensor) -> Tensor:
        return x.index_select(-1, index).argmin(-1)

    for place in (0, 1):
        verify.assert_close(torch.tensor(place), like=like, inputs=(x, index))
    with pytest.raises(AssertionError, match="is wrong"):
        verify.assert_close(torch.tensor(2), like=like, inputs=(x, index))


# -- rounded numbers, and choices that no single direction has ------------------------------------------------


@pytest.mark.parametrize(
    ("share", "right"),
    [([1.0, 0.0], True), ([0.0, 1.0], True), ([0.5, 0.5], True), ([0.0, 0.0], False), ([0.7, 0.3], False)],
)
def test_numbers_that_a_rounding_makes_equal_tie(share: list[float], right: bool) -> None:
    """What breaks the ties of operands is lost in the rounding, and the gradient's own rounding decides nothing."""
    up, x = T([1 / 3]), T([[1.001, 1.0005]])
    dx = (up * T([share])).bfloat16().float()
    assert passes(lambda x: (x.bfloat16().float() * 2).amax(-1) / 2, x, T([1.0]), dx, up) == right


def test_numbers_in_a_narrower_format_tie_with_their_largest() -> None:
    """PyTorch rounds each step to float32. The largest number is one of them already, and no other rounding of it."""

    def scaled(x: Tensor) -> tuple[Tensor, Tensor]:
        a = x.float()
        b = functional.elu(a)
        c = (b / b.abs().amax(-1, keepdim=True)) ** 2
        d = torch.where(c > c.mean(-1, keepdim=True), c, 0.0)
        return torch.where(d > 0.5, d, x), a

    x, wide = T([-1.0, 2.0, -1.0, 1.0, -2.0, 2.0, 1.0]).double(), T([1.16, 0.684, 0.038, -0.49, -0.169, 1.155, 2.033])
    up = [wide.double(), T([0.717, 0.989, -1.377, 0.926, 0.47, -0.208, 2.3])]
    dx = up[0] + up[1].double()  # as everywhere but at 2.0: x itself is returned twice
    dx[5] = float(up[0][5].float()) + float(up[1][5])  # (2 / 2)^2 has the slope 1
    dx[1] = float(up[1][1]) - float(up[0][5].float())  # the largest number, by which the other is divided
    verify.assert_close(scaled(x), like=scaled, inputs=(x,), grads=(dx,), upstream=up)


def test_operands_of_zeros_tie() -> None:
    def like(x: Tensor) -> Tensor:
        share = x.softmax(-1)
        return torch.where(share >= share.amax(-1, True), share * 2, 0.0).cummax(-1).values

    x, up = torch.zeros(1, 2, dtype=torch.float64), T([[0.75, -0.25]], dtype=torch.float64)
    y, first = torch.ones_like(x), T([[0.25, -0.25]], dtype=torch.float64)
    for dx, right in ((first, True), (first * 0.9, False), (first.flip(-1), False)):
        assert passes(like, x, y, dx, up) == right


def test_an_average_of_equal_operands_stays_where_copies_are_exchanged() -> None:
    """PyTorch's amin divides the gradient among equal numbers, whichever column is kept or chosen."""

    def like(x: Tensor) -> Tensor:
        least = x.amin(-2)
        return (least.topk(7, -1).values.sum(-1, keepdim=True) * least).kthvalue(3, -1).values

    x, up = torch.full((2, 8), 1.3), T(1.0)
    dx = torch.full((2, 8), 1.3 / 2)
    dx[:, 1] = 0
    dx[:, 5] += 7 * 1.3 / 2
    assert passes(like, x, like(x), dx, up)
    assert not passes(like, x, like(x), dx * 0.99, up)


def test_each_of_several_near_ties_may_fall_in_its_own_way() -> None:
    """Of two equal rows a kernel's log_softmax may round each element in its own way."""
    other = [[1.446, 0.926, -0.498], [0.283, 1.655, -0.172], [1.775, 0.134, -1.462], [0.869, -0.864, -1.23]]
    x, up = (
        T([[-0.128, -0.368, 1.254]] * 2 + other),
        T([[-2.17, -0.46, -0.83], [0.38, 0.47, -0.36], [-0.43, -0.19, -0.72]]),
    )

    def like(x: Tensor) -> Tensor:
        lost = ((x > x.amin(-1, True)) * x).log_softmax(-1).abs().log1p()
        return lost.cummin(-2).values.topk(3, -2).values.square()

    for rows in ((0, 0, 0), (0, 1, 0), (1, 0, 1), (1, 1, 1)):
        leaf = x.clone().requires_grad_()
        c = ((leaf > leaf.amin(-1, True)) * leaf).log_softmax(-1).abs().log1p()
        second = torch.stack([c[row, at] for at, row in enumerate(rows)])
        [dx] = torch.autograd.grad(torch.stack([c[0], second, torch.minimum(second, c[2])]).square(), leaf, up)
        assert passes(like, x, like(x), dx, up), rows
    assert not passes(like, x, like(x), dx * 1.001, up)


@pytest.mark.parametrize("kept", [4, 5])
def test_the_middle_of_equal_numbers_lies_on_either_side_of_their_mean(kept: int) -> None:
    """Where the first of nine wins, all fall along a line, whose mean is its middle number."""

    def like(x: Tensor) -> Tensor:
        a = x.atan()
        return functional.relu6(a - a.mean(-1, keepdim=True))

    x, up = torch.full((6, 9), 0.5), draw(6, 9, seed=1)
    for flipped in (up * (torch.arange(9) < kept), up * (torch.arange(9) >= kept)):
        dx = (flipped - flipped.double().mean(-1, True)).float() * 0.8
        assert passes(like, x, torch.zeros(6, 9), dx, up)


@pytest.mark.parametrize(
    ("y", "right"), [(1000.0, True), (1008.0, True), (1016.0, True), (1100.0, False), (900.0, False)]
)
def test_a_number_that_is_rounded_to_an_integer_has_the_error_of_its_steps(y: float, right: bool) -> None:
    """In bfloat16 31.6 squared lies anywhere from 992 to 1,016, and its ceiling too."""
    x = T([1 / 1000.14], dtype=torch.float64).bfloat16()
    assert passes(lambda x: torch.ceil((1 / x.sqrt()) ** 2 * 2) / 2, x, T([y]).bfloat16()) == right


def test_a_result_that_is_nearly_a_spacing_off_is_explained_by_another_choice() -> None:
    """asinh(20.5) is 1.7 spacings from asinh(20), which a kernel returns that stores 20.0000003 in bfloat16."""
    x = T([[20.0, 5.0]]).bfloat16()

    def like(x: Tensor) -> Tensor:
        return torch.asinh(torch.ceil(x.logsumexp(-1) * 2) / 2)

    for integer, right in ((20.0, True), (20.5, True), (21.0, False), (19.5, False)):
        assert passes(like, x, torch.asinh(T([integer])).bfloat16()) == right


@pytest.mark.parametrize(
    ("square", "right"), [((2**31 - 1) ** 2, True), (2**62, True), (2**62 + 2**20, False), (2**20, False)]
)
def test_an_integer_of_an_infinity_is_one_of_its_dtype(square: int, right: bool) -> None:
    def squares(x: Tensor) -> Tensor:
        return (kept := x.to(torch.int32)) * kept.sum(-2, keepdim=True)

    x = T([[2.0, torch.inf]])
    assert passes(squares, x, T([[4, square]])) is right
    assert passes(lambda x: torch.remainder(squares(x), 1.0), x, torch.zeros(1, 2))


def test_what_follows_from_a_comparison_of_given_numbers_has_one_value_in_outputs() -> None:
    """1.0 > 1.0 is false, so no number is kept, and the second comparison decides about zeros alone."""

    def like(x: Tensor) -> Tensor:
        kept = torch.where(x > 1.0, x, 0.0)
        return kept.masked_fill(kept > 0.25, -torch.inf).softmax(-1)

    x = torch.ones(8)
    assert passes(like, x, like(x))
    assert not passes(like, x, T([0.0, 0.0, 0.0, 0.0, 0.25, 0.25, 0.25, 0.25]))
