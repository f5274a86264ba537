"""Finds elements of a run record for `verify replay`: the worst one, or the one that a replay is about."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass

from verify.errors import UsageError
from verify.records.readings import worst_in
from verify.records.record import KernelRun, Origin, Result, Run, Worst, value_of


@dataclass(frozen=True)
class Recorded:
    """Holds one element that a record names."""

    origin: Origin
    dtype: str
    backend: str
    worst: Worst


def worst_of_run(
    run: Run, target: str = "", dtype: str = "", result: str = "", regime: str = "", index: int | None = None
) -> Recorded:
    """Returns the element furthest beyond its limit, of a wrong result if there is one. The other arguments narrow the
    choice down.

    Each result takes part with its first listed element, which explains its verdict, with the worst of `regime`, or
    with the listed elements at a flat index. Kernels that are only measured for comparison take part if `target` names
    them.
    """
    best: tuple[tuple[bool, float], Recorded] | None = None
    for kernel, item in _results(run):
        wanted = kernel.name == _name(target) or kernel.target == target
        if (target and not wanted) or (not target and kernel.peer):
            continue
        if (dtype and item.dtype != dtype) or (result and result not in (item.output, item.output.split(" ")[0])):
            continue
        chosen = [worst_in(item, regime)] if regime else item.worst[:1] if index is None else _listed(item)
        for worst in chosen:
            if worst is None or worst.origin.law:  # a call of the kernel alone does not show it; its law does
                continue
            if index not in (None, worst.origin.index):
                continue
            beyond = _error(item, worst) / item.limit
            rank = item.status == "wrong", math.inf if math.isnan(beyond) else beyond
            if best is None or rank > best[0]:
                best = rank, _recorded(run, item, worst)
    if best is None:
        at = "" if index is None else f"index {index}"
        asked = " ".join(word for word in (target, dtype, result, regime and repr(regime), at) if word)
        raise UsageError(
            f"the record {run.id} has no element{f' of {asked}' if asked else ''} with an error",
            hint="verify report RUN.json  (what the record holds)",
        )
    return best[1]


def find(run: Run, target: str, case: str, result: str, index: int) -> Recorded | None:
    """Returns the recorded finding about exactly this element, or None."""
    for _, item in _results(run):
        for worst in _listed(item):
            origin = worst.origin
            same = (origin.result, origin.index) == (result, index) and _name(origin.target) == _name(target)
            if same and _same_case(origin.case, case):
                return _recorded(run, item, worst)
    return None


def _results(run: Run) -> Iterator[tuple[KernelRun, Result]]:
    for kernel in run.kernels:
        for result in kernel.results:
            yield kernel, result


def _listed(item: Result) -> list[Worst]:
    """Returns the elements of a result that its record shows: the worst of all, then that of each regime."""
    return [*item.worst, *(part.worst for part in item.regimes if part.worst is not None)]


def _error(item: Result, worst: Worst) -> float:
    error = worst.scaled_ulp if item.gate != "plain" and worst.scaled_ulp is not None else worst.ulp
    return abs(value_of(error))


def _recorded(run: Run, item: Result, worst: Worst) -> Recorded:
    return Recorded(worst.origin, dtype=item.dtype, backend=run.backend, worst=worst)


def _name(target: str) -> str:
    return target.rpartition("::")[2]


def _same_case(first: str, second: str) -> bool:
    try:
        return bool(json.loads(first) == json.loads(second))
    except ValueError:
        return False
