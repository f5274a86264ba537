"""Trivial answers: their errors by hand, which limits let them pass, and what a verdict says of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import verify
from tests.measure.test_kernel import few_cases, only
from verify.backends import Interpreter
from verify.cases.plan import Group, plan
from verify.measure import kernel as running
from verify.measure.case import Collected, omit_small_error
from verify.measure.counting import tally
from verify.measure.judge import JudgedBy
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.measure.result import LimitCheck, check_limit
from verify.measure.tally import Tally
from verify.measure.trivial import SEEN, trivial_answers
from verify.ops.op import Problem
from verify.records.record import ORDINARY, value_of
from verify.truth.fast import Truth
from verify.truth.formats import Format, named, torch_dtype
from verify.truth.ulp import errors

CPU = Interpreter("cpu")
SUM = verify.kernel(like=lambda x: x.cumsum(-1), shapes={"x": "n d"})(lambda x: x.cumsum(-1))  # judged by its noise
COUNT = 64
SIGNS = torch.tensor([1.0, -1.0]).double().repeat(COUNT // 2)
DRAWN = torch.rand(COUNT, generator=torch.Generator().manual_seed(0)).double()


def truth_of(value: Tensor, noise: float = 1e-9) -> Truth:
    nothing = torch.zeros_like(value)
    return Truth(value, None, nothing, value.abs(), "by hand", noise=torch.full_like(value, noise))


def tried(
    truth: Truth, x: Tensor | None = None, *, fmt: Format | None = None, ordinary: Tensor | None = None, seed: int = 0
) -> dict[str, Tally]:
    """The tallies of the trivial answers of a result y, beside an operand x of its shape."""
    shape = truth.value.shape
    problem = Problem(inputs={} if x is None else {"x": x}, params={}, results=("y",))
    mask = torch.ones(shape.numel(), dtype=torch.bool) if ordinary is None else ordinary
    return trivial_answers(JudgedBy(SUM.op, problem, "y", truth, fmt or named("float32"), seed=seed), mask)


def verdict(truth: Truth, trivial: Mapping[str, Tally], **said: Any) -> LimitCheck:
    """On a kernel that returns the truth, rounded."""
    options = {"shapes": {"x": "n d"}, "dtypes": ["float32"], "gradients": False, **said}
    kernel = verify.kernel(like=lambda x: x.cumsum(-1), **options)(lambda x: x.cumsum(-1))
    fmt, unit = named("float32"), truth.unit("noise", 0.0)
    [right] = tally(errors(truth.value.to(torch_dtype(fmt)), truth.value, fmt, scale=unit))
    return check_limit(kernel, "float32", "y", {("all", ORDINARY): right}, trivial)


def test_each_answer_has_the_error_that_a_kernel_would_have_had_with_it() -> None:
    value, noise = 3 * SIGNS + DRAWN, 1e-3
    x = (10 * DRAWN).float()
    found = tried(truth_of(value, noise), x)
    by_hand = {
        "zeros": torch.zeros_like(value),
        "their mean": value.mean().expand(COUNT),
        "half of them": value / 2,
        "values 1% off": value * 1.01,
        "a copy of x": x.double(),
    }
    assert set(found) == set(by_hand)
    for name, answer in by_hand.items():
        given = answer.float().double()
        half = 0.5 * torch.exp2(value.abs().log2().floor() - 23)
        expected = ((given - value).abs() - half).clamp(min=0) / noise
        judged = found[name].scaled
        assert found[name].n == COUNT and judged is not None
        assert value_of(judged.seen) == pytest.approx(float(expected.max()), rel=1e-9), name


def test_a_percent_is_two_spacings_where_those_are_more() -> None:
    """1% of 1 is 1.3 spacings of bfloat16: some kernels that are right would be as far off."""
    found = tried(truth_of(torch.ones(4).double()), fmt=named("bfloat16"))
    assert value_of(found["values 1% off"].plain.seen) == 2.0
    assert value_of(tried(truth_of(torch.ones(4).double()))["values 1% off"].plain.seen) == pytest.approx(
        0.01 * 2**23, abs=1
    )


LOOSE: dict[str, tuple[Tensor, float, Tensor | None]] = {  # the truth, the noise and an operand
    "zeros": (0.5 * SIGNS, 1.0, None),
    "their mean": (100 + SIGNS, 1.0, None),
    "half of them": (10 * SIGNS + DRAWN, 3.0, None),
    "values 1% off": (100 * SIGNS + DRAWN, 1.0, None),
    "a copy of x": (1000 * (DRAWN - 0.5), 1.0, (1000 * (DRAWN - 0.5) + SIGNS).float()),
}


@pytest.mark.parametrize("name", LOOSE)
def test_a_limit_that_lets_a_trivial_answer_pass_is_vacuous(name: str) -> None:
    value, noise, x = LOOSE[name]
    if x is not None:  # a percent off must not pass first
        value = value + torch.sign(value) * 500
        x = x + torch.sign(value).float() * 500
    found = verdict(truth_of(value, noise), tried(truth_of(value, noise), x))
    assert (found.status, found.trivial) == ("vacuous", "")
    assert found.reason == f"{name} would pass: the limit of 8× noise says nothing on ordinary inputs"
    strict = truth_of(value, 1e-6)
    assert verdict(strict, tried(strict, x)).status == "ok"


def test_the_limit_of_the_root_mean_square_is_one_that_a_trivial_answer_has_to_keep() -> None:
    """Half of the values is within 8 times the noise everywhere, and 5 times what the noise explains on average."""
    truth = truth_of(10 * SIGNS + DRAWN, 1.0)
    half = {"half of them": tried(truth)["half of them"]}
    assert 5 < value_of(half["half of them"].scaled.seen) < 8  # type: ignore[union-attr]
    assert verdict(truth, half).status == "ok"
    wider = truth_of(10 * SIGNS + DRAWN, 3.0)
    assert verdict(wider, {"half of them": tried(wider)["half of them"]}).status == "vacuous"


def test_a_declaration_accepts_a_vacuous_result_with_a_reason() -> None:
    truth = truth_of(0.5 * SIGNS, 1.0)
    found = verdict(truth, tried(truth), vacuous={"y": "the inputs  saturate"})
    assert (found.status, found.reason, found.trivial) == ("ok", "", "the inputs saturate")
    other = verdict(truth, tried(truth), gradients=True, vacuous={"dx": "of another result"})
    assert other.status == "vacuous"


def test_a_trivial_answer_that_is_right_is_named_and_no_fault() -> None:
    """ReLU of positive inputs is a copy, the gradient of a constant is zeros."""
    positive = (DRAWN + 1).float()
    copied = truth_of(positive.double())
    found = verdict(copied, tried(copied, positive))
    assert (found.status, found.reason, found.trivial) == ("ok", "", "on ordinary inputs a copy of x is right")
    nothing = truth_of(torch.zeros(COUNT).double())
    assert list(tried(nothing, positive)) == ["zeros"], "half of nothing is no other answer"
    found = verdict(nothing, tried(nothing, positive))
    assert (found.status, found.reason, found.trivial) == ("ok", "", "on ordinary inputs zeros are right")


def test_an_answer_that_is_almost_right_is_vacuous() -> None:
    """One misrounded element of 64: a copy is not the answer, and the limit does not see it."""
    positive = (DRAWN + 1).float()
    value = positive.double()
    value[7] += 2.0**-22
    found = verdict(truth_of(value), tried(truth_of(value), positive))
    assert (found.status, found.trivial) == ("ok", ""), "2 ULP is far above this noise"
    loose = truth_of(value, 2.0**-23)
    assert verdict(loose, tried(loose, positive)).status == "vacuous"


def test_ordinary_elements_alone_are_tried_and_infinite_ones_are_not() -> None:
    value = 3 * SIGNS + DRAWN
    value[5] = torch.inf
    ordinary = torch.arange(COUNT) < 10
    found = tried(truth_of(value), ordinary=ordinary)
    assert {each.n for each in found.values()} == {9}
    assert tried(truth_of(value), ordinary=torch.zeros(COUNT, dtype=torch.bool)) == {}


def test_a_large_result_is_tried_at_some_elements_that_the_seed_chooses() -> None:
    value = torch.linspace(1, 2, 3 * SEEN).double()
    first = tried(truth_of(value))
    assert {each.n for each in first.values()} == {SEEN}
    assert first == tried(truth_of(value)) and first != tried(truth_of(value), seed=1)


def test_of_several_right_values_the_next_one_counts() -> None:
    """Half of these elements may be 0 as well: zeros are right there, and wrong elsewhere."""
    value = 3 + DRAWN
    known = replace(truth_of(value), other=torch.where(SIGNS > 0, 0.0, torch.nan).double())
    zeros = tried(known)["zeros"]
    assert zeros.misrounded == COUNT // 2
    assert tried(truth_of(value))["zeros"].misrounded == COUNT


def normalised(x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:])


def test_zeros_would_pass_a_layer_norm_whose_limit_was_loosened_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    few_cases(monkeypatch, "randn", "mean 1e3")

    def measured(**said: Any) -> Any:
        declare = verify.kernel(like=normalised, shapes={"x": "4 16"}, dtypes=["float32"], gradients=False, **said)
        return only(measure_kernel(declare(normalised), Measure("a.py::norm"), CPU))

    default = measured()
    assert (default.status, default.reason, default.trivial) == ("ok", "", "")
    noisy = measured(max_noise=1e12)
    assert noisy.status == "ok", "the limit of the root mean square still says something"
    loose = {"ordinary": 1e12, "extreme": None}
    hidden = measured(max_ulp=loose)
    assert (hidden.status, hidden.reason.partition(":")[0]) == ("vacuous", "zeros would pass")
    accepted = measured(max_ulp=loose, vacuous={"y": "a smoke test"})
    assert (accepted.status, accepted.trivial) == ("ok", "a smoke test")


BLUNT, SHARP = (truth_of(100 * SIGNS + DRAWN, noise) for noise in (1.0, 1e-6))  # 1% off passes, and does not
EMPTY = truth_of(0.5 * SIGNS, 1.0)  # zeros pass
OFF = "values 1% off would pass"
# the result in question, those beside it (a truth, the kernel's factor, the output), and why it is vacuous
BESIDE: dict[str, tuple[Truth, list[tuple[Truth, float, str]], str]] = {
    "none": (BLUNT, [], OFF),
    "one that shows 1%": (BLUNT, [(SHARP, 1.0, "y")], ""),
    "two, and one shows it": (BLUNT, [(BLUNT, 1.0, "y"), (SHARP, 1.0, "y")], ""),
    "one that does not": (BLUNT, [(BLUNT, 1.0, "y")], OFF),
    "a wrong one": (BLUNT, [(SHARP, 1.5, "y")], OFF),
    "one of zeros, which no percent changes": (BLUNT, [(truth_of(0 * SIGNS), 1.0, "y")], OFF),
    "one of another output": (BLUNT, [(SHARP, 1.0, "dx")], OFF),
    "one that shows zeros too": (EMPTY, [(SHARP, 1.0, "y")], "zeros would pass"),
    "zeros pass in both": (EMPTY, [(EMPTY, 1.0, "y")], "zeros would pass"),
}


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("beside", BESIDE)
def test_another_result_of_the_output_may_show_the_small_error_alone(beside: str, order: int) -> None:
    own, others, reason = BESIDE[beside]
    declare = verify.kernel(like=lambda x: x.cumsum(-1), shapes={"x": "n d"}, dtypes=["float32"])
    kernel, fmt, groups = declare(lambda x: x.cumsum(-1)), named("float32"), list[dict[str, Collected]]()
    for truth, factor, output in [(own, 1.0, "y"), *others]:
        got = (truth.value * factor).to(torch_dtype(fmt))
        [judged] = tally(errors(got, truth.value, fmt, scale=truth.unit("noise", 0.0)))
        groups.append({output: Collected(fmt, parts={("all", ORDINARY): judged}, trivial=tried(truth))})
    omit_small_error(kernel, "float32", groups[::order])
    item = groups[0]["y"]
    found = check_limit(kernel, "float32", "y", item.parts, item.trivial)
    assert (found.status, found.reason.partition(":")[0]) == ("vacuous" if reason else "ok", reason)


@pytest.mark.parametrize("beside", [True, False])
def test_ten_cancelling_sums_of_a_linear_layer_need_no_luck(beside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With this seed 1% of each is below an ULP of the magnitudes of its terms; other sums show 1%."""

    def planned(*given: Any, **options: Any) -> list[Group]:
        first, summed = plan(*given, rows_of="cuda")
        few = tuple(case for case in first.cases if case.regime == "randn")
        return [replace(first, cases=few)] * beside + [replace(summed, results=("dbias",))]

    monkeypatch.setattr(running, "plan", planned)
    dtypes = ["bfloat16", "float32"]
    declare = verify.kernel(op="linear", params={"activation": "id"}, dtypes=dtypes, max_ulp=1, refuses=False)
    asked = Measure("a.py::linear", seed=20261205, dtypes=("bfloat16",))
    run = measure_kernel(declare(lambda x, weight, bias: functional.linear(x, weight, bias)), asked, CPU)
    result = only(run, "dbias (many rows)")
    assert (result.gate, result.limit, result.figures.n) == ("scaled", 1.0, 10)
    expected = ("ok", "") if beside else ("vacuous", OFF)
    assert (result.status, result.reason.partition(":")[0]) == expected
