"""`verify report`: render a saved run record again."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from verify.cli import screen


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "report",
        help="render a saved run record",
        description="Render a run record as a table, an HTML page or Markdown.",
    )
    parser.add_argument("record", metavar="RUN.json")
    parser.add_argument("--html", metavar="PATH", help="write one self-contained HTML page")
    parser.add_argument("--markdown", metavar="PATH", help="write Markdown; - for stdout")
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """Render."""
    from verify.record import load, write_atomically

    run = load(options.record)
    if options.markdown:
        from verify.report import markdown

        text = markdown.render(run, record=options.record)
        if options.markdown == "-":
            sys.stdout.write(text)
        else:
            write_atomically(options.markdown, text.encode())
            print(f"report: {Path(options.markdown).resolve()}")
    if options.html:
        from verify.report import html

        write_atomically(options.html, html.render(run).encode())
        print(f"report: {Path(options.html).resolve()}")
    if not options.markdown and not options.html:
        from verify.report import terminal

        sys.stdout.write(terminal.render(run, width=screen.width(), color=screen.colour(), record=options.record))
    return 0
