"""The verdict of the gate as a comment on a pull request: verdict first, changed rows only, one line if nothing is."""

from __future__ import annotations

from collections.abc import Sequence

from verify.bounds import Bound
from verify.compare import Comparison, Pair
from verify.gate import Row, Verdict
from verify.readings import Reading, inputs
from verify.report import compare_text, gate_text, words
from verify.report.markdown import _block, _Budget, _code, _line, _text

HEADER = (
    "| kernel | result | dtype | regime | bound | measured | basis | status |\n"
    "| --- | --- | --- | --- | ---: | ---: | --- | --- |"
)
CHANGED = (
    "| kernel | result | dtype | regime | base | head | misrounded | bits | change |\n"
    "| --- | --- | --- | --- | ---: | ---: | ---: | --- | --- |"
)
LIMIT = 60_000


def render(verdict: Verdict, comparison: Comparison | None = None, *, limit: int = LIMIT) -> str:
    """The whole comment, at most `limit` characters; a single line when there is nothing to tell."""
    sign = {"pass": "✓", "fail": "✗", "incomplete": "○"}[verdict.word]
    said = _text("; ".join(gate_text.clauses(verdict)))
    changed = [] if comparison is None else comparison.told
    told = [row for row in verdict.rows if row.status != "ok"]
    broke = () if comparison is None else comparison.broke
    if not (told or changed or broke or verdict.missing or verdict.notes):
        return f"{sign} verify: no changes: {said}.\n"[:limit]
    budget = _Budget(limit)
    budget.must(f"### {sign} verify gate: **{verdict.word}:** {said}\n")
    if comparison is not None:
        budget.must(f"\nAgainst the base: {_text(compare_text.sentence(comparison))}.\n")
    if verdict.records:
        budget.reserve(f"\n<sub>records {', '.join(_code(item) for item in verdict.records[:8])}</sub>\n")
    with_figures = [row for row in told if row.readings]
    details = [_detail(row) for row in told if row.status in ("breached", "nonfinite")]
    share = 0.5 if details or changed else 1.0
    budget.fill([_row(row) for row in with_figures], "rows", head=HEADER, share=share)
    budget.fill(_absent([row for row in told if not row.readings]), "lines", head="**Not judged**\n")
    budget.fill(details, "breaches", share=0.6 if changed else 1.0)
    budget.fill([_changed(pair) for pair in changed], "changed figures", head=CHANGED)
    for title, lines in (("Not measured", verdict.missing), ("Not judged here", verdict.notes)):
        budget.fill([f"- {_text(text)}" for text in lines], "lines", head=f"**{title}**\n")
    return budget.text()


def _row(row: Row) -> str:
    reading = row.leading
    assert reading is not None
    sign = {"breached": "✗", "nonfinite": "✗", "crashed": "✗", "improved": "✓"}.get(row.status, "○")
    word = f"**{row.status}**" if sign == "✗" else row.status
    return _line(
        [
            *map(_code, (row.key.kernel, row.key.output, row.key.dtype, row.key.regime)),
            _bound(row.bound),
            _figure(reading),
            _text(words.basis(reading.basis)),
            f"{sign} {word}",
        ]
    )


def _changed(pair: Pair) -> str:
    paired = pair.base is not None and pair.head is not None
    change = compare_text.change_text(pair)
    reason = f": {_text(pair.reason)}" if pair.reason else ""
    return _line(
        [
            *map(_code, (pair.key.kernel, pair.key.output, pair.key.dtype, pair.key.regime)),
            "" if pair.base is None else _figure(pair.base),
            "" if pair.head is None else _figure(pair.head),
            _text(compare_text.misrounded_text(pair)) if paired else "",
            pair.bits,
            (f"**{change}**" if change == "worse" else change) + reason,
        ]
    )


def _absent(rows: Sequence[Row]) -> list[str]:
    """Keys without a figure, one line for each kernel and reason."""
    return [
        f"- {_code(kernel)} ({_text(arch)}): {words.plural(len(members), 'key')} {_state(members[0].status, reason)}"
        for arch, kernel, reason, members in gate_text.groups(rows)
    ]


def _state(status: str, reason: str) -> str:
    return _text(reason if status == "crashed" else f"{status}, {reason}")


def _detail(row: Row) -> str:
    reading = row.leading
    assert reading is not None
    facts = [("measured", f"{gate_text.figure(reading)}, {_text(words.basis(reading.basis))}")]
    if row.bound is not None:
        evidence = row.bound.evidence
        rests = f"{words.basis(row.bound.basis)}; commit {evidence.commit}, {evidence.date}"
        facts.append(("bound", f"{_bound(row.bound)} ULP, {_text(rests)}"))
    else:
        facts.append(("why", _text(row.reason)))
    if reading.worst is not None:
        facts += [
            ("input", _code(inputs(reading.worst))),
            ("got", f"{_code(reading.worst.got)} ({_code(reading.worst.got_hex)})"),
            ("truth", _code(reading.worst.truth)),
        ]
    table = "\n".join(f"| {name} | {value} |" for name, value in facts)
    replay = f"\n{_block(reading.worst.replay)}" if reading.worst is not None else ""
    heading = f"<summary>✗ {_code(gate_text.title(row))}: {row.status}</summary>"
    return f"<details>{heading}\n\n| | |\n| --- | --- |\n{table}\n{replay}\n</details>\n"


def _figure(reading: Reading) -> str:
    return gate_text.error(reading) + (" scaled" if reading.gate == "scaled" else "")


def _bound(bound: Bound | None) -> str:
    return "" if bound is None else words.decimal(bound.value)
