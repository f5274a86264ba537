"""Formats figures: every number and word that a report prints comes from here, and the look of each status.

Errors are rounded up, never down. A printed maximum is at least the measured one, so 0.50004 is not printed as 0.5, and
4.00001 is not printed as the limit 4. A share is 0% only for none, and 100% only for all.

>>> [ulp(x) for x in (0.0, 0.5, 0.50004, 2.25, 254.9, 1234.0, 1.68e7, "nan")]
['0', '0.5', '0.501', '2.25', '254.9', '1,234', '1.7e+07', 'NaN']
"""

import functools
import json
import math
import shlex
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from verify.records.figure import BEYOND, COUNTABLE, rounded_up
from verify.records.figure import UNIT as UNIT
from verify.records.record import Basis, Number, RegimeFigures, Result, value_of

# Cc: control characters and ANSI escapes. Cf: bidirectional overrides and zero-width characters, which make names look
# alike. Cs, Zl, Zp: lone surrogates (not encodable) and line separators.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# By gate: the mark after a figure in a column, and the explanation of the mark in a legend.
MARK = {"plain": "", "scaled": " s", "noise": " n"}
LEGEND = {
    "scaled": "scaled error, in ULP of the magnitude of the summed terms; it is the one judged",
    "noise": "error beyond half a ULP, in units of the program's own rounding noise; it is the one judged",
}
OPEN = "at least: the errors of other elements are unknown; these are open and count as undecided"
LONG = 300  # a screen does not print a longer command, but names its element by its place in the record


def replay_in(record: str, kernel: str, place: Mapping[str, str]) -> str:
    """Returns the command that replays the worst element of one place of a record, such as one result and dtype.

    >>> replay_in("run.json", "gelu", {"result": "dx", "dtype": "bfloat16"})
    'verify replay gelu --run run.json --result dx --dtype bfloat16'
    """
    named = [word for name, value in place.items() for word in (f"--{name}", value)]
    return shlex.join(["verify", "replay", kernel, "--run", record, *named])


@functools.lru_cache(4096)
def clean(text: str) -> str:
    r"""Returns the text on one line. Invisible and control characters are spelled out as `\x1b`."""
    if text.isascii() and text.isprintable():  # nearly every text; a page cleans tens of thousands
        return text
    return "".join(map(_visible, text))


def clean_lines(text: str) -> list[str]:
    """Returns the lines of a message, each clean, without blank lines at either end."""
    lines = text.replace("\r\n", "\n").expandtabs(4).strip("\n").split("\n")
    return [clean(line.rstrip()) for line in lines]


@functools.lru_cache(4096)  # more characters than a page of any language has
def _visible(char: str) -> str:
    if unicodedata.category(char) not in _UNSAFE:
        return char
    if char in _NAMED:
        return _NAMED[char]
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def ulp(value: Number) -> str:
    """Returns a magnitude of error, rounded up: 0.5, 0.501, 2.25, 254.9, 1,234, 1.7e+07, inf, NaN.

    It has three significant digits below 10, one decimal below 1,000, and no decimals below 10,000. Larger values, and
    values below 0.001, have two digits with an exponent. A value that no format can count is >1.8e+19. A value below 1
    never becomes 1, because 1 divides faithful results from others: digits are added until it shows.
    """
    size = value_of(value)
    if math.isnan(size):
        return "NaN"
    sign = "-" if size < 0 else ""
    size = abs(size)
    if math.isinf(size):
        return sign + "inf"
    if size > COUNTABLE:
        return f"<-{BEYOND[1:]}" if sign else BEYOND
    if size == 0:
        return "0"
    digits = 4 if 100 <= size < 10_000 else 3
    rounded = rounded_up(size, digits)
    while size < 1 <= rounded:
        digits += 1
        rounded = rounded_up(size, digits)
    if rounded > 9_999 or size < 0.001:
        exact = Decimal(repr(rounded_up(size, 2)))  # what the double means: 5e-324, and not the 4.9e-324 that it is
        return f"{sign}{exact.scaleb(-exact.adjusted()):.1f}e{exact.adjusted():+03d}"
    return f"{sign}{rounded:,.0f}" if rounded >= 1000 else sign + repr(rounded).removesuffix(".0")


