"""Runs the cases of one kernel one after the other. A case that fails does not stop the others.

A kernel that raises refuses the case; a declaration with refuses=True allows that. A result in a wrong form, a process
that dies and a call that hangs are errors. After a crash or a hang, further cases with the same dims are not run. If
time runs out, the results so far remain.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from verify.cases import Case
from verify.declare.declaration import Kernel
from verify.errors import JudgeFailed, KernelError, Refused, RefusedBackward
from verify.measure.call import Measured
from verify.measure.digest import digests_of
from verify.measure.remote_call import Run
from verify.records.record import Origin, Result, Status, Unmeasured, Worst
from verify.truth import formats
from verify.truth.ulp import pattern_at
from verify.workers.fork_map import ran_out
from verify.workers.requests import Died, Late

Kind = Literal["refused", "contract", "crashed", "hung"]
_STATUS: dict[Kind, Status] = {"contract": "error", "crashed": "crashed", "hung": "timeout"}
_FATAL: tuple[Kind, ...] = ("crashed", "hung")
DIFFER = "two calls with the same input differ"
MOST_ENDED = 13  # a kernel may end this many processes
_WAITS = (1.0, 2.0, 4.0, None)  # seconds before a kernel without memory is called again


@dataclass
class _Failure:
    """Holds the cases that gave no result for one reason."""

    kind: Kind
    text: str
    cases: list[Case]
    backward: bool  # True: only the backward pass was refused, where autograd decides which gradients there are


@dataclass
class CaseRunner:
    """Calls one kernel case after case, and records why some gave no result.

    No case is tried after `until`, a time of `time.monotonic`, after calls took `seconds`, or once the kernel has ended
    MOST_ENDED processes. `judging` are seconds that judging may take beside the calls; 0: they share `seconds`.
    `refused` is called with a case that the kernel refuses, and may raise.
    """

    kernel: Kernel
    target: str
    run: Run
    until: float = math.inf
    seconds: float = math.inf
    judging: float = 0.0
    refused: Callable[[Case], None] = lambda case: None
    patient: bool = False  # True: a call for which memory ran out is repeated, as other processes may hold it
    _tried: dict[str, int] = field(default_factory=dict)  # number of cases by dtype
    _failures: dict[tuple[str, Kind, str], _Failure] = field(default_factory=dict)
    _deadly: dict[tuple[str, tuple[int, ...]], tuple[str, Kind, str]] = field(default_factory=dict)
    _with_gradients: set[str] = field(default_factory=set)  # dtypes of cases whose backward pass gave results
    _answered: set[str] = field(default_factory=set)  # dtypes of cases without an empty dimension that gave results
    late: int = 0  # number of cases that were not tried because time had ended
    _spent: float = 0.0  # seconds that the kernel's calls took
    _ended: int = 0  # calls that ended the kernel's process
    _count: int = 0  # calls that gave results
    _first: tuple[Case, dict[str, str]] | None = None  # the first of them, and the digests of its results

    def call(self, case: Case) -> Measured:
        """Returns the results of one call. Keeps a digest of the first ones."""
        try:
            measured = self._patiently(case)
        except (Died, Late):
            self._ended += 1
            raise
        self._count += 1
        if self._first is None:
            self._first = case, digests_of(measured.results)
        return measured

    def _patiently(self, case: Case) -> Measured:
        for wait in _WAITS if self.patient else ():
            try:
                return self.run(case)
            except KernelError as error:
                if wait is None or "out of memory" not in str(error):
                    raise
                time.sleep(wait)
        return self.run(case)

    @property
    def ended(self) -> bool:
        """True if no further case is tried."""
        ended = self._ended >= MOST_ENDED
        return ended or time.monotonic() >= self.until or self._spent >= self.seconds

    def measured(self, case: Case) -> tuple[Case, Measured] | None:
        """Returns a case with its results; None if it gave none.

        If only the backward pass is refused, the returned case has no upstream gradient, and the results are the
        outputs.
        """
        known = self._deadly.get((case.dtype, case.dims))
        if known is None and self.ended:
            self.late += self._ended < MOST_ENDED
            return None
        self._tried[case.dtype] = self._tried.get(case.dtype, 0) + 1
        if known is not None:
            self._failures[known].cases.append(case)
            return None
        try:
            results = self._timed(case)
            self._with_gradients |= {case.dtype} if case.upstream else set()
            return case, results
        except (KernelError, Died, Late) as error:
            kinds: dict[type, Kind] = {Refused: "refused", Died: "crashed", Late: "hung"}
            kind: Kind = next((kinds[each] for each in kinds if isinstance(error, each)), "contract")
            key = (case.dtype, kind, _reason(str(error)))
            backward = isinstance(error, RefusedBackward) and self.kernel.gradients == "auto"
            self._failures.setdefault(key, _Failure(kind, str(error), [], backward)).cases.append(case)
            if kind in _FATAL:
                self._deadly[case.dtype, case.dims] = key
            if backward:
                forward = msgspec.structs.replace(case, upstream="")
                with suppress(KernelError, Died, Late):
                    return forward, self._timed(forward)
            return None

    def _timed(self, case: Case) -> Measured:
        started = time.monotonic()
        try:
            results = self.call(case)
            self._answered |= set() if self._is_empty(case) else {case.dtype}
            return results
        except Refused:
            self.refused(case)
            raise
        finally:
            self._spent += time.monotonic() - started

    @property
    def judge_was_late(self) -> bool:
        """True if time left out cases, although the kernel's calls took less than their part of it."""
        return bool(self.late) and self._spent < (self.seconds if self.judging else self.seconds / 2)

    @property
    def too_late(self) -> str:
        """Returns a text such as `no time for 3 more cases within 600 s`."""
        seconds = self.seconds + (self.judging if self.judge_was_late else 0.0)
        return f"no time for {self.late:,} more cases within {seconds:g} s"

    @property
    def unmeasured(self) -> list[Unmeasured]:
        """Returns the cases without results as entries of the record."""
        made = []
        for (dtype, kind, _), failure in self._failures.items():
            by_size = sorted(failure.cases, key=lambda case: (math.prod(case.dims), case.dims))
            dims = list(dict.fromkeys(case.dims for case in by_size))
            origin = Origin.here(self.target, by_size[0].to_json(), result=self.kernel.outputs[0])
            made.append(Unmeasured(kind, dtype, dims, len(by_size), self._tried[dtype], failure.text, origin))
        return made

    def undeclared(self, measured: set[str]) -> list[str]:
        """Returns a line for each measured dtype with cases that the kernel refused and the declaration allows.

        A backward pass that raises in every case counts as a gradient that autograd does not give. A kernel may raise
        where a dimension is empty.
        """
        if self.kernel.refuses is not None or self.kernel.peer:
            return []
        found = dict[str, list[tuple[int, str]]]()
        for (dtype, kind, _), each in self._failures.items():
            cases = [case for case in each.cases if not self._is_empty(case)]
            if kind == "refused" and cases and dtype in (self._with_gradients if each.backward else measured):
                found.setdefault(dtype, []).append((len(cases), each.text))
        return [
            f"{dtype}: it refuses {sum(count for count, _ in some):,} of {self._tried[dtype]:,} cases, which "
            f"where= or refuses=True would declare: {some[0][1]}"
            for dtype, some in found.items()
        ]

    def _is_empty(self, case: Case) -> bool:
        """True if a dimension is 0. The dims of a kernel that is declared by examples are the place of one."""
        return not (self.kernel.op.geometry.examples or all(case.dims))

    def verdict(self, measured: set[str]) -> tuple[Status, str]:
        """Returns a kernel's status and message, as far as cases without results decide them.

        `measured` has the dtypes with results. Results of empty tensors alone are none.
        """
        for kind in ("contract", "crashed", "hung", "refused"):
            for (dtype, of, _), failure in self._failures.items():
                everything = dtype not in measured or dtype not in self._answered
                if of != kind or (kind == "refused" and self.kernel.refuses is not False and not everything):
                    continue
                status = _STATUS.get(kind, "error")
                return status, f"{dtype}: {failure.text}"
        if self.late and not self.judge_was_late and not measured:
            return "timeout", self.too_late
        return "ok", ""

    def difference(self, wrong: Sequence[Result], turn: Callable[[Case], AbstractContextManager[object]]) -> str:
        """Returns how two calls of a wrong kernel with the same input differ; empty if they agree.

        Repeats the worst inputs, then the first call, each input once, when it has its `turn` on the GPU.
        """
        first, before = ("", {}) if self._first is None else (self._first[0].to_json(), self._first[1])
        worst = dict[str, list[tuple[str, Worst]]]()  # by case
        for result in wrong:
            # the law of accuracy, not this check, repeats results of a mode of inference
            for each in result.worst[:1]:
                if each.origin.result:
                    worst.setdefault(each.origin.case, []).append((result.dtype, each))
        if wrong and first:
            worst.setdefault(first, [])

        def again(text: str) -> str:
            results = self._patiently(Case.from_json(text)).results
            for dtype, each in worst[text]:
                origin, found = each.origin, results[each.origin.result]
                fmt, pattern = formats.of(found.dtype), pattern_at(found, origin.index)
                alike = fmt.hex(pattern) == each.got_hex or (math.isnan(fmt.to_float(pattern)) and each.got == "nan")
                if not alike:
                    place = f"{origin.result} {dtype} at {list(each.index)}"
                    return f"{DIFFER}: {place} was {each.got_hex}, then {fmt.hex(pattern)}"
            later = digests_of(results) if text == first else before
            other = ", ".join(name for name in before if later.get(name) != before[name])
            calls = f"{self._count:,} call{'' if self._count == 1 else 's'}"
            return f"{DIFFER}: {other} of the first call, and after {calls}" if other else ""

        try:
            for text in worst:
                with turn(Case.from_json(text)):
                    differs = again(text)  # the results are freed before others have their turn
                if differs:
                    return differs
        except (KernelError, Died, Late, JudgeFailed, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not ran_out(error):
                raise
        return ""


def _reason(text: str) -> str:
    """Removes the digits from a message, but not from the place in the code.

    So the same refusal for two sizes counts as one.
    """
    head, _, place = text.rpartition(" (")
    return "".join(" " if each.isdigit() else each for each in head or text) + place
