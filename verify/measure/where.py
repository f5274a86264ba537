"""Says in which cases of a run a result is wrong: from a size on, with some values, or in a layout.

    in 5 of 33 cases: g from 3 on, right up to 2

Each statement holds for all wrong cases, and leaves out so many right ones that it hardly holds by chance. If there is
none, the smallest wrong case is described.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from verify.cases import Case
from verify.ops.geometry import Geometry

_CHANCE = 0.01  # of a statement that holds for all wrong cases, if being wrong had nothing to do with it
_MOST, _FEW = 2, 2  # statements; wrong cases, of which one is described
_STEPS = (16, 32, 64, 128)

Tried = tuple[Case, Mapping[str, int]]  # a case with its sizes by name


def where(geometry: Geometry, cases: Sequence[Case], wrong: Sequence[bool]) -> str:
    """Returns the statement on the cases of a result; "" if none alone is wrong, or there is one case."""
    if not any(wrong) or len(cases) == 1:
        return ""
    tried: list[Tried] = [(case, geometry.sizes_by_name(case.dims)) for case in cases]
    bad = [each for each, is_wrong in zip(tried, wrong, strict=True) if is_wrong]
    count = f"in {f'{len(bad)} of' if len(bad) < len(tried) else 'all'} {len(tried)} cases"
    found = list[str]()
    while len(bad) > _FEW and len(found) < _MOST:
        text, left = min(_rules(bad, tried), key=lambda rule: len(rule[1]), default=("", tried))
        if (len(left) / len(tried)) ** len(bad) > _CHANCE:
            break
        found, tried = [*found, text], left
    if not found and len(bad) < len(cases):
        case, sizes = min(bad, key=lambda each: math.prod(each[0].dims))
        found = [*(f"{name} = {size:,}" for name, size in sizes.items()), *_kinds(case)]
        count += ": the smallest has" if len(bad) > 1 else ":"
        return f"{count} {', '.join(found)}"
    return ": ".join(filter(None, [count, ", ".join(found)]))


def _kinds(case: Case) -> list[str]:
    """Returns the values and the layout of a case."""
    return [f"values: {case.fill}" + (f" in {case.only}" if case.only else ""), *map(" ".join, case.layouts.items())]


def _rules(bad: Sequence[Tried], tried: Sequence[Tried]) -> Iterator[tuple[str, list[Tried]]]:
    """Yields statements that hold for all wrong cases, each with the cases that it holds for."""
    for name in bad[0][1]:
        own, every = ({sizes[name] for _, sizes in some} for some in (bad, tried))
        low, high = min(own), max(own)
        below, above = ({size for size in every if size < low}, {size for size in every if size > high})
        sized = {f"from {low:,} on, right up to {max(below):,}": every - below} if below else {}
        sized |= {f"up to {high:,}, right from {min(above):,} on": every - above} if above else {}
        sized |= {f"= {low:,}": own} if low == high else {}
        for step in _STEPS:
            whole = {size for size in every if size % step == 0}
            sized |= {f"a multiple of {step}": whole} if own <= whole else {}
            sized |= {f"no multiple of {step}": every - whole} if not own & whole else {}
        for text, fitting in sized.items():
            yield f"{name} {text}", [each for each in tried if each[1][name] in fitting]
    for kind in _kinds(bad[0][0]):
        if all(kind in _kinds(case) for case, _ in bad):
            yield kind, [each for each in tried if kind in _kinds(each[0])]
