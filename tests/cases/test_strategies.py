"""Spaces of cases: every choice is taken once."""

from __future__ import annotations

import random

import pytest
import torch

import verify
from verify.cases import inputs_of
from verify.cases.layouts import LAYOUTS
from verify.cases.strategies import (
    EITHER_PATH,
    ELEMENT_RECIPES,
    EPSILONS,
    ROW_RECIPES,
    Layouts,
    Sizes,
    fixed_shapes,
    space,
)
from verify.cases.values import SMALL, Stream, fill
from verify.truth.formats import named


@verify.kernel(op="layer_norm", dtypes=["bfloat16", "float32"])
def norm(x, weight, bias, *, eps):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


@verify.kernel(op="geglu", dtypes=["float32"], gradients=False)
def packed(x):
    first, second = x.chunk(2, -1)
    return first * torch.nn.functional.gelu(second)


@verify.kernel(op="silu", dtypes=["float32"])
def silu(x):
    return torch.nn.functional.silu(x)


def test_each_choice_is_taken_once() -> None:
    layouts = tuple(LAYOUTS)
    found = space(norm, "float32", layouts=Layouts(layouts, layouts), upstream=("normal", "ones")).each_choice()
    assert {case.fill for case in found} == set(ROW_RECIPES)
    assert {case.params["eps"] for case in found if "eps" in case.params} == set(EPSILONS)
    assert {case.upstream for case in found} == {"normal", "ones"}
    turned = [case for case in found if len(case.layouts) > 1]
    assert [case.dims for case in turned] == [(64, 64), (71, 57)]
    assert all(set(case.layouts.values()) == {"transposed"} for case in turned)
    assert {case.dims for case in found if case not in turned} == set(fixed_shapes(norm, Sizes()))
    placed = [(name, layout) for case in found if case not in turned for name, layout in case.layouts.items()]
    strided = [layout for layout in layouts if layout != "contiguous"]
    assert sorted(placed) == sorted((name, layout) for name in ("x", "weight", "bias", "dy") for layout in strided)
    assert len({case.to_json() for case in found}) == len(found)


def test_all_but_one_choice_stay_plain() -> None:
    plain, *others = space(norm, "float32", layouts=Layouts(("contiguous", "stepped"))).each_choice()
    assert (plain.seed, plain.layouts, plain.params) == (0, {}, {})
    for case in others:
        changed = [case.fill != plain.fill, case.dims != plain.dims, case.params != {}, case.layouts != {}]
        assert sum(changed) == 1, case


def test_each_recipe_meets_each_parameter_and_each_optional_operand_is_left_out_alone() -> None:
    chosen = space(norm, "float32")
    pairs = [(case.fill, case.params["eps"]) for case in chosen.each_pair()]
    assert sorted(pairs) == sorted((recipe, eps) for recipe in ROW_RECIPES[1:] for eps in EPSILONS[1:])
    assert ("constant", 1e-12) in pairs and ("mean -1e3", 1e-12) in pairs
    assert [case.absent for case in chosen.each_alone()] == [("weight",), ("bias",)]
    assert space(silu, "float32").each_pair() == space(silu, "float32").each_alone() == ()


def test_a_call_without_gradients_is_one_choice_of_the_upstream() -> None:
    chosen = space(silu, "float32", upstream=EITHER_PATH)
    assert [case.upstream for case in chosen.each_choice()].count("") == 1
    rolled = [chosen.roll(random.Random(seed)).upstream for seed in range(200)]
    assert 20 < rolled.count("") < 90


def test_fixed_shapes_respect_the_sizes_and_what_the_op_can_take() -> None:
    assert () in fixed_shapes(silu, Sizes()) and () not in fixed_shapes(packed, Sizes())
    assert (1031,) in fixed_shapes(silu, Sizes()) and (1031,) not in fixed_shapes(silu, Sizes(elements=100))
    for kernel in (norm, packed, silu):
        for case in space(kernel, "float32").each_choice():
            assert all(value is not None for value in inputs_of(kernel.op, case, "cpu").values())


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", [*ELEMENT_RECIPES, *ROW_RECIPES])
def test_small_and_large_tensors_have_the_same_bits_on_every_device(recipe: str) -> None:
    for rows in (3, SMALL):
        here, there = (
            fill(recipe, named("float32"), (rows, 5), Stream(7, "x", torch.device(device)), landmarks=(0.5,))
            for device in ("cpu", "cuda")
        )
        assert torch.equal(here.view(torch.int32), there.cpu().view(torch.int32))
