"""Cases beyond the effort: some elements are judged, as all would be."""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import inspect
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests import warm
from verify import backends
from verify.backends import Backend
from verify.cases.plan import Group
from verify.declare.declaration import Kernel, kernel
from verify.measure import effort as effort_limits
from verify.measure import kernel as measuring
from verify.measure.call import run_judged
from verify.measure.effort import Effort, sampled, turn
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.ops.graph import sampled as sampling
from verify.ops.graph import slices
from verify.records.record import KernelRun, value_of
from verify.report.words import basis_short
from verify.workers.requests import Failure

TINY = Effort(work=2.0**18, whole=16, elements=64, drawn=2.0**18)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def _loss(x: Tensor, label: Tensor) -> Tensor:
    return functional.cross_entropy(x, label, reduction="none")


FUNCTIONS: dict[str, tuple[Callable[..., Tensor], dict[str, str], tuple[Any, ...]]] = {
    "gelu": (lambda x: functional.gelu(x), {}, ((24, 40),)),
    "gated": (lambda x, w: functional.silu(x) * w, {}, ((24, 40), (24, 40))),
    "softmax": (lambda x: functional.softmax(x, -1), {}, ((24, 40),)),
    "layer norm": (lambda x, w: functional.layer_norm(x, (40,), w), {}, ((24, 40), (40,))),
    "product": (lambda x, w: x @ w, {}, ((24, 32), (32, 20))),
    "linear, gelu": (lambda x, w, b: functional.gelu(functional.linear(x, w, b)), {}, ((24, 32), (20, 32), (20,))),
    "convolution": (lambda x, w: functional.conv2d(x, w, padding=1), {}, ((2, 3, 9, 9), (4, 3, 3, 3))),
    "pooling": (lambda x: functional.max_pool2d(x, 2), {}, ((2, 3, 12, 12),)),
    "running sum": (lambda x: x.cumsum(-1), {}, ((24, 40),)),
    "attention": (_attention, {}, ((2, 2, 16, 8),) * 3),
    "loss": (_loss, {"label": "0 <= label < 40"}, ((24, 40), (24,))),
    "mean": (lambda x: x.square().mean(), {}, ((24, 40),)),
    "argmax": (lambda x: x.argmax(-1), {}, ((24, 40),)),
}


@pytest.fixture(scope="module")
def backend() -> Backend:
    return backends.select()


@pytest.fixture(autouse=True)
def two_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    def some(*args: Any, **options: Any) -> list[Group]:
        [group] = plan(*args, **options)
        return [dataclasses.replace(group, cases=(group.cases[0], group.cases[5]))]

    plan = measuring.plan
    monkeypatch.setattr(measuring, "plan", some)


def _declared(name: str, change: Callable[[Tensor], Tensor] = lambda y: y) -> Kernel:
    function, integers, shapes = FUNCTIONS[name]
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    examples = tuple(
        torch.zeros(shape, dtype=torch.int64 if label in integers else torch.float32)
        for label, shape in zip(names, shapes, strict=True)
    )

    def called(*operands: Tensor) -> Tensor:
        y = function(*(each.double() if each.is_floating_point() else each for each in operands))
        return change(y.float() if y.is_floating_point() else y)

    called.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return kernel(like=function, examples=[examples], integers=integers, dtypes=["float32"], name="called")(called)


def _measured(called: Kernel, backend: Backend, effort: Effort | None) -> KernelRun:
    return measure_kernel(called, Measure("a.py::called"), backend, effort=effort)


