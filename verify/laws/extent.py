"""Says where a kernel is wrong: from which size on, and which results of the same call are right.

    wrong from s = 129 on, right up to 128, as far as tried

Halving finds the size of each dimension, the others being those of the case that broke. So only some sizes are tried.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from verify.cases import Case
from verify.errors import KernelError, TruthError, UsageError
from verify.laws.accuracy import broken_by
from verify.laws.law import Broken, Subject
from verify.measure.call import Measured, run_kernel

Breaks = Callable[[Case], Broken | None]
_LARGEST = 1 << 13  # sizes beyond are not halved: their calls and exact values are expensive


def extent(subject: Subject, broken: Broken, breaks: Breaks) -> dict[str, str]:
    """Returns facts about the case of a result beyond its limit. `breaks` tries another case."""
    if broken.excess is None or not broken.result:
        return {}
    facts, case = {}, broken.case
    if not case.values and not case.edits:
        found = [_first_wrong(subject, broken, place, breaks) for place in range(len(case.dims))]
        if any(found):
            facts["sizes"] = "; ".join(filter(None, found))
    if others := _right(subject, broken):
        facts["right"] = f"{', '.join(others)} of the same call"
    return facts


def _first_wrong(subject: Subject, broken: Broken, place: int, breaks: Breaks) -> str:
    """Returns the smallest wrong size of a dimension beside a right one; "" if every smaller size is wrong too."""
    kernel, case, size = subject.kernel, broken.case, broken.case.dims[place]
    names = kernel.op.geometry.dims
    if size < 3 or size > _LARGEST or kernel.op.geometry.examples or place >= len(names):
        return ""

    def sized(number: int) -> tuple[int, ...]:
        return (*case.dims[:place], number, *case.dims[place + 1 :])

    def wrong(number: int) -> bool:
        try:
            found = breaks(msgspec.structs.replace(case, dims=sized(number)))
        except (KernelError, TruthError, UsageError):
            return True  # neither right nor comparable
        return found is not None and found.result == broken.result

    sizes = [number for number in range(1, size + 1) if kernel.allows(sized(number))]
    low, high = 0, len(sizes) - 1
    if not sizes or wrong(sizes[low]):
        return ""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if wrong(sizes[middle]) else (middle, high)
    return f"wrong from {names[place]} = {sizes[high]:,} on, right up to {sizes[low]:,}, as far as tried"


def _right(subject: Subject, broken: Broken) -> list[str]:
    """Returns the other results of the call that are within the limit."""
    try:
        measured = run_kernel(subject.kernel, broken.case, subject.backend.device)
        alone = {name: Measured(measured.inputs, measured.upstream, {name: v}) for name, v in measured.results.items()}
        return [n for n, one in alone.items() if n != broken.result and broken_by(subject, broken.case, one) is None]
    except (KernelError, TruthError, UsageError):
        return []
