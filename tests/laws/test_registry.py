"""The registry: every law is there once, is found by name, and says what it is about."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import verify.laws
from verify.errors import UsageError
from verify.laws import registry


def test_every_law_of_every_module_is_registered_once() -> None:
    found = []
    for module in pkgutil.iter_modules(verify.laws.__path__):
        found += getattr(importlib.import_module(f"verify.laws.{module.name}"), "LAWS", ())
    assert sorted(law.name for law in found) == sorted(law.name for law in registry.ALL)
    assert len({law.name for law in registry.ALL}) == len(registry.ALL)
    for law in registry.ALL:
        assert law.summary and not law.summary.endswith(".") and 0 < law.share <= 1
        assert registry.get(law.name) is law


def test_an_unknown_law_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no law is named 'speed'; the laws are: determinism, accuracy, "):
        registry.get("speed")
