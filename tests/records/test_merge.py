"""Merged records hold everything of each, once, and refuse what does not belong together."""

from __future__ import annotations

import msgspec
import pytest

from tests.records.bounds.gate_records import book, kernel, result
from tests.records.bounds.gate_records import run as of
from tests.report.sample import sample
from verify.errors import UsageError
from verify.records.bounds import waivers
from verify.records.files import decode, encode
from verify.records.merge import identity, merge, sealed, shards, together
from verify.records.record import Basis, Gap, KernelRun, LawRun, Origin, Printed, SideEffect, Speed, Stage, Unmeasured


def test_results_stand_side_by_side_and_the_worst_status_counts() -> None:
    run = sample()
    ok = next(item for item in run.kernels if item.status == "ok")
    law = LawRun(law="batch", dtype="float32", status="broken", cases=3, message="a row depends on its neighbours")
    second = msgspec.structs.replace(ok, status="wrong", results=[], laws=[law], message="", notes=["seen twice"])
    other = msgspec.structs.replace(run, kernels=[second], incomplete=[Gap("not possible", "no time")], seconds=2.0)
    laws = Stage(name="laws", status="ok", seconds=5.0)
    merged = merge([run, other], command="verify nightly", profile="nightly", stages=[laws])
    found = next(item for item in merged.kernels if item.target == ok.target)
    assert found.status == "wrong"
    assert found.results == ok.results
    assert found.laws == [*ok.laws, law]
    assert "seen twice" in found.notes
    assert len(merged.kernels) == len(run.kernels)
    assert merged.incomplete == [*run.incomplete, Gap("not possible", "no time")]
    assert merged.seconds == 5.0  # all starts of the stages
    assert merge([run, other], command="verify", profile="nightly").seconds == round(run.seconds + 2.0, 3)
    assert merged.id == identity(merged) != run.id


def test_nothing_that_one_of_two_parts_of_a_kernel_has_is_lost() -> None:
    """What a second dtype crashed on was: of an mLSTM whose compiler aborts at 64 columns nobody learned which."""
    bare = KernelRun("k", "k.py::k", "gelu", {}, "float32", "ok", [])
    full = msgspec.structs.replace(
        bare,
        results=[result()],
        message="said",
        hint="next",
        status="crashed",
        laws=[LawRun(law="batch", dtype="float32", status="kept", cases=3)],
        notes=["a note"],
        seconds=1.0,
        speed=[Speed("float32", "forward", (4,), 1.0, 1.0)],
        unrepeatable="differs",
        left=[SideEffect("environment", "call", "changed")],
        printed=Printed(3, "abc"),
        unmeasured=[Unmeasured("crashed", "bfloat16", [(2, 64)], 1, 2, "died", Origin("k.py::k", "{}", "y"))],
        gaps=[Gap("crashed", "died", "k.py::k")],
        sizes={"n": 7},
        peak={"host": 7},
        definition="def k(x): ...",
    )
    filled = {name for name in full.__struct_fields__ if getattr(full, name) != getattr(bare, name)}
    assert filled | {"name", "target", "op", "params", "promise", "peer"} == set(full.__struct_fields__)
    assert together(bare, full) == together(full, bare) == full


def test_merging_one_record_changes_only_what_it_is_called() -> None:
    run = sample()
    merged = merge([run], command=run.command, profile=run.profile)
    assert merged.kernels == run.kernels
    assert merged.id == identity(run)


def test_what_does_not_belong_together() -> None:
    run = sample()
    with pytest.raises(UsageError, match="at least one record"):
        merge([], command="", profile="")
    with pytest.raises(UsageError, match="one backend merge; backend is .* and 'other'"):
        merge([run, msgspec.structs.replace(run, backend="other")], command="", profile="")
    moved = msgspec.structs.replace(run, environment={**run.environment, "torch": "0.1"})
    with pytest.raises(UsageError, match="one torch merge; torch is .* and '0.1'"):
        merge([run, moved], command="", profile="")
    redeclared = msgspec.structs.replace(
        run, kernels=[msgspec.structs.replace(item, op="other") for item in run.kernels[:1]]
    )
    with pytest.raises(UsageError, match="declared differently in two records: op is"):
        merge([run, redeclared], command="", profile="")


def test_a_kernel_whose_figures_contradict_each_other_has_no_verdict() -> None:
    """The harness is in error then; what was measured of the others stands."""
    good, doubtful = kernel(result(0.5)), kernel(result(0.5), name="doubtful")
    wrong = msgspec.structs.replace(doubtful.results[0], basis=Basis("exhaustive", 1))
    made = sealed(of(good, msgspec.structs.replace(doubtful, results=[wrong])), 1.0)
    assert [item.status for item in made.kernels] == ["ok", "skipped"] and made.kernels[1].results == []
    [gap] = made.incomplete
    assert (gap.kind, gap.target, made.verdict) == ("harness error", "accuracy.py::doubtful", "incomplete")
    assert gap.text.endswith(" - at `.results[0].basis.n`")
    assert decode(encode(made)) == made


def test_shards_of_one_command_become_one_record_and_a_result_measured_twice_is_refused() -> None:
    first, second = (
        of(kernel(result(0.5, dtype=dtype)), kernel(result(0.5), name=dtype)) for dtype in ("float16", "bfloat16")
    )
    found = shards([first, second], "verify report a.json b.json --merge")
    assert decode(encode(found)) == found and found.verdict == "pass"
    assert {item.name: [one.dtype for one in item.results] for item in found.kernels} == {
        "gelu": ["float16", "bfloat16"],
        "float16": ["bfloat16"],
        "bfloat16": ["bfloat16"],
    }
    with pytest.raises(
        UsageError, match="each result is in one of the records that merge; accuracy.py::gelu y float16 is in two"
    ):
        shards([first, first], "")
    for field, values in (("seed", "0 and 9"), ("profile", "'default' and 'nightly'")):
        other = msgspec.structs.replace(second, **{field: 9 if field == "seed" else "nightly"})
        with pytest.raises(UsageError, match=f"records of one {field} merge; {field} is {values}"):
            shards([first, other], "")


def test_records_of_two_trees_are_not_judged_together() -> None:
    first = of(kernel(result()))
    names = {"commit": "d" * 40, "torch": "0.1", "gpu": "another"}
    other = of(kernel(result(), name="silu"), environment={**first.environment, **names})
    with pytest.raises(UsageError, match=r"records of one commit, torch are judged together; commit is .* torch is "):
        waivers.judge([first, other], book())
    seeded = of(kernel(result(), name="silu"), seed=7)
    with pytest.raises(UsageError, match="records of one seed are judged together; seed is 0 and 7"):
        waivers.judge([first, seeded], book())
    # a hunt has a seed of its own, and another machine its own versions
    hunt = of(kernel(result(source="hunt"), name="silu"), seed=7)
    elsewhere = of(kernel(result()), arch="sm_80", environment={"arch": "sm_80", "torch": "0.1"})
    assert len(waivers.judge([first, hunt, elsewhere], book()).rows) == 3
