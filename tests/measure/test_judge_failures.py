"""A judge that dies, hangs or has no memory is a gap of the judge; a kernel that does so in its process is wrong."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import verify
from verify.backends import Interpreter
from verify.cases.plan import plan
from verify.errors import JudgeFailed
from verify.measure import kernel as running
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.records import files
from verify.records.record import Gap, KernelRun, Result, Run
from verify.workers.fork_map import ForkMap
from verify.workers.process import Worker

pytestmark = pytest.mark.usefixtures("warm")

CPU = Interpreter("cpu")
TARGETS = '''
import os, signal, sys, time
import torch, verify

F = torch.nn.functional
FORMAT = {"dtypes": ["float16"], "gradients": False, "op": "silu"}


def judge():
    """The process that judges: the parent of the one that forked this one."""
    with open(f"/proc/{os.getppid()}/stat") as stream:
        return int(stream.read().rpartition(")")[2].split()[1])


@verify.kernel(**FORMAT)
def judge_dies(x):
    os.kill(judge(), signal.SIGKILL)
    time.sleep(60)


@verify.kernel(**FORMAT)
def judge_hangs(x):
    os.kill(judge(), signal.SIGSTOP)
    return F.silu(x)


@verify.kernel(**FORMAT)
def dies(x):
    os.abort()


@verify.kernel(**FORMAT)
def hangs(x):
    time.sleep(3600)


@verify.kernel(**FORMAT)
def no_memory(x):
    raise MemoryError


@verify.kernel(**FORMAT)
def hangs_in_laws(x):
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "verify.laws.engine":
            time.sleep(600)
        frame = frame.f_back
    return good.function(x)


@verify.kernel(**FORMAT)
def imports(x):
    if not hasattr(F, "imported"):
        F.imported = time.sleep(3.5)
    return good.function(x)


@verify.kernel(**FORMAT)
def good(x):
    wide = x.double().clamp(min=-1e4)
    return (wide / (1 + torch.exp(-wide))).half()
'''
JUDGES, KERNELS = ("judge_dies", "judge_hangs"), ("dies", "hangs", "no_memory")


@pytest.fixture(scope="module", autouse=True)
def begun(warm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Starts the command on all of these kernels, and a good one after them. It waits for 10 s while others run."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "faults.py").write_text(TARGETS)
    targets = [f"faults.py::{name}" for name in (*JUDGES, *KERNELS, "good")]
    command = (sys.executable, "-m", "verify", "run", *targets, "--backend", "interpreter", "--json", "r.json")
    options = ("--timeout", "4", "--jobs", "1", "--markdown", "r.md", "--html", "r.html")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, *options], cwd=folder, **pipes, text=True) as process:
        yield process, folder
        process.kill()


def test_laws_that_do_not_end_are_a_gap_beside_the_figures(tmp_path: Path) -> None:
    """Kernel and judge share the process then: which of them was late is not known."""
    (tmp_path / "faults.py").write_text(TARGETS)
    with Worker("interpreter") as worker:
        asked = Measure(f"{tmp_path}/faults.py::hangs_in_laws", laws="quick", seconds=5.0)
        found = worker.ask(asked, timeout=60)
    assert (found.status, [result.status for result in found.results], found.laws) == ("ok", ["ok"], [])
    [gap] = found.gaps
    assert gap.kind == "judge failed"
    assert gap.text.startswith("hangs_in_laws: the laws have no verdict: no answer within ")


def test_the_first_call_of_a_process_may_import(tmp_path: Path) -> None:
    """It takes longer than a quarter of the time, after which other calls count as hung."""
    (tmp_path / "faults.py").write_text(TARGETS)
    with Worker("interpreter") as worker:
        found = worker.ask(Measure(f"{tmp_path}/faults.py::imports", seconds=12.0), timeout=60)
    assert [result.status for result in found.results] == ["ok"] and not found.gaps


# -- forks that judge, and one process alone ----------------------------------------------------------------


@pytest.fixture(scope="module")
def rows() -> Iterator[verify.Kernel]:
    def few(*given: Any, **options: Any) -> list[Any]:
        return [replace(group, cases=group.cases[:4]) for group in plan(*given, **options)]

    @verify.kernel(op="rms_norm", dtypes=["bfloat16"], gradients=False, max_ulp=0.6)
    def rows(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
        wide = x.double()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.double()).bfloat16()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "plan", few)
        yield rows


@pytest.fixture(scope="module")
def whole(rows: verify.Kernel) -> list[Result]:
    """The results when every case has a verdict."""
    return _measured(rows, 1).results


def _measured(kernel: verify.Kernel, judges: int, run: Any = None, seconds: float = 600.0) -> KernelRun:
    return measure_kernel(kernel, Measure("accuracy.py::rows", judges=judges, seconds=seconds), CPU, run=run)


class LateForks(ForkMap[Any, Any]):
    """Ends the time of forks when one is left: the one that hangs. Waits for no clock."""

    def __init__(self, *given: Any, until: float, **options: Any) -> None:
        assert time.monotonic() < until < time.monotonic() + 600
        super().__init__(*given, until=until, **options)

    def _settle(self, running: int) -> None:
        if running == 0:
            super()._settle(1)
            self.until = time.monotonic()
        super()._settle(running)


def _hang() -> None:
    time.sleep(600)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _no_memory() -> None:
    raise MemoryError


@pytest.mark.parametrize(
    ("fails", "reason", "judges"),
    [
        (_hang, "ran out of time", 2),
        (_die, "died of SIGKILL", 2),
        (_no_memory, "ran out of memory", 2),
        (_no_memory, "ran out of memory", 1),
    ],
)
def test_a_case_that_is_not_judged_is_a_gap_and_the_others_have_a_verdict(
    monkeypatch: pytest.MonkeyPatch,
    rows: verify.Kernel,
    whole: list[Result],
    fails: Callable[[], None],
    reason: str,
    judges: int,
) -> None:
    first, judge_case = [], running.judge_case

    def faulty(kernel: Any, group: Any, question: Any, *rest: Any) -> Any:
        if question.case == first[0]:
            fails()
        return judge_case(kernel, group, question, *rest)

    def run(case: Any) -> Any:
        first.append(case)
        return running.run_judged(rows, case, "cpu")

    monkeypatch.setattr(running, "judge_case", faulty)
    if fails is _hang:
        monkeypatch.setattr(running, "ForkMap", LateForks)
    found = _measured(rows, judges, run=run)
    assert found.status == "ok"
    text = f"bfloat16: the judge {reason}: 1 of {len(first)} cases have no verdict"
    assert found.gaps == [Gap("judge failed", f"rows: {text}", "accuracy.py::rows")]
    assert text in found.notes
    assert 0 < sum(result.basis.n for result in found.results) < sum(result.basis.n for result in whole)
    # fewer cases are another property: no bound passes them
    assert {result.properties for result in found.results} - {result.properties for result in whole}


def test_where_nothing_is_judged_the_kernel_is_skipped(monkeypatch: pytest.MonkeyPatch, rows: verify.Kernel) -> None:
    def faulty(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(running, "judge_case", faulty)
    found = _measured(rows, 1)
    assert (found.status, found.results) == ("skipped", [])
    assert found.message.startswith("bfloat16: the judge ran out of memory: ")


@pytest.mark.parametrize("error", [MemoryError(), JudgeFailed("the judge ran out of memory")])
def test_no_memory_around_a_call_is_the_judges(rows: verify.Kernel, error: Exception) -> None:
    calls = []

    def run(case: Any) -> Any:
        calls.append(case)
        if len(calls) == 1:
            raise error
        return running.run_judged(rows, case, "cpu")

    found = _measured(rows, 1, run=run)
    assert found.status == "ok"
    assert [gap.kind for gap in found.gaps] == ["judge failed"]


# -- the command ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ran(begun: tuple[subprocess.Popen[str], Path]) -> tuple[str, Run, Path]:
    """Returns what the command prints, its record and its folder."""
    process, folder = begun
    printed, errors = process.communicate()
    assert process.returncode == 1 and "Traceback" not in errors
    return printed, files.load(folder / "r.json"), folder


def test_a_judge_that_dies_or_hangs_is_no_fault_of_its_kernel(ran: tuple[str, Run, Path]) -> None:
    printed, run, folder = ran
    kernels = {kernel.name: kernel for kernel in run.kernels}
    assert {name: kernels[name].status for name in (*JUDGES, "good")} == {
        "judge_dies": "skipped",
        "judge_hangs": "skipped",
        "good": "ok",
    }
    assert kernels["judge_dies"].message == "the judge died: the process died of SIGKILL (out of memory?)"
    assert kernels["judge_hangs"].message == "the judge ran out of time: no result within 8 s; stopped"
    gaps = [gap for gap in run.incomplete if gap.kind == "judge failed"]
    assert [gap.target for gap in gaps] == [f"faults.py::{name}" for name in JUDGES]
    sentence = "the judge failed at 2 parts of the run"
    for shown in (" ".join(printed.split()), (folder / "r.md").read_text(), (folder / "r.html").read_text()):
        assert sentence in shown
    alone = [kernel for kernel in run.kernels if kernel.name in (*JUDGES, "good")]
    assert msgspec.structs.replace(run, kernels=alone, incomplete=gaps).verdict == "incomplete"


def test_a_kernel_that_dies_hangs_or_has_no_memory_is_at_fault(ran: tuple[str, Run, Path]) -> None:
    printed, run, _ = ran
    # on a loaded machine a part of the second has passed when the call begins
    found = {
        each.name: (each.status, re.sub(r"within [012](\.\d+)? s", "within T s", each.message)) for each in run.kernels
    }
    assert {name: found[name] for name in KERNELS} == {
        "dies": ("crashed", "float16: the process died of SIGABRT"),
        "hangs": ("timeout", "float16: no answer within T s; stopped"),
        "no_memory": ("error", "float16: no_memory raised MemoryError: no message (faults.py:39)"),
    }
    assert {gap.kind for gap in run.incomplete} == {"crashed", "timeout", "judge failed"}
    [hanging] = [kernel for kernel in run.kernels if kernel.name == "hangs"]
    assert hanging.hint == "verify run faults.py::hangs --timeout 8"
    assert printed.count(hanging.hint) == 1 and "run faults.py::hangs\n" not in printed
    assert printed.count("verify run faults.py::no_memory") == 1
