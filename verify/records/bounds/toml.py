"""Writes and reads TOML. Equal values give equal bytes, so that a diff shows exactly what changed.

It writes strings, finite numbers, booleans, lists, and tables on one line. `tomli-w` is no alternative: it puts each
key of an inner table on a line of its own, and it does not escape invisible characters. It reads a file as a class of
msgspec, whose fields are the rules of its keys.

>>> inline({"kernel": "my gelu", "value": 0.5})
'{ kernel = "my gelu", value = 0.5 }'
"""

import json
import re
import shlex
import tomllib
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from verify.errors import UsageError

T = TypeVar("T")

LARGEST = 1e300  # of a number

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def line(name: str, value: Any) -> str:
    """Returns `name = value`, without the newline."""
    return f"{name if _BARE.fullmatch(name) else inline(name)} = {inline(value)}"


def lines(**values: Any) -> list[str]:
    """Returns such a line for each value."""
    return [line(name, value) for name, value in values.items()]


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


def read(data: bytes, source: str, kind: type[T]) -> T:
    """Reads a file as a class. Raises UsageError with the place, the rule and the value that breaks it."""
    return checked(document(data, source), source, kind)


def document(data: bytes, source: str) -> dict[str, Any]:
    """Returns the values of a file. Raises UsageError if it is not TOML."""
    try:
        return tomllib.loads(data.decode(), parse_float=_finite)
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        then = f"git diff HEAD -- {shlex.quote(source)}  (shows what changed it)"
        raise UsageError(f"{source} is not TOML: {error}", hint=then) from error


def checked(values: dict[str, Any], source: str, kind: type[T]) -> T:
    """Returns the values of a file as a class. Raises UsageError as `read` does."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{source}: {error}{_received(values, str(error))}") from error


def _finite(text: str) -> float:
    """Returns a number, which NaN and infinity are not."""
    value = float(text)
    if abs(value) <= LARGEST:
        return value
    raise ValueError(f"a number is finite, at most {LARGEST:g}; received {text}")


def _received(value: Any, error: str) -> str:
    """Returns the value at the place that an error names. The error of a missing or unknown key shows it itself."""
    _, _, place = error.rpartition(" - at `$")
    if not place or error.startswith("Object "):
        return ""
    for name, at in re.findall(r"\.(\w+)|\[(\d+)\]", place):
        value = value[name or int(at)]
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return "; received an enormous integer"
    return f"; received {text if len(text) <= 60 else text[:57] + '...'}"
