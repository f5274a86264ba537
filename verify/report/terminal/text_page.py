"""Collects a page of terminal text: headings, fields, tables and commands, as wide as the screen and never cut.

Text from a record is cleaned here, so that no caller can forget it.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from verify.report import words
from verify.report.blocks import ReportBlock
from verify.report.document import WORDS, Columns, Document, Section, TableRow, header, is_right
from verify.report.words import ASCII, GLYPHS, LOOKS, STYLES

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

GAP = 2
NAME, MOST_NAME = 7, 20  # columns for the name of a fact
MARGIN = 4
BOLD = "bold default"


@dataclass(frozen=True)
class Terminal:
    """Describes the abilities of the terminal. Its caller determines them."""

    width: int
    color: bool = False
    glyphs: bool = True

    def console(self) -> Console:
        """Returns a console of rich that collects text."""
        from rich.console import Console

        return Console(
            file=io.StringIO(),
            width=self.width,
            force_terminal=self.color,
            no_color=not self.color,
            color_system="standard" if self.color else None,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
            _environ={},  # the caller decides; rich must not read COLUMNS and NO_COLOR again
        )


@dataclass(frozen=True)
class Cell:
    """Holds text from anywhere, with a style."""

    text: str
    style: str = ""


class Page:
    """Collects lines. Each method adds lines to the page, and `text()` returns it."""

    def __init__(self, terminal: Terminal) -> None:
        self.width = terminal.width
        self.signs = GLYPHS if terminal.glyphs else {status: look.ascii for status, look in LOOKS.items()}
        self._ascii = not terminal.glyphs
        self._console = terminal.console()

    def blank(self) -> None:
        """Adds an empty line, but never two together, and none at the top of the page."""
        stream = self._stream().getvalue()
        if stream and not stream.endswith("\n\n"):
            self._console.print()

    def line(self, *cells: Cell | str, indent: int = 0) -> None:
        """Adds cells one after the other, folded at the edge of the screen. Folded lines are indented alike."""
        from rich.padding import Padding

        self._console.print(Padding(self._joined(cells), (0, 0, 0, indent)))

    def sign(self, status: str, word: str = "", style: str | None = None) -> Cell:
        """Returns the beginning of a line, `✗ wrong  `, in the colour of the status or in `style`."""
        return Cell(f"{self.signs[status]} " + f"{word}  " * bool(word), STYLES[status] if style is None else style)

    def more(self, rest: int, noun: str) -> None:
        """Adds a line such as `… 5 more findings; --json has all`. Adds nothing for 0."""
        if rest > 0:
            self.line(f"… {words.plural(rest, f'more {noun}')}; --json has all", indent=MARGIN)

    def field(self, name: str, value: str, *, width: int = NAME) -> None:
        """Adds `    name    value`, the value folded beside its name."""
        columns: list[dict[str, Any]] = [{"width": width, "overflow": "fold"}, {"overflow": "fold"}]
        self._cells(columns, [Cell(name, "dim"), Cell(value)], MARGIN)

    def block(self, block: ReportBlock, *, short: bool = False, omitted: str = "") -> None:
        """Adds a heading, a message, facts and commands, without the command `omitted`. `short` shortens the first."""
        self.blank()
        dim = "dim " * (block.status == "peer")
        self.line(self.sign(block.status, block.word, block.style), Cell(block.title, f"{dim}bold default"))
        for text in block.message:
            self.line(text, indent=MARGIN)
        width = max([NAME, *(min(len(name), MOST_NAME) for name, _ in block.fields)])
        for name, value in block.fields:
            self.field(name, value, width=width)
        first = [block.short] if short and block.short else block.commands[:1]
        for text in [*first, *block.commands[1:]]:
            if text != omitted:
                self.command(text, indent=MARGIN)

    def command(self, text: str, *, indent: int = 0) -> None:
        """Adds a command, whole on one line so that it can be copied."""
        from rich.text import Text

        self._console.print(Text(" " * indent + words.clean(text)), soft_wrap=True)

    def rows(self, layouts: Sequence[Columns], rows: Sequence[TableRow]) -> Columns:
        """Adds a table in the first layout that fits, else two lines for each row. Returns the columns.

        Names that a layout has no column for stand above their rows. Rows below one heading follow each other.
        """
        last, fits = tuple[tuple[str, str], ...](), False
        for columns in layouts:
            indent = GAP * sum(name not in columns for name in ("kernel", "output"))
            widths = self._widths(columns, rows)
            if fits := indent + sum(widths) + GAP * (len(columns) - 1) <= self.width:
                break
        if rows and fits:
            self._grid(columns, [Cell(header(name), "dim") for name in columns], widths, indent)
        places: dict[tuple[tuple[str, str], ...], int] = {}
        for at, above in enumerate(row.above(columns) for row in rows):
            for end in range(len(above)):
                places.setdefault(above[: end + 1], at)

        def order(row: TableRow) -> list[int]:
            above = row.above(columns)
            return [*(places[above[: end + 1]] for end in range(len(above))), len(rows)]

        kernel = None
        for row in sorted(rows, key=order):
            above = row.above(columns)
            fresh = [at for at in range(len(above)) if above[: at + 1] != last[: at + 1]]
            for at in fresh:
                self._heading(row, above[at], at)
            if row.cells or not fresh:
                dim = "dim" if row.kernel == kernel else "bold"
                styles = {"kernel": dim, **dict.fromkeys(row.bad if row.standing == "wrong" else (), "red")}
                styles |= dict.fromkeys(WORDS, STYLES[row.standing])
                cells = [Cell(row.text(name, self.signs), styles.get(name, "")) for name in columns]
                if fits:
                    self._grid(columns, cells, widths, indent)
                else:
                    self._stacked(columns, cells, indent)
            kernel, last = row.kernel, above
        return columns

    def _heading(self, row: TableRow, names: tuple[str, str], level: int) -> None:
        """Adds a kernel with what it is about and its state if it has no figures, or an output with its dtype."""
        if level:
            self.line(*names[:1], "  ", *names[1:], indent=GAP)
        elif names != ("", ""):
            about = Cell(f"  {names[1]}" * bool(names[1]), "dim")
            state = [] if row.cells else [Cell(f"  {row.text('short', self.signs)}", f"bold {STYLES[row.standing]}")]
            self.line(Cell(names[0], "bold"), about, *state)

    def _widths(self, columns: Columns, rows: Sequence[TableRow]) -> list[int]:
        """Returns the terminal cells that each column needs so that nothing in it is cut."""
        from rich.cells import cell_len

        texts = ([header(name), *(self._clean(row.text(name, self.signs)) for row in rows)] for name in columns)
        return [max(map(cell_len, column)) for column in texts]

    def _grid(self, columns: Columns, cells: Sequence[Cell], widths: Sequence[int], indent: int) -> None:
        """Adds one line of cells in columns of given widths. Headings may come between the lines."""
        sides = ["right" if is_right(name) else "left" for name in columns]
        self._cells([{"width": w, "justify": side} for w, side in zip(widths, sides, strict=True)], cells, indent)

    def _cells(self, columns: Sequence[dict[str, Any]], cells: Sequence[Cell], indent: int) -> None:
        """Adds one line of cells in columns of rich."""
        from rich.padding import Padding
        from rich.table import Table

        grid = Table.grid(padding=(0, GAP, 0, 0))
        for settings in columns:
            grid.add_column(**settings)
        grid.add_row(*(self._joined([cell]) for cell in cells))
        self._console.print(Padding(grid, (0, 0, 0, indent)))

    def _stacked(self, columns: Columns, cells: Sequence[Cell], indent: int) -> None:
        """Adds two lines: the left-aligned cells, and the right-aligned ones after their headers."""
        named, numbers = list[Cell | str](), list[Cell | str]()
        for name, cell in zip(columns, cells, strict=True):
            if cell.text and is_right(name):
                numbers += [Cell(f"{header(name)} ", "dim"), cell, "  "]
            elif cell.text:
                named += [cell, "  "]
        self.line(*named, indent=indent)
        if numbers:
            self.line(*numbers, indent=indent + MARGIN)

    def text(self) -> str:
        """Returns the page, which ends in a newline."""
        # rich pads folded lines to the full width. Trailing blanks are noise in a file or a diff.
        return "\n".join(line.rstrip() for line in self._stream().getvalue().splitlines()) + "\n"

    def _stream(self) -> io.StringIO:
        """Returns the stream to which the console prints."""
        stream = self._console.file
        assert isinstance(stream, io.StringIO)
        return stream

    def _clean(self, text: str) -> str:
        """Returns text on one line, without control characters, and in ASCII if the terminal has no other."""
        text = words.clean(text)
        return text.translate(ASCII) if self._ascii else text

    def _joined(self, cells: Sequence[Cell | str]) -> Text:
        """Returns the cells as one text of rich."""
        from rich.text import Text

        joined = Text(overflow="fold")
        for each in cells:
            cell = Cell(each) if isinstance(each, str) else each
            joined.append(self._clean(cell.text), style=cell.style or None)
        return joined


def render(document: Document, terminal: Terminal) -> str:
    """Returns a page as text that ends in a newline: its sections, the sentence, and the next command.

    Only commands may be longer than the terminal is wide, so that they can be copied.
    """
    page = Page(terminal)
    lay_out(page, document.sections, document.next)
    page.blank()
    for text in document.remarks:
        page.line(Cell(text, "dim"))
    sign = f"{page.signs[document.standing]} "
    verdict = [Cell(f"{sign}{document.word}:", STYLES[document.standing]), " "] if document.word else [page.sign("ok")]
    page.line(*verdict, "; ".join(document.clauses))
    if document.next:
        is_above = document.above and len(document.next) > words.LONG  # then the command is printed once
        page.command(f"next: {document.above if is_above else document.next}")
    return page.text()


def lay_out(page: Page, sections: Sequence[Section], next_: str = "") -> None:
    """Adds sections. The command `next_`, which ends the page, is not said of a kernel that failed."""
    short = False  # only the first block has its command in full
    for section in sections:
        if section.rows:
            if section.title:
                page.blank()
                page.line(section.title)
            columns = page.rows(section.layouts, section.rows)
            for note in section.notes(columns):
                page.line(Cell(note, "dim"))
        for block in section.blocks[: section.most]:
            page.block(block, short=short, omitted=next_ if block.message else "")
            short = True
        page.more(len(section.blocks) - section.most, section.noun)
        if section.lines:
            page.blank()
            page.line(page.sign(section.standing), Cell(section.title, BOLD))
        for line in section.lines[: section.most]:
            page.line(line.text, indent=MARGIN)
        page.more(len(section.lines) - section.most, section.noun)
