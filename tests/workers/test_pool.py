"""The pool: order, waiting, deadlines, replaced processes, errors that end everything, Ctrl-C, GPUs of one host."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.workers.fake import FakeWorker, raising
from verify.errors import SPENT, KernelError, UsageError, VerifyError
from verify.workers.pool import Job, Pool
from verify.workers.process import OutOfTime
from verify.workers.requests import About, CountGpus, Died, Late


class Policy:
    """So many jobs, one after the other, and what they came to."""

    def __init__(self, count: int, **job: Any) -> None:
        self.left, self.job = count, job
        self.done: list[Any] = []
        self.failed: list[VerifyError] = []
        self.last: list[Any] = []

    def take(self, last: Job[Any] | None) -> Job[Any] | None:
        if not self.left:
            return None
        self.last.append(None if last is None else last.about)
        self.left -= 1
        settings = {"timeout": 60.0, "about": self.left, **self.job}
        return Job(CountGpus(), done=self.done.append, failed=self.failed.append, **settings)


def test_every_job_is_done_once_and_a_policy_gets_the_last_job_of_the_worker() -> None:
    policy, pool = Policy(5), Pool.of([FakeWorker()])
    pool.run(policy.take)
    assert policy.done == [1] * 5 and policy.last == [None, 4, 3, 2, 1]


def test_no_job_begins_after_an_exception_that_ends_everything() -> None:
    begun, broken = threading.Event(), threading.Event()

    def breaks(request: Any) -> Any:
        assert begun.wait(10)
        broken.set()
        raise ValueError("never")

    def goes_on(request: Any) -> int:
        begun.set()
        assert broken.wait(10)
        time.sleep(0.05)
        return 1

    policy = Policy(1000)
    with pytest.raises(ValueError, match="never"):
        Pool.of([FakeWorker(breaks), FakeWorker(goes_on)]).run(policy.take)
    assert policy.left == 998


@pytest.mark.parametrize("error", [UsageError("rule"), KernelError("raised"), Died("SIGSEGV")])
def test_an_error_that_a_request_may_have_is_that_of_its_job(error: VerifyError) -> None:
    policy = Policy(2)
    Pool.of([FakeWorker(raising(error))]).run(policy.take)
    assert policy.failed == [error, error] and not policy.done


def test_time_that_runs_out_is_no_timeout_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def hangs(request: Any) -> Any:
        clock[0] += 5.0
        raise Late("late")

    policy, worker = Policy(3, timeout=8.0, until=12.0), FakeWorker(hangs)
    Pool.of([worker]).run(policy.take)
    assert worker.timeouts == [8.0, 7.0, 2.0]
    assert [type(error) for error in policy.failed] == [Late, OutOfTime, OutOfTime]
    late = Policy(1, until=12.0)
    Pool.of([worker]).run(late.take)
    assert [str(error) for error in late.failed] == [f"not begun: {SPENT}"] and len(worker.timeouts) == 3


def test_a_fresh_process_prepares_outside_the_time_of_the_job() -> None:
    worker, prepared = FakeWorker(), []

    def prepare(asked: Any) -> None:
        prepared.append(asked)
        worker.alive = True

    worker.alive = False
    Pool.of([worker]).run(Policy(2, prepare=prepare).take)
    assert prepared == [worker], "and a process that is there is asked at once"
    worker.alive = False
    policy = Policy(1, prepare=lambda asked: raising(UsageError("it fails on import"))())
    Pool.of([worker]).run(policy.take)
    assert [str(error) for error in policy.failed] == ["it fails on import"] and len(worker.timeouts) == 2


def test_an_exception_that_no_job_expects_ends_everything_and_stops_the_workers() -> None:
    gone = threading.Event()

    class Waits(FakeWorker):
        def stop(self) -> None:
            gone.set()

    def waits(request: Any) -> Any:
        assert gone.wait(10)
        raise Died("SIGKILL")

    policy, other = Policy(9), FakeWorker(raising(ValueError("never")))
    with pytest.raises(ValueError, match="never"):
        Pool.of([Waits(waits), other]).run(policy.take)
    assert other.stops and not policy.failed, "a worker that was stopped is no crash of a kernel"


@pytest.mark.parametrize("place", ["take", "done", "failed"])
def test_an_exception_of_a_policy_ends_everything(place: str) -> None:
    worker = FakeWorker(raising(KernelError("x")) if place == "failed" else lambda request: 1)
    policy = Policy(5)
    calls = {"done": policy.done.append, "failed": policy.failed.append, place: lambda _: 1 // 0}

    def take(last: Any) -> Any:
        if place == "take":
            return 1 // 0
        return Job(CountGpus(), done=calls["done"], failed=calls["failed"], timeout=1)

    with pytest.raises(ZeroDivisionError):
        Pool.of([worker, worker]).run(take)
    assert worker.stops >= 2


def test_the_first_ctrl_c_lets_running_jobs_end_where_a_policy_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from verify.workers import pool as module

    begun, released = threading.Event(), threading.Event()
    settle, calls = module._settle, []

    def interrupted(serving: Any) -> None:
        calls.append(serving)
        if len(calls) == 1:
            assert begun.wait(10)
            raise KeyboardInterrupt
        settle(serving)

    def reply(request: Any) -> int:
        begun.set()
        assert released.wait(10)
        return 1

    monkeypatch.setattr(module, "_settle", interrupted)
    policy, worker = Policy(5), FakeWorker(reply)
    Pool.of([worker]).run(policy.take, on_interrupt=released.set)
    assert policy.done == [1] and policy.left == 4, "what ran is kept, and nothing else begins"
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        Pool.of([worker]).run(policy.take)
    assert worker.stops


class Made(FakeWorker):
    """A worker that says which GPU it sees."""

    def __init__(
        self, backend: str | None, environment: dict[str, str] | None = None, template: FakeWorker | None = None
    ) -> None:
        super().__init__(about=About("cuda", "cuda", {"gpu": "H200", "driver": "1", **(environment or {})}))
        self.backend, self.environment, self.template = backend, environment, template
        MADE.append(self)

    def begin(self) -> None:
        """It needs no process."""


MADE: list[Made] = []
