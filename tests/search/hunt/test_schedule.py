"""Hunts spread over a cluster give the record that one worker gives."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.workers.dask_cluster import connected
from verify.declare.requests import Listed, ListKernels
from verify.declare.target import Declared
from verify.measure.source import NoResult
from verify.records.part_store import PartStore
from verify.records.record import Run
from verify.search.hunt import schedule
from verify.search.hunt.requests import DoHunt, Hunt, Settings
from verify.search.hunt.schedule import HuntSession, run
from verify.workers.pool import Pool
from verify.workers.requests import Died

# found, not imported: every process of a test run imports this module, and few run its tests
pytestmark = pytest.mark.skipif(find_spec("distributed") is None, reason="needs distributed")


class _Listed:
    """A worker that knows one kernel."""

    alive = True

    def ask(self, request: Any, *, timeout: float, progress: Any = None) -> Any:
        assert isinstance(request, ListKernels), "nothing else is asked of a kernel that cannot be imported"
        return Listed("", [Declared("k.py::k", "k", "silu", "elementwise", {}, "", ("cuda",), (), lacking=("quack",))])

    def stop(self) -> None: ...


def test_a_kernel_whose_package_is_missing_is_skipped(tmp_path: Path) -> None:
    queue = schedule._Hunts(["k.py"], HuntSession(settings=Settings(evaluations=1)), tmp_path / "stop", ExitStack())
    ((of, hunts),) = queue.hunts_of(Pool.of([_Listed()]), "k.py", "cuda")
    queue.enqueue([(of, hunts)], 1)
    entry = queue.entry(of)
    assert (entry.status, entry.message, hunts) == ("skipped", "needs quack, which is not installed", [])


def test_hunts_on_two_workers_have_twice_the_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    of = schedule._Hunted(Declared("k.py::k", "k", "silu", "elementwise", {}, "", ("cuda",), ()))
    hunts = [Hunt("float32", name) for name in ("y", "dx", "dw", "db")]
    session = HuntSession(settings=Settings(generations=4, seconds=20.0), until=16.0)
    for workers, seconds in ((1, 4.0), (2, 8.0), (9, 20.0)):
        queue = schedule._Hunts([], session, tmp_path / "stop", ExitStack())
        queue.enqueue([(of, hunts)], workers)
        job = queue.take(None)
        assert job is not None and isinstance(job.request, DoHunt)
        assert job.request.settings.seconds == seconds


def test_ctrl_c_asks_wherever_a_hunt_runs(tmp_path: Path) -> None:
    """The file that ends a hunt has to exist on the machine of its worker, not only here."""
    session = HuntSession(settings=Settings(evaluations=1))
    stop = tmp_path / "stop"
    asked: list[bool] = []
    queue = schedule._Hunts([], session, stop, ExitStack())
    queue.raise_flag = lambda: asked.append(stop.exists())
    queue.on_interrupt()
    assert queue.was_interrupted and asked == [True]


def test_a_hunt_that_ends_by_ctrl_c_is_repeated_by_the_next_start(tmp_path: Path) -> None:
    of = schedule._Hunted(Declared("k.py::k", "k", "silu", "elementwise", {}, "", ("cuda",), ()))
    kept = PartStore(tmp_path / "hunt.parts")
    session = HuntSession(settings=Settings(evaluations=1), kept=kept)
    for interrupted in (True, False):
        queue = schedule._Hunts([], session, tmp_path / "stop", ExitStack())
        queue.enqueue([(of, [Hunt("float32", f"y{interrupted}")])], 1)
        [unit] = queue.waiting
        if interrupted:
            queue.on_interrupt()
        queue.failed(unit, NoResult.of(Died("SIGKILL"), 1.0), 1.0)
        assert of.done[unit.key].status == "crashed" and kept.begun is not interrupted


@pytest.mark.slow
def test_hunts_over_a_cluster_are_those_of_one_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(Path(__file__).parent / "quarry.py", tmp_path / "k.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    targets = ["k.py::right", "k.py::one_exponent", "k.py::compared"]

    def hunted(pool: Pool | None) -> Run:
        settings = Settings(evaluations=20_000)
        return run(targets, HuntSession(settings=settings, backend="interpreter", pool=pool), "verify hunt")

    alone = hunted(None)
    with connected(2, ["k.py"]) as cluster:
        spread = hunted(cluster.pool())
    assert [kernel.status for kernel in alone.kernels] == ["ok", "wrong", "wrong"]
    for one, other in zip(alone.kernels, spread.kernels, strict=True):
        assert msgspec.structs.replace(one, seconds=0.0) == msgspec.structs.replace(other, seconds=0.0)
