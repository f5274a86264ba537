"""What was asked for and did not happen, a line for each reason: a night without time lacks hundreds of parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from verify.report.words import clean, listed

SKIPPED = " was skipped"
FEW = 3  # parts of one reason that have a line each; the same number is named where there are more


@dataclass(frozen=True)
class GapLine:
    """One line, and every part that it is about where it does not name them all."""

    text: str
    parts: list[str] = field(default_factory=list)


def gathered(lines: Iterable[str]) -> list[GapLine]:
    """Lines such as `gelu float16: not timed`, those of one reason together, in the order met.

    >>> [line.text for line in gathered(["a: late", "b: late", "c: late", "d: late", "e: lost"])]
    ['a, b, c and 1 more: late', 'e: lost']
    """
    reasons: dict[str, list[str]] = {}
    for line in map(clean, lines):
        name, _, reason = line.partition(": ")
        reasons.setdefault(reason or line, []).append(name)
    found = []
    for reason, names in reasons.items():
        if len(names) > FEW:
            if all(name.endswith(SKIPPED) for name in names):
                names, reason = [name.removesuffix(SKIPPED) for name in names], f"skipped: {reason}"
            shown = listed([", ".join(names[:FEW]), f"{len(names) - FEW:,} more"])
            found.append(GapLine(f"{shown}: {reason}", names))
        else:
            found += [GapLine(reason if name == reason else f"{name}: {reason}") for name in names]
    return found
