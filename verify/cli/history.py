"""Defines `verify history`: how the figures of a kernel changed over the saved records."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from verify.cli import exits, given, options, screen, sinks

if TYPE_CHECKING:
    from verify.records.history import History, HistoryPoint, Series


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "history",
        help="show how a kernel's figures changed over time",
        description="Show a kernel's figures over all records of a folder. Without a kernel: which kernels there are. "
        "With --regime: the figures of a regime instead of whole results; `--regime all` lists every one.",
        examples=(
            "verify history",
            "verify history my_gelu --result dx --dtype bfloat16",
            "verify history my_gelu --changed --runs reports/runs",
            "verify history my_gelu --html history.html",
        ),
    )
    parser.add_argument("kernel", nargs="?", metavar="KERNEL", help="the kernel to show")
    options.some(parser, "--dtype", "--result")
    parser.add_argument("--arch", default="", metavar="ARCH", help="this architecture only, e.g. sm_90 or interpreter")
    options.one(parser, "--regime")
    parser.add_argument("--changed", action="store_true", help="list the runs in which a figure changed")
    options.add(parser, "--runs")
    options.sinks(parser, "the figures", "--json", "--html")
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """Shows figures from the records of the folder."""
    from verify.declare import config
    from verify.errors import UsageError
    from verify.records.history import History

    folder = given.runs_folder(options, config.find())
    progress = screen.Progress()
    history = History(folder, kernels=[options.kernel])
    history.refresh(progress)
    progress.clear()
    if options.kernel is None and options.html:
        raise UsageError("a page shows one kernel; received --html without a kernel", hint="verify history")
    if options.kernel is None:
        return _kernels(options, history)
    lines = _lines(options, history)
    return _changes(options, history, lines) if options.changed else _table(options, history, lines)


def _lines(options: argparse.Namespace, history: History) -> list[Series]:
    """Returns the lines of figures that the options select. Raises UsageError if there are none."""
    from verify.errors import UsageError
    from verify.records.history import EVERY

    regime = None if options.regime == "all" else options.regime or EVERY
    found = [
        line
        for line in history.series(options.kernel, arch=options.arch, regime=regime)
        if (not options.result or line.output in options.result) and (not options.dtype or line.dtype in options.dtype)
    ]
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
    data = [
        {
            **_line(item.series),
            "last": _point(item.last),
            "since": _point(item.since),
            "before": None if item.before is None else _point(item.before),
            "runs": item.count,
            "least": item.least,
            "most": item.most,
            "finite": item.finite,
            "beside": item.beside,
            "recent": list(item.recent),
        }
        for item in found
    ]
    _deliver(
        options,
        history,
        lines,
        data,
        lambda: history_text.table(options.kernel, found, history.refreshed, screen.terminal()),
    )
    return exits.PASS


def _changes(options: argparse.Namespace, history: History, lines: list[Series]) -> int:
    from verify.report.terminal import history_text

    found = [(line, history.events(line), history.points(line)[0]) for line in lines]
    data = [
        {
            **_line(line),
            "first": _point(first),
            "changes": [{"before": _point(event.before), "after": _point(event.after)} for event in events],
        }
        for line, events, first in found
    ]
    _deliver(
        options,
        history,
        lines,
        data,
        lambda: history_text.events(options.kernel, found, history.refreshed, screen.terminal()),
    )
    return exits.PASS


def _deliver(
    options: argparse.Namespace,
    history: History,
    lines: list[Series],
    data: list[dict[str, Any]],
    text: Callable[[], str],
) -> None:
    """Delivers the lines: `text` for the screen, `data` for programs, and a page with plots and all changes."""
    from verify.report.html import pages

    def page() -> bytes:
        found = [(history.summary(line), history.points(line), history.events(line)) for line in lines]
        return pages.history(options.kernel, found).encode()

    sinks.deliver(options, text, json=lambda: sinks.as_json({"lines": data, **_files(history)}), html=page)


def _kernels(options: argparse.Namespace, history: History) -> int:
    from verify.report.terminal import history_text

    found = history.kernels()
    rows = [{"kernel": name, "runs": count, "last": created} for name, count, created in found]
    sinks.deliver_data(
        options,
        lambda: {"kernels": rows, **_files(history)},
        lambda: history_text.kernels(found, history.refreshed, screen.terminal()),
    )
    return exits.PASS


def _files(history: History) -> dict[str, Any]:
    return {"skipped": [{"file": name, "problem": problem} for name, problem in history.refreshed.skipped]}


def _line(line: Series) -> dict[str, Any]:
    import dataclasses

    return dataclasses.asdict(line)


def _point(point: HistoryPoint) -> dict[str, Any]:
    return {
        "ulp": point.value,
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
