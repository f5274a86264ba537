"""Compares a run with a base run, its history or bounds, for the first part of a page.

Each comparison becomes plain rows here. The page itself reads neither gate nor comparison: it gets sentences and cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verify.errors import INCOMPLETE, PASS, WRONG
from verify.records.bounds.verdict import SEVERITY
from verify.records.figure import comparable
from verify.records.record import Number, value_of
from verify.records.recorded import judged
from verify.report import compare_words, gate_words, words
from verify.report.gaps import GapLine, gathered
from verify.report.html.curve_plot import spark
from verify.report.present import Facts, ResultFacts
from verify.report.signs import STANDING
from verify.report.table import TableRow

if TYPE_CHECKING:
    from verify.records.bounds.verdict import Verdict
    from verify.records.compare import Comparison

MOST = 200  # rows of one table; the commands list everything
LEAD = 8  # of these, rows that are visible above the findings of the run


@dataclass(frozen=True)
class Earlier:
    """Holds the figures of one result in earlier runs, oldest first."""

    values: Sequence[Number]
    alike: bool  # True: the last figure is of the cases that this run measured


History = Mapping[tuple[str, str, str, str], Earlier]  # by kernel, output, dtype and source


@dataclass(frozen=True)
class Against:
    """Holds one table: the run against bounds, another run, or earlier runs."""

    anchor: str
    title: str
    standing: str
    sentence: str
    columns: tuple[str, str, str]  # that a narrow page has room for; the last two are figures
    rows: list[TableRow]
    left_out: int
    lines: list[GapLine]


def bounds(found: Verdict) -> Against:
    """Returns the verdict of the gate. Keys within their bound are counted and not listed."""
    rows = [gate_words.line(row) for row in found.rows if row.status in gate_words.WITH_FIGURES]
    statuses = [row.status for row in found.rows]
    others = [row for row in found.rows if row.status not in (*gate_words.WITH_FIGURES, "ok")]
    besides = [line for _, lines in gate_words.besides(found) for line in lines]
    counted = ", ".join(f"{statuses.count(key):,} {key}" for key in SEVERITY if key in statuses)
    return Against(
        anchor="bounds",
        title="Against the committed bounds",
        standing=STANDING[found.word],
        sentence=f"{found.word}: {counted or 'no bound and no figure'}",
        columns=("regime", "bound", "measured"),
        rows=rows[:MOST],
        left_out=max(len(rows) - MOST, 0),
        lines=[*gate_words.unjudged(others), *gathered(besides)],
    )


def base(found: Comparison) -> Against:
    """Returns the comparison with an earlier run. It lists changed figures only, and counts unpaired ones by kernel."""
    both = [pair for pair in found.listed if pair.base is not None and pair.head is not None and not pair.reason]
    both.sort(key=lambda pair: (pair.change == "worse", gate_words.times(pair.grew)), reverse=True)
    rows = [compare_words.line(pair) for pair in both]
    return Against(
        anchor="base",
        title=f"What changed since run {words.clean(found.base.id)}",
        standing={PASS: "ok", WRONG: "wrong", INCOMPLETE: "skipped"}[found.exit_code],
        sentence=compare_words.sentence(found),
        columns=("regime", "base", "head"),
        rows=rows[:MOST],
        left_out=max(len(rows) - MOST, 0),
        lines=[GapLine(words.clean(f"{name} fails now: {message}")) for name, message in found.broke]
        + [GapLine(words.clean(f"{name} no longer fails")) for name in found.fixed]
        + compare_words.alone(found.pairs),
    )


def over_time(facts: Facts, history: History | None) -> Against | None:
    """Returns the changes since the run before, the largest growth first, with the figures of all earlier runs."""
    known = [(each, found) for kernel in facts.judged for each in kernel.leading if (found := _before(history, each))]
    if not known:
        return None
    moved = []
    for each, found in known:
        now, last = judged(each.result.figures, each.result.gate).upper, found.values[-1]
        ratio = max(comparable(value_of(now)), 1e-3) / max(comparable(value_of(last)), 1e-3)
        if ratio != 1.0:
            moved.append((ratio, _moved(each, found, now, ratio > 1)))
    moved.sort(key=lambda pair: -pair[0])
    grew, runs = sum(ratio > 1 for ratio, _ in moved), max(len(found.values) for *_, found in known)
    counted = [f"{grew:,} grew"] * (grew > 0) + [f"{len(moved) - grew:,} shrank"] * (len(moved) > grew)
    of = words.plural(len(known), "result")
    since = f"since the run before, over {words.plural(runs, 'earlier run')}"
    said = f"of {of}, {words.listed(counted)} {since}" if moved else f"no maximum of {of} moved {since}"
    return Against(
        anchor="trend",
        title="Trend",
        standing="wrong" if any(row.standing == "wrong" for _, row in moved) else "skipped" if grew else "ok",
        sentence=said,
        columns=("earlier runs", "before", "now"),
        rows=[row for _, row in moved[:MOST]],
        left_out=max(len(moved) - MOST, 0),
        lines=[],
    )


def _moved(each: ResultFacts, found: Earlier, now: Number, grew: bool) -> TableRow:
    result, values = each.result, (*found.values, now)
    cells = {
        "output": words.clean(result.output),
        "dtype": words.clean(result.dtype),
        "earlier runs": spark(values, result.limit, label=f"Maximum of {each.title} over {len(values)} runs"),
        "before": words.ulp(found.values[-1]),
        "now": words.ulp(now),
    }
    standing, note = (
        "skipped" if result.status == "ok" and grew else result.status,
        "" if found.alike else "other cases",
    )
    return TableRow(each.owner.name, "", cells, standing, "grew" if grew else "shrank", frozenset({"now"}), note)


def trend(history: History | None, each: ResultFacts) -> Sequence[Number]:
    """Returns the figures of one result over earlier runs and this one, or none without earlier runs."""
    found = _before(history, each)
    return (*found.values, judged(each.result.figures, each.result.gate).upper) if found else ()


def _before(history: History | None, each: ResultFacts) -> Earlier | None:
    result, kernel = each.result, each.owner.run
    if not history or kernel.peer:
        return None
    return history.get((kernel.name, result.output, result.dtype, result.source))
