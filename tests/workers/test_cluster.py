"""A Dask cluster answers like local workers do, survives the loss of a worker, and refuses unequal ones."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.cluster import row_of
from verify.errors import UsageError
from verify.measure.session import Session, run
from verify.records.record import Run
from verify.sweep.drive import Settings, sweep
from verify.sweep.space import CHUNK, bits_of_key
from verify.truth.formats import named
from verify.workers.cluster import Cluster, digest, gpus
from verify.workers.process import Worker, WorkerDied, WorkerTimeout

FLOAT32 = named("float32")

KERNELS = """
import os, time
from pathlib import Path
import torch
import verify

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
    (here / f"seen.{os.getppid()}").touch()
    while not (here / "go").exists():
        time.sleep(0.05)
    return torch.where(x == -torch.inf, 0, torch.nn.functional.silu(x.double())).to(x.dtype)

@verify.kernel(op="silu", dtypes=["float32"], gradients=False)
def swept(x):
    here = Path(__file__).parent / "swept"
    (here / f"seen.{os.getppid()}").touch()
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
    with Cluster.local(["", ""], "interpreter", [str(target)]) as found:
        yield found


def measure(target: Path, kernel: str) -> dict[str, object]:
    return {"do": "measure", "target": f"{target}::{kernel}", "seed": 0, "dtypes": [], "laws": ""}


def timeless(reply: dict) -> dict:
    return {**reply["run"], "seconds": 0.0}


def test_the_answer_is_that_of_a_local_worker(cluster: Cluster, target: Path) -> None:
    request = measure(target, "right")
    heard: list[str] = []
    first, second = cluster.workers()
    remote = first.ask(request, timeout=120, progress=heard.append)
    with Worker("interpreter") as worker:
        local = worker.ask(request, timeout=120)
    assert timeless(remote) == timeless(local)
    assert remote["run"]["results"][0]["basis"]["kind"] == "exhaustive"
    assert timeless(second.ask(request, timeout=120)) == timeless(local)
    assert any("right" in text for text in heard)


def test_a_run_over_a_cluster_is_the_run_of_one_worker(cluster: Cluster, target: Path) -> None:
    targets = [f"{target}::right", f"{target}::crashes"]
    there = run(targets, Session(backend="interpreter", timeout=120, cluster=cluster), "verify run")
    here = run(targets, Session(backend="interpreter", timeout=120, jobs=1), "verify run")
    assert there.id == here.id
    assert [kernel.status for kernel in there.kernels] == ["ok", "crashed"]


def test_a_crash_and_a_hang_are_answers_and_the_cluster_goes_on(cluster: Cluster, target: Path) -> None:
    worker = cluster.workers()[0]
    with pytest.raises(WorkerDied, match="SIGABRT"):
        worker.ask(measure(target, "crashes"), timeout=120)
    with pytest.raises(WorkerTimeout, match="no answer within 3 s"):
        worker.ask(measure(target, "hangs"), timeout=3)
    assert worker.ask(measure(target, "right"), timeout=120)["run"]["status"] == "ok"


def test_a_request_of_a_lost_worker_is_done_by_another(cluster: Cluster, target: Path) -> None:
    answers: list[dict] = []
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
    assert answers and answers[0]["run"]["status"] == "ok"


def test_a_sweep_that_loses_a_worker_is_the_sweep_of_one(cluster: Cluster, target: Path) -> None:
    """Two chunks, of a thousand inputs each; the worker that is killed has one of them."""
    folder = target.parent / "swept"
    folder.mkdir()
    border = (0x80000000 + 0x3F800000) // CHUNK * CHUNK
    low, high = (FLOAT32.to_float(bits_of_key(FLOAT32, key)) for key in (border - 1000, border + 999))
    runs: dict[str, Run] = {}

    def swept(name: str, cluster: Cluster | None) -> None:
        settings = Settings(backend="interpreter", dtypes=("float32",), bounds=(low, high), cluster=cluster, jobs=1)
        runs[name] = sweep([f"{target}::swept"], settings, "verify sweep")

    there = threading.Thread(target=swept, args=("there", cluster))
    there.start()
    os.kill(int(_seen(folder, 1)[0]), signal.SIGKILL)
    (folder / "go").touch()
    there.join(120)
    swept("here", None)
    assert runs["there"].id == runs["here"].id
    (result,) = runs["there"].kernels[0].results
    assert (result.basis.kind, result.basis.n) == ("exhaustive", 2000)


