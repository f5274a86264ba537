"""The truth table of the gate: every status, and that nothing which cannot be judged ever passes."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.records.bounds.gate_records import ALL, HASH, PROVEN, SEEN, book, bound, figures, kernel, result, run
from verify.cases import classes
from verify.errors import UsageError
from verify.records import files, readings, record
from verify.records.bounds import changes as ratchet
from verify.records.bounds.verdict import Verdict, judge
from verify.records.record import Basis, Gap, KernelRun, RegimeFigures, Result, Run, Stage

nan, inf = math.nan, math.inf
OTHER = "bb11bb11bb11"

BROKEN = Gap("not importable", "broken.py fails on import")


def statuses(verdict: Verdict) -> dict[str, str]:
    return {str(row.key): row.status for row in verdict.rows}


def one(found: Verdict) -> tuple[str, int]:
    [row] = found.rows
    return row.status, found.exit_code


# -- one reading, one bound: the table is written by hand, cell by cell -----------------------------------

# what the record says about the key, and the status under a bound of 1.0 for this machine, one for another, and none
TABLE: dict[str, tuple[dict[str, Any], str]] = {
    "below": ({"value": 0.98}, "ok incomparable new"),
    "equal": ({"value": 1.0}, "ok incomparable new"),
    "far below": ({"value": 0.6}, "improved incomparable new"),
    "above": ({"value": math.nextafter(1.0, 2.0)}, "breached incomparable new"),
    "zero": ({"value": 0.0}, "improved incomparable new"),
    "nan": ({"value": nan}, "nonfinite nonfinite nonfinite"),
    "inf": ({"value": inf}, "nonfinite nonfinite nonfinite"),
    "negative": ({"value": -1.0}, "incomparable incomparable incomparable"),
    "other question": ({"value": 0.98, "properties": OTHER}, "incomparable incomparable new"),
    "other question, nan": ({"value": nan, "properties": OTHER}, "nonfinite nonfinite nonfinite"),
    "no hash": ({"value": 0.98, "properties": ""}, "incomparable incomparable incomparable"),
    "bad hash": ({"value": 0.98, "properties": "<script>"}, "incomparable incomparable incomparable"),
    "scaled": ({"value": 0.98, "gate": "scaled"}, "incomparable incomparable new"),
    "nothing measured": ({"value": 0.98, "basis": Basis("observed", 0, 0)}, "incomparable incomparable incomparable"),
    "vacuous": ({"value": 0.98, "status": "vacuous"}, "vacuous incomparable vacuous"),
    "undecided": ({"value": 0.98, "status": "undecided"}, "undecided incomparable undecided"),
    "vacuous, above": ({"value": 1.1, "status": "vacuous"}, "breached incomparable vacuous"),
    "absent": ({}, "unused - -"),
}
CODE = {"ok": 0, "improved": 0} | dict.fromkeys(("breached", "nonfinite", "crashed", "gone"), 1)
CODE |= dict.fromkeys(("new", "unused", "incomparable", "vacuous", "undecided"), 3)
BOOKS = (book(bound(1.0)), book(bound(1.0, arch="sm_80")), book())


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("name", TABLE)
def test_truth_table(name: str, place: int) -> None:
    told, expected = TABLE[name][0], TABLE[name][1].split()[place]
    found = judge([run(kernel(*([result(**told)] if told else [])))], BOOKS[place])
    if expected == "-":
        assert (found.rows, found.exit_code) == ((), 3)  # nothing to judge is no pass
        return
    assert one(found) == (expected, CODE[expected])


@pytest.mark.parametrize("status", ["error", "crashed", "timeout"])
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("name", TABLE)
def test_a_kernel_that_fails_never_passes_whatever_it_measured_before(status: str, place: int, name: str) -> None:
    told, expected = TABLE[name]
    found = judge([run(kernel(*([result(**told)] if told else []), status=status, message="boom"))], BOOKS[place])
    assert found.exit_code == 1
    [row] = [row for row in found.rows if row.status == "crashed"]
    assert row.reason.endswith(": boom")
    # a figure that was measured before the failure is still judged
    if told:
        assert {row.status for row in found.rows if row.readings} == {expected.split()[place]}


# -- what is read out of a record -------------------------------------------------------------------------


def test_the_upper_end_of_an_interval_is_judged() -> None:
    item = result(0.9)
    [part] = item.regimes
    open_ = msgspec.structs.replace(part, figures=figures(0.9, max_upper=1.1))
    found = judge([run(kernel(msgspec.structs.replace(item, regimes=[open_])))], book(bound(1.0)))
    assert one(found) == ("breached", 1)


def test_a_lower_upper_end_does_not_hide_the_maximum() -> None:
    item = result(0.9)
    [part] = item.regimes
    for low, high in ((5.0, 0.1), (nan, 0.1), (0.1, nan)):
        forged = figures(low, max_upper=record.number(high))
        changed = msgspec.structs.replace(item, regimes=[msgspec.structs.replace(part, figures=forged)])
        assert judge([run(kernel(changed))], book(bound(1.0))).exit_code == 1


def test_a_scaled_gate_without_a_scaled_figure_fails() -> None:
    item = msgspec.structs.replace(result(0.9), gate="scaled")
    assert one(judge([run(kernel(item))], book(bound(1.0, gate="scaled")))) == ("nonfinite", 1)


@pytest.mark.parametrize("total", [nan, inf, 7.0])
def test_what_lies_in_no_regime_is_not_lost(total: float) -> None:
    item = msgspec.structs.replace(result(positive=0.4, negative=0.4), figures=figures(total))
    bounds_ = book(bound(0.5, regime="positive"), bound(0.5, regime="negative"))
    found = judge([run(kernel(item))], bounds_)
    assert statuses(found)["gelu/y/bfloat16/all"] == ("new" if math.isfinite(total) else "nonfinite")
    assert found.exit_code != 0


def test_infinite_and_nan_inputs_are_a_regime_of_their_own() -> None:
    assert readings.NONFINITE == classes.NONFINITE
    part = RegimeFigures(readings.NONFINITE, None, None, figures(0.0, nonfinite=1))
    item = msgspec.structs.replace(result(positive=0.4), regimes=[*result(positive=0.4).regimes, part])
    bounds_ = book(bound(0.5, regime="positive"), bound(0.5, regime=readings.NONFINITE))
    assert statuses(judge([run(kernel(item))], bounds_)) == {
        "gelu/y/bfloat16/positive": "ok",
        "gelu/y/bfloat16/infinite or NaN input": "nonfinite",
    }
    # elsewhere an infinity next to the largest number is one ULP off, by the policy on overflow, and counts as such
    near = msgspec.structs.replace(result(1.0), regimes=[RegimeFigures("all", None, None, figures(1.0, nonfinite=1))])
    assert one(judge([run(kernel(near))], book(bound(1.0)))) == ("ok", 0)


def test_the_machine_decides_which_bounds_apply() -> None:
    bounds_ = book(bound(1.0), bound(1.55, arch="interpreter"))
    item = kernel(result(1.5))
    assert one(judge([run(item)], bounds_)) == ("breached", 1)
    assert one(judge([run(item, arch="interpreter")], bounds_)) == ("ok", 0)
    for environment in ({}, {"arch": "absent"}, {"arch": "interpreter"}, {"arch": "../sm_90"}, {"arch": 90}):
        unknown = msgspec.structs.replace(run(item), environment=environment)
        assert one(judge([unknown], bounds_)) == ("incomparable", 3), environment


# -- several readings of one key --------------------------------------------------------------------------


def test_all_readings_of_a_key_are_judged_and_the_worst_decides() -> None:
    seen = result(0.9, basis=SEEN)
    swept = result(0.97, source="sweep", properties=OTHER)
    hunted = result(1.2, basis=SEEN, source="hunt", properties=OTHER)
    asked = {"run": HASH, "sweep": OTHER, "hunt": OTHER}
    bounds_ = book(bound(1.0, properties=asked))
    found = judge([run(kernel(seen)), run(kernel(swept)), run(kernel(hunted))], bounds_)
    assert one(found) == ("breached", 1)
    [row] = found.rows
    assert row.leading is not None
    assert (row.leading.source, row.leading.value, len(row.readings)) == ("hunt", 1.2, 3)
    assert one(judge([run(kernel(seen, swept))], bounds_)) == ("ok", 0)


@pytest.mark.parametrize("bad", ["nan", "inf", "above", "other question", "no hash", "scaled"])
def test_one_bad_reading_among_good_ones_is_enough(bad: str) -> None:
    told, expected = TABLE[bad][0], TABLE[bad][1].split()[0]
    for items in ([result(0.98), result(**told)], [result(**told), result(0.98)]):
        assert one(judge([run(kernel(item)) for item in items], BOOKS[0])) == (expected, CODE[expected])


def test_a_bound_that_names_no_property_of_a_command_does_not_pass_what_it_measured() -> None:
    swept = result(0.98, source="sweep", properties=OTHER)
    found = judge([run(kernel(swept))], BOOKS[0])
    assert one(found) == ("incomparable", 3)
    assert found.rows[0].reason == "the bound has the property of a run, and none of a sweep"
    other = judge([run(kernel(result(0.98)))], book(bound(1.0, properties={"hunt": OTHER, "sweep": OTHER})))
    assert one(other) == ("incomparable", 3)
    assert " of a hunt and a sweep, and none of a run" in other.rows[0].reason
    # a promise is about the key: what is beyond it is beyond it whoever measured
    assert one(judge([run(kernel(result(1.1, source="sweep", properties=OTHER)))], BOOKS[0])) == ("breached", 1)


def test_only_a_measurement_that_is_as_strong_makes_a_bound_look_loose() -> None:
    for bound_basis, seen_basis, expected in (
        (ALL, ALL, "improved"),
        (ALL, PROVEN, "ok"),
        (ALL, SEEN, "ok"),
        (PROVEN, SEEN, "ok"),
        (PROVEN, ALL, "improved"),
        (SEEN, SEEN, "improved"),
        (SEEN, Basis("observed", SEEN.n - 1, 0), "ok"),
        (SEEN, PROVEN, "improved"),
    ):
        found = judge([run(kernel(result(0.6, basis=seen_basis)))], book(bound(1.0, basis=bound_basis)))
        assert one(found) == (expected, 0), (bound_basis, seen_basis)


# -- selections, peers, what did not happen ---------------------------------------------------------------


def test_a_partial_selection_leaves_other_bounds_unused_or_out_but_never_drops_them() -> None:
    bounds_ = book(bound(1.0), bound(1.0, kernel="silu"), bound(1.0, dtype="float16"))
    found = judge([run(kernel(result(0.98)))], bounds_)
    assert statuses(found) == {
        "gelu/y/bfloat16/all": "ok",
        "gelu/y/float16/all": "unused",
        "silu/y/bfloat16/all": "unused",
    }
    assert found.exit_code == 3
    assert judge([run(kernel(result(0.98)))], bounds_, kernels=["gelu"]).count("unused") == 1
    assert judge([run(kernel(result(0.98)))], bounds_, kernels=["silu"]).exit_code == 3
    assert len(bounds_.bounds) == 3
    with pytest.raises(UsageError, match="no record and no bound has a kernel 'gelo'; known: gelu, silu"):
        judge([run(kernel(result(0.98)))], bounds_, kernels=["gelo"])


def test_a_night_of_chosen_stages_is_asked_for_the_bounds_that_they_measure() -> None:
    hunted = bound(1.0, dtype="float16", properties={"hunt": HASH})
    swept = bound(1.0, dtype="float32", properties={"sweep": HASH})
    both = bound(1.0, dtype="float64", properties={"hunt": HASH, "run": HASH})

    def night(*names: str) -> Run:
        return msgspec.structs.replace(run(kernel(result(0.98))), stages=[Stage(name, "ok") for name in names])

    asked = judge([night("accuracy")], book(bound(1.0), hunted, swept))
    assert one(asked) == ("ok", 0)
    [note] = asked.notes
    assert note.startswith("2 bounds are not asked for: the night was asked for accuracy,")
    assert judge([night("accuracy")], book(bound(1.0), both)).count("unused") == 1
    assert judge([night("accuracy", "hunt")], book(bound(1.0), hunted, swept)).count("unused") == 1
    assert judge([night("accuracy"), run(kernel(result(0.98)))], book(bound(1.0), hunted)).count("unused") == 1
    assert judge([run(stages=[Stage("bench", "ok")])], book(hunted)).exit_code == 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": "skipped", "message": "declared for cuda", "results": []}, "was skipped: declared for cuda"),
        ({"peer": True}, "declared a peer, and peers are not judged"),
        ({"name": "other", "target": "a.py::other"}, "the records do not have this kernel"),
    ],
)
def test_a_kernel_that_steps_aside_leaves_its_bounds_unused(changes: dict[str, Any], reason: str) -> None:
    item = msgspec.structs.replace(kernel(result(nan if "peer" in changes else 0.9)), **changes)
    found = judge([run(item)], BOOKS[0])
    [row] = [row for row in found.rows if row.bound is not None]
    assert (row.status, found.exit_code) == ("unused", 3)
    assert reason in row.reason


def test_a_peer_that_fails_or_returns_nan_is_not_judged() -> None:
    peers = (
        kernel(result(nan), name="torch", peer=True),
        kernel(name="other", peer=True, status="crashed", message="x"),
    )
    found = judge(
        [run(kernel(result(0.98)), *peers, incomplete=[Gap("crashed", "other: x", peers[1].target)])], BOOKS[0]
    )
    assert one(found) == ("ok", 0)


def test_parts_of_a_run_that_did_not_happen_make_it_incomplete() -> None:
    found = judge([run(kernel(result(0.98)), incomplete=[BROKEN])], BOOKS[0])
    assert (found.exit_code, found.missing) == (3, ("broken.py fails on import",))


def test_nothing_at_all_does_not_pass() -> None:
    assert judge([], book()).exit_code == 3
    assert judge([run()], book()).exit_code == 3
    assert judge([run()], BOOKS[0]).exit_code == 3


def test_two_kernels_of_one_run_cannot_share_a_name() -> None:
    pair = (kernel(result(0.9)), kernel(result(nan), target="b.py::gelu"))
    with pytest.raises(UsageError, match="two kernels are named 'gelu': accuracy.py::gelu and b.py::gelu"):
        judge([run(*pair)], BOOKS[0])
    peer = msgspec.structs.replace(pair[1], peer=True)  # a peer has no bounds, so its name is free
    assert one(judge([run(pair[0], peer)], book(bound(0.9)))) == ("ok", 0)


def test_broken_laws_are_told_and_left_to_the_run() -> None:
    law = record.LawRun("determinism", "bfloat16", "broken", 3)
    found = judge([run(kernel(result(0.98), status="wrong", laws=[law]))], BOOKS[0])
    assert found.exit_code == 0
    assert found.notes == ("gelu breaks laws, which `verify run` judges and bounds do not: determinism",)


# -- whatever arrives -------------------------------------------------------------------------------------

ERRORS = st.sampled_from([0.0, 0.5, 0.98, 1.0, 1.0000001, 7.0, 1e300, inf, nan, -1.0])


@st.composite
def any_kernel(draw: st.DrawFn) -> KernelRun:
    results = draw(
        st.lists(
            st.builds(
                result,
                ERRORS,
                output=st.sampled_from(["y", "dx", "<b>"]),
                dtype=st.sampled_from(["bfloat16", "float16"]),
                basis=st.sampled_from([ALL, SEEN, PROVEN, Basis("observed", 0, 0)]),
                gate=st.sampled_from(["plain", "scaled"]),
                source=st.sampled_from(["run", "sweep", "hunt"]),
                properties=st.sampled_from([HASH, OTHER, ""]),
            ),
            max_size=3,
        )
    )
    return kernel(
        *results,
        name=draw(st.sampled_from(["gelu", "silu"])),
        target="accuracy.py::k",
        status=draw(st.sampled_from(["ok", "wrong", "error", "crashed", "timeout", "skipped"])),
        peer=draw(st.sampled_from([False, False, True])),
        message=draw(st.sampled_from(["", "boom"])),
    )


RUNS = st.lists(
    st.builds(run, any_kernel(), any_kernel(), arch=st.sampled_from(["sm_90", "sm_80", "interpreter", "absent"])),
    max_size=3,
)
BOUNDS = st.lists(
    st.builds(
        bound,
        st.sampled_from([0.5, 1.0, 2.0]),
        kernel=st.sampled_from(["gelu", "silu"]),
        output=st.sampled_from(["y", "dx"]),
        dtype=st.sampled_from(["bfloat16", "float16"]),
        arch=st.sampled_from(["sm_90", "interpreter"]),
        gate=st.sampled_from(["plain", "scaled"]),
        properties=st.sampled_from([{"run": HASH}, {"sweep": HASH, "run": OTHER}]),
    ),
    max_size=6,
)


@settings(max_examples=100, deadline=None)
@given(RUNS, BOUNDS)
def test_a_pass_means_that_every_figure_and_every_bound_was_matched(runs: list[Run], given_: list[Any]) -> None:
    """The meaning of exit code 0, said a second time without the gate's code."""
    bounds_ = book(*given_)
    before = dict(bounds_.bounds)
    found = judge(runs, bounds_)
    assert bounds_.bounds == before
    judged = [(item, each) for item in runs for each in item.kernels if not each.peer]
    arches = {"interpreter" if item.backend == "interpreter" else item.environment["arch"] for item in runs}
    if found.exit_code == 0:
        measured = set()
        for item, each in judged:
            assert each.status not in ("error", "crashed", "timeout")
            for figure in each.results:
                arch = "interpreter" if item.backend == "interpreter" else item.environment["arch"]
                [promise] = [
                    one
                    for one in given_[::-1]
                    if (one.key.arch, one.key.kernel, one.key.output, one.key.dtype)
                    == (arch, each.name, figure.output, figure.dtype)
                ][:1]
                value = figure.figures.max_ulp if figure.gate == "plain" else figure.figures.scaled_max
                assert 0 <= float(value) <= promise.value  # type: ignore[arg-type]
                assert promise.properties.get(figure.source, figure.properties) == figure.properties != ""
                assert promise.gate == figure.gate
                measured.add(promise.key)
        assert measured
        assert {key for key in bounds_.bounds if key.arch in arches} == measured
    # and whatever the verdict: every bound of these machines has exactly one row
    rows = [row.key for row in found.rows if row.bound is not None]
    assert sorted(rows) == sorted(key for key in bounds_.bounds if key.arch in arches)
    proposal = ratchet.propose(runs, bounds_)
    assert bounds_.bounds == before
    for change in proposal.changes:
        assert change.new is not None
        assert change.old is None or change.new.value <= change.old.value
        assert 0.5 <= change.new.value < inf


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_record_is_refused_or_judged_but_never_passes_by_its_damage(data: st.DataObject) -> None:
    """Flips, cuts and edits of the file: a clear refusal, or a verdict on what the bytes now say."""
    whole = files.encode(run(kernel(result(7.0))))  # a breach of the bound
    place = data.draw(st.integers(0, len(whole) - 1))
    damage = data.draw(st.sampled_from(["cut", "flip", "drop"]))
    if damage == "cut":
        broken = whole[:place]
    elif damage == "flip":
        broken = whole[:place] + bytes([whole[place] ^ (1 << data.draw(st.integers(0, 7)))]) + whole[place + 1 :]
    else:
        broken = whole[:place] + whole[place + data.draw(st.integers(1, 12)) :]
    try:
        found = files.decode(broken, source="run.json")
        verdict = judge([found], BOOKS[0])
    except UsageError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert "run.json" in refusal or "record" in refusal
        return
    if verdict.exit_code == 0:
        # only when the figures themselves, every one of them, now say so: 7 to 0, 1 or the like by one flipped bit
        [each] = found.kernels
        assert all(_says_small(item) for item in each.results)


def _says_small(item: Result) -> bool:
    figure = item.regimes[0].figures
    return all(0 <= float(value) <= 1.0 for value in (figure.max_ulp, figure.max_upper, item.figures.max_ulp))
