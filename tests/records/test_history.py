"""The figures of several records, line by line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.records.bounds.gate_records import SEEN, kernel, result, run
from verify.cli import main
from verify.records import files
from verify.records.compare import by_record
from verify.records.record import Basis, Run
from verify.report import compare_words
from verify.report.terminal.text_page import Terminal, render

nan, inf = math.nan, math.inf


def dated(number: int, *values: float, **more: Any) -> Run:
    """Run `number`, one day after the one before; one result per value."""
    results = [
        result(value, output=f"y{place or ''}", properties=f"aa00aa00aa{place:02}", **more)
        for place, value in enumerate(values)
    ]
    created = f"2026-{1 + number // 28:02d}-{1 + number % 28:02d}T10:00:00+00:00"
    return run(kernel(*results), id=f"{number:012x}", created=created, environment={"arch": "sm_90"})


def test_a_change_is_worse_or_better_and_nan_is_the_worst() -> None:
    [line] = by_record([dated(place, value) for place, value in enumerate([0.5, 0.5, nan, nan, inf, 0.7, 0.8])])
    seen = [(str(change.before.value), str(change.after.value), change.worse) for change in line.changes]
    assert seen == [("0.5", "nan", True), ("nan", "inf", False), ("inf", "0.7", False), ("0.7", "0.8", True)]


def test_a_record_without_a_result_has_no_figure_of_it() -> None:
    lines = by_record([dated(0, 0.5), dated(1, 0.5, 0.6), dated(2, 0.7)])
    assert [[figure and figure.value for figure in line.figures] for line in lines] == [
        [0.5, 0.5, 0.7],
        [None, 0.6, None],
    ]
    assert [len(line.changes) for line in lines] == [1, 0]


def test_figures_of_other_cases_are_no_change_of_the_kernel() -> None:
    runs = [dated(0, 0.5, basis=SEEN), dated(1, 0.6, basis=Basis("observed", 40_960, 1))]
    [line] = by_record(runs)
    assert [change.other_cases for change in line.changes] == [True]
    assert "○ other cases, 2026-01-02" in render(compare_words.history(runs), Terminal(120))


def test_the_command_shows_records_by_date_and_writes_no_bare_nan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, value in enumerate((0.7, nan, 0.5)):
        files.save(dated(2 - number, value), Path(f"{number}.json"))
    names = ["report", "0.json", "1.json", "2.json"]
    assert main(names) == 0
    [row] = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  y ")]
    assert row[2:5] == ["0.5", "NaN", "0.7"]
    assert main([*names, "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))
    assert data["lines"][0]["figures"] == [0.5, "nan", 0.7] and data["lines"][0]["moved"]
    assert main([*names, "--html", "r.html", "--csv", "r.csv"]) == 2
    assert "in the terminal and as --json; received --html, --csv\n" in capsys.readouterr().err
