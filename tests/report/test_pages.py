"""Pages of the gate and of a comparison: self-contained, inert, and with every figure and input."""

from __future__ import annotations

import base64
import hashlib
import math
from pathlib import Path

import pytest

from tests.records.bounds.gate_records import kernel, result, run
from tests.records.test_history import dated
from tests.report.sample import HOSTILE_MESSAGE, HOSTILE_NAME
from tests.report.test_gate_text import everything, verdict
from tests.report.test_html import FETCHES, Reader
from verify.cli import main
from verify.records import files
from verify.records.bounds import committed
from verify.records.bounds.verdict import judge
from verify.records.compare import compare
from verify.report.html import pages


def inert(page: str) -> Reader:
    """Reads a page, and checks that it runs nothing and fetches nothing."""
    reader = Reader(page)
    assert not reader.stack
    for tag, attrs in reader.elements:
        assert tag not in {"script", "link", "img", "iframe", "object", "embed", "form"}
        assert not [name for name in attrs if name in FETCHES or name.startswith("on") or name == "style"]
    [style] = [text for _, text in reader.raw]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    [policy] = [attrs["content"] for _, attrs in reader.elements if "http-equiv" in attrs]
    assert policy is not None and f"style-src 'sha256-{digest}'" in policy and "unsafe" not in policy
    return reader


def test_the_page_of_a_verdict_shows_every_breach_with_its_input() -> None:
    head, held = everything()
    base = run(kernel(result(positive=0.5, tail=0.5)))
    text = inert(pages.gate(judge([head], held), compare(base, head))).text
    told = " ".join(text.split())
    assert "✗ fail: 1 kernel failed 1 NaN or infinite result 1 bound breached" in told
    assert "gelu y bfloat16 positive: 0.91 ULP against a bound of 0.5 ULP" in told
    assert "gelu dw bfloat16 all: NaN" in told
    assert told.count("verify replay accuracy.py::gelu") == 2
    assert "What changed since run" in told and "Against the committed bounds" in told
    assert "What changed since run" not in inert(pages.gate(verdict())).text


def test_the_page_of_a_comparison_shows_what_got_worse() -> None:
    base, head = run(kernel(result(positive=0.5, tail=0.5))), run(kernel(result(positive=0.91, tail=0.4)))
    told = " ".join(inert(pages.compared(compare(base, head))).text.split())
    assert "✗ worse: 1 of 2 figures grew" in told
    assert "gelu y bfloat16 positive: 0.5 ULP to 0.91 ULP" in told
    assert "gelu y bfloat16 tail: " not in told  # it shrank


def test_names_and_messages_of_kernels_stay_text() -> None:
    crashed = kernel(name=HOSTILE_NAME, status="crashed", message=HOSTILE_MESSAGE)
    hostile = run(kernel(result(0.9, output=HOSTILE_NAME), name=HOSTILE_NAME), crashed)
    inert(pages.gate(judge([hostile], committed.Book({})), compare(hostile, hostile)))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "runs").mkdir()
    for number, values in enumerate([(0.5, 0.6), (math.nan, 0.6), (0.7, 0.6)]):
        files.save(dated(number, *values), tmp_path / "runs" / f"{number}.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_the_commands_write_their_pages(project: Path) -> None:
    assert main(["compare", "runs/0.json", "runs/2.json", "--html", "c.html", "--markdown", "c.md"]) == 1
    assert main(["gate", "runs/2.json", "--html", "g.html"]) == 3
    assert "verify compare" in (project / "c.md").read_text()
    assert "✗ worse" in inert((project / "c.html").read_text()).text
    assert "without a bound" in inert((project / "g.html").read_text()).text
