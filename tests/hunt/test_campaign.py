"""Hunts spread over a cluster give the record that one worker gives."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from verify.hunt.campaign import Campaign, run
from verify.hunt.settings import Settings
from verify.record import Run

pytest.importorskip("distributed")


@pytest.mark.slow
def test_a_campaign_over_a_cluster_is_that_of_one_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from verify.cluster import Cluster

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
