"""How often a reader changes the module on the way of one case: no change makes the way longer."""

from __future__ import annotations

import pytest

from benchmarks.walk import walk_of


@pytest.mark.parametrize(("route", "most"), [("shipped", 256), ("like", 332), ("judge", 420)])
def test_the_way_of_a_case_changes_the_module_no_more_often(route: str, most: int) -> None:
    stays = walk_of(route).stays
    assert len(stays) > 100, "the whole way was noted"
    assert len(stays) - 1 <= most
