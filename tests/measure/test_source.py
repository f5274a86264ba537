"""What every source has in common: parts taken once, known ones not again, and what a part without a result means."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.workers.fake import FakeWorker
from verify.declare.target import Declared
from verify.errors import IN_ERROR, SPENT, InternalError, JudgeFailed, KernelError, TruthError, UsageError, VerifyError
from verify.measure.source import NoResult, Source, SourceSettings, collect, crashes
from verify.records.part_store import PartStore
from verify.records.record import Gap, KernelRun
from verify.workers.pool import Pool
from verify.workers.process import OutOfTime
from verify.workers.requests import About, CountGpus, Died, Late


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (OutOfTime(begun=True), ("skipped", f"not finished: {SPENT}", "out of time")),
        (JudgeFailed("the judge died: SIGKILL"), ("skipped", "the judge died: SIGKILL", "judge failed")),
        (Late("late"), ("timeout", "no result within 9 s; stopped", None)),
        (
            Late("late", who="judge"),
            ("skipped", "the judge ran out of time: no result within 9 s; stopped", "judge failed"),
        ),
        (Died("SIGSEGV"), ("crashed", "SIGSEGV", None)),
        (TruthError("routes"), ("skipped", f"{IN_ERROR}: routes", "harness error")),
        (InternalError("bug"), ("skipped", f"{IN_ERROR}: verify itself failed: bug", "harness error")),
        (UsageError("rule", hint="next"), ("error", "rule", None)),
        (KernelError("raised"), ("error", "raised", None)),
    ],
)
def test_a_part_without_a_result_says_who_is_to_blame(error: VerifyError, found: tuple[str, str, str | None]) -> None:
    why = NoResult.of(error, 9.0)
    assert (why.status, why.message, why.kind) == found and why.error is error


@dataclass(frozen=True)
class Part:
    target: str


class Letters(Source[Part, int]):
    """One kernel for each letter; its request is answered with a number."""

    profile = "letters"

    def __init__(self, work: SourceSettings) -> None:
        super().__init__(work)
        self.found: dict[str, KernelRun] = {}
        self.gaps: list[Gap] = []

    def open(self, pool: Pool) -> About:
        self.waiting = [Part(letter) for letter in "abc"]
        return pool.about()

    def next(self, last: Part | None) -> Part | None:
        return self.take_nearest(last, lambda part: True) if self.waiting else None

    def settle(self, part: Part) -> bool:
        if (known := self.known(part.target, KernelRun)) is not None:
            self.found[part.target] = known
        return known is not None

    def begin(self, part: Part) -> CountGpus:
        return CountGpus()

    def done(self, part: Part, reply: int, seconds: float) -> None:
        self.found[part.target] = declared(part.target).run("ok", notes=[f"{reply}"])
        self.keep(part.target, self.found[part.target])

    def failed(self, part: Part, why: NoResult, seconds: float) -> None:
        self.found[part.target] = declared(part.target).run(why.status, why.message)
        self.gaps += [Gap(why.kind, why.message, part.target)] if why.kind else []

    def record(self) -> tuple[list[KernelRun], list[Gap]]:
        kernels = [self.found[letter] for letter in sorted(self.found)]
        return kernels, [*crashes(kernels), *self.gaps]


def declared(name: str) -> Declared:
    return Declared(name, name, "silu", "elementwise", {}, "", ("cpu",), ("float32",))


def counting(at: int = -1, error: Exception | None = None) -> FakeWorker:
    """A worker that counts its requests, and raises for one of them."""
    made = FakeWorker(lambda request: error if len(made.asked) == at else len(made.asked))
    return made


def test_what_an_earlier_start_kept_is_not_asked_again(tmp_path: Path) -> None:
    def work(worker: FakeWorker) -> SourceSettings:
        return SourceSettings(pool=Pool.of([worker]), kept=PartStore(tmp_path / "a.parts"))

    first = collect(Letters(work(counting(2, Died("SIGSEGV")))), "verify letters")
    assert [(kernel.status, kernel.notes) for kernel in first.kernels] == [
        ("ok", ["1"]),
        ("crashed", []),
        ("ok", ["3"]),
    ]
    assert first.incomplete == [Gap("crashed", "b: SIGSEGV", "b")] and first.profile == "letters"
    second = counting()
    again = collect(Letters(work(second)), "verify letters")
    assert len(second.asked) == 1 and [kernel.notes for kernel in again.kernels] == [["1"], ["1"], ["3"]]


@pytest.mark.parametrize("error", [UsageError("rule"), TruthError("routes"), InternalError("bug")])
def test_an_error_of_verify_ends_its_part_or_where_the_caller_wants_that_the_command(error: VerifyError) -> None:
    contained = collect(Letters(SourceSettings(pool=Pool.of([counting(2, error)]))), "verify letters")
    assert [kernel.status for kernel in contained.kernels].count("ok") == 2
    with pytest.raises(type(error)):
        collect(Letters(SourceSettings(pool=Pool.of([counting(2, error)]), contain=False)), "verify letters")


def test_a_judge_that_dies_ends_no_command() -> None:
    """The finds of all other parts would be lost to it."""
    worker = counting(2, Died("SIGKILL", who="judge"))
    found = collect(Letters(SourceSettings(pool=Pool.of([worker]), contain=False)), "verify letters")
    assert found.incomplete == [Gap("judge failed", "the judge died: SIGKILL", "b")] and len(worker.asked) == 3
