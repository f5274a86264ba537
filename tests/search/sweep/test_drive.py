"""How spans of chunks are shared out among workers."""

from __future__ import annotations

import itertools
import time
from typing import Any

import msgspec
import pytest

from verify.declare.target import Declared
from verify.errors import SPENT, TruthError
from verify.records.merge import ORDER, by_kernel
from verify.records.record import Gap, KernelRun
from verify.search.sweep.drive import SweepSettings, _gap, _records, _Sharing, _SweptSpace
from verify.search.sweep.requests import ListSpaces, SweepChunks
from verify.search.sweep.space import CHUNK, Partial, Space, merged
from verify.workers.pool import Pool
from verify.workers.requests import Died


def driver(*chunks: int) -> _Sharing:
    """The policy of a sweep of several spaces, of which nothing is done, in spans of four chunks."""
    spaces = [
        _SweptSpace(Space(f"f.py::k{number}", "float32", ("y",), "unary", 0, count * CHUNK))
        for number, count in enumerate(chunks)
    ]
    shared = _Sharing(SweepSettings(spaces=ListSpaces([])))
    shared.enqueue(spaces, 4)
    return shared


def swept(shared: _Sharing, workers: list[Any]) -> list[KernelRun]:
    """Everything, over these workers."""
    Pool.of(workers).run(shared.take)
    kernel = Declared("", "k", "silu", "elementwise", {}, "", (), ())
    declared = {item.space.target: msgspec.structs.replace(kernel, target=item.space.target) for item in shared.spaces}
    return [run for item in shared.spaces for run in _records(item, declared)]


def _found(item: _SweptSpace, low: int, high: int) -> Partial:
    return Partial(item.space.identity(), "cpu", [(low, high)], {})


class _Answers:
    """A worker that does spans and records what it is given."""

    alive = True

    def __init__(self, spaces: dict[str, _SweptSpace], asked: list[tuple[str, Any]]) -> None:
        self.spaces, self.asked = spaces, asked

    def ask(self, request: Any, **_: Any) -> Any:
        item = self.spaces[request.space.target]
        if isinstance(request, SweepChunks):
            self.asked.append((item.space.target, request.chunks))
            time.sleep(0.002)
            return _found(item, *request.chunks)
        self.asked.append((item.space.target, request.result))
        notes = [f"{request.partial.chunks}"]
        return KernelRun(request.result, item.space.target, "silu", {}, "", status="ok", results=[], notes=notes)

    def stop(self) -> None: ...


def test_the_worst_status_of_all_dtypes_counts() -> None:
    kernel = Declared("f.py::k", "k", "silu", "elementwise", {}, "", (), ())
    for first, second in itertools.permutations(("ok", "vacuous", "undecided", "wrong", "crashed"), 2):
        (run,) = by_kernel([kernel.run(first), kernel.run(second)])  # type: ignore[arg-type]
        assert run.status == max(first, second, key=ORDER.index)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_each_space_is_recorded_once_when_all_of_it_is_there(workers: int) -> None:
    shared = driver(7, 30, 1)
    asked: list[tuple[str, Any]] = []
    answering = [_Answers({item.space.target: item for item in shared.spaces}, asked) for _ in range(workers)]
    runs = swept(shared, answering)
    assert [(run.target, run.notes) for run in runs] == [
        ("f.py::k0", ["[(0, 7)]"]),
        ("f.py::k1", ["[(0, 30)]"]),
        ("f.py::k2", ["[(0, 1)]"]),
    ]
    for item in shared.spaces:
        mine = [what for target, what in asked if target == item.space.target]
        assert mine.count("y") == 1 and mine[-1] == "y"
        assert merged([what for what in mine if what != "y"]) == [(0, item.space.chunks)]


def test_an_error_in_one_worker_ends_those_that_wait_for_it() -> None:
    shared = driver(1)
    asked: list[tuple[str, Any]] = []

    class Fails(_Answers):
        def ask(self, request: Any, **_: Any) -> Any:
            time.sleep(0.05)
            raise TruthError("the reference is wrong")

    answering = [Fails({item.space.target: item for item in shared.spaces}, asked) for _ in range(3)]
    with pytest.raises(TruthError, match="the reference is wrong"):
        swept(shared, answering)


def test_a_space_that_fails_is_left_and_the_others_go_on() -> None:
    shared = driver(6, 6)

    class Fails(_Answers):
        def ask(self, request: Any, **how: Any) -> Any:
            if request.space.target == "f.py::k0":
                raise Died("it crashed")
            return super().ask(request, **how)

    answering = [Fails({item.space.target: item for item in shared.spaces}, []) for _ in range(2)]
    first, second = swept(shared, answering)
    assert (first.status, first.message) == ("crashed", "float32: it crashed")
    assert (second.status, second.notes) == ("ok", ["[(0, 6)]"])


def test_when_the_time_is_spent_what_is_whole_is_recorded_and_the_rest_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = driver(1, 6, 4)
    shared.settings.until = 13.0
    clock, real = [0.0], time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock[0] or real())

    class Slow(_Answers):
        def ask(self, request: Any, **how: Any) -> Any:
            clock[0] += 5.0
            return super().ask(request, **how)

    clock[0] = 1.0
    asked: list[tuple[str, Any]] = []
    Pool.of([Slow({item.space.target: item for item in shared.spaces}, asked)]).run(shared.take)
    assert asked == [("f.py::k0", (0, 1)), ("f.py::k0", "y"), ("f.py::k1", (0, 4))]
    assert [_gap(item) for item in shared.spaces] == [
        None,
        Gap("out of time", f"sweep of f.py::k1 float32: not finished: {SPENT}", "f.py::k1"),
        Gap("out of time", f"sweep of f.py::k2 float32: not begun: {SPENT}", "f.py::k2"),
    ]
