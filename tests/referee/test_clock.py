"""The clock of `verify judge`: chains of calls, and solutions that lie about their time."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.referee.samples import LINEAR, solution, written
from verify import backends
from verify.backends import Backend
from verify.cases.structure import found_in, kept
from verify.errors import KernelError
from verify.referee import chain, clock
from verify.referee.formats import model, place
from verify.referee.host import SolutionProcess
from verify.referee.messages import Chained
from verify.referee.plan import RUNNER, CallTime, Plan
from verify.referee.problem import Solution, declared
from verify.workers import process_tree
from verify.workers.sandbox import starter
from verify.workers.sandbox.confine import Limits, folders_to_read

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
# From the names on its stack a solution cannot tell a timed call, but from the judge's numbers there.
TIMED = """
import sys
frame = sys._getframe()
while frame and frame.f_locals.get("count", 1) == 1:
    frame = frame.f_back
"""
ONLY_JUDGED = f"{TIMED}\nif frame:\n    x = x.bfloat16().float()\n{RIGHT}"
REPLAYS = f"{TIMED}\nif frame is None:\n    {RIGHT}\nkept or kept.append(torch.zeros(6, 10))\nreturn kept[0]"
RAISES = f"{TIMED}\nif frame:\n    raise ValueError('not now')\n{RIGHT}"
SOFTMAX = LINEAR.replace("torch.relu(self.linear(x))", "torch.softmax(x, -1)")
UNSAFE = f"{TIMED}\nif frame is None:\n    return torch.softmax(x, -1)\nreturn x.exp() / x.exp().sum(-1, keepdim=True)"
SHOWS_STACK = """
import sys
frame, names = sys._getframe(), []
while frame:
    names.append(frame.f_code.co_qualname)
    frame = frame.f_back
with open("stacks.txt", "a") as file:
    file.write(" ".join(names) + "\\n")
