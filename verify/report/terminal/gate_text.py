"""The verdict of the gate in the terminal: what broke and on which input first, the sentence and next command last."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence

from verify.gate.bounds import Bound
from verify.gate.verdict import MEANING, SEVERITY, Row, Status, Verdict
from verify.records.readings import Reading, inputs
from verify.records.record import Worst, number, replay_command, value_of
from verify.report import verdict as verdicts
from verify.report import words
from verify.report.gaps import gathered
from verify.report.signs import Signs
from verify.report.terminal.text_page import Cell, Page
from verify.truth.figure import shown

MOST_BLOCKS = 12  # breaches told in full
MOST_LINES = 12  # lines of one status without figures

SIGN: dict[str, str] = {"ok": "ok", "improved": "ok", "breached": "wrong", "nonfinite": "wrong", "crashed": "wrong"}
STYLE = {"ok": "green", "improved": "green", "breached": "bold red", "nonfinite": "bold red", "crashed": "bold red"}
PENDING = "yellow"
WITH_FIGURES: tuple[Status, ...] = ("nonfinite", "breached", "improved")


def render(
    verdict: Verdict,
    *,
    width: int,
    color: bool,
    glyphs: bool = True,
    everything: bool = False,
    records: Sequence[str] = (),
) -> str:
    """The whole verdict; `everything` also lists what is in order. `records` are paths, for the next command."""
    page, signs = Page(width=width, color=color), Signs.choose(glyphs)
    shown = [row for row in verdict.rows if row.status in WITH_FIGURES or (everything and row.readings)]
    _table(page, shown, signs)
    broken = _broken(verdict)
    for place, row in enumerate(broken[:MOST_BLOCKS]):
        _block(page, row, signs, verdict, records, whole=not place)
    if len(broken) > MOST_BLOCKS:
        page.blank()
        page.line(f"{signs.ellipsis} {len(broken) - MOST_BLOCKS:,} more; --json has them all", indent=4)
    for status in SEVERITY:
        if status not in (*WITH_FIGURES, "ok"):
            _lines(page, status, [row for row in verdict.rows if row.status == status], signs)
    for title, lines in (("not measured", verdict.missing), ("not judged here", verdict.notes)):
        if lines:
            page.blank()
            page.line(Cell(f"{signs.status['skipped']} {title}", PENDING))
            for gap in gathered(lines):
                page.line(gap.text, indent=4)
    page.blank()
    word, rest = sentence(verdict).split(":", 1)
    style = {"pass": "green", "fail": "bold red", "incomplete": PENDING}[word]
    page.line(Cell(f"{_verdict_sign(verdict, signs)} {word}:", style), rest)
    page.command(f"next: {next_command(verdict, records)}")
    return page.text()


def sentence(verdict: Verdict) -> str:
    """`fail: 2 of 48 bounds are breached; the worst is ...`."""
    return f"{verdict.word}: {'; '.join(clauses(verdict))}"


def clauses(verdict: Verdict) -> list[str]:
    """The sentence after its first word, in parts."""
    judged = sum(bool(row.readings) for row in verdict.rows)
    parts = []
    for status in SEVERITY:
        rows = [row for row in verdict.rows if row.status == status]
        if rows and status not in ("ok", "improved"):
            parts.append(_clause(status, rows))
    worst = next((row for row in verdict.rows if row.status in ("nonfinite", "breached")), None)
    if worst is not None and worst.leading is not None:
        excess = max((row for row in verdict.rows if row.status == worst.status), key=_excess)
        assert excess.leading is not None
        against = "" if not excess.leading.finite else f" against {bound_text(excess.bound)}"
        parts.append(f"the worst is {title(excess)}, {figure(excess.leading)}{against}")
    if verdict.missing:
        parts.append(f"{words.plural(len(verdict.missing), 'part')} of the runs did not happen")
    if not verdict.rows:
        parts.append("nothing was judged: the records have no result and there is no bound")
    if not parts:
        holds = "the only bound holds" if judged == 1 else f"all {judged:,} bounds hold"
        parts.append(holds)
    if improved := verdict.count("improved"):
        parts.append(f"{improved:,} could be tighter")
    return parts


def _clause(status: Status, rows: Sequence[Row]) -> str:
    count = len(rows)
    if status == "crashed":
        kernels = len({(row.key.arch, row.key.kernel) for row in rows})
        return f"{words.plural(kernels, 'kernel')} failed"
    what = {
        "nonfinite": "NaN or infinite result",
        "breached": "bound",
        "incomparable": "result",
        "unused": "bound",
        "new": "result",
    }[status]
    said = {
        "nonfinite": "",
        "breached": " breached",
        "incomparable": " cannot be compared",
        "unused": " not measured",
        "new": " without a bound",
    }[status]
    return words.plural(count, what) + said


def title(row: Row) -> str:
    """`gelu dx bfloat16 positive`."""
    key = row.key
    return " ".join(words.clean(part) for part in (key.kernel, key.output, key.dtype, key.regime) if part)


def error(reading: Reading) -> str:
    """The judged error, rounded up to as many digits as a bound has, so that the two can be compared by eye."""
    return shown(reading.value) if 0.001 <= reading.value < 10_000 else words.ulp(number(reading.value))


def figure(reading: Reading) -> str:
    """`0.91 ULP`, `0.91 ULP scaled`, `NaN`."""
    text = error(reading)
    return text if text == "NaN" else f"{text} ULP" + (" scaled" if reading.gate == "scaled" else "")


def bound_text(bound: Bound | None) -> str:
    """`a bound of 0.501`."""
    return "no bound" if bound is None else f"a bound of {words.decimal(bound.value)}"


def next_command(verdict: Verdict, records: Sequence[str] = ()) -> str:
    """The one command to type next."""
    files = " ".join(shlex.quote(path) for path in records) or "RUN.json"
    found = {row.status for row in verdict.rows}
    broken = _broken(verdict)
    for place, row in enumerate(broken):  # an old record has no worst element of some regimes
        if row.leading is not None and row.leading.worst is not None:
            known = short_replay(row.leading, _files(verdict, records))
            command = replay_command(row.leading.worst.origin)
            if known or len(command) <= words.LONG or place >= MOST_BLOCKS:
                return known or command
            return f"the replay command of {title(row)}, above"
    if broken:
        return f"verify report {files.split(' ', 1)[0]}"
    if "crashed" in found:
        name = next(row.key.kernel for row in verdict.rows if row.status == "crashed")
        return f"verify gate {files} --kernel {shlex.quote(name)}"
    if "new" in found or "improved" in found:
        return f"verify bounds propose {files}"
    if "incomparable" in found:
        return f"verify bounds propose {files}"
    return "verify run --json RUN.json" if found & {"unused"} or not found else "verify bounds review"


def _broken(verdict: Verdict) -> list[Row]:
    """What has to be told in full, the worst first."""
    return sorted((row for row in verdict.rows if row.status in ("nonfinite", "breached")), key=_excess, reverse=True)


def _files(verdict: Verdict, records: Sequence[str]) -> dict[str, str]:
    """Id of a record -> its path, where the two can be told to belong together."""
    return dict(zip(verdict.records, records, strict=True)) if len(records) == len(verdict.records) else {}


def short_replay(reading: Reading | None, files: Mapping[str, str]) -> str:
    """The replay of a long case by its place in the record, if it is known which file that is."""
    if reading is None or reading.worst is None or len(replay_command(reading.worst.origin)) <= words.LONG:
        return ""
    if (path := files.get(reading.record)) is None:
        return ""
    key = reading.key
    return shlex.join(
        ["verify", "replay", key.kernel, "--run", path, "--result", key.output, "--dtype", key.dtype]
        + ["--regime", key.regime]
    )


def groups(rows: Iterable[Row]) -> list[tuple[str, str, str, list[Row]]]:
    """Rows that share machine, kernel and reason: one line tells them all."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.key.arch, row.key.kernel, row.reason), []).append(row)
    return [(*names, members) for names, members in found.items()]


