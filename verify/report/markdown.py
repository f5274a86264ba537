"""The report as GitHub Markdown, for a pull request or job summary: verdict first, details folded.

Text that a kernel supplies is written with HTML character references, so that no character of it
means anything to Markdown, and @names and #numbers are broken up, so that GitHub links none. A
comment has at most 65,536 characters: what does not fit is counted and left out, never cut.
"""

from __future__ import annotations

import re

from verify.record import KernelRun, LawRun, Result, Run
from verify.report import verdict, words
from verify.report.signs import GLYPHS
from verify.report.verdict import Found

RANK = {"wrong": 0, "crashed": 1, "timeout": 2, "error": 3, "skipped": 4, "ok": 5, "peer": 6}
HEADER = (
    "| kernel | result | dtype | max ULP | basis | misrounded | PyTorch max | verdict |\n"
    "| --- | --- | --- | ---: | --- | ---: | ---: | --- |"
)
# What becomes a character reference: all but letters, digits and a few signs, underscores at the
# edge of a word (emphasis), and the dot of www. (a link)
_ACTIVE = re.compile(r"[^A-Za-z0-9 ,()/.;=_-]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<=www)\.", re.IGNORECASE)
MOST_LINES = 12


def render(run: Run, *, limit: int = 60_000, record: str = "run.json") -> str:
    """The whole comment, at most `limit` characters; `record` is the path for the next command."""
    sign = {"pass": "✓", "fail": "✗", "incomplete": "○"}[run.verdict]
    budget = _Budget(limit)
    budget.must(f"### {sign} verify: {_verdict(run)}\n")
    closing = f"\nNext:\n\n{_block(verdict.next_command(run, record=record))}\n{_setting(run)}\n"
    budget.reserve(closing)
    if missing := verdict.not_measured(run):
        budget.fill(
            [f"- {_text(line)}" for line in missing],
            "things that were not measured",
            head="**Not measured**\n",
        )
    wrong = [_worst(found) for found in verdict.wrong_results(run)]
    wrong += [_law(kernel, law) for kernel, law in verdict.broken_laws(run)]
    failed = [_failure(kernel) for kernel in verdict.failures(run)]
    rows = _rows(run)
    calm = [line for rank, line in rows if rank >= RANK["ok"]]
    # a long table must not crowd out the worst inputs
    share = 0.6 if wrong or failed else 1.0
    budget.fill([line for rank, line in rows if rank < RANK["ok"]], "rows", head=HEADER, foot=_notes(run), share=share)
    budget.fill(wrong, "wrong results")
    budget.fill(failed, "failed kernels")
    within = f"<details><summary>{words.plural(len(calm), 'row')} in order, or of peers</summary>\n\n{HEADER}"
    budget.fill(calm, "rows", head=within, foot="\n</details>\n")
    budget.fill(_untried(run), "reasons", head=_UNTRIED, foot="\n</details>\n")
    return budget.text()


_UNTRIED = "<details><summary>○ laws not applicable, by reason</summary>\n"


def _untried(run: Run) -> list[str]:
    return [f"- {_text(reason)} ({_text(what)})" for reason, what in verdict.untried_laws(run)]


