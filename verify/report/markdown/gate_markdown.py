"""Writes the verdict of the gate as a comment on a pull request: changed rows only, changes first, one line if none.

A row is about one result, and names the regime with the largest error. The worst rows are visible and the others are
folded: a reader sees at most 25 lines, however much changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from verify.errors import PASS, WRONG
from verify.records.bounds.verdict import Row, Verdict
from verify.records.compare import Comparison, Pair
from verify.records.figure import ordered
from verify.report import compare_words, gate_words, words
from verify.report.gaps import FEW, gathered
from verify.report.markdown.comment import Budget, code, figures_head, figures_row, folded, inert
from verify.report.signs import GLYPHS, STANDING

LIMIT = 60_000
MANY = 8  # more figures than these of one reason have one line
OPEN = 4  # rows of each part that are not folded


def render(verdict: Verdict, comparison: Comparison | None = None, *, limit: int = LIMIT) -> str:
    """Returns the whole comment, at most `limit` bytes. It is a single line if there is nothing to report."""
    sign = GLYPHS[STANDING[verdict.word]]
    said = inert("; ".join(gate_words.clauses(verdict)))
    changed = [] if comparison is None else comparison.listed
    notable = [row for row in verdict.rows if row.status != "ok"]
    broke = () if comparison is None else comparison.broke
    budget = Budget(limit)
    if not (notable or changed or broke or any(lines for _, lines in gate_words.besides(verdict))):
        budget.must(f"{sign} verify: no changes: {said}.\n")
        return budget.text()
    heading = said if comparison is None else inert(compare_words.sentence(comparison))
    budget.must(f"### {sign} verify gate: **{verdict.word}:** {heading}\n")
    if comparison is not None:
        budget.must(f"\nBounds: {said}.\n")
    if verdict.records:
        budget.reserve(f"\n<sub>records {', '.join(code(item) for item in verdict.records[:8])}</sub>\n")
    waived = [row for row in notable if row.status == "waived"]
    rest = [row for row in notable if row.status not in ("waived", *gate_words.WITH_FIGURES)]
    grouped = gate_words.groups(rest)
    # Rows are distinguished by identity: comparing thousands with each other takes a minute.
    few = {id(row) for *_, members in grouped if len(members) <= FEW for row in members if row.readings}
    with_figures = [row for row in notable if row.status in gate_words.WITH_FIGURES or id(row) in few]
    details = [
        folded(gate_words.breach(row, {}, note=f", and {words.plural(count - 1, 'other regime')} of it" * (count > 1)))
        for row, count in _by_result(row for row in notable if row.status in ("breached", "nonfinite"))
    ]
    if comparison is not None:
        _fill_changes(budget, comparison, share=0.4)
    share, head = 0.5 if details else 1.0, figures_head(gate_words.COLUMNS)
    rows = [
        figures_row(gate_words.COLUMNS, gate_words.line(row), regimes=count) for row, count in _by_result(with_figures)
    ]
    _fill(budget, rows, "rows", head=head, share=share)
    for title, rows_ in (("Waived", waived), ("Not judged", [row for row in rest if id(row) not in few])):
        keys = [f"- {inert(gap.text)}" for gap in gate_words.unjudged(rows_)]
        _fill(budget, keys, "lines", head=f"**{title}**\n")
    _fill(budget, details, "breaches")
    for title, lines in gate_words.besides(verdict):
        told = [f"- {inert(gap.text)}" for gap in gathered(lines)]
        _fill(budget, told, "lines", head=f"**{title.capitalize()}**\n")
    return budget.text()


def compared(found: Comparison, *, limit: int = LIMIT) -> str:
    """Returns a comment on the changes between two records, without a verdict on bounds."""
    budget = Budget(limit)
    sign = {PASS: "✓", WRONG: "✗"}.get(found.exit_code, "○")
    budget.must(f"### {sign} verify compare: {inert(compare_words.sentence(found))}\n")
    _fill_changes(budget, found)
    return budget.text()


def _fill(budget: Budget, pieces: list[str], what: str, *, head: str = "", share: float = 1.0) -> None:
    """Appends the first pieces visibly, the others folded below them."""
    shown, folded = (pieces, []) if len(pieces) <= OPEN + 1 else (pieces[:OPEN], pieces[OPEN:])
    budget.fill(shown, what, head=head, share=share)
    fold = f"<details><summary>{len(folded):,} more {what}</summary>\n\n{head}"
    budget.fill(folded, what, head=fold, foot="\n</details>\n", share=share)


def _by_result(rows: Iterable[Row]) -> list[tuple[Row, int]]:
    """Returns one row for each result and status, that of its largest error, with the number of its regimes."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        key = row.key
        groups.setdefault((key.arch, key.kernel, key.output, key.dtype, row.status), []).append(row)

    def size(row: Row) -> tuple[int, float]:
        return ordered(0.0 if row.leading is None else row.leading.value)

    return [(max(group, key=size), len(group)) for group in groups.values()]


def _fill_changes(budget: Budget, found: Comparison, *, share: float = 1.0) -> None:
    """Appends a row for each result and kind of change. Many unpaired figures of one reason have one line."""
    count = Counter((pair.change, pair.reason) for pair in found.listed)
    apart = [
        pair for pair in found.listed if pair.change in compare_words.ALONE and count[pair.change, pair.reason] > MANY
    ]
    known = set(map(id, apart))  # by identity: comparing thousands with each other takes a minute
    groups: dict[tuple[str, ...], list[Pair]] = {}
    for pair in found.listed:
        if id(pair) not in known:
            key = pair.key
            groups.setdefault((key.kernel, key.output, key.dtype, pair.change, pair.reason), []).append(pair)

    def larger(pair: Pair) -> tuple[int, float]:
        return max(ordered(reading.value) for reading in (pair.base, pair.head) if reading is not None)

    leading = [(compare_words.line(max(group, key=larger)), len(group)) for group in groups.values()]
    rows = [figures_row(compare_words.COLUMNS, line, regimes=regimes) for line, regimes in leading]
    _fill(budget, rows, "changed results", head=figures_head(compare_words.COLUMNS), share=share)
    lines = [f"- {inert(gap.text)}" for gap in compare_words.alone(apart)]
    _fill(budget, lines, "lines", head="**Not compared**\n")
