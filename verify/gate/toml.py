"""Canonical TOML: the same values give the same bytes, so that a diff shows what changed and nothing else.

Reading is the standard library's `tomllib`. Only what a bounds file needs can be written: strings, integers,
floats, booleans, lists, and tables on one line.

>>> inline({"kernel": "my gelu", "value": 0.5})
'{ kernel = "my gelu", value = 0.5 }'
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from verify.errors import UsageError

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SHORT = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}


def line(name: str, value: Any) -> str:
    """`name = value`, without the newline."""
    return f"{key(name)} = {inline(value)}"


def key(name: str) -> str:
    """A key, quoted where TOML wants it."""
    return name if _BARE.fullmatch(name) else text(name)


def inline(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        inside = ", ".join(line(name, item) for name, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(inline, value))}]"
    raise TypeError(f"TOML has no {type(value).__name__}")


def text(value: str) -> str:
    """A string in quotes; what is invisible is written as an escape, so that a reviewer sees it."""
    return '"' + "".join(map(_character, value)) + '"'


def _character(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    category = unicodedata.category(char)
    if category == "Cs":
        raise UsageError(f"a name is Unicode text; received a lone surrogate U+{ord(char):04X}, which no file can hold")
    # control and format characters, separators of lines, private and unassigned ones
    if category[0] == "C" or category in ("Zl", "Zp"):
        return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"
    return char


def _number(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"a bounds file holds finite numbers; received {value}")
    return repr(value)
