"""Checks of a run, a gate and a judgement as SARIF, JUnit and annotations: each fault, nobody else's text as markup."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as Xml

import msgspec
import pytest

from tests.records.bounds.gate_records import book, bound, kernel, result
from tests.records.bounds.gate_records import run as recorded
from tests.report.sample import HOSTILE_NAME, KERNELS, empty, incomplete, make, passing, plain, rich, sample
from verify.cli import main
from verify.records import files
from verify.records.bounds import committed
from verify.records.bounds.verdict import Verdict, judge
from verify.records.record import Run
from verify.referee.plan import EXIT_CODES, SCHEMA, Judgement, Trick, WrongInput
from verify.referee.words import checks_of
from verify.report import ci
from verify.report.checks import RULES, Check, findings, of_night, of_run, of_verdict

RUNS = {run.__name__: run for run in (sample, plain, rich, passing, incomplete, empty)}


def gate_verdict() -> Verdict:
    """A bound that holds, one that does not in two regimes, a NaN, one not measured and a kernel without bounds."""
    runs = [
        recorded(
            kernel(result(0.5, output="a"), result(0.5, output="b", tail=0.9, around=0.7), result(float("nan"))),
            kernel(result(0.5), name="fresh"),
            kernel(name="lost", status="crashed", message="SIGSEGV"),
        )
    ]
    bounds = [bound(0.5, output="a"), bound(0.5), bound(0.5, kernel="absent"), bound(0.5, kernel="lost")]
    bounds += [bound(0.5, output="b", regime=regime) for regime in ("tail", "around")]
    return judge(runs, book(*bounds))


def judgements() -> list[Judgement]:
    """A solution of each verdict."""
    wrong = WrongInput("y", "x = 1 (0x3f800000)", "0, 1", "2 (0x40000000)", "1.5", "3", "3x noise", "{}")
    tricks = [Trick("computes in 16 bits", "every number is one of bfloat16")]
    more = {"wrong": {"wrong": wrong}, "cheats": {"tricks": tricks}}
    return [Judgement(SCHEMA, each, "p.py", f"{each}.py", "model", **more.get(each, {})) for each in EXIT_CODES]  # type: ignore[arg-type]


def lists() -> dict[str, tuple[list[Check], str]]:
    """Every kind of checks, with the word of its verdict."""
    found = {name: (of_run(make()), make().verdict) for name, make in RUNS.items()}
    verdict = gate_verdict()
    return found | {
        "gate": (of_verdict(verdict, Path("reports/bounds")), verdict.word),
        "night": (of_night(passing(), verdict, Path("reports/bounds")), "fail"),
        "night without bounds": (of_night(incomplete(), None, Path("b")), "incomplete"),
        "night that is incomplete": (of_night(incomplete(), judge([incomplete()], book()), Path("b")), "incomplete"),
        "no bounds": (of_verdict(judge([], book()), Path("b")), "incomplete"),
        "judgements": (checks_of(judgements()), "fail"),
        "undecided": (checks_of(judgements()[-1:]), "incomplete"),
        "accepted": (checks_of(judgements()[:1]), "pass"),
        "no solution": (checks_of([]), "incomplete"),
    }


@pytest.fixture(scope="module")
def checked() -> dict[str, tuple[list[Check], str]]:
    return lists()


# -- what all of them hold ------------------------------------------------------------------------------------


def test_sarif_is_what_github_demands(checked: dict[str, tuple[list[Check], str]]) -> None:
    for name, (checks, word) in checked.items():
        log = json.loads(ci.sarif(checks))
        [run] = log["runs"]
        rules = run["tool"]["driver"]["rules"]
        for found in run["results"]:
            rule = rules[found["ruleIndex"]]
            assert rule["id"] == found["ruleId"] and rule["shortDescription"]["text"] == RULES[rule["id"]][1]
            assert rule["defaultConfiguration"]["level"] == found["level"]
        identities = [found["partialFingerprints"]["primaryLocationLineHash"] for found in run["results"]]
        assert len(set(identities)) == len(identities), name
        levels = {found["level"] for found in run["results"]}
        assert ("error" in levels) == (word == "fail"), name
        assert bool(levels & {"error", "warning"}) == (word != "pass"), name


def test_junit_fails_where_the_command_does(checked: dict[str, tuple[list[Check], str]]) -> None:
    """GitLab and Buildkite know a test by classname and name; a test without failure or error passes."""
    for name, (checks, word) in checked.items():
        top = Xml.fromstring(ci.junit(checks))
        assert top.tag == "testsuites"
        cases = list(top.iter("testcase"))
        assert len(cases) == len(checks) and len({(case.get("classname"), case.get("name")) for case in cases}) == len(
            cases
        ), name
        assert all(case.get("classname") and case.get("name") and case.get("file") for case in cases)
        failed, errors = list(top.iter("failure")), list(top.iter("error"))
        assert bool(failed) == (word == "fail"), name
        assert bool(failed or errors) == (word != "pass"), name
        assert all(each.get("message") and each.text for each in (*failed, *errors))
        for suite in (top, *top.iter("testsuite")):
            counted = {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}
            assert {key: suite.get(key) for key in counted} == {
                key: str(len(list(suite.iter(tag)))) for key, tag in counted.items()
            }


def test_every_finding_is_annotated_or_counted(checked: dict[str, tuple[list[Check], str]]) -> None:
    for name, (checks, _) in checked.items():
        lines = ci.annotated(checks).splitlines()
        assert len(lines) == len(findings(checks)) <= 10, name
        assert all(line.startswith(("::error file=", "::warning file=", "::notice file=")) for line in lines)


# -- a run ----------------------------------------------------------------------------------------------------


def test_a_finding_has_its_rule_place_figures_and_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    Path("accuracy.py").write_text("import verify\n\n\n@verify.kernel(op='gelu')\ndef eager_gelu(x):\n    return x\n")
    [found] = json.loads(ci.sarif(of_run(make([KERNELS["eager"]]))))["runs"][0]["results"]
    assert found["ruleId"] == "wrong" and found["level"] == "error"
    place = found["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "below/accuracy.py", "uriBaseId": "%SRCROOT%"}
    assert place["region"] == {"startLine": 4}
    first, *lines = found["message"]["text"].splitlines()
    assert first == "eager_gelu y bfloat16: wrong, as PyTorch"
    assert "input: x = -8.625 (0xc10a) at [49418]" in lines
    assert lines[-1] == f"replay: {found['properties']['replay']}"
    assert found["properties"]["replay"].startswith("verify replay accuracy.py::eager_gelu '")
    assert ci.annotated(of_run(make([KERNELS["eager"]]))).startswith(
        "::error file=below/accuracy.py,line=4,title=wrong%3A eager_gelu y bfloat16::"
        "eager_gelu y bfloat16: wrong, as PyTorch%0Awhy: "
    )


def test_a_finding_is_placed_at_the_source_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GitHub shows an annotation in the diff of the file that a pull request changes, which is no declaration."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    (tmp_path / "src" / "own").mkdir(parents=True)
    Path("src/own/__init__.py").write_text("from .act import gelu\n")
    Path("src/own/act.py").write_text("import torch\n\n\n@torch.compile\ndef gelu(x):\n    return x\n")
    declared = "import verify\n\n\n@verify.kernel(op='gelu')\ndef eager_gelu(x):\n"
    Path("accuracy.py").write_text(f"{declared}    from own import gelu as kernel\n\n    return kernel(x)\n")
    checks = of_run(make([msgspec.structs.replace(KERNELS["eager"], seconds=3.0)]))
    [found] = json.loads(ci.sarif(checks))["runs"][0]["results"]
    places = [found[key][0]["physicalLocation"] for key in ("locations", "relatedLocations")]
    assert [(each["artifactLocation"]["uri"], each["region"]["startLine"]) for each in places] == [
        ("src/own/act.py", 4),
        ("accuracy.py", 4),
    ]
    assert ci.annotated(checks).startswith("::error file=src/own/act.py,line=4,")
    top = Xml.fromstring(ci.junit(checks))
    assert {case.get("file") for case in top.iter("testcase")} == {"src/own/act.py"} and top.get("time") == "3.000"


@pytest.mark.parametrize("name", [HOSTILE_NAME, "a\x00b\ud800\ufffe]]>&", "x::error file=a::b%0A,c:d\r\n::debug::"])
def test_text_of_a_kernel_is_no_markup_and_no_command(name: str) -> None:
    run = make([msgspec.structs.replace(KERNELS["hostile"], name=name, target=f"evil.py::{name}")])
    checks = of_run(run)
    top = Xml.fromstring(ci.junit(checks))
    assert {element.tag for element in top.iter()} == {"testsuites", "testsuite", "testcase", "failure"}
    assert len(json.loads(ci.sarif(checks))["runs"][0]["results"]) == len(findings(checks))
    lines = ci.annotated(checks).split("\n")
    assert len(lines) == len(findings(checks)) + 1 and lines[-1] == ""
    for line in lines[:-1]:
        command, _, _ = line.removeprefix("::").partition("::")
        assert command.count(",") == 2 and command.count(":") == 0 and "\r" not in line
    assert "<script>" not in ci.summary(checks)


def test_text_without_the_cleaning_of_a_report_stays_legal_xml() -> None:
    check = Check("wrong", "a\x00\ud800", "b\ufffe\x1b", ("c\x07.py", 1), "d\x0b]]>\n\U0001f600")
    [case] = Xml.fromstring(ci.junit([check])).iter("testcase")
    assert (case.get("classname"), case.get("name")) == ("a", "b")
    assert case.find("failure").text == "d]]>\n\U0001f600"  # type: ignore[union-attr]


# -- the gate and the referee ---------------------------------------------------------------------------------


def test_the_gate_finds_a_result_once_whatever_its_regimes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    verdict = gate_verdict()
    checks = of_verdict(verdict, Path("reports/bounds"))
    rows = [check for check in checks if check.rule.startswith("bound-")]
    assert [check.rule.removeprefix("bound-") for check in rows] == [row.status for row in verdict.rows]
    found = {(check.rule, check.suite, check.name): check for check in findings(checks)}
    assert set(found) == {
        ("bound-crashed", "lost", "y bfloat16 all sm_90"),
        ("bound-nonfinite", "gelu", "y bfloat16 all sm_90"),
        ("bound-breached", "gelu", "b bfloat16 tail sm_90"),
        ("bound-unused", "absent", "y bfloat16 all sm_90"),
        ("bound-new", "fresh", "y bfloat16 all sm_90"),
    }
    breached = found["bound-breached", "gelu", "b bfloat16 tail sm_90"]
    assert "also: 1 other key of this kernel" in breached.message and breached.place == ("accuracy.py", 1)
    absent = found["bound-unused", "absent", "y bfloat16 all sm_90"]
    assert absent.place == ("reports/bounds/sm_90/absent.toml", 1)


def test_a_solution_is_placed_at_its_file_with_the_trick_and_the_command() -> None:
    cheats = next(check for check in checks_of(judgements()) if check.rule == "solution-cheats")
    assert cheats.place == ("cheats.py", 1) and cheats.level == "error"
    assert "trick: computes in 16 bits: every number is one of bfloat16" in cheats.message
    assert cheats.replay == "verify judge p.py cheats.py --profile quick --seed 0"
    assert ci.summary(checks_of(judgements())).splitlines()[1:3] == [
        "- ✓ accepted.py&#58; accepted",
        "- ✗ wrong.py&#58; wrong",
    ]


# -- the commands ---------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (tmp_path / "summary.md").write_text("before\n")
    return tmp_path


def test_a_report_writes_each_form_beside_the_others(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.save(plain(), "run.json")
    assert main(["report", "run.json", "--sarif", "run.sarif", "--junit", "run.xml", "--github"]) == 0
    said = capsys.readouterr()
    assert f"findings: {folder}/run.sarif\nchecks: {folder}/run.xml\n" in said.out
    assert Path("run.sarif").read_bytes() == ci.sarif(of_run(plain()))
    assert Path("run.xml").read_bytes() == ci.junit(of_run(plain()))
    assert said.err == ci.annotated(of_run(plain()))
    assert Path("summary.md").read_text().startswith("before\n### ✗ verify: **fail:**")
    assert main(["report", "run.json", "--sarif", "-"]) == 0
    assert capsys.readouterr().out.encode() == ci.sarif(of_run(plain()))


def test_a_gate_writes_them_and_its_exit_code_is_the_verdict(folder: Path) -> None:
    committed.save(book(folder=folder / "bounds"), [bound(0.5)])
    files.save(recorded(kernel(result(0.7))), "run.json")
    typed = ["gate", "run.json", "--bounds", "bounds", "--sarif", "gate.sarif", "--junit", "gate.xml", "--github"]
    assert main(typed) == 1
    [found] = json.loads(Path("gate.sarif").read_text())["runs"][0]["results"]
    assert found["ruleId"] == "bound-breached"
    assert len(list(Xml.parse("gate.xml").iter("failure"))) == 2  # the figure and the verdict
    assert "verify gate: **fail:**" in Path("summary.md").read_text()


def test_a_run_that_nothing_is_said_of_is_no_pass() -> None:
    run: Run = empty()
    [check] = [each for each in of_run(run) if each.suite == "verify"]
    assert (check.rule, check.level, check.name) == ("incomplete", "warning", "verdict")
