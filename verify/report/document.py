"""Defines the page of every subject: a run, a verdict of the gate, a comparison, a history, changes of bounds, a bench.

A subject makes a document. Terminal, Markdown and HTML lay it out, and none of them knows what it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from verify.report.blocks import ReportBlock
from verify.report.gaps import GapLine
from verify.report.table import Columns, TableRow


def no_notes(columns: Columns) -> Sequence[str]:
    """Returns no explanation of the columns of a table."""
    return ()


@dataclass(frozen=True)
class Section:
    """Holds a table, things to act on, or lines. A section without any of these is left out."""

    title: str = ""
    rows: Sequence[TableRow] = ()
    layouts: Sequence[Columns] = ()  # of a screen, from the most to the least room; the first is that of a comment
    notes: Callable[[Columns], Sequence[str]] = no_notes  # explanations of the columns that there is room for
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
