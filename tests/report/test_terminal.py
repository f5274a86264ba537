"""The terminal report: whole at any width, inert for any name. `test_golden.py` has its text."""

from __future__ import annotations

import re

import msgspec
import pytest
from rich.cells import cell_len

from tests.records.bounds import gate_records as made
from tests.report import pages
from tests.report.sample import HOSTILE_NAME, empty, incomplete, passing, plain, sample
from tests.report.test_gate_text import everything, hostile
from verify.records.bounds import changes
from verify.records.bounds.verdict import judge
from verify.records.compare import compare
from verify.records.record import Gap, KernelRun
from verify.records.recorded import judged
from verify.report import bounds_words, compare_words, gate_words, run_table, words
from verify.report.document import Document
from verify.report.terminal.text_page import Terminal, render

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def documents() -> dict[str, Document]:
    """Pages of every subject."""
    found = {of.__name__: run_table.document(of()) for of in (sample, plain, passing, incomplete, empty)}
    for name, (item, held) in {"": everything(), "hostile ": hostile()}.items():
        judged, other = judge([item], held), made.run(made.kernel(made.result(9.0)))
        found |= {
            f"{name}gate": gate_words.document(judged, everything=True, records=[HOSTILE_NAME]),
            f"{name}proposal": bounds_words.proposal(changes.propose([item], held), written=[HOSTILE_NAME]),
            f"{name}review": bounds_words.review(changes.review(held, made.book()), HOSTILE_NAME),
            f"{name}comparison": compare_words.document(compare(item, other), everything=True),
        }
    return found


DOCUMENTS = documents()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_line_is_wider_than_the_screen_except_commands(name: str) -> None:
    for width in (60, 72, 80, 100, 120, 200):
        for line in render(DOCUMENTS[name], Terminal(width)).splitlines():
            assert cell_len(line) <= width or re.match(r"(next: |    )verify ", line), line


@pytest.mark.parametrize("width", [30, 46, 60, 72, 80, 100, 120, 200])
def test_nothing_is_cut_at_any_width(width: int) -> None:
    text = pages.of_run(sample(), Terminal(width))
    table = re.sub(r"\s+", "", text[: text.index("✗ wrong  ")])
    for kernel in sample().kernels:
        assert re.sub(r"\s+", "", words.clean(kernel.name)) in table
        for result in kernel.results:
            if width >= 46:  # below, lines fold in the middle of everything
                assert words.ulp(judged(result.figures, result.gate).upper) in table
    assert "…" not in table
    assert "..." not in table


def test_without_colour_there_is_no_escape_and_colour_changes_nothing_else() -> None:
    bare = pages.of_run(sample(), Terminal(80))
    coloured = pages.of_run(sample(), Terminal(80, color=True))
    assert "\x1b" not in bare
    assert "\x1b[1;31m" in coloured
    # trailing blanks aside: they stand inside the escapes, where they cannot be stripped
    assert [line.rstrip() for line in ANSI.sub("", coloured).splitlines()] == bare.splitlines()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_any_text_is_spelled_out_and_colour_is_never_alone(name: str) -> None:
    page = DOCUMENTS[name]
    for red in re.findall(r"\x1b\[1;31m(.*?)\x1b\[0m", render(page, Terminal(120, color=True))):
        assert re.match(r" *✗", red), red
    assert render(page, Terminal(80, glyphs=False)).isascii()
    text = render(page, Terminal(120))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert ("<script>" in text) == (name.startswith("hostile") or name in ("sample", "gate", "proposal", "review"))


def test_markup_is_shown_and_not_interpreted() -> None:
    text = pages.of_run(sample(), Terminal(120))
    assert r"<script>alert(1)</script>[bold]a|b`c`\x1b[31m\u202e@octocat #1" in text
    assert "[red]1[/red]" in text
    assert r"\x1b]0;owned\x07\x1b[2J second line" in text
    bare = pages.of_run(passing(), Terminal(120, glyphs=False))
    assert "+ correctly rounded" in bare and "x wrong  eager_gelu" in pages.of_run(sample(), Terminal(80, glyphs=False))


@pytest.mark.parametrize("more", ["", " --timeout 16", "NONE", "OTHER"])
def test_the_command_of_a_failing_kernel_is_told_once(more: str) -> None:
    again = "verify run 'my kernels.py::slow'"
    hint = {"NONE": "", "OTHER": "return one tensor"}.get(more, again + more)
    failed = KernelRun("slow", "my kernels.py::slow", "gelu", {}, "", "error", [], "what it said", hint=hint)
    command = hint if hint.startswith("verify") else again
    whole = msgspec.structs.replace(empty(), kernels=[failed], incomplete=[Gap("not possible", "slow: what it said")])
    text = pages.of_run(whole, Terminal(80))
    assert text.count("verify run ") == 1 and text.endswith(f"\nnext: {command}\n")
    assert ("    next     return one tensor\n" in text) == (more == "OTHER")
    others = [msgspec.structs.replace(failed, name=name, target=name, hint="") for name in ("b.py::b", "c.py::c")]
    text = pages.of_run(msgspec.structs.replace(whole, kernels=[failed, *others]), Terminal(80))
    for told in (command, "verify run b.py::b", "verify run c.py::c"):
        assert text.count(told) == 1
    page = pages.comment_of_run(whole)
    assert "| next | verify" not in page and ("| next | return one tensor |" in page) == (more == "OTHER")
