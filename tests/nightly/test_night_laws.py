"""The laws of a night, cut fine over many workers: order, rounds, budget, resumption, and errors that stay where they
happen."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import verify
from verify import backends, nightly
from verify.cases.strategies import Sizes, space
from verify.errors import IN_ERROR, SPENT, KernelError, TruthError, UsageError
from verify.laws import engine, schedule
from verify.laws.law import Law
from verify.measure import session
from verify.records.record import KernelRun
from verify.workers.process import WorkerDied, WorkerTimeout

LAWS = ["first", "second"]
KINDS = {"small": "elementwise", "large": "contraction"}
DTYPES = ["bfloat16", "float32"]
ENVIRONMENT = {"backend": "interpreter", "device": "cpu", "room": 1, "environment": {}}

Reply = Callable[[dict[str, Any]], dict[str, Any]]


def kept(request: dict[str, Any], **more: Any) -> dict[str, Any]:
    law = {"law": request["law"], "dtype": request["dtype"], "status": "ok", "cases": 10 ** request["round"]}
    return {"law": law | more, "healthy": True}


class Fake:
    """A worker that tries no law, and says what it was asked."""

    alive = True

    def __init__(self, reply: Reply = kept, rounds: int = 3) -> None:
        self.reply, self.rounds = reply, rounds
        self.asked: list[tuple[str, str, str, int]] = []
        self.timeouts: list[float] = []
        self.stopped = 0
        self.lock = threading.Lock()

    def ask(self, request: dict[str, Any], *, timeout: float, progress: Any = None) -> dict[str, Any]:
        if request["do"] == "environment":
            return ENVIRONMENT
        if request["do"] == "laws":
            return {"laws": LAWS, "rounds": self.rounds}
        assert request["do"] == "try law", "what the kernels declare was asked before"
        with self.lock:
            kernel = request["target"].partition("::")[2]
            self.asked.append((kernel, request["dtype"], request["law"], request["round"]))
            self.timeouts.append(timeout)
        return self.reply(request)

    def stop(self) -> None:
        self.stopped += 1


def declared(name: str) -> dict[str, Any]:
    about = {"name": name, "op": "silu", "kind": KINDS[name], "params": {}, "promise": "", "peer": False}
    return {**about, "backends": ["interpreter"], "dtypes": DTYPES, "lacking": []}


def tried(worker: Fake, workers: int = 1, **settings: Any) -> Any:
    judged = {f"k.py::{name}": declared(name) for name in ("small", "large")}
    return schedule.run(judged, [worker] * workers, schedule.Spread("nightly", **settings), "verify nightly: laws")


def only(name: str, law: str, reply: Reply) -> Reply:
    """`reply` for one law of one kernel in bfloat16; all others are kept."""

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        mine = request["target"].endswith(name) and request["law"] == law and request["dtype"] == "bfloat16"
        return reply(request) if mine else kept(request)

    return answer


def raising(error: Exception) -> Reply:
    def reply(request: dict[str, Any]) -> dict[str, Any]:
        raise error

    return reply


def test_every_law_has_its_first_round_before_any_has_its_second_and_the_longest_go_first() -> None:
    worker = Fake()
    tried(worker)
    subjects = [(kernel, dtype) for kernel in ("large", "small") for dtype in DTYPES]
    assert worker.asked[:8] == [(*subject, law, 0) for subject in subjects for law in LAWS]
    assert sorted(worker.asked) == sorted((*subject, law, n) for subject in subjects for law in LAWS for n in range(3))
    assert [number for *_, number in worker.asked] == [0] * 8 + [1] * 8 + [2] * 8


def test_a_worker_stays_with_a_kernel_in_a_dtype_and_two_work_at_two() -> None:
    """What is compiled for one law then serves the next, and nobody waits for what another compiles."""
    both, lock = threading.Barrier(2, timeout=20), threading.Lock()
    asked: dict[int, list[tuple[str, str]]] = {}

    def reply(request: dict[str, Any]) -> dict[str, Any]:
        with lock:
            mine = asked.setdefault(threading.get_ident(), [])
            mine.append((request["target"].partition("::")[2], request["dtype"]))
        both.wait()
        return kept(request)

    tried(Fake(reply, rounds=1), workers=2)
    left, right = asked.values()
    assert [left[0], left[2]] == [left[1], left[3]] and [right[0], right[2]] == [right[1], right[3]]
    assert {left[0], right[0]} == {("large", dtype) for dtype in DTYPES}
    assert {left[2], right[2]} == {("small", dtype) for dtype in DTYPES}


def test_every_law_of_every_kernel_is_in_the_record() -> None:
    done = tried(Fake())
    assert done.verdict == "pass" and not done.incomplete
    assert [kernel.name for kernel in done.kernels] == ["small", "large"], "as they were asked for"
    assert {law.cases for kernel in done.kernels for law in kernel.laws} == {111}
    assert [(law.law, law.dtype) for law in done.kernels[0].laws] == [(law, dtype) for law in LAWS for dtype in DTYPES]


def test_a_night_asks_once_what_its_kernels_declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [("peer", {"peer": True}), ("gpu", {"backends": ["cuda"]}), ("far", {"lacking": ["liger_kernel"]})]
    asked: list[str] = []

    class Clerk(Fake):
        def ask(self, request: dict[str, Any], *, timeout: float, progress: Any = None) -> dict[str, Any]:
            if request["do"] != "list":
                return super().ask(request, timeout=timeout)
            asked.append(request["target"])
            left_out = [{**declared("small"), "name": name, **more} for name, more in others]
            return {"kernels": [declared("small"), *left_out, declared("large")]}

    worker = Clerk()
    night = nightly.Night(tmp_path / "night", ("k.py",), clerk=worker, staff=[worker])
    done = nightly.laws(night, None)
    assert asked == ["k.py"]
    assert [kernel.target for kernel in done.kernels] == ["k.py::small", "k.py::large"]
    assert {kernel for kernel, *_ in worker.asked} == {"small", "large"}
    monkeypatch.setattr(nightly, "describe_target", lambda *_: [{**declared("small"), "peer": True}])
    with pytest.raises(nightly.NothingToDoError, match="no kernel is judged here"):
        nightly.laws(night, None)


def test_many_workers_do_what_one_does() -> None:
    alone, many = tried(Fake()), tried(worker := Fake(), workers=5)
    assert len(worker.asked) == len(set(worker.asked)) == 24
    assert alone.id == many.id


@pytest.mark.parametrize("answer", ["skipped", "truth", "internal"])
def test_an_error_of_the_harness_costs_one_law_in_one_dtype_and_the_run_is_incomplete(
    answer: str, tmp_path: Path
) -> None:
    replies: dict[str, Reply] = {
        "skipped": lambda request: kept(request, status="skipped", message=f"{IN_ERROR}: two routes"),
        "truth": lambda request: {"truth": "two routes"},
        "internal": lambda request: {"internal": "two routes"},
    }
    worker = Fake(only("large", "second", replies[answer]))
    done = tried(worker, journal=tmp_path / "laws.jsonl")
    assert done.incomplete == [f"large: the law of bfloat16 second: {IN_ERROR}: two routes"]
    assert done.verdict == "incomplete"
    assert [len(kernel.laws) for kernel in done.kernels] == [4, 3]
    assert worker.asked.count(("large", "bfloat16", "second", 0)) == 1
    mended = Fake()
    assert tried(mended, journal=tmp_path / "laws.jsonl").verdict == "pass"
    assert mended.asked == [("large", "bfloat16", "second", number) for number in range(3)], "the rest is known"


def test_a_broken_law_is_not_tried_again_and_the_others_are() -> None:
    worker = Fake(only("small", "first", lambda request: kept(request, status="broken", message="rule")))
    done = tried(worker)
    assert [kernel.status for kernel in done.kernels] == ["wrong", "ok"]
    assert worker.asked.count(("small", "bfloat16", "first", 1)) == 0
    assert len(worker.asked) == 22


def test_a_process_that_lost_its_gpu_is_replaced() -> None:
    worker = Fake(lambda request: kept(request, status="skipped", message="no") | {"healthy": False})
    tried(worker)
    assert worker.stopped == len(worker.asked) == 8, "a law that does not apply has one round"


def test_a_law_that_ends_the_process_costs_itself_and_a_kernel_that_always_does_is_given_up() -> None:
    once = tried(Fake(only("small", "first", raising(WorkerDied("SIGSEGV")))))
    assert once.kernels[0].status == "crashed"
    assert once.kernels[0].message == "bfloat16 first: SIGSEGV"
    assert len(once.kernels[0].laws) == 3
    always = Fake(lambda request: kept(request) if "large" in request["target"] else raising(WorkerDied("x"))(request))
    done = tried(always)
    assert sum(unit[0] == "small" for unit in always.asked) == schedule.GIVEN_UP
    assert "small: the law of float32 second: not begun: it failed 3 times" in done.incomplete
    assert done.kernels[1].status == "ok" and done.verdict == "fail"


def test_what_a_kernel_says_of_itself_is_its_error() -> None:
    done = tried(Fake(only("small", "first", lambda request: {"failure": "out of memory"})))
    assert (done.kernels[0].status, done.kernels[0].message) == ("error", "bfloat16 first: out of memory")


def test_what_the_time_does_not_reach_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(schedule.time, "monotonic", lambda: clock[0])

    def reply(request: dict[str, Any]) -> dict[str, Any]:
        clock[0] += 1.0
        return kept(request)

    worker = Fake(reply)
    done = tried(worker, until=6.0)
    assert len(worker.asked) == 6
    assert worker.timeouts == [6.0, 5.0, 4.0, 3.0, 2.0, 1.0], "no law may take longer than is left"
    assert done.incomplete == [
        f"small: the law of float32 first: not begun: {SPENT}",
        f"small: the law of float32 second: not begun: {SPENT}",
    ]
    assert done.verdict == "incomplete"
    clock[0] = 0.0
    whole = tried(Fake(reply), until=10.0)
    assert not whole.incomplete, "every law was tried"
    notes = [note for kernel in whole.kernels for note in kernel.notes]
    assert notes == [f"{count} of 4 laws had fewer cases than the profile draws: {SPENT}" for count in (4, 4)]


def test_a_law_that_the_end_of_the_budget_stops_is_late_and_one_that_hangs_is_a_timeout() -> None:
    slow = only("small", "first", raising(WorkerTimeout("late")))
    cut = tried(Fake(slow), until=schedule.time.monotonic() + 30.0, timeout=60.0)
    assert f"small: the law of bfloat16 first: not finished: {SPENT}" in cut.incomplete
    hung = tried(Fake(slow), until=schedule.time.monotonic() + 60.0, timeout=30.0)
    assert (hung.kernels[0].status, hung.kernels[0].message) == (
        "timeout",
        "bfloat16 first: no result within 30 s; stopped",
    )


def test_half_a_line_is_done_again_and_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "laws.jsonl"
    before = tried(Fake(), journal=path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    worker = Fake()
    after = tried(worker, journal=path)
    assert len(worker.asked) == 1 and after.id == before.id
    idle = Fake()
    assert tried(idle, journal=path).id == before.id and not idle.asked, "what was half a line is whole now"
    path.write_bytes(b"{}\n")
    with pytest.raises(UsageError, match="is damaged"):
        tried(Fake(), journal=path)


def test_an_error_that_nobody_foresaw_ends_the_stage_and_hangs_nobody() -> None:
    worker = Fake(raising(ValueError("never")))
    with pytest.raises(ValueError, match="never"):
        tried(worker, workers=3)
    assert worker.stopped >= 3, "whoever still asks is stopped"


def test_workers_that_are_stopped_are_no_crash_of_a_kernel(tmp_path: Path) -> None:
    """After Ctrl-C, or an error of another unit, what was still running is done again the next time."""
    begun, gone = threading.Event(), threading.Event()

    class Stopped(Fake):
        def stop(self) -> None:
            gone.set()

    def reply(request: dict[str, Any]) -> dict[str, Any]:
        if request["dtype"] == "float32":
            begun.set()
            assert gone.wait(10)
            raise WorkerDied("SIGKILL")
        assert begun.wait(10)
        raise ValueError("never")

    path = tmp_path / "laws.jsonl"
    with pytest.raises(ValueError, match="never"):
        tried(Stopped(reply), workers=2, journal=path)
    assert gone.is_set() and not path.exists()


# -- the worker's side ----------------------------------------------------------------------------------


@verify.kernel(op="silu", dtypes=["float32"])
def silu(x):
    return torch.nn.functional.silu(x)


SIZES = Sizes(elements=30, width=30, depth=8)
PROFILE = engine.Profile("trial", 3, {"interpreter": SIZES, "cuda": SIZES}, fixed=1)


def law_of(error: Exception) -> Law:
    def check(subject: Any, case: Any) -> None:
        raise error

    return Law("trial", "", lambda subject: space(subject.kernel, subject.dtype, sizes=subject.sizes), check)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TruthError("routes"), f"{IN_ERROR}: routes"),
        (RuntimeError("stride"), f"{IN_ERROR}: verify itself failed: RuntimeError: stride"),
    ],
)
def test_a_law_without_a_verdict_is_neither_kept_nor_broken(error: Exception, said: str) -> None:
    found = engine.try_law(law_of(error), silu, "float32", backends.select(), PROFILE, pinned=())
    assert (found.status, found.message) == ("skipped", said)
    with pytest.raises(type(error)):
        engine.run_law(law_of(error), silu, "float32", backends.select(), PROFILE, pinned=())
    one = KernelRun("k", "k.py::k", "silu", {}, "", "ok", [], laws=[found], notes=["plain", f"y: {IN_ERROR}: x"])
    assert session.errors_of(one) == [f"k: y: {IN_ERROR}: x", f"k: the law of trial in float32: {said}"]


def test_a_kernel_that_raises_breaks_the_law() -> None:
    found = engine.try_law(law_of(KernelError("no")), silu, "float32", backends.select(), PROFILE, pinned=())
    assert found.status == "broken"


def test_rounds_draw_other_cases_and_as_many_in_all() -> None:
    profile = engine.profile_named("nightly", 5)
    parts = engine.rounds(profile)
    assert sum(part.examples for part in parts) == profile.examples
    assert [part.fixed for part in parts] == [None, 0, 0]
    assert parts[0].seed == 5 and len({part.seed for part in parts}) == 3
    assert parts[0].examples <= profile.examples / 4, "the first round of everything has to fit a short night"
    quick = engine.profile_named("quick")
    assert engine.rounds(quick) == (quick,)
