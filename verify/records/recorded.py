"""Finds elements of a run record for reports and `verify replay`: the worst one, or the one that a replay is about.

A `PinnedCase` is an entry of the corpus: a case that is kept with its outcome and the reason, for later replays.
"""

import hashlib
import json
import math
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import msgspec

from verify.errors import UsageError
from verify.records.figure import ordered, rank
from verify.records.readings import parts, worst_in
from verify.records.record import CLASSES, ClassFigures, Figures, Gate, KernelRun, Number, Result, Run, Worst, value_of


@dataclass(frozen=True)
class Judged:
    """Holds the figures of one implementation in the unit of its gate."""

    maximum: Number
    upper: Number
    p999: Number
    open: bool = False  # True: some elements are open, and the figures omit them


def judged(figures: Figures, gate: Gate) -> Judged:
    """Returns the figures in the unit of the gate if they exist, else the plain ones."""
    found = Judged(figures.max_ulp, figures.max_upper, figures.p999)
    if gate != "plain" and figures.scaled_max is not None:
        upper = figures.scaled_max if figures.scaled_upper is None else figures.scaled_upper
        found = Judged(figures.scaled_max, upper, figures.p999 if figures.scaled_p999 is None else figures.scaled_p999)
    endless = math.isfinite(value_of(found.maximum)) and math.isinf(value_of(found.upper))  # in older records
    return replace(found, upper=found.maximum, open=True) if endless or figures.open else found


def largest(figures: Figures | None, gate: Gate) -> float:
    """Returns the largest error that is judged, infinite for NaN; 0 if there are no figures."""
    return 0.0 if figures is None else rank(judged(figures, gate).upper)


def deciding(result: Result) -> ClassFigures | None:
    """Returns the most important class on which a result is wrong, or None."""
    return next((each for each in result.classes if each.reason and each.limit is not None), None)


def shown_worst(result: Result) -> Worst | None:
    """Returns the element that shows the error: the worst of the most important wrong class, else the worst of all."""
    of = deciding(result)
    return (of and of.worst) or next(iter(result.worst), None)


def badness(result: Result) -> tuple[int, int, float]:
    """Returns a sort key of results: the class of inputs, then NaN, infinity, the multiple of the limit there."""
    of = deciding(result)
    rank, figures = (0, result.figures) if of is None else (len(CLASSES) - CLASSES.index(of.name), of.figures)
    return rank, *size_of(figures, result.gate, result.limit)


def size_of(figures: Figures, gate: Gate, limit: float | None) -> tuple[int, float]:
    """Returns the sort key of errors in multiples of the limit."""
    return ordered(value_of(judged(figures, gate).upper) / (limit or 1.0))


def worst_of_run(
    run: Run, target: str = "", dtype: str = "", result: str = "", regime: str = "", index: int | None = None
) -> Worst:
    """Returns the element that shows the worst result, of a wrong one if there is one. The other arguments narrow the
    choice down.

    Each result takes part with the element that reports show, with the worst of `regime`, or with the listed elements
    at a flat index. Kernels that are only measured for comparison take part if `target` names them. An element whose
    origin names a law is shown by that law alone, and takes part if its result is wrong.
    """
    best: tuple[tuple[bool, tuple[float, ...]], Worst] | None = None
    whole = any(kernel.target == target for kernel in run.kernels)  # else a name, or another path to the file
    known = [
        item
        for kernel, item in _results(run)
        if (kernel.target == target if whole else kernel.name == _name(target) if target else not kernel.peer)
        and dtype in ("", item.dtype)
    ]
    exact = any(item.output == result for item in known)  # else "dx" is "dx (random dy)" too
    for item in known:
        if result and result != (item.output if exact else item.output.split(" ")[0]):
            continue
        chosen = [worst_in(item, regime)] if regime else [shown_worst(item)] if index is None else _listed(item)
        for worst in chosen:
            if worst is None or (worst.origin.law and (item.status != "wrong" or index is not None)):
                continue
            if index not in (None, worst.origin.index):
                continue
            figures = next((part.figures for part in parts(item) if part.name == regime), item.figures)
            key: tuple[float, ...] = size_of(figures, item.gate, item.limit) if regime else badness(item)
            rank = item.status == "wrong", key
            if best is None or rank > best[0]:
                best = rank, worst
    if best is None:
        at = "" if index is None else f"index {index}"
        asked = " ".join(word for word in (target, dtype, result, regime and repr(regime), at) if word)
        raise UsageError(
            f"the record {run.id} has no element{f' of {asked}' if asked else ''} with an error",
            hint="verify report RUN.json  (what the record holds)",
        )
    return best[1]


def is_found(run: Run, worst: Worst, target: str, **place: Any) -> bool:
    """True if `worst_of_run` with these arguments finds exactly this element, which a call of the kernel shows."""
    try:
        return not worst.origin.law and worst_of_run(run, target, **place) == worst
    except UsageError:
        return False


def find(run: Run, target: str, case: str, result: str, index: int) -> Worst | None:
    """Returns the recorded finding about exactly this element, or None."""

    def is_it(worst: Worst) -> bool:
        origin = worst.origin
        same = (origin.result, origin.index) == (result, index) and _name(origin.target) == _name(target)
        try:
            return same and bool(json.loads(origin.case) == json.loads(case))
        except ValueError:
            return False

    return next((worst for _, item in _results(run) for worst in _listed(item) if is_it(worst)), None)


def _results(run: Run) -> list[tuple[KernelRun, Result]]:
    return [(kernel, result) for kernel in run.kernels for result in kernel.results]


def _listed(item: Result) -> list[Worst]:
    """Returns the elements of a result that its record shows: the worst of all, those of its classes and regimes."""
    parts = [*(each.worst for each in item.classes), *(each.worst for each in item.regimes)]
    return [*item.worst, *(each for each in parts if each is not None)]


def _name(target: str) -> str:
    return target.rpartition("::")[2]


C = TypeVar("C")  # a `Case`; where torch is not imported, its JSON


class PinnedCase(msgspec.Struct, Generic[C], frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Holds one pinned case. Either `law` is set, or `result` and `index`."""

    schema: int
    kernel: str
    target: str  # FILE::KERNEL or MODULE::KERNEL, from the project's root
    op: str
    dtype: str
    case: C
    law: str = ""
    result: str = ""
    index: int | None = None
    error: Number | None = None  # when it was pinned, in ULP of the gate below; None for a law
    gate: str = ""  # "plain" or "scaled"
    showed: str = ""  # the kernel's value and the truth, or the law's message
    backend: str = ""
    commit: str = ""
    date: str = ""  # ISO 8601, UTC
    why: str = ""

    @property
    def id(self) -> str:
        """Returns 12 hex digits that identify the pinned case, without its outcome and its reason."""
        pinned = [self.kernel, self.op, self.dtype, self.case, self.law, self.result, self.index]
        # Sorted, because the order in which a case names its operands does not matter.
        return hashlib.sha256(msgspec.json.encode(pinned, order="sorted")).hexdigest()[:12]

    @property
    def about(self) -> str:
        """Names the law or the element that is pinned."""
        return f"law of {self.law}" if self.law else f"{self.result}[{self.index}]"


Entry = PinnedCase[dict[str, Any]]
