"""Glyphs and colours of a status. A glyph always stands beside its word; red means worse."""

from __future__ import annotations

from dataclasses import dataclass

GLYPHS = {
    "ok": "✓",
    "wrong": "✗",
    "error": "✗",
    "crashed": "✗",
    "timeout": "✗",
    "undecided": "?",
    "vacuous": "○",
    "interrupted": "○",
    "skipped": "○",
    "peer": "·",
}
ASCII_GLYPHS = {
    "ok": "+",
    "wrong": "x",
    "error": "x",
    "crashed": "x",
    "timeout": "x",
    "undecided": "?",
    "vacuous": "o",
    "interrupted": "o",
    "skipped": "o",
    "peer": ".",
}
STANDING = {"pass": "ok", "fail": "wrong", "incomplete": "skipped"}  # of a verdict, as the status that looks like it
STYLES = {
    "ok": "green",
    "wrong": "bold red",
    "error": "bold red",
    "crashed": "bold red",
    "timeout": "bold red",
    "undecided": "yellow",
    "vacuous": "yellow",
    "interrupted": "yellow",
    "skipped": "yellow",
    "peer": "dim",
}


@dataclass(frozen=True)
class Signs:
    """The few characters that are not ASCII, or what stands for them."""

    status: dict[str, str]
    dash: str
    ellipsis: str

    @staticmethod
    def choose(glyphs: bool) -> Signs:
        """The signs for a terminal that can, or cannot, show more than ASCII."""
        return Signs(GLYPHS, "\N{EN DASH}", "…") if glyphs else Signs(ASCII_GLYPHS, "..", "...")
