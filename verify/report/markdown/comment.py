"""What every comment on GitHub is made of: text that means nothing to Markdown, rows, commands, a limit of length.

Text from outside is written with HTML character references, so that no character of it means anything to Markdown,
and @names and #numbers are broken up, so that GitHub links none. A comment has at most 65,536 characters: what does
not fit is counted and left out, never cut. Length is counted in bytes of UTF-8, of which there are never fewer than of
characters, however a reader counts these.
"""

from __future__ import annotations

import functools
import re

from verify.report import words

# What becomes a character reference: all but letters, digits and a few signs, underscores at the
# edge of a word (emphasis), and the dot of www. (a link)
_ACTIVE = re.compile(r"[^A-Za-z0-9 ,()/.;=_-]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<=www)\.", re.IGNORECASE)


class Budget:
    """Appends whole pieces while they fit, keeps room for the closing, says what did not fit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.parts: list[str] = []
        self.closing = ""

    def must(self, text: str) -> None:
        """The verdict is there at any limit, shortened if it has to be."""
        room = self.limit - self._used()
        if size(text) > room:
            room -= size("…\n")
            text = text.encode()[:room].decode(errors="ignore") + "…\n" if room >= 0 else ""
        self.parts.append(text)

    def reserve(self, closing: str) -> None:
        """What comes last, if there is room for it at all."""
        if self._used() + size(closing) <= self.limit:
            self.closing = closing

    def fill(self, pieces: list[str], what: str, *, head: str = "", foot: str = "", share: float = 1.0) -> None:
        """As many pieces as fit into a share of the room, then how many are missing."""
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
        """The finished comment."""
        return "".join(self.parts) + self.closing

    def _used(self) -> int:
        return sum(map(size, self.parts))


def size(text: str) -> int:
    """Bytes of UTF-8."""
    return len(text.encode())


def code(text: str) -> str:
    """Text from outside, inert: character references inside <code>."""
    return f"<code>{inert(text)}</code>" if text else ""


@functools.lru_cache(1024)  # a comment says the same names and messages again and again
def inert(text: str) -> str:
    """Text from outside with nothing in it that Markdown or GitHub would act on."""
    # a zero-width space after @ and #: GitHub looks for names and numbers in the rendered text
    found = _ACTIVE.sub(lambda match: f"&#{ord(match[0])};", words.clean(text))
    return found.replace("&#64;", "&#64;&#8203;").replace("&#35;", "&#35;&#8203;")


def fenced(command: str) -> str:
    """A command in a fence longer than any run of backticks in it."""
    text = words.clean(command)
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}sh\n{text}\n{fence}\n"


def table_row(cells: list[str]) -> str:
    """One row of a table."""
    return f"| {' | '.join(cells)} |"
