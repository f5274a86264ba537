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
from verify.measure.counting import tally
from verify.measure.judge import JudgedBy
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.measure.result import LimitCheck, check_limit
from verify.measure.tally import Tally
from verify.measure.trivial import trivial_answers
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
    return Truth(value, value.abs(), bound=nothing, noise=torch.full_like(value, noise))


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
        "values 3% off": value * 1.03,
        "values 10% off": value * 1.1,
        "values 30% off": value * 1.3,
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


def test_the_smallest_error_is_two_spacings_where_those_are_more() -> None:
    """1% of 1 is 1.3 spacings of bfloat16: some kernels that are right would be as far off."""
    one = truth_of(torch.ones(4).double())
    found = tried(one, fmt=named("bfloat16"))
    assert value_of(found["values two spacings off"].plain.seen) == 2.0 and "values 1% off" not in found
    assert value_of(tried(one)["values 1% off"].plain.seen) == pytest.approx(0.01 * 2**23, abs=1)
    assert [name for name in tried(one, fmt=named("float8_e4m3fn")) if name.startswith("values")] == [
        "values two spacings off",
        "values 30% off",
    ]


LOOSE: dict[str, tuple[Tensor, float]] = {"zeros": (0.5 * SIGNS, 1.0), "half of them": (10 * SIGNS + DRAWN, 3.0)}


@pytest.mark.parametrize("name", LOOSE)
def test_a_limit_that_lets_zeros_or_halves_pass_is_vacuous(name: str) -> None:
    value, noise = LOOSE[name]
    found = verdict(truth_of(value, noise), tried(truth_of(value, noise)))
    assert (found.status, found.trivial) == ("vacuous", "")
    assert found.reason == f"{name} would pass: the limit of 8\u00d7 noise says nothing on ordinary inputs"
    strict = truth_of(value, 1e-6)
    assert verdict(strict, tried(strict)).status == "ok"


SEES: dict[str, tuple[Tensor, float, str]] = {
    "1%": (100 * SIGNS + DRAWN, 0.05, ""),
    "3%": (100 * SIGNS + DRAWN, 0.5, "errors below 3% are not seen"),
    "10%": (100 * SIGNS + DRAWN, 1.5, "errors below 10% are not seen"),
    "half": (100 * SIGNS + DRAWN, 12.0, "errors below 50% are not seen"),
    "the mean and 3%": (100 + SIGNS, 0.5, "their mean would pass, and errors below 3% are not seen"),
}


@pytest.mark.parametrize("case", SEES)
def test_a_verdict_says_which_errors_it_would_not_see(case: str) -> None:
    value, noise, told = SEES[case]
    found = verdict(truth_of(value, noise), tried(truth_of(value, noise)))
    assert (found.status, found.trivial) == ("ok", told and f"on ordinary inputs {told}")


def test_a_copy_of_an_operand_is_no_vacuous_answer() -> None:
    """30 tanh(x / 30) of small numbers is nearly x."""
    value = 10 * SIGNS + DRAWN
    found = verdict(truth_of(value, 1e-3), tried(truth_of(value, 1e-3), (value + 1e-3 * SIGNS).float()))
    assert (found.status, found.trivial) == ("ok", "on ordinary inputs a copy of x would pass")


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
    assert (found.status, found.reason, found.trivial) == (
        "ok",
        "",
        "its limit is vacuous, which the declaration accepts: the inputs saturate",
    )
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


def test_an_answer_that_is_almost_right_is_named() -> None:
    """One misrounded element of 64: a copy is not the answer, and the limit does not see it."""
    positive = (DRAWN + 1).float()
    value = positive.double()
    value[7] += 2.0**-22
    found = verdict(truth_of(value), tried(truth_of(value), positive))
    assert (found.status, found.trivial) == ("ok", ""), "2 ULP is far above this noise"
    loose = truth_of(value, 2.0**-23)
    assert verdict(loose, tried(loose, positive)).trivial.endswith("copy of x would pass")


def test_ordinary_elements_alone_are_tried_and_infinite_ones_are_not() -> None:
    value = 3 * SIGNS + DRAWN
    value[5] = torch.inf
    ordinary = torch.arange(COUNT) < 10
    found = tried(truth_of(value), ordinary=ordinary)
    assert {each.n for each in found.values()} == {9}
    assert tried(truth_of(value), ordinary=torch.zeros(COUNT, dtype=torch.bool)) == {}


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
    assert (accepted.status, accepted.trivial) == (
        "ok",
        "its limit is vacuous, which the declaration accepts: a smoke test",
    )
