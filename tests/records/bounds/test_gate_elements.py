"""The commands that name the worst input of a regime: review with a record, a replay by its place in the record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.records.bounds.gate_records import book
from tests.report.test_long_replay import ROW, record
from verify import cli
from verify.records.bounds import at_commit
from verify.records.files import save


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a record, its bounds just proposed, and nothing committed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(at_commit, "book_at", lambda base, folder: book(folder=folder))
    monkeypatch.setattr(at_commit, "waivers_at", lambda base, folder: ())
    save(record(), "run.json")
    assert cli.main(["bounds", "propose", "run.json", "--bounds", "bounds"]) == 0
    return tmp_path


def test_review_names_the_worst_input_of_every_regime(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert cli.main(["bounds", "review", "--bounds", "bounds", "--run", "run.json"]) == 0
    text = capsys.readouterr().out
    for name in ("one", "two", "three"):
        for regime, index in (("low", 9), ("high end", 7)):
            block = text[text.index(f"new  {name} y bfloat16 {regime}\n") :].split("\n\n")[0]
            assert f"at [0, {index}]" in block
            assert f"(0x{index:04x})" in block
            assert "truth    -3.04e-5" in block
            assert f"verify replay {name} --run run.json " in block and " --regime " in block
    assert ROW not in text
    assert cli.main(["bounds", "review", "--bounds", "bounds", "--run", "run.json", "--json", "-"]) == 0
    changes = json.loads(capsys.readouterr().out)["changes"]
    assert sorted(item["reading"]["index"][1] for item in changes) == [7, 7, 7, 9, 9, 9]


def test_a_breach_of_a_regime_is_told_with_its_own_element(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [path] = project.rglob("three.toml")
    text = path.read_text()
    [low] = [line for line in text.splitlines() if 'regimes = ["low"], value = 2.0,' in line]
    path.write_text(text.replace(low, low.replace("value = 2.0", "value = 0.75")))
    capsys.readouterr()
    assert cli.main(["gate", "run.json", "--bounds", "bounds", "--markdown", "gate.md"]) == 1
    shown = capsys.readouterr().out
    assert shown.count("breached  ") == 1
    assert "at [0, 9]" in shown
    command = shown.splitlines()[-1]
    assert command.startswith("next: verify replay three ") and command.endswith(" --regime low")
    comment = (project / "gate.md").read_text()
    assert "&#91;0, 9&#93;" in comment
    assert f"{ROW}" in comment


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay", "three", "--regime", "low"],
        ["replay", "three", "{}", "--dtype", "float16"],
        ["replay", "three", "{}", "--run", "run.json", "--regime", "low"],
    ],
)
def test_a_regime_is_one_of_a_record(project: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    capsys.readouterr()
    assert cli.main(arguments) == 2
    assert "--dtype and --regime choose an element of the record in --run" in capsys.readouterr().err
    assert cli.main(["replay", "three", "--run", "run.json", "--regime", "nowhere"]) == 2
    assert "no element of three 'nowhere'" in capsys.readouterr().err
