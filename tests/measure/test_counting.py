"""The worst elements of a tensor of errors, in a total order."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from verify.measure.counting import ROW, counted, leaders_of, reduced, tally, top
from verify.measure.tally import KEEP
from verify.truth.formats import named
from verify.truth.ulp import errors


def test_the_worst_come_largest_first_and_ties_by_position() -> None:
    ulp = torch.zeros(100, dtype=torch.float64)
    ulp[70] = -9.0
    ulp[20] = 5.0
    ulp[60] = -5.0
    ulp[30:50] = 2.0
    leaders, rest = leaders_of(ulp.abs(), torch.arange(1000, 1100), torch.arange(100))
    assert [(leader.upper, leader.place) for leader in leaders] == [
        (9.0, 1070),
        (5.0, 1020),
        (5.0, 1060),
        *((2.0, 1030 + place) for place in range(KEEP - 3)),
    ]
    assert rest == 2.0 and leaders[0].bits == 70


def test_top_breaks_ties_like_a_stable_sort() -> None:
    source = torch.Generator().manual_seed(4)
    for _ in range(50):
        ranked = torch.randint(-1, 6, (200,), generator=source).double()
        ranked[ranked == 5] = torch.inf
        stable = sorted(((v, i) for i, v in enumerate(ranked.tolist()) if v >= 0), key=lambda e: (-e[0], e[1]))
        for keep in (1, 3, 10, 500):
            assert top(ranked, keep).tolist() == sorted(index for _, index in stable[:keep])
    assert top(torch.full((3,), -1.0, dtype=torch.float64), 5).tolist() == []
    assert top(torch.zeros(0, dtype=torch.float64), 5).tolist() == []


def test_the_scaled_error_ranks_the_worst_where_there_is_one() -> None:
    value = torch.tensor([1.0, 1.0], dtype=torch.float64)
    got = torch.tensor([1.0 + 3 * 2.0**-23, 1.0 + 2.0**-23])
    scale = torch.tensor([1024.0, 1.0], dtype=torch.float64)
    places = torch.arange(2)
    found = errors(got, value, named("float32"), scale=scale)
    item = tally(found, places=places, patterns=places)[0]
    assert [leader.place for leader in item.leaders] == [1, 0]
    assert item.figures().scaled_max == 1.0
    assert item.figures().max_ulp == 3.0


SIZE = 7


def owners(name: str) -> torch.Tensor:
    """The owner of each element; the last of them owns nothing."""
    source = torch.Generator().manual_seed(6)
    match name:
        case "none":
            return torch.empty(0, dtype=torch.int64)
        case "few":
            return torch.randint(0, SIZE - 1, (2 * ROW - 1,), generator=source)
        case "random":
            return torch.randint(0, SIZE - 1, (5 * ROW + 17,), generator=source)
        case "all one":
            return torch.full((4 * ROW,), 3)
        case "runs":  # they end within rows, one of them a tail
            return torch.arange(6).repeat_interleave(torch.tensor([3 * ROW + 1, 2 * ROW - 1, 5, ROW, 4 * ROW, 9]))
        case "one stranger":  # at the ends of rows and within them
            found = torch.full((6 * ROW + 3,), 2)
            found[[0, 2 * ROW - 1, 3 * ROW + 500, 6 * ROW + 1]] = torch.tensor([1, 4, 0, 5])
            return found
        case _:
            raise ValueError(name)


OWNERS = ("none", "few", "random", "all one", "runs", "one stranger")


@pytest.mark.parametrize("name", OWNERS)
@pytest.mark.parametrize(("how", "start"), [("amax", -1), ("amin", 1 << 40), ("sum", 0), ("sum", 5)])
def test_rows_of_one_owner_are_reduced_to_the_same(how: Literal["amax", "amin", "sum"], start: int, name: str) -> None:
    owner = owners(name)
    values = torch.randint(-(1 << 62), 1 << 62, owner.shape, generator=torch.Generator().manual_seed(7))  # sums wrap
    wanted = torch.full((SIZE,), start).scatter_reduce_(0, owner, values, how)
    found = reduced(values, owner, SIZE, how, start)
    assert found.dtype == torch.int64
    assert found.tolist() == wanted.tolist()


@pytest.mark.parametrize("name", OWNERS)
@pytest.mark.parametrize("copies", [None, 1, 2, 32, 100])
def test_copies_of_counts_add_up_to_the_counts(copies: int | None, name: str) -> None:
    key = owners(name)
    assert counted(key, SIZE, copies).tolist() == torch.bincount(key, minlength=SIZE).tolist()
