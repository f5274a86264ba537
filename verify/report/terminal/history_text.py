"""Shows figures over time in the terminal: a table with a sparkline, or the list of runs in which a figure changed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from verify.records.history import Event, HistoryPoint, Refresh, Series, Summary
from verify.report import words
from verify.report.history_words import beside, change, commit, day, name_of, sentence, ulp
from verify.report.signs import Signs
from verify.report.terminal.text_page import ROOMY, Cell, Page, Terminal

BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = "_.-=+*#@"
BARS_ROOMY, BARS_NARROW = 24, 12
MOST_SKIPPED = 5
MOST_EVENTS = 40  # the latest ones, of each line


def table(kernel: str, found: Sequence[Summary], refresh: Refresh, terminal: Terminal) -> str:
    """Returns one line per result: the last figure, since when, the extremes, and the shape of the latest runs."""
    page = Page(terminal)
    headers = ["output", "dtype", "regime", "now", "least", "most", "runs", "since", "commit", "latest runs"]
    if not any(item.series.regime for item in found):
        headers.remove("regime")
    if terminal.width < ROOMY:
        headers.remove("commit")
    bars = BARS_ROOMY if terminal.width >= ROOMY else BARS_NARROW
    for arch in dict.fromkeys(item.series.arch for item in found):
        page.line(Cell(kernel, "bold"), Cell(f"  {arch}", "dim"))
        rows = [_cells(item, bars, terminal.glyphs) for item in found if item.series.arch == arch]
        page.table(
            headers,
            [[cells[header] for header in headers] for cells in rows],
            right=("now", "least", "most", "runs"),
            indent=2,
        )
    page.line(Cell("largest error in ULP; the bars are on a logarithmic scale, the latest run is on the right", "dim"))
    if any(not math.isfinite(value) for item in found for value in (item.last.value, item.most)):
        page.line(Cell("after NaN or infinity: the largest number of the regimes (now) or of the runs (most)", "dim"))
    _skipped(page, refresh)
    page.blank()
    changed = any(item.before is not None for item in found)
    page.line(sentence(found))
    page.command(f"next: verify history {words.clean(kernel)} --changed" if changed else "next: verify run")
    return page.text()


def events(
    kernel: str, found: Sequence[tuple[Series, Sequence[Event], HistoryPoint]], refresh: Refresh, terminal: Terminal
) -> str:
    """Returns every run that changed a figure, after the first figure of its line."""
    page = Page(terminal)
    for line, changes, first in found:
        page.line(Cell(kernel, "bold"), f" {name_of(line)}", Cell(f"  {line.arch}", "dim"))
        begun = f"{ulp(first.value)} ULP from {day(first)} on, record {words.clean(first.record)}"
        page.line(begun, indent=2)
        page.more(len(changes) - MOST_EVENTS, "earlier changes; --json has them", indent=2)
        page.table(
            ("date", "before", "after", "record", "commit", "bits", "what changed"),
            [_event(event, page.signs) for event in changes[-MOST_EVENTS:]],
            right=("before", "after"),
            indent=2,
        )
        page.blank()
    _skipped(page, refresh)
    total = sum(len(changes) for _, changes, _ in found)
    page.blank()
    if total:
        latest = max((event for _, changes, _ in found for event in changes), key=lambda event: event.after.created)
        said = f"{words.plural(total, 'change')}; the latest is {name_of(latest.series)} in record"
        page.line(f"{said} {latest.after.record}, {day(latest.after)}")
    else:
        page.line("no figure ever changed")
    return page.text()


def kernels(found: Sequence[tuple[str, int, str]], refresh: Refresh, terminal: Terminal) -> str:
    """Lists the kernels in the records."""
    page = Page(terminal)
    page.table(
        ("kernel", "runs", "last run"),
        [(Cell(kernel), Cell(f"{count:,}"), Cell(created[:16].replace("T", " "))) for kernel, count, created in found],
        right=("runs",),
    )
    if not found:
        page.line("no record in this folder has a result")
    _skipped(page, refresh)
    page.blank()
    page.command("next: verify history KERNEL" if found else "next: verify run --json reports/runs/NAME.json")
    return page.text()


def sparkline(values: Sequence[float], glyphs: bool = True) -> str:
    """Returns each value as a bar between the least and the largest, by its logarithm. `x` is NaN, `^` infinity.

    >>> sparkline([0.5, 0.5, 64.0, 0.5], glyphs=False)
    '__@_'
    """
    bars = BARS if glyphs else ASCII_BARS
    sizes = [math.log2(max(value, 2.0**-24)) for value in values if math.isfinite(value)]
    low, high = (min(sizes), max(sizes)) if sizes else (0.0, 0.0)
    # Differences below a quarter octave are noise in a picture, so they fill only a part of the height.
    span = max(high - low, 0.25)
    text = ""
    for value in values:
        if math.isfinite(value):
            text += bars[round((math.log2(max(value, 2.0**-24)) - low) / span * (len(bars) - 1))]
        else:
            text += "x" if math.isnan(value) else "^"
    return text


def _cells(item: Summary, bars: int, glyphs: bool) -> dict[str, Cell]:
    line = item.series
    scaled = words.MARK[line.gate]
    return {
        "output": Cell(line.output + ("" if line.source == "run" else f" ({line.source})")),
        "dtype": Cell(line.dtype),
        "regime": Cell(line.regime or "whole"),
        "now": Cell(beside(item.last.value, item.beside) + scaled),
        "least": Cell(ulp(item.least)),
        "most": Cell(beside(item.most, item.finite)),
        "runs": Cell(f"{item.count:,}"),
        "since": Cell(day(item.since)),
        "commit": Cell(commit(item.since)),
        "latest runs": Cell(sparkline(item.recent[-bars:], glyphs)),
    }


def _event(event: Event, signs: Signs) -> list[Cell]:
    """Returns the table row of a change."""
    before, after = event.before, event.after
    standing, word = change(event)
    style = {"skipped": "yellow", "wrong": "bold red", "ok": "green"}[standing]
    known = bool(before.bits and after.bits)
    return [
        Cell(day(after)),
        Cell(ulp(before.value)),
        Cell(ulp(after.value)),
        Cell(after.record),
        Cell(commit(after)),
        Cell(("same" if before.bits == after.bits else "changed") if known else "-"),
        Cell(f"{signs.status[standing]} {word}", style),
    ]


def _skipped(page: Page, refresh: Refresh) -> None:
    if not refresh.skipped:
        return
    page.blank()
    page.line(Cell(f"{page.signs.status['skipped']} {words.plural(len(refresh.skipped), 'file')} skipped", "yellow"))
    for _, problem in refresh.skipped[:MOST_SKIPPED]:
        page.line(problem, indent=4)
    page.more(len(refresh.skipped) - MOST_SKIPPED, "more; --json names them all")
