"""`verify compare`: two records of the same cases, figure by figure."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from verify.cli import json_, screen


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "compare",
        help="compare two records of the same cases",
        description="Compare two run records: what got worse, what got better, and whether any bit changed.",
        epilog="exit codes: 0 nothing got worse, 1 something did, 2 usage, 3 something could not be compared",
    )
    parser.add_argument("base", metavar="BASE.json")
    parser.add_argument("head", metavar="HEAD.json")
    parser.add_argument("--all", action="store_true", help="list what is the same too")
    parser.add_argument("--json", metavar="PATH", help="write the comparison as JSON; - for stdout instead of the text")
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """Compare."""
    from verify.compare import compare
    from verify.record import load
    from verify.report import compare_text, gate_data

    found = compare(load(options.base), load(options.head))
    if options.json:
        json_.write(options.json, gate_data.of_comparison(found))
    if options.json != "-":
        sys.stdout.write(
            compare_text.render(found, width=screen.width(), color=screen.colour(), everything=options.all)
        )
    return found.exit_code
