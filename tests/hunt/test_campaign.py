"""Hunts spread over a cluster give the record that one worker gives."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from verify.hunt import campaign
from verify.hunt.campaign import Campaign, run
from verify.hunt.settings import Settings
from verify.records.record import Run

pytest.importorskip("distributed")


class _Listed:
    """A worker that knows one kernel."""

    alive = True

    def ask(self, request: dict[str, Any], *, timeout: float, progress: Any = None) -> dict[str, Any]:
        assert request["do"] == "list", "nothing else is asked of a kernel that cannot be imported"
        about = {"name": "k", "op": "silu", "params": {}, "promise": "", "peer": False, "backends": ["cuda"]}
        return {"kernels": [{**about, "lacking": ["quack"]}]}

    def stop(self) -> None: ...


def test_a_kernel_whose_package_is_missing_is_skipped() -> None:
    (quarry,) = campaign._quarries(_Listed(), "k.py", "cuda", Campaign(settings=Settings(evaluations=1)))
    assert quarry.failure == ("skipped", "needs quack, which is not installed")


def test_ctrl_c_asks_wherever_a_hunt_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that ends a hunt has to exist on the machine of its worker, not only here."""
    waits = iter([KeyboardInterrupt, None])

    def settle(waiting: Any) -> None:
        if (error := next(waits)) is not None:
            raise error

    monkeypatch.setattr(campaign, "_settle", settle)
    told = Campaign(settings=Settings(evaluations=1))
    asked: list[bool] = []
    stop = tmp_path / "stop"
    campaign._hunt_all([_Listed()], [], told, stop, lambda: asked.append(stop.exists()))
    assert told.interrupted and asked == [True]


@pytest.mark.slow
def test_a_campaign_over_a_cluster_is_that_of_one_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from verify.workers.cluster import Cluster

    shutil.copy(Path(__file__).parent / "quarry.py", tmp_path / "k.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    targets = ["k.py::right", "k.py::one_exponent", "k.py::compared"]

    def hunted(cluster: Cluster | None) -> Run:
        settings = Settings(evaluations=20_000)
        return run(targets, Campaign(settings=settings, backend="interpreter", cluster=cluster), "verify hunt")

    alone = hunted(None)
    with Cluster.local(["", ""], "interpreter", ["k.py"]) as cluster:
        spread = hunted(cluster)
    assert [kernel.status for kernel in alone.kernels] == ["ok", "wrong", "wrong"]
    for one, other in zip(alone.kernels, spread.kernels, strict=True):
        assert msgspec.structs.replace(one, seconds=0.0) == msgspec.structs.replace(other, seconds=0.0)
