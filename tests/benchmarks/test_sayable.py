"""A few rows of the table of kernels that can be declared hold, and a row that does not makes the command fail."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import pytest

from benchmarks import sayable

FAST = (
    "sequences of several lengths (offsets)",
    "paged decode (block table)",
    "grouped GEMM",
    "gating with a bias",
    "permuted and put back",
    "sort, and places",
    "rows in float8, and back",
    "MXFP8 codes",
    "MXFP4 dequantised",
    "layer norm backward alone",
    "a list, and an operand by keyword",
)
BY_NAME = {one.name: one for one in sayable.ROWS}


@pytest.mark.parametrize("name", FAST)
def test_the_right_one_passes_and_the_broken_one_is_caught(name: str) -> None:
    found = sayable.tried(BY_NAME[name])
    assert not found.failure, found.failure
    assert (found.sayable, found.certified, found.right, found.broken) == ("yes", "yes", "passes", "caught")


@pytest.mark.parametrize(
    ("changed", "failure"),
    [
        ({"broken": BY_NAME["out="].right}, "the broken kernel passes"),
        ({"right": BY_NAME["out="].broken}, "the right kernel is wrong: y at"),
        ({"blind": "no defect"}, "it is no blind spot: y at"),
        ({"like": lambda x: x[x > 0]}, "refused: "),
    ],
)
def test_a_row_that_does_not_hold_fails(
    changed: dict[str, Any], failure: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = dataclasses.replace(BY_NAME["out="], **changed)
    monkeypatch.setattr(sayable, "ROWS", [one, BY_NAME["complex numbers"]])
    monkeypatch.setattr(sys, "argv", ["sayable"])
    assert sayable.main() == 1
    printed = capsys.readouterr()
    assert failure in printed.err and "0 of 1 claimed rows hold; 1 rows wait" in printed.out


def test_every_row_has_a_name_of_its_own_and_says_what_it_waits_for() -> None:
    assert len(BY_NAME) == len(sayable.ROWS)
    assert all(bool(one.waits) is (one.right is None) for one in sayable.ROWS)