def told(row: Row) -> str:
    """A key with what was measured there: `gelu y float16 positive 0.501 ULP`."""
    return title(row) if row.leading is None else f"{title(row)} {figure(row.leading)}"


def keys(kernel: str, members: Sequence[Row]) -> str:
    """Which keys of a kernel one line tells of: ` 8 keys`, ` y float16 positive`, or nothing for all of it."""
    named = [row for row in members if row.key.output or row.key.dtype or row.key.regime]
    if len(named) > 1:
        return f" {words.plural(len(named), 'key')}"
    return title(named[0]).removeprefix(words.clean(kernel)) if named else ""


def _table(page: Page, rows: Sequence[Row], signs: Signs) -> None:
    kernels = dict.fromkeys((row.key.arch, row.key.kernel) for row in rows)
    for arch, kernel in kernels:
        page.line(Cell(kernel, "bold"), Cell(f"  {arch}", "dim"))
        members = [row for row in rows if (row.key.arch, row.key.kernel) == (arch, kernel)]
        page.results(
            ("output", "dtype", "regime", "bound", "measured", "basis", "status"),
            [_cells(row, signs) for row in members],
            right=("bound", "measured"),
        )
    if rows:
        page.line(Cell("bound, measured: largest error in ULP; scaled where the op cancels", "dim"))


