"""docs/speed.md says what the published records say."""

from __future__ import annotations

from tests.docs.test_docs import ROOT, module

GENERATOR = module(ROOT / "docs" / "generate_speed.py")


def test_the_page_is_what_the_records_say() -> None:
    assert GENERATOR.PAGE.read_text() == GENERATOR.page(GENERATOR.records()), "run: python docs/generate_speed.py"
