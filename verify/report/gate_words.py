"""Makes the document of a verdict of the gate, and describes its rows in words."""

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence

from verify.records.bounds.committed import Bound
from verify.records.bounds.verdict import BREACH, MEANING, SEVERITY, Excess, Row, Status, Verdict
from verify.records.compare import Pair
from verify.records.figure import UNIT, ordered, shown
from verify.records.grouped import grouped
from verify.records.readings import Reading
from verify.records.record import UNPROVEN, Gate, number, replay_command, value_of
from verify.report import blocks, result_words, words
from verify.report.document import Document, Section, TableRow, narrowing
from verify.report.gaps import GapLine, gathered
from verify.report.words import STANDING

WITH_FIGURES: tuple[Status, ...] = ("nonfinite", "breached", "improved")
# The status of a result that looks like that of a row; others look skipped.
SIGN: dict[str, str] = {"ok": "ok", "improved": "ok", **dict.fromkeys(BREACH, "wrong")}
SIGN |= {name: name for name in UNPROVEN}
MOST_BREACHES = 12  # breaches that are shown in full


def document(verdict: Verdict, *, everything: bool = False, records: Sequence[str] = ()) -> Document:
    """Returns the page of a verdict. `everything` also lists keys in order. `records` are paths, for commands."""
    shown = [row for row in verdict.rows if row.status in WITH_FIGURES or (everything and row.readings)]
    broken, files = breaches(verdict), paths_of(verdict, records)
    found = [breach(row, files) for row in broken]
    for row, block in zip(broken, found, strict=True):
        if row.status == "breached" and row.waiver is None:
            paths = " ".join(map(shlex.quote, records)) or "RUN.json"
            block.commands.append(f"verify bounds accept {shlex.quote(str(row.key))} {paths} --reason '...'")
    note = "bound, measured: the largest error, in ULP unless another unit or figure is named"
    sections = [
        Section(rows=[line(row) for row in shown], layouts=narrowing(COLUMNS), notes=lambda _: [note], noun="row"),
        Section(blocks=found, noun="broken bound", most=MOST_BREACHES),
    ]
    for status in SEVERITY:
        if status not in (*WITH_FIGURES, "ok"):
            rows = [row for row in verdict.rows if row.status == status]
            most = len(rows) if status == "waived" else MOST_BREACHES  # each waiver in use is shown
            look, title_ = "wrong" if status in BREACH else "skipped", f"{status}: {MEANING[status]}"
            sections.append(Section(title_, lines=unjudged(rows), most=most, standing=look))
    besides = {"not measured": verdict.missing, "not judged here": verdict.notes}
    besides |= {"waivers that excuse nothing": verdict.idle}
    sections += [Section(title, lines=gathered(lines)) for title, lines in besides.items()]
    leading = next((row for row in broken if row.leading is not None and row.leading.worst is not None), None)
    return Document(
        "verify gate",
        STANDING[verdict.word],
        verdict.word,
        clauses(verdict),
        sections,
        title="Against the committed bounds",
        about=[f"records {', '.join(verdict.records[:8])}"] if verdict.records else [],
        next=next_command(verdict, records),
        above="" if leading is None else f"the replay command of {title(leading)}, above",
    )


def clauses(verdict: Verdict) -> list[str]:
    """Returns the parts of the sentence after its first word."""
    judged = sum(bool(row.readings) for row in verdict.rows)
    parts = []
    for status in SEVERITY:
        rows = [row for row in verdict.rows if row.status == status]
        if rows and status not in ("ok", "improved", "waived"):
            parts.append(_clause(status, rows))
    if broken := breaches(verdict):
        parts.append(f"the worst is {measured(broken[0], ', ')}{against(broken[0])}")
    if verdict.missing:
        parts.append(f"{words.plural(len(verdict.missing), 'part')} of the runs did not happen")
    if not verdict.rows:
        parts.append("nothing was judged: the records have no result and there is no bound")
    waived = verdict.count("waived")
    if not parts:
        inside = verdict.count("ok") + verdict.count("improved")
        holds = "the only bound holds" if judged == 1 else f"all {judged:,} bounds hold"
        parts.append(f"{inside:,} of {len(verdict.rows):,} bounds hold" if waived else holds)
    if waived:
        parts.append(f"{words.plural(waived, 'finding')} waived")
    if improved := verdict.count("improved"):
        parts.append(f"{improved:,} could be tighter")
    return parts


