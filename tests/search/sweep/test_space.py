"""Keys, ranges and chunks: every input exactly once, whatever the range."""

from __future__ import annotations

import itertools
import math
from functools import cache

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify.errors import UsageError
from verify.measure.tally import KEEP, Leader, Maximum, Peak, Tally
from verify.records.record import value_of
from verify.search.sweep.space import (
    CHUNK,
    Part,
    Partial,
    Space,
    bits_of_key,
    key_of_bits,
    key_of_value,
)
from verify.truth.formats import named

HALF = named("float16")


@cache
def numbers() -> tuple[list[int], list[float]]:
    """The keys of all numbers of float16, and the numbers."""
    found = [HALF.to_float(bits_of_key(HALF, key)) for key in range(1 << 16)]
    inside = [key for key, number in enumerate(found) if not math.isnan(number)]
    return inside, [found[key] for key in inside]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn"])
def test_keys_put_every_pattern_in_the_order_of_the_numbers(dtype: str) -> None:
    fmt = named(dtype)
    patterns = [bits_of_key(fmt, key) for key in range(1 << fmt.bits)]
    assert sorted(patterns) == list(range(1 << fmt.bits))
    assert [key_of_bits(fmt, bits) for bits in patterns] == list(range(1 << fmt.bits))
    numbers = [fmt.to_float(bits) for bits in patterns if not fmt.is_nan(bits)]
    assert numbers == sorted(numbers)
    zeros = [key for key, bits in enumerate(patterns) if fmt.to_float(bits) == 0]
    assert [patterns[key] for key in zeros] == [fmt.sign_bit, 0], "-0 comes before +0"


def space(start: int, stop: int, shape: str = "unary", dtype: str = "float32") -> Space:
    return Space("f.py::k", dtype, ("y",), shape, start, stop)  # type: ignore[arg-type]


@given(st.integers(0, 2**32 - 1), st.integers(1, 5 * CHUNK))
def test_chunks_tile_a_space(start: int, size: int) -> None:
    here = space(start, min(start + size, 2**32))
    spans = [here.chunk(number) for number in range(here.chunks)]
    assert spans[0][0] == here.first and spans[-1][1] == here.last
    assert all(a[1] == b[0] and b[0] % CHUNK == 0 for a, b in itertools.pairwise(spans))
    assert sum(high - low for low, high in spans) == here.points
    with pytest.raises(UsageError, match="chunks 0 to"):
        here.chunk(here.chunks)


def test_the_identity_is_that_of_everything_asked() -> None:
    assert space(0, 10).identity() != space(0, 11).identity()
    assert space(0, 10).identity() == space(0, 10).identity()
    assert space(0, 2**32).describe() == "all 2^32 inputs"
    assert space(0, 2**16, "pairs", "float16").describe() == "all 2^32 pairs"
    low, high = (key_of_value(named("float32"), value) for value in (-1.0, 1.0))
    assert space(low, high + 1).describe() == f"{high + 1 - low:,} inputs of [-1, 1]"


SIZES = st.sampled_from([0.25, 0.5, 0.75, 3.0, "inf"])


@st.composite
def partials(draw: st.DrawFn, chunk: int) -> Partial:
    """What one chunk of ten places may give: few distinct errors, so that ties are common."""
    errors = draw(st.lists(SIZES, min_size=10, max_size=10))
    places = range(10 * chunk, 10 * chunk + 10)
    leaders = sorted((Leader(error, place, 7) for error, place in zip(errors, places, strict=True)), key=_order)
    tally = Tally(
        n=10,
        misrounded=sum(value_of(error) > 0.5 for error in errors),
        undecided=draw(st.integers(0, 2)),
        nonfinite=errors.count("inf"),
        nan=0,
        capped_sum=draw(st.integers(0, 1 << 40)),
        counts=sorted({draw(st.integers(0, 3)): 1, 5: draw(st.integers(1, 9))}.items()),
        plain=Maximum(leaders[0].upper, leaders[0].upper),
        leaders=leaders,
        rest=draw(st.sampled_from([-1.0, 0.125])),
    )
    worst = leaders[0]
    return Partial(
        space="s",
        reference="cpu",
        chunks=[(chunk, chunk + 1)],
        parts={
            "y": Part(regimes={draw(st.sampled_from("ab")): tally}, curve=[Peak(0, 10, worst.upper, worst.place, 3)])
        },
        notes=draw(st.lists(st.sampled_from(["n", "m"]), unique=True).map(sorted)),
    )


def _order(leader: Leader) -> tuple[float, int]:
    return leader.order


@given(st.data())
def test_any_order_and_grouping_gives_the_same(data: st.DataObject) -> None:
    parts = [data.draw(partials(chunk)) for chunk in range(4)]
    a, b, c, d = data.draw(st.permutations(parts))
    left = a.merge(b).merge(c).merge(d)
    assert left == a.merge(b.merge(c.merge(d))) == d.merge(c).merge(b.merge(a))
    assert msgspec.json.decode(msgspec.json.encode(left), type=Partial) == left
    assert left.chunks == [(0, 4)] and left.done == 4


@given(st.data())
def test_leaders_are_the_worst_of_all_and_the_rest_is_the_next(data: st.DataObject) -> None:
    parts = [data.draw(partials(chunk)) for chunk in range(3)]
    merged = parts[0].merge(parts[1]).merge(parts[2]).parts["y"]
    for name, tally in merged.regimes.items():
        mine = [part.parts["y"].regimes[name] for part in parts if name in part.parts["y"].regimes]
        everyone = sorted(itertools.chain.from_iterable(item.leaders for item in mine), key=_order)
        assert tally.leaders == everyone[:KEEP]
        dropped = [value_of(item.upper) for item in everyone[KEEP:]]
        assert value_of(tally.rest) == max([value_of(item.rest) for item in mine] + dropped)
        assert tally.n == sum(item.n for item in mine)
        assert tally.plain.upper == everyone[0].upper


def test_the_first_place_wins_among_equal_errors_of_a_bin() -> None:
    assert Peak(3, 1, 0.5, 9, 70).merge(Peak(3, 2, 0.5, 4, 71)) == Peak(3, 3, 0.5, 4, 71)
    assert Peak(3, 1, "inf", 9, 70).merge(Peak(3, 2, 8.0, 4, 71)) == Peak(3, 3, "inf", 9, 70)
    assert Peak(3, 1, "inf", 4, 70).merge(Peak(3, 2, "nan", 9, 71)) == Peak(3, 3, "nan", 9, 71)


def test_a_chunk_never_counts_twice() -> None:
    one = Partial("s", "torch cpu", [(0, 2)], {})
    with pytest.raises(UsageError, match="chunk 1 is counted twice"):
        one.merge(Partial("s", "torch cpu", [(1, 3)], {}))


@pytest.mark.parametrize("other", [Partial("t", "cpu", [(1, 2)], {}), Partial("s", "sm_90", [(1, 2)], {})])
def test_partials_of_different_sweeps_do_not_merge(other: Partial) -> None:
    with pytest.raises(UsageError, match="of different sweeps do not merge"):
        Partial("s", "torch cpu", [(0, 1)], {}).merge(other)
