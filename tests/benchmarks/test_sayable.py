"""A few rows of the table of kernels that can be declared hold, and a row that does not makes the command fail."""

from __future__ import annotations

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