def _clause(status: Status, rows: Sequence[Row]) -> str:
    """Returns the part of the sentence about the rows of one status."""
    if status == "crashed":
        return f"{words.plural(len({(row.key.arch, row.key.kernel) for row in rows}), 'kernel')} failed"
    if status == "nonfinite":
        return words.plural(len(rows), "NaN or infinite result")
    said = {"gone": "gone", "incomparable": "cannot be compared", "unused": "not measured", "new": "without a bound"}
    what = "bound" if status in ("breached", "unused") else "result"
    return f"{words.plural(len(rows), what)} {said.get(status, status)}"


def title(item: Row | Pair) -> str:
    """Returns for example `gelu dx bfloat16 positive`."""
    return " ".join(words.clean(part) for part in (item.key.kernel, *item.key.part) if part)


def error(reading: Reading) -> str:
    """Returns the judged error, rounded up to as many digits as a bound has, so that readers can compare the two."""
    return shown(reading.value) if 0.001 <= reading.value < 10_000 else words.ulp(number(reading.value))


def figure(reading: Reading) -> str:
    """Returns for example `0.91 ULP`, `0.91 ULP scaled`, `NaN`, or `2.1% wrong` of integers."""
    if reading.counts:
        return f"{words.share(reading.figures.misrounded, reading.figures.n)} wrong"
    return in_unit(error(reading), reading.gate)


def in_unit(text: str, gate: Gate) -> str:
    """Returns a magnitude of error with its unit. NaN has none."""
    return text if text == "NaN" else text + UNIT[gate]


def cell(text: str, gate: Gate) -> str:
    """Returns a magnitude in a column that is in ULP unless it says otherwise."""
    return text if gate == "plain" else in_unit(text, gate)


def limit(name: str, value: float | str, gate: Gate) -> str:
    """Returns one limit of a bound, or a figure in its form: `0.501 ULP`, `27.8%` (a share) or `wrong` (a verdict)."""
    if isinstance(value, str):
        return value
    return words.share(value, 1.0) if name == "share" else in_unit(shown(value), gate)


_TYPICAL: dict[Gate, str] = {"plain": "mean", "scaled": "99.9% quantile", "noise": "root mean square"}


def excess(found: Excess) -> tuple[str, str]:
    """Returns the figure that exceeds a limit, and the limit: `74.6% misrounded` and `27.8%`."""
    reading, name = found.reading, found.name
    if name == "value":
        return figure(reading), "none wrong" if reading.counts else limit(name, found.limit, reading.gate)
    return _named(name, found.measured, reading.gate), limit(name, found.limit, reading.gate)


def bound_text(bound: Bound) -> str:
    """Returns all limits of a bound, for example `0.501 ULP, 2.1% misrounded, 0.251 ULP mean`."""
    limits = zip(("value", "share", "typical"), bound.promise[:3], strict=True)
    return ", ".join(_named(name, each, bound.gate) for name, each in limits if each is not None)


def _named(name: str, value: float | str, gate: Gate) -> str:
    return limit(name, value, gate) + {"share": " misrounded", "typical": f" {_TYPICAL[gate]}"}.get(name, "")


def decisive(row: Row) -> tuple[str, str]:
    """Returns the figure that decides the status of a row, and its limit ("" if nothing is compared), with units."""
    reading = row.leading
    assert reading is not None
    if row.status != "nonfinite" and row.beyond:
        return excess(row.beyond[0])
    bounded = row.bound is not None and reading.finite
    return figure(reading), limit("value", row.bound.value, row.bound.gate) if row.bound and bounded else ""


