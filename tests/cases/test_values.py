"""Value recipes: the same bits every time, and what their names promise."""

from __future__ import annotations

import hashlib
import math

import pytest
import torch

from verify.cases.values import ELEMENT, ENDLESS, MASKED, ROW, Stream, fill, landmark_patterns, special_patterns
from verify.errors import UsageError
from verify.truth.formats import FORMATS, Format, named, torch_dtype
from verify.truth.ulp import bits_of, widen

ALL = list(FORMATS.values())
RECIPES = [*ELEMENT, *ROW]
LANDMARKS = (-0.75, 3.0, 1e-300, 1e30, float("inf"))


def make(
    recipe: str,
    fmt: Format,
    shape: tuple[int, ...] = (6, 50),
    *,
    seed: int = 3,
    stream: str = "x",
    landmarks: tuple[float, ...] = LANDMARKS,
    device: str = "cpu",
) -> torch.Tensor:
    return fill(recipe, fmt, shape, Stream(seed, stream, torch.device(device)), landmarks=landmarks)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_fills_every_dtype_with_the_same_bits_each_time(recipe: str) -> None:
    for fmt in ALL:
        first = make(recipe, fmt)
        assert (first.shape, first.dtype) == ((6, 50), torch_dtype(fmt))
        torch.manual_seed(99)
        assert torch.equal(bits_of(first), bits_of(make(recipe, fmt))), fmt
        # in few bits a large mean swallows the spread: "mean 1e4" is a constant in float16
        flat = fmt.bits <= 16 and recipe.startswith(("mean", "nearly", "tiny", "huge"))
        if recipe not in ("patterns", "ones") and not flat:
            assert not torch.equal(bits_of(first), bits_of(make(recipe, fmt, seed=4))), fmt
            assert not torch.equal(bits_of(first), bits_of(make(recipe, fmt, stream="y"))), fmt


def test_the_bits_of_a_release_do_not_change() -> None:
    """A digest of every recipe in every dtype: a replay command must mean the same tomorrow."""
    digest = hashlib.sha256()
    for recipe in RECIPES:
        for fmt in ALL:
            digest.update(bits_of(make(recipe, fmt)).numpy().tobytes())
    assert digest.hexdigest()[:16] == DIGEST


DIGEST = "07d6f9f15c3751b6"


@pytest.mark.parametrize("fmt", ALL, ids=lambda fmt: fmt.name)
def test_mixed_begins_with_every_special_value_and_landmark(fmt: Format) -> None:
    found = bits_of(make("mixed", fmt, (4000,))).tolist()
    mask = (1 << fmt.bits) - 1
    fixed = [*special_patterns(fmt), *landmark_patterns(fmt, LANDMARKS)]
    assert [bits & mask for bits in found[: len(fixed)]] == fixed
    shuffled = bits_of(make("shuffled", fmt, (4000,))).tolist()
    assert set(fixed) <= {bits & mask for bits in shuffled}
    assert sorted(shuffled) == sorted(found)
    assert shuffled != found


@pytest.mark.parametrize("fmt", ALL, ids=lambda fmt: fmt.name)
def test_special_patterns_hold_every_kind(fmt: Format) -> None:
    patterns = special_patterns(fmt)
    assert len(set(patterns)) == len(patterns) or fmt.mantissa_bits == 2
    assert any(fmt.is_nan(bits) for bits in patterns)
    assert fmt.has_inf == any(fmt.is_inf(bits) for bits in patterns)
    for wanted in (0, 1, fmt.max_bits, 1 << fmt.mantissa_bits, (1 << fmt.mantissa_bits) - 1):
        assert wanted in patterns
        assert wanted | fmt.sign_bit in patterns


