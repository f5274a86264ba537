"""`verify nightly` from the command line: one folder with record, page and comment, and an exit code for schedulers."""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path
from xml.etree import ElementTree as Xml

import msgspec
import pytest

from tests.cli.here import Said, said
from tests.report.sample import passing
from verify.cli import exits, main
from verify.records.bounds.verdict import Row, Verdict
from verify.records.files import load
from verify.records.readings import Key
from verify.records.record import Gap

KERNELS = """
import torch
import verify

@verify.kernel(op="silu", dtypes=["bfloat16"], gradients=False)
def right(x):
    return torch.where(x == -torch.inf, 0, torch.nn.functional.silu(x.double())).to(x.dtype)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text('[tool.verify]\nkernels = ["accuracy.py"]\n')
    (tmp_path / "accuracy.py").write_text(KERNELS)
    return tmp_path


def nightly(folder: Path, *arguments: str) -> Said:
    return said("nightly", "--backend", "interpreter", *arguments, cwd=folder)


def test_a_night_leaves_one_folder_and_its_bounds_are_judged(project: Path) -> None:
    stages = ("--stage", "accuracy", "--stage", "sweep", "--stage", "bench", "--seed", "7", "--output", "night")
    first = nightly(project, *stages)
    assert first.returncode == 0, first.stdout + first.stderr
    run = load(project / "night" / "run.json")
    assert [(stage.name, stage.status) for stage in run.stages] == [
        ("accuracy", "ok"),
        ("sweep", "ok"),
        ("bench", "skipped"),
    ]
    assert {result.source for result in run.kernels[0].results} == {"run", "sweep"}
    assert (project / "night" / "report.html").read_text().startswith("<!doctype html>")
    assert "right" in (project / "night" / "report.md").read_text()
    assert said("bounds", "propose", "night/run.json", "--on-ci", cwd=project).returncode == 0
    again = nightly(project, *stages, "--junit", "night.xml")
    assert again.returncode == 0, again.stdout + again.stderr
    suites = Xml.parse(project / "night.xml").getroot()
    assert {each.get("name") for each in suites} == {"right", "verify"} and suites.get("failures") == "0"
    assert any("interpreter" in (each.get("name") or "") for each in suites.iter("testcase"))  # a bound
    bounds = project / "reports" / "bounds" / "interpreter" / "right.toml"
    # the bounds of a kernel that was not measured count, unless the night was asked for chosen targets
    other = bounds.with_name("other.toml")
    other.write_text(bounds.read_text().replace('kernel = "right"', 'kernel = "other"'))
    assert nightly(project, *stages).returncode == 3
    assert nightly(project, "accuracy.py", *stages).returncode == 0
    other.unlink()
    bounds.write_text(bounds.read_text() + '\n[[result]]\noutput = "y"\n')
    broken = nightly(project, *stages)
    assert broken.returncode == 2
    assert "bound" in broken.stderr


def test_a_night_on_a_full_disk_shows_what_it_found(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def done(night: object, works: object, command: str) -> object:
        monkeypatch.setattr(os, "replace", full)
        return passing()

    monkeypatch.setattr("verify.nightly.run", done)
    monkeypatch.chdir(project)
    assert main(["nightly", "accuracy.py", "--output", "night"]) == exits.UNWRITTEN
    said = capsys.readouterr()
    assert "✓ pass: " in said.out and "cannot write night/run.json: " in said.err
    assert [path.name for path in (project / "night").iterdir()] == []


def test_an_incomplete_night_ends_with_the_command_that_goes_on_in_its_folder(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    late = msgspec.structs.replace(
        passing(), kernels=[], incomplete=[Gap("out of time", "right: not begun")], command="verify nightly"
    )
    monkeypatch.setattr("verify.nightly.run", lambda night, works, command: late)
    monkeypatch.chdir(project)
    options = ["accuracy.py", "--seed", "7", "--stage", "laws", "--output", "my night", "--budget", "90s"]
    options += ["--timeout", "60s", "--jobs", "2"]
    assert main(["nightly", *options]) == 3
    said = capsys.readouterr().out
    (line,) = [line for line in said.splitlines() if line.startswith("next: ")]
    assert sorted(shlex.split(line)) == sorted(["next:", "verify", "nightly", *options])
    assert load(project / "my night" / "run.json").command == "verify nightly"


@pytest.mark.parametrize(
    ("verdict", "status", "code"),
    [("pass", "ok", 0), ("pass", "breached", 1), ("pass", "new", 3), ("fail", "new", 1), ("incomplete", "ok", 3)],
)
def test_the_worst_of_run_and_gate_is_the_exit_code(verdict: str, status: str, code: int) -> None:
    row = Row(Key("interpreter", "k", "y", "float32", "all"), status, "")  # type: ignore[arg-type]
    assert max(exits.OF_VERDICT[verdict], Verdict((row,)).exit_code, key=exits.worse) == code
