"""Makes the table of a run as a piece of HTML for a notebook: small, complete in itself, without a script."""

from __future__ import annotations

from html import escape

from verify.records.record import Run
from verify.report import run_table
from verify.report.present import present
from verify.report.signs import GLYPHS, STYLES
from verify.report.table import header, is_right

COLOURS = {"green": "#1a7f37", "yellow": "#9a6700", "bold red": "#cf222e", "dim": "#6e7781"}


def render(run: Run) -> str:
    """Returns the verdict, the table and its notes. Text of kernels is escaped."""
    facts = present(run)
    rows, columns = run_table.rows_of(facts), run_table.layouts_of(facts)[0]
    head = "".join(_cell("th", name, header(name)) for name in columns)
    lines = [f"<tr>{head}</tr>"]
    for row in rows:
        colour = f"color:{COLOURS[STYLES[row.standing]]}"
        cells = (_cell("td", name, row.text(name, GLYPHS), colour if name == "verdict" else "") for name in columns)
        lines.append(f"<tr>{''.join(cells)}</tr>")
    table = f"<table>{''.join(lines)}</table>" if rows else ""
    notes = [*run_table.footnotes(facts, columns), facts.setting]
    small = "<br>".join(map(escape, notes))
    return f"<div><p><b>{escape(facts.sentence)}</b></p>{table}<p><small>{small}</small></p></div>"


def _cell(tag: str, column: str, text: str, style: str = "") -> str:
    side = "right" if is_right(column) else "left"
    return f'<{tag} style="text-align:{side};{style}">{escape(text)}</{tag}>'
