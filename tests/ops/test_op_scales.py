"""The scales of rows: layer norm's beside its definition in fractions."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import pytest
import torch
from mpmath import mp
from torch import Tensor

import verify
from tests.ops.test_op_rows import problem_of
from verify.ops import Problem, get
from verify.truth import formats
from verify.truth.ulp import errors

LAYER_NORMS = ("layer_norm", "layer_norm_residual", "layer_norm_residual_bias")
RECIPES = ("randn", "mean 1e4", "near constant", "constant", "outlier", "tiny", "huge", "wide range", "pairs")


def sizes(row: list[Fraction], eps: float, least: float) -> list[Any]:
    """max(|xhat|, least * rms) of a row: nothing but two square roots is rounded."""
    mean = sum(row, Fraction(0)) / len(row)
    variance = sum(((value - mean) ** 2 for value in row), Fraction(0)) / len(row)
    deviation, root = (mp.sqrt(mp.mpf(v.numerator) / v.denominator) for v in (variance, variance + Fraction(eps)))
    distances = [abs(value - mean) for value in row]
    return [max(mp.mpf(d.numerator) / d.denominator, least * deviation) / root for d in distances]


def rational_scales(problem: Problem, names: list[str], least: float) -> tuple[list[Any], list[Any]]:
    """The scales of y, row after row, and of dweight."""
    rows, width = next(t.shape for name in names if (t := problem.inputs[name]) is not None and t.ndim == 2)
    inputs = {
        name: torch.full((rows, width), default) if tensor is None else tensor.expand(rows, width)
        for name, default in ((*((name, 0.0) for name in names), ("weight", 1.0), ("bias", 0.0)))
        for tensor in [problem.inputs[name]]
    }
    dy = problem.upstream["y"]
    y, dweight = [], [mp.zero] * width
    for place in range(rows):
        row = [sum((Fraction(float(inputs[n][place, c])) for n in names), Fraction(0)) for c in range(width)]
        for column, size in enumerate(sizes(row, problem.params["eps"], least)):
            weight, bias = (abs(float(inputs[name][place, column])) for name in ("weight", "bias"))
            y.append(weight * size + bias)
            dweight[column] += abs(float(dy[place, column])) * size
    return y, dweight


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", LAYER_NORMS)
def test_the_scale_is_the_one_of_its_definition(name: str, recipe: str) -> None:
    op = get(name)
    summands = [operand.name for operand in op.operands if operand.name not in ("weight", "bias")]
    below = 0
    for (dtype, least), bare in itertools.product(
        ((torch.bfloat16, 2.0**-24), (torch.float32, 2.0**-24), (torch.float64, 2.0**-53)), (False, True)
    ):
        problem = problem_of(op, recipe, (2, 16), dtype)
        if bare:
            problem = Problem(problem.inputs | {"weight": None, "bias": None}, problem.params, problem.upstream)
        problem = Problem(problem.inputs, problem.params, problem.upstream, ("y",) if bare else ("y", "dweight"))
        fast = op.fast(problem)
        # float64 knows a deviation to some 2^-51 of the largest, so the least one in rows of float64 to a few percent
        near = 1e-7 if least > 2.0**-53 else 0.25
        with mp.workprec(200):
            for result, expected in zip(("y", "dweight"), rational_scales(problem, summands, least), strict=True):
                if result in fast:
                    for got, want in zip(fast[result].scale.flatten().tolist(), expected, strict=True):
                        assert abs(got - want) <= near * want, (result, dtype, bare)
        if bare:
            below += int((fast["y"].scale > 1.5 * fast["y"].value.abs()).sum())
    # above |xhat| only where large elements cancel, or hide the mean
    assert (below > 0) == (recipe == "pairs")


def scaled(got: Tensor, problem: Problem) -> Tensor:
    """The scaled errors of y, as they are judged."""
    truth = get("layer_norm").fast(problem)["y"]
    found = errors(got, truth.value, formats.of(got.dtype), scale=truth.scale).scaled
    assert found is not None
    return found.abs().reshape(got.shape)


def bare(x: Tensor, eps: float = 1e-5) -> Problem:
    return Problem({"x": x, "weight": None, "bias": None}, {"eps": eps})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_an_element_at_the_mean_is_held_to_a_mean_of_two_words_and_no_more(dtype: torch.dtype) -> None:
    """Four of a row of six are its exact mean, which is what rows of large elements that cancel come to in a hunt."""
    problem = bare(torch.tensor([[6.25, 6.25, 6.25, 8.25, 4.25, 6.25]], dtype=dtype))
    truth = get("layer_norm").fast(problem)["y"]
    at_mean = truth.value == 0
    assert int(at_mean.sum()) == 4
    assert truth.scale[at_mean].tolist() == pytest.approx([2.0**-24] * 4, rel=1e-5, abs=0)
    two_words, one_word = (torch.where(at_mean, error, truth.value).to(dtype) for error in (2.0**-50, 2.0**-24))
    assert float(scaled(two_words, problem).max()) <= 0.5
    assert float(scaled(one_word, problem)[at_mean].min()) >= 2.0 ** formats.of(dtype).mantissa_bits


def test_what_a_mean_of_one_word_loses_is_not_excused() -> None:
    """PyTorch, and a mean of squares less a squared mean, in float32: on a large mean and on one that is exactly 0."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, 256, generator=generator)
    opposite = torch.cat([x[:, :127], -x[:, :127], torch.zeros(4, 2)], -1)[:, torch.randperm(256, generator=generator)]
    for given in (x + 1e4, opposite):
        mean = given.mean(-1, keepdim=True)
        variance = (given.square().mean(-1, keepdim=True) - mean.square()).clamp_min(0)
        textbook = (given - mean) / torch.sqrt(variance + 1e-5)
        for got in (torch.nn.functional.layer_norm(given, (256,)), textbook):
            assert float(scaled(got, bare(given)).max()) > 1e4


