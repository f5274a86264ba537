"""`verify.measure.bench`: a contender that takes the worker down is named, and the rest is timed without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from verify import worker
from verify.backends import Cuda
from verify.declare.target import Declared
from verify.errors import KernelError
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


def time_with(worker: FakeWorker, targets: list[str], beside: list[str] | None = None) -> bench.Timings:
    timings = bench.Timings(list)
    request = Time(targets, "float32", (), ("forward",), 15, 0)
    bench._time(worker, request, beside or [], Session(), timings)  # type: ignore[arg-type]
    return timings


def test_who_ends_the_worker_is_named_and_the_rest_is_timed() -> None:
    fake = FakeWorker({"b"}, failing={"c"})
    timings = time_with(fake, ["a", "b", "c", "d"])
    assert fake.asked == [["a", "b", "c", "d"], ["a", "c", "d"], ["a", "d"]]
    assert fake.stops == 2
    assert all(isinstance(each, Speed) for name in "ad" for each in timings[name])
    reasons = [["float32: the process died of SIGSEGV"], ["float32: c raised; the GPU is unusable after it"]]
    assert [timings["b"], timings["c"]] == reasons and len(timings) == 4


def test_a_death_for_which_no_contender_can_be_blamed_ends_the_group() -> None:
    timings = time_with(FakeWorker({"anonymous"}), ["a", "b"])
    assert timings == {name: ["float32: the process died of SIGABRT"] for name in "ab"}


def entry(
    target: str, group: str, *, peer: bool = False, backends: tuple[str, ...] = ("cuda",), **fields: Any
) -> Contender:
    fields = {"dtypes": ("float32",), "lacking": ()} | fields
    kernel = Declared(target, target, "gelu", "elementwise", {}, "", backends, peer=peer, **fields)
    return Contender(kernel, group)


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
    entries = bench.contenders(direct, settings)  # type: ignore[arg-type]
    names = [entry.kernel.name for entry in entries]
    assert names == ["mine", "broken", "layers", "mine@eager", "mine@compile", "layers@eager", "layers@compile"]
    entries = [each for each in entries if each.kernel.op == "gelu" and not each.kernel.name.endswith("@compile")]
    found, _ = bench.time_all(entries, settings, session, "cuda")
    assert direct.stops == 1, "at the end, and for no failure"
    ours = found[f"{path}::mine"]
    assert [(speed.direction, speed.of_copy, speed.rounds) for speed in ours] == [
        ("forward", 1.0, 2),
        ("backward", 1.0, 2),
    ]
    assert len(found[f"{path}::mine@eager"]) == 2
    (reason, _) = found[f"{path}::broken"]
    assert reason.startswith("forward float32: broken raised RuntimeError: no such unit")
