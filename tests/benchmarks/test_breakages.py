"""The breakages do what they say, honest twins are equal, and the exit code is 1 as soon as a broken kernel passes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from benchmarks.breakages import __main__ as command
from benchmarks.breakages import kernels
from benchmarks.breakages import measure as measuring
from benchmarks.breakages.judging import Judgement, Results, judge
from benchmarks.breakages.kernels import Sums
from benchmarks.breakages.measure import BREAKAGES, Graphs, broken, case, honest, measure
from benchmarks.breakages.programs import Program, normal, programs
from benchmarks.breakages.steps import traced
from benchmarks.breakages.table import summary, tables


def _projected(x: Tensor, w: Tensor) -> Tensor:
    return (0.7 * (x @ w)).sum(-1)


PRODUCT = Program("product", "products", _projected, [normal(4, 300), normal(300, 3)])
LINEAR = Program("linear", "products", F.linear, [(4, 40), (3, 40), (3,)])


def test_dropping_a_term_changes_one_sum_by_that_term() -> None:
    x, w = torch.arange(12.0).reshape(3, 4), torch.arange(8.0).reshape(4, 2) + 1
    graph = traced(lambda x, w: [x @ w, w.sum(0)], [x, w])
    product, column = kernels.run(graph, [x, w], Sums(without_last=0))
    assert torch.equal(x @ w - product, x[:, -1:] * w[-1:]) and torch.equal(column, w.sum(0))
    product, column = kernels.run(graph, [x, w], Sums(without_last=1))
    assert torch.equal(product, x @ w) and torch.equal(w.sum(0) - column, w[-1])
    assert kernels.sums_of(graph, [x, w]) == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrow_accumulator_is_rounded_after_every_addition(dtype: torch.dtype) -> None:
    terms = torch.randn(300, generator=torch.Generator().manual_seed(1))
    kept = torch.tensor(0.0).to(dtype)
    for term in terms:
        kept = (kept.float() + term).to(dtype)
    found = kernels.total(terms, Sums("sequential", dtype))
    assert found == kept.float() and abs(found - terms.sum()) > 1e-3


@pytest.mark.parametrize("order", ["sequential", "reversed", "blocks of 32", "tree"])
def test_another_order_sums_every_term_once(order: str) -> None:
    whole = torch.randint(-99, 99, (77, 5), generator=torch.Generator().manual_seed(1)).float()
    assert torch.equal(kernels.total(whole, Sums(order)), whole.sum(0))
    terms = torch.randn(77, 5, generator=torch.Generator().manual_seed(1))
    found = kernels.total(terms, Sums(order))
    exact = terms.double().sum(0)
    assert torch.allclose(found.double(), exact, atol=1e-4) and not torch.equal(found, exact.float())


def test_a_running_sum_is_rounded_too() -> None:
    x = torch.tensor([[256.0, 1.0, 1.0, 1.0]])  # bfloat16 has no 257
    graph = traced(lambda x: [x.cumsum(-1)], [x])
    assert kernels.run(graph, [x], Sums("sequential"))[0].tolist() == [[256.0, 257.0, 258.0, 259.0]]
    assert kernels.run(graph, [x], Sums("sequential", torch.bfloat16))[0].tolist() == [[256.0, 256.0, 256.0, 256.0]]


def test_tf32_keeps_ten_bits() -> None:
    below = torch.tensor([1 + 2.0**-10, 1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 2.0**-12, 3e38, float("inf")])
    assert kernels.tf32(below).tolist() == [1 + 2.0**-10, 1.0, 1 + 2.0**-9, -1.0, kernels.tf32(below)[4], float("inf")]


def test_a_convolution_becomes_the_same_sums() -> None:
    strided = partial(F.conv2d, stride=2, padding=1, groups=2)
    program = Program("conv", "convolutions", strided, [(2, 4, 5, 6), (6, 2, 3, 3), (6,)])
    given = case(program, "ordinary", 1)
    graphs, right = Graphs.of(given), given.computed(dtype=torch.float64)
    for order in ("native", "reversed"):
        found = graphs.results(given, Sums(order))
        assert all(torch.allclose(x, right[name], atol=1e-5) for name, x in found.items()) and len(found) == 4
    assert kernels.sums_of(graphs.float32, given.converted(torch.float32)) == 7


def test_the_steps_in_float64_keep_the_tail_that_pytorch_loses() -> None:
    program = Program("gelu", "elementwise", F.gelu, [lambda generator: torch.tensor([-12.0])])
    given = case(program, "ordinary", 1)
    right = -6 * math.erfc(12 / math.sqrt(2))
    assert float(Graphs.of(given).rounded(given)["y"]) == pytest.approx(right, rel=1e-6, abs=0)
    assert float(given.computed(dtype=torch.float64)["y"]) != pytest.approx(right, rel=1e-2, abs=0)


def test_one_constant_is_off_and_no_other_one() -> None:
    def function(x: Tensor) -> Tensor:
        return (x * 0.5 + 3) * 0.25 + x.clamp(min=0.0)

    x = torch.tensor([2.0], dtype=torch.float64)
    found = kernels.constants(function, [x])
    assert sorted(value for _, value in found) == [0.25, 0.5, 3.0]
    wrong = {value: float(kernels.constant_off(function, (name, value))(x) - function(x)) for name, value in found}
    assert wrong == pytest.approx({0.5: 0.0025, 3.0: 0.0075, 0.25: 0.01})


def test_a_bias_is_missing_and_a_step_is_left_out() -> None:
    x, w, b = torch.randn(2, 3), torch.randn(4, 3), torch.randn(4)
    layer = kernels.without_bias(lambda x, w, b: F.linear(x, w, b).relu(), [x, w, b])
    assert layer is not None and torch.equal(layer(x, w, b), F.linear(x, w).relu())
    assert kernels.without_bias(torch.exp, [x]) is None
    left = kernels.without_step(lambda x: x.exp().reshape(-1).tanh(), [x])
    assert left is not None and left[0] == "tanh" and torch.equal(left[1](x), x.exp().reshape(-1))


@pytest.mark.parametrize("program", [PRODUCT, LINEAR], ids=lambda program: str(program.name))
def test_breakages_differ_from_their_honest_twins(program: Program) -> None:
    given = case(program, "ordinary", 1)
    graphs, exact = Graphs.of(given), given.computed(dtype=torch.float64)
    for name, results in honest(given, graphs):
        for key, x in results.items():
            assert torch.allclose(x, exact[key], rtol=1e-4, atol=1e-4), (name, key)
    found = list(broken(given, graphs, case(program, "ordinary", 2)))
    assert {each.breakage for each in found} == {*BREAKAGES} - ({"constant 1% off"} if program is LINEAR else set())
    for each in found:
        apart = max(float((x.double() - each.twin[key].double()).abs().max()) for key, x in each.changed.items())
        assert apart > 1e-4, each.name
    zeros = next(each for each in found if each.breakage == "zeros")
    assert all(not x.any() for x in zeros.results.values())
    again = {each.name: each.results for each in broken(given, graphs, case(program, "ordinary", 2))}
    for each in found:
        assert all(torch.equal(x, again[each.name][key]) for key, x in each.results.items())


def _judged(passes: Any) -> Any:
    """A seam whose verdict is `passes(label, result)`."""

    def judge(kernel: Any, inputs: Results, upstream: Results, candidates: Mapping[str, Results], dtype: str) -> Any:
        return {
            label: {name: Judgement(passes(label, name), 1.0, rms=9.0) for name in results}
            for label, results in candidates.items()
        }

    return judge


def _right(label: str, result: str) -> bool:
    return label.split(":")[0] not in BREAKAGES


@pytest.mark.parametrize(
    ("passes", "text"),
    [
        (_right, ""),
        (lambda label, result: _right(label, result) or label.startswith("TF32"), "TF32 operands"),
        (lambda label, result: _right(label, result) or (label, result) == ("half: half", "dx1"), "half"),
        (lambda label, result: False, "0.0% of the honest kernels pass"),
    ],
)
def test_the_exit_code_is_1_when_a_broken_kernel_passes_or_honest_ones_do_not(
    passes: Any, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for module in (command, measuring):
        monkeypatch.setattr(module, "programs", lambda: {"linear": LINEAR})
    monkeypatch.setattr(measuring, "measure", partial(measure, judged=_judged(passes)))
    code = command.main(["--jobs", "1", "--json", str(tmp_path / "record.json")])
    said = capsys.readouterr().out
    assert code == bool(text) and text in said
    assert said.splitlines()[-2] == ("The limits do not separate them." if text else "The limits separate them.")
    record = msgspec.json.decode((tmp_path / "record.json").read_bytes(), type=command.Record)
    assert [each.program for each in record.programs] == ["linear"] and len(record.programs[0].outcomes) > 60


def test_an_honest_kernel_passes_where_intervals_of_deep_gradients_decide_nothing() -> None:
    """Float64's intervals of this block's gradients are dozens of times as wide as the noise; exact values decide."""
    block = programs()["transformer block"]

    def judged(kernel: Any, inputs: Results, upstream: Results, candidates: Mapping[str, Results], dtype: str) -> Any:
        [eager] = (results for name, results in candidates.items() if name == "eager")
        return dict.fromkeys(candidates, judge(kernel, inputs, upstream, {"eager": eager}, dtype)["eager"])

    measured = measure(block, inputs=["ordinary"], judged=judged)
    [eager] = (each for each in measured.honest if each.name == "eager")
    assert len(eager.results) == 12 and eager.passes


def test_the_default_limit_tells_zeros_from_correct_rounding() -> None:
    found = measure(LINEAR, inputs=["ordinary"])
    assert all(not one.passes for one in found.broken if one.breakage == "zeros")
    assert all(one.passes for one in found.honest if one.name == "float64, rounded")
    assert "| linear |" in tables([found])


@pytest.mark.slow
def test_the_default_limits_separate_honest_kernels_from_broken_ones(tmp_path: Path) -> None:
    command.main(["--quick", "--json", str(tmp_path / "quick.json")])
    measured = msgspec.json.decode((tmp_path / "quick.json").read_bytes(), type=command.Record).programs
    found = summary(measured)
    assert len(measured) == 15 and found.broken > 500
    assert not (found.passed or found.zeros or found.errors)
    assert not found.stale
    assert [text for text in found.failed if not text.startswith("gelu, ")] == []
