"""Shows the verdict of the gate in the terminal: breaches first, the sentence and next command last."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from verify.records.bounds.verdict import MEANING, SEVERITY, Row, Status, Verdict
from verify.records.readings import Reading
from verify.records.record import replay_command
from verify.report import gate_words, words
from verify.report.gaps import gathered
from verify.report.signs import STANDING, STYLES, Signs
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
    _table(page, shown)
    broken = gate_words.breaches(verdict)
    for place, row in enumerate(broken[: gate_words.MOST_BREACHES]):
        _block(page, row, verdict, records, whole=not place)
    if len(broken) > gate_words.MOST_BREACHES:
        page.blank()
        page.more(len(broken) - gate_words.MOST_BREACHES)
    for status in SEVERITY:
        if status not in (*gate_words.WITH_FIGURES, "ok"):
            _lines(page, status, [row for row in verdict.rows if row.status == status])
    for title, lines in gate_words.besides(verdict):
        if lines:
            page.blank()
            page.line(Cell(f"{page.signs.status['skipped']} {title}", STYLES["skipped"]))
            for gap in gathered(lines):
                page.line(gap.text, indent=4)
    page.blank()
    standing, said = STANDING[verdict.word], "; ".join(gate_words.clauses(verdict))
    page.line(Cell(f"{page.signs.status[standing]} {verdict.word}:", STYLES[standing]), f" {said}")
    page.command(f"next: {gate_words.next_command(verdict, records)}")
    return page.text()


def _table(page: Page, rows: Sequence[Row]) -> None:
    kernels = dict.fromkeys((row.key.arch, row.key.kernel) for row in rows)
    for arch, kernel in kernels:
        page.line(Cell(kernel, "bold"), Cell(f"  {arch}", "dim"))
        members = [row for row in rows if (row.key.arch, row.key.kernel) == (arch, kernel)]
        page.results(
            ("output", "dtype", "regime", "bound", "measured", "basis", "status"),
            [_cells(row, page.signs) for row in members],
            right=("bound", "measured"),
        )
    if rows:
        page.line(
            Cell(
                "bound, measured: the largest error, in ULP unless another unit or figure is named",
                "dim",
            )
        )


def _cells(row: Row, signs: Signs) -> list[Cell]:
    reading = row.leading
    assert reading is not None
    status, (measured, limit) = gate_words.SIGN.get(row.status, "skipped"), gate_words.cells(row)
    return [
        Cell(row.key.output),
        Cell(row.key.dtype),
        Cell(row.key.regime),
        Cell(limit or "-"),
        Cell(measured, "red" if status == "wrong" else ""),
        Cell(words.basis_short(reading.basis)),
        Cell(f"{signs.status[status]} {row.status}", STYLES[status]),
    ]


def element(page: Page, reading: Reading, files: Mapping[str, str]) -> None:
    """Prints the worst element behind a figure: its input, the kernel's value, the truth, and the replay command."""
    assert reading.worst is not None
    page.field("input", gate_words.where(reading.worst))
    page.field("got", f"{reading.worst.got} ({reading.worst.got_hex})")
    page.field("truth", words.truth(reading.worst.truth))
    if text := gate_words.there(reading):
        page.field("there", text)
    page.command(gate_words.short_replay(reading, files) or replay_command(reading.worst.origin), indent=4)


def _block(page: Page, row: Row, verdict: Verdict, records: Sequence[str], *, whole: bool = False) -> None:
    """Prints one breach. A long replay command names its place in the record, unless `whole` requests all of it."""
    reading = row.leading
    assert reading is not None
    page.blank()
    page.line(page.sign("wrong", row.status), Cell(gate_words.title(row), "bold"))
    page.field("error", f"{gate_words.decisive(row)[0]}, {reading.basis}")
    if row.status == "nonfinite":
        page.field("why", row.reason)
        page.field("key", str(row.key))  # for a waiver, because no bound can allow it
    elif row.bound is not None:
        bound = row.bound
        evidence = f"{words.basis_short(bound.basis)}, {bound.evidence.date}, commit {bound.evidence.commit[:7]}"
        page.field("bound", f"{gate_words.bound_text(bound)}: {evidence}")
    if row.waiver is not None:
        page.field("waiver", gate_words.waiver(row))
    for told in gate_words.beside(row):
        page.field("also", told)
    for other in row.readings:
        if other is not reading:
            page.field("also", f"{gate_words.figure(other)}, {other.basis} ({other.source})")
    if reading.worst is not None:
        element(page, reading, {} if whole else gate_words.paths_of(verdict, records))
    if row.status == "breached" and row.waiver is None:
        files = " ".join(shlex.quote(path) for path in records) or "RUN.json"
        page.command(f"verify bounds accept {shlex.quote(str(row.key))} {files} --reason '...'", indent=4)


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
