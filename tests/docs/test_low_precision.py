"""The page on low precision: what it shows of its kernels is what is measured."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.measure.test_kernel import few_cases
from verify.backends import Backend
from verify.declare.discovery import load
from verify.declare.target import Target
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.report.words import basis_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "low-precision.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def declared(name: str) -> Any:
    """The kernel of a name that a block of the page declares."""
    scope: dict[str, Any] = {"__name__": "page"}
    exec(next(block for block in BLOCKS if f"def {name}(" in block), scope)
    return scope[name]


def test_the_page_names_each_template() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE.split("### Templates")[1].split("### ")[0]))
    assert len(named) == 21
    there = {kernel.name for kernel in load(Target(str(ROOT / "examples" / "quantised_operands.py")))}
    assert named == {name for name in there if not name.startswith("dequantised")}


def test_the_quantiser_of_the_page_has_the_figures_of_the_page(backend: Backend) -> None:
    run = measure_kernel(declared("mxfp8"), Measure("page.py::mxfp8"), backend)
    assert run.status == "ok"
    for result in run.results:
        shown = rf"mxfp8 +{result.output} +bfloat16 +0  {re.escape(basis_of(result, short=True))} +. correctly rounded"
        assert re.search(shown, PAGE), shown
    assert all(f"mxfp8: {note}\n" in PAGE for note in run.notes), run.notes


def test_the_cast_of_the_page_is_correctly_rounded(backend: Backend) -> None:
    run = measure_kernel(declared("cast"), Measure("page.py::cast"), backend)
    assert run.status == "ok" and all(0.49 < float(each.figures.max_ulp) <= 0.5 for each in run.results)
    assert {result.limit for result in run.results} == {0.51}


def test_the_kernel_with_a_quantised_operand_of_the_page_passes(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_cases(monkeypatch, "randn", "outlier")
    run = measure_kernel(declared("w4a16"), Measure("page.py::w4a16"), backend)
    assert run.status == "ok", run
    assert {result.output for result in run.results} == {"y", "dx"}
