"""The measurement of problem files at their own sizes: what counts as certified, and what is within its limits."""

from __future__ import annotations

from typing import Any

from benchmarks.own_sizes import judged, summary


def _run(*results: tuple[str, str], gaps: tuple[str, ...] = ()) -> dict[str, Any]:
    found = [{"output": name, "status": status, "basis": {"kind": "observed", "n": 4}} for name, status in results]
    return {"kernels": [{"status": "ok", "results": found}], "incomplete": [{"text": text} for text in gaps]}


def test_what_is_certified_has_a_verdict() -> None:
    found = judged(_run(("y", "ok"), ("dx", "wrong")))
    assert found["forward"] and found["gradients"]
    found = judged(_run(("y", "ok"), ("dx", "undecided")))
    assert found["forward"] and not found["gradients"]
    assert not judged(_run(("y", "undecided"), ("dx", "ok")))["gradients"]
    assert not judged(_run())["forward"]
    assert not judged(_run(("y", "ok"), gaps=("dx of [4]: one element depends on more numbers",)))["gradients"]


def test_shares_and_times_have_limits() -> None:
    good = {"seconds": 10.0, "ended": 60.0, "forward": True, "gradients": True}
    rows = {str(number): good | {"ended": 10.0 * number} for number in range(1, 11)}  # one after the other: 6 a minute
    assert summary(rows, 1)[1]
    late = good | {"seconds": 90.0}
    assert not summary(rows | {"late": late, "later": late}, 1)[1]
    assert not summary(rows | {"a": good | {"forward": False}, "b": good | {"forward": False}}, 1)[1]
    assert not summary(rows | {"a": good | {"gradients": False, "why": "CUDA out of memory"}}, 1)[1]
    assert not summary(rows, 4)[1]
    assert summary({name: row | {"ended": 10.0} for name, row in rows.items()}, 4)[1]  # 60 a minute
    assert "100.0% certified forward" in summary(rows, 1)[0]
