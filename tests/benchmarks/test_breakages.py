"""The breakages do what they say, honest twins are equal, and the exit code is 1 as soon as a broken kernel passes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from torch.nn import functional as F  # noqa: N812

from benchmarks.breakages import __main__ as command
from benchmarks.breakages import measure as measuring
from benchmarks.breakages.judging import Judgement, Results
from benchmarks.breakages.measure import BREAKAGES, measure
from benchmarks.breakages.programs import Program
from benchmarks.breakages.table import summary, tables

LINEAR = Program("linear", "products", F.linear, [(4, 40), (3, 40), (3,)])


def _judged(passes: Any) -> Any:
    """A seam whose verdict is `passes(label, result)`."""

    def judge(kernel: Any, inputs: Results, upstream: Results, candidates: Mapping[str, Results], dtype: str) -> Any:
        return {
            label: {name: Judgement(passes(label, name), 1.0, rms=9.0) for name in results}
            for label, results in candidates.items()
        }

    return judge


def _right(label: str, result: str) -> bool:
    return label.split(":")[0] not in BREAKAGES


@pytest.mark.parametrize(
    ("passes", "text"),
    [
        (_right, ""),
        (lambda label, result: _right(label, result) or label.startswith("TF32"), "TF32 operands"),
        (lambda label, result: _right(label, result) or (label, result) == ("half: half", "dx1"), "half"),
        (lambda label, result: False, "0.0% of the honest kernels pass"),
    ],
)
def test_the_exit_code_is_1_when_a_broken_kernel_passes_or_honest_ones_do_not(
    passes: Any, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for module in (command, measuring):
        monkeypatch.setattr(module, "programs", lambda: {"linear": LINEAR})
    monkeypatch.setattr(measuring, "measure", partial(measure, judged=_judged(passes)))
    code = command.main(["--jobs", "1", "--json", str(tmp_path / "record.json")])
    said = capsys.readouterr().out
    assert code == bool(text) and text in said
    assert said.splitlines()[-2] == ("The limits do not separate them." if text else "The limits separate them.")
    record = msgspec.json.decode((tmp_path / "record.json").read_bytes(), type=command.Record)
    assert [each.program for each in record.programs] == ["linear"] and len(record.programs[0].outcomes) > 60


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
