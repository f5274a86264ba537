"""`verify bounds`: propose bounds from records, review what changed, accept a loosening with its reason."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verify.cli import json_, screen
from verify.cli.gate import bounds_folder

if TYPE_CHECKING:
    from verify.gate.bounds import Book


def add(commands: Any) -> None:
    """Add the command and its three steps to the parser."""
    parser = commands.add_parser(
        "bounds",
        help="propose, review and accept bounds",
        description="Bounds are the largest errors that a project allows itself, one per output, dtype and regime. "
        "They get tighter from records, and looser only one by one, with a reason.",
    )
    steps = parser.add_subparsers(title="steps", metavar="STEP", required=True)
    _propose(steps)
    _review(steps)
    _accept(steps)


def _propose(steps: Any) -> None:
    parser = steps.add_parser(
        "propose",
        help="write new and tighter bounds from records",
        description="Write a bound for every figure that has none and tighten those that a record shows to be loose. "
        "No bound ever gets looser, none is removed.",
        epilog="exit codes: 0 done, 1 done, and some figure is beyond its bound, 2 usage",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN.json", help="records of runs")
    _shared(parser)
    parser.add_argument("--kernel", action="append", default=[], metavar="NAME", help="this kernel only (repeatable)")
    parser.add_argument(
        "--margin",
        type=_share,
        metavar="SHARE",
        help="how much looser than its measurement supports a bound may stay (default 0.05)",
    )
    parser.add_argument(
        "--headroom",
        type=_share,
        metavar="SHARE",
        help="what is added to observed maxima: other seeds find larger ones (default 0.25, below 10,000 cases 2)",
    )
    parser.add_argument("--dry-run", action="store_true", help="show, and write nothing")
    parser.set_defaults(handler=propose)


def _review(steps: Any) -> None:
    parser = steps.add_parser(
        "review",
        help="show what changed in the bounds since a commit",
        description="Show every bound that changed since a commit, what was loosened or removed first. With the record "
        "behind the bounds: the worst input of each, what came out and the command that shows it again.",
        epilog="exit codes: 0 nothing got looser, 1 a bound was loosened or removed, 2 usage",
    )
    parser.add_argument("base", nargs="?", default="HEAD", metavar="REF", help="commit to compare with (default HEAD)")
    parser.add_argument(
        "--run", action="append", default=[], metavar="RUN.json", help="record with the worst inputs (repeatable)"
    )
    _shared(parser, writes=False)
    parser.set_defaults(handler=review)


def _accept(steps: Any) -> None:
    parser = steps.add_parser(
        "accept",
        help="loosen one bound, with the reason in the file",
        description="Loosen one bound to what a record measured. The reason and the date stay in the file.",
    )
    parser.add_argument("key", metavar="KEY", help="kernel/output/dtype/regime, as `verify gate` prints it")
    parser.add_argument("runs", nargs="+", metavar="RUN.json", help="records of runs")
    parser.add_argument("--reason", required=True, help="why the larger error is right")
    _shared(parser)
    parser.add_argument("--headroom", type=_share, metavar="SHARE", help="as for propose")
    parser.set_defaults(handler=accept)


def _shared(parser: argparse.ArgumentParser, *, writes: bool = True) -> None:
    parser.add_argument("--bounds", metavar="DIR", help="folder of the bounds (default reports/bounds)")
    parser.add_argument("--json", metavar="PATH", help="write the changes as JSON; - for stdout instead of the text")
    if writes:
        parser.add_argument("--on-ci", action="store_true", help="write although this is a CI machine")


def propose(options: argparse.Namespace) -> int:
    """New and tighter bounds; exit 1 when a figure is beyond what is promised already."""
    from verify.gate import bounds, changes
    from verify.records.record import load
    from verify.report import gate_data
    from verify.report.terminal import bounds_text

    if not options.dry_run:
        _may_write(options, "propose")
    book = _book(options)
    found = changes.propose(
        [load(path) for path in options.runs],
        book,
        kernels=options.kernel,
        margin=bounds.MARGIN if options.margin is None else options.margin,
        headroom=options.headroom,
    )
    written: list[str] = []
    if not options.dry_run:
        written = [_shown(path) for path in bounds.save(book, [item.new for item in found.changes if item.new])]
    if options.json:
        data = {
            "changes": gate_data.of_changes(found.changes),
            "written": written,
            "left": [{"key": str(row.key), "status": row.status, "reason": row.reason} for row in found.left],
        }
        json_.write(options.json, data)
    if options.json != "-":
        sys.stdout.write(bounds_text.proposal(found, screen.terminal(), written=written, dry=options.dry_run))
    return 1 if any(row.status in ("breached", "nonfinite", "crashed") for row in found.left) else 0


def review(options: argparse.Namespace) -> int:
    """Old and new; exit 1 when a promise was taken back."""
    from verify.gate import changes
    from verify.gate.at_commit import book_at
    from verify.records.record import load
    from verify.report import gate_data
    from verify.report.terminal import bounds_text

    book = _book(options)
    runs = [load(path) for path in options.run]
    found = changes.review(book_at(options.base, book.folder), book)
    behind = changes.behind(found, runs)
    if options.json:
        json_.write(options.json, {"base": options.base, "changes": gate_data.of_changes(found, behind)})
    if options.json != "-":
        files = {run.id: path for run, path in zip(runs, options.run, strict=True)}
        text = bounds_text.review(found, options.base, screen.terminal(), behind=behind, files=files)
        sys.stdout.write(text)
    return 1 if changes.needs_approval(found) else 0


def accept(options: argparse.Namespace) -> int:
    """Loosen one bound."""
    import datetime

    from verify.gate import bounds, changes
    from verify.records.record import load
    from verify.report import gate_data
    from verify.report.terminal import bounds_text

    _may_write(options, "accept")
    book = _book(options)
    runs = [load(path) for path in options.runs]
    change = changes.accept(
        options.key,
        options.reason,
        runs,
        book,
        today=datetime.datetime.now(datetime.UTC).date().isoformat(),
        headroom=options.headroom,
    )
    assert change.new is not None
    behind = changes.behind([change], runs)
    files = {run.id: path for run, path in zip(runs, options.runs, strict=True)}
    written = [_shown(path) for path in bounds.save(book, [change.new])]
    if options.json:
        json_.write(options.json, {"changes": gate_data.of_changes([change], behind), "written": written})
    if options.json != "-":
        text = bounds_text.accepted(change, screen.terminal(), written=written, behind=behind, files=files)
        sys.stdout.write(text)
    return 0


def _book(options: argparse.Namespace) -> Book:
    from verify.gate import bounds

    # the first proposal makes the folder
    return bounds.load(Path(options.bounds) if options.bounds else bounds_folder(None))


def _may_write(options: argparse.Namespace, step: str) -> None:
    from verify.errors import UsageError

    if os.environ.get("CI", "").lower() not in ("", "0", "false") and not options.on_ci:
        raise UsageError(
            "bounds are changed by people and reviewed, so nothing is written on a CI machine; CI is set here",
            hint=f"verify bounds {step} on your own machine with the record, or --on-ci",
        )


def _shown(path: Path) -> str:
    return os.path.relpath(path) if path.resolve().is_relative_to(Path.cwd()) else str(path)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 10:
        raise argparse.ArgumentTypeError(f"a share is a number from 0 to 10, 0.1 for a tenth; received {text!r}")
    return value
