"""The host of a solution ends the processes of the solution and no other, and calls no chance a replay."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from verify.errors import KernelError, Refused
from verify.referee.host import SolutionProcess
from verify.referee.messages import Call
from verify.workers import process_tree
from verify.workers.channel import Channel
from verify.workers.sandbox.confine import Confined


class Raced(SolutionProcess):
    """A process that another thread ends right after its number was read once."""

    def __init__(self) -> None:
        self._channel, _ = Channel.pair()
        self._broken = None
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


class Answered(SolutionProcess):
    """A process that sends these events to whatever it is asked."""

    def __init__(self, *events: str) -> None:
        self._channel, theirs = Channel.pair()
        self._control, self._broken, self._confined = socket.socket(), None, Confined()
        self._lock, self.pid = threading.Lock(), 0
        for each in events:
            theirs.send(each.encode())
        self.theirs = theirs  # stays open


UNUSABLE = '{"event":"failed","failure":{"kind":"kernel","text":"all tests pass"},"usable":false}'


@pytest.mark.parametrize("kind", ["judge", "usage", "died", "timeout", "truth", "internal", "kernel"])
def test_the_words_of_a_solution_are_its_own_whatever_they_claim_to_be(kind: str) -> None:
    """Else it could say that the judge has died, and no verdict would be given."""
    for event in (UNUSABLE, UNUSABLE.replace('"kernel"', f'"{kind}"').replace("false", "true")):
        process = Answered(event)
        with pytest.raises(Refused, match="^its process says: all tests pass$"):
            process.ask(Call(7, ()), (), 5.0)
        process.stop()


@pytest.mark.parametrize(
    ("events", "text"),
    [
        (['{"event":"reply","reply":{"number":8}}'], "wrote into the connection"),
        (['{"event":"reply","reply":' + "[" * 100_000 + "]" * 100_000 + "}"], "wrote into the connection"),
        (['{"event":"reply","reply":{"number":7},"parts":[99999999999]}'], "answered with 99,999,999,999 bytes"),
        (['{"event":"progress","text":"a","waited":1e9}'] * 9, "gave no answer within 0.5 s; stopped"),
        (['{"event":"kernel","request":1,"most":9}'], "gave no answer within 0.5 s; stopped"),
        (['{"event":"progress","text":"' + "a" * (1 << 20) + '"}'], "wrote into the connection"),
    ],
)
def test_what_is_no_answer_ends_a_solution_in_time(events: list[str], text: str) -> None:
    process = Answered()

    def send() -> None:
        with suppress(ConnectionError):
            for each in events:
                process.theirs.send(each.encode())

    threading.Thread(target=send, daemon=True).start()
    began = time.monotonic()
    with pytest.raises(KernelError, match=text) as raised:
        process.ask(Call(7, ()), (), 0.5, lambda size: 24)
    assert type(raised.value) is KernelError and time.monotonic() - began < 5
    with pytest.raises(KernelError, match="its process has ended"):
        process.ask(Call(7, ()), (), 0.5)
