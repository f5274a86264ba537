"""Which way results are rounded: to nearest has no bias, and one side is found by default."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import verify
from mutants import biased
from tests.measure.test_kernel import measured
from verify.measure.counting import bias_of
from verify.measure.tally import BIAS_LIMIT, FEWEST_BLOCKS, FEWEST_TRUTHS, Bias
from verify.truth.formats import named
from verify.truth.ulp import errors

FMT = named("bfloat16")
PAIRS = tuple(biased.NOTES)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def found(got: Tensor, truth: Tensor, *, apart: bool = True) -> Bias:
    judged = errors(got, truth, FMT)
    [bias] = bias_of(judged, truth, FMT, tuple(truth.shape), apart=apart, segments=None, n_segments=1)
    return bias


def cut(truth: Tensor) -> Tensor:
    return biased.stored(truth.float(), torch.bfloat16, right=False)


@pytest.mark.parametrize(
    "truth",
    [
        drawn(4096),
        0.6931471805599453 + drawn(4096) * 1e-9,  # thousands of elements with one rounded number
        drawn(4096).bfloat16().double() * (1 + 2.0**-9 * 0.9),  # just below a midpoint, everywhere
        drawn(4096).abs() * 1e-42,  # below the least number
    ],
    ids=["ordinary", "one number", "below midpoints", "underflow"],
)
def test_the_correctly_rounded_result_has_no_bias(truth: Tensor) -> None:
    assert found(truth.float().bfloat16(), truth).outward == 0


def test_cutting_off_digits_is_half_an_ulp_toward_zero() -> None:
    bias = found(cut(drawn(64, 512)), drawn(64, 512))
    assert bias.count > 1000
    assert -0.5 - 3 * bias.error <= bias.mean <= -0.5 + 3 * bias.error
    assert bias.sure > BIAS_LIMIT


def test_elements_with_one_rounded_truth_count_once() -> None:
    """A kernel that is an ULP off at log 2 is so at every tiny input."""
    truth = torch.full((4096,), 0.6931471805599453, dtype=torch.float64)
    assert found((truth.bfloat16().float() * (1 + 2.0**-7)).bfloat16(), truth).count == 1


def test_numbers_that_the_format_holds_say_nothing_of_rounding() -> None:
    assert found(drawn(512).bfloat16(), drawn(512).bfloat16().double()).count == 0


@pytest.mark.parametrize("rows", [1, 2, 8, 64])
def test_a_rounding_that_a_row_shares_is_one_observation(rows: int) -> None:
    """The scale of each row is rounded to bfloat16. Whole rows are too large, or too small: chance, and no rule."""
    for seed in range(20):
        x, scale = drawn(rows, 512, seed=seed), 1.0 + drawn(rows, 1, seed=seed + 100).abs()
        assert found((x * scale.bfloat16().double()).float().bfloat16(), x * scale, apart=False).sure <= BIAS_LIMIT


def test_few_elements_or_blocks_are_never_sure() -> None:
    few = FEWEST_TRUTHS - 1
    assert Bias(few, -few, few, few, -few, few).sure == 0.0
    blocks = FEWEST_BLOCKS - 1
    assert Bias(70 * blocks, -70 * blocks, blocks, 4900 * blocks, -4900 * blocks, 4900 * blocks).sure == 0.0
    assert Bias(FEWEST_TRUTHS, -FEWEST_TRUTHS, FEWEST_TRUTHS, *(FEWEST_TRUTHS * s for s in (1, -1, 1))).sure == 1.0


def test_two_halves_make_the_bias_of_the_whole() -> None:
    a, b = (found(cut(drawn(64, 64, seed=seed)), drawn(64, 64, seed=seed)) for seed in (1, 2))
    both = a.merge(b)
    assert both.count == a.count + b.count
    assert both.mean == pytest.approx((a.outward + b.outward) / (a.count + b.count))
    assert max(a.error, b.error) / 2 < both.error < min(a.error, b.error)


# -- the twins ---------------------------------------------------------------------------------------------


def inputs_of(kernel: Any) -> tuple[Tensor, ...]:
    """Draws operands for the specimens, whose shapes are `r n` and `n`."""
    shapes = kernel.op.shapes((64, 128) if len(kernel.op.geometry.dims) == 2 else (4096,), {})
    dtype = getattr(torch, kernel.dtypes[0])
    return tuple(drawn(*shape, seed=at).to(dtype) for at, shape in enumerate(shapes.values()))


def compare(kernel: Any) -> None:
    """Compares a specimen as a user's test does."""
    inputs, said = inputs_of(kernel), {}
    if kernel.gradients == ("input",):
        x = inputs[0].clone().requires_grad_(True)
        y = kernel.function(x)
        upstream = drawn(*y.shape, seed=9).to(y.dtype)
        said = {"grads": torch.autograd.grad(y, [x], upstream), "upstream": upstream}
        y = y.detach()
    else:
        y = kernel.function(*inputs)
    verify.assert_close(y, like=kernel.op.meaning.callee.function, inputs=inputs, **said)


@pytest.mark.parametrize("name", PAIRS)
def test_assert_close_finds_one_sided_rounding_and_passes_its_twin(name: str) -> None:
    compare(getattr(biased, name))
    with pytest.raises(AssertionError, match="rounded (toward|away from) zero|noise"):
        compare(getattr(biased, f"{name}_wrong"))


def test_a_run_judges_it_by_default_and_shows_it_by_class() -> None:
    twin, mutant = measured(biased.residual), measured(biased.residual_wrong)
    assert twin.status == "ok"
    assert {each.figures.bias for each in twin.results[0].classes} == {0.0}
    [result] = mutant.results
    assert result.status == "wrong"
    assert "distinct ordinary inputs are rounded toward zero: -0.4" in result.reason
    assert result.reason.endswith("ULP on average, the limit is 0.25")
    assert {each.name for each in result.classes if each.reason} >= {"ordinary", "demanding"}


def test_a_declared_limit_excuses_it() -> None:
    assert measured(biased.silu_declared).status == "ok"


def test_pytorchs_own_bias_excuses_one_as_large() -> None:
    """PyTorch adds 0.001 eight times and rounds each time to the number before, so that all is lost."""

    def slowly(x: Tensor) -> Tensor:
        for _ in range(8):
            x = x + 0.001
        return x

    x = (1 + 2 * drawn(4096).abs() % 1).bfloat16()
    assert torch.equal(slowly(x), x)
    verify.assert_close(x, like=slowly, inputs=(x,))
    with pytest.raises(AssertionError, match="rounded toward zero"):
        verify.assert_close(x, like=lambda x: x + 0.0075, inputs=(x,))


@pytest.mark.slow
def test_every_mutant_is_wrong_and_every_twin_right_in_a_run() -> None:
    for name in PAIRS:
        assert measured(getattr(biased, name)).status == "ok", name
        assert measured(getattr(biased, f"{name}_wrong")).status == "wrong", name
