"""The host of a solution ends the processes of the solution, and no other."""

from __future__ import annotations

from multiprocessing import Pipe
from typing import Any

import pytest

from verify.referee.host import SolutionProcess
from verify.workers import process_tree


class Raced(SolutionProcess):
    """A process that another thread ends right after its number was read once."""

    def __init__(self) -> None:
        self._connection, _ = Pipe()
        self.numbers = [1 << 30]  # no process has this number

    @property
    def pid(self) -> int:  # type: ignore[override]
        return self.numbers.pop() if self.numbers else 0

    @pid.setter
    def pid(self, number: int) -> None:
        self.numbers.clear()


def test_two_threads_that_end_a_solution_do_not_end_their_own_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """kill(2) takes 0 as the group of the caller."""
    killed = list[Any]()
    monkeypatch.setattr(process_tree, "kill", lambda leader, mark: killed.append(leader))
    monkeypatch.setattr(process_tree, "living", lambda leaders, mark: set())
    Raced().stop()
    assert killed == [1 << 30]