return torch.relu(functional.linear(x, weight, bias))
"""


def doubled(given: dict[str, Tensor]) -> list[Tensor]:
    return [given["x"] * 2]


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> Backend:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # the tests of kernels have it interpret
    return backends.select("cpu")


def answered(call: chain.Call, x: Tensor, structure: tuple[str, ...] = (), count: int = 4) -> tuple[list[Tensor], int]:
    """Returns the inputs that a chain gives to a call, and the last key."""
    seen = list[Tensor]()

    def seeing(given: dict[str, Tensor]) -> Sequence[Tensor]:
        seen.append(given["x"])
        return call(given)

    inputs = chain.chain_inputs({"x": x}, {"x": structure})
    return seen, chain.run(seeing, inputs, 5, count, chain.Watch("cpu"))[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("size", [3, 1000])
def test_a_call_gets_numbers_of_the_problem_that_no_other_call_gets(dtype: torch.dtype, size: int) -> None:
    x = torch.randn(size, dtype=dtype) + 4
    seen, _ = answered(doubled, x)
    own = set(x.double().frexp().exponent.tolist())
    assert all(set(each.double().frexp().exponent.tolist()) <= own for each in seen)
    assert size == 3 or len({tuple(each.tolist()) for each in seen}) == 4  # three may coincide
    assert all(each.dtype == dtype and each.shape == x.shape for each in seen)


def test_nothing_of_an_input_is_known_before_its_key() -> None:
    """Signs, exponents, zeros and the places of all of them vary, so nothing can be computed in advance."""
    x = torch.randn(64, 512) * torch.randn(64, 512).exp() * (torch.rand(64, 512) < 0.5)
    (first, second, *_), _ = answered(doubled, x)
    for of in (torch.sign, lambda x: x.frexp().exponent, lambda x: x == 0, lambda x: x.sum(1).sign()):
        alike = (of(first) == of(second)).float().mean()
        assert 0.01 < alike < 0.75
    assert abs(float((first == 0).float().mean()) - 0.5) < 0.05, "as many zeros as the problem has"
    same = (first.reshape(-1, 256) == first.reshape(-1, 256)[:1]).float().mean(1)[1:]
    assert float(same.max()) < 0.5, "no part repeats, so no sum of differences replaces the numbers"


@pytest.mark.parametrize(
    ("x", "structure"),
    [
        (torch.randn(32, 32).triu(), ("upper triangular",)),
        (torch.randn(16, 16).tril(), ("lower triangular",)),
        (torch.randn(20, 20).triu() + torch.randn(20, 20).triu(1).mT * 0, ("upper triangular",)),
        (torch.diag(torch.randn(24)), ("symmetric", "upper triangular", "lower triangular")),
        (torch.randint(0, 2, (16, 64)).float(), ("few numbers",)),
        (torch.randint(0, 2, (128,)) * 2.0 - 1, ("few numbers",)),
        (functional.one_hot(torch.arange(64) % 7, 7).float(), ("one-hot",)),
        (functional.normalize(torch.randn(8, 32), dim=-1), ("unit vectors along -1",)),
        (torch.randn(8, 32).softmax(-1), ("probabilities along -1",)),
        (torch.randn(4, 64).sort(-1).values, ("rising",)),
        (torch.randn(9, 9) @ torch.randn(9, 9), ()),
    ],
)
def test_a_structure_of_the_problem_is_kept(x: Tensor, structure: tuple[str, ...]) -> None:
    assert found_in([x]) == structure
    for each in answered(doubled, x, structure)[0]:
        assert found_in([each]) == structure
    assert found_in([kept(torch.randn_like(x), structure, x)]) == structure


def test_the_last_key_depends_on_every_bit_of_every_answer_and_on_its_place() -> None:
    inputs = chain.chain_inputs({"x": torch.randn(7, 4)}, {"x": ()})
    found, last = chain.run(doubled, inputs, 5, 3, chain.Watch("cpu"))

    def followed() -> int:
        answers = iter([[each.clone() for each in answer] for answer in found])
        return chain.run(lambda given: next(answers), inputs, 5, 3, chain.Watch("cpu"))[1]

    assert followed() == last
    for (changed,) in found:
        changed.view(torch.int32)[6, 2] ^= 1
        assert followed() != last
        changed.view(torch.int32)[6, 2] ^= 1
        for other in (changed.flip(0), changed.roll(2, 1), changed.mT.reshape(7, 4)):  # the same numbers, the same sum
            own = changed.clone()
            changed.copy_(other)
            assert followed() != last
            changed.copy_(own)
    assert followed() == last


def test_arguments_are_sealed_until_their_secret_comes() -> None:
    for x in (torch.randn(5, 3), torch.tensor([True, False, True]), torch.arange(4), torch.empty(0)):
        raw = chain.sealed(x, 77)
        assert raw.shape == (x.nbytes,) and raw.dtype == torch.uint8
        assert torch.equal(chain.opened(raw, x.dtype, x.shape, 77), x)
    zeros = chain.sealed(torch.zeros(64, 64), 78).view(torch.int64)
    assert torch.unique(zeros).numel() == zeros.numel(), "equal numbers do not show"


def test_infinite_numbers_and_orders_stay() -> None:
    given = {
        "numbers": torch.randn(300),
        "relu": torch.relu(torch.randn(300)),
        "mask": torch.tensor([0.5, float("-inf")]),
        "offsets": torch.arange(4),
        "order": torch.tensor([2, 0, 1]),
        "ids": torch.tensor([2, 0, 2]),
        "causal": torch.ones(8, 8).tril(),
        "none": torch.empty(0),
    }
    assert set(chain.varied(given, {"causal": ("constant",)})) == {"numbers", "relu", "ids"}


def plan_of(folder: Path, backend: Backend, text: str, problem: str = LINEAR) -> Plan:
    """Writes a problem and a solution, and returns their plan."""
    scratch, notes = folder / "scratch", folder / "notes"
    scratch.mkdir(parents=True)
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
        starter=starter.address(RUNNER, backend.name),
        weaker=backend.name != "cpu",  # a GPU may be in a container that has no landlock
    )


def timed(backend: Backend, folder: Path, text: str, problem: str = LINEAR) -> CallTime:
    """Times a solution in a process of its own."""
    plan = plan_of(folder, backend, text, problem)
    kernel = declared(plan, partial(model.problems, plan), __name__, __file__)[0]
    assert isinstance(kernel.function, Solution)
    try:
        return clock.timed(kernel, backend, 0.5, 2)
    finally:
        kernel.function.host.process.stop()


def test_a_solution_is_called_while_its_problem_is_read(cpu: Backend, tmp_path: Path) -> None:
    """Only in the first process of a judgement: the later ones call the problems that they are made for."""
    plan = plan_of(tmp_path, cpu, solution(RIGHT))
    for begins in (True, False):
        kernel = declared(plan, partial(model.problems, plan), __name__, __file__)[0]
        assert isinstance(kernel.function, Solution)
        process = kernel.function.host.process
        assert (process.first is not None) == begins
        if process.first is not None:
            process.first.join()
            assert kernel.function.host.observed.calls == 1
            x, weight, bias = (kernel.function.problem.tensors[name] for name in kernel.operands)
            assert torch.equal(kernel.function(x, weight, bias), torch.relu(x @ weight.T + bias))
            assert kernel.function.host.observed.own_check.startswith("passes")
        process.stop()


class Cache:
    """Stands for the memory that empties the cache: it shows what a reader on another stream sees at that time."""

    def __init__(self, given: dict[str, Tensor]) -> None:
        self.given, self.seen = given, dict[str, Tensor]()

    def zero_(self) -> None:
        self.seen = {name: each.clone() for name, each in self.given.items()}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.uint8])
def test_inputs_are_wrong_until_the_call_begins(
    device: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = (torch.rand(3, 1000, device=device) * 9).to(dtype)
    given = {"x": x.clone(), "number": x[0, :1].clone().reshape(()), "none": x[:, :0].clone()}
    right, versions = {name: each.clone() for name, each in given.items()}, [each._version for each in given.values()]
    watch = chain.Watch("cpu")
    watch._flushed = cache = Cache(given)  # type: ignore[assignment]
    monkeypatch.setattr(watch, "mark", lambda: None)
    places = set()
    for _ in range(8):
        watch.start(given)
        wrong = cache.seen["x"] != right["x"]
        assert 3000 // chain.CANARY <= int(wrong.sum()) <= 3000 // chain.CANARY + 1
        assert bool(cache.seen["number"] != right["number"])
        assert all(torch.equal(each, right[name]) for name, each in given.items())
        places.add(int(wrong.reshape(-1).int().argmax()))
    assert len(places) > 1, "a reader cannot know the places"
    assert versions == [each._version for each in given.values()]


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
        ("", RAISES, clock.DEVIATES),
        (STARTS_EARLY, RIGHT, clock.CHANGES),
    ],
    ids=["coarse", "replays", "raises", "early"],
)
def test_what_is_done_while_it_is_timed_alone_is_named(
    cpu: Backend, tmp_path: Path, before: str, body: str, trick: str
) -> None:
    assert trick in timed(cpu, tmp_path, solution(body, before=before)).tricks


def test_what_is_wrong_for_hard_inputs_alone_is_named_too(cpu: Backend, tmp_path: Path) -> None:
    """A problem's own numbers may be easy: some chains, which do not count, have others."""
    assert clock.DEVIATES in timed(cpu, tmp_path, solution(UNSAFE), SOFTMAX).tricks


