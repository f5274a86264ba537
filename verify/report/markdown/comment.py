"""Makes the pieces of every comment on GitHub: text that is inert in Markdown, rows, commands, a limit of length.

Text from outside is written with HTML character references, so that no character of it has a meaning in Markdown.
@names and #numbers are broken up, so that GitHub does not link them. A comment has at most 65,536 characters. Pieces
that do not fit are counted and omitted, never cut. The length is counted in bytes of UTF-8, an upper bound on every
definition of characters.
"""

import functools
import itertools
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from verify.records.grouped import grouped
from verify.report import words
from verify.report.blocks import ReportBlock
from verify.report.document import Columns, Document, Section, TableRow, header, is_right

LIMIT = 60_000
OPEN, OPEN_BLOCKS = 3, 1  # rows or lines, and blocks, of a section that are not folded: a reader sees some 25 lines

# These become character references: all but letters, digits and a few signs, underscores at the edge of a word
# (emphasis), and the dot of www. (a link).
_ACTIVE = re.compile(r"[^A-Za-z0-9 ,()/.;=_-]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<=www)\.", re.IGNORECASE)


class Budget:
    """Appends whole pieces while they fit, keeps room for the closing, and notes how many did not fit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.parts: list[str] = []
        self.closing = ""

    def must(self, text: str) -> None:
        """Appends the verdict at any limit, shortened if necessary."""
        room = self.room()
        if size(text) > room:
            room -= size("…\n")
            text = text.encode()[:room].decode(errors="ignore") + "…\n" if room >= 0 else ""
        self.parts.append(text)

    def fill(self, pieces: Sequence[str], noun: str, *, head: str = "", foot: str = "", share: float = 1.0) -> None:
        """Appends as many pieces as fit into a share of the room, then the number of missing pieces."""
        if not pieces:
            return
        room = int(share * (self.room() - size(self.closing)))

        def note(left: int) -> str:
            return f"\n{words.plural(left, f'more {noun}')} left out for length; the record has them.\n"

        opening = f"\n{head}\n" if head else "\n"
        used = size(opening) + size(foot) + size(note(len(pieces))) + 2
        taken = sum(used + end <= room for end in itertools.accumulate(size(piece) + 1 for piece in pieces))
        if taken:
            self.parts.append(opening + "\n".join(pieces[:taken]) + "\n" + foot)
        if taken < len(pieces) and len(note(len(pieces))) <= room:
            self.parts.append(note(len(pieces) - taken))

    def text(self) -> str:
        """Returns the finished comment."""
        return "".join(self.parts) + self.closing

    def room(self) -> int:
        """Returns the number of bytes that remain."""
        return self.limit - sum(map(size, self.parts))


def size(text: str) -> int:
    """Returns the number of bytes in UTF-8."""
    return len(text.encode())


def code(text: str) -> str:
    """Returns text from outside, inert: character references inside <code>."""
    return f"<code>{inert(text)}</code>" if text else ""


@functools.lru_cache(1024)  # a comment repeats names and messages
def inert(text: str) -> str:
    """Returns text from outside without anything that Markdown or GitHub would act on."""
    # A zero-width space follows @ and #, because GitHub looks for names and numbers in the rendered text.
    found = _ACTIVE.sub(lambda match: f"&#{ord(match[0])};", words.clean(text))
    return found.replace("&#64;", "&#64;&#8203;").replace("&#35;", "&#35;&#8203;")


def fenced(command: str) -> str:
    """Returns a command in a fence longer than any run of backticks in it."""
    text = words.clean(command)
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}sh\n{text}\n{fence}\n"


def figures_row(columns: Columns, row: TableRow, *, regimes: int = 1) -> str:
    """Returns a row of a table, which may be about several regimes. Its word is in the last column."""
    cells = [code(row.kernel)]
    for name in columns[:-1]:
        more = f" and {regimes - 1} more" if name == "regime" and regimes > 1 else ""
        cells.append((code if name in ("output", "dtype", "regime") else inert)(row.cells.get(name, "")) + more)
    word = f"**{inert(row.word)}**" if row.standing == "wrong" else inert(row.word)
    note = f": {inert(row.note)}" if row.note else ""
    return f"| {' | '.join([*cells, f'{words.GLYPHS[row.standing]} {word}{note}'])} |"


def folded(block: ReportBlock, others: int) -> str:
    """Returns a block behind its heading: a table of its facts, its message, and its commands."""
    more = f", and {words.plural(others, 'other part')} of it" if others else ""
    heading = f"{words.GLYPHS[block.status]} {code(block.title)}: {inert(block.word + block.note + more)}"
    facts = "".join(f"| {inert(name)} | {inert(value)} |\n" for name, value in block.fields)
    table = f"| | |\n| --- | --- |\n{facts}\n" if facts else ""
    message = "<br>".join(code(line) for line in block.message if line)
    commands = "\n".join(map(fenced, block.commands))
    parts = "".join(f"{part.rstrip()}\n\n" for part in (table, message, commands) if part)
    return f"<details><summary>{heading}</summary>\n\n{parts}</details>\n"


def render(*documents: Document, limit: int = LIMIT) -> str:
    """Returns the comment of one or several pages, at most `limit` bytes. One without content has a single line."""
    budget, last = Budget(limit), documents[-1]
    sections = [section for each in documents for section in each.sections]
    if not any(section.rows or section.blocks or section.lines for section in sections):
        first = documents[0]
        budget.must(f"{words.GLYPHS[first.standing]} {first.name}: no changes: {inert('; '.join(first.clauses))}.\n")
        return budget.text()
    for place, each in enumerate(documents):
        heading = "\n" if place else "### "
        said = inert("; ".join(each.clauses))
        budget.must(f"{heading}{words.GLYPHS[each.standing]} {each.name}: **{each.word}:** {said}\n")
    next_ = f"\nNext:\n\n{fenced(last.next)}" if last.next else ""
    small = f"\n<sub>{inert('; '.join(last.about))}</sub>\n" if last.about else ""
    if budget.room() >= size(next_ + small):  # the closing has room, or there is none at all
        budget.closing = next_ + small
    for section in sections:
        _rows(budget, section)
        blocks = [folded(first, len(rest)) for first, *rest in _groups(section.blocks, lambda block: block.group)]
        _fill(budget, blocks, section.noun, most=OPEN_BLOCKS)
        lines = [f"- {inert(gap.text)}" for gap in section.lines]
        _fill(budget, lines, section.noun, head=f"**{inert(section.title.capitalize())}**\n")
    return budget.text()


def _rows(budget: Budget, section: Section) -> None:
    """Appends a table, worst rows first: of each result its largest figure. Rows in order are folded."""
    columns = [name for name in next(iter(section.layouts), ()) if name != "kernel"]

    def result(row: TableRow) -> str:
        known = (row.cells.get(name, "") for name in ("output", "dtype"))
        return "\0".join((row.kernel, *known, row.word)) if "regime" in columns and row.cells else ""

    def order(row: TableRow) -> tuple[float, ...]:
        return -words.LOOKS[row.standing].rank, *(-each for each in row.size)

    merged = [(min(group, key=order), len(group)) for group in _groups(section.rows, result)]
    merged.sort(key=lambda pair: order(pair[0]))
    loud, calm = ([each for each in merged if (each[0].standing in words.CALM) == quiet] for quiet in (False, True))
    pieces = [figures_row(columns, row, regimes=count) for row, count in [*loud, *calm]]
    notes = ". ".join(section.notes(columns))
    heads = ["kernel", *map(header, columns)], ["---", *("---:" if is_right(name) else "---" for name in columns)]
    head = "\n".join(f"| {' | '.join(cells)} |" for cells in heads)
    foot = f"\n<sub>{inert(notes)}</sub>\n" if notes else ""
    _fill(budget, pieces, section.noun, head=head, foot=foot, most=min(len(loud), OPEN))


_Piece = TypeVar("_Piece")


def _groups(pieces: Sequence[_Piece], name: Callable[[_Piece], str]) -> list[list[_Piece]]:
    """Returns the pieces of each name; one without a name is a group."""
    named = grouped(enumerate(pieces), lambda pair: name(pair[1]) or pair[0]).values()
    return [[piece for _, piece in some] for some in named]


def _fill(
    budget: Budget, pieces: Sequence[str], noun: str, *, head: str = "", foot: str = "", most: int = OPEN
) -> None:
    """Appends the first pieces visibly, the others folded below them, in half of the room that is left."""
    most = len(pieces) if len(pieces) == most + 1 > 1 else most
    shown, rest = pieces[:most], pieces[most:]
    budget.fill(shown, noun, head=head, foot=foot, share=0.5)
    fold = f"<details><summary>{words.plural(len(rest), f'more {noun}' if shown else noun)}</summary>\n\n{head}"
    budget.fill(rest, noun, head=fold, foot="\n</details>\n", share=0.5)
