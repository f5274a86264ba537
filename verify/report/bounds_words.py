"""Makes the documents of changes of bounds: old and new value, their basis, and the reason of each loosening."""

from collections import Counter
from collections.abc import Sequence

from verify.records.bounds.changes import Change, Proposal, dropped, explained, needs_approval
from verify.records.bounds.committed import Bound
from verify.records.bounds.verdict import BREACH, MEANING, Waiver
from verify.records.bounds.waivers import APPROVED, Kind
from verify.records.figure import shown
from verify.records.grouped import grouped
from verify.report import gate_words, words
from verify.report.blocks import ReportBlock
from verify.report.document import EVERY, Document, Section, TableRow, narrowing, plain

MOST_ROWS = 60
MOST_KEYS = 60  # of one kernel, named in one line
REVIEW = "verify bounds review"
SIGN = {"looser": "wrong", "removed": "wrong", "tighter": "ok", "new": "ok", "restated": "ok"}


def _changes(found: Sequence[Change]) -> list[Section]:
    """Returns the table, then each loosening with its reason and its evidence."""
    more = [f"… {len(found) - MOST_ROWS:,} more changes; --json has all"] if len(found) > MOST_ROWS else []
    rows, loose = [_line(change) for change in found[:MOST_ROWS]], [each for each in found if each.kind == "looser"]
    return [
        Section(rows=rows, layouts=narrowing(COLUMNS), notes=lambda _: more),
        Section(blocks=[_block(change) for change in loose], most=EVERY),
    ]


def _block(change: Change) -> ReportBlock:
    """Returns the block of a loosening: how the bound moved, why, and the measurement behind it."""
    bound = change.new
    assert bound is not None
    evidence = bound.evidence
    gone = set[str]() if change.old is None else dropped(change.old, bound)
    lost = f"the property of a {' and a '.join(sorted(gone))}, which it no longer judges" if gone else ""
    sides = [each for each in (change.old, change.new) if each is not None]
    verdict = next((each.verdict for each in reversed(sides) if each.verdict), "ok")
    moved = " to ".join(dict.fromkeys(map(gate_words.bound_text, sides)))
    facts = [
        ("bound", moved + f"; the result is {verdict}" * (verdict != "ok")),
        ("reason", bound.reason if explained(change) else "none: it was changed by hand"),
        ("dropped", lost),
        ("measured", f"{gate_words.in_unit(shown(evidence.measured), bound.gate)}, {bound.basis}"),
        ("input", evidence.worst),
        ("evidence", f"record {evidence.record}, commit {evidence.commit}, {evidence.date}"),
    ]
    name = " ".join((change.key.kernel, change.key.output, change.key.dtype, change.key.regime))
    return ReportBlock(SIGN[change.kind], change.kind, name, facts)


def proposal(found: Proposal, *, written: Sequence[str], dry: bool = False) -> Document:
    """Returns the proposal, the rows that it could not cover, and the next command."""
    breached = any(row.status in BREACH for row in found.left)
    sections = [
        *_changes(found.changes),
        Section("left as they are", lines=plain(_left(found)), most=EVERY),
        Section("of wrong results", lines=plain(_wrong(found)), most=EVERY, standing="wrong"),
    ]
    next_ = "verify gate RUN.json" if breached or not written else REVIEW
    return Document("verify bounds", "ok", "", [summary(found.changes, written, dry)], sections, next=next_)


def _wrong(found: Proposal) -> list[str]:
    """Returns a line for each result that is wrong: how many of the new limits are its own."""
    why = {row.key: reading.why for row in found.verdict.rows for reading in row.readings if reading.status == "wrong"}
    keys = [change.key for change in found.changes if change.new is not None and change.new.verdict == "wrong"]
    counts = Counter((f"{key.kernel} {key.output} {key.dtype}", why[key]) for key in keys if why.get(key))
    return [
        f"{name} {words.plural(count, 'bound')} {'allows' if count == 1 else 'allow'} what is wrong: {reason}"
        for (name, reason), count in counts.items()
    ]


def _left(found: Proposal) -> list[str]:
    """Returns a line for the uncovered rows of each machine, kernel and status."""
    groups, lines = grouped(found.left, lambda row: (row.key.arch, row.key.kernel, row.status)), []
    for (arch, kernel, status), rows in groups.items():
        what = words.plural(len(rows), "result" if rows[0].bound is None else "bound")
        reason = rows[0].reason if len({row.reason for row in rows}) == 1 else MEANING[status]
        keys = [str(row.key) for row in rows if row.key.output]  # a kernel that failed early is one row without keys
        more = [f"… {len(keys) - MOST_KEYS:,} more"] if len(keys) > MOST_KEYS else []
        said = reason if status == "crashed" else f"{status}, {reason}"
        named = f": {', '.join([*keys[:MOST_KEYS], *more])}" if keys else ""
        lines.append(f"{kernel} {what} ({arch}): {said}{named}")
    return lines