def signed_ulp(value: Number) -> str:
    """Returns a signed error: +254.9, -0.501, 0, inf, NaN."""
    text = ulp(value)
    return text if text[0] in "-<>" or text in ("0", "inf", "NaN") else "+" + text


def interval(low: Number, high: Number) -> str:
    """Returns a maximum and its upper end: the upper end alone if within 1%, else `0.81-0.97`.

    Returns `≤1.9e-09` if the lower end is less than a thousandth of the upper one. Returns `≥0.81` if there is no upper
    end, or if it is more than a format can count.
    """
    if math.isinf(value_of(high)) and math.isfinite(value_of(low)):
        return at_least(low)
    if value_of(high) <= 1.01 * value_of(low):
        return ulp(high)
    first, second = ulp(low), ulp(high)
    if 1000 * value_of(low) < value_of(high) < math.inf:
        return at_least(low) if second == BEYOND else "≤" + second
    return first if first == second else f"{first}\N{EN DASH}{second}"


def at_least(low: Number) -> str:
    """Returns a maximum beside open elements, whose errors are unknown: see `OPEN`."""
    text = ulp(low)
    return text if text == BEYOND else "≥" + text


def share(count: float, total: float) -> str:
    """Returns a count as a share: 0% only for none, 100% only for all."""
    if count == 0:
        return "0%"
    if count >= total:
        return "100%"
    percent = 100 * count / total
    if percent < 0.01:
        return "<0.01%"
    if percent > 99.9:
        return ">99.9%"
    return f"{percent:.1f}%" if percent >= 10 else f"{percent:.2g}%" if percent < 1 else f"{percent:.2f}%"


def plural(count: int, noun: str) -> str:
    """Returns for example 1 kernel, 2 kernels, 65,536 inputs."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(items: list[str]) -> str:
    """Joins items: a, b and c."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def basis_short(value: Basis) -> str:
    """Returns how much a maximum proves, for narrow tables: `all 2^16`, `seen 65,600 of 16,777,216`, `proven 4,096`."""
    word = {"exhaustive": "all", "observed": "seen", "certified": "proven"}[value.kind]
    exponent = value.n.bit_length() - 1
    of = (f" of {value.of:,}" if value.of else "") + value.ended
    return f"{word} 2^{exponent}{of}" if exponent >= 16 and value.n == 1 << exponent else f"{word} {value.n:,}{of}"


def basis_of(result: Result, *, short: bool = False) -> str:
    """Returns the basis of a result. A loss is one number for each call: `observed over 14 calls`, `seen 14 calls`."""
    text = basis_short(result.basis) if short else str(result.basis)
    if result.basis.kind != "observed" or not result.worst or result.worst[0].index:
        return text
    return f"{text} calls" if short else text.replace(" cases", " calls", 1)


def dtype_of(result: Result) -> str:
    """Returns `bfloat16`, or `bfloat16 to float32` if cases of one dtype give a result of another."""
    return clean(f"{result.dtype} to {result.format}" if result.format else result.dtype)


def decimal(value: Number) -> str:
    """Returns a plain number, such as the edge of a regime or a limit: -5.25, 1e-20, inf."""
    number = value_of(value)
    return f"{number:.6g}" if math.isfinite(number) else ulp(value)


def region(regime: RegimeFigures) -> str:
    """Returns the range of a regime, low end included: `-5 to 0`, `below -5`, `5 and above`."""
    if regime.low is None and regime.high is None:
        return ""
    low = -math.inf if regime.low is None else value_of(regime.low)
    high = math.inf if regime.high is None else value_of(regime.high)
    if low == -math.inf:
        return "everywhere" if high == math.inf else f"below {decimal(high)}"
    return f"{decimal(low)} and above" if high == math.inf else f"{decimal(low)} to {decimal(high)}"


