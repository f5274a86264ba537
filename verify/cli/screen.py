"""What every command shares: width and colour of the terminal, progress on stderr, JSON on stdout, times as given."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verify.report.terminal.text_page import Terminal


def width() -> int:
    """Columns of the terminal; 120 where output goes to a file or a pipe."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return 120
    return shutil.get_terminal_size((120, 40)).columns


def colour() -> bool:
    """Whether to colour: only on a terminal, and never with NO_COLOR set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def terminal() -> Terminal:
    """What the pages of the report are told about the terminal."""
    from verify.report.terminal.text_page import Terminal

    return Terminal(width(), colour())


class Progress:
    """One line on stderr that says what is going on; silent unless stderr is a terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        if self._shown:
            room = shutil.get_terminal_size((80, 24)).columns - 1
            print(f"\r\x1b[2K{plain(text)[:room]}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def plain(text: str) -> str:
    """Text from elsewhere without control characters: it must not steer the terminal."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def print_json(value: Any) -> None:
    """JSON for `--json -` and the like."""
    print(json.dumps(value, indent=1, sort_keys=True))


def count(text: str) -> int:
    """An argument that is a count: 0 to 1000."""
    value = int(text) if text.isdigit() else -1
    if not 0 <= value <= 1000:
        raise argparse.ArgumentTypeError(f"a count from 0 to 1000; received {text!r}")
    return value


def seconds(text: str) -> float:
    """An argument that is a time: seconds of 90, 90s, 1.5m, 20m or 1h30m."""
    parts = re.fullmatch(r"(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.]+)s?)?", text.strip().lower())
    try:
        hours, minutes, rest = (float(part or 0) for part in parts.groups()) if parts else (0.0, 0.0, 0.0)
    except ValueError:
        hours = minutes = rest = 0.0
    value = hours * 3600 + minutes * 60 + rest
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"a time is positive, such as 90, 90s, 20m or 1h30m; received {text!r}")
    return value
