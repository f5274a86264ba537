from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _few_are_judged() -> Iterator[None]:
    """Lets a hunt judge its 4 worst candidates exactly, not 16: that takes longer than the search of a test."""
    from verify.search.hunt.search import Search

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Search.elite, "__defaults__", (4,))
        yield
