"""Writes the report for a terminal: table, a block per wrong result, missing parts, verdict.

Colour is never alone: a glyph precedes every coloured word (`glyphs=False` gives ASCII ones). Text from a kernel
reaches the screen through `text_page`, which spells out control characters and parses no markup: a name cannot move the
cursor or forge a line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from verify.records import recorded
from verify.records.record import LawRun, Run, replay_command, value_of
from verify.report import result_words, words
from verify.report.present import Facts, KernelFacts, ResultFacts, law_word, present
from verify.report.result_words import limit_of, on_average, remedy
from verify.report.signs import STANDING, STYLES
from verify.report.terminal import results_table
from verify.report.terminal.text_page import Cell, Page, Terminal

MARGIN = 4  # of the details below a heading
NAME, MOST_NAME = 7, 20  # columns for the name of a field
MOST_BLOCKS = 12  # wrong results shown in full
MOST_REASONS = 16  # reasons why laws were not tried, and notes
# If the screen is wide enough, a failure takes eight lines: these, and heading, reason or advice, command.
MOST_FACTS = 5
MOST_LINES = 4  # of a message, which may be a whole traceback; the record has the rest


def render(run: Run, terminal: Terminal, *, record: str = "") -> str:
    """Returns the whole report as text that ends in a newline.

    Only commands may be longer than the terminal is wide, so that they can be copied. `record` is the path of the saved
    record, for the next command, or "".
    """
    page = Page(terminal)
    facts = present(run, dash=page.signs.dash)
    closing = facts.next_command(record)
    if facts.kernels:
        results_table.show(page, facts)
    for kernel in facts.unrepeatable:
        _unrepeatable(page, kernel)
    for place, found in enumerate(facts.findings[:MOST_BLOCKS]):
        _wrong(page, found, found.short_replay(record, run) if place else "")
    how = f"`verify report {record} --html PATH`" if record else "--html PATH"
    _more(page, len(facts.findings), "finding", f"{how} shows all")
    for owner, law in facts.broken_laws[:MOST_BLOCKS]:
        _law(page, owner, law)
    _more(page, len(facts.broken_laws), "broken law", "the record has them")
    for found in facts.unproven[:MOST_BLOCKS]:
        _unproven(page, found)
    _more(page, len(facts.unproven), "", "the record has them")
    for kernel in facts.failures:
        _failure(page, kernel, closing)
    _listing(page, "limits", "limit", [(f"{kernel.name} {text}",) for kernel, text in facts.limits])
    _not_measured(page, facts, closing)
    # Remarks about judged kernels: a missing figure must not look like a figure in order.
    notes = [(f"{kernel.run.name}: {note}",) for kernel in facts.judged for note in kernel.notes]
    _listing(page, "notes", "note", notes)
    # A law that was not tried must not look like a law that holds.
    _listing(page, "laws not applicable", "reason", facts.untried_laws)
    _closing(page, facts, closing)
    return page.text()


def _more(page: Page, count: int, noun: str, how: str) -> None:
    """Prints how many blocks were omitted. Prints nothing if there is room for all."""
    if (rest := count - MOST_BLOCKS) > 0:
        page.blank(top=True)
        said = words.plural(rest, f"more {noun}") if noun else f"{rest:,} more without a verdict"
        page.line(f"{page.signs.ellipsis} {said}; {how}", indent=MARGIN)


def _wrong(page: Page, found: ResultFacts, short: str) -> None:
    """Prints one wrong result. `short` replaces the replay command of a case that would fill the screen."""
    result, worst = found.result, found.worst
    _heading(page, "wrong", found.title, "wrong")
    why, besides = _why(found)
    page.field("why", why, width=NAME)
    if worst is not None:
        where = result_words.index_text(worst)
        if told := result_words.inputs_text(worst) + (f" at {where}" if where else ""):
            page.field("input", told, width=NAME)
        page.field("got", worst.got if result.counts else f"{worst.got} ({worst.got_hex})", width=NAME)
        page.field("truth", words.truth(worst.truth), width=NAME)
        if result.gate != "plain" and worst.scaled_ulp not in (None, worst.ulp) and math.isfinite(value_of(worst.ulp)):
            page.field("error", result_words.error_text(worst, result.gate, counts=result.counts), width=NAME)
    if found.also:
        page.field("also", found.also_words, width=NAME)
    else:
        page.field("besides", "; ".join(filter(None, [besides, on_average(result)])), width=NAME)
    if worst is not None:
        page.command(short or replay_command(worst.origin), indent=MARGIN)
    if (other := result_words.unbounded_too(result)) is not None and other.worst is not None:
        page.field("and", f"{other.reason}: {result_words.inputs_text(other.worst)}, got {other.worst.got}", width=NAME)
        page.command(replay_command(other.worst.origin), indent=MARGIN)


def _unproven(page: Page, found: ResultFacts) -> None:
    """Prints a result that is neither right nor wrong, and the next step."""
    result = found.result
    _heading(page, result.status, found.title, result.status)
    page.field("why", f"{words.clean(result.reason)}; {words.basis_of(result, short=True)}", width=NAME)
    if found.also:
        page.field("also", found.also_words, width=NAME)
    page.field("besides", f"limit {limit_of(result)}; {on_average(result)}", width=NAME)
    page.field("next", remedy(result), width=NAME)


def _why(found: ResultFacts) -> tuple[str, str]:
    """Returns why a result is wrong, with its basis; and the maximum and the count of NaN if the reason lacks them."""
    result = found.result
    size = value_of(recorded.judged(result.figures, result.gate).maximum)
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


def _unrepeatable(page: Page, kernel: KernelFacts) -> None:
    """Prints a kernel whose calls differ with the same input. It precedes the findings that may follow from that."""
    _heading(page, "wrong", kernel.name, "not deterministic")
    page.field("why", kernel.run.unrepeatable, width=NAME)
    if besides := kernel.besides():
        page.field("besides", besides, width=NAME)
    page.command(kernel.replay, indent=MARGIN)


def _law(page: Page, kernel: KernelFacts, law: LawRun) -> None:
    _heading(page, "wrong", kernel.law_title(law), law_word(law))
    page.field("why", law.message, width=NAME)
    besides = kernel.besides(law)
    facts = law.fact_lines(MOST_FACTS - bool(besides)) + ([("besides", besides)] if besides else [])
    facts = [(words.clean(name), words.clean(value)) for name, value in facts]
    width = min(max((len(name) for name, _ in facts), default=0), MOST_NAME)
    for name, value in facts:
        page.field(name, value, width=max(width, NAME))
    page.command(replay_command(law.origin), indent=MARGIN)


def _failure(page: Page, kernel: KernelFacts, closing: str) -> None:
    """Prints a kernel without figures. Omits its command if the last line has it."""
    _heading(page, kernel.standing, kernel.name, kernel.word)
    for line in kernel.last_words(MOST_LINES, page.signs.ellipsis):
        page.line(line, indent=MARGIN)
    if kernel.advice:
        page.field("next", kernel.advice, width=NAME)
    if kernel.rerun != closing:
        page.command(kernel.rerun, indent=MARGIN)


def _not_measured(page: Page, facts: Facts, closing: str) -> None:
    if not facts.missing:
        return
    _heading(page, "skipped", "not measured")
    for gap in facts.missing:
        page.line(gap.text, indent=MARGIN)
    # If time ran out, all kernels have the same hint.
    some = [kernel for kernel in facts.run.kernels if kernel.status in ("interrupted", "skipped")]
    for hint in dict.fromkeys(words.clean(kernel.hint) for kernel in some):
        if hint not in ("", closing):
            page.field("next", hint, width=NAME)


def _listing(page: Page, title: str, noun: str, entries: Sequence[Sequence[str]]) -> None:
    """Prints the first entries, each a line and perhaps a dim one, and the number of others. Nothing if empty."""
    if not entries:
        return
    _heading(page, "skipped", title)
    for line, *below in entries[:MOST_REASONS]:
        page.line(line, indent=MARGIN)
        for text in below:
            page.line(Cell(text, "dim"), indent=2 * MARGIN)
    if len(entries) > MOST_REASONS:
        rest = words.plural(len(entries) - MOST_REASONS, f"more {noun}")
        page.line(f"{page.signs.ellipsis} {rest}; the record has them", indent=MARGIN)


def _closing(page: Page, facts: Facts, command: str) -> None:
    status = STANDING[facts.run.verdict]
    page.blank(top=True)
    if facts.laws_line:
        page.line(Cell(facts.laws_line, "dim"))
    word, rest = facts.sentence.split(":", 1)
    page.line(Cell(f"{page.signs.status[status]} {word}:", STYLES[status]), Cell(rest, "not bold default"))
    worst = facts.worst
    if worst is not None and worst.worst is not None and len(command) > words.LONG:
        command = f"the replay command of {worst.title}, above"  # the command is printed once
    page.command(f"next: {command}")


def _heading(page: Page, status: str, text: str, word: str = "") -> None:
    page.blank(top=True)
    page.line(page.sign(status, word), Cell(text, "dim bold default" if status == "peer" else "bold default"))
