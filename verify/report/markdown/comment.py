"""Makes the pieces of every comment on GitHub: text that is inert in Markdown, rows, commands, a limit of length.

Text from outside is written with HTML character references, so that no character of it has a meaning in Markdown.
@names and #numbers are broken up, so that GitHub does not link them. A comment has at most 65,536 characters. Pieces
that do not fit are counted and omitted, never cut. The length is counted in bytes of UTF-8, an upper bound on every
definition of characters.
"""

from __future__ import annotations

import functools
import re

from verify.report import words
from verify.report.blocks import ReportBlock
from verify.report.signs import GLYPHS
from verify.report.table import Columns, TableRow, header, is_right

# These become character references: all but letters, digits and a few signs, underscores at the edge of a word
# (emphasis), and the dot of www. (a link).
_ACTIVE = re.compile(r"[^A-Za-z0-9 ,()/.;=_-]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<=www)\.", re.IGNORECASE)


class Budget:
    """Appends whole pieces while they fit, keeps room for the closing, and notes how many did not fit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.parts: list[str] = []
        self.closing = ""

    def must(self, text: str) -> None:
        """Appends the verdict at any limit, shortened if necessary."""
        room = self.limit - self._used()
        if size(text) > room:
            room -= size("…\n")
            text = text.encode()[:room].decode(errors="ignore") + "…\n" if room >= 0 else ""
        self.parts.append(text)

    def reserve(self, closing: str) -> None:
        """Keeps room for the closing text, if there is room for it at all."""
        if self._used() + size(closing) <= self.limit:
            self.closing = closing

    def fill(self, pieces: list[str], what: str, *, head: str = "", foot: str = "", share: float = 1.0) -> None:
        """Appends as many pieces as fit into a share of the room, then the number of missing pieces."""
        if not pieces:
            return
        room = int(share * (self.limit - self._used() - size(self.closing)))

        def note(left: int) -> str:
            return f"\n{left:,} more {what} left out for length; the record has them.\n"

        opening = f"\n{head}\n" if head else "\n"
        used = size(opening) + size(foot) + size(note(len(pieces))) + 2
        taken = 0
        for piece in pieces:
            if used + size(piece) + 1 > room:
                break
            used += size(piece) + 1
            taken += 1
        if taken:
            self.parts.append(opening + "\n".join(pieces[:taken]) + "\n" + foot)
        if taken < len(pieces) and len(note(len(pieces))) <= room:
            self.parts.append(note(len(pieces) - taken))

    def text(self) -> str:
        """Returns the finished comment."""
        return "".join(self.parts) + self.closing

    def _used(self) -> int:
        return sum(map(size, self.parts))


def size(text: str) -> int:
    """Returns the number of bytes in UTF-8."""
    return len(text.encode())


def code(text: str) -> str:
    """Returns text from outside, inert: character references inside <code>."""
    return f"<code>{inert(text)}</code>" if text else ""


@functools.lru_cache(1024)  # a comment repeats names and messages
def inert(text: str) -> str:
    """Returns text from outside without anything that Markdown or GitHub would act on."""
    # A zero-width space follows @ and #, because GitHub looks for names and numbers in the rendered text.
    found = _ACTIVE.sub(lambda match: f"&#{ord(match[0])};", words.clean(text))
    return found.replace("&#64;", "&#64;&#8203;").replace("&#35;", "&#35;&#8203;")


def fenced(command: str) -> str:
    """Returns a command in a fence longer than any run of backticks in it."""
    text = words.clean(command)
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}sh\n{text}\n{fence}\n"


def figures_head(columns: Columns) -> str:
    """Returns the head of a table, whose first column is the kernel."""
    rule = ["---:" if is_right(name) else "---" for name in columns]
    return f"| {' | '.join(['kernel', *map(header, columns)])} |\n| {' | '.join(['---', *rule])} |"


def figures_row(columns: Columns, row: TableRow, *, regimes: int = 1) -> str:
    """Returns a row of a table, which may be about several regimes. Its word is in the last column."""
    cells = [code(row.kernel)]
    for name in columns[:-1]:
        cells.append((code if name in ("output", "dtype", "regime") else inert)(row.cells.get(name, "")))
        if name == "regime" and regimes > 1:
            cells[-1] += f" and {regimes - 1} more"
    word = f"**{inert(row.word)}**" if row.standing == "wrong" else inert(row.word)
    note = f": {inert(row.note)}" if row.note else ""
    return f"| {' | '.join([*cells, f'{GLYPHS[row.standing]} {word}{note}'])} |"


def folded(block: ReportBlock) -> str:
    """Returns a block behind its heading: a table of its facts, its message, and its commands."""
    heading = f"{GLYPHS[block.status]} {code(block.title)}: {inert(block.word + block.note)}"
    facts = "".join(f"| {inert(name)} | {inert(value)} |\n" for name, value in block.fields)
    table = f"| | |\n| --- | --- |\n{facts}\n" if facts else ""
    message = "<br>".join(code(line) for line in block.message if line)
    commands = "\n".join(map(fenced, block.commands))
    parts = "".join(f"{part.rstrip()}\n\n" for part in (table, message, commands) if part)
    return f"<details><summary>{heading}</summary>\n\n{parts}</details>\n"
