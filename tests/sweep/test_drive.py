"""How spans of chunks are shared out among workers."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from verify.isolate import WorkerDied
from verify.sweep.drive import InterruptedSweepError, Settings, _Driver, _Work
from verify.sweep.space import CHUNK, Space


def driver(workers: int, *chunks: int) -> _Driver:
    """A driver that has asked nobody anything yet."""
    made = _Driver.__new__(_Driver)
    made.workers = [None] * workers  # type: ignore[list-item]
    made.pace = 1
    made.work = []
    for number, count in enumerate(chunks):
        space = Space(f"f.py::k{number}", "float32", ("y",), "unary", 0, count * CHUNK)
        made.work.append(_Work(space, "torch cpu", pending=[(0, count)]))
    return made


def test_a_worker_stays_at_its_space_and_another_begins_elsewhere() -> None:
    shared = driver(2, 40, 40)
    first, _ = shared._next(None)
    second, _ = shared._next(None)
    assert (first, second) == (shared.work[0], shared.work[1])
    assert shared._next(second)[0] is second and shared._next(first)[0] is first


def test_whoever_has_finished_helps_and_every_chunk_is_taken_once() -> None:
    shared = driver(2, 3, 30)
    at, taken = [None, None], {0: [], 1: []}  # type: ignore[var-annotated]
    for turn in range(100):
        item, span = shared._next(at[turn % 2])
        if item is None:
            break
        at[turn % 2] = item
        taken[shared.work.index(item)] += range(*span)
    assert sorted(taken[0]) == [*range(3)] and sorted(taken[1]) == [*range(30)]
    assert at == [shared.work[1]] * 2


def test_only_several_workers_take_less_towards_the_end() -> None:
    for workers, length in ((1, 30), (2, 8)):
        alone = driver(workers, 30)
        alone.work[0].span = 64
        _, span = alone._next(None)
        assert span == (0, length)


class _Interrupts:
    """A worker during whose request Ctrl-C comes, once the other one has been asked."""

    alive = True

    def __init__(self, asked: threading.Event) -> None:
        self.asked = asked

    def ask(self, *_: Any, **__: Any) -> Any:
        assert self.asked.wait(20)
        raise KeyboardInterrupt

    def stop(self) -> None: ...


class _Restarts(_Interrupts):
    """A worker whose thread was about to ask when all were stopped: it starts again, and ends at the second stop."""

    def __init__(self) -> None:
        super().__init__(threading.Event())
        self.stops, self.ended = 0, threading.Event()

    def ask(self, *_: Any, **__: Any) -> Any:
        self.asked.set()
        assert self.ended.wait(20), "it was stopped once only"
        raise WorkerDied("stopped")

    def stop(self) -> None:
        self.stops += 1
        if self.stops > 1:
            self.ended.set()


def test_a_worker_that_starts_again_during_ctrl_c_is_stopped_again(tmp_path: Path) -> None:
    shared, restarts = driver(2, 4, 4), _Restarts()
    shared.workers = [_Interrupts(restarts.asked), restarts]
    shared.settings, shared.lock, shared.stopped = Settings(), threading.Lock(), False
    shared.journal = SimpleNamespace(path=tmp_path, close=lambda: None)  # type: ignore[assignment]
    with pytest.raises(InterruptedSweepError):
        shared.run()
    assert restarts.ended.is_set()
