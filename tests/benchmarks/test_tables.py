"""The tables of attention, losses and norms: their kernels, one part with its steps, an early end, and the page."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from benchmarks import tables
from benchmarks.tables import TABLES, Plan, measure_part, page, record_of, targets

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
