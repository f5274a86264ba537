"""What was judged and what never was: the cells of some records, and their page in each form."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.records.bounds.gate_records import SEEN, kernel, result, run
from verify.cli import exits, main
from verify.declare.models import MODELS
from verify.laws.profiles import NAMES
from verify.records import files
from verify.records.record import LawRun, Run
from verify.report.coverage import Cell, cells_of, document
from verify.report.html import record_html
from verify.report.terminal import text_page
from verify.report.terminal.text_page import Terminal

PROMISE = "bfloat16 float16; layouts: any"
LAWS = [
    LawRun("determinism", "bfloat16", "ok", 12),
    LawRun("shapes", "bfloat16", "broken", 7, "wrong at 33"),
    LawRun("CUDA graph", "bfloat16", "skipped", 0, "needs a CUDA device"),
    LawRun("compiled", "bfloat16", "skipped", 0, "in error", in_error=True),
]


@pytest.fixture
def one() -> Run:
    gelu = kernel(
        result(basis=SEEN), result(output="dx", basis=SEEN), result(9.0, output="y (qwen3-moe)", basis=SEEN),
        result(output="y", source="sweep"), promise=PROMISE, laws=LAWS,
    )  # fmt: skip
    silu = kernel(name="silu", promise="float32; layouts: any", status="error")
    return run(gelu, silu, kernel(result(), name="theirs", peer=True))


def outcomes(cells: list[Cell], name: str, dtype: str) -> dict[str, tuple[str, int]]:
    return {
        cell.sizes or cell.subject: (cell.outcome, cell.judged)
        for cell in cells
        if (cell.kernel, cell.dtype) == (name, dtype)
    }


def test_a_cell_says_what_became_of_a_combination(one: Run) -> None:
    cells = cells_of([one])
    gelu = outcomes(cells, "gelu", "bfloat16")
    assert gelu["drawn"] == ("passed", 2 * SEEN.n), "y and dx"
    assert gelu["qwen3-moe"] == ("wrong", SEEN.n) and gelu["every input"] == ("passed", 65_536)
    assert (gelu["determinism"], gelu["shapes"]) == (("passed", 12), ("wrong", 7))
    assert (gelu["CUDA graph"][0], gelu["compiled"][0]) == ("not applicable", "no verdict")
    assert gelu["side stream"] == ("never tried", 0)
    half = outcomes(cells, "gelu", "float16")
    assert set(half) == {"drawn", "qwen3-moe", *NAMES} and {each[0] for each in half.values()} == {"never tried"}
    silu = outcomes(cells, "silu", "float32")
    assert silu["drawn"] == ("wrong", 0), "a kernel that failed"
    assert silu["qwen3-moe"] == ("never tried", 0), "another kernel was measured there"
    assert not any(cell.kernel == "theirs" for cell in cells)
    assert len({(cell.card, cell.kernel, cell.dtype, cell.subject, cell.sizes) for cell in cells}) == len(cells)
    assert {cell.sizes for cell in cells} & set(MODELS) == {"qwen3-moe"}


def test_the_last_record_that_tried_a_combination_counts(one: Run) -> None:
    repaired = kernel(result(output="y (qwen3-moe)", basis=SEEN), promise=PROMISE)
    later = run(repaired, created="2026-11-25T10:00:00+00:00")
    for runs in ([one, later], [later, one]):
        gelu = outcomes(cells_of(runs), "gelu", "bfloat16")
        assert gelu["qwen3-moe"] == ("passed", SEEN.n) and gelu["shapes"] == ("wrong", 7)
    other = cells_of([one, run(repaired, arch="sm_100")])
    assert {cell.card for cell in other} == {"sm_90", "sm_100"}
    assert "gelu on sm_100" in {row.kernel for row in document([one, run(repaired, arch="sm_100")]).sections[0].rows}


def test_the_page_counts_and_names_them(one: Run) -> None:
    page = document([one])
    total = len(cells_of([one]))
    never = sum(cell.outcome == "never tried" for cell in cells_of([one]))
    sentence = f"of {total} combinations of kernel, dtype, law and sizes: 3 wrong, 1 no verdict, 3 passed, "
    assert page.word == "fail" and page.sentence == f"fail: {sentence}1 not applicable, {never} never tried"
    text = text_page.render(page, Terminal(150))
    assert "gelu bfloat16: sizes qwen3-moe" in text and "gelu bfloat16: shapes" in text
    assert re.search(r"gelu +bfloat16 +drawn 81,920, qwen3-moe 40,960", text)
    assert "✗ wrong" in text_page.render(page, Terminal(40))
    html = record_html.render(one, beside=[page])
    assert '<h2 id="beside-1-title">Coverage</h2>' in html and "drawn 81,920, qwen3-moe 40,960" in html
    passing = run(kernel(result(), promise="bfloat16; layouts: any"))
    assert document([passing]).word == "incomplete", "no law was tried"


def test_the_command_writes_each_form(one: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, folder = str(tmp_path / "run.json"), tmp_path
    files.save(one, path)
    assert main(["report", path, "--coverage"]) == exits.PASS and "✗ fail: of " in capsys.readouterr().out
    forms = {name: str(folder / f"page.{name}") for name in ("html", "markdown")}
    options = [word for name, file in forms.items() for word in (f"--{name}", file)]
    assert main(["report", path, path, "--coverage", *options]) == exits.PASS
    assert "| <code>gelu</code> | <code>bfloat16</code> | drawn 81,920" in Path(forms["markdown"]).read_text()
    assert "<h2" in Path(forms["html"]).read_text()
    assert main(["report", path, "--coverage", "--compare", path]) == exits.USAGE
    assert "received --compare too" in capsys.readouterr().err
