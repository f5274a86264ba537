"""`verify report`: render a saved run record again, beside bounds, another run or history if asked."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verify.cli import screen

if TYPE_CHECKING:
    from verify.gate.verdict import Verdict
    from verify.records.compare import Comparison
    from verify.records.record import Number, Run

RECENT = 24  # earlier figures in a sparkline
HALF = 30_000  # characters of a comment that the bounds may take, the run has the rest


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "report",
        help="render a saved run record",
        description="Render a run record as a table, an HTML page or Markdown; beside bounds, an earlier run or the "
        "history of a folder if asked. See docs/report.md for how to read it.",
    )
    parser.add_argument("record", metavar="RUN.json", help="the record to show")
    parser.add_argument("--html", metavar="PATH", help="write one self-contained HTML page")
    parser.add_argument("--markdown", metavar="PATH", help="write Markdown; - for stdout")
    parser.add_argument("--open", action="store_true", help="open the HTML page in the browser")
    parser.add_argument("--base", metavar="RUN.json", help="show what changed since this run")
    parser.add_argument("--bounds", metavar="DIR", help="show the verdict of these committed bounds")
    parser.add_argument("--runs", metavar="DIR", help="show the history in this folder of records (HTML)")
    parser.add_argument(
        "--kernel",
        action="append",
        default=[],
        metavar="NAME",
        help="do not shorten this peer's section where a page would be large (HTML, repeatable)",
    )
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """Render."""
    from verify.errors import UsageError
    from verify.records.record import load

    page = bool(options.html or options.open)
    if options.runs and not page:
        raise UsageError("--runs draws into the HTML page; it received no --html and no --open")
    if options.base and options.markdown and not options.bounds:
        raise UsageError("--base is part of a comment only beside --bounds", hint="verify compare BASE.json HEAD.json")
    run = load(options.record)
    if unknown := set(options.kernel) - {kernel.name for kernel in run.kernels}:
        raise UsageError(f"--kernel names a kernel of the record; it has no {', '.join(sorted(unknown))}")
    base, verdict = _base(options.base, run), _gate(options.bounds, run)
    if options.markdown:
        _markdown(options, run, base, verdict)
    if page:
        _html(options, run, base, verdict)
    if not options.markdown and not page:
        _terminal(options, run, base, verdict)
    return 0


def _base(path: str | None, run: Run) -> Comparison | None:
    if path is None:
        return None
    from verify.records.compare import compare
    from verify.records.record import load

    return compare(load(path), run)


def _gate(folder: str | None, run: Run) -> Verdict | None:
    if folder is None:
        return None
    from verify.cli.gate import bounds_folder
    from verify.gate.bounds import load
    from verify.gate.verdict import judge

    return judge([run], load(bounds_folder(folder)))


def earlier(folder: str | os.PathLike[str] | None, run: Run) -> dict[tuple[str, str, str], list[Number]]:
    """Figures of earlier runs on the same architecture, by result."""
    if folder is None:
        return {}
    from verify.errors import UsageError
    from verify.records.history import History
    from verify.records.readings import arch_of
    from verify.records.record import number

    if not Path(folder).is_dir():
        raise UsageError(f"--runs names a folder of records; there is none at {folder}")
    found: dict[tuple[str, str, str], list[Number]] = {}
    progress = screen.Progress()
    with History(folder) as history:
        history.refresh(progress)
        progress.clear()
        for kernel in {item.name for item in run.kernels if not item.peer}:
            for line in history.series(kernel, arch=arch_of(run)):
                earlier = [
                    number(point.value)
                    for point in history.points(line)
                    if point.record != run.id and point.created < run.created
                ]
                if line.source == "run" and earlier:
                    found[kernel, line.output, line.dtype] = earlier[-RECENT:]
    return found


def _html(options: argparse.Namespace, run: Run, base: Comparison | None, verdict: Verdict | None) -> None:
    from verify.records.record import write_atomically
    from verify.report.html import record_html

    text = record_html.render(run, base=base, gate=verdict, history=earlier(options.runs, run), whole=options.kernel)
    path = Path(options.html) if options.html else Path(tempfile.mkdtemp(prefix="verify-")) / "report.html"
    write_atomically(path, text.encode())
    print(f"report: {path.resolve()}")
    if options.open:
        import webbrowser

        if not webbrowser.open(path.resolve().as_uri()):
            print("verify: no browser could be started; open the file above", file=sys.stderr)


def _markdown(options: argparse.Namespace, run: Run, base: Comparison | None, verdict: Verdict | None) -> None:
    from verify.records.record import write_atomically

    text = comment(run, options.record, base, verdict)
    if options.markdown == "-":
        sys.stdout.write(text)
    else:
        write_atomically(options.markdown, text.encode())
        print(f"report: {Path(options.markdown).resolve()}")


def comment(run: Run, record: str, base: Comparison | None, verdict: Verdict | None) -> str:
    """The Markdown of a run, below that of the gate where there is one; together short enough for a comment."""
    from verify.report.markdown import gate_markdown, record_markdown

    if verdict is None:
        return record_markdown.render(run, record=record)
    above = gate_markdown.render(verdict, base, limit=HALF)
    return f"{above}\n{record_markdown.render(run, record=record, limit=60_000 - len(above) - 1)}"


def _terminal(options: argparse.Namespace, run: Run, base: Comparison | None, verdict: Verdict | None) -> None:
    from verify.report.terminal import record_text

    terminal = screen.terminal()
    sys.stdout.write(record_text.render(run, terminal, record=options.record))
    if base is not None:
        from verify.report.terminal import compare_text

        sys.stdout.write("\n" + compare_text.render(base, terminal))
    if verdict is not None:
        from verify.report.terminal import gate_text

        sys.stdout.write("\n" + gate_text.render(verdict, terminal, records=[options.record]))
