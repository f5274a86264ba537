"""Describes figures over time in words, the same in the terminal and in HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence

from verify.records.history import Event, HistoryPoint, Series, Summary
from verify.records.readings import UNKNOWN
from verify.records.record import number
from verify.report import words


def name_of(line: Series) -> str:
    """Returns for example `dx bfloat16` or `dx bfloat16 positive (sweep)`."""
    parts = [line.output, line.dtype, *([line.regime] if line.regime else [])]
    return " ".join(map(words.clean, parts)) + ("" if line.source == "run" else f" ({line.source})")


def ulp(value: float) -> str:
    """Returns a figure of the table."""
    return words.ulp(number(value))


def beside(value: float, finite: float) -> str:
    """Returns a figure. NaN and infinity are followed by the largest number: `NaN, 0.62`."""
    return ulp(value) if math.isfinite(value) or math.isnan(finite) else f"{ulp(value)}, {ulp(finite)}"


def change(event: Event) -> tuple[str, str]:
    """Returns the standing of a change, and what changed: `worse`, `better, other seed`, `other cases`."""
    before, after = event.before, event.after
    if event.other_question:
        return "skipped", "other cases"
    worse = math.isnan(after.value) or (not math.isnan(before.value) and after.value > before.value)
    seed = ", other seed" if before.basis.seed != after.basis.seed else ""
    return ("wrong", f"worse{seed}") if worse else ("ok", f"better{seed}")


def sentence(found: Sequence[Summary]) -> str:
    """Returns how many lines changed, and the latest change."""
    changed = [item for item in found if item.before is not None]
    if not changed:
        return f"{words.plural(len(found), 'line')} of figures, none of which ever changed"
    latest = max(changed, key=lambda item: item.since.created)
    before = latest.before
    assert before is not None
    return (
        f"{words.plural(len(changed), 'line')} of {len(found):,} changed; the latest is {name_of(latest.series)}: "
        f"{ulp(before.value)} to {ulp(latest.last.value)} ULP on {day(latest.since)}, record {latest.since.record}"
    )


def day(point: HistoryPoint) -> str:
    """Returns the day of a run."""
    return words.clean(point.created[:10]) or "no date"


def commit(point: HistoryPoint) -> str:
    """Returns the short name of the commit of a run."""
    return point.commit[:7] if point.commit not in ("", UNKNOWN) else "-"
