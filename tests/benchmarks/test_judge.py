"""The benchmark of judgements counts what comes in time, by one command, and keeps to its limits."""

from __future__ import annotations

from typing import Any

from benchmarks import judge


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


def test_a_large_result_may_take_some_seconds_more() -> None:
    assert judge.within("large", {"verdict": "accepted", "seconds": 30.0, "more": 14.0})
    assert not judge.within("large", {"verdict": "accepted", "seconds": 30.0, "more": 16.0})
