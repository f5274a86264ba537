"""The way of one case through verify stays short, and docs/architecture.md has its length."""

from pathlib import Path

import pytest

from benchmarks.walk import walk_of_one_case

PAGE = Path(__file__).parents[2] / "docs/architecture.md"


@pytest.mark.slow
def test_the_way_of_a_case_is_as_long_as_the_page_says() -> None:
    walk = walk_of_one_case()
    stays, modules = len(walk.stays), len({module for module, _ in walk.stays})
    assert (stays <= 45, walk.climbs <= 10) == (True, True)
    length = f"{stays} stays in {modules} modules, {walk.climbs} climbs to a higher room"
    assert length in " ".join(PAGE.read_text(encoding="utf-8").split())
