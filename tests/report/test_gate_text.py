"""The words of the gate: a comment that fits, is inert for any name, and is silent when it can be."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from tests.records.bounds.gate_records import SEEN, book, bound, kernel, result, run
from tests.report import pages
from tests.report.sample import HOSTILE_MESSAGE, HOSTILE_NAME
from verify.records.bounds import changes
from verify.records.bounds.verdict import Verdict, judge
from verify.records.compare import compare
from verify.records.record import Gap, Run
from verify.report.terminal.text_page import Terminal

nan = math.nan


def everything() -> tuple[Run, Any]:
    """A record and bounds that between them have every status."""
    held = book(
        *(bound(0.5, regime=name) for name in ("positive", "negative tail", "infinite or NaN input")),
        bound(1.0, output="dx (random dy)", dtype="float32", basis=SEEN),
        bound(1.0, dtype="float16"),
        bound(1.0, kernel="fails"),
        bound(1.0, kernel="moved", arch="sm_80"),
    )
    wrong = result(**{"positive": 0.91, "negative tail": 0.5, "infinite or NaN input": 0.2})
    item = kernel(
        wrong,
        result(0.6, output="dx (random dy)", dtype="float32", basis=SEEN),
        result(0.7, output="db"),
        result(nan, output="dw"),
    )
    fails = kernel(name="fails", status="crashed", message="the process died of SIGSEGV")
    moved = kernel(result(0.5), name="moved")
    return run(item, fails, moved, incomplete=[Gap("not importable", "broken.py fails on import")]), held


def verdict() -> Verdict:
    item, held = everything()
    return judge([item], held)


def hostile() -> tuple[Run, Any]:
    name = HOSTILE_NAME
    item = kernel(result(9.0, output=name, dtype=name, **{name: 9.0, "other": nan}), name=name, target=f"a.py::{name}")
    fails = kernel(name="fails", status="crashed", message=HOSTILE_MESSAGE)
    return run(item, fails), book(bound(1.0, kernel=name, output=name, dtype=name, regime=name))


# -- the comment ------------------------------------------------------------------------------------------


def test_a_comment_begins_with_what_changed_and_has_only_changed_rows() -> None:
    text = pages.comment_of_gate(verdict())
    assert text.startswith("### ✗ verify gate: **fail:** ")
    assert "<code>positive</code>" in text
    assert "<code>negative tail</code>" not in text  # within its bound
    better = run(kernel(result(0.98, low=0.98, high=0.9)))
    base = run(kernel(result(0.98, low=0.98, high=0.99)))
    held = book(bound(1.0, regime="low"), bound(0.9, regime="high"))
    text = pages.comment_of_gate(judge([better], held), compare(base, better))
    assert text.startswith("### ✓ verify gate: **pass:** all 2 bounds hold\n\n✓ verify compare: **better:** 1 of 2 ")
    worse = pages.comment_of_gate(judge([base], held), compare(better, base))
    assert worse.index("**breached**") < worse.index("**worse**")
    assert "| 0.99 | 0.9 |" in text
    assert "<code>low</code>" not in text


def visible(text: str) -> list[str]:
    """The lines of a comment that a reader sees before unfolding anything."""
    lines, depth = [], 0
    for line in text.splitlines():
        if depth == 0 and line.strip():
            lines.append(line)
        depth += line.count("<details>") - line.count("</details>")
    assert depth == 0
    return lines


def test_a_comment_stays_below_its_limit_and_counts_what_it_leaves_out() -> None:
    def measured(size: float) -> Run:
        many = [result(size, output=f"y{number}", **{f"r{part}": size for part in range(8)}) for number in range(120)]
        return run(*(kernel(*many, name=f"kernel_{number}", target=f"a.py::k{number}") for number in range(3)))

    item, base = measured(9.0), measured(0.5)
    held = book(
        *(
            bound(1.0, kernel=f"kernel_{number}", output=f"y{place}", regime=f"r{part}")
            for number in range(3)
            for place in range(120)
            for part in range(8)
        )
    )
    judged, compared = judge([item], held), compare(base, item)
    text = pages.comment_of_gate(judged, compared)
    assert 20_000 < len(text) <= len(text.encode()) <= 60_000
    assert text.startswith("### ✗ verify gate: **fail:** ") and "2,880 bounds breached; " in text
    assert re.search(r"[\d,]+ more rows left out for length", text)
    assert re.search(r"[\d,]+ more broken bounds left out for length", text)
    assert re.search(r"[\d,]+ more changed results left out for length", text)
    assert "<code>r0</code> and 7 more |" in text and text.count("<code>y0</code>") <= 6  # regimes share a row
    assert len(visible(text)) <= 25
    for limit, other in ((0, compared), (10, None), (100, compared), (1000, None), (5000, compared)):
        assert len(pages.comment_of_gate(judged, other, limit=limit).encode()) <= limit
        calm = judge([run(kernel(result(0.5)))], book(bound(0.5)))
        assert len(pages.comment_of_gate(calm, limit=limit).encode()) <= limit
    # many that have no counterpart are a line: as rows they would leave no room for what changed
    none = msgspec.structs.replace(item, kernels=[msgspec.structs.replace(each, results=[]) for each in item.kernels])
    text = pages.comment_of_gate(judged, compare(none, item))
    assert "- only in head&#58; 2,880 figures of kernel_0, kernel_1, kernel_2\n" in text and " added |" not in text


def test_hostile_names_mean_nothing_in_a_comment() -> None:
    item, held = hostile()
    text = pages.comment_of_gate(judge([item], held), compare(run(), item))
    fences = re.sub(r"(?ms)^(`{3,})sh\n.*?\n\1$", "", text)  # a command in its fence is text already
    assert "<script" not in fences
    assert "<img" not in fences
    assert "`" not in fences
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", text)
    assert "@octocat" not in fences
    for line in fences.splitlines():
        if line.startswith("| <code>"):
            assert line.count("|") in (9, 10)  # no cell was split


def test_a_bound_is_never_shown_below_what_was_measured() -> None:
    found = changes.propose([run(kernel(result(2.1331, output="dw")))], book())
    text = pages.of_proposal(found, Terminal(120), written=[])
    [line] = [line for line in text.splitlines() if "  dw  " in line]
    assert line.split()[4:6] == ["2.134", "2.134"]
