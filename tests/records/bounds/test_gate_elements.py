"""The commands that name the worst input of a regime: a replay by its place in the record."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.test_long_replay import ROW, record
from verify import cli
from verify.records.files import save


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a record, its bounds just proposed, and nothing committed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    save(record(), "run.json")
    assert cli.main(["bounds", "propose", "run.json", "--bounds", "bounds"]) == 0
    return tmp_path


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
