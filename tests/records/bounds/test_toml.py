"""The TOML that is written: read back by the standard library's reader, whatever the text."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify.errors import UsageError
from verify.records.bounds import toml

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63 - 1) | st.booleans()
VALUES = st.recursive(
    TEXT | NUMBERS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=6
)


@given(TEXT, VALUES)
def test_what_is_written_reads_back_as_the_same(name: str, value: object) -> None:
    text = toml.line(name, value)
    assert "\n" not in text
    found = tomllib.loads(text)
    assert found == {name: value}
    assert repr(found) == repr({name: value})  # 1 and 1.0 and True are not the same


def test_the_form_is_pinned() -> None:
    value = {"kernel": "my gelu", "n": 3, "value": 0.5, "list": [1, "a"], "odd key": True, "none": {}}
    assert toml.inline(value) == (
        '{ kernel = "my gelu", n = 3, value = 0.5, list = [1, "a"], "odd key" = true, none = {} }'
    )


def test_what_toml_cannot_hold_is_refused() -> None:
    with pytest.raises(UsageError, match=r"lone surrogate U\+D800"):
        toml.inline("\ud800")
    with pytest.raises(ValueError, match="Out of range float"):
        toml.inline(float("nan"))
    with pytest.raises(TypeError, match="NoneType"):
        toml.inline(None)
