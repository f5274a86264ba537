"""Paths of a command line: nothing is written over what is read, or over another result, and nothing into nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from verify.cli import exits, main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("run.json", "base.json", "k.py", "list.txt"):
        (tmp_path / name).write_text(f"the content of {name}")
    (tmp_path / "link.json").symlink_to("run.json")
    (tmp_path / "reports").mkdir()
    return tmp_path


LONG = "a" * 300


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        ("gate run.json --markdown run.json", "--markdown would write over run.json, which the command reads"),
        ("gate run.json --json ./run.json", "--json would write over ./run.json"),
        ("report run.json --html link.json", "--html would write over link.json, which the command reads (RUN.json)"),
        ("report run.json --compare base.json --csv base.json", "which the command reads (--compare)"),
        ("compare base.json run.json --json base.json", "which the command reads (BASE.json)"),
        ("bounds propose run.json --json run.json", "--json would write over run.json"),
        ("replay k --run run.json --snippet run.json", "--snippet would write over run.json"),
        ("run k.py::k --html k.py", "--html would write over k.py"),
        ("run k.py --resume k.py", "--resume would write over k.py"),
        ("run k.py --like run.json --json run.json", "--json would write over run.json"),
        ("judge k.py s.py --json k.py", "--json would write over k.py"),
        ("judge --many list.txt --json list.txt", "--json would write over list.txt"),
        ("report run.json --html x --csv x", "each result has a file of its own; received x for --html and --csv"),
        ("run k.py --json a --html ./a", "each result has a file of its own; received ./a for --json and --html"),
        ("run k.py --json - --html -", "one result goes to stdout; "),
        ("run k.py --json run.json/x", "--json names run.json/x; "),
        ("run k.py --json reports", "argument --json: a file is written; received the folder 'reports'"),
        ("nightly k.py --output k.py", "argument --output: a folder holds the files; received the file 'k.py'"),
        ("gate run.json --bounds run.json", "argument --bounds: a folder holds the files"),
        ("run k.py --json=", "argument --json: a value is not empty; received ''"),
        ("report run.json --csv=", "argument --csv: a value is not empty"),
        ("run k.py --resume=", "argument --resume: a value is not empty"),
        ("run k.py --each=", "argument --each: a value is not empty"),
        ("run k.py --backend=", "argument --backend: a value is not empty"),
        ("sweep k.py --regime=", "argument --regime: a value is not empty"),
        (f"run {LONG}", "argument TARGET: names in a path have 1 to 255 bytes"),
        (f"run {LONG}.py::k", "argument TARGET: names in a path have 1 to 255 bytes"),
        (f"report {LONG}", "argument RUN.json: names in a path have 1 to 255 bytes"),
        (f"run k.py --json {LONG}", "argument --json: names in a path have 1 to 255 bytes"),
        ("run nowhere.py", "no such file: nowhere.py"),
        ("sweep nowhere.py::k", "no such file: nowhere.py"),
    ],
)
def test_a_path_that_would_lose_something_ends_before_any_work(
    folder: Path, command: str, rule: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(*given: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("verify.workers.process.Worker.__init__", work)
    try:
        code = main(command.split())
    except SystemExit as end:
        code = int(str(end.code))
    said = capsys.readouterr()
    assert (code, said.out) == (exits.USAGE, "") and rule in said.err and "\n  next: verify" in said.err
    written = {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}
    assert written.pop("link.json") == "the content of run.json"
    assert written == {name: f"the content of {name}" for name in ("run.json", "base.json", "k.py", "list.txt")}
