"""Describes one thing to act on as a `ReportBlock`: what it is, facts about it, and the commands that show it again.

The terminal, Markdown, HTML and the checks for CI show every block alike: none of them knows what it is about.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from verify.records import recorded
from verify.records.grouped import grouped
from verify.records.record import LawRun, Run, Worst, replay_command, value_of
from verify.report import result_words, words
from verify.report.present import KernelFacts, ResultFacts

MOST_FACTS = 5  # of a law, so that a block takes eight lines where the screen is wide enough


@dataclass(frozen=True)
class ReportBlock:
    """Holds a finding. Facts without a value are omitted."""

    status: str  # whose look it has
    word: str
    title: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    message: list[str] = field(default_factory=list)  # of a kernel that failed
    style: str | None = None  # of the word, if it is not that of the status
    short: str = ""  # for a screen, if the first command would fill it
    note: str = ""  # behind the word, where there is no room for all facts
    anchor: str = ""  # of the kernel's section on the page of a run
    group: str = ""  # a comment has one of the blocks of a group

    @property
    def fields(self) -> list[tuple[str, str]]:
        """Returns the facts that have a value, on one line each."""
        return [(words.clean(name), words.clean(value)) for name, value in self.facts if value]


def element(worst: Worst | None, *, counts: bool = False) -> list[tuple[str, str]]:
    """Returns the facts about an element: its inputs and its place, the kernel's value and the exact one."""
    if worst is None:
        return []
    got = worst.got if counts else f"{worst.got} ({worst.got_hex})"
    inputs = result_words.named_values(worst.inputs) + (f" at {list(worst.index)}" if worst.index else "")
    return [("input", inputs), ("got", got), ("truth", words.truth(worst.truth))]


def again(worst: Worst | None) -> list[str]:
    """Returns the command that replays an element."""
    return [] if worst is None else [replay_command(worst.origin)]


def wrong(found: ResultFacts, run: Run | None = None, record: str = "") -> ReportBlock:
    """Returns the block of a wrong result. `record` is the path of the saved `run`."""
    result, worst = found.result, found.worst
    reason, besides = _why(found)
    facts = [("why", reason), ("where", found.where), *element(worst, counts=result.counts)]
    scaled = worst is not None and result.gate != "plain" and worst.scaled_ulp not in (None, worst.ulp)
    if worst is not None and scaled and math.isfinite(value_of(worst.ulp)):  # judged by another error than that in ULP
        facts.append(("error", result_words.error_text(worst, result.gate, counts=result.counts)))
    more = "; ".join(filter(None, [besides, result_words.on_average(result)]))
    facts.append(("also", found.also_words) if found.also else ("besides", more))
    commands = again(worst)
    if (other := result_words.unbounded_too(result)) is not None and other.worst is not None:
        facts.append(("and", f"{other.reason}: {result_words.named_values(other.worst.inputs)}, got {other.worst.got}"))
        commands += again(other.worst)
    short, anchor = "" if run is None else found.short_replay(record, run), found.owner.anchor
    note = f", {found.figure}"
    return ReportBlock("wrong", "wrong", found.title, facts, commands, short=short, note=note, anchor=anchor)


def _why(found: ResultFacts) -> tuple[str, str]:
    """Returns why a result is wrong, with its basis; and the maximum and the count of NaN if the reason lacks them."""
    result = found.result
    size = value_of(recorded.judged(result.figures, result.gate).maximum)
    besides = [] if found.maximum == "NaN" else [f"max {found.figure}"]
    if besides and not (result.reason and size > result.limit):
        besides.append(f"limit {result_words.limit_of(result)}")
    elif result.reason:
        besides = []
    if (count := result.figures.nonfinite) and (math.isfinite(size) or not result.reason):
        n = result.figures.n
        besides.append(f"{count:,} of {n:,} ({words.share(count, n)}) finite on one side only")
    reason = words.clean(result.reason) or "beyond its limit"
    return f"{reason}; {words.basis_of(result, short=True)}", ", ".join(besides)


def unproven(found: ResultFacts) -> ReportBlock:
    """Returns the block of a result that is neither right nor wrong, with the next step."""
    result = found.result
    facts = [
        ("why", f"{words.clean(result.reason)}; {words.basis_of(result, short=True)}"),
        ("also", found.also_words),
        ("besides", f"limit {result_words.limit_of(result)}; {result_words.on_average(result)}"),
        ("next", result_words.remedy(result)),
    ]
    return ReportBlock(result.status, result.status, found.title, facts, anchor=found.owner.anchor)


def unrepeatable(kernel: KernelFacts) -> ReportBlock:
    """Returns the block of a kernel whose calls differ with the same input. Other findings may follow from that."""
    facts = [("why", kernel.run.unrepeatable), ("besides", kernel.besides())]
    return ReportBlock("wrong", "not deterministic", kernel.name, facts, [kernel.replay], anchor=kernel.anchor)


def broken(kernel: KernelFacts, law: LawRun) -> ReportBlock:
    """Returns the block of a broken law."""
    besides = kernel.besides(law)
    facts = [("why", law.message), *law.fact_lines(MOST_FACTS - bool(besides)), ("besides", besides)]
    word = "kernel failed" if law.cause == "failed" else "law broken"
    return ReportBlock("wrong", word, kernel.law_title(law), facts, [replay_command(law.origin)], anchor=kernel.anchor)


def failures(kernels: Sequence[KernelFacts], most: int = 1 << 20) -> list[ReportBlock]:
    """Returns blocks of kernels that raised, crashed or hung, with at most so many lines of their messages.

    Kernels with one message, as after a lost device, share a block. A judged kernel and a peer never do: a reader need
    not fix the peer.
    """
    found = []
    groups = grouped(kernels, lambda each: (each.standing, each.word, each.run.message, each.advice))
    for (standing, word, message, advice), members in groups.items():
        names, again = ", ".join(each.name for each in members), [each.rerun for each in members]
        lines = words.clean_lines(message) if message else ["no message was recorded"]
        if (left_out := len(lines) - most) > 0:  # the last lines of a traceback have the error
            lines = [f"… {left_out} lines left out; the record has them", *lines[-most:]]
        facts = [("next", advice)]
        found.append(ReportBlock(standing, word, names, facts, again, message=lines, anchor=members[0].anchor))
    return found
