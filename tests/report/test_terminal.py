"""The terminal report: whole at any width, inert for any name. `test_golden.py` has its text."""

from __future__ import annotations

import re
import subprocess
import sys

import msgspec
import pytest
from rich.cells import cell_len

from tests.report import pages
from tests.report.sample import empty, incomplete, passing, plain, sample
from verify.records.record import Gap, KernelRun, Run
from verify.records.recorded import judged
from verify.report import words
from verify.report.terminal.text_page import Terminal

ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("width", [60, 72, 80, 100, 120, 200])
@pytest.mark.parametrize("run", [sample(), plain(), passing(), incomplete(), empty()])
def test_no_line_is_wider_than_the_screen_except_commands(run: Run, width: int) -> None:
    for line in pages.of_run(run, Terminal(width)).splitlines():
        if cell_len(line) > width:
            assert re.match(r"(next: |    )verify (replay|run|report|list) ", line), line


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


def test_colour_is_never_alone() -> None:
    coloured = pages.of_run(sample(), Terminal(120, color=True))
    for red in re.findall(r"\x1b\[1;31m(.*?)\x1b\[0m", coloured):
        assert re.match(r" *✗", red), red


def test_ascii_glyphs() -> None:
    runs = (sample(), plain(), passing(), incomplete())
    text = "".join(pages.of_run(run, Terminal(80, glyphs=False)) for run in runs)
    assert text.isascii()
    assert "x wrong  eager_gelu y bfloat16" in text
    assert "+ correctly rounded" in pages.of_run(passing(), Terminal(120, glyphs=False))


def test_hostile_text_is_spelled_out() -> None:
    text = pages.of_run(sample(), Terminal(120))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert r"<script>alert(1)</script>[bold]a|b`c`\x1b[31m\u202e@octocat #1" in text
    assert "[red]1[/red]" in text  # markup is shown, not interpreted
    assert r"\x1b]0;owned\x07\x1b[2J second line" in text


def test_a_failure_takes_eight_lines_at_most() -> None:
    for run in (sample(), plain(), incomplete()):
        text = pages.of_run(run, Terminal(400))
        blocks = [block for block in text.split("\n\n") if block.startswith("✗ ") and "✗ fail" not in block]
        assert all(len(block.splitlines()) <= 8 for block in blocks), blocks
        for block in blocks:
            lines = block.splitlines()
            assert len(set(lines)) == len(lines)


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


def test_importing_the_reports_imports_neither_rich_nor_jinja() -> None:
    code = (
        "import sys\n"
        "import verify.report.terminal.text_page, verify.report.html.record_html\n"
        "import verify.report.markdown.comment\n"
        "print([name for name in ('rich', 'jinja2', 'markupsafe', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