class _Budget:
    """Appends whole pieces while they fit, keeps room for the closing, says what did not fit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.parts: list[str] = []
        self.closing = ""

    def must(self, text: str) -> None:
        """The verdict is there at any limit, shortened if it has to be."""
        fits = len(text) <= self.limit
        self.parts.append(text if fits else (text[: max(self.limit - 2, 0)] + "…\n")[: self.limit])

    def reserve(self, closing: str) -> None:
        """What comes last, if there is room for it at all."""
        if self._used() + len(closing) <= self.limit:
            self.closing = closing

    def fill(self, pieces: list[str], what: str, *, head: str = "", foot: str = "", share: float = 1.0) -> None:
        """As many pieces as fit into a share of the room, then how many are missing."""
        if not pieces:
            return
        room = int(share * (self.limit - self._used() - len(self.closing)))

        def note(left: int) -> str:
            return f"\n{left:,} more {what} left out for length; the record has them.\n"

        opening = f"\n{head}\n" if head else "\n"
        used = len(opening) + len(foot) + len(note(len(pieces))) + 2
        taken = 0
        for piece in pieces:
            if used + len(piece) + 1 > room:
                break
            used += len(piece) + 1
            taken += 1
        if taken:
            self.parts.append(opening + "\n".join(pieces[:taken]) + "\n" + foot)
        if taken < len(pieces) and len(note(len(pieces))) <= room:
            self.parts.append(note(len(pieces) - taken))

    def text(self) -> str:
        """The finished comment."""
        return "".join(self.parts) + self.closing

    def _used(self) -> int:
        return sum(map(len, self.parts))


def _code(text: str) -> str:
    """Text from outside, inert: character references inside <code>."""
    return f"<code>{_text(text)}</code>" if text else ""


def _text(text: str) -> str:
    # a zero-width space after @ and #: GitHub looks for names and numbers in the rendered text
    inert = _ACTIVE.sub(lambda match: f"&#{ord(match[0])};", words.clean(text))
    return inert.replace("&#64;", "&#64;&#8203;").replace("&#35;", "&#35;&#8203;")


def _block(command: str) -> str:
    """A command in a fence longer than any run of backticks in it."""
    text = words.clean(command)
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}sh\n{text}\n{fence}\n"


def _verdict(run: Run) -> str:
    return f"**{run.verdict}:** {_text('; '.join(verdict.clauses(run)))}"


def _setting(run: Run) -> str:
    return f"<sub>{_text(verdict.setting(run))}; record {_code(run.id)}</sub>"


def _notes(run: Run) -> str:
    results = [result for kernel in run.kernels for result in kernel.results]
    notes = []
    if any(result.gate == "scaled" for result in results):
        notes.append("scaled: in ULP of the magnitude of the summed terms; it is the one judged.")
    if any(kernel.peer for kernel in run.kernels):
        notes.append("peer: measured for comparison, not judged.")
    return f"\n<sub>{' '.join(notes)}</sub>\n" if notes else ""


def _rows(run: Run) -> list[tuple[int, str]]:
    """(rank, row), worst first, so that what is left out for length is what matters least."""
    found: list[tuple[tuple[float, ...], str]] = []
    for kernel in run.kernels:
        for result in kernel.results:
            standing = verdict.standing(kernel, result)
            order = (RANK[standing], *(-part for part in verdict.badness(result)))
            found.append((order, _row(kernel, result, standing)))
        if not kernel.results or kernel.status not in ("ok", "wrong"):
            standing = verdict.standing(kernel)
            word = verdict.STATUS_WORD[kernel.status]
            cells = [_code(verdict.name_of(kernel)), *[""] * 6, f"{GLYPHS[standing]} {word}"]
            found.append(((RANK[standing],), _line(cells)))
    return [(int(order[0]), line) for order, line in sorted(found, key=lambda pair: pair[0])]


def _row(kernel: KernelRun, result: Result, standing: str) -> str:
    scaled = " scaled" if result.gate == "scaled" else ""
    theirs = "" if result.baseline is None else verdict.maximum(result.baseline, result.gate)
    label = verdict.label(kernel, result)
    return _line(
        [
            _code(verdict.name_of(kernel)),
            _code(result.output),
            _code(result.dtype),
            verdict.maximum(result.figures, result.gate) + scaled,
            words.basis(result.basis),
            words.share(result.figures.misrounded, result.figures.n).replace("<", "&lt;").replace(">", "&gt;"),
            theirs,
            f"{GLYPHS[standing]} " + (f"**{label}**" if standing == "wrong" else label),
        ]
    )


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _failure(kernel: KernelRun) -> str:
    lines = words.clean_lines(kernel.message) if kernel.message else ["no message was recorded"]
    if len(lines) > MOST_LINES:
        lines = [
            f"… {len(lines) - MOST_LINES} lines left out; the record has them",
            *lines[-MOST_LINES:],
        ]
    shown = "<br>".join(_code(line) for line in lines if line)
    sign, word = GLYPHS[verdict.standing(kernel)], verdict.STATUS_WORD[kernel.status]
    hint = f"Next: {_text(kernel.hint)}\n\n" if kernel.hint else ""
    return (
        f"<details><summary>{sign} {word}: {_code(verdict.name_of(kernel))}</summary>\n\n"
        f"{shown}\n\n{hint}{_block(verdict.rerun(kernel))}\n</details>\n"
    )


def _law(kernel: KernelRun, law: LawRun) -> str:
    facts = [("why", _text(law.message)), *((_text(k), _code(v)) for k, v in law.facts.items())]
    table = "\n".join(f"| {key} | {value} |" for key, value in facts)
    heading = f"<summary>✗ {_code(verdict.law_title(kernel, law))}: law broken</summary>"
    return f"<details>{heading}\n\n| | |\n| --- | --- |\n{table}\n\n{_block(law.replay)}\n</details>\n"


def _worst(found: Found) -> str:
    kernel, result, worst = found.kernel, found.result, found.worst
    scaled = " scaled" if result.gate == "scaled" else ""
    maximum = verdict.maximum(result.figures, result.gate)
    figure = maximum if maximum == "NaN" else f"{maximum} ULP{scaled}"
    name = " ".join(_code(part) for part in (verdict.name_of(kernel), result.output, result.dtype))
    facts = [
        ("limit", f"{words.decimal(result.limit)} ULP{scaled}"),
        ("max", f"{figure}, {words.basis(result.basis)}"),
    ]
    if worst is not None:
        where = verdict.index_text(worst)
        facts = [
            ("input", _code(verdict.inputs_text(worst)) + (f" at {_code(where)}" if where else "")),
            ("got", f"{_code(worst.got)} ({_code(worst.got_hex)})"),
            ("truth", _code(words.truth(worst.truth))),
            ("error", _text(verdict.error_text(worst, result.gate))),
            *facts,
        ]
    if result.reason:
        facts.insert(0, ("why", _text(result.reason)))
    if result.figures.nonfinite:
        count = words.share(result.figures.nonfinite, result.figures.n).replace("<", "&lt;").replace(">", "&gt;")
        facts.append(("NaN or infinity on one side", f"{result.figures.nonfinite:,} elements ({count})"))
    table = "\n".join(f"| {key} | {value} |" for key, value in facts)
    replay = f"\n{_block(worst.replay)}" if worst is not None else ""
    heading = f"<summary>✗ {name}: {figure}</summary>"
    return f"<details>{heading}\n\n| | |\n| --- | --- |\n{table}\n{replay}\n</details>\n"
