"""A few rows of the table of kernels that can be declared hold, and a row that does not makes the command fail."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import pytest

FAST = (
    "sequences of several lengths (offsets)",
    "paged decode (block table)",
    "grouped GEMM",
    "gating with a bias",
    "permuted and put back",
    "sort, and places",
    "rows in float8, and back",
    "MXFP4 dequantised",
    "layer norm backward alone",
    "a list, and an operand by keyword",
)


@pytest.fixture(scope="module")
def sayable() -> Any:
    """The benchmark. Its import declares all rows, which takes a second in each process that collects tests."""
    from benchmarks import sayable

    return sayable


@pytest.fixture(scope="module")
def by_name(sayable: Any) -> dict[str, Any]:
    return {one.name: one for one in sayable.ROWS}


@pytest.mark.parametrize("name", FAST)
def test_the_right_one_passes_and_the_broken_one_is_caught(name: str, sayable: Any, by_name: dict[str, Any]) -> None:
    found = sayable.tried(by_name[name])
    assert not found.failure, found.failure
    assert (found.sayable, found.certified, found.right, found.broken) == ("yes", "yes", "passes", "caught")


@pytest.mark.parametrize(
    ("changed", "failure"),
    [
        (lambda row: {"broken": row.right}, "the broken kernel passes"),
        (lambda row: {"right": row.broken}, "the right kernel is wrong: y at"),
        (lambda row: {"blind": "no defect"}, "it is no blind spot: y at"),
        (lambda row: {"like": lambda x: x[x > 0]}, "refused: "),
    ],
)
def test_a_row_that_does_not_hold_fails(
    changed: Callable[[Any], dict[str, Any]],
    failure: str,
    sayable: Any,
    by_name: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = dataclasses.replace(by_name["out="], **changed(by_name["out="]))
    monkeypatch.setattr(sayable, "ROWS", [one, by_name["complex numbers"]])
    monkeypatch.setattr(sys, "argv", ["sayable"])
    assert sayable.main() == 1
    printed = capsys.readouterr()
    assert failure in printed.err and "0 of 1 claimed rows hold; 1 rows wait" in printed.out


def test_every_row_has_a_name_of_its_own_and_says_what_it_waits_for(sayable: Any, by_name: dict[str, Any]) -> None:
    assert len(by_name) == len(sayable.ROWS)
    assert all(bool(one.waits) is (one.right is None) for one in sayable.ROWS)
    assert [one.name for one in sayable.ROWS if one.waits] == ["complex numbers"]
