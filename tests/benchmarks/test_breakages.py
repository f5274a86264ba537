"""The default limits tell broken kernels from honest ones."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from torch.nn import functional as F  # noqa: N812

from benchmarks.breakages import __main__ as command
from benchmarks.breakages.measure import measure
from benchmarks.breakages.programs import Program
from benchmarks.breakages.table import summary, tables

LINEAR = Program("linear", "products", F.linear, [(4, 40), (3, 40), (3,)])


def test_the_default_limit_tells_zeros_from_correct_rounding() -> None:
    found = measure(LINEAR, inputs=["ordinary"])
    assert all(not one.passes for one in found.broken if one.breakage == "zeros")
    assert all(one.passes for one in found.honest if one.name == "float64, rounded")
    assert "| linear |" in tables([found])


@pytest.mark.slow
def test_the_default_limits_separate_honest_kernels_from_broken_ones(tmp_path: Path) -> None:
    command.main(["--quick", "--json", str(tmp_path / "quick.json")])
    measured = msgspec.json.decode((tmp_path / "quick.json").read_bytes(), type=command.Record).programs
    found = summary(measured)
    assert len(measured) == 15 and found.broken > 500
    assert not (found.passed or found.zeros or found.errors)
    assert not found.stale
    assert [text for text in found.failed if not text.startswith("gelu, ")] == []
