"""The Markdown report, read back through an independent parser: inert, complete, capped."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import msgspec
import pytest
from markdown_it import MarkdownIt

from tests.report import pages
from tests.report.sample import HOSTILE_NAME, empty, incomplete, make, many, passing, sample
from verify.records.record import Gap, LawRun, replay_command
from verify.report import words
from verify.report.markdown import comment
from verify.report.present import present

ALLOWED = {
    *("h3", "p", "strong", "ul", "li", "table", "thead", "tbody", "tr", "th", "td"),
    *("code", "pre", "details", "summary", "sub", "br"),
}


class Reader(HTMLParser):
    """Collects tags, table rows, text outside code and code blocks."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.rows: list[list[str]] = []
        self.commands: list[str] = []
        self.loose = ""
        self.stack: list[str] = []
        parser = MarkdownIt("commonmark", {"html": True, "linkify": False}).enable("table")
        self.feed(parser.render(text))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "br":
            self.stack.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "pre":
            self.commands.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag, f"unbalanced {tag}"

    def handle_data(self, data: str) -> None:
        if "pre" in self.stack:
            self.commands[-1] += data
        elif "td" in self.stack or "th" in self.stack:
            self.rows[-1][-1] += data
        if "code" not in self.stack:
            self.loose += data


def test_only_our_own_elements_come_out() -> None:
    for run in (sample(), passing(), incomplete(), empty()):
        reader = Reader(pages.comment_of_run(run))
        assert reader.tags <= ALLOWED
        assert reader.attributes <= {"class", "style"}  # of fences and of aligned cells
        assert not reader.stack


def test_hostile_names_are_shown_and_mean_nothing() -> None:
    reader = Reader(pages.comment_of_run(sample()))
    shown = words.clean(HOSTILE_NAME).replace("@", "@\u200b").replace("#", "#\u200b")
    row = next(row for row in reader.rows if row and "<script>" in row[0])
    assert row[0] == shown
    assert len(row) == 11  # the pipe in the name did not make a cell
    assert not re.search(r"@\w|#\d|https?://|www\.\w", reader.loose)


@pytest.mark.parametrize(
    "text",
    [
        "*a* _b_ __c__ ~~d~~ `e` [f](g) ![h](i) <j> &amp; \\k # l | m",
        "www.example.com https://example.com a@example.com @user #12",
        "<!-- comment --> <img src=x> $math$",
    ],
)
def test_text_survives_unchanged_but_for_the_broken_links(text: str) -> None:
    html = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(comment.inert(text))
    reader = HTMLParser()
    found: list[str] = []
    reader.handle_starttag = lambda tag, attrs: found.append(f"<{tag}>")  # type: ignore[method-assign]
    reader.handle_data = found.append  # type: ignore[method-assign]
    reader.feed(html)
    assert "".join(found).replace("\u200b", "").strip() == f"<p>{text}"
    assert "www.example" not in comment.inert(text)


def test_each_wrong_result_can_be_replayed() -> None:
    commands = Reader(pages.comment_of_run(sample())).commands
    for found in present(sample()).findings:
        assert found.worst is not None
        assert words.clean(replay_command(found.worst.origin)) + "\n" in commands


@pytest.mark.parametrize("limit", [0, 1, 80, 300, 900, 2_500, 6_000, 20_000, 60_000])
def test_the_cap_holds_and_what_is_missing_is_counted(limit: int) -> None:
    run = many(120)
    text = pages.comment_of_run(run, limit=limit)
    assert len(text.encode()) <= limit  # bytes, of which there are never fewer than of characters
    if limit < 300:
        return
    assert text.startswith("### ✗ verify: **fail:** ")
    reader = Reader(text)
    assert not reader.stack  # cut between pieces, never inside one
    if limit < 900:
        return
    rows = sum(len(row) == 11 and row[0] != "kernel" for row in reader.rows)

    def left_out_of(what: str) -> int:
        return sum(int(count.replace(",", "")) for count in re.findall(rf"([\d,]+) more {what} left out", text))

    assert rows + left_out_of("rows?") == sum(len(kernel.results) for kernel in present(run).kernels)
    details = text.count("<details><summary>✗")
    assert details + left_out_of("findings?") == len(present(run).findings)


def test_a_hostile_and_huge_record_stays_below_the_cap_and_closed() -> None:
    """Every text as long and as active as it gets."""
    awful = "<details>`" * 4_000 + "@octocat #1 |\n" * 500
    kernel = msgspec.structs.replace(
        sample().kernels[1],
        name=awful,
        target=awful,
        message=awful,
        hint=awful,
        status="error",
        laws=[LawRun(awful, awful, "skipped", 0, awful), LawRun(awful, awful, "broken", 1, awful, {awful: awful})],
    )
    run = msgspec.structs.replace(
        make([kernel] * 40), command=awful, id=awful, profile=awful, incomplete=[Gap("not possible", awful)] * 50
    )
    text = pages.comment_of_run(run)
    assert len(text.encode()) <= 60_000
    assert text.startswith("### ✗ verify: **fail:** ")
    reader = Reader(text)
    assert reader.tags <= ALLOWED
    assert not reader.stack
