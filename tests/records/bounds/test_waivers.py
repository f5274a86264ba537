"""Waivers: none is used without being told, none outlives its day, and one that is not understood stops the gate."""

from __future__ import annotations

import datetime
import html
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.here import Said, said
from tests.golden import answers
from tests.records.bounds.gate_records import book, bound, kernel, result, run
from tests.records.bounds.test_gate import statuses
from tests.records.test_commit import git
from tests.report import pages
from verify.errors import UsageError
from verify.records import files
from verify.records.bounds import committed, verdict, waivers
from verify.records.bounds.verdict import Verdict
from verify.report import gate_data, gate_words
from verify.report.terminal.text_page import Terminal

TODAY = datetime.date(2026, 11, 23)
BREACHED = "gelu/y/bfloat16/tail"
RECORD = run(kernel(result(tail=3.0, positive=0.5)))
BOUNDS = [bound(0.5, regime="tail"), bound(0.5, regime="positive")]


def toml(key: str = BREACHED, expires: str = "2026-11-23", reason: str = "a faster erf is on its way") -> str:
    return f'[[waiver]]\nkey = "{key}"\nreason = "{reason}"\nexpires = {expires}\n'


def judged(tmp_path: Path, *texts: str, record: Any = RECORD, where: str = "waivers.toml", **more: Any) -> Verdict:
    path = tmp_path / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(texts))
    return waivers.judge([record], book(*BOUNDS, folder=tmp_path), **{"today": TODAY, **more})


def sinks(found: Verdict) -> list[str]:
    """What each sink says of a verdict, folded to one line."""
    page = gate_words.document(found)
    lines = [line.text for part in page.sections for line in part.lines]
    shown = " ".join([page.sentence, *lines, *(row.note for part in page.sections for row in part.rows)])
    texts = [pages.of_gate(found, Terminal(80)), html.unescape(pages.comment_of_gate(found)), shown]
    return [" ".join(text.replace("\\", "").split()) for text in [*texts, json.dumps(gate_data.of_verdict(found))]]


def test_a_finding_passes_with_a_line_that_says_why_and_until_when(tmp_path: Path) -> None:
    assert verdict.judge([RECORD], book(*BOUNDS)).exit_code == 1
    found = judged(tmp_path, toml())
    assert (found.word, statuses(found)[BREACHED]) == ("pass", "waived")
    assert gate_words.document(found).sentence == "pass: 1 of 2 bounds hold; 1 finding waived"
    for text in sinks(found):
        assert "a faster erf is on its way" in text and "2026-11-23" in text and "waived" in text
    line = "3 ULP against a bound of 0.5 ULP; waived until 2026-11-23"
    assert line in sinks(found)[1]
    assert f"gelu y bfloat16 tail (sm_90): {line}" in pages.of_gate(found, Terminal(200))


def test_the_day_after_it_fails_and_says_that_the_waiver_ended(tmp_path: Path) -> None:
    found = judged(tmp_path, toml(), today=TODAY + datetime.timedelta(1))
    assert (found.word, statuses(found)[BREACHED]) == ("fail", "breached")
    for text in sinks(found):
        assert "a faster erf is on its way" in text and "2026-11-23" in text
    assert "ended with 2026-11-23" in sinks(found)[0]
    [block] = [part for part in pages.of_gate(found, Terminal(80)).split("\n\n") if part.startswith("✗ breached")]
    assert len(block.splitlines()) == 8


