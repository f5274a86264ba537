"""Defines the look of each status: glyph, colour, word, rank. A word is beside every glyph; red means worse."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Look:
    """Holds the look of one status. Rows with the highest `rank` come first."""

    glyph: str
    ascii: str
    style: str
    word: str
    rank: int


LOOKS = {
    "ok": Look("✓", "+", "green", "ok", 1),
    "wrong": Look("✗", "x", "bold red", "wrong", 6),
    "error": Look("✗", "x", "bold red", "error", 3),
    "crashed": Look("✗", "x", "bold red", "crashed", 5),
    "timeout": Look("✗", "x", "bold red", "timed out", 4),
    "undecided": Look("?", "?", "yellow", "undecided", 2),
    "vacuous": Look("○", "o", "yellow", "vacuous", 2),
    "interrupted": Look("○", "o", "yellow", "interrupted", 2),
    "skipped": Look("○", "o", "yellow", "skipped", 2),
    "peer": Look("·", ".", "dim", "peer", 0),
}
GLYPHS = {status: look.glyph for status, look in LOOKS.items()}
STYLES = {status: look.style for status, look in LOOKS.items()}
WORDS = {status: look.word for status, look in LOOKS.items()}
STANDING = {"pass": "ok", "fail": "wrong", "incomplete": "skipped"}  # maps a verdict to the status that looks like it
CALM = ("ok", "peer")  # statuses of rows that need no attention


ASCII = str.maketrans({"–": "..", "≥": ">=", "≤": "<=", "…": "...", "×": "x", "±": "+-"})


def signs_of(glyphs: bool) -> dict[str, str]:
    """Returns the sign of each status for a terminal with glyphs, or with ASCII alone."""
    return GLYPHS if glyphs else {status: look.ascii for status, look in LOOKS.items()}
