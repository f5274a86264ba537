"""Shows the verdict of the gate in the terminal: breaches first, the sentence and next command last."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from verify.records.bounds.verdict import MEANING, SEVERITY, Row, Status, Verdict
from verify.report import gate_words
from verify.report.gaps import gathered
from verify.report.signs import STANDING, STYLES
from verify.report.table import narrowing
from verify.report.terminal.text_page import Cell, Page, Terminal

MOST_LINES = 12  # lines of one status without figures


def render(
    verdict: Verdict,
    terminal: Terminal,
    *,
    everything: bool = False,
    records: Sequence[str] = (),
) -> str:
    """Returns the whole verdict. `everything` also lists keys in order. `records` are paths, for the next command."""
    page = Page(terminal)
    shown = [row for row in verdict.rows if row.status in gate_words.WITH_FIGURES or (everything and row.readings)]
    page.rows(narrowing(gate_words.COLUMNS), [gate_words.line(row) for row in shown])
    if shown:
        note = "bound, measured: the largest error, in ULP unless another unit or figure is named"
        page.line(Cell(note, "dim"))
    broken = gate_words.breaches(verdict)
    files = gate_words.paths_of(verdict, records)
    paths = " ".join(map(shlex.quote, records)) or "RUN.json"
    for place, row in enumerate(broken[: gate_words.MOST_BREACHES]):
        block = gate_words.breach(row, files)
        if row.status == "breached" and row.waiver is None:
            block.commands.append(f"verify bounds accept {shlex.quote(str(row.key))} {paths} --reason '...'")
        page.block(block, short=place > 0)
    if len(broken) > gate_words.MOST_BREACHES:
        page.blank()
        page.more(len(broken) - gate_words.MOST_BREACHES)
    for status in SEVERITY:
        if status not in (*gate_words.WITH_FIGURES, "ok"):
            _lines(page, status, [row for row in verdict.rows if row.status == status])
    for title, lines in gate_words.besides(verdict):
        page.listing(title, [(gap.text,) for gap in gathered(lines)], style=STYLES["skipped"])
    page.blank()
    standing, said = STANDING[verdict.word], "; ".join(gate_words.clauses(verdict))
    page.line(Cell(f"{page.signs[standing]} {verdict.word}:", STYLES[standing]), f" {said}")
    page.command(f"next: {gate_words.next_command(verdict, records)}")
    return page.text()


def _lines(page: Page, status: Status, rows: Sequence[Row]) -> None:
    """Prints the rows of one status without figures, a line for each kernel and reason."""
    if not rows:
        return
    found = gate_words.groups(rows)
    page.blank()
    page.line(page.sign(gate_words.SIGN.get(status, "skipped"), status), Cell(MEANING[status], "dim"))
    most = len(found) if status == "waived" else MOST_LINES  # each waiver in use is shown
    for arch, kernel, reason, members in found[:most]:
        said = Cell(f"{gate_words.keys(members)} ({arch}): {reason}", "yellow" if status == "waived" else "")
        page.line(Cell(kernel, "bold"), said, indent=4)
    page.more(len(found) - most)
