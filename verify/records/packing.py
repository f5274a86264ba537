"""The lean form in which a record lies on disk: tables by column, what repeats written once.

A run holds thousands of rows of figures. As a list of objects each row would repeat every name, so lists of
objects become objects of lists, columns that hold one value become that value, and a table says how many rows it
has. Replay commands of a kernel differ only at their end: their beginnings stand once in the kernel's `commands`,
and long values that several of these hold once in its `values`; "@3" is entry 3. Upper ends and quantiles are left
out where they equal the maximum. A histogram between powers of two is its counts alone, the worst inputs of a curve
are one string of hex digits. The worst input of a regime is a place in the result's `worst`, or beyond its end in
`others`, which holds those that are not among the worst of all. Whatever still occurs twice (PyTorch's figures beside
each kernel of an op, regions, special inputs and their answers) stands once in `shared`; {"@": 3} is entry 3.

Nothing is lost: `unpack(pack(x)) == x` for what `record` writes, and what cannot be unpacked is refused with its path.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

TABLES = ("regimes", "worst", "others", "baseline_worst", "hardest", "special")
SHARING = (*TABLES, "curve", "histogram")  # of a result; the laws of a kernel too
_FIGURES = ("figures", "baseline")
_NULL = ("low", "high", "scaled_ulp")  # fields that say null; elsewhere a null stands for a field left out
_NONE = "-"  # a figure that there is not, although the one that it would equal is there
FIRST, HIGHEST = -4, 2.0**64  # of a histogram: the smallest edge is 2^FIRST, nothing beyond HIGHEST but infinity
_SPLIT = " --result "
# left out where equal to the other, in the order in which they are put back
_EQUAL = (
    ("max_upper", "max_ulp"),
    ("scaled_upper", "scaled_max"),
    ("p999", "max_upper"),
    ("scaled_p999", "scaled_upper"),
)
_COMMAND = re.compile(r"#(\d+)(.*)", re.DOTALL)
_LONG = re.compile(r'"([0-9a-f]{64,})"')  # the values of an operand in a case
_PLACE = re.compile(r'"@(\d+)"')
MOST_ROWS = 100_000  # of a table: a few digits in a hostile file must not fill the memory
MOST_TEXT = 1 << 26  # characters of a kernel's commands, for the same reason
REFERENCE = "@"
SHORT = 60  # characters; what is no longer than this is repeated
DEPTH = 5  # nesting down to which every field has a line of its own


class PackingError(ValueError):
    """A packed record that cannot be unpacked; the message holds the path."""


def pack(run: dict[str, Any]) -> dict[str, Any]:
    """The lean form of a record (plain objects, defaults left out)."""
    kernels, shared = _shared([_pack_kernel(kernel) for kernel in run["kernels"]])
    return {**run, "kernels": kernels} | ({"shared": shared} if shared else {})


def unpack(run: Any) -> Any:
    """The plain form again. Whatever is not a packed table is left for the schema to judge."""
    if not isinstance(run, dict) or not isinstance(run.get("kernels"), list):
        return run
    plain = dict(run)
    shared = plain.pop("shared", [])
    if not isinstance(shared, list):
        raise PackingError("Expected a list - at `$.shared`")
    kernels = [_unpack_kernel(item, shared, f"$.kernels[{at}]") for at, item in enumerate(run["kernels"])]
    return {**plain, "kernels": kernels}


def dumps(packed: dict[str, Any]) -> bytes:
    """Canonical text: sorted keys, a line per field, deeper values on one line."""
    return (_text(packed, 0) + "\n").encode()


def _text(value: Any, depth: int) -> str:
    if depth >= DEPTH or not isinstance(value, dict | list) or not value:
        return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
        return _text(value, DEPTH)
    pad = " " * (depth + 1)
    if isinstance(value, dict):
        lines = [f"{pad}{json.dumps(key, ensure_ascii=False)}: {_text(value[key], depth + 1)}" for key in sorted(value)]
        opening, closing = "{", "}"
    else:
        lines = [f"{pad}{_text(item, depth + 1)}" for item in value]
        opening, closing = "[", "]"
    return opening + "\n" + ",\n".join(lines) + "\n" + " " * depth + closing


# -- kernels -------------------------------------------------------------------------------------------


def _pack_kernel(kernel: dict[str, Any]) -> dict[str, Any]:
    commands: dict[str, int] = {}

    def shorten(command: str) -> str:
        start, split, rest = command.partition(_SPLIT)
        return f"#{commands.setdefault(start, len(commands))}{split}{rest}"

    packed = {**kernel, "results": [_pack_result(result, shorten) for result in kernel["results"]]}
    if laws := packed.get("laws"):
        packed["laws"] = _columns(laws)
    shortened, values = _spelled(list(commands))
    return packed | ({"commands": shortened} if commands else {}) | ({"values": values} if values else {})


def _spelled(commands: list[str]) -> tuple[list[str], list[str]]:
    """The commands with places for the long values that occur in several of them, and these values."""
    found = Counter(text for command in commands for text in _LONG.findall(command))
    values = [text for text, count in found.items() if count > 1]
    if any('"@' in command for command in commands):  # which would be taken for a place
        return commands, []
    places = {text: place for place, text in enumerate(values)}

    def put(match: re.Match[str]) -> str:
        return f'"@{places[match[1]]}"' if match[1] in places else match[0]

    return [_LONG.sub(put, command) for command in commands], values


def _pack_result(result: dict[str, Any], shorten: Callable[[str], str]) -> dict[str, Any]:
    packed = _refer(result)
    for name in ("figures", "baseline"):
        if name in packed:
            packed[name] = _lean(packed[name])
    for name in TABLES:
        if rows := packed.get(name):
            packed[name] = _columns([_pack_row(row, shorten) for row in rows])
    if (found := packed["histogram"])["edges"] == octaves(len(found["counts"])):
        packed["histogram"] = found["counts"]
    if "curve" in packed:
        hexes = [text.removeprefix("0x") or "-" for text in packed["curve"]["worst"]]
        packed["curve"] = packed["curve"] | {"worst": " ".join(hexes)}
    return packed


def _refer(result: dict[str, Any]) -> dict[str, Any]:
    """A result whose regimes name their worst elements by place: in `worst`, or beyond its end in `others`."""
    known = {_key(row): place for place, row in reversed(list(enumerate(result["worst"])))}
    others: list[dict[str, Any]] = []
    regimes = []
    for regime in result["regimes"]:
        if (worst := regime.get("worst")) is not None:
            place = known.setdefault(_key(worst), len(result["worst"]) + len(others))
            if place == len(result["worst"]) + len(others):
                others.append(worst)
            regime = {**regime, "worst": place}
        regimes.append(regime)
    return {**result, "regimes": regimes} | ({"others": others} if others else {})


def _pack_row(row: dict[str, Any], shorten: Callable[[str], str]) -> dict[str, Any]:
    packed: dict[str, Any] = {name: _lean(value) if name in _FIGURES else value for name, value in row.items()}
    if command := packed.get("replay"):
        packed["replay"] = shorten(command)
    return packed


def _unpack_kernel(kernel: Any, shared: list[Any], path: str) -> Any:
    if not isinstance(kernel, dict) or not isinstance(kernel.get("results"), list):
        return kernel
    plain = _within(kernel, lambda value, where: _whole(value, shared, where), path)
    commands = plain.pop("commands", [])
    if not isinstance(commands, list) or not all(isinstance(item, str) for item in commands):
        raise PackingError(f"Expected a list of commands - at `{path}.commands`")
    commands = _spelt_out(commands, plain.pop("values", []), path)
    if isinstance(laws := plain.get("laws"), dict):
        plain["laws"] = _table(laws, f"{path}.laws")
    plain["results"] = [
        _unpack_result(result, commands, f"{path}.results[{at}]") for at, result in enumerate(plain["results"])
    ]
    return plain


def _spelt_out(commands: list[str], values: Any, path: str) -> list[str]:
    """The commands with their long values in place."""
    if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
        raise PackingError(f"Expected a list of values - at `{path}.values`")
    if not values:
        return commands
    room = MOST_TEXT

    def put(match: re.Match[str]) -> str:
        nonlocal room
        if len(match[1]) > 9 or int(match[1]) >= len(values):
            raise PackingError(f"Expected the place of a value, got {match[0]} - at `{path}.commands`")
        value = values[int(match[1])]
        room -= len(value)
        if room < 0:
            raise PackingError(f"Expected commands of at most {MOST_TEXT:,} characters - at `{path}.commands`")
        return f'"{value}"'

    return [_PLACE.sub(put, command) for command in commands]


def _unpack_result(result: Any, commands: list[str], path: str) -> Any:
    if not isinstance(result, dict):
        return result
    plain = {name: _full(value) if name in _FIGURES else value for name, value in result.items()}
    for name in TABLES:
        table = plain.get(name)
        if isinstance(table, dict):
            rows = _table(table, f"{path}.{name}")
            for row in rows:
                for nested in _FIGURES:
                    if nested in row:
                        row[nested] = _full(row[nested])
                if row.get("replay"):
                    row["replay"] = _lengthened(row["replay"], commands, f"{path}.{name}")
            plain[name] = rows
    others = plain.pop("others", [])
    if "regimes" in plain:
        plain["regimes"] = _resolved(plain["regimes"], plain.get("worst"), others, path)
    counts, curve = plain.get("histogram"), plain.get("curve")
    if isinstance(counts, list):
        plain["histogram"] = {"edges": octaves(len(counts)), "counts": counts}
    if isinstance(curve, dict) and isinstance(curve.get("worst"), str):
        plain["curve"] = curve | {"worst": ["" if text == "-" else f"0x{text}" for text in curve["worst"].split()]}
    return plain


def _resolved(regimes: Any, worst: Any, others: Any, path: str) -> Any:
    """Regimes with their worst elements in the place of references to them."""
    if not isinstance(others, list):
        raise PackingError(f"Expected a table - at `{path}.others`")
    if not isinstance(regimes, list):
        return regimes
    rows = [*(worst if isinstance(worst, list) else []), *others]
    found = []
    for at, regime in enumerate(regimes):
        if isinstance(regime, dict) and isinstance(place := regime.get("worst"), int):
            if isinstance(place, bool) or not 0 <= place < len(rows):
                raise PackingError(f"Expected the place of an element, got {place!r} - at `{path}.regimes[{at}].worst`")
            regime = {**regime, "worst": rows[place]}
        found.append(regime)
    return found


def _lengthened(command: Any, commands: list[str], path: str) -> str:
    found = _COMMAND.fullmatch(command) if isinstance(command, str) else None
    if found is None or int(found[1]) >= len(commands):
        raise PackingError(f"Expected a command of the kernel's list, got {command!r} - at `{path}.replay`")
    return commands[int(found[1])] + found[2]


def octaves(bins: int) -> list[Any]:
    """The edges of a histogram of so many bins, half of them on each side of 0: 0, 2^-4, 2^-3, ..., at most inf."""
    positive = [0.0, *(math.ldexp(1.0, FIRST + place) for place in range(bins // 2))]
    outer: list[Any] = ["inf" if edge > HIGHEST else edge for edge in positive]
    return [*("-inf" if edge == "inf" else -edge for edge in reversed(outer[1:])), *outer]


# -- what occurs twice ---------------------------------------------------------------------------------


def _shared(kernels: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[Any]]:
    """The kernels with references for what occurs twice, and what they refer to."""
    texts: Counter[bytes] = Counter()
    for value in _tables(kernels):
        _count(value, texts)
    places: dict[bytes, int] = {}
    shared: list[Any] = []

    def lean(value: Any) -> Any:
        if not isinstance(value, dict | list):
            return value
        text = _key(value)
        if texts[text] < 2:
            return {name: lean(item) for name, item in value.items()} if isinstance(value, dict) else value
        if text not in places:
            places[text] = len(shared)
            shared.append(value)
        return {REFERENCE: places[text]}

    return [_within(kernel, lambda value, _: lean(value)) for kernel in kernels], shared


def _within(kernel: dict[str, Any], change: Callable[[Any, str], Any], path: str = "") -> dict[str, Any]:
    """A kernel whose tables, curves and histograms are changed; the second argument says where they are."""

    def changed(owner: Any, names: tuple[str, ...], path: str) -> Any:
        if not isinstance(owner, dict):
            return owner
        return owner | {name: change(owner[name], f"{path}.{name}") for name in names if name in owner}

    results = [changed(item, SHARING, f"{path}.results[{at}]") for at, item in enumerate(kernel["results"])]
    found: dict[str, Any] = changed(kernel, ("laws",), path)
    return found | {"results": results}


def _tables(kernels: list[dict[str, Any]]) -> list[Any]:
    owners = [(result, name) for kernel in kernels for result in kernel["results"] for name in SHARING]
    owners += [(kernel, "laws") for kernel in kernels]
    return [owner[name] for owner, name in owners if name in owner]


def _count(value: Any, texts: Counter[bytes]) -> None:
    if isinstance(value, dict | list) and len(text := _key(value)) > SHORT:
        texts[text] += 1
        for item in value.values() if isinstance(value, dict) else ():
            _count(item, texts)


def _key(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")


def _whole(value: Any, shared: list[Any], path: str) -> Any:
    """A value with what it refers to in its place; what is referred to refers to nothing."""
    if not isinstance(value, dict):
        return value
    if value.keys() == {REFERENCE} and not isinstance(value[REFERENCE], str | list | dict):
        # text or a column of it are the values of an operand that is called so
        place = value[REFERENCE]
        if not isinstance(place, int) or isinstance(place, bool) or not 0 <= place < len(shared):
            raise PackingError(f"Expected the place of a shared entry, got {place!r} - at `{path}`")
        return shared[place]
    return {name: _whole(item, shared, f"{path}.{name}") for name, item in value.items()}


# -- tables --------------------------------------------------------------------------------------------


def _columns(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows as columns; null where a row has no such field."""
    table: dict[str, Any] = {"rows": len(rows)}
    for name in sorted({name for row in rows for name in row}):
        column: list[Any] = [row.get(name) for row in rows]
        if _nests(name, column):
            nested = _columns(column)
            if "rows" not in column[0]:  # an operand may be called so
                del nested["rows"]
            table[name] = nested
        elif not isinstance(column[0], list | tuple | dict) and len({repr(item) for item in column}) == 1:
            table[name] = column[0]
        else:
            table[name] = column
    return table


