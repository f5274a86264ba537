"""`verify report`: a saved record as a page, as a comment and as a table, alone and beside other things."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import msgspec
import pytest

from tests.cli.here import said
from tests.report.sample import HOSTILE_NAME, passing, sample
from verify.cli import main
from verify.records.files import load, save
from verify.records.record import Result, Run


def changed(run: Run, maximum: float, **more: object) -> Run:
    """The same run with another maximum of its first result, in every part of it."""
    kernel, *others = run.kernels

    def with_maximum(result: Result) -> Result:
        regimes = [
            msgspec.structs.replace(
                part, figures=msgspec.structs.replace(part.figures, max_ulp=maximum, max_upper=maximum)
            )
            for part in result.regimes
        ]
        whole = msgspec.structs.replace(result.figures, max_ulp=maximum, max_upper=maximum)
        return msgspec.structs.replace(result, figures=whole, regimes=regimes)

    results = [with_maximum(kernel.results[0]), *kernel.results[1:]]
    results = [msgspec.structs.replace(result, properties="0123456789ab") for result in results]
    return msgspec.structs.replace(run, kernels=[msgspec.structs.replace(kernel, results=results), *others], **more)


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An earlier and a later run in a folder, and a project without bounds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    save(changed(passing(), 0.5, id="aaaaaaaaaaaa", created="2026-07-01T00:00:00+00:00"), tmp_path / "runs" / "a.json")
    save(changed(passing(), 0.75, id="bbbbbbbbbbbb", created="2026-07-02T00:00:00+00:00"), tmp_path / "runs" / "b.json")
    return tmp_path


def test_a_table_without_options(saved: Path) -> None:
    done = said("report", "runs/a.json", cwd=saved)
    assert done.returncode == 0
    assert "✓ pass: 1 kernel is within" in done.stdout


def test_a_page_and_a_comment_in_one_go(saved: Path) -> None:
    done = said("report", "runs/a.json", "--html", "out/r.html", "--markdown", "out/r.md", cwd=saved)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [f"report: {saved / 'out' / 'r.md'}", f"report: {saved / 'out' / 'r.html'}"]
    assert (saved / "out" / "r.html").read_text().startswith("<!doctype html>")
    assert (saved / "out" / "r.md").read_text().startswith("### ✓ verify: **pass:**")


def test_the_base_shows_what_got_worse(saved: Path) -> None:
    done = said("report", "runs/b.json", "--compare", "runs/a.json", cwd=saved)
    assert done.returncode == 0
    assert "worse" in done.stdout
    said("report", "runs/b.json", "--compare", "runs/a.json", "--html", "r.html", cwd=saved)
    page = (saved / "r.html").read_text()
    section = page[page.index("What changed since run aaaaaaaaaaaa") :]
    grew = re.search(r"worse: \d+ of \d+ figures grew", section)
    assert grew is not None and grew.start() < section.index("The result closest to its limit")
    assert '0.5</td><td class="n is-wrong">0.75</td>' in section
    said("report", "runs/b.json", "--html", "plain.html", cwd=saved)
    assert "What changed" not in (saved / "plain.html").read_text()


def test_a_hostile_record_beside_itself(saved: Path) -> None:
    save(sample(), saved / "hostile.json")
    done = said("report", "hostile.json", "--compare", "hostile.json", "--html", "r.html", cwd=saved)
    assert done.returncode == 0
    page = (saved / "r.html").read_text()
    assert HOSTILE_NAME not in page
    assert "<script>alert" not in page


def test_a_reader_that_goes_away_ends_a_command_without_a_word(
    saved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`verify report ... | true`: the code is that of a command which a closed pipe ended."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        assert main(["report", "runs/a.json"]) == 141
    assert capsys.readouterr().err == ""


def test_records_of_shards_are_shown_and_saved_as_one(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = passing()
    parts = [msgspec.structs.replace(whole, kernels=whole.kernels[place::2]) for place in (0, 1)]
    for name, part in zip("ab", parts, strict=True):
        save(part, saved.parent / f"{name}.json")
    both = [str(saved.parent / name) for name in ("a.json", "b.json")]
    joined = saved.parent / "joined.json"
    assert main(["report", *both, "--merge", "--json", str(joined)]) == 0
    found = load(joined)
    assert sorted(item.target for item in found.kernels) == sorted(item.target for item in whole.kernels)
    assert found.verdict == whole.verdict
    assert main(["report", both[0], both[0], "--merge"]) == 2
    assert "is in two" in capsys.readouterr().err
