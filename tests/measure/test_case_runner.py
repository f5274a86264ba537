"""What one case of a kernel does not give never costs the others."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
import torch

import verify
from verify.cases import Case
from verify.errors import KernelError, Refused, RefusedBackward
from verify.measure.call import Measured
from verify.measure.case_runner import CaseRunner
from verify.workers.requests import Died, Late

RESULT = Measured({}, {}, {})


def kernel(**options: Any) -> verify.Kernel:
    return verify.kernel(op="softmax", dtypes=["float32"], name="k", **options)(torch.softmax)


def cases(*widths: int, upstream: str = "") -> list[Case]:
    return [Case(dtype="float32", dims=(4, width), fill="randn", upstream=upstream) for width in widths]


def tried(runner: CaseRunner, some: list[Case]) -> list[tuple[int, ...]]:
    """The dims of the cases that gave results."""
    return [made[0].dims for case in some if (made := runner.measured(case)) is not None]


def test_a_refusal_is_a_limit_and_one_for_all_sizes_of_one_reason() -> None:
    def run(case: Case) -> Measured:
        if case.dims[1] > 100:
            raise Refused(f"k raised ValueError: rows of at most 100, not {case.dims[1]} (k.py:3)")
        return RESULT

    runner = CaseRunner(kernel(), "k.py::k", run)
    assert tried(runner, cases(8, 200, 300, 64, 200)) == [(4, 8), (4, 64)]
    [found] = runner.unmeasured
    assert (found.kind, found.dims, found.cases, found.of) == ("refused", [(4, 200), (4, 300)], 3, 5)
    assert Case.from_json(found.origin.case).dims == (4, 200)
    assert runner.verdict({"float32"}) == ("ok", "")
    assert runner.verdict(set())[0] == "error", "nothing of the dtype was measured"
    assert runner.undeclared(set()) == [], "which is the kernel's status"
    [line] = runner.undeclared({"float32"})
    assert line.startswith("float32: it refuses 3 of 5 cases, which where= or refuses=True would declare: k raised Val")
    for declared in (kernel(refuses=True), kernel(peer=True)):
        allowed = CaseRunner(declared, "k.py::k", run)
        tried(allowed, cases(8, 200))
        assert (allowed.undeclared({"float32"}), allowed.verdict({"float32"})) == ([], ("ok", ""))
    strict = CaseRunner(kernel(refuses=False), "k.py::k", run)
    tried(strict, cases(8, 200))
    assert strict.verdict({"float32"})[0] == "error", "it promised to take every case"


def test_a_kernel_may_raise_where_a_dimension_is_empty() -> None:
    def run(case: Case) -> Measured:
        if case.dims[1] in (0, 200):
            raise Refused("k raised ZeroDivisionError: integer division or modulo by zero (k.py:3)")
        return RESULT

    alone = CaseRunner(kernel(refuses=True), "k.py::k", lambda case: run(case) if case.dims[1] else RESULT)
    assert tried(alone, cases(200, 0)) == [(4, 0)]
    assert alone.verdict({"float32"})[0] == "error", "nothing was seen but an empty tensor"
    runner = CaseRunner(kernel(), "k.py::k", run)
    assert tried(runner, cases(8, 0)) == [(4, 8)]
    assert runner.undeclared({"float32"}) == [] and runner.unmeasured[0].dims == [(4, 0)], "it is shown"
    tried(runner, cases(200))
    [line] = runner.undeclared({"float32"})
    assert line.startswith("float32: it refuses 1 of 3 cases")


@pytest.mark.parametrize(
    ("error", "status", "widths"),
    [
        (KernelError("k must return y of shape (4, 200)"), "error", (8, 200, 64)),
        (Late("no answer within 2 s; stopped"), "timeout", (200, 8, 200, 64)),
    ],
)
def test_what_is_no_refusal_ends_its_case_and_the_rest_is_measured(
    error: Exception, status: str, widths: tuple[int, ...]
) -> None:
    asked: list[int] = []

    def run(case: Case) -> Measured:
        asked.append(case.dims[1])
        if case.dims[1] == 200:
            raise error
        return RESULT

    runner = CaseRunner(kernel(), "k.py::k", run)
    assert tried(runner, cases(*widths)) == [(4, 8), (4, 64)]
    assert asked.count(200) == 1, "a hang is not tried again"
    assert runner.verdict({"float32"}) == (status, f"float32: {error}")


def test_a_process_that_dies_is_met_once() -> None:
    asked: list[tuple[int, ...]] = []

    def run(case: Case) -> Measured:
        asked.append(case.dims)
        if case.dims[1] >= 70:
            raise Died("the process died of SIGSEGV")
        return RESULT

    runner = CaseRunner(kernel(), "k.py::k", run)
    assert tried(runner, cases(1000, 1000, 8, 1000, 125)) == [(4, 8)]
    [found] = runner.unmeasured
    assert (found.kind, found.cases, found.dims) == ("crashed", 4, [(4, 125), (4, 1000)])
    assert asked.count((4, 1000)) == 1, "one of the same sizes would end a process again"
    assert runner.verdict({"float32"}) == ("crashed", "float32: the process died of SIGSEGV")


def test_where_only_the_backward_pass_is_refused_the_forward_is_kept() -> None:
    def run(case: Case) -> Measured:
        if case.upstream:
            raise RefusedBackward("k raised in backward: RuntimeError: no kernel image")
        return RESULT

    case, _ = CaseRunner(kernel(), "k", run).measured(cases(8, upstream="normal")[0]) or pytest.fail("nothing was kept")
    assert case.upstream == ""
    assert CaseRunner(kernel(gradients=True), "k", run).measured(cases(8, upstream="normal")[0]) is None


def test_when_time_or_processes_end_nothing_more_is_tried_and_the_count_is_said() -> None:
    def slow(case: Case) -> Measured:
        time.sleep(0.3)
        return RESULT

    runner = CaseRunner(kernel(), "k.py::k", slow, until=time.monotonic() + 0.2, seconds=0.5)
    assert tried(runner, cases(4, 8, 16)) == [(4, 4)]
    assert not runner.judge_was_late
    assert runner.verdict(set()) == ("timeout", "no time for 2 more cases within 0.5 s")


def test_time_of_its_own_counts_the_calls_of_a_kernel_alone() -> None:
    def slow(case: Case) -> Measured:
        time.sleep(0.3)
        return RESULT

    runner = CaseRunner(kernel(), "k.py::k", slow, until=math.inf, seconds=0.2, judging=5.0)
    assert tried(runner, cases(4, 8)) == [(4, 4)]
    assert not runner.judge_was_late and runner.verdict(set()) == ("timeout", "no time for 1 more cases within 0.2 s")
    runner = CaseRunner(kernel(), "k.py::k", slow, until=time.monotonic() + 0.2, seconds=0.5, judging=5.0)
    assert tried(runner, cases(4, 8)) == [(4, 4)]  # the calls took more than half of their time, and not all
    assert runner.judge_was_late and runner.too_late == "no time for 1 more cases within 5.5 s"


def test_a_kernel_whose_judge_spent_the_time_did_not_time_out() -> None:
    runner = CaseRunner(kernel(), "k.py::k", lambda case: RESULT, until=time.monotonic() - 1, seconds=10)
    assert tried(runner, cases(8, 16)) == []
    assert runner.judge_was_late and runner.too_late == "no time for 2 more cases within 10 s"
    assert runner.verdict(set()) == ("ok", "")
