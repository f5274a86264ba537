"""Writes the report for a terminal: table, a block per wrong result, missing parts, verdict.

Colour is never alone: a glyph precedes every coloured word (`glyphs=False` gives ASCII ones). Text from a kernel
reaches the screen through `text_page`, which spells out control characters and parses no markup: a name cannot move the
cursor or forge a line.
"""

from __future__ import annotations

from verify.records.record import Run
from verify.report import blocks, run_table, words
from verify.report.present import Facts, present
from verify.report.signs import STANDING, STYLES
from verify.report.terminal.text_page import Cell, Page, Terminal

MARGIN = 4  # of the details below a heading
MOST_BLOCKS = 12  # wrong results shown in full
MOST_REASONS = 16  # reasons why laws were not tried, and notes
MOST_LINES = 4  # of a message, which may be a whole traceback; the record has the rest


def render(run: Run, terminal: Terminal, *, record: str = "") -> str:
    """Returns the whole report as text that ends in a newline.

    Only commands may be longer than the terminal is wide, so that they can be copied. `record` is the path of the saved
    record, for the next command, or "".
    """
    page = Page(terminal)
    facts = present(run)
    closing = facts.next_command(record)
    if facts.kernels:
        columns = page.rows(run_table.layouts_of(facts), run_table.rows_of(facts))
        for note in [*run_table.footnotes(facts, columns), facts.setting]:
            page.line(Cell(note, "dim"))
    for kernel in facts.unrepeatable:
        page.block(blocks.unrepeatable(kernel))
    for place, found in enumerate(facts.findings[:MOST_BLOCKS]):
        page.block(blocks.wrong(found, run, record), short=place > 0)
    how = f"`verify report {record} --html PATH`" if record else "--html PATH"
    _more(page, len(facts.findings), "finding", f"{how} shows all")
    for owner, law in facts.broken_laws[:MOST_BLOCKS]:
        page.block(blocks.broken(owner, law))
    _more(page, len(facts.broken_laws), "broken law", "the record has them")
    for found in facts.unproven[:MOST_BLOCKS]:
        page.block(blocks.unproven(found))
    _more(page, len(facts.unproven), "", "the record has them")
    for block in blocks.failures(facts.failures, MOST_LINES):
        page.block(block, omitted=closing)
    page.listing("limits", [(f"{kernel.name} {text}",) for kernel, text in facts.limits], "limit", MOST_REASONS)
    page.listing("not measured", [(gap.text,) for gap in facts.missing])
    # If time ran out, all kernels have the same hint.
    some = [kernel for kernel in run.kernels if facts.missing and kernel.status in ("interrupted", "skipped")]
    for hint in dict.fromkeys(words.clean(kernel.hint) for kernel in some):
        if hint not in ("", closing):
            page.field("next", hint)
    # Remarks about judged kernels: a missing figure must not look like a figure in order.
    notes = [(f"{kernel.run.name}: {note}",) for kernel in facts.judged for note in kernel.notes]
    page.listing("notes", notes, "note", MOST_REASONS)
    # A law that was not tried must not look like a law that holds.
    page.listing("laws not applicable", facts.untried_laws, "reason", MOST_REASONS)
    _closing(page, facts, closing)
    return page.text()


def _more(page: Page, count: int, noun: str, how: str) -> None:
    """Prints how many blocks were omitted. Prints nothing if there is room for all."""
    if (rest := count - MOST_BLOCKS) > 0:
        page.blank()
        said = words.plural(rest, f"more {noun}") if noun else f"{rest:,} more without a verdict"
        page.line(f"… {said}; {how}", indent=MARGIN)


def _closing(page: Page, facts: Facts, command: str) -> None:
    status = STANDING[facts.run.verdict]
    page.blank()
    if facts.laws_line:
        page.line(Cell(facts.laws_line, "dim"))
    verdict = Cell(f"{page.signs[status]} {facts.run.verdict}:", STYLES[status])
    page.line(verdict, Cell(f" {'; '.join(facts.clauses)}", "not bold default"))
    worst = facts.worst
    if worst is not None and worst.worst is not None and len(command) > words.LONG:
        command = f"the replay command of {worst.title}, above"  # the command is printed once
    page.command(f"next: {command}")