COLUMNS = ("output", "dtype", "regime", "bound", "measured", "basis", "status")


def line(row: Row) -> TableRow:
    """Returns the line of a row; its columns are in ULP unless they name another unit or figure."""
    key, reading = row.key, row.leading
    figure, bound = ("", "") if reading is None else decisive(row)
    cells = {
        "output": key.output,
        "dtype": key.dtype,
        "regime": key.regime,
        "bound": bound.removesuffix(UNIT["plain"]) or "-",
        "measured": figure.removesuffix(UNIT["plain"]),
        "basis": "" if reading is None else words.basis_short(reading.basis),
    }
    note = words.clean(why(row) if row.waiver else row.reason)
    standing = SIGN.get(row.status, "skipped")
    size = () if reading is None else ordered(reading.value)
    return TableRow(key.kernel, key.arch, cells, standing, row.status, frozenset({"measured"}), note, size=size)


def measured(row: Row, between: str = " ") -> str:
    """Returns a key with its decisive figure, for example `gelu y float16 positive 0.501 ULP`."""
    return title(row) if row.leading is None else f"{title(row)}{between}{decisive(row)[0]}"


def against(row: Row) -> str:
    """Returns for example ` against a bound of 0.5 ULP`, or nothing if the figure has none."""
    bound = decisive(row)[1]
    return f" against a bound of {bound}" if bound else ""


def why(row: Row) -> str:
    """Returns the reason of a status. For a waiver, it includes the finding that the waiver excuses."""
    if row.waiver is None:
        return row.reason
    known = row.leading is not None and row.leading.finite
    return f"{decisive(row)[0] + against(row) if known else row.reason}; {waiver(row, 'its waiver ')}"


def waiver(row: Row, whose: str = "") -> str:
    """Returns for example `waived until 2027-01-31: a faster erf is on its way`, or `ended with` that day."""
    assert row.waiver is not None
    until = "waived until" if row.status == "waived" else f"{whose}ended with"
    return f"{until} {row.waiver.expires}: {words.clean(row.waiver.reason)}"


def keys(members: Sequence[Row]) -> str:
    """Names keys of a kernel: ` 8 keys`, ` y float16 positive`, or nothing if the whole kernel is meant."""
    named = [row for row in members if any(row.key.part)]
    if len(named) > 1:
        return f" {words.plural(len(named), 'key')}"
    return "".join(f" {words.clean(part)}" for row in named for part in row.key.part if part)


def unjudged(rows: Iterable[Row]) -> list[GapLine]:
    """Returns a line, with its keys, for each machine, kernel and reason of keys without a verdict."""
    found = []
    for (arch, kernel, reason), members in grouped(rows, lambda r: (r.key.arch, r.key.kernel, why(r))).items():
        parts = [measured(row) for row in members] if len(members) > 1 else []
        found.append(GapLine(words.clean(f"{kernel}{keys(members)} ({arch}): {reason}"), parts))
    return found


def breach(row: Row, files: Mapping[str, str]) -> blocks.ReportBlock:
    """Returns the block of a breach. `files` maps the ids of records to their paths, for a short command."""
    reading, bound = row.leading, row.bound
    assert reading is not None
    facts = [("error", f"{decisive(row)[0]}, {reading.basis}")]
    if row.status == "nonfinite":
        facts += [("why", row.reason), ("key", str(row.key))]  # for a waiver, because no bound can allow it
    elif bound is not None:
        evidence = f"{words.basis_short(bound.basis)}, {bound.evidence.date}, commit {bound.evidence.commit[:7]}"
        facts.append(("bound", f"{bound_text(bound)}: {evidence}"))
    facts += [] if row.waiver is None else [("waiver", waiver(row))]
    others_too = dict.fromkeys(map(excess, row.beyond[1:]))  # the other limits that it exceeds
    facts += [("also", f"{told}, its bound is {limit}") for told, limit in others_too]
    others = [other for other in row.readings if other is not reading]
    facts += [("also", f"{figure(other)}, {other.basis} ({other.source})") for other in others]
    commands, short = blocks.again(reading.worst), short_replay(reading, files)
    # An old record may have no element.
    element = [] if reading.worst is None else [*blocks.element(reading.worst), ("there", there(reading))]
    of = " ".join((row.status, row.key.arch, row.key.kernel, row.key.output, row.key.dtype))
    return blocks.ReportBlock("wrong", row.status, title(row), [*facts, *element], commands, short=short, group=of)


