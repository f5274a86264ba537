"""Does units of many kernels on many workers, such as the hunts of their results or their laws.

A unit that crashes, hangs or has no verdict costs itself alone. All units wait in one queue, the longest first, so that
no worker idles at the end. Among units of the same length, a worker stays with the kernel whose process it has. With
`until`, the units that have not begun share the time left. The record names the units that had no time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, TypeVar

from verify.declare.target import Declared
from verify.errors import SPENT
from verify.measure.source import KINDS, NoResult, Source, Work, crashes, gaps_of_laws
from verify.records.record import RESULT_STATUSES, Gap, GapKind, KernelRun, Status, unrepeatable

GIVEN_UP = 3  # a kernel may crash or hang this often; each time costs a new process or the whole time limit


@dataclass
class KernelUnits:
    """Holds one kernel and collects the outcomes of its units."""

    kernel: Declared
    notes: list[str] = field(default_factory=list)
    done: dict[str, KernelRun] = field(default_factory=dict)  # by the key of the unit
    not_done: str = "not begun: interrupted"  # why the last unit without an outcome has none


@dataclass(eq=False)
class Unit:
    """Holds one unit of a kernel, which waits or runs in a worker."""

    of: KernelUnits
    dtype: str
    name: str  # on the screen and in messages
    key: str  # in the part store
    share: float | None = None  # of the remaining time, in seconds

    @property
    def target(self) -> str:
        """Returns the target of the unit's kernel."""
        return self.of.kernel.target

    @property
    def length(self) -> tuple[int, bool]:
        """Returns a key. Units with the same one take about as long, on the same hardware."""
        return KINDS.index(self.of.kernel.kind), self.dtype == "float64"


U = TypeVar("U", bound=Unit)
R = TypeVar("R")


class Units(Source[U, R]):
    """Hands out each unit once, with its share of the remaining time."""

    gap: str  # text of the gap of a unit without a verdict

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.gaps: list[Gap] = []

    def enqueue(self, kernels: Sequence[KernelUnits], units: Sequence[U], workers: int) -> None:
        """Queues the units of these kernels for `workers` workers: the longest first, in the order of the kernels.

        float64 and the other dtypes alternate: float64 keeps a core busy, the others the GPU.
        """
        self.kernels, self.workers, self.places = kernels, workers, {each.key: at for at, each in enumerate(units)}
        longest = sorted(units, key=lambda each: each.length[0])
        exact, others = ([each for each in longest if each.length[1] == wide] for wide in (True, False))
        self.waiting = [each for pair in zip_longest(exact, others) for each in pair if each is not None]
        self.lengths = deque(each.length for each in self.waiting)

    def next(self, last: U | None) -> U | None:
        """Takes a unit of the length whose turn it is."""
        if not self.waiting:
            return None
        left, length = len(self.waiting), self.lengths.popleft()
        unit = self.take_nearest(last, lambda each: each.length == length)
        if self.work.until is not None:
            unit.share = (self.work.until - time.monotonic()) * self.workers / left
        return unit

    def settle(self, part: U) -> bool:
        """True if a unit needs no worker: an earlier start finished it, no time is left, or its kernel fails often."""
        known = self.known(part.key, KernelRun)
        failures = sum(each.status not in RESULT_STATUSES for each in part.of.done.values())
        if known is not None:
            part.of.done[part.key] = known
        elif failures >= GIVEN_UP:
            self.leave_out(part, "given up", f"not begun: it failed {GIVEN_UP} times")
        elif part.share is not None and part.share <= 0:
            self.leave_out(part, "out of time", f"not begun: {SPENT}")
        else:
            return False
        return True

    def failed(self, part: U, why: NoResult, seconds: float) -> None:
        """Records how the kernel failed. If it is not to blame, the unit has no verdict."""
        if why.kind is None:
            self.finish(part, seconds, why.status, message=f"{part.name}: {why.message}", **self.of_failure(part, why))
        else:
            self.leave_out(part, why.kind, why.message)

    def of_failure(self, part: U, why: NoResult) -> dict[str, Any]:
        """Returns further fields of the entry of a kernel that failed in a unit."""
        return {}

    def leave_out(self, part: U, kind: GapKind, reason: str) -> None:
        """Records a gap in the place of a unit's outcome."""
        part.of.not_done = reason
        self.gaps.append(Gap(kind, self.gap.format(part, reason), part.target))

    def finish(self, part: U, seconds: float, status: Status, **found: Any) -> None:
        """Records the outcome of a unit, and keeps it for later starts."""
        part.of.done[part.key] = done = part.of.kernel.run(status, seconds=round(seconds, 3), **found)
        self.keep(part.key, done)

    def record(self) -> tuple[list[KernelRun], list[Gap]]:
        """Returns one entry for each kernel with all its units, and the gaps. Errors of verify itself come first."""
        kernels = [self.entry(each) for each in self.kernels]
        own = sorted(self.gaps, key=lambda gap: (gap.kind != "harness error", gap.text))
        return kernels, [*crashes(kernels), *own, *(gap for kernel in kernels for gap in gaps_of_laws(kernel))]

    def entry(self, of: KernelUnits) -> KernelRun:
        """Combines all units of a kernel in one entry. The first one that failed decides the kernel's status."""
        done = [of.done[key] for key in sorted(of.done, key=self.places.__getitem__)]
        found = [each for each in done if each.results or each.laws]
        failed = next((each for each in done if each.status not in RESULT_STATUSES), None)
        results = [each.status for each in found if each.status in RESULT_STATUSES]
        laws = [law for each in done for law in each.laws]
        status: Status = max(results, key=RESULT_STATUSES.index, default="skipped")
        return of.kernel.run(
            failed.status if failed else status,
            failed.message if failed else "" if found else of.not_done,
            hint=failed.hint if failed else "",
            results=[result for each in done for result in each.results],
            laws=laws,
            unrepeatable=unrepeatable(laws),
            notes=[*of.notes, *(note for each in done for note in each.notes)],
            seconds=round(sum(each.seconds for each in done), 3),
        )
