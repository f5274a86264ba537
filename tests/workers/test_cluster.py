"""A Dask cluster answers like local workers do, survives the loss of a worker, and refuses unequal ones."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.workers.dask_cluster import connected
from tests.workers.fake import FakeWorker
from verify.errors import UsageError
from verify.measure.requests import Measure
from verify.measure.session import Session, run
from verify.records.merge import identity
from verify.records.record import KernelRun, Run
from verify.search.sweep.drive import SweepSettings, sweep
from verify.search.sweep.requests import ListSpaces
from verify.search.sweep.space import CHUNK, bits_of_key
from verify.truth.formats import named
from verify.workers import cluster as clusters
from verify.workers.cluster import Cluster
from verify.workers.pool import Pool, check_equal, refuse_unlike
from verify.workers.process import Worker
from verify.workers.requests import About

pytestmark = pytest.mark.usefixtures("warm")

FLOAT32 = named("float32")

KERNELS = """
import os, time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
import torch
import verify

def dask_worker():
    "The parent of the worker, which leads the session of the processes of its kernels."
    return Path(f"/proc/{os.getsid(0)}/stat").read_text().split()[3]

@verify.kernel(op="silu", dtypes=["bfloat16"], gradients=False)
def right(x):
    return torch.where(x == -torch.inf, 0, torch.nn.functional.silu(x.double())).to(x.dtype)

@verify.kernel(op="silu", dtypes=["bfloat16"], gradients=False)
def crashes(x):
    os.abort()

@verify.kernel(op="silu", dtypes=["bfloat16"], gradients=False)
def hangs(x):
    time.sleep(600)

@verify.kernel(op="silu", dtypes=["bfloat16"], gradients=False)
def waits(x):
    here = Path(__file__).parent
    (here / f"seen.{dask_worker()}").touch()
    while not (here / "go").exists():
        time.sleep(0.05)
    return torch.where(x == -torch.inf, 0, torch.nn.functional.silu(x.double())).to(x.dtype)

@verify.kernel(op="silu", dtypes=["float32"], gradients=False)
def swept(x):
    here = Path(__file__).parent / "swept"
    (here / f"seen.{dask_worker()}").touch()
    while not (here / "go").exists():
        time.sleep(0.05)
    return torch.where(x == -torch.inf, 0, torch.nn.functional.silu(x.double())).to(x.dtype)
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cluster") / "accuracy.py"
    path.write_text(KERNELS)
    return path


@pytest.fixture(scope="module")
def cluster(target: Path) -> Iterator[Cluster]:
    with connected(2, [str(target)]) as found:
        yield found


@pytest.fixture(scope="module")
def local() -> Iterator[Worker]:
    """A worker of this machine, to compare with."""
    with Worker("interpreter") as started:
        yield started


def measure(target: Path, kernel: str) -> Measure:
    return Measure(f"{target}::{kernel}")


def timeless(done: KernelRun) -> KernelRun:
    return msgspec.structs.replace(done, seconds=0.0, peak={})


def test_the_answer_is_that_of_a_local_worker(cluster: Cluster, local: Worker, target: Path) -> None:
    request = measure(target, "right")
    heard: list[str] = []
    first, second = cluster.workers()
    remote = first.ask(request, timeout=120, progress=heard.append)
    here = local.ask(request, timeout=120)
    assert timeless(remote) == timeless(here)
    assert remote.results[0].basis.kind == "exhaustive"
    assert timeless(second.ask(request, timeout=120)) == timeless(here)
    assert any("right" in text for text in heard)


def identity_of(run: Run) -> str:
    """Returns the identity of a run without what its processes printed: a dying process lists its modules."""
    kernels = [msgspec.structs.replace(kernel, printed=None) for kernel in run.kernels]
    return identity(msgspec.structs.replace(run, kernels=kernels))


@pytest.mark.slow
def test_a_run_over_a_cluster_is_the_run_of_one_worker(cluster: Cluster, local: Worker, target: Path) -> None:
    targets = [f"{target}::right", f"{target}::crashes"]
    there = run(targets, Session(timeout=120, pool=cluster.pool()), "verify run")
    here = run(targets, Session(timeout=120, pool=Pool.of([local])), "verify run")
    assert identity_of(there) == identity_of(here)
    assert [kernel.status for kernel in there.kernels] == ["ok", "crashed"]
    assert there.kernels[1].message == "bfloat16: the process died of SIGABRT"


@pytest.mark.slow
def _seen(folder: Path, count: int) -> list[str]:
    """The Dask workers under which the kernel has started, once there are so many."""
    for _ in range(1200):
        found = [path.suffix[1:] for path in folder.glob("seen.*")]
        if len(found) >= count:
            return found
        time.sleep(0.05)
    raise AssertionError(f"the kernel started under {len(found)} workers, not {count}")