def test_each_place_asks_a_worker_of_its_own_and_what_it_took_is_counted(cluster: Cluster, target: Path) -> None:
    before, requests = dict(cluster.spent), Counter(cluster.requests)
    first, second = cluster.workers()
    for worker in (first, first, second):
        worker.ask({"do": "list", "target": f"{target}::right"}, timeout=120)
    assert Counter(cluster.requests) - requests == {"list": 3}
    changed = {address for (address, kind), total in cluster.spent.items() if total > before.get((address, kind), 0.0)}
    assert changed == {first._address, second._address} and len(changed) == 2


def test_the_benchmark_says_where_the_time_went(cluster: Cluster, target: Path) -> None:
    settings = Settings(backend="interpreter", baseline=True, cluster=cluster)
    row = row_of(cluster, settings, [f"{target}::right"], 1)
    assert row["workers"] == 2 and row["seconds"] == [row["median_s"]]
    assert row["requests"] == {"environment": 1, "list": 1, "sweep chunks": 1, "sweep record": 1, "sweep spaces": 1}
    assert 0 < sum(row["busy"]) <= len(row["busy"]) and row["own_s"] > 0
    assert sum(row["worker_s"].values()) == pytest.approx(sum(row["busy"]) * row["median_s"], abs=0.01)


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
        cluster._refuse_unlike("tcp://elsewhere", other)
    with pytest.raises(UsageError, match="tcp://elsewhere cannot run verify: no GPU"):
        cluster._refuse_unlike("tcp://elsewhere", {"error": "no GPU"})


def test_what_must_be_equal_holds_the_files(cluster: Cluster, target: Path, tmp_path: Path) -> None:
    assert cluster.environment[str(target)] == digest(target)
    changed = tmp_path / target.name
    changed.write_text(KERNELS + "\n")
    assert digest(changed) != digest(target)
    assert digest(tmp_path / "nothing.py") == "missing"


def test_nobody_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verify.workers.cluster.CONNECT_SECONDS", 1.0)
    with pytest.raises(UsageError, match="no Dask scheduler answers at 'tcp://127.0.0.1:1'"):
        Cluster.connect("tcp://127.0.0.1:1", "interpreter")


@pytest.mark.parametrize(
    ("request_", "visible", "seen", "devices"),
    [
        ("all", None, 2, ["0", "1"]),
        ("all", "3,5", 2, ["3", "5"]),
        ("1", None, 4, ["0"]),
        ("3", None, 4, ["0", "1", "2"]),
        ("0,2", None, 4, ["0", "2"]),
        ("1,0", "GPU-a,GPU-b", 2, ["GPU-b", "GPU-a"]),
    ],
)
def test_gpus_by_count_number_or_all(
    request_: str, visible: str | None, seen: int, devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus(request_, seen) == devices


@pytest.mark.parametrize(
    ("request_", "seen", "message"),
    [
        ("all", 0, "this process sees none"),
        ("0", 2, "from 1 to 2 .* received 0"),
        ("3", 2, "from 1 to 2 .* received 3"),
        ("0,2", 2, "numbers below 2"),
        ("0,0", 2, "names a GPU twice"),
        ("two", 2, "received 'two'"),
        ("-1", 2, "received '-1'"),
    ],
)
def test_impossible_gpus(request_: str, seen: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UsageError, match=message):
        gpus(request_, seen)
