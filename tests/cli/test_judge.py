"""`verify judge`: errors state the rule, and the schema needs no problem."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.here import Here
from verify.cli import exits, main
from verify.referee.judging import COLUMNS
from verify.referee.plan import SCHEMA, Judgement, Trick, WrongInput
from verify.referee.words import lines_of
from verify.workers import process


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["p.py"], "a problem and a solution are judged; received p.py"),
        ([], "a problem and a solution are judged; received neither"),
        (["nowhere.py", "s.py"], "no such problem"),
        (["s.py", "nowhere.py"], "no such solution: nowhere.py"),
        (["s.py", "s.py"], "s.py is no problem that verify knows. The formats are operator: a text file with lines"),
        (["--many", "no.txt"], "--many names a file of text with PROBLEM SOLUTION in each line; cannot read no.txt"),
        (
            ["--many", "binary"],
            "--many names a file of text with PROBLEM SOLUTION in each line; cannot read binary: 'utf",
        ),
        (["--many", "none.txt"], "none.txt has no pair to judge"),
        (["k.py::nope", "s.py"], "k.py has no kernel 'nope'; it declares: k"),
        (["--many", "list.txt"], "list.txt: a line is PROBLEM SOLUTION; received one"),
    ],
)
def test_what_cannot_be_judged_is_an_error_with_the_rule(
    typed: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(process, "Worker", Here)
    (tmp_path / "s.py").write_text("")
    (tmp_path / "list.txt").write_text("# pairs\n\none\n")
    (tmp_path / "none.txt").write_text("# pairs\n")
    (tmp_path / "binary").write_bytes(bytes(range(200, 240)))
    (tmp_path / "k.py").write_text("import verify\n@verify.kernel(op='silu')\ndef k(x):\n    return x\n")
    assert main(["judge", *typed]) == exits.USAGE
    said = capsys.readouterr()
    assert said.out == "" and message in said.err.replace(f"{tmp_path}/", "") and "\n  next: " in said.err


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", "--schema", "-"]) == exits.PASS
    schema = json.loads(capsys.readouterr().out)
    assert schema["version"] == SCHEMA
    assert set(Judgement.__struct_fields__) <= set(schema["$defs"]["Judgement"]["properties"])


def test_the_text_has_the_answer_first() -> None:
    wrong = WrongInput("y", "x = 1 (0x3f800000)", "0, 1", "2 (0x40000000)", "1.5", "3", "3x noise", "{}")
    errors = dict(
        zip(COLUMNS, ("own_1", "y", "float32", "noise", 8.0, "wrong", 12.0, None, "inf", 1.5, 480), strict=True)
    )
    found = lines_of(
        Judgement(
            SCHEMA, "wrong", "p.py", "s.py", "model", "3x noise", wrong,
            [Trick("computes in 16 bits", "every number is one of bfloat16")], [errors], unchecked=["gradients"],
        )
    )  # fmt: skip
    assert found[:3] == [
        "✗ wrong  s.py: 3x noise",
        "    trick    computes in 16 bits: every number is one of bfloat16",
        "    why      3x noise",
    ]
    assert "    speed    not timed" in found and "    not      gradients" in found
    assert "own_1    y       float32   noise         12                   inf       8      1.5" in found[7]
    assert found[-1] == "next: verify judge p.py s.py --profile quick --seed 0  # the same inputs"