def there(reading: Reading) -> str:
    """Returns the error of the worst element itself if it differs from the judged figure, else ""."""
    assert reading.worst is not None
    found = reading.worst.ulp if reading.gate == "plain" else reading.worst.scaled_ulp
    size = math.nan if found is None else abs(value_of(found))
    if not math.isfinite(size) or not reading.finite or error(reading) == shown(size):
        return ""
    return f"{result_words.error_text(reading.worst, reading.gate)}; other elements may have a larger error"


def breaches(verdict: Verdict) -> list[Row]:
    """Returns the rows beyond their bound, NaN and infinity first, then by how often the figure is its limit."""

    def size(row: Row) -> tuple[bool, int, float]:
        assert row.leading is not None
        nan = row.status == "nonfinite"
        return nan, *(ordered(row.leading.figures.nonfinite) if nan else times(row.beyond))

    return sorted((row for row in verdict.rows if row.status in ("nonfinite", "breached")), key=size, reverse=True)


def times(found: Iterable[Excess]) -> tuple[int, float]:
    """Returns the sort key of breaches and growths: how many times its limit the largest figure is."""
    pairs = [(each.measured, each.limit) for each in found]
    numbers = [new / max(old, 1e-3) for new, old in pairs if isinstance(new, float) and isinstance(old, float)]
    return max(map(ordered, numbers), default=(0, 0.0))


def next_command(verdict: Verdict, records: Sequence[str] = ()) -> str:
    """Returns the one command to type next."""
    quoted = [shlex.quote(path) for path in records] or ["RUN.json"]
    files, first = " ".join(quoted), quoted[0]
    propose = f"verify bounds propose {files}"
    found = {row.status for row in verdict.rows}
    broken = breaches(verdict)
    for row in broken:  # an old record has no worst element of some regimes
        if row.leading is not None and row.leading.worst is not None:
            known = short_replay(row.leading, paths_of(verdict, records))
            return known or replay_command(row.leading.worst.origin)
    if broken:
        return f"verify report {first}"
    if "crashed" in found:
        name = next(row.key.kernel for row in verdict.rows if row.status == "crashed")
        return f"verify gate {files} --kernel {shlex.quote(name)}"
    if found & set(UNPROVEN):
        return f"verify report {first}"
    if "new" in found or "improved" in found:
        return propose
    for row in verdict.rows:
        if row.status == "incomparable":
            states = row.bound is not None and not (row.leading and row.leading.flaw)
            return f"verify bounds accept {shlex.quote(str(row.key))} {files} --reason '...'" if states else propose
    return "verify run --json RUN.json" if found & {"unused"} or not found else "verify bounds review"


def short_replay(reading: Reading | None, files: Mapping[str, str]) -> str:
    """Returns a replay command that names a long case by its place in the record. "" if that is impossible."""
    if reading is None or reading.worst is None or reading.worst.origin.law:  # a law shows the whole case
        return ""
    if len(replay_command(reading.worst.origin)) <= words.LONG or reading.record not in files:
        return ""
    key = reading.key
    place = {"result": key.output, "dtype": key.dtype, "regime": key.regime}
    return words.replay_in(files[reading.record], key.kernel, place)


def paths_of(verdict: Verdict, records: Sequence[str]) -> dict[str, str]:
    """Maps the id of a record to its path, if it is certain that they belong together."""
    return dict(zip(verdict.records, records, strict=True)) if len(records) == len(verdict.records) else {}
