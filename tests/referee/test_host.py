"""The host of a solution ends the processes of the solution and no other, and calls no chance a replay."""

from __future__ import annotations

import socket
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from verify.referee import host as host_module
from verify.referee import runner
from verify.referee.host import Host, SolutionProcess
from verify.workers import process_tree


class Raced(SolutionProcess):
    """A process that another thread ends right after its number was read once."""

    def __init__(self) -> None:
        self._connection, _ = Pipe()
        self._control = socket.socket()
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


@pytest.mark.parametrize(
    ("count", "part", "same", "replayed"),
    [(6, 0.5, False, False), (12, 0.5, False, True), (12, 1.0, False, False), (12, 0.5, True, False)],
)
def test_few_equal_numbers_may_be_chance(count: int, part: float, same: bool, replayed: bool, tmp_path: Path) -> None:
    """A wrong sum that forgets a factor has the same bits for x and y in the other order.

    Whole numbers are no proof, and neither are calls that have an argument in common, which a solution may ignore.
    """
    host = Host(cast(Any, None), cast(Any, None), tmp_path / "notes", 1.0, 1.0)
    x = torch.arange(float(count)) + part
    y = 100 - x.square() if not same else x
    for given in ({"x": x, "y": y}, {"x": y, "y": 2 * x if same else x}):
        host.observed.calls += 1
        host._compare({}, given, [x / 4 + y / 4] if part < 1 else [x + y])
    assert bool(host.observed.replayed) is replayed


def test_nan_does_not_hide_answers_in_16_bits() -> None:
    answer = torch.randn(64).bfloat16().float()
    answer[3] = torch.nan
    assert host_module._fits([answer], torch.bfloat16) and not host_module._fits([torch.randn(64)], torch.bfloat16)


def test_a_view_that_pytorch_negates_when_it_is_read_is_no_trick() -> None:
    """`x.conj().imag` is ordinary PyTorch; its values are computed within the call."""
    turned = torch.complex(torch.zeros(3), -torch.arange(3.0)).conj()
    for view in (turned, turned.imag):
        found = runner._resolved(view)
        assert runner._lazy(found) == "" and not found.is_neg() and not found.is_conj()
        assert torch.equal(found, view)
    assert runner._lazy(runner._resolved(torch.eye(2).to_sparse()))
