"""The order of a sum, recovered from results alone: the kernels here add in an order that the test knows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import verify
from verify import backends
from verify.cases import Case
from verify.cli.explain import lines_of_order
from verify.diagnose.order import orders_of
from verify.diagnose.requests import Order
from verify.errors import UsageError

Places = frozenset[int]


def in_turn(x: Tensor) -> Tensor:
    total = x[:, 0]
    for place in range(1, x.shape[1]):
        total = total + x[:, place]
    return total


def from_the_end(x: Tensor) -> Tensor:
    return in_turn(x.flip(1))


def halves(x: Tensor) -> Tensor:
    """As a butterfly of lanes: each half is added to the other."""
    while x.shape[1] > 1:
        x = x[:, : x.shape[1] // 2] + x[:, x.shape[1] // 2 :]
    return x[:, 0]


def blocks(x: Tensor) -> Tensor:
    """As a loop over blocks of 8 columns, and a butterfly at its end."""
    return halves(torch.stack([in_turn(x[:, lane::8]) for lane in range(8)], 1))


def root(x: Tensor) -> Tensor:
    return x * ((blocks(x * x) / x.shape[1])[:, None] + 1e-6).rsqrt()


def weights(x: Tensor) -> Tensor:
    powers = (x - x.amax(1, keepdim=True)).exp()
    return powers / blocks(powers)[:, None]


def declared(function: Callable[..., Tensor], like: Callable[..., Tensor], **other: Any) -> Any:
    shapes = other.pop("shapes", {"x": "n d"})
    return verify.kernel(like=like, shapes=shapes, gradients=False, **{"dtypes": ["float32"], **other})(function)


def found_of(kernel: Any, *dims: int, dtype: str = "") -> Order:
    text = Case(dtype=dtype or kernel.dtypes[0], dims=dims, fill="randn").to_json()
    return orders_of(kernel, backends.select(), dtype, text, lambda text: None)[0]


def parts(found: Order) -> set[Places]:
    """Returns the terms of each partial sum: two orders are one if they have the same parts."""
    made = [frozenset([place]) for place in range(found.terms)]
    for one, two in found.additions:
        made.append(made[one] | made[two])
    return set(made)


def of(kernel: Callable[[Tensor], Tensor], count: int) -> set[Places]:
    """Returns the parts of a sum from a run on sets instead of numbers."""

    seen: set[Places] = set()

    def add(one: Places, two: Places) -> Places:
        seen.add(one | two)
        return one | two

    def turn(items: list[Places]) -> Places:
        return list(itertools.accumulate(items, add))[-1]

    def by_halves(items: list[Places]) -> Places:
        while len(items) > 1:
            items = [add(a, b) for a, b in zip(items[: len(items) // 2], items[len(items) // 2 :], strict=True)]
        return items[0]

    leaves = [frozenset([place]) for place in range(count)]
    run: dict[Any, Callable[[list[Places]], Places]] = {
        in_turn: turn,
        from_the_end: lambda items: turn(items[::-1]),
        halves: by_halves,
        blocks: lambda items: by_halves([turn(items[lane::8]) for lane in range(8)]),
    }
    run[kernel](leaves)
    return seen | set(leaves)


@pytest.mark.parametrize("kernel", [in_turn, from_the_end, halves, blocks])
def test_the_order_of_a_sum_is_found_and_gives_its_bits(kernel: Callable[[Tensor], Tensor]) -> None:
    found = found_of(declared(kernel, lambda x: x.sum(-1)), 16, 64)
    assert parts(found) == of(kernel, 64)
    assert found.explained == 1 and found.terms == 64


@pytest.mark.parametrize(
    ("kernel", "like"),
    [
        (root, lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()),
        (weights, lambda x: x.softmax(-1)),
    ],
)
def test_squares_and_exponentials_are_seen_by_three_terms(kernel: Any, like: Any) -> None:
    found = found_of(declared(kernel, like), 40, 48)
    assert parts(found) == of(blocks, 48)
    assert found.explained == 1 and found.kind in ("squares", "exponentials")


def test_an_order_that_is_not_the_kernels_is_refuted_by_its_replay() -> None:
    found = found_of(declared(lambda x: in_turn(x.double()).float(), lambda x: x.sum(-1)), 16, 64)
    assert found.explained < 0.9
    assert "not its order, which gives" in lines_of_order(found)[-1]


def test_operands_that_are_added_or_multiplied_do_not_hide_the_terms() -> None:
    def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return blocks(x * w) + b

    shapes = {"x": "n d", "w": "d", "b": ""}
    found = found_of(declared(layer, lambda x, w, b: (x * w).sum(-1) + b, shapes=shapes), 16, 32)
    assert parts(found) == of(blocks, 32) and found.explained == 1


def test_sixteen_bits_count_few_terms() -> None:
    wide = declared(lambda x: blocks(x.float()).to(x.dtype), lambda x: x.sum(-1), dtypes=["bfloat16", "float16"])
    for dtype in ("bfloat16", "float16"):
        found = found_of(wide, 16, 64, dtype=dtype)
        assert parts(found) == of(blocks, 64) and found.explained == 1
    assert "probe a smaller case" in found_of(wide, 16, 256, dtype="bfloat16").unknown


def test_a_kernel_that_adds_nothing_has_no_order() -> None:
    found = found_of(declared(lambda x: x * 2, lambda x: x * 2), 8, 8)
    assert "no term can be seen" in found.unknown and "not known" in lines_of_order(found)[0]
    with pytest.raises(UsageError, match="promises float32; received the dtype float16"):
        found_of(declared(in_turn, lambda x: x.sum(-1)), 8, 8, dtype="float16")


def test_an_order_is_told_in_words() -> None:
    lines = lines_of_order(found_of(declared(blocks, lambda x: x.sum(-1)), 16, 64))
    assert lines[1:] == [
        "  8 parts of 8 terms in pairs, 1, 2, 4 apart",
        "    8 parts of 1 term, 8 apart, one after the other",
        "  it gives 100.0% of 4,096 other results, bit by bit, which is no proof",
        "  at most 10 additions round a term: 6.0e-07 of the magnitudes",
    ]
