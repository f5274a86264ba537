"""Gated ops and the linear layer: positions of the packed halves, special values, fused scales."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from mpmath import mp

from tests.ops.exactly import mpf_to_arb
from tests.ops.test_op_routes import covered, spoiled
from verify.errors import UsageError
from verify.ops import Problem, get
from verify.ops.elements import mp_bits

PAIRS = [("geglu", "geglu_split"), ("swiglu", "swiglu_split")]


@pytest.mark.parametrize(("packed", "split"), PAIRS)
def test_the_regime_of_a_packed_element_is_its_gate(packed: str, split: str) -> None:
    op = get(packed)
    x = torch.arange(12.0).view(2, 6)
    problem = Problem({"x": x}, op.resolve({}), {"y": torch.ones(2, 3)}, ("y", "dx"))
    assert op.landmarks.values is not None
    assert op.landmarks.values(problem, "y").tolist() == [[3, 4, 5], [9, 10, 11]]
    assert op.landmarks.values(problem, "dx").tolist() == [[3, 4, 5, 3, 4, 5], [9, 10, 11, 9, 10, 11]]
    assert get(split).landmarks.of == "x2" and get(split).landmarks.values is None


def test_a_packed_input_of_odd_width_is_refused() -> None:
    problem = Problem({"x": torch.ones(2, 3)}, {"approximate": "none"})
    with pytest.raises(ValueError, match=r"x is packed as \[\.\.\., 2d\].*got shape \(2, 3\)"):
        get("geglu").fast(problem)


RECIPES = ("randn", "big", "huge", "tiny", "cancelling", "tail")


@pytest.mark.parametrize("activation", get("linear").choices["activation"])
def test_the_bounds_of_a_linear_layer_hold(activation: str) -> None:
    op = get("linear")
    params = {"activation": activation}
    for recipe, (m, k, n) in itertools.product(RECIPES, ((3, 1, 2), (2, 37, 3), (1, 700, 2))):
        generator = torch.Generator().manual_seed(k)
        shapes = op.shapes((m, k, n), params)
        x, weight, bias = (torch.randn(shape, generator=generator) for shape in shapes.values())
        x = x * {"big": 1e3, "huge": 1e30, "tiny": 1e-20}.get(recipe, 1.0)
        weight = weight / math.sqrt(k)
        if recipe == "cancelling":
            bias = -(x[:1] @ weight.T)[0]
        if recipe == "tail":
            bias = bias - 9
        upstream = {
            "y": torch.randn(m, n, generator=generator),
            "pre": torch.randn(m, shapes["bias"][0], generator=generator),
        }
        inputs = {"x": x, "weight": weight, "bias": bias}
        problem = Problem(inputs, params, upstream, op.outputs + op.gradients)
        for result, fast in op.fast(problem).items():
            assert covered(op, problem, result, fast, 5), (recipe, result, k)


@pytest.mark.parametrize("activation", get("linear").choices["activation"])
def test_elements_that_share_terms_are_what_each_is_alone(activation: str) -> None:
    """Steps of a program are kept by precision: what was made for few bits first must not serve for more."""
    op, params = get("linear"), {"activation": activation}
    generator = torch.Generator().manual_seed(7)
    inputs = {name: torch.randn(at, generator=generator) for name, at in op.shapes((5, 4, 3), params).items()}
    upstream = {"y": torch.randn(5, 3, generator=generator)}
    shared = Problem(inputs, params, upstream, op.outputs + op.gradients)
    for result in op.gradients:
        for prec, index in itertools.product((120, 140, 300, 200), (1, 0, 2)):
            alone = Problem(inputs, params, upstream, op.outputs + op.gradients)
            (kept,), (fresh,) = (op.points(problem, result, [index]) for problem in (shared, alone))
            ball, exact = kept.arb(prec), fresh.mp(prec + 100)
            with mp_bits(prec + 100):
                assert abs(kept.mp(prec) - exact) <= abs(exact) * mp.mpf(2) ** -(prec - 8), (result, prec)
            assert ball.contains(mpf_to_arb(fresh.mp(prec + 200)))
            assert ball.rel_accuracy_bits() > prec - 20, (result, prec, ball.rel_accuracy_bits())


@pytest.mark.parametrize("place", ["x", "weight", "bias", "y"])
@pytest.mark.parametrize("activation", get("linear").choices["activation"])
def test_linear_fast_and_exact_agree_about_what_is_not_finite(activation: str, place: str) -> None:
    op = get("linear")
    params = {"activation": activation}
    for value in (math.inf, -math.inf, math.nan):
        generator = torch.Generator().manual_seed(4)
        shapes = {**op.shapes((3, 4, 2), params), "y": (3, 2)}
        tensors = {name: torch.randn(at, generator=generator) for name, at in shapes.items()}
        tensors[place].view(-1)[-1] = value
        upstream = {"y": tensors.pop("y")}
        problem = Problem(tensors, params, upstream, op.outputs + op.gradients)
        assert spoiled(op, problem), value


@pytest.mark.parametrize("activation", get("linear").choices["activation"])
def test_the_scale_covers_a_sum_that_cancels(activation: str) -> None:
    """2^60 + 1.25 - 2^60 may be 0, or -3000 come out as 4096: first-order terms know nothing of that."""
    op = get("linear")
    large = torch.randn(64, 9, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 2.0**66
    rest = torch.linspace(-3000, 3000, 64, dtype=torch.float64)[:, None]
    x = torch.cat([large, rest, -large.roll(4, -1)], -1)
    shapes = op.shapes((64, x.shape[1], 1), {"activation": activation})
    upstream = {"y": torch.ones(64, 1)}
    problem = Problem(
        {"x": x, "weight": torch.ones(shapes["weight"]), "bias": None},
        {"activation": activation},
        upstream,
        ("y", "dx"),
    )
    scale = op.fast(problem)["y"].scale.flatten().tolist()
    layer = [x, problem.inputs["weight"].double(), None]  # type: ignore[union-attr]
    got = op.baseline(*layer, activation=activation)[0].flatten().tolist()
    exact = [point.mp(120) for point in op.points(problem, "y", range(64))]
    assert all(abs(a - b) <= 12 * 2.0**-53 * size for a, b, size in zip(got, exact, scale, strict=True))
    assert any(abs(a - b) > 1 for a, b in zip(got, exact, strict=True)), "the sums do lose their sign in float64"


def test_linear_wants_three_dims() -> None:
    with pytest.raises(UsageError) as caught:
        get("linear").shapes((4, 5), {})
    assert str(caught.value) == (
        "op 'linear' takes dims (M, K, N); received (4, 5)\n  next: give three dimensions, such as (16, 64, 32)"
    )
    assert get("linear").shapes((2, 3, 4), {"activation": "geglu"}) == {
        "x": (2, 3),
        "weight": (8, 3),
        "bias": (8,),
    }
