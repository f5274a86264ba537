"""How bounds change: tighter by themselves, looser only one by one with a reason that stays."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from tests.golden import answers
from tests.records.bounds.gate_records import ALL, HASH, SEEN, book, bound, kernel, result, run
from verify.errors import UsageError
from verify.records.bounds import changes as ratchet
from verify.records.bounds.changes import accept, explained, needs_approval, propose, review
from verify.records.bounds.committed import Acceptance, Book, Bound
from verify.records.bounds.verdict import judge
from verify.records.record import Basis, Run

OTHER = "bb11bb11bb11"
TODAY = "2026-11-21"


def only(found: ratchet.Proposal) -> ratchet.Change:
    [change] = found.changes
    return change


def applied(held: Book, changes: tuple[ratchet.Change, ...]) -> Book:
    return Book(held.folder, {**held.bounds, **{change.key: change.new for change in changes if change.new}})


def test_the_first_proposal_bounds_everything_and_then_the_gate_passes() -> None:
    records = [run(kernel(result(0.7, basis=SEEN), result(0.0, output="dx"), result(0.9, dtype="float16", low=0.6)))]
    found = propose(records, book())
    assert {str(change.key): change.new.value for change in found.changes if change.new} == {
        "gelu/y/bfloat16/all": 1.0,  # 0.7, and one and a half of the 0.2 beyond the last rounding
        "gelu/dx/bfloat16/all": 0.5,
        "gelu/y/float16/low": 0.6,
    }
    assert {change.kind for change in found.changes} == {"new"}
    held = applied(book(), found.changes)
    verdict = judge(records, held)
    assert (verdict.exit_code, {row.status for row in verdict.rows}) == (0, {"ok"})
    assert propose(records, held).changes == ()  # what was proposed is stable


def test_a_new_bound_carries_its_evidence() -> None:
    new = only(propose([run(kernel(result(0.7)))], book())).new
    assert new is not None
    assert dataclasses.asdict(new.evidence) == {
        "record": "0123456789ab",
        "commit": "c" * 12,
        "date": "2026-11-20",
        "source": "run",
        "measured": 0.7,
        "worst": "x = -4.34 (0xc08b)",
    }
    assert (new.properties, new.reason, new.basis) == ({"run": HASH}, "first measured", ALL)


@pytest.mark.parametrize("status", ["vacuous", "undecided"])
def test_no_bound_rests_on_a_result_without_a_verdict(status: str) -> None:
    records = [run(kernel(result(0.7, status=status)))]
    found = propose(records, book())
    assert found.changes == () and [(row.status, row.reason) for row in found.left] == [(status, "zeros would pass")]
    with pytest.raises(UsageError, match=f"gelu/y/bfloat16/all is {status} and cannot be accepted: zeros would pass"):
        accept("gelu/y/bfloat16/all", "why not", records, book(bound(2.0)), today=TODAY)


def tightened(value: float, basis: Basis, old: Bound) -> list[Any]:
    """The changes that a record proposes: within the margin, weaker than the evidence or below 0.5 there is none."""
    found = propose([run(kernel(result(value, basis=basis)))], book(old)).changes
    return [(change.kind, change.new and (change.new.value, str(change.new.basis))) for change in found]


def test_what_tightens() -> None:
    answers(Path(__file__).parent / "snapshots" / "tightened.txt", globals())


def test_gradients_of_a_sweep_get_headroom_for_the_upstream_that_it_did_not_try() -> None:
    swept = {"basis": ALL, "source": "sweep"}
    records = [run(kernel(result(0.6, output="dx", **swept), result(0.6, **swept)))]
    found = propose(records, book())
    assert {str(change.key): change.new.value for change in found.changes if change.new} == {
        "gelu/dx/bfloat16/all": 0.75,
        "gelu/y/bfloat16/all": 0.6,
    }
    held = applied(book(), found.changes)
    assert propose(records, held).changes == ()
    other = [run(kernel(result(0.63, output="dx", basis=SEEN), result(0.63, basis=SEEN)))]  # any dy
    assert [row.key.output for row in judge(other, held).rows if row.status == "breached"] == ["y"]


def test_the_worst_of_all_records_is_what_a_bound_has_to_hold() -> None:
    records = [run(kernel(result(value, basis=SEEN))) for value in (0.6, 0.8, 0.7)]
    assert only(propose(records, book())).new.value == 1.25  # type: ignore[union-attr]


def test_one_unfit_reading_keeps_a_key_from_being_written() -> None:
    for bad in (result(math.nan), result(0.6, properties="")):
        assert propose([run(kernel(result(0.6))), run(kernel(bad))], book(bound(1.0))).changes == ()


def test_a_changed_question_is_restated_when_it_is_not_looser() -> None:
    held = book(bound(1.0, properties={"run": HASH, "sweep": HASH}))
    for value, basis, kind, expected in (
        (1.0, ALL, "restated", 1.0),
        (0.98, SEEN, "restated", 1.0),
        (0.98, ALL, "tighter", 0.98),
    ):
        records = [run(kernel(result(value, basis=basis, properties=OTHER)))]
        change = only(propose(records, held))
        assert change.new is not None
        assert (change.kind, change.new.value) == (kind, expected)
        assert change.new.properties == {"run": OTHER, "sweep": HASH}
        assert (change.new.evidence.measured, change.new.basis) == (value, basis)
        assert judge(records, applied(held, (change,))).exit_code == 0
    # and where it is looser it takes a person
    assert propose([run(kernel(result(1.2, properties=OTHER)))], held).changes == ()


def test_a_lucky_seed_does_not_undo_a_loosening() -> None:
    entry = Acceptance("2026-01-01", 0.5, 1.5, "headroom from the largest of four seeds")
    held = book(bound(1.5, basis=SEEN, accepted=(entry,)))
    lucky = run(kernel(result(0.6, basis=SEEN)))
    second = run(kernel(result(0.62, basis=Basis("observed", SEEN.n, 1))))
    assert propose([lucky], held).changes == propose([lucky, lucky], held).changes == ()
    assert propose([lucky], held).left == ()
    assert only(propose([lucky, second], held)).new.value == 0.8  # type: ignore[union-attr]
    # the acceptance was about other cases
    other = run(kernel(result(0.6, basis=SEEN, properties=OTHER)))
    assert only(propose([other], held)).new.value == 0.75  # type: ignore[union-attr]


# -- accept -----------------------------------------------------------------------------------------------

KEY = "gelu/y/bfloat16/all"


def accepted(records: list[Run], held: Book, key: str = KEY, reason: str = "the device's exp2") -> ratchet.Change:
    return accept(key, reason, records, held, today=TODAY)


def test_a_loosening_keeps_its_reason_and_the_earlier_ones() -> None:
    entry = Acceptance("2026-01-01", 0.5, 0.6, "earlier")
    change = accepted([run(kernel(result(0.9)))], book(bound(0.6, accepted=(entry,))))
    assert change.kind == "looser"
    assert change.new is not None
    assert (change.new.value, change.new.reason) == (0.9, "the device's exp2")
    assert change.new.accepted == (entry, Acceptance(TODAY, 0.6, 0.9, "the device's exp2"))
    assert explained(change)
    assert judge([run(kernel(result(0.9)))], applied(book(), (change,))).exit_code == 0


def test_what_cannot_be_accepted() -> None:
    answers(Path(__file__).parent / "snapshots" / "accept.txt", globals())


# -- review -----------------------------------------------------------------------------------------------


def test_an_old_reason_does_not_cover_a_new_loosening() -> None:
    entry = Acceptance("2026-01-01", 0.5, 3.0, "earlier")
    [change] = review(book(bound(1.0, accepted=(entry,))), book(bound(3.0, accepted=(entry,))))
    assert not explained(change)
    rewritten = Acceptance("2026-01-01", 0.5, 9.0, "forged")
    [change] = review(book(bound(1.0, accepted=(entry,))), book(bound(9.0, accepted=(rewritten,))))
    assert not explained(change)
    # nor does a new reason that was written over the record of an old one
    added = Acceptance(TODAY, 1.0, 9.0, "new")
    [change] = review(book(bound(1.0, accepted=(entry,))), book(bound(9.0, accepted=(rewritten, added))))
    assert not explained(change)
    [change] = review(book(bound(1.0, accepted=(entry,))), book(bound(9.0, accepted=(entry, added))))
    assert explained(change)


def test_a_bound_that_drops_the_property_of_a_command_needs_approval() -> None:
    both = bound(1.0, properties={"run": HASH, "sweep": OTHER})
    for after in (bound(1.0), bound(0.9, properties={"sweep": OTHER}), bound(1.0, properties={"hunt": HASH})):
        [change] = review(book(both), book(after))
        assert (change.kind, explained(change), needs_approval([change])) == ("looser", False, [change])
    [change] = review(book(bound(1.0)), book(both))
    assert (change.kind, needs_approval([change])) == ("restated", [])


# -- bounds of something else ------------------------------------------------------------------------------


@pytest.mark.parametrize("now", [{"gate": "scaled"}, {"properties": OTHER}])
def test_a_bound_of_another_gate_or_other_cases_is_accepted_as_a_whole(now: dict[str, Any]) -> None:
    item, held = run(kernel(result(0.9, **now))), book(bound(0.6, basis=SEEN))
    assert propose([item], held).changes == ()
    change = accept("gelu/y/bfloat16/all", " noise decides now ", [item], held, today=TODAY)
    assert change.new is not None and change.new.accepted == (Acceptance(TODAY, 0.6, 0.9, "noise decides now"),)
    assert judge([item], applied(held, (change,))).exit_code == 0
    assert needs_approval([change]) == [change] and change.new.basis == ALL
