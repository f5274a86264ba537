"""What a page shows beside a run: bounds, a base run, history. Each becomes plain rows here, and only here.

The page knows neither gate nor comparison: it gets sentences and cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verify.errors import INCOMPLETE, PASS, WRONG
from verify.records.record import KernelRun, Number, Result, Worst
from verify.report import gate_words, run_words, words
from verify.report.gaps import GapLine, gathered
from verify.report.signs import STANDING

if TYPE_CHECKING:
    from verify.gate.verdict import Row, Verdict
    from verify.records.compare import Comparison, Pair

History = Mapping[tuple[str, str, str], Sequence[Number]]  # (kernel, output, dtype) -> figures, oldest first
MOST = 200  # rows of one table: a page is read, the commands list everything


@dataclass(frozen=True)
class AgainstRow:
    """One figure beside what it is held against."""

    standing: str
    word: str
    what: str
    regime: str
    before: str
    after: str
    note: str
    worst: Worst | None = None


@dataclass(frozen=True)
class Against:
    """One table: the run against bounds, or against another run."""

    anchor: str
    title: str
    standing: str
    sentence: str
    before: str  # heading of the column of bounds or earlier figures
    rows: list[AgainstRow]
    left_out: int
    lines: list[GapLine]


_STANDING: dict[str, str] = {
    "crashed": "crashed",
    "nonfinite": "wrong",
    "breached": "wrong",
    "incomparable": "skipped",
    "unused": "skipped",
    "new": "skipped",
    "waived": "skipped",
    "improved": "ok",
    "ok": "ok",
}


def bounds(found: Verdict) -> Against:
    """The verdict of the gate; what is within its bound is counted and not listed."""
    rows = [_bound(row) for row in found.rows if row.status in gate_words.WITH_FIGURES]
    statuses = [row.status for row in found.rows]
    counted = (
        ", ".join(f"{statuses.count(key):,} {key}" for key in _STANDING if key in statuses) or "no bound and no figure"
    )
    return Against(
        anchor="bounds",
        title="Against the committed bounds",
        standing=STANDING[found.word],
        sentence=f"{found.word}: {counted or 'no bound and no figure'}",
        before="Bound",
        rows=rows[:MOST],
        left_out=max(len(rows) - MOST, 0),
        lines=[*_unjudged(found), *gathered([line for _, lines in gate_words.besides(found) for line in lines])],
    )


def _unjudged(found: Verdict) -> list[GapLine]:
    """What has no verdict of its own, a line for each kernel and reason."""
    rows = [row for row in found.rows if row.status not in gate_words.WITH_FIGURES and row.status != "ok"]
    return [
        GapLine(
            words.clean(f"{members[0].status}: {kernel}{gate_words.keys(kernel, members)} ({arch}): {reason}"),
            [gate_words.measured(row) for row in members] if len(members) > 1 else [],
        )
        for arch, kernel, reason, members in gate_words.groups(rows)
    ]


def _bound(row: Row) -> AgainstRow:
    key, leading = row.key, row.leading
    return AgainstRow(
        standing=_STANDING[row.status],
        word=row.status,
        what=" ".join(words.clean(part) for part in (key.kernel, key.output, key.dtype) if part),
        regime=words.clean(key.regime),
        before="" if row.bound is None else words.ulp(row.bound.value),
        after="" if leading is None else words.ulp(_number(leading.value)),
        note=words.clean(gate_words.why(row) if row.waiver else row.reason),
        worst=None if leading is None else leading.worst,
    )


_CHANGE: dict[str, tuple[str, str]] = {
    "worse": ("wrong", "worse"),
    "incomparable": ("skipped", "not comparable"),
    "removed": ("skipped", "not measured now"),
    "better": ("ok", "better"),
    "added": ("peer", "new"),
    "same": ("peer", "same maximum"),
}


def base(found: Comparison) -> Against:
    """The run beside an earlier one; what did not change is counted and not listed."""
    rows = [_pair(pair) for pair in found.pairs if not pair.silent]
    changes = [pair.change for pair in found.pairs]
    counted = [f"{changes.count(change):,} {word}" for change, (_, word) in _CHANGE.items() if change in changes]
    silent = sum(pair.silent for pair in found.pairs)
    bits = sum(pair.bits == "changed" for pair in found.pairs)
    sentence = ", ".join(counted) or "nothing to compare"
    sentence += f"; bits changed in {words.plural(bits, 'figure')}" if bits else "; no bits are known to have changed"
    return Against(
        anchor="base",
        title=f"Against run {words.clean(found.base.id)}",
        standing={PASS: "ok", WRONG: "wrong", INCOMPLETE: "skipped"}[found.exit_code],
        sentence=sentence + (f"; {silent:,} unchanged and not listed" if silent else ""),
        before="Before",
        rows=rows[:MOST],
        left_out=max(len(rows) - MOST, 0),
        lines=[GapLine(words.clean(f"{name} fails now: {message}")) for name, message in found.broke]
        + [GapLine(words.clean(f"{name} no longer fails")) for name in found.mended],
    )


def _pair(pair: Pair) -> AgainstRow:
    key = pair.key
    standing, word = _CHANGE[pair.change]
    notes = [words.clean(pair.reason)] if pair.reason else []
    if pair.bits == "changed":
        notes.append("bits changed")
    return AgainstRow(
        standing=standing,
        word=word,
        what=" ".join(words.clean(part) for part in (key.kernel, key.output, key.dtype)),
        regime=words.clean(key.regime),
        before="" if pair.base is None else words.ulp(_number(pair.base.value)),
        after="" if pair.head is None else words.ulp(_number(pair.head.value)),
        note=", ".join(notes),
        worst=None if pair.head is None or pair.change != "worse" else pair.head.worst,
    )


def _number(value: float) -> Number:
    from verify.records.record import number

    return number(value)


def trend(history: History | None, kernel: KernelRun, result: Result) -> Sequence[Number]:
    """The figures of one result over earlier runs and this one, if there are any earlier ones."""
    if not history or kernel.peer:
        return ()
    earlier = history.get((kernel.name, result.output, result.dtype), ())
    return (*earlier, run_words.judged(result.figures, result.gate).upper) if earlier else ()
