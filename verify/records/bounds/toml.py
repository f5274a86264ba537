"""Writes and reads TOML. Equal values give equal bytes, so that a diff shows exactly what changed.

It writes strings, finite numbers, booleans, lists, and tables on one line. `tomli-w` is no alternative: it puts each
key of an inner table on a line of its own, and it does not escape invisible characters.

>>> inline({"kernel": "my gelu", "value": 0.5})
'{ kernel = "my gelu", value = 0.5 }'
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from verify.errors import UsageError

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def line(name: str, value: Any) -> str:
    """Returns `name = value`, without the newline."""
    return f"{name if _BARE.fullmatch(name) else inline(name)} = {inline(value)}"


def inline(value: Any) -> str:
    """Returns a value on one line: a scalar as in JSON, with invisible characters escaped."""
    if isinstance(value, Mapping):
        inside = ", ".join(line(name, item) for name, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(inline, value))}]"
    if value is None:
        raise TypeError("TOML has no NoneType")
    return "".join(map(_visible, json.dumps(value, ensure_ascii=False, allow_nan=False)))


def _visible(char: str) -> str:
    if char.isprintable():
        return char
    if "\ud800" <= char <= "\udfff":
        raise UsageError(f"a name is Unicode text; received a lone surrogate U+{ord(char):04X}, which no file can hold")
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


# -- reading --------------------------------------------------------------------------------------------


def document(data: bytes, source: str) -> Table:
    """Reads the bytes of a file as a table. Errors call the file `source`."""
    try:
        return Table(source, "", tomllib.loads(data.decode()))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        then = f"git diff HEAD -- {shlex.quote(source)}  (shows what changed it)"
        raise UsageError(f"{source} is not TOML: {error}", hint=then) from error


_MISSING = object()


class Table:
    """Reads a table: takes and checks each key once. `done` raises UsageError if a key is left."""

    def __init__(self, source: str, where: str, values: dict[str, Any]) -> None:
        self.source, self.where = source, where
        self.left = dict(values)

    def fail(self, text: str) -> UsageError:
        """Returns an error with the file and the place in it."""
        where = f"{self.where}: " if self.where else ""
        return UsageError(f"{self.source}: {where}{text}")

    def take(self, name: str, rule: str, holds: Callable[[Any], bool], default: Any = _MISSING) -> Any:
        """Takes the value of a key. Raises UsageError with the rule if it is missing or breaks the rule."""
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
        """Takes a string, which matches the pattern if there is one."""

        def holds(value: Any) -> bool:
            return isinstance(value, str) and (empty or bool(value)) and (not pattern or bool(pattern.fullmatch(value)))

        found: str = self.take(name, rule, holds, default)
        return found

    def choice(self, name: str, allowed: tuple[str, ...], default: Any = _MISSING) -> str:
        """Takes one of the allowed strings."""
        rule = f"one of {', '.join(filter(None, allowed))}"
        found: str = self.take(name, rule, lambda v: isinstance(v, str) and v in allowed, default)
        return found

    def figure(self, name: str, *, least: float, default: Any = _MISSING) -> Any:
        """Takes a finite number of at least `least`."""

        def holds(value: Any) -> bool:
            return type(value) in (int, float) and abs(value) <= 1e300 and value >= least

        found = self.take(name, f"a finite number of at least {least:g}", holds, default)
        return found if found is default else float(found)

    def table(self, name: str) -> Table:
        """Takes an inner table."""
        where = f"{self.where}: {name}" if self.where else name
        return Table(self.source, where, self.take(name, "a table", lambda v: isinstance(v, dict)))

    def done(self) -> None:
        """Raises UsageError if the table has keys that were not taken."""
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
