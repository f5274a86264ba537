"""Broken laws reach every report: what broke, on which case, and the command that shows it again."""

from __future__ import annotations

import msgspec
import pytest

from tests.report import pages
from tests.report.sample import passing
from verify.records.record import LawRun, Origin, Run
from verify.report.html import record_html
from verify.report.present import KernelFacts
from verify.report.terminal.text_page import Terminal

BROKEN = LawRun(
    law="layout independence",
    dtype="bfloat16",
    status="broken",
    cases=7,
    message="results depend on the layout of the operands, not only on their values",
    facts={"layouts": "x transposed", "at": "y [1, 1] of shape [2, 2]", "returned": "<b>1.0</b> (0x3f80)"},
    origin=Origin("a.py::k", '{"dtype":"bfloat16"}', law="layout independence"),
)
KEPT = LawRun(law="determinism", dtype="bfloat16", status="ok", cases=12)
SKIPPED = LawRun(law="CUDA graph", dtype="bfloat16", status="skipped", cases=0, message="needs a CUDA device")


def with_laws() -> Run:
    """A kernel that breaks one law, keeps one, and has one that does not apply."""
    good = passing()
    first, *others = good.kernels
    broken = msgspec.structs.replace(first, status="wrong", laws=[KEPT, BROKEN, SKIPPED])
    return msgspec.structs.replace(good, kernels=[broken, *others])


@pytest.fixture
def run() -> Run:
    return with_laws()


def test_html_and_markdown_carry_it_escaped(run: Run) -> None:
    page = record_html.render(run)
    assert "CUDA graph (bfloat16)</dt><dd>needs a CUDA device" in page
    assert "&lt;b&gt;1.0&lt;/b&gt;" in page
    assert "<b>1.0</b>" not in page.split('type="application/gzip"')[0]
    text = pages.comment_of_run(run)
    assert "law broken" in text
    assert "--law 'layout independence'" in text
    assert "<b>1.0</b>" not in text


def test_what_follows_from_calls_that_differ_is_listed_below_that(run: Run) -> None:
    """One cause is one finding, in every report; so is a kernel that raises wherever it is called."""
    differ = [msgspec.structs.replace(BROKEN, law=law, cause="not deterministic") for law in ("determinism", "special")]
    raised = [
        msgspec.structs.replace(BROKEN, law=law, cause="failed", message="k raised", facts={})
        for law in ("shapes", "memory bounds")
    ]
    first, *others = run.kernels
    result = msgspec.structs.replace(first.results[0], status="wrong")
    kernel = msgspec.structs.replace(
        first, results=[result], laws=[*differ, *raised], unrepeatable="two calls with the same input differ"
    )
    changed = msgspec.structs.replace(run, kernels=[kernel, *others])
    besides = f"wrong: {result.output} {result.dtype}; broken: determinism (bfloat16), special (bfloat16)"
    assert KernelFacts(kernel).besides() == besides
    text = " ".join(pages.of_run(changed, Terminal(100)).split())
    assert f"✗ not deterministic {kernel.name} why two calls with the same input differ besides {besides}" in text
    assert f"✗ kernel failed {kernel.name} shapes bfloat16 why k raised besides called for: memory bounds" in text
    assert "law broken" not in text and f"wrong {kernel.name}" not in text
    page = pages.comment_of_run(changed)
    assert page.count("not deterministic</summary>") == 1 and page.count("kernel failed</summary>") == 1
    assert "Not deterministic: two calls with the same input differ" in record_html.render(changed)
