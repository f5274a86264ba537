"""Problem files at their own sizes: what counts as certified, what is within its limits, and a lot of one file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import own_sizes

PROBLEM = """
import torch


class Model(torch.nn.Module):
    def forward(self, x, scale):
        return torch.nn.functional.silu(x) * {scale}


def get_inputs():
    return [torch.rand(4, 8), 2.0]


def get_init_inputs():
    return []
"""


def row(*results: tuple[str, str], gaps: tuple[str, ...] = ()) -> dict[str, Any]:
    run = {
        "kernels": [{"status": "ok", "results": [{"output": name, "status": status} for name, status in results]}],
        "incomplete": [{"text": text} for text in gaps],
    }
    return own_sizes.row_of({"seconds": 1.0, "ended": 1.0, "record": run})


def test_what_is_certified_has_a_verdict() -> None:
    found = row(("y", "ok"), ("dx", "wrong"))
    assert found["forward"] and found["gradients"]
    found = row(("y", "ok"), ("dx", "undecided"))
    assert found["forward"] and not found["gradients"]
    assert not row(("y", "undecided"), ("dx", "ok"))["gradients"] and not row()["forward"]
    assert not row(("y", "ok"), gaps=("dx of [4]: one element depends on more numbers",))["gradients"]
    ended = own_sizes.row_of({"seconds": 1.0, "ended": 1.0, "problem": "CUDA out of memory"})
    assert not ended["forward"] and ended["why"] == "CUDA out of memory"


def test_shares_and_times_have_limits() -> None:
    good = {"seconds": 10.0, "forward": True, "gradients": True, "status": "ok"}
    rows = {str(number): good | {"ended": 10.0 * number} for number in range(1, 11)}  # one after the other: 6 a minute
    assert own_sizes.summary(rows, 1)[1] and not own_sizes.summary(rows, 14)[1]
    assert own_sizes.summary({name: each | {"ended": 10.0} for name, each in rows.items()}, 14)[1]  # 60 a minute
    for change in ({"forward": False}, {"gradients": False}, {"status": "wrong"}, {"why": "ended by SIGKILL"}):
        assert not own_sizes.summary(rows | {"1": rows["1"] | change}, 1)[1], change
    assert not own_sizes.summary({name: each | {"seconds": 15.1} for name, each in rows.items()}, 1)[1]


@pytest.mark.usefixtures("warm")
def test_a_lot_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2):
        (tmp_path / f"{number}.py").write_text(PROBLEM.format(scale=number))
    given = ["own_sizes", "--lot", "1", "--count", "1", "--files", str(tmp_path), "--record", str(tmp_path / "r.jsonl")]
    monkeypatch.setattr(sys, "argv", given)
    assert own_sizes.main() in (0, 1), "1 where the machine is slow"
    assert "1 files: 100.0% certified forward, 100.0% with gradients, PyTorch wrong in 0" in capfd.readouterr().out
