"""The worst elements of a tensor of errors, in a total order."""

from __future__ import annotations

import torch

from verify.measure.counting import leaders_of, tally
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
