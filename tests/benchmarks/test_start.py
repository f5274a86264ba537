"""The benchmark of starts and warm workers measures candidates that have verdicts, and reads where the time went."""

from __future__ import annotations

from pathlib import Path

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
