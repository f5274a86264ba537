"""The clock of `verify judge`: chains of calls, and solutions that lie about their time."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.referee.samples import LINEAR, solution, written
from verify import backends
from verify.backends import Backend
from verify.errors import KernelError
from verify.referee import chain, clock, starter
from verify.referee.formats import model, place
from verify.referee.host import SolutionProcess
from verify.referee.plan import Plan
from verify.referee.problem import Solution, declared
from verify.referee.requests import CallTime
from verify.referee.sandbox import Limits, folders_to_read
from verify.workers import process_tree

RIGHT = "return torch.relu(functional.linear(x, weight, bias))"
SLOW = f"import time\ntime.sleep(0.004)\n{RIGHT}"
FORGES = """
import time
from verify.referee import chain
chain.perf_counter = time.perf_counter = lambda: 0.0
"""
STARTS_EARLY = """
from verify.referee import chain
true = chain.run
def run(*given, **more):
    found, last = true(*given, **more)
    return found, last ^ 1
chain.run = run
"""
ONLY_JUDGED = f"""
import inspect
if any(frame.filename.endswith("chain.py") for frame in inspect.stack()):
    x = x.bfloat16().float()
{RIGHT}
"""
REPLAYS = """
import sys
frame = sys._getframe()
while frame and "words" not in frame.f_locals:
    frame = frame.f_back
if frame is None:
    return torch.relu(functional.linear(x, weight, bias))
if not kept:
    kept.append(torch.relu(functional.linear(x, weight, bias)))
