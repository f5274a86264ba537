"""Shows a comparison in the terminal: a sentence, and a table of changes."""

from __future__ import annotations

from verify.errors import INCOMPLETE, PASS, WRONG
from verify.records.compare import Comparison
from verify.report import compare_words
from verify.report.signs import STYLES
from verify.report.table import narrowing
from verify.report.terminal.text_page import Cell, Page, Terminal

MOST_BLOCKS = 6


def render(found: Comparison, terminal: Terminal, *, everything: bool = False, ends: bool = True) -> str:
    """Returns the changes from base to head. `ends` adds which records they are."""
    page = Page(terminal)
    if ends:
        page.line(Cell("base  ", "dim"), compare_words.about(found.base))
        page.line(Cell("head  ", "dim"), compare_words.about(found.head))
        page.blank()
    shown = list(found.pairs) if everything else found.listed
    tabled = [pair for pair in shown if pair.base is not None and pair.head is not None and not pair.reason]
    page.rows(narrowing(compare_words.COLUMNS), [compare_words.line(pair) for pair in tabled])
    for pair in [pair for pair in found.pairs if pair.change == "worse"][:MOST_BLOCKS]:
        page.block(compare_words.grown(pair))
    if apart := compare_words.alone(shown):
        page.blank()
    for gap in apart:
        page.line(page.sign("skipped"), gap.text)
    for name, message in found.broke:
        page.blank()
        page.line(page.sign("wrong", "fails now"), Cell(name, "bold"))
        page.line(message, indent=4)
    page.blank()
    word = {PASS: "ok", WRONG: "wrong", INCOMPLETE: "skipped"}[found.exit_code]
    first, parts = compare_words.clauses(found)
    page.line(Cell(f"{page.signs[word]} {first}:", STYLES[word]), f" {'; '.join(parts)}")
    return page.text()
