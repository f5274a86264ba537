"""Recipes for a softmax over products: what their names promise of the scores, in every layout of tokens."""

from __future__ import annotations

import hashlib
import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import verify
from verify import backends
from verify.cases import Case, inputs_of
from verify.cases.plan import plan
from verify.cases.scores import LENGTHS, RECIPES
from verify.cases.sizes import with_keys
from verify.declare.declaration import Kernel
from verify.laws import registry
from verify.laws.engine import PROFILES
from verify.laws.law import Subject

HEADS = {"q": "b h t d", "k": "b h s d", "v": "b h s d"}
SWAPPED = {"q": "t b d", "k": "d s b", "v": "e s b"}


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v)


def swapped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries (t, b, d), keys (d, s, b), values (e, s, b)."""
    q, k, v = q.transpose(0, 1), k.permute(2, 0, 1), v.permute(2, 1, 0)
    return torch.softmax(q @ k / math.sqrt(q.shape[-1]), -1) @ v


@cache
def declared(form: str = "heads", **said: Any) -> Kernel:
    like, shapes = (attention, HEADS) if form == "heads" else (swapped, SWAPPED)
    return verify.kernel(like=like, shapes=shapes, dtypes=["bfloat16", "float64"], name="k", **said)(like)


def scores(recipe: str, dims: tuple[int, ...], form: str = "heads") -> tuple[Tensor, dict[str, Tensor]]:
    """The scores of a case in float64, and its operands."""
    given = inputs_of(declared(form).op, Case("bfloat16", dims, recipe), "cpu")
    q, k = (given[name].double() for name in "qk")  # type: ignore[union-attr]
    if form == "swapped":
        q, k = q.transpose(0, 1), k.permute(2, 1, 0)
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), given  # type: ignore[return-value]


DIMS = {"heads": (2, 3, 4, 16, 129), "swapped": (4, 3, 16, 129, 8)}


@pytest.mark.parametrize("form", DIMS)
def test_every_second_query_has_scores_below_minus_87(form: str) -> None:
    found, given = scores("scores below -87", DIMS[form], form)
    found = found.reshape(-1, 129)
    rows = found.amax(-1) < -87
    assert bool((rows.sum() * 2 == len(rows)) and (torch.exp(found[rows].float()) == 0).all())
    assert float(found.min()) < -1000  # shipped models reach -2,500
    assert bool((found[~rows].abs() < 20).all())
    for name in "qk":
        assert torch.equal(given[name].float(), given[name].to(torch.float8_e4m3fn).float())


@pytest.mark.parametrize("form", DIMS)
def test_maxima_rise_and_fall_from_block_to_block(form: str) -> None:
    for recipe, turn in (("rising maxima", 1), ("falling maxima", -1)):
        found = scores(recipe, DIMS[form], form)[0].reshape(-1, 129)
        blocks = found[:, :128].reshape(len(found), 4, 32).amax(-1)
        rises = turn * (blocks[:, -1] - blocks[:, 0])
        assert bool((rises > 3).all())
        # in powers of two for each block of 32: below a threshold of 4 or 8, and above
        each = (turn * blocks.diff(dim=-1)).amax(-1) / math.log(2)
        assert bool((each < 4).any() and ((each > 4) & (each < 8)).any() and (each > 8).any())


@pytest.mark.parametrize("form", DIMS)
def test_a_sink_takes_most_of_the_weight_and_has_a_small_value(form: str) -> None:
    found, given = scores("sinks", DIMS[form], form)
    assert bool((found.argmax(-1) == 0).all())
    assert float(torch.softmax(found, -1)[..., 0].min()) > 0.9
    values = given["v"].movedim(declared(form).op.scores["v"].tokens, 0).abs().amax(tuple(range(1, given["v"].ndim)))
    assert float(values[0]) < 0.1 < float(values[1:].min())


@pytest.mark.parametrize("form", DIMS)
def test_some_tokens_are_repeated(form: str) -> None:
    _, given = scores("repeated tokens", DIMS[form], form)
    for name in "kv":
        tokens = given[name].movedim(declared(form).op.scores[name].tokens, 0)
        assert torch.equal(tokens[:16], tokens[-16:]) and not torch.equal(tokens[0], tokens[1])


def test_one_key_and_other_numbers_of_keys_are_tried() -> None:
    assert [dims[-1] for dims in with_keys(declared().op, LENGTHS)] == [1, 33, 64, 128, 129, 192, 257]
    assert with_keys(declared(where="s % 48 == 0").op, (1, 33, 64)) == ((2, 2, 2, 3, 48), (2, 2, 2, 3, 96))
    assert with_keys(verify.kernel(op="softmax")(torch.softmax).op, LENGTHS) == ()
    planned = {(case.fill, case.dims[-1]) for case in plan(declared(), "bfloat16", "cpu", 0)[0].cases}
    assert {("scores below -87", 1), ("scores below -87", 33), ("scores below -87", 192)} <= planned
    assert set(RECIPES) <= {fill for fill, _ in planned}
    subject = Subject(declared(), "bfloat16", backends.named("cpu"), PROFILES["ci"].sizes["small"])
    tried = {(case.fill, case.dims[-1]) for case in registry.get("accuracy").fixed(subject)}
    assert {(recipe, length) for recipe in RECIPES for length in LENGTHS} <= tried
    limited = Subject(declared(largest=8.0), "bfloat16", subject.backend, subject.sizes)
    found = [case for case in registry.get("accuracy").fixed(limited) if case.fill in RECIPES]
    assert found and all(case.largest == 8.0 for case in found)  # what is beyond is not promised


def test_largest_limits_these_recipes_too() -> None:
    given = inputs_of(declared().op, Case("bfloat16", (1, 1, 2, 16, 33), "scores below -87", largest=8.0), "cpu")
    assert max(float(value.abs().max()) for value in given.values() if value is not None) == 8.0


def test_the_bits_of_a_release_do_not_change() -> None:
    digest = hashlib.sha256()
    for form, dims in DIMS.items():
        for recipe in RECIPES:
            for value in scores(recipe, dims, form)[1].values():
                digest.update(value.view(torch.int16).numpy().tobytes())
    assert digest.hexdigest()[:16] == DIGEST


DIGEST = "270c67c0b39ad0e1"
