"""`verify report`: a saved record as a page, as a comment and as a table, alone and beside other things."""

from __future__ import annotations

import json
import os
import re
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.report.sample import HOSTILE_NAME, passing, sample
from verify.cli import main
from verify.records.files import load, save
from verify.records.record import KernelRun, Result, Run


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


def verify(capsys: pytest.CaptureFixture[str], *arguments: Sequence[str] | str | Path) -> tuple[int, str, str]:
    code = main(["report", *map(str, arguments)])
    found = capsys.readouterr()
    return code, found.out, found.err


def test_a_table_without_options(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = verify(capsys, saved / "runs" / "a.json")
    assert code == 0
    assert "✓ pass: 1 kernel is within" in out


def test_a_page_and_a_comment_in_one_go(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = verify(capsys, "runs/a.json", "--html", "out/r.html", "--markdown", "out/r.md")
    assert code == 0
    assert out.splitlines() == [f"report: {saved / 'out' / 'r.md'}", f"report: {saved / 'out' / 'r.html'}"]
    assert (saved / "out" / "r.html").read_text().startswith("<!doctype html>")
    assert (saved / "out" / "r.md").read_text().startswith("### ✓ verify: **pass:**")


def test_the_base_shows_what_got_worse(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = verify(capsys, "runs/b.json", "--compare", "runs/a.json")
    assert code == 0
    assert "worse" in out
    verify(capsys, "runs/b.json", "--compare", "runs/a.json", "--html", "r.html")
    page = (saved / "r.html").read_text()
    section = page[page.index("What changed since run aaaaaaaaaaaa") :]
    grew = re.search(r"worse: \d+ of \d+ figures grew", section)
    assert grew is not None and grew.start() < section.index("The result closest to its limit")
    assert '0.5</td><td class="n is-wrong">0.75</td>' in section
    verify(capsys, "runs/b.json", "--html", "plain.html")
    assert "What changed" not in (saved / "plain.html").read_text()


def test_missing_bounds_are_told_on_the_page_and_in_the_comment(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (saved / "bounds").mkdir()
    verify(capsys, "runs/b.json", "--bounds", "bounds", "--html", "r.html", "--markdown", "r.md")
    page = (saved / "r.html").read_text()
    section = page[page.index("Against the committed bounds") :]
    assert "no bound yet" in section or "incomparable" in section
    comment = (saved / "r.md").read_text()
    assert comment.index("verify gate") < comment.index("### ✓ verify: **pass:**")
    assert len(comment) < 60_000
    _, both, _ = verify(capsys, "runs/b.json", "--bounds", "bounds", "--compare", "runs/a.json", "--markdown", "-")
    assert both.splitlines()[0].startswith("### ○ verify gate: **incomplete:** worse")


def test_a_comment_needs_no_bounds_to_say_what_changed(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, comment, _ = verify(capsys, "runs/b.json", "--compare", "runs/a.json", "--markdown", "-")
    assert comment.startswith("### ✗ verify compare: worse&#58; ")
    assert comment.index("| ✗ **worse**") < comment.index("### ✓ verify: **pass:**")
    _, same, _ = verify(capsys, "runs/b.json", "--compare", "runs/b.json", "--markdown", "-")
    assert same.startswith("### ✓ verify compare: same&#58; ")


def test_history_draws_earlier_runs_of_the_same_machine_only(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = changed(passing(), 9.0, id="cccccccccccc", created="2026-06-01T00:00:00+00:00", backend="interpreter")
    late = changed(passing(), 8.0, id="dddddddddddd", created="2026-08-01T00:00:00+00:00")
    for name, run in (("c", msgspec.structs.replace(other, environment={})), ("d", late)):
        save(run, saved / "runs" / f"{name}.json")
    environment = {"arch": "sm_90"}
    for name, maximum in (("a", 0.5), ("b", 0.75)):
        run = changed(passing(), maximum, id=name * 12, created=f"2026-07-0{1 + (name == 'b')}T00:00:00+00:00")
        save(msgspec.structs.replace(run, environment=environment), saved / "runs" / f"{name}.json")
    verify(capsys, "runs/b.json", "--runs", "runs", "--html", "r.html")
    page = (saved / "r.html").read_text()
    assert "Maximum of gelu_erf y bfloat16 over" in page
    assert "over 2 runs: 0.5, 0.75" in page
    lead = page[page.index('<h2 id="trend-title">') : page.index("The result closest to its limit")]
    assert "of 3 results, 1 grew since the run before, over 1 earlier run" in lead
    assert '0.5</td><td class="n">0.75</td>' in lead and lead.count("<tr>") == 2
    assert "other cases" not in lead
    verify(capsys, "runs/a.json", "--runs", "runs", "--html", "first.html")
    assert "runs: " not in (saved / "first.html").read_text()  # nothing came before


def test_the_history_of_a_page_leaves_infinite_inputs_out_as_the_run_does(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else every kernel that is wrong at infinity has a trend of infinities, whatever else moves."""
    for name, maximum in (("a", 0.5), ("b", 0.75)):
        run = changed(passing(), maximum, id=name * 12, created=f"2026-07-0{1 + (name == 'b')}T00:00:00+00:00")
        kernel, first = run.kernels[0], run.kernels[0].results[0]
        wrong = msgspec.structs.replace(first.regimes[0].figures, n=4, nonfinite=4, misrounded=0)
        infinite = msgspec.structs.replace(first.regimes[0], name="infinite or NaN input", figures=wrong)
        # of a hunt: the elements of any other result have to add up
        hunted = {"classes": [], "source": "hunt", "properties": "ba9876543210", "regimes": [*first.regimes, infinite]}
        result = msgspec.structs.replace(first, **hunted, status="wrong", reason="inf at inf")
        kernel = msgspec.structs.replace(kernel, status="wrong", results=[result, *kernel.results[1:]])
        save(msgspec.structs.replace(run, kernels=[kernel]), saved / "runs" / f"{name}.json")
    assert verify(capsys, "runs/b.json", "--runs", "runs", "--html", "r.html")[2] == ""
    assert "over 2 runs: 0.5, 0.75" in (saved / "r.html").read_text()


def test_open_starts_the_browser_and_says_when_it_cannot(
    saved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda uri: opened.append(uri) or True)
    code, out, err = verify(capsys, "runs/a.json", "--open")
    path = Path(out.removeprefix("report: ").strip())
    assert (code, opened, err) == (0, [path.as_uri()], "")
    assert path.read_text().startswith("<!doctype html>")
    monkeypatch.setattr(webbrowser, "open", lambda uri: False)
    _, _, err = verify(capsys, "runs/a.json", "--open", "--html", "here.html")
    assert err == "verify: no browser could be started; open the file above\n"
    assert (saved / "here.html").exists()


def test_a_hostile_record_beside_itself(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(sample(), saved / "hostile.json")
    code, _, _ = verify(capsys, "hostile.json", "--compare", "hostile.json", "--html", "r.html")
    assert code == 0
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


def test_rows_as_csv(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from verify.report.rows import COLUMNS

    code, out, _ = verify(capsys, saved / "runs" / "a.json", "--csv", "-")
    lines = out.splitlines()
    assert code == 0 and lines[0] == ",".join(COLUMNS) and len(lines) == 1 + len(passing().kernels[0].results)
    code, out, _ = verify(capsys, saved / "runs" / "a.json", "--csv", "rows.csv")
    assert out == f"rows: {saved / 'rows.csv'}\n" and (saved / "rows.csv").read_text().splitlines() == lines


def test_the_schema_of_a_record_needs_none(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = verify(capsys, "--schema", "-")
    schema = json.loads(out)
    known = schema["$defs"]["SealedRun"]["properties"]
    assert code == 0 and set(json.loads((saved / "runs" / "a.json").read_bytes())) <= set(known)
    assert set(schema["$defs"]["KernelRun"]["properties"]) == {
        field.name for field in msgspec.structs.fields(KernelRun)
    }
    assert verify(capsys)[0] == 2
    assert verify(capsys, "--csv", "-")[2] == (
        "verify: a report shows a record; received none\n  next: verify report RUN.json\n"
    )


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
