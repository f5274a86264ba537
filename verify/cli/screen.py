"""Writes to the terminal: width, colour, a line of progress on stderr, text without control characters."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verify.report.terminal.text_page import Terminal


QUIET_SECONDS = 30.0  # between two lines of progress in a log


def terminal() -> Terminal:
    """Returns the abilities of the terminal for the pages of the report.

    A file or a pipe has 120 columns. Output is coloured only on a terminal, and never with NO_COLOR set.
    """
    from verify.report.terminal.text_page import Terminal

    shown = sys.stdout.isatty()
    columns = shutil.get_terminal_size((120, 40)).columns if shown or "COLUMNS" in os.environ else 120
    return Terminal(columns, shown and not os.environ.get("NO_COLOR"))


class Progress:
    """Shows the progress in one line on stderr. If stderr is no terminal, it prints a line every QUIET_SECONDS."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._said = time.monotonic()

    def __call__(self, text: str) -> None:
        if not self._shown and time.monotonic() - self._said >= QUIET_SECONDS:
            self._said = time.monotonic()
            print(f"verify: {plain(text)}", file=sys.stderr, flush=True)
        if self._shown:
            columns = shutil.get_terminal_size((80, 24)).columns - 1
            print(f"\r\x1b[2K{plain(text)[:columns]}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Removes the line."""
        if self._shown:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def plain(text: str) -> str:
    """Returns text without control characters, so that it cannot steer the terminal."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def complain(problems: Iterable[str]) -> None:
    """Prints one block on stderr for each problem of a command that did run."""
    for problem in problems:
        for number, line in enumerate(problem.splitlines()):
            print(f"{'' if number else 'verify: '}{plain(line)}", file=sys.stderr)