def summary(found: Sequence[Change], written: Sequence[str], dry: bool) -> str:
    """Returns for example `12 new bounds, 3 tighter, in reports/bounds/sm_90/gelu.toml`."""
    if not found:
        return "nothing to propose: every bound that was measured is as tight as the measurement supports"
    kinds = [change.kind for change in found]
    parts = [f"{kinds.count(kind):,} {kind}" for kind in ("new", "tighter", "looser", "restated") if kind in kinds]
    wrong = sum(change.new is not None and change.new.verdict == "wrong" for change in found)
    said = f"{words.plural(len(found), 'bound')}: {', '.join(parts)}" + f"; {wrong:,} of wrong results" * bool(wrong)
    if dry:
        return f"{said}; nothing was written (--dry-run)"
    where = ", ".join(written) if len(written) <= 3 else f"{len(written):,} files, the first {written[0]}"
    return f"{said}; written to {where}"


def accepted(change: Change, *, written: Sequence[str]) -> Document:
    """Returns one loosening, in full."""
    said = f"accepted; written to {', '.join(written)}"
    return Document("verify bounds", "ok", "", [said], [Section(blocks=[_block(change)])], next=REVIEW)


def review(found: Sequence[Change], base: str, *, waivers: Sequence[tuple[Kind, Waiver]] = ()) -> Document:
    """Returns the changes since a commit, promises taken back first."""
    blocks = []
    for kind, waiver in waivers:
        facts = [("until", f"{waiver.expires} on {waiver.arch or 'every machine'}"), ("reason", waiver.reason)]
        style = "yellow" if kind in APPROVED else ""
        blocks.append(ReportBlock("skipped", f"waiver {kind}", waiver.key, facts, style=style))
    open_ = needs_approval(found) or any(kind in APPROVED for kind, _ in waivers)
    kinds = [kind for kind, _ in waivers]
    counts = ", ".join(f"{kinds.count(kind):,} {kind}" for kind in dict.fromkeys(kinds))
    said = review_sentence(found, base) + (f"; {words.plural(len(kinds), 'waiver')}: {counts}" if kinds else "")
    sections = [*_changes(found), Section(blocks=blocks, most=EVERY)]
    return Document("verify bounds", "wrong" if open_ else "ok", "", [said], sections)


def review_sentence(found: Sequence[Change], base: str) -> str:
    """Returns for example `3 bounds changed since HEAD: 1 looser with its reason, 2 tighter`."""
    if not found:
        return f"no bound changed since {words.clean(base)}"
    parts = []
    for kind in ("removed", "looser", "new", "tighter", "restated"):
        members = [change for change in found if change.kind == kind]
        if members:
            bare = sum(not explained(change) for change in members) if kind == "looser" else 0
            parts.append(f"{len(members):,} {kind}" + (f" ({bare:,} without a reason)" if bare else ""))
    return f"{words.plural(len(found), 'bound')} changed since {words.clean(base)}: {', '.join(parts)}"


COLUMNS = ("output", "dtype", "regime", "old", "new", "measured", "misrounded", "typical", "basis", "change")


def _line(change: Change) -> TableRow:
    key, bound = change.key, change.new or change.old
    assert bound is not None
    wrong = change.new is not None and change.new.verdict == "wrong"
    cells = {
        "output": key.output,
        "dtype": key.dtype,
        "regime": key.regime,
        "old": value(change.old),
        "new": value(change.new),
        "measured": shown(bound.evidence.measured),
        "misrounded": "-" if bound.share is None else words.share(bound.share, 1.0),
        "typical": "-" if bound.typical is None else gate_words.cell(shown(bound.typical), bound.gate),
        "basis": words.basis_short(bound.basis),
    }
    standing = "wrong" if wrong else SIGN[change.kind]
    return TableRow(key.kernel, key.arch, cells, standing, change.kind + ", wrong" * wrong)


def value(bound: Bound | None) -> str:
    """Returns the value, marked if it is of the scaled error or in noise."""
    return "-" if bound is None else gate_words.cell(words.decimal(bound.value), bound.gate)
