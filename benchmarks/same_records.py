"""Whether two records hold the same figures, bits and texts: `python -m benchmarks.same_records BASE.json HEAD.json`.

For a change of verify itself, which must not change what it measures: the same command before and after it. Everything
is compared but the id, dates, durations, speeds, the command, and the commit that the environment names. Prints the
places that differ; exit 1 where there are any.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from verify.records.files import load
from verify.records.record import Run

OF_RUN = ("id", "created", "command", "seconds")
OF_ENVIRONMENT = ("commit", "dirty")
MOST = 40  # differences that are printed; all are counted
NAMES = ("name", "law", "output", "dtype", "source")  # which of them a member of a list has says which one it is


def comparable(run: Run) -> dict[str, Any]:
    """A record as plain values, without what no two runs share."""
    plain: dict[str, Any] = msgspec.to_builtins(run)
    for name in OF_RUN:
        plain.pop(name, None)
    plain["environment"] = {name: item for name, item in run.environment.items() if name not in OF_ENVIRONMENT}
    for part in (*plain["kernels"], *plain.get("stages", [])):
        part.pop("seconds", None)
        part.pop("peak", None)
        part.pop("speed", None)
    return plain


def differences(base: Any, head: Any, path: str = "") -> Iterator[str]:
    """A line for each place where two plain values differ.

    >>> list(differences({"a": [1, 2], "b": 0}, {"a": [1, 3]}))
    ['a[1]: 2, now 3', 'b: 0, now missing']
    """
    if isinstance(base, dict) and isinstance(head, dict):
        for name in sorted(base.keys() | head.keys()):
            inside = f"{path}.{name}" if path else name
            if name in base and name in head:
                yield from differences(base[name], head[name], inside)
            else:
                yield f"{inside}: {_shown(base.get(name, ...))}, now {_shown(head.get(name, ...))}"
    elif isinstance(base, list) and isinstance(head, list):
        if len(base) != len(head):
            yield f"{path}: {len(base)} entries, now {len(head)}"
        for at, pair in enumerate(zip(base, head, strict=False)):
            yield from differences(*pair, f"{path}[{_label(at, pair[0])}]")
    elif repr(base) != repr(head):  # -0.0 is not 0.0
        yield f"{path}: {_shown(base)}, now {_shown(head)}"


def _label(at: int, member: Any) -> str:
    found = [str(member[name]) for name in NAMES if name in member] if isinstance(member, dict) else []
    return f"{at}: {' '.join(found)}" if found else str(at)


def _shown(value: Any) -> str:
    if value is ...:
        return "missing"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base")
    parser.add_argument("head")
    options = parser.parse_args(arguments)
    base, head = load(options.base), load(options.head)
    found = list(differences(comparable(base), comparable(head)))
    for line in found[:MOST]:
        print(line)
    if len(found) > MOST:
        print(f"and {len(found) - MOST:,} more")
    results = sum(len(kernel.results) for kernel in base.kernels)
    print(f"{len(found):,} differences in {len(base.kernels):,} kernels, {results:,} results")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
