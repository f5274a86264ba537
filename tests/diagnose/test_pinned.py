"""Every run measures the corpus' cases again, as results of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import verify
from verify import backends
from verify.cases import Case, corpus
from verify.cases.plan import PLAN_SIZES
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.records.record import Result, value_of


@verify.kernel(op="silu", dtypes=["float32"], gradients=["x"], name="needle")
def needle(x: torch.Tensor) -> torch.Tensor:
    """Right everywhere but at one float32 in 2^32."""
    y = torch.where(x == -torch.inf, 0, torch.nn.functional.silu(x.double()))
    return torch.where(x == 1.2345678, y * 1.001, y).to(x.dtype)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text("[tool.verify]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PLAN_SIZES, "small", replace(PLAN_SIZES["small"], elements=1 << 10))
    return tmp_path


def measure() -> dict[str, Result]:
    backend = backends.select()
    backends.activate(backend)
    return {result.output: result for result in measure_kernel(needle, Measure("t.py::needle"), backend).results}


def test_a_pinned_case_is_measured_by_every_later_run(project: Path) -> None:
    assert set(measure()) == {"y", "dx"}
    bits = torch.tensor([1.2345678], dtype=torch.float32).view(torch.int32).item()
    case = Case(dtype="float32", dims=(1,), fill="ones", values={"x": f"{bits:08x}"})
    corpus.add(corpus.entry("needle", "t.py::needle", "silu", case, result="y", index=0, why="found by a hunt"))
    found = measure()
    assert set(found) == {"y", "dx", "y (pinned)"}
    assert found["y"].status == "ok", "random values do not find it"
    assert found["y (pinned)"].status == "wrong"
    assert value_of(found["y (pinned)"].figures.max_ulp) > 4000
    before = found["y (pinned)"].properties
    gradient = Case(dtype="float32", dims=(1,), fill="ones", upstream="ones", values={"x": f"{bits:08x}"})
    corpus.add(corpus.entry("needle", "t.py::needle", "silu", gradient, result="dx", index=0, why="its slope"))
    found = measure()
    assert set(found) == {"y", "dx", "y (pinned)", "dx (pinned)"}
    assert found["y (pinned)"].properties == before, "pinning more does not change what the bound is about"
    assert found["y (pinned)"].properties != found["y"].properties
