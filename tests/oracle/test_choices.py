"""The oracle's choices explain right results at ties, and no wrong one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.oracle.choices import choices, evaluate, rounded

T = torch.tensor


def explains(
    f: Callable[..., Any], x: Tensor, results: Sequence[Tensor], dy: Tensor | None, marks: Tensor | None
) -> bool:
    """Says whether for each row one choice explains all results. marks: what a kernel kept wins, and what it lost."""
    upstream = [] if dy is None else [dy]
    found = choices(f, [x], upstream)
    if marks is not None:
        found += [evaluate(f, [x], upstream, [sign * marks.double().numpy()]) for sign in (1, -1)]
    explained = torch.zeros(len(x), dtype=torch.bool)
    for each in found:
        fits = torch.ones(len(x), dtype=torch.bool)
        for values, got in zip(each.values, results, strict=False):
            close = torch.isclose(rounded(values, torch.float64), got.double(), rtol=1e-5, atol=1e-6)
            fits &= close.reshape(len(x), -1).all(-1)
        explained |= fits
    return bool(explained.all())


def gradient(f: Callable[..., Any], x: Tensor, dy: Tensor) -> Tensor:
    wide = x.double().requires_grad_()
    return torch.autograd.grad(f(wide), wide, dy.double())[0]


def ranks(x: Any) -> Any:
    return x.argsort(-1).argsort(-1) * x


def largest_place(x: Any) -> Any:
    return x.argmax(-1, keepdim=True) + x


def best_places(x: Any) -> Any:
    return x.topk(2).indices * 0.5


def one_hot(x: Any) -> Any:
    return functional.one_hot(x.argmax(-1), 3) * x


def top3(x: Any) -> Any:
    return torch.where(x >= x.topk(3, -1).values.amin(-1, keepdim=True), x * 2, 0.0)


def peaks(x: Any) -> Any:
    return torch.where(x == functional.max_pool1d(x, 3, 1, 1), x * 2, 0.0)


def share(x: Any) -> Any:
    return x.amax(-1) * x.sum(-1)


def router(x: Any) -> Any:
    return tuple(x.softmax(-1).topk(2))


def fives(x: Any) -> Any:
    return torch.zeros_like(x).scatter(-1, x.topk(5, -1).indices, 1.0) * x


def masked(x: Any) -> Any:
    return x.masked_fill(x > 1, -1e4).softmax(-1)


def sorting(x: Any) -> Any:
    return x.sort(-1).values * torch.arange(16) + x.argsort(-1)


def best_share(x: Any) -> Any:
    return x.softmax(-1).topk(4).values.sum(-1, keepdim=True) * x


def running(x: Any) -> Any:
    return x.cummin(-1)[0].cummin(-1)[0]


RANKED = T([[0.5, -1.0, 0.5, 2.0]])
TIED = T([[1.0, 1.0, 0.5], [0.2, 0.9, 0.9]])
PAIR = T([[1.0, 1.0, 0.0]])


@pytest.mark.parametrize(
    ("f", "x", "y", "right"),
    [
        (ranks, RANKED, ranks(RANKED), True),
        (ranks, RANKED, T([[1.0, 0.0, 0.5, 6.0]]), True),
        (ranks, RANKED, T([[0.5, -2.0, 5.0, -7777.0]]), False),
        *[(f, TIED, f(TIED), True) for f in (largest_place, best_places, one_hot)],
        *[(f, TIED, f(TIED) * 0.0 - 7777, False) for f in (largest_place, best_places, one_hot)],
        (one_hot, TIED, T([[0, 1.0, 0], [0, 0, 0.9]]), True),
        (one_hot, TIED, T([[0.5, 0.5, 0], [0, 0.45, 0.45]]), False),
    ],
)
def test_positions_of_equal_numbers(f: Callable[..., Any], x: Tensor, y: Tensor, right: bool) -> None:
    assert explains(f, x, [y], None, None) is right


@pytest.mark.parametrize(
    ("dx", "right"),
    [
        ((3, 1, 1), True),
        ((1, 3, 1), True),
        ((2, 2, 1), True),
        ((0, 0, 1), False),
        ((6, -2, 1), False),
        ((3, 3, 1), False),
    ],
)
def test_gradients_at_a_tied_maximum(dx: tuple[float, ...], right: bool) -> None:
    assert explains(share, PAIR, [share(PAIR), T([dx])], torch.ones(1), None) is right


@pytest.mark.parametrize("f", [top3, peaks])
def test_a_number_compared_with_itself_is_no_tie(f: Callable[..., Any]) -> None:
    source = torch.Generator().manual_seed(0)
    x, dy = torch.randn(3, 8, generator=source), torch.randn(3, 8, generator=source)
    assert len(choices(f, [x], [dy])) == 1
    dx = gradient(f, x, dy)
    assert explains(f, x, [f(x), dx], dy, None)
    assert not explains(f, x, [f(x), dx * (x > x.topk(3).values[:, -1:])], dy, None)
    assert not explains(f, x, [f(x), dx * 0], dy, None)


def test_weights_and_ids_of_a_router() -> None:
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1)).round()
    values, ids = router(x)
    flipped = router(x.flip(-1))
    last = torch.zeros(x.shape).scatter(-1, 7 - flipped[1], T([[2.0, 1.0]]).expand(16, 2))
    first = torch.zeros(x.shape).scatter(-1, ids, T([[2.0, 1.0]]).expand(16, 2))
    assert explains(router, x, [values, ids], None, first)
    assert explains(router, x, [flipped[0], 7 - flipped[1]], None, last)
    assert not explains(router, x, [values, ids.roll(1, 0)], None, first)
    assert not explains(router, x, [values * 0.5, ids], None, first)


def test_any_five_of_ten_equal_numbers() -> None:
    x, dy = torch.ones(4, 10), torch.full((4, 10), 3.0)
    kept = torch.rand(4, 10, generator=torch.Generator().manual_seed(2)).topk(5, -1).indices
    mine = torch.zeros(4, 10).scatter(-1, kept, 1.0)
    assert explains(fives, x, [mine], None, mine)
    assert explains(fives, x, [mine, mine * 3], dy, mine)
    assert not explains(fives, x, [x.scatter(-1, kept[:, :4], 0.0)], None, mine)
    assert not explains(fives, x, [x * 0], None, mine)
    assert not explains(fives, x, [mine, mine.roll(1, -1) * 3], dy, mine)


def test_an_exact_threshold_is_no_choice_of_the_value() -> None:
    x = torch.randn(1, 9, generator=torch.Generator().manual_seed(3))
    x[0, 5] = 1.0
    dy = torch.randn(1, 9, generator=torch.Generator().manual_seed(4))
    dx = gradient(masked, x, dy)
    assert explains(masked, x, [masked(x), dx], dy, None)
    assert not explains(masked, x, [masked(x), dx * 1.2], dy, None)


def test_order_and_positions_of_16_bits() -> None:
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(5)).mul(4).round().div(4)
    wide = sorting(x.double())
    place = torch.arange(16, 0, -1.0).expand(4, 16)  # torch's sort keeps the order of equal numbers here
    stable = torch.sort(x, dim=-1, stable=True)
    y = stable.values * torch.arange(16) + stable.indices
    assert explains(sorting, x, [y], None, -place)
    assert not explains(sorting, x, [wide + functional.one_hot(T(7), 16)], None, -place)


def test_the_share_of_the_best_and_its_gradient() -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(6)).bfloat16().float()
    dy = torch.randn(4, 8, generator=torch.Generator().manual_seed(7))
    dx = gradient(best_share, x, dy)
    assert explains(best_share, x, [best_share(x.double()), dx], dy, None)
    assert not explains(best_share, x, [best_share(x.double()), dx.roll(1, 0)], dy, None)


def test_running_minima_of_running_minima() -> None:
    x, dy = T([[1.0, 1.0, 1.0, 0.0, 0.0]]), T([[1.0, 2.0, 4.0, 8.0, 16.0]])
    dx = gradient(running, x, dy)
    assert explains(running, x, [running(x), dx], dy, None)
    assert not explains(running, x, [running(x), dx * 0], dy, None)


def test_equal_numbers_go_the_same_way_everywhere() -> None:
    found = choices(lambda x: (x.argmax(-1), x.max(-1).values), [PAIR], [None, torch.ones(1)])
    for each in found[1:]:
        place = int(each.values[0][0])
        assert [float(v) for v in each.values[2][0]] == list(np.eye(3)[place])


def test_equal_places_go_either_way() -> None:
    x = T([[3.0, 1.0], [3.0, 0.0]])  # the best place of both rows is 0
    found = choices(lambda x: x.argmax(-1).argmax(), [x], [None])
    assert {int(each.values[0][()]) for each in found} == {0, 1}


def test_of_equal_computed_numbers_the_same_wins_everywhere() -> None:
    def largest_of_both(x: Any) -> Any:
        y = x * 1.1
        return torch.maximum(y, y.flip(-1))

    x, dy = T([1.0, 1.0]), T([1.0, 2.0])
    for each in choices(largest_of_both, [x], [dy])[1:]:
        assert sorted(round(float(v), 3) for v in each.values[1]) == [0.0, 3.3]
