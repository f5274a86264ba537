"""docs/laws.md says of every law what the law says of itself."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from verify.laws import registry
from verify.laws.engine import PROFILES

GENERATE = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "generate_laws.py"))
BEGIN, END, PAGE, updated = (GENERATE[name] for name in ("BEGIN", "END", "PAGE", "updated"))


def test_the_page_is_what_the_registry_would_write() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert updated(text) == text, "run: python docs/generate_laws.py"


def test_every_profile_has_its_figures() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for profile in PROFILES.values():
        assert f"| `{profile.name}` | {profile.examples:,} |" in text


def test_details_stay_in_the_code() -> None:
    for law in registry.ALL:
        essence, marker, details = (sys.modules[law.check.__module__].__doc__ or "").partition("\nDetails:\n")
        assert marker and details.strip()
        assert essence.partition("\n")[2].strip() in PAGE.read_text(encoding="utf-8")
        assert details.strip() not in PAGE.read_text(encoding="utf-8")


def test_a_page_without_its_markers_is_refused() -> None:
    renewed = updated(f"before {BEGIN}outdated{END} after")
    assert renewed.startswith(f"before {BEGIN}") and renewed.endswith(f"{END} after") and "outdated" not in renewed
    with pytest.raises(ValueError, match="the document holds no"):
        updated(f"{BEGIN} never closed")
