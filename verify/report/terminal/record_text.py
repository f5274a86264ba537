"""The report for a terminal: table, a block per wrong result, what is missing, verdict.

Colour is never alone: every coloured word is preceded by a glyph (`glyphs=False` gives ASCII ones).
Text that a kernel supplies reaches the screen as `rich.text.Text`, which parses no markup, after
`words.clean` has spelled out control characters: a name cannot move the cursor or forge a line.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from verify.records.record import KernelRun, LawRun, Result, Run, replay_command, value_of
from verify.report import findings, run_words, words
from verify.report.judged import limit_of, on_average, remedy
from verify.report.signs import STANDING, STYLES, Signs
from verify.report.terminal.text_page import Terminal

if TYPE_CHECKING:
    from rich.console import Console

MARGIN = 4  # of the details below a heading
NAME, MOST_NAME = 7, 20  # columns for the name of a field
MOST_BLOCKS = 12  # wrong results shown in full
MOST_REASONS = 16  # why laws were not tried, and notes
# A failure takes eight lines, as far as the screen is wide enough: these, and heading, reason or advice, command.
MOST_FACTS = 5
MOST_LINES = 4  # of a message, which may be a whole traceback; the record has the rest


def render(run: Run, terminal: Terminal, *, record: str = "") -> str:
    """The whole report as text, ending in a newline.

    No line is longer than the terminal is wide except commands, which stay whole so that they can be copied.
    `record` is the path of the saved record, for the next command; empty when it was not saved.
    """
    from verify.report.terminal import results_table

    signs, console = Signs.choose(terminal.glyphs), terminal.console()
    if run.kernels:
        results_table.show(console, run, signs)
    for kernel in run_words.unrepeatable(run):
        _unrepeatable(console, kernel, signs)
    wrong = findings.findings(run)
    for place, found in enumerate(wrong[:MOST_BLOCKS]):
        _wrong(console, found, signs, run_words.short_replay(found, record) if place else "")
    if len(wrong) > MOST_BLOCKS:
        console.print()
        rest = words.plural(len(wrong) - MOST_BLOCKS, "more finding")
        how = f"`verify report {record} --html PATH`" if record else "--html PATH"
        _indented(console, f"{signs.ellipsis} {rest}; {how} shows all")
    broken = run_words.broken_laws(run)
    for owner, law in broken[:MOST_BLOCKS]:
        _law(console, owner, law, signs)
    if len(broken) > MOST_BLOCKS:
        console.print()
        rest = words.plural(len(broken) - MOST_BLOCKS, "more broken law")
        _indented(console, f"{signs.ellipsis} {rest}; the record has them")
    unproven = findings.unproven(run)
    for found in unproven[:MOST_BLOCKS]:
        _unproven(console, found, signs)
    if len(unproven) > MOST_BLOCKS:
        console.print()
        _indented(
            console, f"{signs.ellipsis} {len(unproven) - MOST_BLOCKS:,} more without a verdict; the record has them"
        )
    closing = run_words.next_command(run, record=record)
    for kernel in run_words.failures(run):
        _failure(console, kernel, signs, closing)
    _limits(console, run, signs)
    _not_measured(console, run, signs, closing)
    _notes(console, run, signs)
    _untried_laws(console, run, signs)
    _closing(console, run, signs, closing)
    stream = console.file
    assert isinstance(stream, io.StringIO)
    # rich pads folded lines to the full width; trailing blanks are noise in a file or a diff
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _wrong(console: Console, found: run_words.Found, signs: Signs, short: str) -> None:
    """One wrong result; `short` is the replay by its place in the record, for a case that would fill the screen."""
    kernel, result = found.kernel, found.result
    heading = run_words.title(kernel, result)
    _heading(console, "wrong", heading, "wrong", signs)
    worst = found.worst
    why, besides = _why(result, signs)
    _field(console, "why", why)
    if worst is not None:
        where = run_words.index_text(worst)
        if told := run_words.inputs_text(worst) + (f" at {where}" if where else ""):
            _field(console, "input", told)
        _field(console, "got", f"{words.clean(worst.got)} ({words.clean(worst.got_hex)})")
        _field(console, "truth", words.truth(worst.truth))
        if result.gate != "plain" and worst.scaled_ulp not in (None, worst.ulp) and math.isfinite(value_of(worst.ulp)):
            _field(console, "error", run_words.error_text(worst, result.gate))
    if found.also:
        _field(console, "also", findings.also(found, dash=signs.dash))
    else:
        _field(console, "besides", "; ".join(filter(None, [besides, on_average(result)])))
    if worst is not None:
        _command(console, " " * MARGIN + (short or words.clean(replay_command(worst.origin))))


def _unproven(console: Console, found: run_words.Found, signs: Signs) -> None:
    """A result that is neither right nor wrong, and what can be done about that."""
    result = found.result
    _heading(console, result.status, run_words.title(found.kernel, result), result.status, signs)
    _field(console, "why", f"{words.clean(result.reason)}; {words.basis_of(result, short=True)}")
    if found.also:
        _field(console, "also", findings.also(found, dash=signs.dash))
    _field(console, "besides", f"limit {limit_of(result)}; {on_average(result)}")
    _field(console, "next", remedy(result))


def _why(result: Result, signs: Signs) -> tuple[str, str]:
    """Why a result is wrong, with what it rests on; the maximum and the count of NaN where that does not say them."""
    unit = words.UNIT[result.gate]
    maximum = run_words.maximum(result.figures, result.gate, dash=signs.dash)
    size = value_of(run_words.judged(result.figures, result.gate).maximum)
    said = [] if maximum == "NaN" else [f"max {maximum}{unit}"]
    if said and not (result.reason and size > result.limit):
        said.append(f"limit {limit_of(result)}")
    elif result.reason:
        said = []
    if result.figures.nonfinite and (math.isfinite(size) or not result.reason):
        count, n = result.figures.nonfinite, result.figures.n
        said.append(f"{count:,} of {n:,} ({words.share(count, n)}) finite on one side only")
    reason = words.clean(result.reason) or "beyond its limit"
    return f"{reason}; {words.basis_of(result, short=True)}", ", ".join(said)


def _unrepeatable(console: Console, kernel: KernelRun, signs: Signs) -> None:
    """A kernel whose calls differ with the same input, above what follows from it."""
    _heading(console, "wrong", run_words.name_of(kernel), "not deterministic", signs)
    _field(console, "why", words.clean(kernel.unrepeatable))
    if besides := run_words.besides(kernel):
        _field(console, "besides", besides)
    _command(console, " " * MARGIN + run_words.replay_of(kernel))


def _law(console: Console, kernel: KernelRun, law: LawRun, signs: Signs) -> None:
    _heading(console, "wrong", run_words.law_title(kernel, law), run_words.law_word(law), signs)
    _field(console, "why", words.clean(law.message))
    besides = run_words.besides(kernel, law)
    facts = law.told(MOST_FACTS - bool(besides)) + ([("besides", besides)] if besides else [])
    facts = [(words.clean(name), words.clean(value)) for name, value in facts]
    width = min(max((len(name) for name, _ in facts), default=0), MOST_NAME)
    for name, value in facts:
        _field(console, name, value, width=max(width, NAME))
    _command(console, " " * MARGIN + words.clean(replay_command(law.origin)))


def _failure(console: Console, kernel: KernelRun, signs: Signs, closing: str) -> None:
    """A kernel without figures; its command is left to the last line where that has it."""
    word = run_words.STATUS_WORD[kernel.status]
    _heading(console, run_words.standing(kernel), run_words.name_of(kernel), word, signs)
    lines = words.clean_lines(kernel.message) if kernel.message else ["no message was recorded"]
    if len(lines) > MOST_LINES:  # the last lines of a traceback are the ones that say what happened
        left_out = len(lines) - MOST_LINES
        lines = [
            f"{signs.ellipsis} {left_out} lines left out; the record has them",
            *lines[-MOST_LINES:],
        ]
    for line in lines:
        _indented(console, line)
    if advice := run_words.advice(kernel):
        _field(console, "next", advice)
    if (again := run_words.rerun(kernel)) != closing:
        _command(console, " " * MARGIN + again)


def _limits(console: Console, run: Run, signs: Signs) -> None:
    """What kernels do not take: everything else of them was measured."""
    limits = [(f"{run_words.name_of(kernel)} {text}",) for kernel, text in run_words.limits_of(run)]
    _listing(console, "limits", "limit", limits, signs)


def _not_measured(console: Console, run: Run, signs: Signs, closing: str) -> None:
    gaps = run_words.not_measured(run)
    if not gaps:
        return
    _heading(console, "skipped", "not measured", "", signs)
    for gap in gaps:
        _indented(console, gap.text)
    # where time ran out, all kernels have the same hint
    hints = dict.fromkeys(
        words.clean(kernel.hint) for kernel in run.kernels if kernel.status in ("interrupted", "skipped")
    )
    for hint in hints:
        if hint not in ("", closing):
            _field(console, "next", hint)


def _notes(console: Console, run: Run, signs: Signs) -> None:
    """What was noticed about judged kernels: figures that are not there must not look like figures in order."""
    judged = [kernel for kernel in run.kernels if not kernel.peer]
    notes = [(words.clean(f"{kernel.name}: {note}"),) for kernel in judged for note in run_words.notes_of(kernel)]
    _listing(console, "notes", "note", notes, signs)


def _untried_laws(console: Console, run: Run, signs: Signs) -> None:
    """Laws that do not apply, by reason: a law that is not tried must not look like one that holds."""
    _listing(console, "laws not applicable", "reason", run_words.untried_laws(run), signs)


def _listing(console: Console, title: str, noun: str, entries: Sequence[Sequence[str]], signs: Signs) -> None:
    """The first entries, each a line and perhaps a dim one below it, and how many more there are; nothing of none."""
    if not entries:
        return
    _heading(console, "skipped", title, "", signs)
    for line, *below in entries[:MOST_REASONS]:
        _indented(console, line)
        for text in below:
            _indented(console, text, margin=2 * MARGIN, style="dim")
    if len(entries) > MOST_REASONS:
        rest = words.plural(len(entries) - MOST_REASONS, f"more {noun}")
        _indented(console, f"{signs.ellipsis} {rest}; the record has them")


def _closing(console: Console, run: Run, signs: Signs, command: str) -> None:
    from rich.text import Text

    status = STANDING[run.verdict]
    console.print()
    if line_of_laws := run_words.laws_line(run):
        console.print(Text(line_of_laws, style="dim"), overflow="fold")
    line = Text(f"{signs.status[status]} ", style=STYLES[status])
    word, rest = run_words.sentence(run, dash=signs.dash).split(":", 1)
    line.append(word + ":").append(rest, style="not bold default")
    console.print(line, overflow="fold")
    worst = run_words.worst_result(run)
    if worst is not None and worst.worst is not None and len(command) > words.LONG:
        command = f"the replay command of {run_words.title(worst.kernel, worst.result)}, above"  # once is enough
    _command(console, f"next: {command}")


def _heading(console: Console, status: str, text: str, word: str, signs: Signs) -> None:
    from rich.text import Text

    console.print()
    line = Text(f"{signs.status[status]} ", style=STYLES[status])
    line.append(f"{word}  " if word else "").append(text, style="bold default")
    console.print(line, overflow="fold")


def _field(console: Console, name: str, value: str, *, width: int = NAME) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_column(width=width, overflow="fold")
    row.add_column(overflow="fold")
    row.add_row(Text(name, style="dim"), Text(value))
    console.print(Padding(row, (0, 0, 0, MARGIN)))


def _indented(console: Console, text: str, *, margin: int = MARGIN, style: str = "") -> None:
    from rich.padding import Padding
    from rich.text import Text

    console.print(Padding(Text(text, overflow="fold", style=style), (0, 0, 0, margin)))


def _command(console: Console, text: str) -> None:
    from rich.text import Text

    console.print(Text(text), soft_wrap=True)
