"""A run as flat rows and as the small table of a notebook: the same results as in the terminal."""

from __future__ import annotations

import math
from html.parser import HTMLParser

import pytest

from tests.report.sample import empty, plain, rich, sample
from verify.records.record import CLASSES, Run
from verify.report import run_table, words
from verify.report.html import record_html
from verify.report.present import present
from verify.report.rows import COLUMNS, rows_of, worst_of
from verify.report.words import GLYPHS

RUNS = pytest.mark.parametrize("run", [sample(), plain(), rich(), empty()], ids=["sample", "plain", "rich", "empty"])


@RUNS
def test_a_row_for_each_line_of_the_table_with_the_same_figures(run: Run) -> None:
    facts = present(run)
    lines, kernels = run_table.rows_of(facts), {kernel.name: kernel.run for kernel in facts.kernels}
    rows = rows_of(run)
    assert len(rows) == len(lines)
    for row, line in zip(rows, lines, strict=True):
        assert tuple(row) == COLUMNS
        assert row["kernel"] == kernels[line.kernel].name and row["kernel_status"] == kernels[line.kernel].status
        assert (row["result"] is None) == (not line.cells)
        if row["result"] is None:
            continue
        assert row["status"] in ("ok", "wrong", "vacuous", "undecided")
        assert line.word == row["verdict"]
        marks = [name for name in CLASSES if line.cells[name].endswith((" s", " n"))]
        measured = [name for name in CLASSES if line.cells[name] not in ("", "-")]
        assert marks == (measured[:1] if row["unit"] != "ULP" else []), "the first figure of a row has its unit"
        for name in CLASSES:
            shown = line.cells[name].removesuffix(" s").removesuffix(" n")
            if row[name] is not None and row["open"] == 0 and shown[0] not in "≤≥<>N":
                assert shown.split("–")[-1] == words.ulp(row[name]), (row["kernel"], name)


@RUNS
def test_values_are_text_numbers_or_nothing_and_never_nan(run: Run) -> None:
    for row in rows_of(run):
        for name, value in row.items():
            assert value is None or type(value) in (str, int, float, bool), name
            assert not (isinstance(value, float) and math.isnan(value)), name


def test_a_nan_is_beyond_every_limit() -> None:
    wrong = [(kernel.name, result) for kernel in sample().kernels for result in kernel.results]
    names = {(name, result.output) for name, result in wrong if result.figures.max_ulp == "nan"}
    rows = [row for row in rows_of(sample()) if (row["kernel"], row["result"]) in names]
    assert names and rows
    for row in rows:
        assert row["status"] == "wrong" and row["max"] == math.inf and row["max"] > row["limit"]


def test_the_worst_is_the_one_that_the_report_names() -> None:
    found, row = present(sample()).worst, worst_of(sample())
    assert found is not None and row is not None
    assert (row["kernel"], row["result"], row["dtype"]) == (
        found.owner.run.name,
        found.result.output,
        found.result.dtype,
    )
    assert row["got_hex"] == found.worst.got_hex and row["replay"].startswith("verify replay ")  # type: ignore[union-attr]
    assert worst_of(empty()) is None


class _Read(HTMLParser):
    """The tags of a page, and its cells."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert {name for name, _ in attrs} <= {"style"}
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.tags[-1] in ("td", "th"):
            self.rows[-1][-1] += data


@RUNS
def test_the_table_of_a_notebook_has_the_cells_of_the_terminal(run: Run) -> None:
    page = record_html.notebook(run)
    read = _Read()
    read.feed(page)
    assert set(read.tags) <= {"div", "p", "b", "table", "tr", "th", "td", "small", "br"}, "nothing runs or is fetched"
    assert "http" not in page and len(page) < 50_000
    if lines := run_table.rows_of(present(run)):
        assert [row[0] for row in read.rows[1:]] == [line.kernel for line in lines]
        assert [row[-1] for row in read.rows[1:]] == [line.text("verdict", GLYPHS) for line in lines]
