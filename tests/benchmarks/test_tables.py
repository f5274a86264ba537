"""The tables of attention, losses and norms: their kernels, one part with its steps, an early end, and the page."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tables
from benchmarks.tables import TABLES, Part, Plan, measure_part, page, record_of, targets
from verify.backends import Backend

ROOT = Path(__file__).parents[2]
MATH = "examples/attention.py::sdpa_math"


def plan(out: Path, target: str = MATH, until: float = 1e12) -> Plan:
    return Plan("attention", target, out, quick=True, hunt=0.1, until=until)


def test_a_table_has_every_kernel_of_its_files() -> None:
    names = [each.partition("::")[2] for each in targets(TABLES["attention"], "")]
    assert names[:4] == ["sdpa_math", "sdpa_flash", "sdpa_efficient", "sdpa_cudnn"]
    assert {"compiled", "flex", "triton_tutorial", "triton_tutorial_lse"} < set(names)
    assert not any(name.startswith("_") for name in names) and names[-1] == "causal_attention"
    losses = [each.partition("::")[2] for each in targets(TABLES["losses"], "")]
    formulas = [each.removeprefix("eager_") for each in losses if each.startswith("eager_")]
    assert len(formulas) == 11 and not set(formulas) & set(losses)
    assert {f"compiled_{each}" for each in formulas} < set(losses)
    others = {each for each in losses if each.startswith(("liger_", "fla_", "own_"))}
    assert {"liger_kl_div", "fla_cross_entropy", "own_layer_norm"} < others and len(others) == len(losses) - 22


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the part of one kernel in one dtype at tiny sizes."""
    out = tmp_path_factory.mktemp("attention")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "DTYPES", ("bfloat16",))
        measure_part(plan(out))
    return out


@pytest.mark.slow
def test_a_part_has_figures_times_and_finds_with_replays(measured: Path, backend: Backend) -> None:
    held = json.loads(plan(measured).path.read_text())
    steps = held["steps"]
    assert held["done"] and not any("reason" in each for each in steps.values())
    randn = steps["bfloat16/randn"]
    assert randn["replay"].startswith(f"verify replay {MATH} '{{")
    assert list(randn["results"]) == ["y", "dq", "dk", "dv"]
    for each in randn["results"].values():
        assert each["unit"] == "noise" and 0 <= each["max"] <= each["limit"] and each["same bits"]
        assert each["n"] == 33 * 16 and 0 <= each["misrounded"] < each["n"]
    assert steps["bfloat16/time"]["forward"] > 0 and steps["bfloat16/time"]["backward"] > 0
    assert all(steps[f"bfloat16/hunt {name}"]["replay"].startswith("verify replay") for name in randn["results"])


def test_an_error_and_the_end_of_the_time_are_reasons(tmp_path: Path) -> None:
    def fails() -> Any:
        raise RuntimeError("no viable backend\nand more")

    part = Part(plan(tmp_path))
    part.step("float16/randn", fails)
    assert json.loads(part.plan.path.read_text())["steps"]["float16/randn"] == {"reason": "no viable backend"}
    late = Part(plan(tmp_path, until=time.time() - 1))
    assert late.step("float16/sinks", fails) is None and "float16/sinks" not in late.steps
    text = page(record_of("attention", [plan(tmp_path), plan(tmp_path, "examples/attention.py::flex")]))
    assert "- sdpa_math: float16: no viable backend; the time did not reach all of it" in text
    assert "- flex: the time did not reach it" in text


def test_the_page_has_a_row_for_each_result_and_the_worst_input(measured: Path) -> None:
    text = page(record_of("attention", [plan(measured)]))
    rows = [line for line in text.splitlines() if line.startswith(("| sdpa_math", "|  | d"))]
    assert len(rows) == 4 and all(row.count("|") == 8 and "→" in row for row in rows)
    assert "**sdpa_math**" in text and f"verify replay {MATH}" in text


MEASURED = [name for name in TABLES if (ROOT / f"reports/benchmarks/sm_90/{name}.json.gz").exists()]


@pytest.mark.parametrize("name", MEASURED)
def test_the_page_is_made_of_the_record(name: str) -> None:
    assert "attention" in MEASURED
    record = json.loads(gzip.decompress((ROOT / f"reports/benchmarks/sm_90/{name}.json.gz").read_bytes()))
    assert (ROOT / "docs" / f"{name}.md").read_text() == page(record)
