"""`verify.measure.bench`: a contender that takes the worker down is named, and the rest is timed without it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from verify import worker
from verify.backends import Cuda, Interpreter
from verify.declare.target import Declared
from verify.errors import KernelError, UsageError
from verify.measure import bench, timing
from verify.measure.requests import Contender, Time, Timed
from verify.measure.session import Session
from verify.records.record import Speed
from verify.workers import process
from verify.workers.requests import Died

KERNELS = """
import torch, verify

F = torch.nn.functional

@verify.kernel(op="gelu", dtypes=["float32"])
def mine(x):
    return F.gelu(x)

@verify.kernel(op="gelu", dtypes=["float32"], peer=True)
def broken(x):
    raise RuntimeError("no such unit")

@verify.kernel(op="linear", dtypes=["float32"], peer=True)
def layers(x, weight, bias):
    return F.linear(x, weight, bias)
"""


class FakeWorker:
    """Answers `time` requests; a contender named in `deadly` takes it down."""

    alive = False

    def __init__(self, deadly: set[str], failing: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        self.deadly, self.failing = deadly, failing
        self.asked: list[list[str]] = []
        self.beside: list[tuple[str, ...]] = []
        self.stops = 0

    def ask(self, request, *, timeout, progress):  # type: ignore[no-untyped-def]
        self.asked.append(list(request.targets))
        self.beside.append(request.beside)
        if "before" in self.deadly and request.beside:
            raise KernelError("it must leave the process as it was")
        self.alive = True
        for target in request.targets:
            progress(target)
            self.alive = target not in self.deadly
            if not self.alive:
                raise Died("the process died of SIGSEGV")
            if target in self.failing:
                raise KernelError(f"{target} raised; the GPU is unusable after it")
        progress("")
        if "anonymous" in self.deadly:
            raise Died("the process died of SIGABRT")
        speed = Speed("float32", "forward", (2,), 1.0, 1.0)
        return [Timed(target, "forward", speed) for target in request.targets]

    def stop(self) -> None:
        self.stops += 1


def time_with(worker: FakeWorker, targets: list[str], beside: list[str] | None = None) -> bench._Timings:
    timings = bench._Timings()
    request = Time(targets, "float32", (), ("forward",), 15, 0)
    bench._time(worker, request, beside or [], Session(), timings)  # type: ignore[arg-type]
    return timings


def test_who_ends_the_worker_is_named_and_the_rest_is_timed() -> None:
    fake = FakeWorker({"b"}, failing={"c"})
    timings = time_with(fake, ["a", "b", "c", "d"])
    assert fake.asked == [["a", "b", "c", "d"], ["a", "c", "d"], ["a", "d"]]
    assert fake.stops == 2
    assert set(timings.speeds) == {"a", "d"}
    assert timings.reasons == {
        "b": ["float32: the process died of SIGSEGV"],
        "c": ["float32: c raised; the GPU is unusable after it"],
    }


def test_a_death_for_which_no_contender_can_be_blamed_ends_the_group() -> None:
    timings = time_with(FakeWorker({"anonymous"}), ["a", "b"])
    assert not timings.speeds
    assert timings.reasons == {name: ["float32: the process died of SIGABRT"] for name in "ab"}


def test_a_failure_that_another_group_may_have_left_is_tried_again_alone() -> None:
    fake, beside = FakeWorker({"before"}), ["a", "b", "other"]
    timings = time_with(fake, ["a", "b"], beside)
    assert fake.beside == [("a", "b", "other"), ()] and fake.stops == 1
    assert set(timings.speeds) == {"a", "b"} and not timings.reasons
    assert beside == [], "from then on every group has a process of its own"
    named, beside = FakeWorker({"b"}), ["a", "b", "other"]
    assert time_with(named, ["a", "b"], beside).reasons == {"b": ["float32: the process died of SIGSEGV"]}
    assert named.beside == [("a", "b", "other")] * 2, "a contender that is named is to blame itself"


def entry(
    target: str, group: str, *, peer: bool = False, backends: tuple[str, ...] = ("cuda",), **fields: Any
) -> Contender:
    fields = {"dtypes": ("float32",), "lacking": ()} | fields
    kernel = Declared(target, target, "gelu", "elementwise", {}, "", backends, peer=peer, **fields)
    return Contender(kernel, group)


class Declares:
    """A worker that declares whatever it is asked for."""

    def ask(self, request, *, timeout):  # type: ignore[no-untyped-def]
        return [entry(request.target, "g")]


def test_pytorch_stands_in_once_per_group_for_its_first_judged_kernel() -> None:
    entries = [
        entry("a.py::theirs", "g", peer=True),
        entry("a.py::mine", "g"),
        entry("a.py::other", "h", peer=True),
        entry("a.py::other@eager", "h", peer=True),  # asked for by name
    ]
    found = bench._stand_ins(Declares(), entries)  # type: ignore[arg-type]
    assert [item.kernel.target for item in found] == ["a.py::mine@eager", "a.py::mine@compile", "a.py::other@compile"]
    found = bench._stand_ins(Declares(), entries, beside_peers=False)  # type: ignore[arg-type]
    assert [item.kernel.target for item in found] == ["a.py::mine@eager", "a.py::mine@compile"]


def test_only_what_can_run_here_is_timed_together(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    fake = FakeWorker(set())
    monkeypatch.setattr(process, "Worker", lambda backend: fake)
    entries = [
        entry("theirs", "i", peer=True),
        entry("a", "g"),
        entry("b", "g", dtypes=("float16", "float32")),
        entry("c", "h", dtypes=("float16",)),
        entry("absent", "g", lacking=("nobody_installs_this",)),
        entry("cpu", "g", backends=("interpreter",)),
    ]
    shapes = ((4, 4), (8, 8))
    bench.time_all(entries, bench.Bench(wanted=(), shapes=shapes), Session(dtypes=("float32", "float16")), "cuda")
    assert fake.asked == [["a", "b"], ["a", "b"], ["b"], ["b"], ["c"], ["c"], ["theirs"], ["theirs"]]
    assert set(fake.beside) == {("a", "b", "c", "theirs")}, "one process answers them all"


def test_everything_is_compiled_at_once_and_timed_alone_where_it_was_compiled(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    asked: list[tuple[str, str, int]] = []
    ended: list[str] = []
    begun = threading.Barrier(3)

    class Compiles:
        alive = True

        def __init__(self, name: str) -> None:
            self.name = name

        def ask(self, request, *, timeout, progress=lambda text: None):  # type: ignore[no-untyped-def]
            (target,) = request.targets
            asked.append((self.name, target, request.rounds))
            if request.rounds:
                return [Timed(target, "forward", None, "slow")]
            if len(asked) <= 3:
                begun.wait(timeout=60)
            if target == "b" or (target == "c" and sum(name == "c" for _, name, _ in asked) == 1):
                raise KernelError("no memory")
            return []

        def stop(self) -> None:
            ended.append(self.name)

    names = iter("xyz")
    monkeypatch.setattr(process, "Worker", lambda backend: Compiles(next(names)))
    entries, said = [entry("a", "g"), entry("b", "h"), entry("c", "i")], list[str]()
    session = Session(dtypes=("float32",), progress=said.append)
    found = bench.time_all(entries, bench.Bench(wanted=(), ahead=5), session, "cuda")
    compiled, timed = asked[:5], asked[5:]
    assert sorted(target for _, target, _ in compiled) == ["a", "b", "b", "c", "c"], "what fails is tried once more"
    assert len({worker for worker, _, _ in compiled[:3]}) == 3
    home = {target: worker for worker, target, _ in compiled}
    home["b"] = "x"  # what could not be compiled is told when the first process times it
    assert timed == [(home[target], target, 15) for target in "abc"]
    assert ended == ["x", "y", "z"]
    assert found.reasons == {name: ["forward float32: slow"] for name in "abc"}
    assert said[0] == "compiling what will be timed, 0/3"
    assert said.count("compiling what will be timed: b float32: no memory") == 2


def test_compiling_ahead_leaves_time_for_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = [100.0], list[tuple[str, int]]()
    monkeypatch.setattr(bench.time, "monotonic", lambda: clock[0])

    class Slow:
        alive = True

        def ask(self, request, *, timeout, progress=lambda text: None):  # type: ignore[no-untyped-def]
            (target,) = request.targets
            asked.append((target, request.rounds))
            clock[0] += 1.0 if request.rounds else 31.0
            return [Timed(target, "forward", None, "slow")] if request.rounds else []

        def stop(self) -> None: ...

    slow = Slow()
    monkeypatch.setattr(bench, "_Worker", lambda worker: slow)
    slow.compiled = []  # type: ignore[attr-defined]
    entries = [entry(name, name) for name in "abcdef"]
    session = Session(dtypes=("float32",), until=200.0)
    found = bench.time_all(entries, bench.Bench(wanted=(), ahead=2), session, "cuda")
    timed = [each for each in asked if each[1]]
    assert timed == [(name, 15) for name in "abcdef"] and not found.late
    assert len(asked) - len(timed) in (2, 3), "two at a time begin until 60 s have passed"


def test_a_process_that_was_replaced_has_compiled_nothing() -> None:
    fake = FakeWorker({"b"})
    worker = bench._Worker(fake)  # type: ignore[arg-type]
    requests = [Time([name], "float32", (), ("forward",), 15, 0) for name in "abc"]
    ahead = [bench.untimed(request, ["a", "b", "c"]) for request in requests]
    worker.ask(ahead[0], timeout=1.0)
    assert worker.compiled == ahead[:1]
    worker.ask(requests[0], timeout=1.0)
    assert worker.compiled == ahead[:1]
    with pytest.raises(Died):
        worker.ask(ahead[1], timeout=1.0)
    assert not worker.compiled
    worker.ask(ahead[2], timeout=1.0)
    assert worker.compiled == ahead[2:]


def test_the_workers_answers_are_what_the_parent_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides of the pipe without a GPU: the clock is a fake, the kernels run on the CPU."""
    path = tmp_path / "accuracy.py"
    path.write_text(KERNELS)

    class Clock:
        def __init__(self, device: str) -> None:
            assert device == "cpu"

        def __call__(self, calls):  # type: ignore[no-untyped-def]
            for call in calls.values():
                call()
            return dict.fromkeys(calls, 2.0)

    class Direct:
        """A worker in this process; what it is asked and what it answers goes through JSON."""

        alive = True
        stops = 0

        def ask(self, request, *, timeout, progress=lambda text: None):  # type: ignore[no-untyped-def]
            reply = worker.answer(msgspec.json.encode(request), Cuda("cpu"), progress)
            return request.read(msgspec.json.encode(reply))

        def stop(self) -> None:
            self.stops += 1

    monkeypatch.setattr(timing, "CudaClock", Clock)
    direct = Direct()
    monkeypatch.setattr(process, "Worker", lambda backend: direct)
    session = Session(dtypes=("float32",))
    settings = bench.Bench(wanted=(str(path),), shapes=((4, 8),), rounds=2)
    entries = bench.contenders(direct, settings, session)  # type: ignore[arg-type]
    names = [entry.kernel.name for entry in entries]
    assert names == ["mine", "broken", "layers", "mine@eager", "mine@compile", "layers@eager", "layers@compile"]
    entries = [each for each in entries if each.kernel.op == "gelu" and not each.kernel.name.endswith("@compile")]
    found = bench.time_all(entries, settings, session, "cuda")
    assert direct.stops == 1, "at the end, and for no failure"
    ours = found.speeds[f"{path}::mine"]
    assert [(speed.direction, speed.of_copy, speed.rounds) for speed in ours] == [
        ("forward", 1.0, 2),
        ("backward", 1.0, 2),
    ]
    assert len(found.speeds[f"{path}::mine@eager"]) == 2
    (reason, _) = found.reasons[f"{path}::broken"]
    assert reason.startswith("forward float32: broken raised RuntimeError: no such unit")


def test_the_interpreter_times_nothing() -> None:
    request = Time([], "float32", (), (), 1, 0)
    with pytest.raises(UsageError, match="speed is measured on a GPU; this is the interpreter"):
        worker._time(request, Interpreter("cpu"), lambda event: None)