return kept[0]
"""


def doubled(given: dict[str, Tensor]) -> list[Tensor]:
    return [given["x"] * 2]


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> Backend:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # the tests of kernels have it interpret
    return backends.select("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("size", [3, 1000])
def test_a_call_gets_numbers_of_the_same_size_that_no_other_call_gets(dtype: torch.dtype, size: int) -> None:
    x = torch.randn(size, dtype=dtype) + 4
    seen = list[Tensor]()

    def call(given: dict[str, Tensor]) -> list[Tensor]:
        seen.append(given["x"])
        return [given["x"]]

    chain.run(call, {"x": x}, ("x",), 1, 4, chain.Watch("cpu"))
    assert all(torch.equal(each.double().frexp().exponent, x.double().frexp().exponent) for each in seen)
    assert len({tuple(each.tolist()) for each in seen}) == 4
    assert all(each.dtype == dtype and each.shape == x.shape for each in seen)


def test_the_last_key_depends_on_every_bit_of_every_answer() -> None:
    x = {"x": torch.randn(7, 3)}
    found, last = chain.run(doubled, x, ("x",), 5, 3, chain.Watch("cpu"))

    def followed() -> int:
        answers = iter([[each.clone() for each in answer] for answer in found])
        return chain.run(lambda given: next(answers), x, ("x",), 5, 3, chain.Watch("cpu"))[1]

    assert followed() == last
    for (changed,) in found:
        changed.view(torch.int32)[6, 2] ^= 1
        assert followed() != last
        changed.view(torch.int32)[6, 2] ^= 1


def test_bits_of_zeros_infinite_and_whole_numbers_stay() -> None:
    given = {
        "numbers": torch.randn(300),
        "relu": torch.relu(torch.randn(300)),
        "mask": torch.tensor([0.5, float("-inf")]),
        "ids": torch.arange(4),
        "none": torch.empty(0),
    }
    assert chain.varied(given) == ("numbers",)


def plan_of(folder: Path, backend: Backend, text: str, problem: str = LINEAR) -> Plan:
    """Writes a problem and a solution, and returns their plan."""
    scratch, notes = folder / "scratch", folder / "notes"
    scratch.mkdir()
    notes.mkdir()
    paths = written(folder, problem=problem, solution=text)
    return Plan(
        format="model",
        problem=str(paths["problem"]),
        scratch=str(scratch),
        file=place("model", str(paths["problem"]), paths["solution"], scratch),
        notes=str(notes),
        seed=3,
        profile="quick",
        device=backend.device,
        seconds=20.0,
        build_seconds=20.0,
        memory=1 << 35,
        starter=starter.address(backend.name),
        weaker=backend.name != "cpu",  # a GPU may be in a container that has no landlock
    )


def timed(backend: Backend, folder: Path, text: str, problem: str = LINEAR) -> CallTime:
    """Times a solution in a process of its own."""
    plan = plan_of(folder, backend, text, problem)
    kernel = declared(plan, partial(model.problems, plan), __name__, __file__)[0]
    assert isinstance(kernel.function, Solution)
    try:
        return clock.timed(kernel, backend, 0.5)
    finally:
        kernel.function.host._process.stop()


def test_a_solution_is_called_while_its_problem_is_read(cpu: Backend, tmp_path: Path) -> None:
    """Only in the first process of a judgement: the later ones call the problems that they are made for."""
    plan = plan_of(tmp_path, cpu, solution(RIGHT))
    for begins in (True, False):
        kernel = declared(plan, partial(model.problems, plan), __name__, __file__)[0]
        assert isinstance(kernel.function, Solution)
        process = kernel.function.host._process
        assert (process.first is not None) == begins
        if process.first is not None:
            process.first.join()
            assert kernel.function.host.observed.calls == 1
            x, weight, bias = (kernel.function.problem.tensors[name] for name in kernel.operands)
            assert torch.equal(kernel.function(x, weight, bias), torch.relu(x @ weight.T + bias))
            assert kernel.function.host.observed.own_check.startswith("passes")
        process.stop()


def test_a_solution_is_timed_beside_the_reference(cpu: Backend, tmp_path: Path) -> None:
    found = timed(cpu, tmp_path, solution(SLOW))
    assert not found.tricks and not found.reason
    assert found.at_most is not None and found.milliseconds is not None and found.own_clock is not None
    assert 4 <= found.own_clock <= found.at_most and 4 <= found.milliseconds <= found.at_most
    assert found.reference is not None and found.times_as_fast is not None and found.at_least is not None
    assert 0 < found.at_least <= found.times_as_fast < 1 and found.reference < 4
    assert found.calls >= 2 * clock.FEWEST_CALLS


def test_a_clock_that_lies_changes_nothing(cpu: Backend, tmp_path: Path) -> None:
    found = timed(cpu, tmp_path, solution(SLOW, before=FORGES))
    assert (found.own_clock, found.tricks) == (0.0, {})
    assert found.milliseconds is not None and found.milliseconds >= 3


@pytest.mark.parametrize(
    ("before", "body", "trick"),
    [
        ("", ONLY_JUDGED, clock.DEVIATES),
        ("kept = []", REPLAYS, clock.DEVIATES),
        (STARTS_EARLY, RIGHT, clock.CHANGES),
    ],
    ids=["coarse", "replays", "early"],
)
def test_what_is_done_while_it_is_timed_alone_is_named(
    cpu: Backend, tmp_path: Path, before: str, body: str, trick: str
) -> None:
    assert trick in timed(cpu, tmp_path, solution(body, before=before)).tricks


def test_answers_that_are_wrong_with_and_without_the_clock_are_wrong(cpu: Backend, tmp_path: Path) -> None:
    found = timed(cpu, tmp_path, solution("x = x.bfloat16().float()\n" + RIGHT))
    assert "noise" in found.wrong and found.tricks == {}


def test_a_solution_that_raises_while_it_is_timed_has_no_time(cpu: Backend, tmp_path: Path) -> None:
    found = timed(cpu, tmp_path, solution("raise ValueError('no time')"))
    assert found.milliseconds is None and "ValueError: no time" in found.reason


def test_temporary_files_of_a_solution_are_in_its_own_folder(cpu: Backend, tmp_path: Path) -> None:
    assert tempfile.gettempdir()  # a fork knows it from here
    found = timed(cpu, tmp_path, solution("tempfile.mkdtemp()\n" + RIGHT, before="import tempfile"))
    assert not found.reason and [*(tmp_path / "scratch").glob("tmp*")]


def test_inputs_that_cannot_differ_are_not_timed(cpu: Backend, tmp_path: Path) -> None:
    text = LINEAR.replace("torch.randn(6, 24)", "torch.zeros(6, 24)")
    found = timed(cpu, tmp_path, solution(RIGHT), text)
    assert found.reason == "no argument is a tensor of numbers that can differ in each call"


def test_nothing_of_a_solution_runs_while_it_is_paused(tmp_path: Path) -> None:
    process = SolutionProcess(starter.address("cpu"), Limits((str(tmp_path),), folders_to_read()))
    process.confined()
    (child,) = process_tree.living({process.pid}, "") - {process.pid}

    def state() -> str:
        return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]

    try:
        with process.paused():
            until = time.monotonic() + 2
            while state() != "T" and time.monotonic() < until:  # the signal takes a moment
                time.sleep(0.01)
            assert state() == "T"
        assert state() != "T"
    finally:
        process.stop()
    with pytest.raises((KernelError, OSError)):
        process.time_chain(1, 0.1, lambda size: size)


@pytest.mark.gpu
def test_events_on_a_gpu_agree_with_the_clock_of_the_judge(tmp_path: Path) -> None:
    """Of a large product both are near each other; a stream that nothing waits for is seen."""
    gpu = backends.select("cuda")
    text = LINEAR.replace("torch.randn(6, 24)", "torch.randn(2048, 2048)").replace("[24, 10]", "[2048, 2048]")
    (tmp_path / "right").mkdir()
    found = timed(gpu, tmp_path / "right", solution(RIGHT), text)
    assert not found.reason and not found.tricks and not found.wrong
    assert found.own_clock is not None and found.at_most is not None and found.times_as_fast is not None
    # other work on the machine keeps the clocks apart; the solution's own one is then not taken
    assert found.own_clock <= found.milliseconds <= found.at_most
    assert 0.5 < found.times_as_fast < 2
    aside = """
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
            return torch.relu(functional.linear(x, weight, bias))
    """
    (tmp_path / "aside").mkdir()
    assert timed(gpu, tmp_path / "aside", solution(aside), text).tricks