def _off_at_one(y: Tensor) -> Tensor:
    """One element in the midst of a result, 30% off."""
    mask = torch.zeros_like(y)
    mask.view(-1)[y.numel() // 2 + 1] = 0.3
    return y + (y * mask + mask * 0.3)


@pytest.mark.parametrize(("name", "change"), [("gelu", "right"), ("softmax", "one element off")])
def test_forks_judge_the_chosen_elements(
    name: str, change: str, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the next case runs meanwhile. A fork that fails, as by the use of a GPU, would leave this to its parent."""
    called = _declared(name, _off_at_one if change != "right" else lambda y: y)
    at_once, here = _measured(called, backend, TINY), os.getpid()
    assert at_once.results and all(each.basis.of > each.basis.n for each in at_once.results)

    def elsewhere(real: Callable[..., Any], *given: Any, **named: Any) -> Any:
        assert os.getpid() != here
        return real(*given, **named)

    monkeypatch.setattr(measuring, "judge_case", functools.partial(elsewhere, measuring.judge_case))
    evaluated = sampling._evaluated
    for on_host in (0, 1 << 20)[name == "gelu" :]:  # so many numbers are evaluated in forks too
        monkeypatch.setattr(effort_limits, "_ON_HOST", on_host)
        monkeypatch.setattr(sampling, "_evaluated", functools.partial(elsewhere, evaluated) if on_host else evaluated)
        by_forks = measure_kernel(called, Measure("a.py::called", judges=3), backend, effort=TINY)
        assert by_forks.status == at_once.status and len(by_forks.results) == len(at_once.results)
        # a GPU's erf has other last bits, and so has the interval
        assert backend.gpu or by_forks.results == at_once.results


QUICK = ("gelu", "softmax")  # tests/ops/graph/test_slices.py cuts convolutions in every run


@pytest.mark.parametrize("change", ["right", "one element off"])
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FUNCTIONS]
)
def test_some_elements_have_the_verdict_of_all(name: str, change: str, backend: Backend) -> None:
    if change != "right" and name in ("argmax", "mean"):
        return
    change_by = (lambda y: y) if change == "right" else _off_at_one
    full, some = (_measured(_declared(name, change_by), backend, effort) for effort in (None, TINY))
    assert [(each.output, each.status) for each in some.results] == [(r.output, r.status) for r in full.results]
    assert not some.gaps
    for mine, all_ in zip(some.results, full.results, strict=True):
        assert not all_.basis.of
        assert mine.basis.of == all_.basis.n or mine.basis.n == all_.basis.n
        assert mine.basis.n < all_.basis.n or all_.basis.n <= 2 * TINY.elements
        # errors that are not gated are judged exactly only where they look large: on a GPU that may be elsewhere
        most = all_.figures.max_upper if backend.gpu else all_.figures.max_ulp
        assert value_of(mine.figures.max_ulp) <= value_of(most)
        if mine.figures.scaled_max is not None and all_.figures.scaled_max is not None:
            # noise is sampled, by other numbers in a part of a program: an element's own is off by a fifth
            assert value_of(mine.figures.scaled_max) <= 1.6 * value_of(all_.figures.scaled_max) + 0.1
        for worst in mine.worst:
            assert 0 <= worst.origin.index < all_.basis.n // 2


LONG: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: x.square().mean(),
    "norm": lambda x: x / torch.linalg.vector_norm(x),
    "batch norm": lambda x: functional.batch_norm(x[..., None], None, None, training=True)[..., 0],
}


@pytest.mark.parametrize("change", ["right", "0.1% off"])
@pytest.mark.parametrize(
    "name", ["mean", *(pytest.param(name, marks=pytest.mark.slow) for name in ("norm", "batch norm"))]
)
def test_sums_that_exceed_the_memory_have_the_verdict_of_all(
    name: str, change: str, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    factor = 1.0 if change == "right" else 1.001

    def called(x: Tensor) -> Tensor:
        return (LONG[name](x.double()) * factor).float()

    declared = kernel(like=LONG[name], examples=[(torch.zeros(1500, 8),)], dtypes=["float32"], name="called")(called)
    some = dataclasses.replace(TINY, work=2.0**22, drawn=2.0**22)
    parts = list[Any]()
    split = slices._split
    monkeypatch.setattr(slices, "_split", lambda *args: parts.append(split(*args)) or parts[-1])
    found = _measured(declared, backend, dataclasses.replace(some, memory=1 << 20))
    assert any(each is not None and len(each.parts) > 1 for each in parts)
    assert not found.gaps
    whole = _measured(declared, backend, None)
    assert [(each.output, each.status) for each in found.results] == [
        (each.output, each.status) for each in whole.results
    ]
    assert (found.status == "wrong") == (change != "right")


def test_the_worst_element_is_where_it_is_in_the_whole_result(backend: Backend) -> None:
    def changed(y: Tensor) -> Tensor:
        made = y.clone()
        made[17, 23] *= 1.5
        return made

    found = _measured(_declared("softmax", changed), backend, TINY)
    assert found.results[0].worst[0].index == (17, 23)
    assert found.results[0].worst[0].origin.index == 17 * 40 + 23
    assert found.results[0].basis.of == 2 * 24 * 40
    assert basis_short(found.results[0].basis).endswith(" of 1,920")


def test_a_result_of_which_no_element_is_affordable_is_a_gap(backend: Backend) -> None:
    found = measure_kernel(
        _declared("mean"), Measure("a.py::called"), backend, effort=dataclasses.replace(TINY, work=64.0)
    )
    assert [gap.kind for gap in found.gaps] == ["judge failed"] * len(found.gaps)
    assert "one element depends on more numbers than the judge may evaluate" in found.gaps[0].text


def test_a_plan_that_takes_too_much_memory_is_halved(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[Effort]()

    def scarce(op: Any, problem: Any, name: str, singled: Any, effort: Effort, seed: int, **how: Any) -> Any:
        tried.append(effort)
        if len(tried) < 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return sampled(op, problem, name, singled, effort, seed, **how)

    monkeypatch.setattr(measuring, "sampled", scarce)
    found = _measured(_declared("gelu"), backend, TINY)
    assert found.status == "ok" and not found.gaps
    assert [each.memory for each in tried[:3]] == [TINY.memory, TINY.memory / 2, TINY.memory / 4]
    assert tried[3].elements == TINY.elements // 4


def test_no_memory_for_any_plan_is_no_error_of_the_kernel(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    def scarce(*_: Any, **how: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(measuring, "sampled", scarce)
    found = _measured(_declared("softmax"), backend, TINY)
    assert found.status == "skipped"
    assert [gap.kind for gap in found.gaps] == ["judge failed"]
    assert found.gaps[0].text.endswith("the judge ran out of memory: 2 of 2 cases have no verdict")


def test_fail_fast_stops_after_a_finding_on_ordinary_inputs(backend: Backend) -> None:
    for fail_fast, count in ((False, 2), (True, 1)):
        asked = Measure("a.py::called", fail_fast=fail_fast)
        found = measure_kernel(_declared("gelu", _off_at_one), asked, backend, effort=TINY)
        assert found.status == "wrong"
        assert found.results[0].basis.of == count * 24 * 40


@pytest.mark.parametrize(
    ("effort", "needed", "tried"), [(TINY, True, 1), (None, True, 2), (None, False, 0), (TINY, False, 0)]
)
def test_late_cases_are_left_out_if_they_are_large_or_not_needed(
    backend: Backend, effort: Effort | None, needed: bool, tried: int
) -> None:
    """The first case of a size is no late one, and small ones are not."""
    asked = Measure("a.py::called", enough=1e-9, needed=needed)
    found = measure_kernel(_declared("gelu"), asked, backend, effort=effort)
    assert {result.basis.of or result.basis.n for result in found.results} == ({tried * 24 * 40} if tried else set())
    late = [note for note in found.notes if "were not tried" in note]
    assert late == ([f"float32: {2 - tried} of 2 cases were not tried: others took their time"] if tried < 2 else [])


PEAK = """
import resource, torch, verify
from verify import backends
from verify.measure import kernel as measuring
from verify.measure.effort import Effort
from verify.measure.requests import Measure

def peak():  # of this process or one of its forks; VmHWM excludes memory of the process that started this one
    own = next(int(line.split()[1]) for line in open("/proc/self/status") if "VmHWM" in line)
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) << 10

plan = measuring.plan
measuring.plan = lambda *args, **options: [measuring.replace(g, cases=g.cases[:1]) for g in plan(*args, **options)]
x = torch.zeros(16384, 256)
called = verify.kernel(like=lambda x: torch.softmax(x, -1), examples=[(x,)], dtypes=["float32"])(
    lambda x: torch.softmax(x, -1)
)
backend = backends.select()
torch.softmax(torch.zeros(4, 4, device=backend.device), -1)  # a GPU's own memory on the host
before = peak()
found = measuring.measure_kernel(
    called, Measure("a.py::called"), backend, effort=Effort(2.0**26, memory=1 << 28, whole=1 << 20)
)
print(found.status, found.results[0].basis.of, before, peak())
"""


def test_judging_stays_within_its_memory() -> None:
    """In a fork of the warm process, which has used little memory."""
    status, of, before, peak = warm.printed(PEAK, 300).split()
    held = 14 * (4 << 22)  # inputs, results, PyTorch's and copies of them, of 2^22 float32 numbers each
    assert (status, of) == ("ok", str(1 << 22))
    assert int(before) < int(peak) < int(before) + held + (1 << 28)


def _taken(folder: Path) -> bool:
    """True if some judge has its turn."""
    with next(folder.glob("verify-*.lock")).open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


@pytest.fixture
def gpu(backend: Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Backend:
    """The backend of this machine as a GPU of 1 TiB."""

    class Gpu(type(backend)):  # type: ignore[misc]
        streams = gpu = True

    monkeypatch.setattr(effort_limits, "_LITTLE", 0)
    monkeypatch.setattr(effort_limits, "total_memory", lambda backend: 1 << 40)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    return Gpu(backend.device, backend.label)


HOLDS = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("holds", flush=True)
sys.stdin.read()
"""


def test_large_cases_run_one_at_a_time_and_a_killed_judge_ends_its_turn(gpu: Backend, tmp_path: Path) -> None:
    with turn(gpu, 1 << 37):
        assert _taken(tmp_path)
    [path] = tmp_path.glob("verify-*.lock")
    other = subprocess.Popen([sys.executable, "-c", HOLDS, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None and other.stdout.readline() == b"holds\n"
    with turn(gpu, 1 << 34):
        pass  # a small case has no turn
    entered = threading.Event()

    def wait() -> None:
        with turn(gpu, 1 << 37):
            entered.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert not entered.wait(0.2)
    other.kill()
    assert entered.wait(60)
    waiting.join()
    other.communicate()


def test_no_memory_for_the_inputs_of_a_call_is_tried_again(gpu: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no result of an earlier call is in memory then."""
    called = _declared("gelu", lambda y: torch.where(y > 8, y * 1.5, y))  # wrong in the second case, which has outliers
    asked, results = list[str](), list[Any]()

    def run(case: Any) -> Any:
        assert all(each() is None for each in results)
        asked.append(case.to_json())
        if len(asked) == 1:  # the process of the kernel makes its own inputs
            raise Failure.of(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 12.00 GiB")).error()
        measured = run_judged(called, case, gpu.device)
        results[:] = map(weakref.ref, measured.results.values())
        return measured

    monkeypatch.setattr(measuring.time, "sleep", lambda seconds: None)
    found = measure_kernel(called, Measure("a.py::called"), gpu, effort=TINY, run=run)
    assert found.status == "wrong" and not found.gaps
    assert len(asked) == 5  # two cases, one of them twice, and then the worst and the first case again
