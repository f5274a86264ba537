"""How spans of chunks are shared out among workers."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import msgspec
import pytest

from verify.declare.target import Declared
from verify.errors import IN_ERROR, SPENT, TruthError
from verify.records.merge import ORDER
from verify.records.record import Gap, KernelRun
from verify.search.sweep.drive import KEPT, MOST, SweepSettings, _gap, _records, _Sharing, _SweptSpace, _together
from verify.search.sweep.partial import Partial
from verify.search.sweep.requests import ListSpaces, SweepChunks
from verify.search.sweep.space import CHUNK, Space, merged
from verify.workers.pool import Pool
from verify.workers.requests import Died


def driver(workers: int, *chunks: int) -> _Sharing:
    """The policy of a sweep of several spaces, of which nothing is done."""
    spaces = [
        _SweptSpace(Space(f"f.py::k{number}", "float32", ("y",), "unary", 0, count * CHUNK), most=MOST)
        for number, count in enumerate(chunks)
    ]
    shared = _Sharing(SweepSettings(spaces=ListSpaces([])))
    shared.enqueue(spaces, workers)
    return shared


def swept(shared: _Sharing, workers: list[Any]) -> list[KernelRun]:
    """Everything, over these workers."""
    Pool.of(workers).run(shared.take)
    kernel = Declared("", "k", "silu", "elementwise", {}, "", (), ())
    declared = {item.space.target: msgspec.structs.replace(kernel, target=item.space.target) for item in shared.spaces}
    return [run for item in shared.spaces for run in _records(item, declared)]


def test_a_worker_stays_at_its_space_and_another_begins_elsewhere() -> None:
    shared = driver(2, 2000, 2000)
    first, _ = shared.next_span(None)
    second, _ = shared.next_span(None)
    assert (first, second) == (shared.spaces[0], shared.spaces[1])
    assert shared.next_span(second)[0] is second and shared.next_span(first)[0] is first


def test_a_worker_that_has_finished_helps_and_every_chunk_is_taken_once() -> None:
    shared = driver(2, 3, 30)
    at, taken = [None, None], {0: [], 1: []}  # type: ignore[var-annotated]
    for turn in range(100):
        item, span = shared.next_span(at[turn % 2])
        if item is None:
            break
        at[turn % 2] = item
        taken[shared.spaces.index(item)] += range(*span)
    assert sorted(taken[0]) == [*range(3)] and sorted(taken[1]) == [*range(30)]
    assert at == [shared.spaces[1]] * 2


def test_every_worker_gets_a_fair_share_of_what_is_unfinished() -> None:
    for workers, spans in ((1, [(0, 30)]), (2, [(0, 15), (15, 30)]), (4, [(0, 8), (8, 16), (16, 24), (24, 30)])):
        shared = driver(workers, 30)
        assert [shared.next_span(None)[1] for _ in spans] == spans
        assert shared.next_span(None) == (None, None)


def test_a_worker_that_comes_late_leaves_a_share_to_those_that_are_nearly_done() -> None:
    shared = driver(2, 60, 4)
    (first, span), (second, _) = shared.next_span(None), shared.next_span(None)
    assert span == (0, 32) and second is shared.spaces[1]
    first.flying[span] = 2  # it has told of 30 of its 32 chunks
    second.flying.clear()
    assert shared.next_span(second) == (first, (32, 47))


def test_a_little_more_than_a_share_is_taken_at_once() -> None:
    item = driver(1, 30).spaces[0]
    assert item.take(24) == (0, 30)
    item = driver(1, 31).spaces[0]
    assert (item.take(24), item.take(24)) == ((0, 24), (24, 31))


def _found(item: _SweptSpace, low: int, high: int) -> bytes:
    return Partial(item.space.identity(), "cpu", [(low, high)], {}).encode()


def test_what_a_worker_did_not_reach_is_pending_again() -> None:
    item = driver(1, 9).spaces[0]
    assert item.take(6) == (0, 6) and item.unfinished == 9
    del item.flying[0, 6]
    item.land((0, 6), _found(item, 0, 2), 1.0)
    assert item.pending == [(2, 6), (6, 9)] and item.done == 2 * CHUNK
    assert item.take(9) == (2, 6)


@pytest.mark.parametrize("chunks", [(0, 7), (1, 6), (0, 0)])
def test_an_answer_about_other_chunks_is_an_error(chunks: tuple[int, int]) -> None:
    item = driver(1, 9).spaces[0]
    with pytest.raises(RuntimeError, match="requested the chunks 0 to 5"):
        item.land((0, 6), _found(item, *chunks), 1.0)


def test_partial_results_that_pile_up_are_merged() -> None:
    item = driver(1, 40).spaces[0]
    for chunk in range(40):
        item.land((chunk, chunk + 1), _found(item, chunk, chunk + 1), 1.0)
    assert len(item.found) <= KEPT and item.chunks == item.whole().chunks == [(0, 40)]


def test_spans_begin_with_a_chunk_and_grow_while_they_are_quick() -> None:
    item, taken = _SweptSpace(driver(1, 500).spaces[0].space, [(0, 500)]), []
    for seconds in (0.1, 0.1, 0.4, 20.0, 100.0):
        span = item.take(MOST)
        assert span is not None
        taken.append(span[1] - span[0])
        item.land(span, _found(item, *span), seconds)
    assert taken == [1, 8, 64, 320, 32]
    assert item.most == 1


class _Answers:
    """A worker that does two chunks of a span at a time and records what it is given."""

    alive = True

    def __init__(self, spaces: dict[str, _SweptSpace], asked: list[tuple[str, Any]]) -> None:
        self.spaces, self.asked = spaces, asked

    def ask(self, request: Any, **_: Any) -> Any:
        item = self.spaces[request.space.target]
        if isinstance(request, SweepChunks):
            low, high = request.chunks
            self.asked.append((item.space.target, (low, min(high, low + 2))))
            time.sleep(0.002)
            return _found(item, low, min(high, low + 2)).decode()
        self.asked.append((item.space.target, request.result))
        covered = merged([span for found in request.partials for span in Partial.decode(found.encode()).chunks])
        return KernelRun(
            request.result, item.space.target, "silu", {}, "", status="ok", results=[], notes=[f"{covered}"]
        )

    def stop(self) -> None: ...


def test_the_worst_status_of_all_dtypes_counts() -> None:
    kernel = Declared("f.py::k", "k", "silu", "elementwise", {}, "", (), ())
    for first, second in itertools.permutations(("ok", "vacuous", "undecided", "wrong", "crashed"), 2):
        (run,) = _together([kernel.run(first), kernel.run(second)])  # type: ignore[arg-type]
        assert run.status == max(first, second, key=ORDER.index)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_each_space_is_recorded_once_when_all_of_it_is_there(workers: int) -> None:
    shared = driver(workers, 7, 30, 1)
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
    shared = driver(3, 1)
    asked: list[tuple[str, Any]] = []

    class Fails(_Answers):
        def ask(self, request: Any, **_: Any) -> Any:
            time.sleep(0.05)
            raise TruthError("the reference is wrong")

    answering = [Fails({item.space.target: item for item in shared.spaces}, asked) for _ in range(3)]
    with pytest.raises(TruthError, match="the reference is wrong"):
        swept(shared, answering)


def test_a_space_that_fails_is_left_and_the_others_go_on() -> None:
    shared = driver(2, 6, 6)

    class Fails(_Answers):
        def ask(self, request: Any, **how: Any) -> Any:
            if request.space.target == "f.py::k0":
                raise Died("it crashed")
            return super().ask(request, **how)

    answering = [Fails({item.space.target: item for item in shared.spaces}, []) for _ in range(2)]
    first, second = swept(shared, answering)
    assert (first.status, first.message) == ("crashed", "float32: it crashed")
    assert (second.status, second.notes) == ("ok", ["[(0, 6)]"])


def test_a_space_about_which_the_harness_fails_is_left_where_the_caller_goes_on() -> None:
    shared = driver(2, 6, 6, 6)
    shared.settings.contain = True

    class Fails(_Answers):
        def ask(self, request: Any, **how: Any) -> Any:
            where = (request.space.target, isinstance(request, SweepChunks))
            if where in (("f.py::k0", True), ("f.py::k1", False)):
                raise TruthError("two routes disagree")
            return super().ask(request, **how)

    answering = [Fails({item.space.target: item for item in shared.spaces}, []) for _ in range(2)]
    Pool.of(answering).run(shared.take)
    assert [_gap(item) for item in shared.spaces] == [
        *(
            Gap(
                "harness error",
                f"sweep of f.py::k{number} float32: {IN_ERROR}: two routes disagree",
                f"f.py::k{number}",
            )
            for number in (0, 1)
        ),
        None,
    ]
    assert list(shared.spaces[2].recorded) == ["y"]


def test_when_the_time_is_spent_what_is_whole_is_recorded_and_the_rest_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = driver(1, 2, 6, 4)
    shared.settings.until = 10.0
    clock, real = [0.0], time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock[0] or real())

    class Slow(_Answers):
        def ask(self, request: Any, **how: Any) -> Any:
            clock[0] += 5.0
            return super().ask(request, **how)

    clock[0] = 1.0
    asked: list[tuple[str, Any]] = []
    Pool.of([Slow({item.space.target: item for item in shared.spaces}, asked)]).run(shared.take)
    assert asked == [("f.py::k0", (0, 2)), ("f.py::k1", (0, 2)), ("f.py::k0", "y")]
    assert [_gap(item) for item in shared.spaces] == [
        None,
        Gap("out of time", f"sweep of f.py::k1 float32: not finished: {SPENT}", "f.py::k1"),
        Gap("out of time", f"sweep of f.py::k2 float32: not begun: {SPENT}", "f.py::k2"),
    ]


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
        raise Died("stopped")

    def stop(self) -> None:
        self.stops += 1
        if self.stops > 1:
            self.ended.set()


def test_a_worker_that_starts_again_during_ctrl_c_is_stopped_again() -> None:
    shared, restarts = driver(2, 4, 4), _Restarts()
    answering = [_Interrupts(restarts.asked), restarts]
    with pytest.raises(KeyboardInterrupt):
        swept(shared, answering)
    assert restarts.ended.is_set()
