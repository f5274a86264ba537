"""The benchmark of starts and warm workers measures candidates that have verdicts, and reads where the time went."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import start
from docs import generate_figures

TIMES = """\
   0.137 s  took   1.428 s  process 19745    worker: import torch
   2.219 s  took   0.154 s  process 19986    kernel: list of /tmp/a/row_0.py
   2.430 s  took   0.250 s  process 19989    kernel: call of row_0.py::candidate_0
   2.530 s  took   0.350 s  process 19986    kernel: call of row_0.py::candidate_0
   2.730 s  took   0.500 s  process 19989    kernel: call of row_0.py::candidate_0
"""


def test_phases_are_added_up_for_the_process_that_spent_most(tmp_path: Path) -> None:
    times = tmp_path / "times.txt"
    times.write_text(TIMES)
    assert start.phases(times) == {"worker: import torch": 1.428, "kernel: call": 0.75, "kernel: list": 0.154}
    assert start.phases(tmp_path / "none.txt") == {}


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


def test_the_page_has_the_last_try_of_each_measurement() -> None:
    kinds = {"run": [9.9, 8.0], "elementwise": [10.0, 2.9], "row": [14.0, 4.04], "product": [9.6, 3.5]}
    data = {
        "environment": {"gpu": "H100", "cores": 16},
        "limits": {**start.LIMITS, "imports": start.IMPORTS},
        "side": 4096,
        **{kind: {"seconds": seconds, "phases": {"worker: import torch": 3.2}} for kind, seconds in kinds.items()},
    }
    assert generate_figures.start_times(data) == (
        "On H100 with 16 cores, the next candidate of a warm pool takes 2.9 s (an elementwise kernel of 2^24 elements; "
        "3 wanted), 4.0 s (a softmax of 4,096 rows; 5 wanted), 3.5 s (a product of 4,096 x 4,096 matrices; 8 wanted). "
        "`verify run` of one small kernel takes 8.0 s (10 wanted), its imports 3.2 s (5 wanted): "
        "[record](../reports/benchmarks/sm_90/start.json) of `python -m benchmarks.start`.\n"
    )
    del data["row"], data["product"]
    assert "2.9 s (an elementwise kernel of 2^24 elements; 3 wanted). `verify" in generate_figures.start_times(data)


def test_a_record_of_the_same_machine_is_completed(tmp_path: Path) -> None:
    def rows(gpu: str, **measured: object) -> dict[str, Any]:
        environment = {"gpu": gpu, "cores": 16, "torch": "2.11.0", "import_torch": len(measured)}
        return {"limits": start.LIMITS, "side": 4096, "environment": environment, **measured}

    path = tmp_path / "start.json"
    assert start.completed(path, rows("H100")) == rows("H100")
    path.write_text(json.dumps(rows("H100", run=1, row=2)))
    assert start.completed(path, rows("H100")) == rows("H100") | {"run": 1, "row": 2}
    assert start.completed(path, rows("H200")) == rows("H200")