def power(value: Number) -> str:
    """Returns an edge of the histogram, a power of two or zero: 0, 1/16, -2, 1024, 2^24."""
    number = value_of(value)
    size = abs(number)
    sign = "-" if number < 0 else ""
    if size == 0 or math.isinf(size):
        return f"{sign}inf" if size else "0"
    mantissa, exponent = math.frexp(size)
    if mantissa != 0.5:
        return sign + decimal(size)
    exponent -= 1
    if exponent < 0:
        return f"{sign}1/{1 << -exponent:,}"
    return f"{sign}{1 << exponent:,}" if exponent <= 13 else f"{sign}2^{exponent}"


def seconds(value: float) -> str:
    """Returns a duration: 0.31 s, 12.4 s, 3 min 20 s."""
    if not value < 60:
        return f"{int(value) // 60:,} min {int(value) % 60} s"
    return f"{value:.1f} s" if value >= 10 else f"{value:.2f} s"


def call(op: str, params: dict[str, Any]) -> str:
    """Returns an op with its parameters: `gelu(approximate=tanh)`."""
    inside = ", ".join(f"{clean(str(key))}={_plain(value)}" for key, value in params.items())
    return f"{clean(op)}({inside})" if inside else clean(op)


def flat(mapping: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Returns nested settings as lines of key and text: {"gpu": {"name": ...}} gives ("gpu name", ...)."""
    lines: list[tuple[str, str]] = []
    for key, value in mapping.items():
        name = f"{prefix} {clean(str(key))}".strip().replace("_", " ")
        if isinstance(value, dict):
            lines += flat(value, name) if value else [(name, "none")]
        else:
            lines.append((name, _plain(value)))
    return lines


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return clean(value) or "none"
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value)
    return clean(json.dumps(value))


def truth(text: str) -> str:
    """Returns an exact value as in the record. Shortens an exponent that no format holds: -2.774…·10^(-2.5e76)."""
    mantissa, sign, exponent = clean(text).partition("e")
    digits = exponent.lstrip("+-")
    if not sign or len(digits) < 12 or not digits.isdigit():
        return mantissa + sign + exponent
    side = "-" if exponent.startswith("-") else ""
    return f"{mantissa[:6]}…·10^({side}{digits[0]}.{digits[1]}e{len(digits) - 1})"


@dataclass(frozen=True)
class Look:
    """Holds the look of one status. Rows with the highest `rank` come first."""

    glyph: str
    ascii: str
    style: str
    word: str
    rank: int


LOOKS = {
    "ok": Look("✓", "+", "green", "ok", 1),
    "wrong": Look("✗", "x", "bold red", "wrong", 6),
    "error": Look("✗", "x", "bold red", "error", 3),
    "crashed": Look("✗", "x", "bold red", "crashed", 5),
    "timeout": Look("✗", "x", "bold red", "timed out", 4),
    "undecided": Look("?", "?", "yellow", "undecided", 2),
    "vacuous": Look("○", "o", "yellow", "vacuous", 2),
    "interrupted": Look("○", "o", "yellow", "interrupted", 2),
    "skipped": Look("○", "o", "yellow", "skipped", 2),
    "peer": Look("·", ".", "dim", "peer", 0),
}
GLYPHS = {status: look.glyph for status, look in LOOKS.items()}
STYLES = {status: look.style for status, look in LOOKS.items()}
STATUS_WORDS = {status: look.word for status, look in LOOKS.items()}
STANDING = {"pass": "ok", "fail": "wrong", "incomplete": "skipped"}  # maps a verdict to the status that looks like it
CALM = ("ok", "peer")  # statuses of rows that need no attention


ASCII = str.maketrans({"–": "..", "≥": ">=", "≤": "<=", "…": "...", "×": "x", "±": "+-"})
