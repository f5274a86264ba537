"""Shows the figures of several records in the terminal: a row for each result that moved, a column for each record."""

from __future__ import annotations

from collections.abc import Sequence

from verify.records.history import Line, by_record
from verify.records.readings import UNKNOWN, Reading, commit_of, date_of
from verify.records.record import Run, number
from verify.report import words
from verify.report.table import TableRow
from verify.report.terminal.text_page import ROOMY, Cell, Page, Terminal

MOST, MOST_NARROW = 10, 5  # records that have a column


def render(runs: Sequence[Run], terminal: Terminal) -> str:
    """Returns the records with their dates, the results whose largest error moved, and a sentence about all."""
    page = Page(terminal)
    lines = by_record(runs)
    first = max(len(runs) - (MOST if terminal.width >= ROOMY else MOST_NARROW), 0)
    shown = range(first, len(runs))
    commits = ["-" if commit == UNKNOWN else commit[:7] for commit in map(commit_of, runs)]
    page.more(first, "earlier records; --json has them", indent=2)
    for at in shown:
        page.line(f"{at + 1}  {runs[at].created[:16].replace('T', ' ')}  commit {commits[at]}  {runs[at].id}", indent=2)
    page.blank()
    moved = [line for line in lines if line.changes]
    columns = "output", "dtype", *(str(at + 1) for at in shown), "last change"
    page.rows([columns], [_row(line, shown) for line in moved])
    if moved:
        page.line(Cell("the largest error in ULP, without infinite and NaN inputs", "dim"))
    page.blank()
    page.line(f"{len(moved):,} of {words.plural(len(lines), 'result')} moved over {words.plural(len(runs), 'record')}")
    page.command("next: verify compare BASE.json HEAD.json")
    return page.text()


def _row(line: Line, shown: range) -> TableRow:
    last = line.changes[-1]
    standing, word = ("wrong", "worse") if last.worse else ("ok", "better")
    if last.other_cases:
        standing, word = "skipped", "other cases"

    def figure(reading: Reading | None) -> str:
        return "-" if reading is None else words.ulp(number(reading.value)) + words.MARK[reading.gate]

    output = line.output + ("" if line.source == "run" else f" ({line.source})")
    cells = {"output": output, "dtype": line.dtype} | {str(at + 1): figure(line.figures[at]) for at in shown}
    return TableRow(line.kernel, line.arch, cells, standing, f"{word}, {date_of(last.after)}")
