"""Elementwise programs: noise beside ULP. Near a zero of the function a kernel may lose what its roundings lose."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import verify
from tests.measure.test_kernel import CPU, few_cases, only
from verify.measure.counting import tally
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.records.readings import judged as judged_by_gate
from verify.records.readings import parts
from verify.records.record import Result, value_of
from verify.report.result_words import result_notes
from verify.search.hunt.outcome import hunt
from verify.search.hunt.requests import Hunt, Settings
from verify.search.sweep.checking import check
from verify.search.sweep.finishing import finish
from verify.search.sweep.serve import space_of
from verify.truth.formats import named
from verify.truth.ulp import Yardstick, errors

FMT = named("float32")
ROOT = 0.7**0.5


def curve(x: Tensor) -> Tensor:
    return torch.log(0.3 + x * x)


def near_root(dtype: torch.dtype) -> Tensor:
    """Numbers around the root and elsewhere, of which the logarithm has few digits."""
    return torch.cat([ROOT + torch.linspace(-1e-3, 1e-3, 401), torch.linspace(-4, 4, 401)]).to(dtype)


def accepts(got: Tensor, like: Callable[..., Any], *inputs: Tensor) -> bool:
    try:
        verify.assert_close(got, like=like, inputs=inputs)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_kernel_may_lose_near_a_root_what_its_steps_lose(dtype: torch.dtype) -> None:
    x = near_root(dtype)
    assert accepts(curve(x), curve, x), "step by step, each rounded to the format"
    assert accepts(curve(x.float()).to(dtype), curve, x)
    off = 1.001 if dtype == torch.float32 else 1.02
    assert not accepts((curve(x.double()) * off).to(dtype), curve, x)
    assert not accepts(torch.zeros_like(x), curve, x)


def test_a_constant_is_rounded_where_it_is_subtracted() -> None:
    x = torch.linspace(0.29, 0.31, 401)
    assert accepts(x - torch.tensor(0.3), lambda x: x - 0.3, x)
    assert not accepts(x - torch.tensor(0.3001), lambda x: x - 0.3, x)
    narrow = x.bfloat16()
    assert accepts(narrow - torch.tensor(0.3).bfloat16(), lambda x: x - 0.3, narrow), "eager PyTorch may round it"


def test_a_table_of_constants_is_rounded_too() -> None:
    """The table has its shape by indexing: the program is of single elements, but not of elementwise steps alone."""

    def biased(s: Tensor) -> Tensor:
        slope = torch.tensor([0.3, 0.7], dtype=s.dtype)[:, None]
        return s + torch.arange(s.shape[1]) * slope

    s = -torch.tensor([[0.3], [0.7]]) * torch.arange(64) + torch.linspace(-1e-3, 1e-3, 64)
    assert accepts(biased(s), biased, s)
    assert not accepts(biased(s) + 1e-5, biased, s)


def test_a_gradient_by_a_saved_output_of_16_bits_passes() -> None:
    x = torch.linspace(-6, 6, 801).bfloat16()
    saved, dy = torch.tanh(x), torch.ones_like(x)
    gradient = (1 - saved.float().square()).bfloat16()
    verify.assert_close(saved, like=torch.tanh, inputs=(x,), grads=(gradient,), upstream=dy)


def test_a_saturated_function_is_rounded() -> None:
    """1 + tanh(-20) is 0 in float64 too, whose noise must not be 0."""
    x = torch.linspace(-30, 4, 200)
    right = 1 + torch.tanh(x)
    assert accepts(torch.where(x < -20, 2.0**-24, right), lambda x: 1 + torch.tanh(x), x)
    assert not accepts(torch.where(x < -20, 2.0**-10, right), lambda x: 1 + torch.tanh(x), x)


def test_an_explicit_limit_in_ulp_is_a_promise_in_ulp() -> None:
    x = near_root(torch.float32)
    strict = verify.kernel(like=curve, dtypes=["float32"], max_ulp=10)(curve)
    default = verify.kernel(like=curve, dtypes=["float32"])(curve)
    assert default.beside_noise and not strict.beside_noise
    assert (strict.noise_floor("float32", "y"), default.noise_floor("float32", "y")) == (0.0, (10 - 0.5) / 8)
    assert accepts(curve(x), curve, x)


# -- the figure ---------------------------------------------------------------------------------------------


def judged(off: float, noise: float, floor: float = 1.0) -> float:
    """The error in ULP less noise of a result that is off by so many ULP; the noise too is in ULP."""
    truth = torch.tensor([1.5 - off * 2.0**-23], dtype=torch.float64)
    unit = Yardstick(torch.tensor([noise * 2.0**-23], dtype=torch.float64), floor, beside=True)
    found = errors(torch.tensor([1.5]), truth, FMT, scale=unit)
    assert found.scaled is not None
    assert float(found.ulp) == pytest.approx(off)
    return float(found.scaled)


def test_noise_below_the_floor_changes_no_figure_and_larger_noise_shrinks_it() -> None:
    for off in (0.25, 3.0, -20.0):
        assert judged(off, 0.0) == judged(off, 1.0) == pytest.approx(off)
    assert judged(20.5, 10.0) == pytest.approx(0.5 + 2.0)
    assert judged(-20.5, 10.0) == pytest.approx(-2.5)
    assert judged(0.25, 10.0) == pytest.approx(0.25), "within half a ULP it is what it is"


def test_tallies_with_and_without_noise_have_one_maximum() -> None:
    """A case whose elements keep the limit in ULP needs no noise; zeros tried there are no less wrong."""
    truth = torch.tensor([1.5 - 1000 * 2.0**-23], dtype=torch.float64)
    unit = Yardstick(torch.tensor([1e6 * 2.0**-23], dtype=torch.float64), 1.0, beside=True)
    [plain] = tally(errors(torch.tensor([1.5]), truth, FMT))
    [less] = tally(errors(torch.tensor([1.5]), truth, FMT, scale=unit))
    assert less.scaled is not None and float(less.scaled.upper) < 1
    for both in (plain.merge(less), less.merge(plain)):
        assert both.scaled is not None and float(both.scaled.upper) == pytest.approx(1000)


# -- the verdict --------------------------------------------------------------------------------------------


def measured(like: Callable[..., Any], function: Callable[..., Any], **said: Any) -> Result:
    declare = verify.kernel(like=like, dtypes=["float32"], gradients=False, **said)
    return only(measure_kernel(declare(function), Measure("a.py::kernel"), CPU))


def one_plus_tanh(x: Tensor) -> Tensor:
    return x * (1 + torch.tanh(x))


@pytest.fixture(scope="module")
def lost() -> Result:
    """A kernel that loses the tail which its definition loses."""
    with pytest.MonkeyPatch.context() as patch:
        few_cases(patch)
        return measured(one_plus_tanh, one_plus_tanh)


def test_a_tail_that_the_definition_loses_too_is_a_note_and_no_verdict(lost: Result) -> None:
    assert lost.status == "ok"
    [note] = [text for text in result_notes(lost) if "rounding" in text]
    assert "loses the tail on " in note or " ULP off on " in note


def test_a_bound_is_about_the_error_that_the_verdict_is_about(lost: Result) -> None:
    """An error in ULP of a lost tail says nothing of a kernel: a bound of it would stand for all others."""
    assert value_of(lost.figures.max_upper) > 1e6
    assert judged_by_gate(lost.figures, "plain") <= lost.limit
    assert all(part.value("plain") <= lost.limit for part in parts(lost))


def test_a_tail_that_the_definition_keeps_is_wrong_without_it() -> None:
    x = torch.linspace(-8, 2, 401)
    assert not accepts(0.5 * x * (1 + torch.erf(x * 0.5**0.5)), lambda x: functional.gelu(x), x)


def test_a_kernel_declares_noise_beside_ulp_for_a_default_limit_alone() -> None:
    assert "beside_noise" in {each.name for each in dataclasses.fields(verify.Kernel)}
    summed = verify.kernel(like=lambda x: x.sum(-1), shapes={"x": "n d"}, dtypes=["float32"])(lambda x: x.sum(-1))
    shipped = verify.kernel(op="silu", dtypes=["float32"])(functional.silu)
    assert not summed.beside_noise and not shipped.beside_noise


def test_a_hunt_judges_by_the_noise_that_a_run_judges_by() -> None:
    """Its search goes for the root, where each kernel that takes the steps loses digits."""
    what, settings = Hunt("float32", "y"), Settings(evaluations=3000, largest=2.0)
    declare = verify.kernel(like=curve, dtypes=["float32"], gradients=False)
    found = hunt(declare(curve), "a.py::k", CPU, what, settings).result
    assert found.status == "ok" and value_of(found.figures.max_ulp) > found.limit
    assert value_of(found.figures.scaled_upper or "nan") <= found.limit
    wrong = hunt(declare(lambda x: curve(x) * 1.001), "a.py::k", CPU, what, settings).result
    assert wrong.status == "wrong"


def test_a_sweep_judges_by_the_noise_that_a_run_judges_by() -> None:
    declare = verify.kernel(like=curve, dtypes=["bfloat16"], gradients=False)

    def stepped(x: Tensor) -> Tensor:
        return torch.log((0.3 + (x * x).double()).to(x.dtype).double()).to(x.dtype)

    for function, status in ((stepped, "ok"), (lambda x: (stepped(x).double() * 1.03).to(x.dtype), "wrong")):
        kernel = declare(function)
        space = space_of(kernel, "a.py::k", "bfloat16", bounds=(0.5, 1.5))
        [found] = finish(kernel, space, check(kernel, space, (0, space.chunks), CPU)).results
        assert found.status == status and value_of(found.figures.max_ulp) > found.limit
        assert (value_of(found.figures.scaled_upper or "nan") <= found.limit) == (status == "ok")


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_noise_is_that_of_the_program_as_it_is_written(dtype: torch.dtype, summed: bool) -> None:
    """1 - sigmoid(x) cancels, and the truth is computed as sigmoid(-x)."""
    x = torch.linspace(-6, 9, 128).to(dtype).reshape(2, 64)
    kept = torch.sigmoid(x.double()).to(dtype)
    by_steps = (1 - kept.double()).to(dtype)

    def like(x: Tensor) -> Tensor:
        return (1 - torch.sigmoid(x)).sum(-1) if summed else 1 - torch.sigmoid(x)

    ends = (lambda y: y.double().sum(-1).to(dtype)) if summed else lambda y: y
    assert accepts(ends(by_steps), like, x), "as it is written"
    assert accepts(ends(torch.sigmoid(-x.double()).to(dtype)), like, x), "better than it is written"
    off = 1.001 if dtype == torch.float32 else 1.03
    assert not accepts(ends(by_steps.double() * off).to(dtype), like, x)


def test_steps_that_round_to_the_end_of_a_range_are_right() -> None:
    """A sigmoid rounds to 1, and the quotient to 0. No small disturbance of it shows that."""
    x = torch.cat([torch.linspace(-4, 4, 100), torch.tensor([20.0])])

    def like(x: Tensor) -> Tensor:
        rest = 1 - torch.sigmoid(x)
        return rest / (rest + 1e-30)

    by_steps = torch.ones(101)
    assert accepts(by_steps, like, x)
    by_steps[100] = 0.0
    assert accepts(by_steps, like, x)
    by_steps[99] = 0.0
    assert not accepts(by_steps, like, x)


def test_a_constant_is_rounded_in_every_step_alike() -> None:
    x = torch.linspace(900, 1000, 256).reshape(2, 128)
    rounded = torch.tensor(0.1).double()
    by_steps = torch.remainder(x.double(), rounded).sum(-1).float()

    def like(x: Tensor) -> Tensor:
        return torch.remainder(x, 0.1).sum(-1)

    assert accepts(by_steps, like, x) and not accepts(by_steps * 1.001, like, x)


def test_a_constant_of_a_remainder_may_be_rounded_to_16_bits() -> None:
    x = torch.tensor([-2.40625, 1.328125, 3.34375, 0.0625]).bfloat16()
    like = lambda x: torch.fmod(x, 0.1)  # noqa: E731
    for constant in (0.1, 0.10009765625):
        assert accepts(torch.fmod(x.double(), constant).bfloat16(), like, x)
    assert not accepts(torch.fmod(x.double(), 0.1015625).bfloat16(), like, x)


MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda y: y.mT,
    "stacked": lambda y: torch.stack([y, y]),
    "padded": lambda y: functional.pad(y, (1, 1), value=1.0),
    "multiplied by positions": lambda y: y * torch.arange(y.shape[-1]),
    "selected": lambda y: y[:, [0, 0, 5, 300]],
}


@pytest.mark.parametrize("name", MOVES)
def test_a_program_that_moves_numbers_is_judged_as_one_that_does_not(name: str) -> None:
    x, move = near_root(torch.float16).reshape(2, -1), MOVES[name]
    inner = (0.3 + (x * x).double()).half()
    by_steps = torch.log(inner.double()).half()
    like = lambda x: move(curve(x))  # noqa: E731
    assert accepts(move(by_steps), like, x), "each step rounded to the format"
    assert not accepts((move(curve(x.double())) * 1.02).half(), like, x)
    assert not accepts(torch.zeros_like(move(x)), like, x)


@pytest.mark.parametrize(("steps", "right"), [(7, True), (14, False)])
def test_a_result_without_a_sum_has_its_limit_in_ulp_also_beside_a_sum(steps: int, right: bool) -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.tanh(), x.sum(-1)

    x = torch.tensor([0.5, 1.0, 2.0, 0.25])
    y = x.double().tanh().float()
    y = (y.view(torch.int32) + steps).view(torch.float32)
    assert accepts(y, torch.tanh, x) is right
    assert accepts((y, x.sum(-1)), both, x) is right
    declared = verify.kernel(like=both, shapes={"x": "n"}, dtypes=["float32", "bfloat16"])(both)
    limits = {
        (dtype, name): declared.ulp_limit(dtype, name) for dtype in declared.dtypes for name in ("y1", "y2", "dx")
    }
    assert list(limits.values()) == [10, 4, 4, 1, 1, 1]
    strict = verify.kernel(like=both, shapes={"x": "n"}, dtypes=["float32"], max_ulp=2, name="strict")(both)
    assert strict.ulp_limit("float32", "y1") == 2


@pytest.mark.parametrize("count", [13, 15, 30])
def test_equal_results_that_are_all_rounded_alike_are_right(count: int) -> None:
    """1 / 30 is half a spacing off in bfloat16. In a softmax of equal logits, all elements are off by that."""
    x = torch.zeros(64, count, dtype=torch.bfloat16)
    right = torch.full((64, count), 1 / count).bfloat16()
    assert accepts(right, lambda x: functional.softmax(x, -1), x)
    assert not accepts(right * 1.02, lambda x: functional.softmax(x, -1), x)