def test_a_flag_is_raised_where_the_workers_are_and_gone_afterwards(cluster: Cluster, tmp_path: Path) -> None:
    flag = tmp_path / "a folder of one machine" / "stop"
    with cluster.flag(flag) as raise_it:
        assert not flag.exists()
        raise_it()
        assert flag.exists()
    assert not flag.parent.exists()


def test_a_worker_that_differs_is_refused_by_name(cluster: Cluster) -> None:
    other = {**cluster.environment, "torch": "0.0"}
    with pytest.raises(UsageError, match="must be equal: torch is .* but '0.0' on tcp://elsewhere"):
        refuse_unlike(cluster.environment, "tcp://elsewhere", other)
    with pytest.raises(UsageError, match="tcp://elsewhere cannot run verify: no GPU"):
        refuse_unlike(cluster.environment, "tcp://elsewhere", {"error": "no GPU"})


# -- what ends a worker, which takes seconds to begin again, comes last -----------------------------------


def test_a_request_of_a_lost_worker_is_done_by_another(cluster: Cluster, target: Path) -> None:
    answers: list[KernelRun] = []
    asking = threading.Thread(
        target=lambda: answers.append(cluster.workers()[0].ask(measure(target, "waits"), timeout=120))
    )
    asking.start()
    first = _seen(target.parent, 1)
    os.kill(int(first[0]), signal.SIGKILL)
    both = _seen(target.parent, 2)
    assert first[0] in both
    (target.parent / "go").touch()
    asking.join(120)
    assert answers and answers[0].status == "ok"
    cluster._client.wait_for_workers(2, timeout=60)  # it begins again, which the next tests need


@pytest.mark.slow
def test_a_sweep_that_loses_its_workers_is_the_sweep_of_one(
    cluster: Cluster, local: Worker, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two chunks, of a thousand inputs each. Each worker has one when both are killed: none is left to take over."""
    monkeypatch.setattr(clusters, "LOOK_SECONDS", 0.2)
    folder = target.parent / "swept"
    folder.mkdir()
    border = (0x80000000 + 0x3F800000) // CHUNK * CHUNK
    low, high = (FLOAT32.to_float(bits_of_key(FLOAT32, key)) for key in (border - 1000, border + 999))
    runs: dict[str, Run] = {}

    def swept(name: str, pool: Pool) -> None:
        spaces = ListSpaces([f"{target}::swept"], dtypes=("float32",), bounds=(low, high))
        runs[name] = sweep(SweepSettings(spaces=spaces, pool=pool), "verify sweep")

    cluster._client.wait_for_workers(2, timeout=60)
    there = threading.Thread(target=swept, args=("there", cluster.pool()))
    there.start()
    for worker in _seen(folder, 2):
        os.kill(int(worker), signal.SIGKILL)
    (folder / "go").touch()
    there.join(60)
    swept("here", Pool.of([local]))
    assert runs["there"].id == runs["here"].id
    (result,) = runs["there"].kernels[0].results
    assert (result.basis.kind, result.basis.n) == ("exhaustive", 2000)


def test_an_address_without_a_scheduler_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verify.workers.cluster.CONNECT_SECONDS", 0.2)
    with pytest.raises(UsageError, match="no Dask scheduler answers at 'tcp://127.0.0.1:1'"):
        Cluster.connect("tcp://127.0.0.1:1", "interpreter")


def test_a_cluster_without_workers_says_how_to_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty:
        scheduler = SimpleNamespace(address="tcp://node0:8786")

        def scheduler_info(self) -> dict[str, Any]:
            return {"workers": {}}

        def wait_for_workers(self, count: int, timeout: float) -> None:
            clock.now += timeout
            raise TimeoutError

        def close(self) -> None:
            lines.append("closed")

    lines: list[str] = []
    clock = SimpleNamespace(now=7.0)
    monkeypatch.setattr(clusters.time, "monotonic", lambda: clock.now)
    start = "dask worker tcp://node0:8786 --nthreads 1"
    with pytest.raises(UsageError, match="the cluster has no worker after") as caught:
        Cluster(Empty(), None, (), lines.append)
    assert caught.value.hint == start
    assert lines[0] == f"the cluster has no worker; waiting 180 s for one: {start}"
    assert lines[1].startswith("the cluster has no worker; waiting 175 s") and len(lines) == 180 / 5 + 1
    assert lines[-1] == "closed"


def test_gpus_that_differ_are_refused_by_name() -> None:
    pool = Pool.of([FakeWorker(about=About("cuda", "cuda", {"gpu": name})) for name in ("H200", "H200", "H100")])
    with pytest.raises(UsageError, match="must be equal: gpu is 'H200', but 'H100' on 2"):
        check_equal(pool)
    check_equal(Pool.of(pool.workers[:2]))
    with pytest.raises(UsageError, match="worker 0 cannot run verify: no GPU"):
        check_equal(Pool.of([FakeWorker(about=UsageError("no GPU"))]))
