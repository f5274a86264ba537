"""Defines the row of every table: of a run, a verdict of the gate, changes of bounds, a comparison, a history.

A subject makes rows. Terminal, Markdown and HTML lay them out, and none of them knows what a row is about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from verify.records.record import CLASSES

Columns = Sequence[str]
HEADERS = {"max": "max ULP", "basis_short": "basis", "p999": "p99.9", "baseline": "PyTorch", "short": "verdict"}
HEADERS |= {"its basis": "basis", "its ms": "ms"}  # of a gradient, beside those of an output
WORDS = ("verdict", "short", "status", "change", "last change")  # the column of the row's word
_FIGURES = "max p999 misrounded baseline bound measured base head old new typical forward backward ms"
_RIGHT = {*_FIGURES.split(), "its ms", *CLASSES}


@dataclass(frozen=True)
class TableRow:
    """Holds one line of a table. A kernel without figures has no cells."""

    kernel: str
    about: str  # behind the kernel's name where that is a heading: its op, or its machine
    cells: dict[str, str]  # by column, without the kernel and the word
    standing: str  # the status whose look it has
    word: str
    bad: frozenset[str] = frozenset()  # columns with the figures that a row is wrong by
    note: str = ""
    short: str = ""  # the word where there is little room
    size: tuple[float, ...] = ()  # the larger, the earlier a comment has the row

    def text(self, column: str, signs: Mapping[str, str]) -> str:
        """Returns the text in a column."""
        if column in WORDS:
            return f"{signs[self.standing]} {self.short if column == 'short' and self.short else self.word}"
        return self.kernel if column == "kernel" else self.cells.get(column, "")

    def is_bad(self, column: str) -> bool:
        """True if the figure in a column is what the row is wrong by."""
        return column in self.bad and self.standing == "wrong"

    def above(self, columns: Columns) -> tuple[tuple[str, str], ...]:
        """Returns the headings above a row if the table has no columns for them: kernel, then output and dtype."""
        kernel = () if "kernel" in columns else ((self.kernel, self.about),)
        return (
            kernel if "output" in columns or not self.cells else (*kernel, (self.cells["output"], self.cells["dtype"]))
        )


def header(column: str) -> str:
    """Returns the heading of a column."""
    return HEADERS.get(column, column)


def is_right(column: str) -> bool:
    """True if a column is aligned right, as figures are."""
    return column in _RIGHT or column.isdigit()


def narrowing(columns: Columns) -> tuple[Columns, Columns]:
    """Returns the layouts of figures: all columns; on a narrow screen without output and dtype, which come first."""
    return columns, columns[2:]
