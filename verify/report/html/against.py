"""Compares a run with a base run or bounds, for the first part of a page.

Each comparison becomes plain rows here. The page itself reads neither gate nor comparison: it gets sentences and cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from verify.errors import INCOMPLETE, PASS, WRONG
from verify.records.bounds.verdict import SEVERITY
from verify.report import compare_words, gate_words, words
from verify.report.gaps import GapLine, gathered
from verify.report.signs import STANDING
from verify.report.table import TableRow

if TYPE_CHECKING:
    from verify.records.bounds.verdict import Verdict
    from verify.records.compare import Comparison

MOST = 200  # rows of one table; the commands list everything
LEAD = 8  # of these, rows that are visible above the findings of the run


@dataclass(frozen=True)
class Against:
    """Holds one table: the run against bounds or another run."""

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