def _nests(name: str, column: list[Any]) -> bool:
    """Whether a column is itself a table of the same rows: figures, and inputs where all rows name the same ones."""
    if name in _FIGURES:
        return None not in column
    return name == "inputs" and all(item.keys() == column[0].keys() for item in column)


def _table(table: dict[str, Any], path: str) -> list[dict[str, Any]]:
    count = table.get("rows")
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MOST_ROWS:
        raise PackingError(f"Expected the number of rows, got {count!r} - at `{path}.rows`")
    return _rows({name: column for name, column in table.items() if name != "rows"}, count, path)


def _rows(table: dict[str, Any], count: int, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, column in table.items():
        if isinstance(column, dict):
            column = _rows(column, count, f"{path}.{name}")
        elif not isinstance(column, list):
            column = [column] * count
        if len(column) != count:
            raise PackingError(f"Expected {count} entries, got {len(column)} - at `{path}.{name}`")
        for row, item in zip(found, column, strict=True):
            if item is not None or name in _NULL:
                row[name] = item
    return found


def _lean(figures: dict[str, Any]) -> dict[str, Any]:
    lean = dict(figures)
    for equal, other in _EQUAL:
        if other in figures and equal not in figures:
            lean[equal] = _NONE
        elif equal in figures and other in figures and repr(figures[equal]) == repr(figures[other]):
            del lean[equal]
    return lean


def _full(figures: Any) -> Any:
    if not isinstance(figures, dict):
        return figures
    plain = dict(figures)
    for equal, other in _EQUAL:
        if plain.get(equal) == _NONE:
            del plain[equal]
        elif equal not in plain and other in plain:
            plain[equal] = plain[other]
    return plain
