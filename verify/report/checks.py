"""A run, a verdict of the gate or judgements as a list of checks: what SARIF, JUnit and GitHub's annotations show.

A check is one decision of a command: about a result, a law, a bound or a solution. Its rule names the outcome and has
the level. The last check is the verdict of the command. So no list is empty, and a missing verdict is no pass.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from verify.declare.lines import Place, declared_at, implemented_at
from verify.declare.target import Target
from verify.records.bounds.committed import file_name
from verify.records.bounds.verdict import BREACH, INCOMPLETE, MEANING, SEVERITY, Row, Verdict
from verify.records.grouped import grouped
from verify.records.record import Run
from verify.report import blocks, gate_words, words
from verify.report.gaps import gathered
from verify.report.present import KernelFacts, ResultFacts, present

Level = Literal["none", "note", "warning", "error"]  # as SARIF names them
MOST_LINES = 12  # of the message of a kernel that failed


LEVELS: dict[str, Level] = {**dict.fromkeys(BREACH, "error"), **dict.fromkeys(INCOMPLETE, "warning"), "waived": "note"}


# Rule -> its level, and its meaning. A warning is a missing verdict: exit code 3.
RULES: dict[str, tuple[Level, str]] = {
    "within-limit": ("none", "The result is within the limit of its kernel."),
    "wrong": ("error", "The result is beyond the limit of its kernel, or not a number where the exact answer is one."),
    "undecided": ("warning", "The result is not proven within the limit of its kernel."),
    "vacuous": ("warning", "Trivial answers would keep the limit of the kernel too."),
    "not-deterministic": ("error", "Calls of the kernel with the same input give different bits."),
    "law-kept": ("none", "The kernel keeps a law."),
    "law-broken": ("error", "The kernel breaks a law that every correct kernel keeps."),
    "kernel-failed": ("error", "The kernel raised an error, crashed or exceeded its time."),
    "kernel-skipped": ("none", "The declaration of the kernel rules this machine out."),
    "not-measured": ("warning", "A part of the run did not happen."),
    **{f"bound-{status}": (LEVELS.get(status, "none"), f"The figure is {MEANING[status]}.") for status in SEVERITY},
    "solution-accepted": ("none", "The solution is accepted."),
    "solution-wrong": ("error", "The solution is wrong on an input."),
    "solution-cheats": ("error", "The solution gets its answers by a trick."),
    "solution-fails": ("error", "The solution cannot be built or called."),
    "solution-undecided": ("warning", "The solution has no verdict."),
    "pass": ("none", "The command passes."),
    "fail": ("error", "The command finds something wrong."),
    "incomplete": ("warning", "The command has no complete verdict."),
}


@dataclass(frozen=True)
class Check:
    """One decision. `repeats` is True if another check has its cause: then only JUnit lists it.

    `place` is the source of the kernel, so that GitHub shows it in a diff, or else its declaration.
    """

    rule: str
    suite: str  # the kernel or solution
    name: str
    place: Place
    message: str = ""
    replay: str = ""  # the command that shows it again
    seconds: float = 0.0
    repeats: bool = False
    declared: Place | None = None  # if `place` is another line

    @property
    def level(self) -> Level:
        return RULES[self.rule][0]

    @property
    def text(self) -> str:
        """The message with the command behind it."""
        return f"{self.message}\nreplay: {self.replay}" if self.replay else self.message


def findings(checks: Iterable[Check]) -> list[Check]:
    """Returns the checks to act on, errors first, one for each cause."""
    found = [each for each in checks if each.level != "none" and not each.repeats]
    return sorted(found, key=lambda each: ("error", "warning", "note").index(each.level))


def in_checkout(file: str) -> tuple[bool, str]:
    """Returns whether a file lies in the checkout of this folder, and its path there, else the absolute path."""
    here, path = Path.cwd(), Path(os.path.abspath(file))
    root = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
    return (True, path.relative_to(root).as_posix()) if path.is_relative_to(root) else (False, str(path))


# -- a run ----------------------------------------------------------------------------------------------------


def of_run(run: Run) -> list[Check]:
    """Returns the checks of a run: of each judged kernel its results and laws, then the parts that did not happen."""
    facts = present(run)
    first_of_cause = {id(each.result): each for each in (*facts.findings, *facts.unproven)}
    checks: list[Check] = []
    for kernel in facts.judged:
        target = Target.parse(kernel.run.target)
        declared, source = declared_at(target), implemented_at(target)
        place = source or declared
        results = [_of_result(each, first_of_cause.get(id(each.result)), place) for each in kernel.results]
        own = [*_of_kernel(kernel, place), *results, *_of_laws(kernel, place)]
        seconds = kernel.run.seconds / max(len(own), 1)  # a kernel's time is measured as one
        checks += [replace(each, seconds=seconds, declared=declared if source else None) for each in own]
    checks += _missing((gap.text for gap in run.incomplete), _first_place(checks))
    return [*checks, verdict_check(run.verdict, facts.sentence, checks)]


def _of_kernel(kernel: KernelFacts, place: Place) -> list[Check]:
    run, checks = kernel.run, []
    if run.status in ("error", "crashed", "timeout"):
        text = _message(f"{kernel.name}: {kernel.word}", blocks.failures([kernel], MOST_LINES)[0])
        checks.append(Check("kernel-failed", kernel.name, "runs", place, text, kernel.rerun))
    elif run.status == "skipped":
        text = f"{kernel.name} was skipped: {words.clean(run.message)}"
        checks.append(Check("kernel-skipped", kernel.name, "runs", place, text))
    if run.unrepeatable:
        text = _message(kernel.name, blocks.unrepeatable(kernel))
        checks.append(Check("not-deterministic", kernel.name, "same bits again", place, text, kernel.replay))
    return checks


def _of_result(found: ResultFacts, first: ResultFacts | None, place: Place) -> Check:
    """Returns the check of a result; `first` is the same with the results of its cause, if it leads them."""
    result = found.result
    source = "" if result.source == "run" else f" ({result.source})"
    name = f"{words.clean(result.output)} {words.clean(result.dtype)}{source}"
    if result.status == "ok":
        return Check("within-limit", found.owner.name, name, place, f"{found.title}: {found.label}")
    block = blocks.wrong(first or found) if result.status == "wrong" else blocks.unproven(first or found)
    replay = words.clean(next(iter(block.commands), ""))
    message = _message(f"{found.title}: {found.label}", block)
    return Check(result.status, found.owner.name, name, place, message, replay, repeats=first is None)


def _message(title: str, block: blocks.ReportBlock) -> str:
    """Returns a title with the facts of a block below it."""
    return "\n".join([title, *block.message, *(f"{name}: {value}" for name, value in block.fields)])


def _of_laws(kernel: KernelFacts, place: Place) -> list[Check]:
    first, checks = set(map(id, kernel.broken_laws)), []
    for law in kernel.run.laws:
        name = f"law of {words.clean(law.law)} {words.clean(law.dtype)}"
        if law.status == "ok":
            checks.append(Check("law-kept", kernel.name, name, place))
        elif law.status == "broken":
            block, repeats = blocks.broken(kernel, law), id(law) not in first
            text, replay = _message(block.title, block), words.clean(block.commands[0])
            checks.append(Check("law-broken", kernel.name, name, place, text, replay, repeats=repeats))
    return checks


def _missing(lines: Iterable[str], place: Place) -> list[Check]:
    """One check for each reason."""
    return [Check("not-measured", "verify", gap.text, place, gap.text) for gap in gathered(lines)]


def verdict_check(word: str, sentence: str, checks: Sequence[Check]) -> Check:
    """Returns the last check: a verdict in one word and one sentence. It repeats a check of its own level."""
    place, known = _first_place(checks), {each.level for each in checks if not each.repeats}
    return Check(word, "verify", "verdict", place, words.clean(sentence), repeats=RULES[word][0] in known)


def _first_place(checks: Sequence[Check]) -> Place:
    """Returns the place of findings that are about no kernel: GitHub demands a file of each."""
    return checks[0].place if checks else ("pyproject.toml", 1)


# -- the gate -------------------------------------------------------------------------------------------------


def of_verdict(verdict: Verdict, bounds: Path) -> list[Check]:
    """Returns the checks of the gate: a row each. A kernel that no record has is placed at its file of bounds."""
    targets = {name: Target.parse(target) for name, target in verdict.targets.items()}
    places = {name: implemented_at(target) or declared_at(target) for name, target in targets.items()}
    alike = grouped((*gate_words.breaches(verdict), *verdict.rows), _cause)
    checks = []
    for row in verdict.rows:
        file = bounds / row.key.arch / file_name(row.key.kernel)
        checks.append(_of_row(row, places.get(row.key.kernel, (str(file), 1)), alike[_cause(row)]))
    checks += _missing(verdict.missing, _first_place(checks))
    return [*checks, verdict_check(verdict.word, gate_words.document(verdict).sentence, checks)]


def of_night(run: Run, verdict: Verdict | None, bounds: Path) -> list[Check]:
    """Returns the checks of a run and of the gate. The gate repeats no missing part. Last is the worse verdict."""
    parts = [of_run(run), *([of_verdict(verdict, bounds)] if verdict is not None else [])]
    found = {(each.rule, each.suite, each.name): each for part in reversed(parts) for each in part[:-1]}
    levels = ("none", "note", "warning", "error")
    return [*found.values(), max((part[-1] for part in parts), key=lambda each: levels.index(each.level))]


def _cause(row: Row) -> tuple[str, ...]:
    """Regimes of one result that are beyond their bounds have one; so have keys of a kernel with the same reason."""
    key, figures = row.key, row.status in gate_words.WITH_FIGURES
    return (key.arch, key.kernel, row.status, *((key.output, key.dtype) if figures else (gate_words.why(row),)))


def _of_row(row: Row, place: Place, alike: Sequence[Row]) -> Check:
    """Returns the check of a row; `alike` are the rows of its cause, the worst first."""
    name = " ".join(words.clean(part) for part in (row.key.output, row.key.dtype, row.key.regime, row.key.arch) if part)
    lines, replay = [f"{gate_words.measured(row)}: {words.clean(gate_words.why(row) or row.status)}"], ""
    if row.status in BREACH and row.leading is not None:
        block = gate_words.breach(row, {})
        lines, replay = [_message(lines[0], block)], words.clean(next(iter(block.commands), ""))
    if others := len({each.key for each in alike}) - 1:
        lines.append(f"also: {words.plural(others, 'other key')} of this kernel")
    message, rule = "\n".join(lines), f"bound-{row.status}"
    return Check(rule, words.clean(row.key.kernel), name, place, message, replay, repeats=alike[0] is not row)
