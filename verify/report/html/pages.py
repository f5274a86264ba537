"""Writes a verdict of the gate, or a comparison of two records as one HTML file without a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verify.records.compare import Comparison
from verify.records.readings import Reading
from verify.records.record import replay_command
from verify.report import compare_words, gate_words, result_words, words
from verify.report.html import against
from verify.report.html.record_html import asset, policy, templates
from verify.report.signs import STANDING

if TYPE_CHECKING:
    from verify.records.bounds.verdict import Verdict


@dataclass(frozen=True)
class Spot:
    """Holds one breach or one figure that got worse, with its input."""

    title: str
    trouble: str
    input: str
    got: str
    truth: str
    replay: str


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


def _page(
    state: str,
    heading: tuple[str, str],
    clauses: Sequence[str],
    setting: str,
    *,
    beside: Sequence[against.Against] = (),
    spots: Sequence[Spot] = (),
) -> str:
    from markupsafe import Markup

    style = asset("report.css")
    environment = templates()
    environment.globals.update(beside=beside, lead=against.LEAD)
    return environment.get_template("page.html.j2").render(
        policy=policy(style),
        style=Markup(style),
        state=state,
        first=heading[0],
        rest=heading[1],
        clauses=clauses,
        setting=setting,
        spots=spots[: against.MOST],
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
