"""Makes the table of a run for the terminal: a row per kernel x output x dtype, as wide as there is room.

Nothing is ever cut. If the screen is too narrow, columns are dropped in a fixed order, and long kernel names become
lines of their own above their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verify.records.record import CLASSES, ORDINARY
from verify.records.recorded import judged
from verify.report import words
from verify.report.blocks import cells_of, footnotes
from verify.report.present import Facts, KernelFacts, ResultFacts
from verify.report.signs import STYLES, Signs
from verify.report.terminal.text_page import GAP, Cell, Page

HEADERS = {
    "kernel": "kernel",
    "output": "output",
    "dtype": "dtype",
    "max": "max ULP",
    **{name: name for name in CLASSES},
    "basis": "basis",
    "basis_short": "basis",
    "p999": "p99.9",
    "misrounded": "misrounded",
    "baseline": "PyTorch",
    "verdict": "verdict",
    "status": "verdict",
}
RIGHT = frozenset({"max", "p999", "misrounded", "baseline", *CLASSES})

# From the most to the least room. In every layout the basis follows the maximum.
LAYOUTS = tuple(
    tuple(columns.split())
    for columns in (
        "kernel output dtype max basis p999 misrounded baseline verdict",
        "kernel output dtype max basis_short p999 misrounded baseline verdict",
        "kernel output dtype max basis_short misrounded baseline verdict",
        "output dtype max basis p999 misrounded baseline verdict",
        "output dtype max basis_short p999 misrounded baseline verdict",
        "output dtype max basis_short misrounded baseline verdict",
        "output dtype max basis_short baseline verdict",
        "output dtype max basis_short baseline status",
        "output dtype max basis_short status",
    )
)

# The same with a maximum for each class of inputs. On narrower screens, of ordinary inputs and of all.
CLASSED: tuple[tuple[str, ...], ...] = (
    *(tuple(name for each in layout for name in (CLASSES if each == "max" else (each,))) for layout in LAYOUTS),
    ("output", "dtype", ORDINARY, "max", "basis_short", "baseline", "status"),
    ("output", "dtype", ORDINARY, "max", "basis_short", "status"),
    ("output", "dtype", ORDINARY, "basis_short", "status"),
)


@dataclass(frozen=True)
class TerminalRow:
    """Holds one line of the table. `cells` holds the text of every column that any layout may show."""

    kernel: KernelFacts
    status: str
    cells: dict[str, str]
    first: bool  # True: the first line of its kernel
    beyond: frozenset[str] = frozenset()  # classes of inputs on which it is wrong


def show(page: Page, facts: Facts) -> None:
    """Prints the table and the footnotes that it needs."""
    rows = rows_of(facts, page.signs)
    columns = choose_layout(rows, page.width)
    if not columns:
        _stacked(page, rows)
    else:
        _columns(page, rows, columns)
    for note in [*notes_of(facts, columns), facts.setting]:
        page.line(Cell(note, "dim"))


def notes_of(facts: Facts, columns: Sequence[str]) -> list[str]:
    """Returns the explanations that these columns need."""
    return footnotes(facts, classes=bool(set(columns) & set(CLASSES)), baseline="baseline" in columns)


def _stacked(page: Page, rows: list[TerminalRow]) -> None:
    """Prints one sentence per result, for screens that are too narrow for any layout."""
    for row in rows:
        if row.first:
            _group(page, row)
        if row.cells["max"]:
            cells = row.cells
            text = f"  {cells['output']} {cells['dtype']}: {cells['figure']}, {cells['basis_short']} "
            page.line(text, Cell(cells["status"], STYLES[row.status]))


def _group(page: Page, row: TerminalRow) -> None:
    """Prints the heading of a kernel's rows: its whole name, and its state if it has no rows."""
    heading = [Cell(row.kernel.name, "bold"), Cell(f"  {row.kernel.call}", "dim")]
    if not row.kernel.results:
        heading += [Cell("  ", "bold"), Cell(row.cells["status"], f"bold {STYLES[row.status]}")]
    page.line(*heading)


def _columns(page: Page, rows: list[TerminalRow], columns: tuple[str, ...]) -> None:
    """Prints a grid for each line, with fixed widths, because headings of groups come between the lines."""
    grouped = "kernel" not in columns
    widths = [column_width(name, rows) for name in columns]
    right, indent = [name for name in columns if name in RIGHT], GAP if grouped else 0
    page.grid([[Cell(HEADERS[name], "dim") for name in columns]], columns, widths, right, indent)
    for row in rows:
        if grouped and row.first:
            _group(page, row)
        if row.cells["output"] or not (grouped and row.first):
            cells = [Cell(row.cells[name], _style(row, name)) for name in columns]
            page.grid([cells], columns, widths, right, indent, filled=False)


def _style(row: TerminalRow, column: str) -> str:
    if column in ("verdict", "status"):
        return STYLES[row.status]
    if column == "kernel":
        return "bold" if row.first else "dim"
    return "red" if (column == "max" or column in row.beyond) and row.status == "wrong" else ""


def choose_layout(rows: list[TerminalRow], width: int) -> tuple[str, ...]:
    """Returns the first layout whose widest cells fit beside each other, or () if none does."""
    classed = any(result.classes for row in rows for result in row.kernel.run.results)
    for columns in CLASSED if classed else LAYOUTS:
        indent = 0 if "kernel" in columns else GAP
        total = sum(column_width(name, rows) for name in columns)
        if indent + total + GAP * (len(columns) - 1) <= width:
            return columns
    return ()


def column_width(name: str, rows: list[TerminalRow]) -> int:
    """Returns the terminal cells that a column needs so that nothing in it is cut."""
    from rich.cells import cell_len

    return max(cell_len(text) for text in (HEADERS[name], *(row.cells[name] for row in rows)))


def rows_of(facts: Facts, signs: Signs) -> list[TerminalRow]:
    """Returns the lines of the table: the results of each kernel, and a kernel without any."""
    rows = []
    for kernel in facts.kernels:
        for position, each in enumerate(kernel.results):
            beyond = frozenset(part.name for part in each.result.classes if part.reason)
            rows.append(TerminalRow(kernel, each.standing, _cells(each, signs), position == 0, beyond))
        if kernel.is_bare:
            word = f"{signs.status[kernel.standing]} {kernel.word}"
            cells = {**dict.fromkeys(HEADERS, ""), "kernel": kernel.name, "verdict": word, "status": word}
            rows.append(TerminalRow(kernel, kernel.standing, cells, not kernel.results))
    return rows


def _cells(each: ResultFacts, signs: Signs) -> dict[str, str]:
    result, glyph, cells = each.result, signs.status[each.standing], cells_of(each)
    return cells | {
        "max": each.maximum + each.mark,
        "figure": each.figure,
        "p999": words.ulp(judged(result.figures, result.gate).p999),
        "misrounded": words.share(result.figures.misrounded, result.figures.n),
        "baseline": cells["baseline"] + each.mark * bool(each.baseline),
        "verdict": f"{glyph} {each.label}",
        "status": f"{glyph} {each.standing}",
    }
