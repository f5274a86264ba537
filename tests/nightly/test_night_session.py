"""What the harness gets wrong in one kernel or one stage stays there, and never passes for a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.here import Here
from tests.report.sample import passing
from tests.workers.fake import FakeWorker
from verify.declare.requests import Listed, ListKernels
from verify.declare.target import Declared, Target
from verify.errors import IN_ERROR, SPENT, InternalError, TruthError
from verify.measure import session
from verify.measure.requests import Measure
from verify.measure.session import Session
from verify.records.part_store import PartStore
from verify.records.record import Gap, KernelRun, LawRun, Run
from verify.workers import process
from verify.workers.pool import Pool


def fake(replies: dict[str, Any]) -> FakeWorker:
    """A worker that measures nothing: what it answers for each kernel is given."""

    def answer(request: Any) -> Any:
        if isinstance(request, ListKernels):
            return Listed("", [declared(name) for name in replies])
        assert isinstance(request, Measure)
        return replies[str(Target.parse(request.target).kernel)]

    return FakeWorker(answer)


def declared(name: str, dtypes: tuple[str, ...] = ("float32",)) -> Declared:
    return Declared(f"k.py::{name}", name, "silu", "elementwise", {}, "", ("interpreter",), dtypes)


def measured(name: str, **more: Any) -> KernelRun:
    return KernelRun(name, f"k.py::{name}", "silu", {}, "", "ok", passing().kernels[0].results, **more)


class Remembered(PartStore):
    """Parts that lie in memory."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))
        self.parts: dict[str, Any] = {}

    def known(self, name: str, kind: Any) -> Any:
        return self.parts.get(name)

    def keep(self, name: str, done: KernelRun) -> None:
        self.parts[name] = done


def run(replies: dict[str, Any]) -> tuple[Run, list[str], FakeWorker]:
    worker, kept = fake(replies), Remembered()
    found = session.run(["k.py"], Session(pool=Pool.of([worker]), kept=kept), "verify run")
    return found, list(kept.parts), worker


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (TruthError("two routes"), f"bad: {IN_ERROR}: two routes"),
        (InternalError("ValueError: x"), f"bad: {IN_ERROR}: verify itself failed: ValueError: x"),
        (measured("bad", gaps=[Gap("harness error", "bad: float32: x", "k.py::bad")]), "bad: float32: x"),
        (
            measured("bad", laws=[LawRun("shapes", "float32", "skipped", 0, f"{IN_ERROR}: x", in_error=True)]),
            f"bad: the law of shapes in float32: {IN_ERROR}: x",
        ),
    ],
)
def test_an_error_of_the_harness_in_one_kernel_leaves_the_others(reply: Any, said: str) -> None:
    found, finished, _ = run({"bad": reply, "good": measured("good")})
    assert found.incomplete == [Gap("harness error", said, "k.py::bad")]
    assert found.verdict == "incomplete", "exit code 3"
    assert finished == ["k.py::good"], "the next start tries the other again"


def test_a_gap_of_a_kernel_stands_in_the_run_and_not_in_the_kernel() -> None:
    gap = Gap("harness error", "bad: float32: x", "k.py::bad")
    found, _, _ = run({"bad": measured("bad", gaps=[gap])})
    assert found.incomplete == [gap] and found.kernels[0].gaps == []


KERNEL = """
import torch, verify

LIMITS = {"bfloat16": 0.501, "float16": 0.5}

@verify.kernel(op="silu", dtypes=[*LIMITS], gradients=False, max_ulp=LIMITS)
def silu(x):
    return torch.nn.functional.silu(x)
"""


def test_a_kernel_measured_dtype_by_dtype_gives_the_record_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "Worker", Here)
    source = tmp_path / "k.py"
    source.write_text(KERNEL, encoding="utf-8")
    whole = session.run([str(source)], Session(backend="interpreter", jobs=1), "verify run")
    kept = Remembered()

    split = session.run([str(source)], Session(backend="interpreter", jobs=2, by_dtype=True, kept=kept), "verify run")
    assert split.id == whole.id and split.verdict == whole.verdict == "fail"
    assert {part.rpartition(" ")[2] for part in kept.parts} == {"bfloat16", "float16"}
    again = session.run([str(source)], Session(backend="interpreter", by_dtype=True, kept=kept), "verify run")
    assert again.id == whole.id


def test_time_that_runs_out_names_the_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    asked = []

    def answer(request: Any) -> Any:
        if isinstance(request, ListKernels):
            return Listed("", [declared("good", ("float16", "float64"))])
        asked.append(request.dtypes)
        clock[0] += 1.0
        return measured("good")

    worker = FakeWorker(answer)
    done = session.run(["k.py"], Session(pool=Pool.of([worker]), by_dtype=True, until=1.0), "verify nightly")
    assert asked == [("float64",)], "what takes longest comes first"
    assert done.incomplete == [Gap("out of time", f"good: float16: not begun: {SPENT}", "k.py::good")]
    assert done.verdict == "incomplete"
    assert [kernel.status for kernel in done.kernels] == ["ok"]
