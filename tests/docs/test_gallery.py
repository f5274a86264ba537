"""docs/gallery.md: its pictures show the reports that its commands write, and it names every example."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import gallery, picture
from tests.docs.printed import COMPARABLE


def test_the_page_is_written_from_its_pictures() -> None:
    assert gallery.PAGE.read_text(encoding="utf-8") == gallery.page(), "run: python -m tests.docs.gallery"
    assert {path.stem for path in gallery.PAGE.with_name("gallery").glob("*.png")} == {
        entry.name for entry in gallery.ENTRIES
    }


@pytest.mark.slow
@pytest.mark.skipif(not COMPARABLE, reason="the pictures show PyTorch's figures of another processor")
@pytest.mark.parametrize("entry", gallery.ENTRIES, ids=lambda entry: entry.name)
def test_a_picture_shows_the_report_of_its_command(entry: gallery.Entry, tmp_path: Path) -> None:
    shown = picture.shown_text(gallery.report(entry, tmp_path).read_text(encoding="utf-8"))
    assert picture.text_of(gallery.file_of(entry).read_bytes()) == shown, "run: python -m tests.docs.gallery"
