"""Makes the document of several records: a row for each result that moved, a column for each record."""

from __future__ import annotations

from collections.abc import Sequence

from verify.records.compare import Line, by_record
from verify.records.readings import UNKNOWN, Reading, commit_of, date_of
from verify.records.record import Run, number
from verify.report import words
from verify.report.document import Document, Section, TableRow, plain

MOST, MOST_NARROW = 10, 5  # records that have a column, on wide and on narrow screens


def document(runs: Sequence[Run]) -> Document:
    """Returns the records with their dates, and the results whose largest error moved."""
    lines, places = by_record(runs), range(len(runs))
    commits = ["-" if commit == UNKNOWN else commit[:7] for commit in map(commit_of, runs)]
    dates = [run.created[:16].replace("T", " ") for run in runs]
    listed = [f"{at + 1}  {dates[at]}  commit {commits[at]}  {runs[at].id}" for at in places]
    moved = [line for line in lines if line.changes]
    layouts = [
        ("output", "dtype", *(str(at + 1) for at in places[-most:]), "last change") for most in (MOST, MOST_NARROW)
    ]
    note = "the largest error in ULP, without infinite and NaN inputs"
    said = f"{len(moved):,} of {words.plural(len(lines), 'result')} moved over {words.plural(len(runs), 'record')}"
    return Document(
        "verify report",
        "ok",
        "",
        [said],
        [
            Section("records", lines=plain(listed), noun="record", most=2 * MOST),
            Section(rows=[_row(line) for line in moved], layouts=layouts, notes=lambda _: [note], noun="row"),
        ],
        next="verify compare BASE.json HEAD.json",
    )


def _row(line: Line) -> TableRow:
    last = line.changes[-1]
    standing, word = ("wrong", "worse") if last.worse else ("ok", "better")
    if last.other_cases:
        standing, word = "skipped", "other cases"

    def figure(reading: Reading | None) -> str:
        return "-" if reading is None else words.ulp(number(reading.value)) + words.MARK[reading.gate]

    output = line.output + ("" if line.source == "run" else f" ({line.source})")
    figures = {str(at + 1): figure(each) for at, each in enumerate(line.figures)}
    cells = {"output": output, "dtype": line.dtype} | figures
    return TableRow(line.kernel, line.arch, cells, standing, f"{word}, {date_of(last.after)}")
