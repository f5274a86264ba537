"""The laws of a night, a unit for each law, kernel and dtype: budget, resumption, contained errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import verify
from tests.workers.fake import FakeWorker, raising, texts
from verify import backends
from verify.cases.strategies import Sizes, space
from verify.declare.target import Declared, Target
from verify.errors import IN_ERROR, SPENT, InternalError, KernelError, TruthError
from verify.laws import engine, schedule
from verify.laws.law import Law
from verify.laws.requests import TryLaw
from verify.measure import session, source
from verify.records.part_store import PartStore
from verify.records.record import Gap, KernelRun, LawRun
from verify.workers.pool import Pool
from verify.workers.requests import Died, Late

LAWS = ["first", "second"]
KINDS: dict[str, Any] = {"small": "elementwise", "large": "contraction"}
DTYPES = ("bfloat16", "float32")

Reply = Callable[[TryLaw], LawRun]


def kept(request: TryLaw, status: Any = "ok", message: str = "", **more: Any) -> LawRun:
    return LawRun(request.law, request.dtype, status, 1, message, **more)


@pytest.fixture(autouse=True)
def two_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "remaining", lambda without: [law for law in LAWS if law not in without])


def asked(worker: FakeWorker) -> list[tuple[str, str, str]]:
    """Which laws it was asked to try."""
    assert all(isinstance(each, TryLaw) for each in worker.asked), "what the kernels declare was asked before"
    return [(kernel_of(each), each.dtype, each.law) for each in worker.asked]


def kernel_of(request: TryLaw) -> str:
    return str(Target.parse(request.target).kernel)


def declared(name: str) -> Declared:
    return Declared(f"k.py::{name}", name, "silu", KINDS[name], {}, "", ("interpreter",), DTYPES)


def tried(worker: FakeWorker, workers: int = 1, **settings: Any) -> Any:
    judged = [declared(name) for name in ("small", "large")]
    laws = schedule.LawSettings(profile="nightly", pool=Pool.of([worker] * workers), **settings)
    return schedule.run(judged, laws, "verify nightly: laws")


def only(name: str, law: str, reply: Reply) -> Reply:
    """`reply` for one law of one kernel in bfloat16; all others are kept."""

    def answer(request: TryLaw) -> LawRun:
        mine = kernel_of(request) == name and request.law == law and request.dtype == "bfloat16"
        return reply(request) if mine else kept(request)

    return answer


def test_a_law_that_is_left_out_is_not_tried_and_stands_in_the_record() -> None:
    worker = FakeWorker(kept)
    record = tried(worker, without=("second",))
    assert {law for _, _, law in asked(worker)} == {"first"}
    for kernel in record.kernels:
        assert [(law.law, law.dtype, law.status, law.message) for law in kernel.laws if law.law == "second"] == [
            ("second", dtype, "skipped", "left out by --without") for dtype in DTYPES
        ]
    assert record.incomplete == []


def test_every_law_of_every_kernel_is_in_the_record() -> None:
    done = tried(FakeWorker(kept))
    assert done.verdict == "pass" and not done.incomplete
    assert [kernel.name for kernel in done.kernels] == ["small", "large"], "as they were asked for"
    assert [(law.law, law.dtype) for law in done.kernels[0].laws] == [(law, dtype) for law in LAWS for dtype in DTYPES]


def test_many_workers_do_what_one_does() -> None:
    alone, many = tried(FakeWorker(kept)), tried(worker := FakeWorker(kept), workers=5)
    assert len(asked(worker)) == len(set(asked(worker))) == 8
    assert alone.id == many.id


@pytest.mark.parametrize("answer", ["skipped", "truth", "internal"])
def test_an_error_of_the_harness_costs_one_law_in_one_dtype_and_the_run_is_incomplete(
    answer: str, tmp_path: Path
) -> None:
    replies: dict[str, Reply] = {
        "skipped": lambda request: kept(request, "skipped", f"{IN_ERROR}: two routes", in_error=True),
        "truth": raising(TruthError("two routes")),
        "internal": raising(InternalError("two routes")),
    }
    worker = FakeWorker(only("large", "second", replies[answer]))
    done = tried(worker, kept=PartStore(tmp_path / "laws.parts"))
    said = "verify itself failed: two routes" if answer == "internal" else "two routes"
    text = f"large: the law of bfloat16 second: {IN_ERROR}: {said}"
    assert done.incomplete == [Gap("harness error", text, "k.py::large")]
    assert done.verdict == "incomplete"
    assert [len(kernel.laws) for kernel in done.kernels] == [4, 3]
    assert asked(worker).count(("large", "bfloat16", "second")) == 1
    mended = FakeWorker(kept)
    assert tried(mended, kept=PartStore(tmp_path / "laws.parts")).verdict == "pass"
    assert asked(mended) == [("large", "bfloat16", "second")], "the rest is known"


def test_a_broken_law_makes_its_kernel_wrong_and_no_other() -> None:
    done = tried(FakeWorker(only("small", "first", lambda request: kept(request, "broken", "rule"))))
    assert [kernel.status for kernel in done.kernels] == ["wrong", "ok"]


def test_a_law_that_ends_the_process_costs_itself_and_a_kernel_that_always_does_is_given_up() -> None:
    once = tried(FakeWorker(only("small", "first", raising(Died("SIGSEGV")))))
    assert once.kernels[0].status == "crashed"
    assert once.kernels[0].message == "bfloat16 first: SIGSEGV"
    assert len(once.kernels[0].laws) == 3
    always = FakeWorker(lambda request: kept(request) if kernel_of(request) == "large" else raising(Died("x"))(request))
    done = tried(always)
    assert sum(unit[0] == "small" for unit in asked(always)) == source.GIVEN_UP
    assert any(text.startswith("small: ") and text.endswith(": it failed 3 times") for text in texts(done))
    assert done.kernels[1].status == "ok" and done.verdict == "fail"


def test_what_the_time_does_not_reach_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def reply(request: TryLaw) -> LawRun:
        clock[0] += 1.0
        return kept(request)

    worker = FakeWorker(reply)
    done = tried(worker, until=6.0)
    assert [each.seconds for each in worker.asked] == [6 / 8, 5 / 7, 4 / 6, 3 / 5, 2 / 4, 1 / 3], (
        "each has its share of the time that is left"
    )
    assert worker.timeouts == [6.0, 5.0, 4.0, 3.0, 2.0, 1.0], "no law may take longer than is left"
    assert {text.partition(":")[0] for text in texts(done)} == {"small"}, "the longest come first"
    assert [text.rpartition(": not begun: ")[2] for text in texts(done)] == [SPENT] * 2
    assert done.verdict == "incomplete" and {gap.kind for gap in done.incomplete} == {"out of time"}


def test_a_law_that_the_end_of_the_budget_stops_is_late_and_one_that_hangs_is_a_timeout() -> None:
    slow = only("small", "first", raising(Late("late")))
    cut = tried(FakeWorker(slow), until=time.monotonic() + 30.0, timeout=60.0)
    assert f"small: the law of bfloat16 first: not finished: {SPENT}" in texts(cut)
    hung = tried(FakeWorker(slow), until=time.monotonic() + 60.0, timeout=30.0)
    assert (hung.kernels[0].status, hung.kernels[0].message) == (
        "timeout",
        "bfloat16 first: no result within 30 s; stopped",
    )


def test_workers_that_are_stopped_are_no_crash_of_a_kernel(tmp_path: Path) -> None:
    """After Ctrl-C, or an error of another unit, what was still running is done again the next time."""
    begun, gone = threading.Event(), threading.Event()

    class Stopped(FakeWorker):
        def stop(self) -> None:
            gone.set()

    def reply(request: TryLaw) -> LawRun:
        if kernel_of(request) == "small":
            begun.set()
            assert gone.wait(10)
            raise Died("SIGKILL")
        assert begun.wait(10)
        raise ValueError("never")

    path = tmp_path / "laws.parts"
    with pytest.raises(ValueError, match="never"):
        tried(Stopped(reply), workers=2, kept=PartStore(path))
    assert gone.is_set() and not path.exists()


# -- the worker's side ----------------------------------------------------------------------------------


@verify.kernel(op="silu", dtypes=["float32"])
def silu(x):
    return torch.nn.functional.silu(x)


SIZES = Sizes(elements=30, width=30, depth=8)
PROFILE = engine.Profile("trial", 3, {"small": SIZES, "large": SIZES}, fixed=1)


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
    found = engine.try_law(law_of(error), silu, "float32", backends.select(), PROFILE)
    assert (found.status, found.message) == ("skipped", said)
    with pytest.raises(type(error)):
        engine.run_law(law_of(error), silu, "float32", backends.select(), PROFILE)
    one = KernelRun("k", "k.py::k", "silu", {}, "", "ok", [], laws=[found], notes=["plain"])
    assert session.gaps_of(one) == [Gap("harness error", f"k: the law of trial in float32: {said}", "k.py::k")]


def test_a_kernel_that_raises_breaks_the_law() -> None:
    found = engine.try_law(law_of(KernelError("no")), silu, "float32", backends.select(), PROFILE)
    assert found.status == "broken"
