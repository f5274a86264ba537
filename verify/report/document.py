"""Defines the page of every subject: a run, a verdict of the gate, a comparison, a history, changes of bounds, a bench.

A subject makes a document, and the rows of its tables. Terminal, Markdown and HTML lay it out, and none of them knows
what it is about.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from verify.records.record import CLASSES
from verify.report.blocks import ReportBlock
from verify.report.gaps import GapLine

Columns = Sequence[str]
EVERY = 1 << 20  # lines or blocks on a screen: none is omitted
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

    def above(self, columns: Columns) -> tuple[tuple[str, str], ...]:
        """Returns the headings above a row if the table has no columns for them: kernel, then output and dtype."""
        kernel = () if "kernel" in columns else ((self.kernel, self.about),)
        if "output" in columns or not self.cells.get("output"):
            return kernel
        return (*kernel, (self.cells["output"], self.cells["dtype"]))


def header(column: str) -> str:
    """Returns the heading of a column."""
    return HEADERS.get(column, column)


def is_right(column: str) -> bool:
    """True if a column is aligned right, as figures are."""
    return column in _RIGHT or column.isdigit()


def narrowing(columns: Columns) -> tuple[Columns, Columns]:
    """Returns the layouts of figures: all columns; on a narrow screen without output and dtype, which come first."""
    return columns, columns[2:]


@dataclass(frozen=True)
class Section:
    """Holds a table, things to act on, or lines. A section without any of these is omitted."""

    title: str = ""
    rows: Sequence[TableRow] = ()
    layouts: Sequence[Columns] = ()  # of a screen, from the most to the least room; the first is that of a comment
    notes: Callable[[Columns], Sequence[str]] = lambda columns: ()  # explanations of the columns that there is room for
    blocks: Sequence[ReportBlock] = ()
    lines: Sequence[GapLine] = ()
    noun: str = "line"  # one of the rows, blocks or lines
    most: int = 12  # blocks or lines on a screen
    standing: str = "skipped"  # the status whose look the title has


@dataclass(frozen=True)
class Document:
    """Holds a page: its sections, and the sentence that ends it in a terminal and begins it elsewhere."""

    name: str  # the command
    standing: str  # the status whose look the sentence has
    word: str  # the first word of the sentence, or ""
    clauses: Sequence[str]
    sections: Sequence[Section]
    title: str = ""  # on the page of a run
    about: Sequence[str] = ()  # small print of a comment
    remarks: Sequence[str] = ()  # before the sentence
    next: str = ""  # the command to type next
    above: str = ""  # the name of that command if it is long and stands above already

    @property
    def sentence(self) -> str:
        """Returns for example `fail: 2 of 48 bounds are breached; the worst is ...`."""
        return f"{self.word}: {'; '.join(self.clauses)}" if self.word else "; ".join(self.clauses)


def plain(texts: Sequence[str]) -> list[GapLine]:
    """Returns lines without parts."""
    return [GapLine(text) for text in texts]
