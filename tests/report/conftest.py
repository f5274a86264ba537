"""One Chromium for all browser tests; without one they are skipped, and say so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.report.browser import Browser, executable


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if executable() is None:
        pytest.skip("no Chromium: install one (apt-get install chromium) or set VERIFY_CHROMIUM")
    started = Browser()
    yield started
    started.close()