def test_sums_over_rows_in_16_bits_have_the_scale_of_float32_accumulators() -> None:
    """257 upstream gradients of both signs: adding up in bfloat16 loses a sum that is smaller than its terms."""
    dy = torch.randn(257, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    x = torch.randn(257, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    given = x, torch.ones(64).bfloat16(), torch.ones(64).bfloat16()

    def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (64,), weight, bias)

    def accepts(dbias: torch.Tensor) -> bool:
        try:
            verify.assert_close(None, like=layer, inputs=given, grads={"bias": dbias}, upstream=dy, max_ulp=1)
        except AssertionError:
            return False
        return True

    total = torch.zeros(64).bfloat16()
    for row in dy:
        total = total + row
    exact = dy.double().sum(0)
    assert float(((total.double() - exact) / exact).abs().max()) > 0.4
    assert not accepts(total)
    assert accepts(dy.float().sum(0).bfloat16())
    assert accepts(dy.float().cumsum(0)[-1].bfloat16()), "one after the other"


@pytest.mark.parametrize(
    ("dtype", "wrong"), [(torch.float32, 1e-4), (torch.float64, 1e-12), (torch.bfloat16, 0.1)], ids=str
)
def test_a_softmax_is_held_to_the_rounding_of_its_differences_and_no_more(dtype: torch.dtype, wrong: float) -> None:
    """A softmax may subtract a number a little below the largest. One whose scores are off is wrong."""
    x = (3 * torch.randn(64, 257, generator=torch.Generator().manual_seed(0))).to(dtype)
    y = get("softmax").fast(Problem(inputs={"x": x}, params={}, upstream={}, results=("y",)))["y"]

    def off(lag: float, by: float = 0.0) -> float:
        wide = (1 + by) * (x.float() if dtype == torch.bfloat16 else x)
        e = (wide - (wide.amax(-1, True) - lag)).exp()
        found = errors((e / e.sum(-1, True)).to(dtype), y.value, formats.of(dtype), scale=y.scale).scaled
        assert found is not None
        return float(found.max())

    limit = 1.0 if dtype == torch.bfloat16 else 4.0
    assert max(off(0.0), off(4.0)) < limit < off(0.0, wrong)
