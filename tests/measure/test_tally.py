"""Tallies merge exactly and their figures bound the true statistics."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from verify.measure.counting import bin_of, counts_of, in_use, tally
from verify.measure.tally import BINS, CAP, Tally, bin_edge, quantile
from verify.records.record import value_of
from verify.truth.formats import named
from verify.truth.ulp import Errors, errors

SIZE = 6000


def draw(seed: int, *, size: int = SIZE, scaled: bool = True) -> Errors:
    """Errors of float32 numbers: small ones, ties, huge ones, NaN, infinities."""
    source = torch.Generator().manual_seed(seed)
    value = torch.randn(size, generator=source, dtype=torch.float64)
    step = 2.0 ** torch.randint(-26, 3, (size,), generator=source).double()
    got = (value * (1 + step * torch.randint(-2, 3, (size,), generator=source))).float()
    got[::701] = torch.nan
    got[5::997] = torch.inf
    value[11::503] = torch.nan
    scale = value.abs() * 4 if scaled else None
    return errors(got, value, named("float32"), bound=value.abs() * 2.0**-50, scale=scale)


def part(found: Errors, where: slice) -> Errors:
    fields = {name: None if tensor is None else tensor[where] for name, tensor in vars(found).items()}
    return Errors(**fields)


def numbered(found: Errors, start: int = 0) -> Tally:
    """The tally of elements whose places begin at `start`, with bits that say the place again."""
    places = torch.arange(start, start + found.ulp.numel())
    return tally(found, places=places, patterns=places + 7)[0]


def merged(found: Errors, cuts: list[int], order: random.Random) -> Tally:
    ends = [0, *sorted(cuts), found.ulp.numel()]
    parts = [numbered(part(found, slice(start, stop)), start) for start, stop in pairwise(ends)]
    order.shuffle(parts)
    while len(parts) > 1:  # any bracketing
        left = parts.pop(order.randrange(len(parts)))
        right = parts.pop(order.randrange(len(parts)))
        parts.append(left.merge(right))
    return parts[0]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scaled", [True, False])
def test_any_split_in_any_order_gives_the_whole_byte_for_byte(seed: int, scaled: bool) -> None:
    found = draw(seed, scaled=scaled)
    whole = numbered(found)
    source = random.Random(seed)
    for count in (1, 1, 2, 7, 40):
        cuts = [source.randrange(SIZE + 1) for _ in range(count)]
        joined = merged(found, cuts, source)
        assert joined == whole
        assert msgspec.json.encode(joined) == msgspec.json.encode(whole)
    assert msgspec.json.decode(msgspec.json.encode(whole), type=Tally) == whole
    assert whole.rest != -1.0 and len(whole.leaders) == 10


def test_counts_add_up_on_the_device_as_tallies_do() -> None:
    found = draw(2)
    first, second = (part(found, slice(start, stop)) for start, stop in ((0, 2500), (2500, SIZE)))
    [together] = counts_of(first).plus(counts_of(second)).tallies()
    [whole] = counts_of(found).tallies()
    assert together == whole
    assert counts_of(first).tallies()[0].merge(counts_of(second).tallies()[0]) == whole


def test_segments_are_the_tallies_of_their_elements() -> None:
    found = draw(3)
    source = torch.Generator().manual_seed(8)
    segments = torch.randint(-1, 3, (SIZE,), generator=source)
    places = torch.arange(SIZE)
    parts = tally(found, segments=segments, n_segments=4, places=places, patterns=places)
    assert parts[3].n == 0
    assert parts[3].figures().max_ulp == 0.0
    for number in range(3):
        chosen = torch.nonzero(segments == number).reshape(-1)
        alone = Errors(**{k: None if v is None else v[chosen] for k, v in vars(found).items()})
        assert parts[number] == tally(alone, places=chosen, patterns=chosen)[0]
    assert sum(item.n for item in parts) == int((segments >= 0).sum())


# -- figures against plain arithmetic -----------------------------------------------------------


def plain(ulp: Tensor) -> Errors:
    count = ulp.numel()
    no = torch.zeros(count, dtype=torch.bool)
    return Errors(
        ulp=ulp,
        width=torch.zeros_like(ulp),
        misrounded=ulp.abs() > 0.5,
        undecided=no,
        nonfinite=no,
        nan=no,
        zero_sign=no,
        scaled=None,
        scaled_width=None,
        scale_exponent=None,
    )


@pytest.mark.parametrize("count", [1, 2, 10, 999, 1000, 1001, 20_000])
def test_the_quantile_is_never_below_the_true_one_and_within_a_bin(count: int) -> None:
    source = np.random.default_rng(count)
    sizes = np.exp(source.uniform(math.log(2.0**-23), math.log(2.0**50), count))
    sizes[source.random(count) < 0.1] = 0.5
    found = tally(plain(torch.from_numpy(sizes)))[0].figures()
    ordered = np.sort(sizes)
    true = ordered[math.ceil(0.999 * count) - 1]
    assert true <= value_of(found.p999) <= true * 1.032
    for share in (0.1, 0.5, 0.9, 1.0):
        bins = in_use(torch.bincount(bin_of(torch.from_numpy(sizes))))
        true = ordered[math.ceil(share * count) - 1]
        assert true <= quantile(bins, share) <= true * 1.032


def test_counts_and_mean_against_numpy() -> None:
    source = np.random.default_rng(2)
    ulp = source.normal(size=30_000) * np.exp(source.uniform(-9, 9, 30_000))
    figures = tally(plain(torch.from_numpy(ulp)))[0].figures()
    assert figures.n == 30_000
    assert figures.max_ulp == np.abs(ulp).max()
    assert figures.misrounded == int((np.abs(ulp) > 0.5).sum())
    assert figures.mean == pytest.approx(np.minimum(np.abs(ulp), CAP).mean(), rel=1e-6, abs=2.0**-17)  # seven digits


def test_one_infinite_error_does_not_erase_the_mean() -> None:
    ulp = torch.tensor([math.inf, 0.25, 0.25, 0.5], dtype=torch.float64)
    figures = tally(plain(ulp))[0].figures()
    assert figures.max_ulp == "inf"
    assert figures.mean == (CAP + 1.0) / 4


def test_nan_makes_every_maximum_nan() -> None:
    value = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    got = torch.tensor([1.0, math.nan, 3.0])
    fmt = named("float32")
    figures = tally(errors(got, value, fmt, scale=value))[0].figures()
    assert figures.max_ulp == figures.max_upper == "nan"
    assert figures.scaled_max == figures.scaled_upper == "nan"
    assert figures.nonfinite == 1 and figures.p999 == figures.scaled_p999 == "nan"
    many = tally(errors(got.repeat(1000)[1:2002], value.repeat(1000)[1:2002], fmt))[0]
    assert many.figures().p999 == "nan", "667 of 2,001"
    few = tally(errors(torch.where(torch.arange(2001) == 1, torch.nan, 1.0).float(), torch.ones(2001).double(), fmt))[0]
    assert few.figures().p999 < 1e-7 and few.figures().max_ulp == "nan"
    inf = tally(errors(torch.tensor([math.inf, 2.0, 3.0]), value, fmt))[0].figures()
    assert inf.max_ulp != "nan"
    assert inf.nonfinite == 1


def test_the_upper_maximum_includes_the_width() -> None:
    found = plain(torch.tensor([0.4, -0.3], dtype=torch.float64))
    found.width[1] = 0.25
    figures = tally(found)[0].figures()
    assert figures.max_ulp == 0.4
    assert figures.max_upper == pytest.approx(0.55)


# -- bins and histogram -------------------------------------------------------------------------


def test_every_error_lies_in_its_bin() -> None:
    edges = [bin_edge(index) for index in range(BINS + 1)]
    assert edges == sorted(edges)
    assert edges[-1] == math.inf
    probes = edges[1:-1]
    probes += [math.nextafter(e, 0) for e in probes] + [0.0, 5e-324, 1e300, math.inf, 1.0, 0.7]
    for number, index in zip(probes, bin_of(torch.tensor(probes, dtype=torch.float64)).tolist(), strict=True):
        assert edges[index] <= number
        assert number < edges[index + 1] or number == math.inf
