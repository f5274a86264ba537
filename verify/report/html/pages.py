"""Writes a verdict of the gate, a comparison of two records or a kernel's history as one HTML file without a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verify.records.compare import Comparison
from verify.records.history import Event, HistoryPoint, Summary
from verify.records.readings import Reading
from verify.records.record import number, replay_command
from verify.report import compare_words, gate_words, history_words, result_words, words
from verify.report.html import against, curve_plot
from verify.report.html.record_html import asset, policy, templates
from verify.report.signs import STANDING

if TYPE_CHECKING:
    from markupsafe import Markup

    from verify.records.bounds.verdict import Verdict

MOST_CHANGES = 40  # of each line, the latest ones


@dataclass(frozen=True)
class Spot:
    """Holds one breach or one figure that got worse, with its input."""

    title: str
    trouble: str
    input: str
    got: str
    truth: str
    replay: str


@dataclass(frozen=True)
class Line:
    """Holds one result of a history: its figures now, and every run that changed it, with a plot if there is one."""

    summary: Summary
    name: str
    now: str
    least: str
    most: str
    plot: Markup | None
    changes: list[tuple[str, Event]]  # what changed, and the two runs
    left_out: int


def gate(found: Verdict, comparison: Comparison | None = None) -> str:
    """Returns the page of a verdict. `comparison` is that of the head with the base."""
    beside = [] if comparison is None else [against.base(comparison)]
    spots = [
        _spot(gate_words.title(row), f"{gate_words.decisive(row)[0]}{gate_words.against(row)}", row.leading)
        for row in gate_words.breaches(found)
    ]
    clauses = gate_words.clauses(found)
    setting = f"records {', '.join(map(words.clean, found.records))}" if found.records else ""
    return _page(
        STANDING[found.word],
        (found.word, clauses[0]),
        clauses[1:],
        setting,
        beside=[*beside, against.bounds(found)],
        spots=spots,
    )


def compared(found: Comparison) -> str:
    """Returns the page of a comparison."""
    table = against.base(found)
    first, parts = compare_words.clauses(found)
    spots = [
        _spot(gate_words.title(pair), compare_words.growth(pair), pair.head)
        for pair in found.pairs
        if pair.change == "worse"
    ]
    beneath = [f"{name} {before}, now {after}" for name, before, after in found.beneath]
    setting = f"base {compare_words.about(found.base)}; head {compare_words.about(found.head)}"
    return _page(table.standing, (first, "; ".join(parts)), beneath, setting, beside=[table], spots=spots)


def history(kernel: str, found: Sequence[tuple[Summary, Sequence[HistoryPoint], Sequence[Event]]]) -> str:
    """Returns the page of a kernel's figures over time, the lines that changed last first."""
    order = sorted(found, key=lambda item: item[0].since.created if item[0].before else "", reverse=True)
    summaries = [summary for summary, *_ in found]
    return _page(
        "peer",
        ("history", f"{words.clean(kernel)}, {history_words.sentence(summaries)}"),
        [],
        "the largest error of each run, in ULP, on a logarithmic scale",
        lines=[_line(*item) for item in order],
    )


def _line(summary: Summary, points: Sequence[HistoryPoint], events: Sequence[Event]) -> Line:
    name = f"{history_words.name_of(summary.series)} on {words.clean(summary.series.arch)}"
    return Line(
        summary,
        name,
        history_words.beside(summary.last.value, summary.beside) + words.UNIT[summary.series.gate],
        history_words.ulp(summary.least),
        history_words.beside(summary.most, summary.finite),
        curve_plot.over_runs([(point.created[:10], number(point.value)) for point in points], name) if events else None,
        [(history_words.change(event)[1], event) for event in reversed(events[-MOST_CHANGES:])],
        max(len(events) - MOST_CHANGES, 0),
    )


def _page(
    state: str,
    heading: tuple[str, str],
    clauses: Sequence[str],
    setting: str,
    *,
    beside: Sequence[against.Against] = (),
    spots: Sequence[Spot] = (),
    lines: Sequence[Line] = (),
) -> str:
    from markupsafe import Markup

    style = asset("report.css")
    environment = templates()
    environment.globals.update(beside=beside, lead=against.LEAD, of=history_words)
    return environment.get_template("page.html.j2").render(
        policy=policy(style),
        style=Markup(style),
        state=state,
        first=heading[0],
        rest=heading[1],
        clauses=clauses,
        setting=setting,
        spots=spots[: against.MOST],
        lines=lines,
    )


def _spot(title: str, trouble: str, reading: Reading | None) -> Spot:
    """Returns a figure with its worst element. An old record may have none."""
    worst = None if reading is None else reading.worst
    if reading is None or worst is None:
        return Spot(title, trouble, "", "", "", "")
    got = f"{worst.got} ({worst.got_hex})"
    error = gate_words.there(reading) or result_words.error_text(worst, reading.gate)
    return Spot(
        title,
        trouble,
        f"{gate_words.where(worst)}: {error}",
        got,
        words.truth(worst.truth),
        replay_command(worst.origin),
    )
