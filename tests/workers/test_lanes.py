"""Lanes: a queue over warm workers, in which a task that is stopped ends at once and costs no other its answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from verify.declare.requests import Forget
from verify.errors import InternalError, UsageError
from verify.workers import lanes as module
from verify.workers.lanes import Lanes, Stopped, Task
from verify.workers.pool import Pool
from verify.workers.requests import Environment

SECONDS = 30.0


class Answers:
    """What came of tasks, by their keys."""

    def __init__(self) -> None:
        self.found: dict[Any, Any] = {}
        self.changed = threading.Condition()

    def of(self, key: Any) -> Any:
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.found, SECONDS), f"{key} was not answered"
            return self.found[key]

    def task(self, key: Any, work: Any, seconds: float = SECONDS) -> Task:
        def done(outcome: Any) -> None:
            with self.changed:
                assert key not in self.found, "answered twice"
                self.found[key] = outcome
                self.changed.notify_all()

        return Task(key, work, done, seconds)


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    made = Lanes("cpu", 1, Forget())
    yield made
    made.close(reason="the test is over")


def hangs(begun: threading.Event) -> Any:
    """Work that ends only if its worker refuses a request, as that of a task does that is stopped."""

    def work(pool: Pool) -> None:
        begun.set()
        while True:
            threading.Event().wait(0.01)
            if pool.workers[0].stopped:  # type: ignore[attr-defined]
                pool.ask(Environment(), timeout=SECONDS)  # raises

    return work


def raises(error: Exception) -> Any:
    def work(pool: Pool) -> None:
        raise error

    return work


def test_tasks_are_done_in_their_order_and_errors_are_their_own(lanes: Lanes, capfd: Any) -> None:
    answers, order = Answers(), []
    lanes.submit(answers.task(1, lambda pool: order.append(1)))
    lanes.submit(answers.task(2, raises(UsageError("a rule; received another"))))
    lanes.submit(answers.task(3, raises(ValueError("unexpected"))))
    lanes.submit(answers.task(4, lambda pool: order.append(4) or "four"))
    assert answers.of(4) == "four" and order == [1, 4] and answers.of(1) is None
    assert isinstance(answers.of(2), UsageError)
    assert isinstance(answers.of(3), InternalError) and "ValueError: unexpected" in str(answers.of(3))
    assert "Traceback" in capfd.readouterr().err


def test_a_running_task_and_a_waiting_one_are_cancelled_and_the_next_is_done(lanes: Lanes) -> None:
    answers, begun = Answers(), threading.Event()
    lanes.submit(answers.task("runs", hangs(begun)))
    assert begun.wait(SECONDS)
    lanes.submit(answers.task("waits", lambda pool: "never"))
    lanes.submit(answers.task("next", lambda pool: pool.workers[0].alive))
    assert lanes.cancel("waits") and isinstance(answers.of("waits"), Stopped)
    assert lanes.cancel("runs") and str(answers.of("runs")) == "cancelled"
    assert answers.of("next") is False  # and no process was started
    assert not lanes.cancel("runs") and not lanes.cancel("nobody")


def test_a_late_stop_does_not_reach_the_next_task(lanes: Lanes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task ends on its own between the flag and the end of its process."""
    answers, begun, order = Answers(), threading.Event(), []

    def slow_stop(worker: Any, **_: Any) -> None:
        threading.Event().wait(0.2)
        order.append("stopped")

    def ends(pool: Pool) -> None:
        begun.set()
        while not pool.workers[0].stopped:  # type: ignore[attr-defined]
            threading.Event().wait(0.01)

    monkeypatch.setattr(module._LaneWorker, "stop", slow_stop)
    lanes.submit(answers.task(1, ends))
    lanes.submit(answers.task(2, lambda pool: order.append("next")))
    assert begun.wait(SECONDS) and lanes.cancel(1)
    assert answers.of(2) is None and order == ["stopped", "next"]


def test_a_task_that_takes_too_long_is_stopped(lanes: Lanes) -> None:
    answers = Answers()
    lanes.submit(answers.task(1, hangs(threading.Event()), seconds=0.05))
    assert isinstance(answers.of(1), Stopped) and str(answers.of(1)) == "it took more than 0.05 s"
    lanes.submit(answers.task(2, lambda pool: "two"))
    assert answers.of(2) == "two"


def test_a_full_queue_and_a_second_task_of_a_key_are_refused(lanes: Lanes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_QUEUED", 1)
    answers, begun = Answers(), threading.Event()
    lanes.submit(answers.task(1, hangs(begun)))
    assert begun.wait(SECONDS)
    with pytest.raises(UsageError, match="two requests at a time have different ids"):
        lanes.submit(answers.task(1, hangs(begun)))
    lanes.submit(answers.task(2, lambda pool: "two"))
    with pytest.raises(UsageError, match="at most 1 requests wait; received one more"):
        lanes.submit(answers.task(3, lambda pool: "three"))
    lanes.cancel(1)
    assert answers.of(2) == "two"


def test_lanes_end_after_their_tasks_or_at_once() -> None:
    answers, begun = Answers(), threading.Event()
    lanes = Lanes("cpu", 2, Forget())
    for key in range(5):
        lanes.submit(answers.task(key, lambda pool: "done"))
    lanes.close()
    assert answers.found == dict.fromkeys(range(5), "done")
    lanes = Lanes("cpu", 1, Forget())
    lanes.submit(answers.task("runs", hangs(begun)))
    lanes.submit(answers.task("waits", lambda pool: "never"))
    assert begun.wait(SECONDS)
    lanes.close(reason="interrupted")
    assert {str(answers.found[key]) for key in ("runs", "waits")} == {"interrupted"}
