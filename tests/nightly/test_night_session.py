"""What the harness gets wrong in one kernel or one stage stays there, and never passes for a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.report.sample import passing
from verify import nightly
from verify.errors import IN_ERROR, SPENT
from verify.measure import session
from verify.measure.session import Session
from verify.nightly import Night, Work
from verify.records.record import KernelRun, LawRun, Run


class Fake:
    """A worker that measures nothing: what it answers for each kernel is given."""

    alive = True

    def __init__(self, replies: dict[str, dict[str, Any]]) -> None:
        self.replies = replies
        self.stopped = 0

    def ask(self, request: dict[str, Any], *, timeout: float, progress: Any = None) -> dict[str, Any]:
        if request["do"] == "environment":
            return {"backend": "interpreter", "environment": {}, "room": 4}
        if request["do"] == "list":
            return {"kernels": [{**about(name), "backends": ["interpreter"]} for name in self.replies]}
        return self.replies[request["target"].partition("::")[2]]

    def stop(self) -> None:
        self.stopped += 1


def about(name: str) -> dict[str, Any]:
    shared = {"op": "silu", "kind": "elementwise", "params": {}, "promise": "", "peer": False}
    return {"name": name, **shared, "lacking": [], "dtypes": ["float32"]}


def measured(name: str, **more: Any) -> dict[str, Any]:
    done = KernelRun(name, f"k.py::{name}", "silu", {}, "", "ok", passing().kernels[0].results, **more)
    return {"run": msgspec.to_builtins(done)}


def run(replies: dict[str, dict[str, Any]]) -> tuple[Run, list[str], Fake]:
    worker, finished = Fake(replies), []
    settings = Session(workers=[worker], finished=lambda target, done: finished.append(target))
    return session.run(["k.py"], settings, "verify run"), finished, worker


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ({"truth": "two routes"}, f"bad: {IN_ERROR}: two routes"),
        ({"internal": "ValueError: x"}, f"bad: {IN_ERROR}: verify itself failed: ValueError: x"),
        (measured("bad", notes=[f"float32: {IN_ERROR}: two routes"]), f"bad: float32: {IN_ERROR}: two routes"),
        (
            measured("bad", laws=[LawRun("shapes", "float32", "skipped", 0, f"{IN_ERROR}: x")]),
            f"bad: the law of shapes in float32: {IN_ERROR}: x",
        ),
    ],
)
def test_an_error_of_the_harness_in_one_kernel_leaves_the_others(reply: dict[str, Any], said: str) -> None:
    found, finished, _ = run({"bad": reply, "good": measured("good")})
    assert found.incomplete == [said]
    assert found.verdict == "incomplete", "exit code 3"
    assert finished == ["k.py::good"], "the next start tries the other again"


def test_workers_of_the_caller_go_on_unless_something_nobody_foresaw_happened() -> None:
    _, _, worker = run({"good": measured("good")})
    assert worker.stopped == 0
    broken = Fake({"bad": measured("bad")})
    broken.replies["bad"] = {"run": {"name": "bad"}}
    with pytest.raises(msgspec.ValidationError):
        session.run(["k.py"], Session(workers=[broken]), "verify run")
    assert broken.stopped == 1


KERNEL = """
import torch, verify

LIMITS = {"bfloat16": 0.501, "float16": 0.5, "float32": 2}

@verify.kernel(op="silu", dtypes=[*LIMITS], gradients=False, max_ulp=LIMITS)
def silu(x):
    return torch.nn.functional.silu(x)
"""


def test_a_kernel_measured_dtype_by_dtype_gives_the_record_of_the_whole(tmp_path: Path) -> None:
    source = tmp_path / "k.py"
    source.write_text(KERNEL, encoding="utf-8")
    whole = session.run([str(source)], Session(backend="interpreter", jobs=1), "verify run")
    known: dict[str, KernelRun] = {}

    def finished(part: str, done: KernelRun) -> None:
        known[part] = done

    split = session.run(
        [str(source)], Session(backend="interpreter", jobs=2, by_dtype=True, finished=finished), "verify run"
    )
    assert split.id == whole.id and split.verdict == whole.verdict == "fail"
    assert [*known] and {part.rpartition(" ")[2] for part in known} == {"bfloat16", "float16", "float32"}
    again = session.run([str(source)], Session(backend="interpreter", by_dtype=True, known=known.get), "verify run")
    assert again.id == whole.id


def test_time_that_runs_out_names_the_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(session.time, "monotonic", lambda: clock[0])
    asked = []

    class Slow(Fake):
        def ask(self, request: dict[str, Any], *, timeout: float, progress: Any = None) -> dict[str, Any]:
            if request["do"] == "list":
                return {"kernels": [{**about("good"), "dtypes": ["float16", "float64"], "backends": ["interpreter"]}]}
            if request["do"] == "measure":
                asked.append(request["dtypes"])
                clock[0] += 1.0
            return super().ask(request, timeout=timeout)

    worker = Slow({"good": measured("good")})
    done = session.run(["k.py"], Session(workers=[worker], by_dtype=True, deadline=1.0), "verify nightly")
    assert asked == [["float64"]], "what takes longest comes first"
    assert done.incomplete == [f"good: float16: not begun: {SPENT}"] and done.verdict == "incomplete"
    assert [kernel.status for kernel in done.kernels] == ["ok"]


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    monkeypatch.setattr(nightly, "_claim", lambda night: None)
    return Night(tmp_path / "night", ("k.py",))


def test_whatever_a_stage_runs_into_the_next_one_goes_on(night: Night) -> None:
    def broken(night: Night, until: float | None) -> Run:
        raise KeyError("lost")

    def units(night: Night, until: float | None) -> Run:
        return nightly._units(night, until, "units", {"a": passing, "b": lambda: fails()})

    def fails() -> Run:
        raise RuntimeError("no")

    works = (Work("broken", 1.0, broken), Work("units", 1.0, units))
    found = nightly._run(night, works, "verify nightly", 0.0)
    assert [stage.status for stage in found.stages] == ["incomplete", "incomplete"]
    assert found.incomplete == [
        f"units of b: {IN_ERROR}: RuntimeError: no",
        f"broken: {IN_ERROR}: KeyError: 'lost'",
    ]


def test_a_budget_keeps_time_for_the_report(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nightly.time, "monotonic", lambda: 100.0)
    ends: list[float | None] = []

    def note(night: Night, until: float | None) -> Run:
        ends.append(until)
        return passing()

    for budget in (100.0, 10_000.0, None):
        night.budget = budget
        nightly._run(night, (Work("a", 1.0, note),), "verify nightly", 100.0)
    assert ends == [198.0, 100.0 + 10_000.0 - 15.0, None]


def test_hunts_and_laws_share_their_workers_and_leave_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Counted(Fake):
        def __init__(self, backend: str | None) -> None:
            super().__init__({})
            made.append(self)

    monkeypatch.setattr(nightly, "Worker", Counted)
    monkeypatch.setattr(nightly, "_claim", lambda night: None)
    mine = Night(tmp_path / "night", ("k.py",))
    seen: list[list[Any]] = []

    def stage(night: Night, until: float | None) -> Run:
        with nightly._staff(night) as workers:
            seen.append(list(workers))
        return passing()

    nightly.run(mine, (Work("hunt", 1.0, stage), Work("laws", 1.0, stage)), "verify nightly")
    assert seen[0] == seen[1] and len(seen[0]) == 4
    assert len(made) == 5, "and the one that is asked what there is to do"
    assert all(worker.stopped == 1 for worker in made)
    assert not mine.staff and mine.clerk is None