def test_a_timed_call_is_none_by_its_stack(cpu: Backend, tmp_path: Path) -> None:
    found = timed(cpu, tmp_path, solution(SHOWS_STACK))
    assert found.calls and not found.tricks
    assert len(set((tmp_path / "scratch" / "stacks.txt").read_text().splitlines())) == 1


def test_answers_that_are_wrong_with_and_without_the_clock_are_wrong(cpu: Backend, tmp_path: Path) -> None:
    found = timed(cpu, tmp_path, solution("x = x.bfloat16().float()\n" + RIGHT))
    assert "noise" in found.wrong and found.tricks == {}


def test_a_solution_that_raises_while_it_is_timed_has_no_time(cpu: Backend, tmp_path: Path) -> None:
    found = timed(cpu, tmp_path, solution("raise ValueError('no time')"))
    assert found.milliseconds is None and "ValueError: no time" in found.reason


REFUSES = "if bool(x.abs().max() > 100):\n    raise ValueError('too large')\n"


def test_a_call_that_the_reference_refuses_too_is_no_trick(
    cpu: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some drawn matrices have no inverse."""
    monkeypatch.setattr(clock, "HARD", ("zero rows",))
    inverse = LINEAR.replace("torch.relu(self.linear(x))", "torch.linalg.inv(x)")
    text = inverse.replace("randn(6, 24)", "randn(3, 2, 2)")
    found = timed(cpu, tmp_path, solution("return torch.linalg.inv(x)"), text)
    assert found.calls and not found.reason and not found.tricks
    plain = "return torch.linalg.inv(x) if bool(x.any()) else x"
    assert timed(cpu, tmp_path / "other", solution(plain), text).tricks == {}


def test_a_chain_that_breaks_keeps_the_answers_before_and_the_words_of_its_error() -> None:
    def third_fails(given: dict[str, Tensor]) -> list[Tensor]:
        seen.append(given["x"])
        if len(seen) == 3:
            raise ValueError("no inverse")
        return doubled(given)

    seen, inputs = list[Tensor](), chain.chain_inputs({"x": torch.randn(7, 4)}, {"x": ()})
    with pytest.raises(chain.Broken, match="no inverse") as broken:
        chain.run(third_fails, inputs, 5, 4, chain.Watch("cpu"))
    answers = broken.value.answers
    assert [torch.equal(answer, 2 * x) for (answer,), x in zip(answers, seen[:2], strict=True)] == [True, True]
    _, key = chain.run(doubled, inputs, 5, 2, chain.Watch("cpu"))
    assert torch.equal(inputs(torch.tensor(key))["x"], seen[2]), "the inputs of the call that failed are known"


def test_a_call_that_fails_without_the_clock_as_well_is_no_trick(cpu: Backend, tmp_path: Path) -> None:
    assert timed(cpu, tmp_path / "hard", solution(REFUSES + RIGHT)).tricks == {}
    found = timed(cpu, tmp_path, solution("if bool(x[0, 0] > 0):\n    raise ValueError('above')\n" + RIGHT))
    assert found.milliseconds is None and "ValueError: above" in found.reason and found.tricks == {}


def test_temporary_files_of_a_solution_are_in_its_own_folder(cpu: Backend, tmp_path: Path) -> None:
    assert tempfile.gettempdir()  # a fork knows it from here
    found = timed(cpu, tmp_path, solution("tempfile.mkdtemp()\n" + RIGHT, before="import tempfile"))
    assert not found.reason and [*(tmp_path / "scratch").glob("tmp*")]


def test_inputs_that_cannot_differ_are_not_timed(cpu: Backend, tmp_path: Path) -> None:
    text = LINEAR.replace("torch.randn(6, 24)", "torch.zeros(6, 24)")
    found = timed(cpu, tmp_path, solution(RIGHT), text)
    assert found.reason == "no argument is a tensor of numbers that can differ in each call"


def test_nothing_of_a_solution_runs_while_it_is_paused(tmp_path: Path) -> None:
    process = SolutionProcess(starter.address(RUNNER, "cpu"), Limits((str(tmp_path),), folders_to_read()))
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
    with pytest.raises(KernelError, match="its process has ended"):
        process.ask(Chained(1, (), (), (), {}, 2), (), 0.1)


def test_a_fingerprint_is_that_of_the_numbers_in_their_order() -> None:
    x = torch.arange(12.0).reshape(6, 2)
    for part in (x[:, 0], x[:, :1], x.t(), x[0, 0], x[:0], x[:, 0].to(torch.bfloat16), x > 3):
        assert chain.fingerprint(part, 5) == chain.fingerprint(part.clone(memory_format=torch.contiguous_format), 5)
    assert len({chain.fingerprint(each, 5) for each in (x, x.flip(0), -x, x + 1e-6, x[:, :1], x[:5])}) == 6


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
    # unless the judge reads the answer too early by chance and finds it wrong
    found = timed(gpu, tmp_path / "aside", solution(aside), text)
    assert found.tricks or found.wrong


@pytest.mark.gpu
def test_large_tensors_stay_on_the_gpu(tmp_path: Path) -> None:
    """They go to the process of a solution and back without the host's memory, and the judge reads copies."""
    gpu = backends.select("cuda")
    text = LINEAR.replace("torch.randn(6, 24)", "torch.randn(5000, 1024)").replace("[24, 10]", "[1024, 1024]")
    late = "global last\nx.add_(1)\nlast = torch.ones(5000, 1024, device=x.device)\nreturn last"
    plan = plan_of(tmp_path, gpu, solution(f"if x[0, 0] > 0:\n    return x.relu()\n{late}"), text)
    kernel = declared(plan, partial(model.problems, plan), __name__, __file__)[0]
    assert isinstance(kernel.function, Solution)
    host, state = kernel.function.host, {"linear.weight": torch.ones(1024, 1024, device="cuda")}
    state["linear.bias"] = torch.ones(1024, device="cuda")
    try:
        host.build([])
        assert host.lends and kernel.function.problem.tensors["x"].is_cuda
        x = torch.randn(5000, 1024, device="cuda").abs()
        [answer] = host.call(state, {"x": x}, alone=True)
        assert answer.is_cuda and torch.equal(answer, x)
        kept = (-x).clone()
        [ones] = host.call(state, {"x": -x}, alone=True)
        assert torch.equal(ones, torch.ones_like(x)) and torch.equal(-x, kept)
        assert host.observed.changed == ("x",)
    finally:
        host.process.stop()