@pytest.mark.parametrize("fmt", ALL, ids=lambda fmt: fmt.name)
def test_near_stays_near_and_active_stays_active(fmt: Format) -> None:
    near = widen(make("near", fmt, (3000,), seed=1, landmarks=(2.0,)))
    assert bool((near > 0.9).all())
    assert bool((near < 4.1).all())
    assert bool((near < 2).any())
    assert bool((near > 2).any())
    active = widen(make("active", fmt, (3000,))).abs()
    assert float(active.max()) <= 128.0
    assert float(active.min()) >= min(2.0**-20, float(fmt.value(1)))


def test_row_recipes_do_what_they_say() -> None:
    fmt, shape = named("float32"), (40, 300)
    rows = {name: make(name, fmt, shape).double() for name in ROW}
    assert rows["mean 1e3"].mean(1).sub(1e3).abs().max() < 1
    assert rows["mean 1e4"].mean(1).sub(1e4).abs().max() < 1
    assert bool((rows["constant"] == rows["constant"][:, :1]).all())
    assert rows["constant"][:, 0].unique().numel() == 40
    assert 0 < float(rows["nearly constant"].std(1).max()) < 0.01
    assert bool(((rows["outlier"] == 1e4).sum(1) == 1).all())
    lone = rows["lone outlier"].reshape(-1).topk(2).values
    assert lone[0] == 1e4 and lone[1] < 10
    assert bool((rows["alternating"][:, ::2] == -rows["alternating"][:, 1::2]).all())
    assert float(rows["ramp"].diff(dim=1).min()) > 0
    magnitude = rows["spread"].abs()
    assert float(magnitude.max() / magnitude.median()) > 1e4
    assert 1e-21 < float(rows["tiny 1e-20"].std()) < 1e-19
    assert 1e29 < float(rows["huge 1e30"].std()) < 1e31
    assert float(rows["around one"].min()) > -1
    assert abs(float(rows["around zero"].mean())) < 0.02
    many = make("repeated rows", fmt, (200, 5))
    assert many.unique(dim=0).shape == (61, 5) and torch.equal(many[:61], many[61:122])


@pytest.mark.parametrize("recipe", ROW)
def test_row_recipes_stay_finite(recipe: str) -> None:
    for fmt in ALL:
        whole = torch.isfinite(widen(make(recipe, fmt))).all(-1)
        finite = recipe not in ENDLESS or (recipe == MASKED and not fmt.has_inf)
        assert bool(whole.all()) if finite else bool(whole.any()) and not bool(whole.all()), fmt


def test_a_tensor_that_was_changed_is_made_anew() -> None:
    first = make("normal", named("float32"))
    kept = first.clone()
    first.zero_()
    assert torch.equal(make("normal", named("float32")), kept)


def test_an_unknown_recipe_names_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        make("gauss", named("float32"))
    assert str(caught.value) == (f"unknown value recipe 'gauss'; the recipes are: {', '.join(sorted(RECIPES))}")


def test_a_pool_has_every_pattern_of_16_bits_and_is_repeated() -> None:
    stream = Stream(3, "x", torch.device("cpu"))
    pool = fill("pool", named("bfloat16"), (1 << 13, 8), stream).flatten()
    finite = torch.arange(1 << 16).short().view(torch.bfloat16)
    assert set(finite[finite.isfinite()].view(torch.int16).tolist()) <= set(pool.view(torch.int16).tolist())
    assert pool.isfinite().all()
    again = fill("pool", named("bfloat16"), ((1 << 13) + 1, 8), stream).flatten()
    assert again[1 << 16 :].tolist() == pool[:8].tolist()
    with pytest.raises(UsageError, match="unknown value recipe"):
        fill("pool 65536", named("bfloat16"), (3, 3), stream)


@pytest.mark.parametrize("width", [1, 2, 33])
def test_cancelling_rows_have_the_sum_zero_and_spread_exponents(width: int) -> None:
    rows = fill("cancelling", named("float32"), (5, width), Stream(0, "x", torch.device("cpu"))).double()
    assert rows.shape == (5, width) and all(math.fsum(row) == 0 for row in rows.tolist())
    if width == 33:
        assert rows.abs().max() > 2**15 and 0 < rows[rows != 0].abs().min() < 2**-12
