"""Random programs of like= are the same everywhere, are judged, and a wrong verdict on one is a finding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import fuzz_programs
from benchmarks.drafts import Program, prepared
from benchmarks.fuzz_programs import Verdicts

SOFT = "def program(x0):\n    a = torch.softmax(x0, -1)\n    return a * x0"


def program(source: str, *rows: list[float], dtype: str = "float32") -> Program:
    x = torch.tensor(rows, dtype=getattr(torch, dtype))
    return prepared(Program("0:0", dtype, source, {"x0": x}, {"x0": "stated"}))


SOFTMAX = [[0.5, -1.25, 2.0], [1.5, 0.25, -0.75]]


def test_programs_are_judged_without_a_harness_that_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fuzz_programs.main(["--seed", "5", "--programs", "2", "--json", str(tmp_path / "found.json")])
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["table"] in printed
    assert [row["program"] for row in found["rows"]] == ["5:0", "5:1"]
    for row in found["rows"]:
        assert sum(count for name, count in row["counts"].items() if name.startswith("PyTorch ")) == 1
        assert "harness" not in row["counts"]


def test_right_results_pass_and_wrong_ones_are_found() -> None:
    verdicts = Verdicts(program(SOFT, *SOFTMAX))
    verdicts.judge()
    assert verdicts.counts["PyTorch passes"] == verdicts.counts["right passes"] == 1
    assert verdicts.counts["scaled found"] == verdicts.counts["zeros found"] == 2
    assert verdicts.counts["dropped found"] == 1
    assert not verdicts.findings