def _cells(row: Row, signs: Signs) -> list[Cell]:
    reading = row.leading
    assert reading is not None
    style = STYLE.get(row.status, PENDING)
    scaled = " s" if reading.gate == "scaled" else ""
    return [
        Cell(row.key.output),
        Cell(row.key.dtype),
        Cell(row.key.regime),
        Cell("-" if row.bound is None else words.decimal(row.bound.value)),
        Cell(error(reading) + scaled, "red" if SIGN.get(row.status) == "wrong" else ""),
        Cell(words.basis_short(reading.basis)),
        Cell(f"{signs.status[SIGN.get(row.status, 'skipped')]} {row.status}", style),
    ]


def where(worst: Worst) -> str:
    """`x = 4.01 (0x4403) at [17411]`."""
    place = verdicts.index_text(worst)
    return inputs(worst) + (f" at {place}" if place else "")


def there(reading: Reading) -> str:
    """The error of the worst element itself, where that is not the figure that is judged; else nothing."""
    assert reading.worst is not None
    found = reading.worst.scaled_ulp if reading.gate == "scaled" else reading.worst.ulp
    size = math.nan if found is None else abs(value_of(found))
    if not math.isfinite(size) or not reading.finite or error(reading) == shown(size):
        return ""
    return f"{verdicts.error_text(reading.worst, reading.gate)}; more cannot be excluded elsewhere"


def element(page: Page, reading: Reading, files: Mapping[str, str]) -> None:
    """The worst element behind a figure: where, from what, what came out, what is right, how to see it again."""
    assert reading.worst is not None
    page.field("input", where(reading.worst))
    page.field("got", f"{reading.worst.got} ({reading.worst.got_hex})")
    page.field("truth", words.truth(reading.worst.truth))
    if text := there(reading):
        page.field("there", text)
    page.field("replay", "")
    page.command(short_replay(reading, files) or replay_command(reading.worst.origin), indent=4)


def _block(
    page: Page, row: Row, signs: Signs, verdict: Verdict, records: Sequence[str], *, whole: bool = False
) -> None:
    """One breach. A long replay command is told by its place in the record, unless the `whole` is asked for."""
    reading = row.leading
    assert reading is not None
    page.blank()
    page.line(Cell(f"{signs.status['wrong']} {row.status}  ", STYLE[row.status]), Cell(title(row), "bold"))
    page.field("error", f"{figure(reading)}, {words.basis(reading.basis)}")
    if row.status == "nonfinite":
        page.field("why", row.reason)
    if row.bound is not None:
        bound = row.bound
        evidence = f"{words.basis(bound.basis)}, {bound.evidence.date}, commit {bound.evidence.commit}"
        page.field("bound", f"{words.decimal(bound.value)} ULP: {evidence}")
    for other in row.readings:
        if other is not reading:
            page.field("also", f"{figure(other)}, {words.basis(other.basis)} ({other.source})")
    if reading.worst is not None:
        element(page, reading, {} if whole else _files(verdict, records))
    if row.status == "breached":
        files = " ".join(shlex.quote(path) for path in records) or "RUN.json"
        page.field("or", "")
        page.command(f"verify bounds accept {shlex.quote(str(row.key))} {files} --reason '...'", indent=4)


def _lines(page: Page, status: Status, rows: Sequence[Row], signs: Signs) -> None:
    if not rows:
        return
    found = groups(rows)
    page.blank()
    sign = signs.status[SIGN.get(status, "skipped")]
    page.line(Cell(f"{sign} {status}  ", STYLE.get(status, PENDING)), Cell(MEANING[status], "dim"))
    for arch, kernel, reason, members in found[:MOST_LINES]:
        page.line(Cell(kernel, "bold"), f"{keys(kernel, members)} ({arch}): {reason}", indent=4)
    if len(found) > MOST_LINES:
        page.line(f"{signs.ellipsis} {len(found) - MOST_LINES:,} more; --json has them all", indent=4)


def _verdict_sign(verdict: Verdict, signs: Signs) -> str:
    return signs.status[{"pass": "ok", "fail": "wrong", "incomplete": "skipped"}[verdict.word]]


def _excess(row: Row) -> tuple[bool, float]:
    reading = row.leading
    assert reading is not None
    if not reading.finite or row.bound is None:
        return (True, reading.figures.nonfinite)
    return (False, reading.value / row.bound.value)
