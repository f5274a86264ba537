"""Forks that answer side by side: what comes back does not depend on them."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from verify.workers.fork_map import ForkMap

FORK = multiprocessing.get_context("fork")


def never(key: str, reason: str) -> None:
    raise AssertionError((key, reason))


def heard(most: int, until: float, **questions: Callable[[], str]) -> list[tuple[str, str]]:
    """The answers to questions and the reasons why there are none, as they come."""
    found: list[tuple[str, str]] = []

    def take(key: str, answer: str) -> None:
        found.append((key, answer))

    with ForkMap(most, str, take, lost=take, until=until) as forks:
        for key, think in questions.items():
            forks.ask(key, think)
    return found


@pytest.mark.parametrize("most", [1, 3])
def test_answers_come_in_the_order_of_the_questions(most: int) -> None:
    taken: list[tuple[str, list[int]]] = []
    with ForkMap(most, list[int], lambda key, answer: taken.append((key, answer)), lost=never, until=math.inf) as forks:
        for number in range(7):

            def think(number: int = number) -> list[int]:
                time.sleep(0.02 * (7 - number))  # the first is the slowest
                return [number] * 50_000  # more than a pipe holds

            forks.ask(f"question {number}", think, here=number == 4)
    assert [(key, answer[0], len(answer)) for key, answer in taken] == [(f"question {n}", n, 50_000) for n in range(7)]


def test_several_are_thought_about_at_a_time() -> None:
    """Each waits until all three run; one after another they would wait until the deadline, which raises."""
    together, taken = FORK.Barrier(3), []
    with ForkMap(3, int, lambda _, answer: taken.append(answer), lost=never, until=time.monotonic() + 60) as forks:
        for _ in range(3):
            forks.ask("", together.wait)
    assert sorted(taken) == [0, 1, 2]


def test_a_long_thought_holds_up_no_others() -> None:
    """The first thought ends when the fourth has begun; two forks run at a time."""
    fourth, taken = FORK.Event(), []

    def first() -> str:
        fourth.wait()
        return "first"

    def last() -> str:
        fourth.set()
        return "fourth"

    with ForkMap(2, str, lambda _, answer: taken.append(answer), lost=never, until=time.monotonic() + 60) as forks:
        for think in (first, lambda: "second", lambda: "third", last):
            forks.ask("", think)
    assert taken == ["first", "second", "third", "fourth"]


def test_a_fork_that_raises_is_asked_again_here() -> None:
    def raises() -> str:
        raise ValueError("in both")

    with (
        pytest.raises(ValueError, match="in both"),
        ForkMap(2, str, lambda _, answer: None, lost=never, until=math.inf) as forks,
    ):
        forks.ask("", raises)


@pytest.mark.parametrize(
    ("times", "wanted"),
    [(1, [("one", "answered"), ("two", "others")]), (2, [("one", "died of SIGKILL"), ("two", "others")])],
)
def test_a_fork_that_is_killed_is_replaced_once(tmp_path: Path, times: int, wanted: list[tuple[str, str]]) -> None:
    def dies() -> str:
        tried = len(list(tmp_path.iterdir()))
        (tmp_path / str(tried)).touch()
        if tried < times:
            os.kill(os.getpid(), signal.SIGKILL)
        return "answered"

    assert heard(2, math.inf, one=dies, two=lambda: "others") == wanted


@pytest.mark.parametrize("most", [1, 3])
def test_no_memory_is_the_end_of_one_question_alone(most: int) -> None:
    def fails() -> str:
        raise MemoryError

    wanted = [("one", "ran out of memory"), ("two", "answered")]
    assert heard(most, math.inf, one=fails, two=lambda: "answered") == wanted


def test_forks_that_exceed_their_time_are_ended_and_the_others_answer(tmp_path: Path) -> None:
    def late() -> str:
        (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(600)
        return "late"

    began = time.monotonic()
    others = {"one": lambda: "answered", "two": late, "three": lambda: "answered"}
    wanted = [("one", "answered"), ("two", "ran out of time"), ("three", "answered")]
    assert heard(2, time.monotonic() + 1.0, **others) == wanted
    assert heard(1, time.monotonic(), four=lambda: "answered") == [("four", "ran out of time")]
    assert time.monotonic() - began < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_no_fork_outlives_an_error(tmp_path: Path) -> None:
    def late() -> str:
        (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(60)
        return "late"

    def raises() -> str:
        raise KeyError

    def waited(forks: ForkMap[str, str]) -> None:
        forks.ask("", late)
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.01)

    def interrupted() -> None:
        with ForkMap(2, str, lambda _, answer: None, lost=never, until=math.inf) as forks:
            waited(forks)
            raise KeyError

    def answered_by_an_error() -> None:
        with ForkMap(2, str, lambda _, answer: None, lost=never, until=math.inf) as forks:
            forks.ask("", raises)
            waited(forks)

    for ending in (interrupted, answered_by_an_error):
        with pytest.raises(KeyError):
            ending()
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)
        (tmp_path / "pid").unlink()
