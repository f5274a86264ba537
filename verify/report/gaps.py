"""Combines lines about requested work that did not happen. A night without time lacks hundreds of parts."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from verify.records.record import Run
from verify.report.words import clean, listed, plural

SKIPPED = " was skipped"
FEW = 3  # up to this number of parts of one reason have a line each; of more, this number is named


@dataclass(frozen=True)
class GapLine:
    """Holds one line. `parts` has every part that the line is about, if the line does not name them all."""

    text: str
    parts: list[str] = field(default_factory=list)


def gathered(lines: Iterable[str]) -> list[GapLine]:
    """Combines lines such as `gelu float16: not timed` that have the same reason, in the order of first occurrence.

    >>> [line.text for line in gathered(["a: late", "b: late", "c: late", "d: late", "e: lost"])]
    ['a, b, c and 1 more: late', 'e: lost']
    >>> [line.text for line in gathered(["a: no dx", "a: no dx"])]
    ['a: no dx']

    If the reasons of parts of many kinds end alike, they have one line too. For example, every law of every dtype is
    out of time once the budget is spent.

    >>> [line.text for line in gathered([f"{k}: the law of {law}: late" for k in "abcd" for law in "stuv"])]
    ['16 parts of a, b, c and 1 more (the law of s, the law of t, the law of u and 1 more): late']
    """
    reasons: dict[str, list[str]] = {}
    for line in dict.fromkeys(map(clean, lines)):  # dtypes of a kernel may say the same
        name, _, reason = line.partition(": ")
        reasons.setdefault(reason or line, []).append(name)
    ends: dict[str, list[str]] = {}  # the last clause -> the reasons that end with it
    for reason, names in reasons.items():
        if (end := reason.partition(": ")[2]) and not names[0].endswith(SKIPPED):
            ends.setdefault(end, []).append(reason)
    found, told = [], set[str]()
    for reason, names in reasons.items():
        end = reason.partition(": ")[2]
        if len(alike := ends.get(end, [])) > FEW and reason in alike:
            if end not in told:
                told.add(end)
                found.append(_together(end, {one.removesuffix(f": {end}"): reasons[one] for one in alike}))
        elif len(names) > FEW:
            if all(name.endswith(SKIPPED) for name in names):
                names, reason = [name.removesuffix(SKIPPED) for name in names], f"skipped: {reason}"
            found.append(GapLine(f"{_first(names)}: {reason}", names))
        else:
            found += [GapLine(reason if name == reason else f"{name}: {reason}") for name in names]
    return found


def refusals(run: Run) -> list[str]:
    """Returns the clause about cases on which kernels raised although their declarations allow them, if any."""
    targets = {gap.target for gap in run.incomplete if gap.kind == "refused"}
    found = [kernel for kernel in run.kernels if kernel.target in targets]
    refused = [(kernel.target, each) for kernel in found for each in kernel.unmeasured if each.kind == "refused"]
    tried = {(target, each.dtype): each.of for target, each in refused}
    laws = [law for kernel in found for law in kernel.laws if law.undeclared]
    count = sum(each.cases for _, each in refused) + sum(law.refused for law in laws)
    total = plural(sum(tried.values()) + sum(law.refused + law.cases for law in laws), "case")
    return [f"{plural(len(targets), 'kernel')} refused {count:,} of {total} without a declaration"] if targets else []


def _together(end: str, kinds: dict[str, list[str]]) -> GapLine:
    parts = [f"{name}: {kind}" for kind, names in kinds.items() for name in names]
    owners = dict.fromkeys(name for names in kinds.values() for name in names)
    return GapLine(f"{len(parts):,} parts of {_first(list(owners))} ({_first(list(kinds))}): {end}", parts)


def _first(names: list[str]) -> str:
    """Returns for example `a, b, c and 4 more`."""
    if len(names) <= FEW:
        return listed(names)
    return listed([", ".join(names[:FEW]), f"{len(names) - FEW:,} more"])
