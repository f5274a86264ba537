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

from verify.records.record import LawRun, Run, replay_command, value_of
from verify.report import result_words, words
from verify.report.present import Facts, KernelFacts, ResultFacts, law_word, present
from verify.report.result_words import limit_of, on_average, remedy
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
    facts = present(run, dash=signs.dash)
    closing = facts.next_command(record)
    if facts.kernels:
        results_table.show(console, facts, signs)
    for kernel in facts.unrepeatable:
        _unrepeatable(console, kernel, signs)
    for place, found in enumerate(facts.findings[:MOST_BLOCKS]):
        _wrong(console, found, signs, found.short_replay(record) if place else "")
    how = f"`verify report {record} --html PATH`" if record else "--html PATH"
    _more(console, signs, len(facts.findings), "finding", f"{how} shows all")
    for owner, law in facts.broken_laws[:MOST_BLOCKS]:
        _law(console, owner, law, signs)
    _more(console, signs, len(facts.broken_laws), "broken law", "the record has them")
    for found in facts.unproven[:MOST_BLOCKS]:
        _unproven(console, found, signs)
    _more(console, signs, len(facts.unproven), "", "the record has them")
    for kernel in facts.failures:
        _failure(console, kernel, signs, closing)
    _listing(console, "limits", "limit", [(f"{kernel.name} {text}",) for kernel, text in facts.limits], signs)
    _not_measured(console, facts, signs, closing)
    # what was noticed about judged kernels: figures that are not there must not look like figures in order
    notes = [(words.clean(f"{kernel.run.name}: {note}"),) for kernel in facts.judged for note in kernel.notes]
    _listing(console, "notes", "note", notes, signs)
    # a law that is not tried must not look like one that holds
    _listing(console, "laws not applicable", "reason", facts.untried_laws, signs)
    _closing(console, facts, signs, closing)
    stream = console.file
    assert isinstance(stream, io.StringIO)
    # rich pads folded lines to the full width; trailing blanks are noise in a file or a diff
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _more(console: Console, signs: Signs, count: int, noun: str, how: str) -> None:
    """How many blocks were left out; nothing if there is room for all."""
    if (rest := count - MOST_BLOCKS) > 0:
        console.print()
        said = words.plural(rest, f"more {noun}") if noun else f"{rest:,} more without a verdict"
        _indented(console, f"{signs.ellipsis} {said}; {how}")


def _wrong(console: Console, found: ResultFacts, signs: Signs, short: str) -> None:
    """One wrong result; `short` is the replay by its place in the record, for a case that would fill the screen."""
    result, worst = found.result, found.worst
    _heading(console, "wrong", found.title, "wrong", signs)
    why, besides = _why(found)
    _field(console, "why", why)
    if worst is not None:
        where = result_words.index_text(worst)
        if told := result_words.inputs_text(worst) + (f" at {where}" if where else ""):
            _field(console, "input", told)
        _field(console, "got", f"{words.clean(worst.got)} ({words.clean(worst.got_hex)})")
        _field(console, "truth", words.truth(worst.truth))
        if result.gate != "plain" and worst.scaled_ulp not in (None, worst.ulp) and math.isfinite(value_of(worst.ulp)):
            _field(console, "error", result_words.error_text(worst, result.gate))
    if found.also:
        _field(console, "also", found.also_words)
    else:
        _field(console, "besides", "; ".join(filter(None, [besides, on_average(result)])))
    if worst is not None:
        _command(console, " " * MARGIN + (short or words.clean(replay_command(worst.origin))))


def _unproven(console: Console, found: ResultFacts, signs: Signs) -> None:
    """A result that is neither right nor wrong, and what can be done about that."""
    result = found.result
    _heading(console, result.status, found.title, result.status, signs)
    _field(console, "why", f"{words.clean(result.reason)}; {words.basis_of(result, short=True)}")
    if found.also:
        _field(console, "also", found.also_words)
    _field(console, "besides", f"limit {limit_of(result)}; {on_average(result)}")
    _field(console, "next", remedy(result))


def _why(found: ResultFacts) -> tuple[str, str]:
    """Why a result is wrong, with what it rests on; the maximum and the count of NaN where that does not say them."""
    result = found.result
    size = value_of(result_words.judged(result.figures, result.gate).maximum)
    said = [] if found.maximum == "NaN" else [f"max {found.figure}"]
    if said and not (result.reason and size > result.limit):
        said.append(f"limit {limit_of(result)}")
    elif result.reason:
        said = []
    if result.figures.nonfinite and (math.isfinite(size) or not result.reason):
        count, n = result.figures.nonfinite, result.figures.n
        said.append(f"{count:,} of {n:,} ({words.share(count, n)}) finite on one side only")
    reason = words.clean(result.reason) or "beyond its limit"
    return f"{reason}; {words.basis_of(result, short=True)}", ", ".join(said)


def _unrepeatable(console: Console, kernel: KernelFacts, signs: Signs) -> None:
    """A kernel whose calls differ with the same input, above what follows from it."""
    _heading(console, "wrong", kernel.name, "not deterministic", signs)
    _field(console, "why", words.clean(kernel.run.unrepeatable))
    if besides := kernel.besides():
        _field(console, "besides", besides)
    _command(console, " " * MARGIN + kernel.replay)


def _law(console: Console, kernel: KernelFacts, law: LawRun, signs: Signs) -> None:
    _heading(console, "wrong", kernel.law_title(law), law_word(law), signs)
    _field(console, "why", words.clean(law.message))
    besides = kernel.besides(law)
    facts = law.told(MOST_FACTS - bool(besides)) + ([("besides", besides)] if besides else [])
    facts = [(words.clean(name), words.clean(value)) for name, value in facts]
    width = min(max((len(name) for name, _ in facts), default=0), MOST_NAME)
    for name, value in facts:
        _field(console, name, value, width=max(width, NAME))
    _command(console, " " * MARGIN + words.clean(replay_command(law.origin)))


def _failure(console: Console, kernel: KernelFacts, signs: Signs, closing: str) -> None:
    """A kernel without figures; its command is left to the last line where that has it."""
    _heading(console, kernel.standing, kernel.name, kernel.word, signs)
    for line in kernel.last_words(MOST_LINES, signs.ellipsis):
        _indented(console, line)
    if kernel.advice:
        _field(console, "next", kernel.advice)
    if kernel.rerun != closing:
        _command(console, " " * MARGIN + kernel.rerun)


def _not_measured(console: Console, facts: Facts, signs: Signs, closing: str) -> None:
    if not facts.missing:
        return
    _heading(console, "skipped", "not measured", "", signs)
    for gap in facts.missing:
        _indented(console, gap.text)
    # where time ran out, all kernels have the same hint
    some = [kernel for kernel in facts.run.kernels if kernel.status in ("interrupted", "skipped")]
    for hint in dict.fromkeys(words.clean(kernel.hint) for kernel in some):
        if hint not in ("", closing):
            _field(console, "next", hint)


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


def _closing(console: Console, facts: Facts, signs: Signs, command: str) -> None:
    from rich.text import Text

    status = STANDING[facts.run.verdict]
    console.print()
    if facts.laws_line:
        console.print(Text(facts.laws_line, style="dim"), overflow="fold")
    line = Text(f"{signs.status[status]} ", style=STYLES[status])
    word, rest = facts.sentence.split(":", 1)
    line.append(word + ":").append(rest, style="not bold default")
    console.print(line, overflow="fold")
    worst = facts.worst
    if worst is not None and worst.worst is not None and len(command) > words.LONG:
        command = f"the replay command of {worst.title}, above"  # once is enough
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
