"""Canonical TOML: the same values give the same bytes, so that a diff shows what changed and nothing else.

Only what a bounds file needs can be written: strings, integers, floats, booleans, lists, and tables on one line.
Reading is the standard library's `tomllib`; a `Table` of it lets no key pass that is not asked for.

>>> inline({"kernel": "my gelu", "value": 0.5})
'{ kernel = "my gelu", value = 0.5 }'
"""

from __future__ import annotations

import math
import re
import tomllib
import unicodedata
from collections.abc import Callable, Mapping, Sequence
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


# -- reading --------------------------------------------------------------------------------------------


def document(data: bytes, source: str) -> Table:
    """The bytes of a file as a table; `source` is what errors call it."""
    try:
        return Table(source, "", tomllib.loads(data.decode()))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise UsageError(f"{source} is not TOML: {error}") from error


_MISSING = object()


class Table:
    """A table being read: every key is taken once and checked; what is left over is unknown."""

    def __init__(self, source: str, where: str, values: dict[str, Any]) -> None:
        self.source, self.where = source, where
        self.left = dict(values)

    def fail(self, text: str) -> UsageError:
        where = f"{self.where}: " if self.where else ""
        return UsageError(f"{self.source}: {where}{text}")

    def take(self, name: str, rule: str, holds: Callable[[Any], bool], default: Any = _MISSING) -> Any:
        if name not in self.left:
            if default is _MISSING:
                raise self.fail(f"{name} is missing; it is {rule}")
            return default
        value = self.left.pop(name)
        if not holds(value):
            raise self.fail(f"{name} is {rule}; received {_shown(value)}")
        return value

    def text(
        self,
        name: str,
        pattern: re.Pattern[str] | None = None,
        rule: str = "a string",
        *,
        empty: bool = False,
        default: Any = _MISSING,
    ) -> str:
        def holds(value: Any) -> bool:
            return isinstance(value, str) and (empty or bool(value)) and (not pattern or bool(pattern.fullmatch(value)))

        found: str = self.take(name, rule, holds, default)
        return found

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        found: str = self.take(name, f"one of {', '.join(allowed)}", lambda v: isinstance(v, str) and v in allowed)
        return found

    def figure(self, name: str, *, least: float) -> float:
        def holds(value: Any) -> bool:
            return type(value) in (int, float) and abs(value) <= 1e300 and value >= least

        return float(self.take(name, f"a finite number of at least {least:g}", holds))

    def table(self, name: str) -> Table:
        where = f"{self.where}: {name}" if self.where else name
        return Table(self.source, where, self.take(name, "a table", lambda v: isinstance(v, dict)))

    def done(self) -> None:
        if self.left:
            raise self.fail(f"unknown key {', '.join(map(repr, sorted(self.left)))}")


def is_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return "an enormous integer"
    return text if len(text) <= 60 else text[:57] + "..."