@pytest.mark.parametrize("quoted", ["2026-11-22", '"2026-11-22"'])
def test_the_day_of_the_gate_is_that_of_utc(tmp_path: Path, quoted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
            utc = datetime.datetime(2026, 11, 22, 23, 59, tzinfo=datetime.UTC)
            return utc if tz is datetime.UTC else utc + datetime.timedelta(hours=9)

    monkeypatch.setattr(waivers.datetime, "datetime", Clock)
    assert judged(tmp_path, toml(expires=quoted), today=None).word == "pass"
    assert judged(tmp_path, toml(expires='"2026-11-21"'), today=None).word == "fail"


def test_a_waiver_that_is_not_understood_is_bad_usage_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answers(Path(__file__).parent / "snapshots" / "waivers.txt", globals())
    with pytest.raises(UsageError, match="waivers.toml is not TOML"):
        judged(tmp_path, toml(expires="2027-02-30"))


def test_a_star_stands_for_any_regime_of_one_result(tmp_path: Path) -> None:
    both = run(kernel(result(tail=3.0, positive=2.0), result(dtype="float16", tail=3.0)))
    bounds = book(*BOUNDS, bound(0.5, regime="tail", dtype="float16"), folder=tmp_path)
    (tmp_path / "waivers.toml").write_text(toml("gelu/y/bfloat16/*"))
    found = waivers.judge([both], bounds, today=TODAY)
    assert statuses(found) == {
        BREACHED: "waived",
        "gelu/y/bfloat16/positive": "waived",
        "gelu/y/float16/tail": "breached",
    }
    (tmp_path / "waivers.toml").write_text(toml("gelu/*/*/tail"))
    found = waivers.judge([both], bounds, today=TODAY)
    assert [key for key, status in statuses(found).items() if status == "breached"] == ["gelu/y/bfloat16/positive"]
    for key in ("*/y/bfloat16/tail", "gelu/*", "gelu/y/*", "gelu/dx/bfloat16/*"):  # the kernel is named
        (tmp_path / "waivers.toml").write_text(toml(key))
        with pytest.raises(UsageError, match=re.escape(f"no key {key!r}")):
            waivers.judge([both], bounds, today=TODAY)


def test_one_that_excuses_nothing_is_said_and_does_not_fail(tmp_path: Path) -> None:
    fixed = run(kernel(result(tail=0.5, positive=0.5)))
    for today in (TODAY, TODAY + datetime.timedelta(1)):
        found = judged(tmp_path, toml(), record=fixed, today=today)
        assert found.word == "pass"
        for text in sinks(found):
            assert f"{BREACHED}: ok; the waiver can go" in text


def test_nan_is_excused_by_its_key_and_what_cannot_be_judged_by_nothing(tmp_path: Path) -> None:
    nan = run(kernel(result(tail=math.nan, positive=0.5)))
    assert judged(tmp_path, toml(), record=nan).word == "pass"
    new = run(kernel(result(tail=0.5, positive=0.5, root=0.5)))
    found = judged(tmp_path, toml(key="gelu/y/bfloat16/root"), record=new)
    assert (found.word, statuses(found)["gelu/y/bfloat16/root"]) == ("incomplete", "new")


def test_a_kernel_that_does_not_run_has_a_waiver_of_its_own(tmp_path: Path) -> None:
    """A waiver of a figure says nothing of a crash, and one of a crash nothing of a figure."""
    crashed = run(kernel(status="crashed", message="SIGSEGV"))
    assert judged(tmp_path, toml("gelu"), record=crashed).word == "pass"
    assert judged(tmp_path, toml(), toml("gelu/y/bfloat16/positive"), record=crashed).word == "fail"
    found = judged(tmp_path, toml("gelu"))
    assert found.word == "fail" and found.idle
    (tmp_path / "waivers.toml").write_text(toml("gelu"))
    unbound = waivers.judge([crashed], book(folder=tmp_path), today=TODAY)
    assert (unbound.word, [row.status for row in unbound.rows]) == ("pass", ["waived"])


# -- commands -----------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "reports" / "bounds"
    committed.save(committed.Book(folder), BOUNDS)
    (folder / "waivers.toml").write_text(toml(expires="2999-01-01"))
    files.save(RECORD, tmp_path / "run.json")
    return tmp_path


def test_every_command_that_judges_takes_waivers(project: Path) -> None:
    def verify(*arguments: str, code: int = 0) -> Said:
        done = said(*arguments, cwd=project)
        assert done.returncode == code, done.stderr
        return done

    assert "waived until 2999-01-01: a faster" in " ".join(verify("gate", "run.json").stdout.split())
    row = json.loads(verify("gate", "run.json", "--json", "-").stdout)["rows"][0]
    assert (row["status"], row["waiver"]["expires"]) == ("waived", "2999-01-01")
    verify("report", "run.json", "--bounds", "reports/bounds", "--html", "page.html")
    assert "waived until 2999-01-01: a faster" in (project / "page.html").read_text()
    (project / "reports" / "bounds" / "waivers.toml").write_text(toml("gelu/z"))
    assert "waivers.toml: waiver 1: " in verify("gate", "run.json", code=2).stderr


def test_a_review_shows_a_waiver_as_it_does_a_looser_bound(project: Path) -> None:
    path = project / "reports" / "bounds" / "waivers.toml"
    text = path.read_text()
    path.unlink()
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "bounds")
    assert said("bounds", "review", cwd=project).returncode == 0
    path.write_text(text)
    done = said("bounds", "review", cwd=project)
    assert done.returncode == 1 and "waiver added  gelu/y/bfloat16/tail" in done.stdout
    assert "; 1 waiver: 1 added" in done.stdout
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "waiver")
    path.write_text(toml(expires="2999-01-02"))
    told = json.loads(said("bounds", "review", "--json", "-", cwd=project).stdout)
    assert [item["change"] for item in told["waivers"]] == ["extended"]
    path.write_text(toml())
    assert said("bounds", "review", cwd=project).returncode == 0
