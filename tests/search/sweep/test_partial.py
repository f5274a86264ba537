"""Partials merge: in any order, in any grouping, through JSON, and never twice."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify.errors import UsageError
from verify.measure.tally import KEEP, Leader, Maximum, Peak, Tally
from verify.records.record import value_of
from verify.search.sweep.space import Part, Partial

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
