"""`verify history`: how the figures of a kernel changed over the saved records."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verify.cli import json_, screen

if TYPE_CHECKING:
    from verify.records.history import History, Point, Series


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "history",
        help="show how a kernel's figures changed over time",
        description="Show a kernel's figures over all records of a folder. Without a kernel: which kernels there are.",
    )
    parser.add_argument("kernel", nargs="?", metavar="KERNEL", help="the kernel to show")
    parser.add_argument("--output", default="", metavar="NAME", help="this output or gradient only, e.g. dx")
    parser.add_argument("--dtype", default="", metavar="DTYPE", help="this dtype only")
    parser.add_argument("--arch", default="", metavar="ARCH", help="this architecture only, e.g. sm_90 or interpreter")
    parser.add_argument("--regime", metavar="NAME", help="this regime instead of whole results; all lists every one")
    parser.add_argument("--changed", action="store_true", help="list the runs in which a figure changed")
    parser.add_argument("--runs", metavar="DIR", help="folder of the records (default reports/runs)")
    parser.add_argument("--json", metavar="PATH", help="write as JSON; - for stdout instead of the table")
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """Answer from the index."""
    from verify.declare import config
    from verify.records.history import History

    folder = Path(options.runs) if options.runs else config.find().runs
    progress = screen.Progress()
    with History(folder) as history:
        history.refresh(progress)
        progress.clear()
        if options.kernel is None:
            return _kernels(options, history)
        lines = _lines(options, history)
        return _changes(options, history, lines) if options.changed else _table(options, history, lines)


def _lines(options: argparse.Namespace, history: History) -> list[Series]:
    from verify.errors import UsageError
    from verify.records.history import EVERY

    regime = EVERY if options.regime is None else None if options.regime == "all" else options.regime
    found = history.series(options.kernel, output=options.output, dtype=options.dtype, arch=options.arch, regime=regime)
    if regime is None:
        found = [line for line in found if line.regime != EVERY]
    if not found:
        every = history.series(options.kernel, regime=None)
        if not every:
            names = ", ".join(name for name, _, _ in history.kernels())
            raise UsageError(f"no record in {history.folder} has a kernel {options.kernel!r}; known: {names or 'none'}")
        have = {name: sorted({str(getattr(line, name)) for line in every}) for name in ("arch", "output", "dtype")}
        said = "; ".join(f"{name} {', '.join(values)}" for name, values in have.items())
        regimes = ", ".join(sorted({line.regime for line in every} - {EVERY}))
        raise UsageError(f"{options.kernel} has no such figure; it has {said}; regime {regimes}")
    return found


def _table(options: argparse.Namespace, history: History, lines: list[Series]) -> int:
    from verify.report.terminal import history_text

    found = [history.summary(line) for line in lines]
    if options.json:
        data = [
            {
                **_line(item.series),
                "last": _point(item.last),
                "since": _point(item.since),
                "before": None if item.before is None else _point(item.before),
                "runs": item.count,
                "least": _number(item.least),
                "most": _number(item.most),
                "recent": [_number(value) for value in item.recent],
            }
            for item in found
        ]
        json_.write(options.json, {"lines": data, **_files(history)})
    if options.json != "-":
        sys.stdout.write(history_text.table(options.kernel, found, history.refreshed, screen.terminal()))
    return 0


def _changes(options: argparse.Namespace, history: History, lines: list[Series]) -> int:
    from verify.report.terminal import history_text

    found = [(line, history.events(line), history.first(line)) for line in lines]
    if options.json:
        data = [
            {
                **_line(line),
                "first": _point(first),
                "changes": [{"before": _point(event.before), "after": _point(event.after)} for event in events],
            }
            for line, events, first in found
        ]
        json_.write(options.json, {"lines": data, **_files(history)})
    if options.json != "-":
        sys.stdout.write(history_text.events(options.kernel, found, history.refreshed, screen.terminal()))
    return 0


def _kernels(options: argparse.Namespace, history: History) -> int:
    from verify.report.terminal import history_text

    found = history.kernels()
    if options.json:
        rows = [{"kernel": name, "runs": count, "last": created} for name, count, created in found]
        json_.write(options.json, {"kernels": rows, **_files(history)})
    if options.json != "-":
        sys.stdout.write(history_text.kernels(found, history.refreshed, screen.terminal()))
    return 0


def _files(history: History) -> dict[str, Any]:
    return {"skipped": [{"file": name, "problem": problem} for name, problem in history.refreshed.skipped]}


def _line(line: Series) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(line).items() if name != "id"}


def _point(point: Point) -> dict[str, Any]:
    return {
        "ulp": _number(point.value),
        "misrounded": point.misrounded,
        "n": point.n,
        "basis": str(point.basis),
        "properties": point.properties,
        "bits": point.bits,
        "worst": point.worst,
        "record": point.record,
        "created": point.created,
        "commit": point.commit,
    }


def _number(value: float) -> Any:
    from verify.records.record import number

    return number(value)
