"""Random programs of like= are the same everywhere, are judged, and a wrong verdict on one is a finding."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from benchmarks import fuzz_programs
from benchmarks.drafts import Program, drawn, numbers, prepared
from benchmarks.fuzz_programs import Answer, Verdicts, asked, candidate, snippet

SOFT = "def program(x0):\n    a = torch.softmax(x0, -1)\n    return a * x0"
HALF = "def program(x0):\n    a = torch.relu(x0)\n    return a * x0 + x0.abs()"


def program(source: str, *rows: list[float], dtype: str = "float32") -> Program:
    x = torch.tensor(rows, dtype=getattr(torch, dtype))
    return prepared(Program("0:0", dtype, source, {"x0": x}, {"x0": "stated"}))


SOFTMAX = [[0.5, -1.25, 2.0], [1.5, 0.25, -0.75]]


def test_a_seed_gives_the_same_programs() -> None:
    first, second = drawn(7, 3), drawn(7, 3)
    assert first.source == second.source
    assert all(torch.equal(a, b) for a, b in zip(first.inputs.values(), second.inputs.values(), strict=True))
    assert len({drawn(7, number).source for number in range(6)}) == 6


def test_inputs_are_the_same_on_every_machine() -> None:
    found = numbers(Random("1:2"), (3,), "normal", "float64").tolist()
    assert found == [sum(draw.random() for _ in range(12)) - 6 for draw in [Random("1:2")] for _ in range(3)]


def test_programs_are_judged_without_a_harness_that_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fuzz_programs.main(["--seed", "5", "--programs", "2", "--json", str(tmp_path / "found.json")])
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["table"] in printed
    assert [row["program"] for row in found["rows"]] == ["5:0", "5:1"]
    for row in found["rows"]:
        assert sum(count for name, count in row["counts"].items() if name.startswith("PyTorch ")) == 1
        assert "harness" not in row["counts"]


def test_right_results_pass_and_wrong_ones_are_found() -> None:
    verdicts = Verdicts(program(SOFT, *SOFTMAX))
    verdicts.judge()
    assert verdicts.counts["PyTorch passes"] == verdicts.counts["right passes"] == 1
    assert verdicts.counts["scaled found"] == verdicts.counts["zeros found"] == 2
    assert verdicts.counts["dropped found"] == 1
    assert not verdicts.findings


@pytest.mark.parametrize(
    ("said", "kinds"),
    [
        (Answer(), {"scaled passes", "zeros passes", "dropped passes"}),
        (Answer(whole="crash", text="IndexError"), {"crash"}),
        (
            Answer(dict.fromkeys(("y", "dx0"), ("wrong", "2 ULP\n  got     1 (0x1) at [0, 1]\n  truth   17.0\n"))),
            {"PyTorch wrong", "right result fails", "truth differs"},
        ),
    ],
)
def test_a_wrong_verdict_is_a_finding(said: Answer, kinds: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_programs, "asked", lambda *_: said)
    verdicts = Verdicts(program(SOFT, *SOFTMAX))
    verdicts.judge()
    assert {finding["kind"] for finding in verdicts.findings} == kinds


def test_what_a_tie_allows_is_not_counted_as_wrong() -> None:
    verdicts = Verdicts(program("def program(x0):\n    return x0.amax(-1) * x0.sum(-1)", [1.0, 1.0, 0.0]))
    dy = verdicts.program.upstream[0]
    assert len(verdicts.program.right) > 1
    for dx in ([3.0, 1.0, 1.0], [1.0, 3.0, 1.0]):
        assert verdicts.beyond("dx0", torch.tensor([dx]) * dy) <= 1
    assert verdicts.beyond("dx0", torch.tensor([[3.0, 1.0, 0.0]]) * dy) > 100


def test_a_number_in_place_of_an_infinity_is_off() -> None:
    verdicts = Verdicts(program("def program(x0):\n    return x0 * 2", [float("inf"), 1.0]))
    right = verdicts.program.own["y"]
    assert verdicts.beyond("y", right) <= 1
    assert all(verdicts.beyond("y", torch.tensor([[got, 2.0]])) > 100 for got in (3e38, 0.0, -float("inf")))


def test_an_exception_that_is_no_verdict_is_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*_: Any, **__: Any) -> None:
        raise IndexError("dimension out of range")

    monkeypatch.setattr("verify.assert_close", raises)
    subject = program(SOFT, *SOFTMAX)
    assert asked(subject, candidate(subject, subject.right[0])).whole == "crash"


def test_a_snippet_runs_alone() -> None:
    exec(snippet(program(HALF, [0.5, -1.0, 2.0], dtype="float32")), {})
