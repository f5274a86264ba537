"""Collects a page of terminal text: headings, fields, tables and commands, as wide as the screen and never cut.

Text from a record is cleaned here, so that no caller can forget it.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verify.report import words
from verify.report.blocks import FigureRow, ReportBlock
from verify.report.signs import STYLES, Signs

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

GAP = 2
NAME, MOST_NAME = 7, 20  # columns for the name of a fact
MARGIN = 4
ROOMY = 100  # from this number of columns, a result and its figures are on one line


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

    @property
    def clean(self) -> str:
        """Returns the text on one line, without control characters."""
        return words.clean(self.text)


class Page:
    """Collects lines. Each method adds lines to the page, and `text()` returns it."""

    def __init__(self, terminal: Terminal) -> None:
        self.width = terminal.width
        self.signs = Signs.choose(terminal.glyphs)
        self._console = terminal.console()

    def blank(self) -> None:
        """Adds an empty line, but never two together, and none at the top of the page."""
        stream = self._stream().getvalue()
        if stream and not stream.endswith("\n\n"):
            self._console.print()

    def line(self, *cells: Cell | str, indent: int = 0) -> None:
        """Adds cells one after the other, folded at the edge of the screen. Folded lines are indented alike."""
        from rich.padding import Padding

        self._console.print(Padding(_joined(cells), (0, 0, 0, indent)))

    def sign(self, status: str, word: str = "", style: str | None = None) -> Cell:
        """Returns the beginning of a line, `✗ wrong  `, in the colour of the status or in `style`."""
        return Cell(
            f"{self.signs.status[status]} " + f"{word}  " * bool(word), STYLES[status] if style is None else style
        )

    def more(self, rest: int, what: str = "more; --json has them all", *, indent: int = 4) -> None:
        """Adds a line such as `… 5 more; --json has them all`. Adds nothing for 0."""
        if rest > 0:
            self.line(f"{self.signs.ellipsis} {rest:,} {what}", indent=indent)

    def field(self, name: str, value: str, *, width: int = NAME) -> None:
        """Adds `    name    value`, the value folded beside its name."""
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        row = Table.grid(padding=(0, GAP, 0, 0))
        row.add_column(width=width, overflow="fold")
        row.add_column(overflow="fold")
        row.add_row(Text(name, style="dim"), Text(words.clean(value)))
        self._console.print(Padding(row, (0, 0, 0, MARGIN)))

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

    def table(
        self, headers: Sequence[str], rows: Sequence[Sequence[Cell]], *, right: Sequence[str] = (), indent: int = 0
    ) -> None:
        """Adds a table of aligned columns. If they do not fit beside each other, each row takes two lines.

        `right` names the headers of the columns that are aligned right.
        """
        if not rows:
            return
        widths = _widths(headers, rows)
        if indent + sum(widths) + GAP * (len(widths) - 1) > self.width:
            self._stacked(headers, rows, right, indent)
            return
        self.grid([[Cell(header, "dim") for header in headers], *rows], headers, widths, right, indent)

    def results(self, headers: Sequence[str], rows: Sequence[Sequence[Cell]], *, right: Sequence[str] = ()) -> None:
        """Adds a table whose first columns are output and dtype. On a narrow screen these two become a heading."""
        if self.width >= ROOMY or not rows:
            self.table(headers, rows, right=right, indent=GAP)
            return
        rest, indent = headers[2:], 2 * GAP
        widths = _widths(rest, [row[2:] for row in rows])
        fits = indent + sum(widths) + GAP * (len(widths) - 1) <= self.width
        if fits:
            self.grid([[Cell(header, "dim") for header in rest]], rest, widths, right, indent)
        for output, dtype in dict.fromkeys((row[0], row[1]) for row in rows):
            self.line(output, "  ", dtype, indent=GAP)
            members = [row[2:] for row in rows if (row[0], row[1]) == (output, dtype)]
            if fits:
                self.grid(members, rest, widths, right, indent)
            else:
                self._stacked(rest, members, right, indent)

    def figures(self, columns: Sequence[str], right: Sequence[str], lines: Sequence[FigureRow]) -> None:
        """Adds a table of figures for each kernel, below its name."""
        for kernel, arch in dict.fromkeys((line.kernel, line.arch) for line in lines):
            self.line(Cell(kernel, "bold"), Cell(f"  {arch}" * bool(arch), "dim"))
            self.results(
                columns,
                [self._cells(line) for line in lines if (line.kernel, line.arch) == (kernel, arch)],
                right=right,
            )

    def _cells(self, line: FigureRow) -> list[Cell]:
        red = "red" if line.standing == "wrong" else ""
        cells = [Cell(text, red if name == line.figure else "") for name, text in line.cells.items()]
        return [*cells, Cell(f"{self.signs.status[line.standing]} {line.word}", STYLES[line.standing])]

    def grid(
        self,
        rows: Sequence[Sequence[Cell]],
        headers: Sequence[str],
        widths: Sequence[int],
        right: Sequence[str],
        indent: int,
        *,
        filled: bool = True,
    ) -> None:
        """Adds cells in columns of given widths, those in `right` aligned right. `filled` styles the padding too."""
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, GAP, 0, 0))
        for header, width in zip(headers, widths, strict=True):
            grid.add_column(width=width, justify="right" if header in right else "left")
        for row in rows:
            wholes = (Text(cell.clean, style=cell.style) for cell in row)
            grid.add_row(*(wholes if filled else (Text.assemble((cell.clean, cell.style)) for cell in row)))
        self._console.print(Padding(grid, (0, 0, 0, indent)))

    def _stacked(
        self, headers: Sequence[str], rows: Sequence[Sequence[Cell]], right: Sequence[str], indent: int
    ) -> None:
        """Adds two lines per row: its left-aligned cells, and its right-aligned ones after their headers."""
        for row in rows:
            named = [cell for header, cell in zip(headers, row, strict=True) if header not in right and cell.clean]
            self.line(*_spaced(named), indent=indent)
            numbers = [
                piece
                for header, cell in zip(headers, row, strict=True)
                if header in right and cell.clean
                for piece in (Cell(f"{header} ", "dim"), cell, Cell("  "))
            ]
            if numbers:
                self.line(*numbers[:-1], indent=indent + MARGIN)

    def text(self) -> str:
        """Returns the page, which ends in a newline."""
        # rich pads folded lines to the full width. Trailing blanks are noise in a file or a diff.
        return "\n".join(line.rstrip() for line in self._stream().getvalue().splitlines()) + "\n"

    def _stream(self) -> io.StringIO:
        """Returns the stream to which the console prints."""
        stream = self._console.file
        assert isinstance(stream, io.StringIO)
        return stream


def _widths(headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[int]:
    """Returns the terminal cells that each column needs so that nothing in it is cut."""
    from rich.cells import cell_len

    return [
        max(cell_len(text) for text in (header, *(row[place].clean for row in rows)))
        for place, header in enumerate(headers)
    ]


def _spaced(cells: Sequence[Cell]) -> list[Cell]:
    """Returns the cells with two blanks between each two."""
    spaced: list[Cell] = []
    for cell in cells:
        spaced += [Cell("  "), cell] if spaced else [cell]
    return spaced


def _joined(cells: Sequence[Cell | str]) -> Text:
    """Returns the cells as one text of rich."""
    from rich.text import Text

    text = Text(overflow="fold")
    for cell in cells:
        if isinstance(cell, str):
            text.append(words.clean(cell))
        else:
            text.append(cell.clean, style=cell.style or None)
    return text
