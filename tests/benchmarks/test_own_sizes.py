"""The measurement of problem files at their own sizes: what counts as certified, and what is within its limits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.own_sizes import judged, row_of, summary

PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 6)

    def forward(self, x, scale):
        return torch.relu(self.linear(x)) * scale

def get_inputs():
    return [torch.rand(4, 8), 2.0]

def get_init_inputs():
    return [8]
"""


def _run(*results: tuple[str, str], gaps: tuple[str, ...] = ()) -> dict[str, Any]:
    found = [{"output": name, "status": status, "basis": {"kind": "observed", "n": 4}} for name, status in results]
    return {"kernels": [{"status": "ok", "results": found}], "incomplete": [{"text": text} for text in gaps]}


def test_what_is_certified_has_a_verdict() -> None:
    found = judged(_run(("y", "ok"), ("dx", "wrong")))
    assert found["forward"] and found["gradients"]
    found = judged(_run(("y", "ok"), ("dx", "undecided")))
    assert found["forward"] and not found["gradients"]
    assert not judged(_run(("y", "undecided"), ("dx", "ok")))["gradients"]
    assert not judged(_run())["forward"]
    assert not judged(_run(("y", "ok"), gaps=("dx of [4]: one element depends on more numbers",)))["gradients"]


def test_shares_and_times_have_limits() -> None:
    good = {"seconds": 10.0, "ended": 60.0, "forward": True, "gradients": True}
    rows = {str(number): good | {"ended": 10.0 * number} for number in range(1, 11)}  # one after the other: 6 a minute
    assert summary(rows, 1)[1]
    late = good | {"seconds": 90.0}
    assert not summary(rows | {"late": late, "later": late}, 1)[1]
    assert not summary(rows | {"a": good | {"forward": False}, "b": good | {"forward": False}}, 1)[1]
    assert not summary(rows | {"a": good | {"gradients": False, "why": "CUDA out of memory"}}, 1)[1]
    assert not summary(rows, 4)[1]
    assert summary({name: row | {"ended": 10.0} for name, row in rows.items()}, 4)[1]  # 60 a minute
    assert "100.0% certified forward" in summary(rows, 1)[0]


@pytest.mark.slow
def test_a_second_start_goes_on_from_the_record(tmp_path: Path) -> None:
    (tmp_path / "level1").mkdir()
    (tmp_path / "level1" / "1_small.py").write_text(PROBLEM)
    record = tmp_path / "own.jsonl"
    command = [sys.executable, "-m", "benchmarks.own_sizes", "--files", str(tmp_path), "--record", str(record)]
    first = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert first.returncode < 2, first.stdout + first.stderr  # the limits are for a machine with nothing else to do
    (line,) = map(json.loads, record.read_text().splitlines())
    assert row_of(line)["gradients"] and line["target"] == "level1_1_small.py::kernel"
    second = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert second.stdout.splitlines()[-1] == first.stdout.splitlines()[-1]
    assert len(record.read_text().splitlines()) == 1
