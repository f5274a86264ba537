"""The benchmark of starts and warm workers measures candidates that have verdicts, and reads where the time went."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import start


def test_a_measurement_is_within_its_limit_by_its_last_try() -> None:
    row = {"seconds": [9.0, 3.0], "phases": {}, "failed": []}
    assert start.within("elementwise", row, start.LIMITS)
    assert not start.within("elementwise", {**row, "seconds": [1.0, 3.1]}, start.LIMITS)
    assert not start.within("elementwise", {**row, "failed": ["try 0: no verdict"]}, start.LIMITS)
    imports = {"worker: import torch": 5.1}
    assert not start.within("run", {**row, "phases": imports}, start.LIMITS)
    assert start.within("row", {**row, "phases": imports}, start.LIMITS), "only a start imports torch"


def test_every_try_needs_a_verdict(tmp_path: Path) -> None:
    found = start.repeated(tmp_path / "times.txt", 2, lambda number: ("out of memory", number == 0))
    assert len(found["seconds"]) == 2 and found["failed"] == ["try 1: out of memory"]
    assert not start.judged({"kernels": []}) and not start.judged({"kernels": [{"results": []}]})
    assert not start.judged({"kernels": [{"results": [{"status": "undecided"}]}]})


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("kind", ["elementwise", "product"])
def test_candidates_are_judged_by_one_warm_worker(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    times = tmp_path / "times.txt"
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})  # more cores are forks for each case
    monkeypatch.setenv(start.VARIABLE, str(times))
    options = SimpleNamespace(backend="interpreter", side=4, candidates=2)
    found = start.candidates(kind, tmp_path, times, options)  # type: ignore[arg-type]
    assert found["failed"] == [] and len(found["seconds"]) == 2
    assert "kernel: call" in found["phases"] and "worker: import torch" not in found["phases"], "the second is warm"
