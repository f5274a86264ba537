"""docs/findings.md says what was measured, and what it says of PyTorch still holds on this machine."""

from __future__ import annotations

import ast
import itertools
import json
import shlex
from pathlib import Path

import pytest

from tests.docs.test_docs import ROOT, module
from verify.backends import Backend

GENERATOR = module(ROOT / "docs" / "generate_findings.py")
FINDINGS = {finding["id"]: finding for finding in GENERATOR.findings()}
ANSWERS = json.loads(GENERATOR.ANSWERS.read_text())


def test_the_page_is_what_the_answers_say() -> None:
    assert GENERATOR.PAGE.read_text() == GENERATOR.page(), "run: python docs/generate_findings.py"


def test_every_finding_was_measured_and_nothing_else() -> None:
    for place in ANSWERS.values():
        assert set(place["answers"]) <= set(FINDINGS)
    asked = {name for name, finding in FINDINGS.items() if finding.get("backend", "interpreter") == "interpreter"}
    assert set(ANSWERS["interpreter"]["answers"]) == asked


@pytest.mark.parametrize("name", FINDINGS)
def test_a_finding_holds_where_it_was_found(name: str) -> None:
    answers = ANSWERS[FINDINGS[name].get("backend", "interpreter")]["answers"]
    if name not in answers:  # nor is it on the page
        pytest.skip("a question for a GPU that was not asked yet")
    assert GENERATOR.holds(FINDINGS[name], answers[name])


@pytest.mark.parametrize("name", [name for name, item in FINDINGS.items() if "snippet" in item])
def test_a_snippet_prints_the_number_that_its_comment_names(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(FINDINGS[name]["about"])
    exec(compile(FINDINGS[name]["snippet"], name, "exec"), {})
    (printed,) = capsys.readouterr().out.split()
    assert f"# {printed}, not " in FINDINGS[name]["snippet"]


@pytest.mark.parametrize("name", [name for name, item in FINDINGS.items() if not item.get("machine")])
def test_a_finding_still_holds(name: str, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not to the bit: another processor takes other paths through PyTorch. Laws about those paths are left out."""
    monkeypatch.chdir(ROOT)
    answer = GENERATOR.ask(FINDINGS[name], backend)
    if answer is None:
        pytest.skip("the package is not installed, or needs a GPU")
    assert GENERATOR.holds(FINDINGS[name], answer)


def test_every_command_of_the_page_is_one_that_verify_takes() -> None:
    from verify.cli import parser

    lines = GENERATOR.PAGE.read_text().splitlines()
    commands = [line for before, line in itertools.pairwise(lines) if before == "```sh"]
    assert len(commands) == len({name for place in ANSWERS.values() for name in place["answers"]})
    for command in commands:
        words = shlex.split(command)
        assert words[0] == "verify"
        options = parser().parse_args(words[1:])
        target = options.target if words[1] == "replay" else options.targets[0]
        assert (ROOT / target.partition("::")[0]).is_file()


@pytest.mark.parametrize("report", sorted(GENERATOR.REPORTS.glob("*.md")), ids=lambda path: path.stem)
def test_a_report_has_a_short_script_that_ends_in_what_is_right(report: Path) -> None:
    lines = [line for line in GENERATOR.script(report).splitlines() if line]
    assert len(lines) <= 10 and all(len(line) <= 120 for line in lines)
    assert isinstance(ast.parse("\n".join(lines)).body[-1], ast.Assert)
    for part in ("**Cause.**", "**Suggested change.**", "**Read in.**", "**Threads.**"):
        assert part in report.read_text()


def test_scripts_say_if_a_fault_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script whose last line fails shows the fault, one that ends shows none, another error is no answer."""
    (tmp_path / "given.py").write_text("right = 1\n")
    for name, last in (("there", "assert given.right == 2"), ("gone", "assert given.right"), ("broken", "given.x")):
        (tmp_path / f"{name}.md").write_text(f"# T\n\n```python\nimport given\nprint(7)\n{last}\n```\n")
    monkeypatch.setattr(GENERATOR, "REPORTS", tmp_path)
    found = GENERATOR.run_scripts([str(tmp_path)])["found"]
    assert {name: answer["there"] for name, answer in found.items()} == {"broken": None, "gone": False, "there": True}
    assert found["there"]["printed"] == "7" and "has no attribute 'x'" in found["broken"]["error"]
