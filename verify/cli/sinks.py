"""Where a finished record goes: its file, the pages, and the screen."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from verify.cli import screen

if TYPE_CHECKING:
    from verify.records.record import Run


def deliver(result: Run, options: argparse.Namespace, show: Callable[[], str] | None = None) -> None:
    """Write what --json, --html and --markdown ask for; print what `show` says (default: the table), then the paths.

    With `--json -` the record goes to stdout and nothing else does.
    """
    from verify.records.record import encode, save, write_atomically

    markdown_path = getattr(options, "markdown", None)
    record = options.json if options.json and options.json != "-" else ""
    if record:
        save(result, record)
    if options.html:
        from verify.report.html import record_html

        write_atomically(options.html, record_html.render(result).encode())
    if markdown_path:
        from verify.report.markdown import record_markdown

        write_atomically(markdown_path, record_markdown.render(result, record=record).encode())
    if options.json == "-":
        sys.stdout.write(encode(result).decode())
        return
    sys.stdout.write(show() if show else _table(result, record))
    for label, path in (("record", options.json), ("report", markdown_path), ("report", options.html)):
        if path:
            print(f"{label}: {Path(path).resolve()}")


def _table(result: Run, record: str) -> str:
    from verify.report.terminal import record_text

    return record_text.render(result, screen.terminal(), record=record)
