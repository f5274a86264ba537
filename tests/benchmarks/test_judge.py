"""The benchmark of judgements counts what comes in time, by one command, and keeps to its limits."""

from __future__ import annotations

import argparse
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import judge
from docs import generate_figures


def answers(*pairs: tuple[float, float], verdict: str = "accepted") -> list[dict[str, Any]]:
    return [{"at": at, "seconds": seconds, "verdict": verdict, "message": "why"} for at, seconds in pairs]


def test_minutes_go_from_the_first_request_to_the_last_judgement_or_to_the_end() -> None:
    found = answers((40.0, 30.0), (70.0, 55.0))
    assert judge.rated(found, 2, 90.0)["a_minute"] == 2.0, "60 s, as all have come"
    row = judge.rated(found, 3, 90.0)
    assert (row["a_minute"], row["warm"], row["first"], row["of"]) == (1.5, 10.0, 40.0, 3), "80 s"
    assert judge.rated([], 3, 90.0)["a_minute"] == 0.0


def test_limits_count_accepted_solutions_alone() -> None:
    assert judge.within("quick", {"verdict": "accepted", "seconds": 10.0})
    assert not judge.within("quick", {"verdict": "accepted", "seconds": 10.1})
    assert not judge.within("ci", {"verdict": "no answer", "seconds": 1.0})
    many = [answers(*[(float(n), 0.0) for n in range(21)], verdict=verdict) for verdict in ("accepted", "wrong")]
    rows = [judge.rated(found, 60, 60.0) for found in many]
    assert rows[0]["a_minute"] == 21.0 and [judge.within("many", row) for row in rows] == [True, False]
    assert not judge.within("many", judge.rated(many[0][:19], 60, 60.0)) and not judge.within(
        "many", judge.rated([], 60, 60.0)
    )


def test_solutions_that_never_end_hold_the_judge_for_twice_their_limit() -> None:
    assert judge.LIMITS["held"] == 2 * judge.HELD_SECONDS
    for verdict, seconds, within in (("fails", 59.0, True), ("undecided", 61.0, False), ("accepted", 5.0, False)):
        assert judge.within("held", {"verdict": verdict, "seconds": seconds}) == within
    assert judge.within("large", {"verdict": "accepted", "seconds": 30.0, "more": 14.0})
    assert not judge.within("large", {"verdict": "accepted", "seconds": 30.0, "more": 16.0})


def test_a_command_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its judgements so far count, and it is killed if it ignores the interruption."""
    monkeypatch.setattr(judge, "ENDING_SECONDS", 0.3)
    code = """trap "" INT; echo '{"seconds": 1.0, "verdict": "accepted", "message": ""}'; exec sleep 60"""

    def sleeps(*_: object) -> subprocess.Popen[str]:
        return subprocess.Popen(["sh", "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)

    monkeypatch.setattr(judge, "judge", sleeps)
    began = time.monotonic()
    options = argparse.Namespace(backend="cpu", side=1, jobs=2, candidates=3, seconds=2.0)
    row = judge.many(tmp_path, tmp_path / "times.txt", options)
    assert (row["judgements"], row["of"], row["until"]) == (1, 3, 2.0) and time.monotonic() - began < 30


def test_right_solutions_of_all_problems_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One command judges one solution of each, by forks of one process. Numbers are fewer by a factor of 16 or 64."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for name, (operands, reference, inputs, *bodies) in judge.PROBLEMS.items():
        small = inputs.replace("1024", "64").replace("128", "16")
        monkeypatch.setitem(judge.PROBLEMS, name, (operands, reference, small, *bodies))
    options = argparse.Namespace(backend="cpu", side=1, jobs=2, candidates=3, seconds=120.0)
    times = tmp_path / "times.txt"
    row = judge.many(tmp_path, times, options)
    assert row["verdicts"] == {"accepted": 3}, row
    assert sum(float(line.split()[3]) > 0.2 for line in times.read_text().splitlines() if "import torch" in line) == 1
    data = {
        "environment": {"gpu": "H100", "cores": 16, "import_torch": 5.9},
        "limits": judge.LIMITS,
        "jobs": 16,
        "quick": {"silu": {"seconds": 9.44}, "softmax": {"seconds": 11.0}},
        "ci": {"softmax": {"seconds": 20.0}},
        "many": {"a_minute": 24.4, "first": 31.2},
    }
    text = generate_figures.judge_times(data)
    assert "`quick` took 9.4 s (silu), 11.0 s (softmax), 10 s wanted; `ci` took 20.0 s (softmax), 30 s wanted" in text
    assert "made 24 judgements a minute (20 wanted), the first after 31 s" in text
