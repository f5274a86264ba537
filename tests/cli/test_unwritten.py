"""A full disk: what was found is on the screen, what can be written is, the exit code says neither right nor wrong."""

from __future__ import annotations

import argparse
import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.records.bounds.gate_records import kernel, result, run
from verify import errors
from verify.cli import exits, main, sinks
from verify.records.files import save
from verify.workers import process
from verify.workers.requests import Died, Late


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(run(kernel(result(0.5))), "a.json")
    save(run(kernel(result(3.5))), "b.json")
    return tmp_path


def full(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """No room for files of these names."""
    replace = os.replace

    def refuse(source: Any, target: Any) -> None:
        if Path(target).name in names:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)


def test_what_was_found_is_shown_before_it_is_written(
    records: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full(monkeypatch, "out.json")
    assert main(["compare", "a.json", "b.json", "--json", "out.json"]) == exits.UNWRITTEN == 4
    found = capsys.readouterr()
    assert "worse: " in found.out
    assert found.err == (
        "verify: cannot write out.json: No space left on device (ENOSPC)\n"
        "  next: make room or name another file, then the same command\n"
    )
    assert sorted(path.name for path in records.iterdir()) == ["a.json", "b.json"]


def test_one_file_that_cannot_be_written_does_not_cost_the_others(
    records: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full(monkeypatch, "r.md")
    assert main(["report", "a.json", "--markdown", "r.md", "--html", "r.html"]) == exits.UNWRITTEN
    assert "cannot write r.md" in capsys.readouterr().err and (records / "r.html").exists()


def test_a_screen_that_takes_nothing(
    records: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as nowhere:
        monkeypatch.setattr(sys, "stdout", nowhere)
        assert main(["compare", "a.json", "b.json", "--json", "out.json"]) == exits.UNWRITTEN
    assert (records / "out.json").exists()
    assert capsys.readouterr().err.startswith("verify: cannot write: ")


CODES = {"a.json a.json": exits.PASS, "a.json b.json": exits.WRONG, "a.json missing.json": exits.USAGE}


@pytest.mark.parametrize(
    ("closed", "pairs"),
    [
        (">&-", ["a.json b.json"]),
        ("2>&-", ["a.json missing.json"]),
        (">&- 2>&-", ["a.json a.json"]),
        ("<&- >&- 2>&-", list(CODES)),
    ],
)
def test_a_closed_stream_changes_no_exit_code(records: Path, closed: str, pairs: list[str]) -> None:
    for pair in pairs:
        command = f"{sys.executable} -m verify compare {pair} {closed}"
        assert subprocess.run(command, shell=True, capture_output=True).returncode == CODES[pair], pair


def test_a_worker_is_not_given_its_pipe_for_a_stream_that_is_closed(records: Path) -> None:
    (records / "k.py").write_text("import verify\n\n\n@verify.kernel(op='silu')\ndef silu(x):\n    return x\n")
    command = f"{sys.executable} -m verify list k.py --json found.json <&- >&- 2>&-"
    assert subprocess.run(command, shell=True, timeout=120).returncode == exits.PASS
    assert '"silu"' in (records / "found.json").read_text()


def test_an_error_that_nobody_reads_keeps_its_exit_code(records: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "verify", "compare", "a.json", "missing.json"]
    assert subprocess.run(command, stdout=writing, stderr=writing).returncode == exits.USAGE
    os.close(writing)


@pytest.mark.parametrize("error", [KeyError("unexpected"), errors.InternalError("KeyError: 'unexpected'")])
def test_a_failure_of_the_harness_is_no_wrong_result(
    records: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def fail(path: str) -> None:
        raise error

    monkeypatch.setattr("verify.cli.compare.load", fail)
    assert main(["compare", "a.json", "b.json"]) == exits.INCOMPLETE
    said = capsys.readouterr().err
    if isinstance(error, KeyError):
        assert "Traceback" in said and "KeyError: 'unexpected'" in said and "no verdict" in said.splitlines()[-1]
    else:
        assert said.startswith(f"verify: {errors.IN_ERROR}: ")


def test_the_record_is_written_before_anything_is_rendered(records: Path) -> None:
    def text() -> str:
        assert (records / "out.json").read_bytes() == b"{}" and not (records / "out.md").exists()
        raise RuntimeError("a page that cannot be rendered")

    options = argparse.Namespace(json="out.json", markdown="out.md")
    with pytest.raises(RuntimeError, match="cannot be rendered"):
        sinks.deliver(options, text, json=lambda: b"{}", markdown=lambda: b"page")
    assert (records / "out.md").read_bytes() == b"page"


def test_an_error_does_not_steer_the_terminal(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "\x1b]0;owned\x07\x1b[2Jx.json"]) == exits.USAGE
    assert capsys.readouterr().err == (
        "verify: cannot read the record \\x1b]0;owned\\x07\\x1b[2Jx.json: No such file or directory\n"
        "  next: verify run --json PATH writes one\n"
    )


def test_arguments_that_cannot_be_written_are_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", os.fsdecode(b"\xff.py")]) == exits.USAGE
    assert capsys.readouterr().err == "verify: arguments are UTF-8; received run \\xdcff.py\n  next: verify --help\n"


@pytest.mark.parametrize("error", [Late("no answer within 1 s; stopped"), Died("the process died")])
def test_a_worker_without_an_answer_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def ask(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(process.Worker, "ask", ask)
    assert main(["list", "--ops"]) == exits.INCOMPLETE == 3
    assert capsys.readouterr().err == f"verify: no verdict: {error}\n  next: verify list --help\n"
