"""Noise 0 means exact in every order and for every admissible rounding. These kernels round in ways of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import verify
from tests.ops.graph.test_noise import U, at_hand, drawn, noise

Function = Callable[..., Any]


def units(got: Tensor, found: Any) -> Tensor:
    """The errors beyond half a ULP, in units of the noise; infinite where there is an error and no noise."""
    size = torch.maximum(found.value.abs(), torch.tensor(2.0**-126))
    room = torch.exp2(torch.floor(torch.log2(size.double())) - 24)  # half a ULP
    apart = ((got.double() - found.value).abs() - room).clamp(min=0)
    return torch.where(apart == 0, 0.0, apart / found.noise)


def test_a_norm_of_one_column_rounds_the_terms_that_cancel() -> None:
    """dx is r (dy w - dy w): a kernel that contracts one of the products leaves its rounding."""
    x, dy, weight = drawn(64, 1), drawn(64, 1, seed=1), drawn(1, seed=2)

    def norm(x: Tensor, w: Tensor) -> Tensor:
        return functional.layer_norm(x, (1,), w)

    found = at_hand(norm, {"x": x, "w": weight}, "dx", upstream=dy)
    exact = dy.double() * weight.double()
    contracted = ((exact - exact.float().double()) * 316.2).float()
    assert not found.value.any() and bool(contracted.any())
    assert bool((units(contracted, found) < 8).all())
    assert bool((units(contracted * 100, found).amax() > 8).all()), "but no more than that"


def test_a_number_minus_its_mean_may_be_multiplied_first() -> None:
    x = drawn(64, 1).bfloat16().float()
    found = at_hand(lambda x: functional.layer_norm(x, (1,)), {"x": x})
    rate = torch.tensor(1e-5).rsqrt()
    contracted = (x.double() * rate.double() - (x * rate).double()).float()
    assert not found.value.any() and bool(contracted.any())
    assert bool((units(contracted, found) < 8).all())


@pytest.mark.parametrize("mean", [0.0, 1.0, 100.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_norm_may_multiply_its_mean_first(dtype: torch.dtype, mean: float) -> None:
    """x rstd - mean rstd, as PyTorch has it on a CPU, rounds at the size of the mean: also where x - mean is exact."""

    def norm(x: Tensor) -> Tensor:
        return functional.layer_norm(x.cummax(0).values, (2,))  # not of an operand: of computed numbers

    x = ((drawn(64, 2) * 16).round() / 16 + mean).to(dtype)  # the mean is exact, so its rounding hides nothing
    found = at_hand(norm, {"x": x})
    wide = x.cummax(0).values.float()
    center = wide.mean(-1, keepdim=True)
    rate = ((wide - center).double().square().mean(-1, keepdim=True) + 1e-5).rsqrt().float()
    apart = (wide * rate - center * rate).to(dtype)
    room = found.value.abs() * torch.finfo(dtype).eps / 2
    assert bool((((apart.double() - found.value).abs() - room).clamp(min=0) <= 5 * found.noise).all())


@pytest.mark.parametrize("count", [2, 4])
def test_no_kernel_multiplies_out_a_square(count: int) -> None:
    """Where a mean of 1000 is exact, a variance in one pass has no digits left. No right kernel computes it so."""
    x = (1000 + (drawn(8, count) * 64).round() / 64).contiguous()
    x[1::2] += torch.pi  # in some rows, the mean is not exact
    for rows in (x, x[::2]):
        found = at_hand(lambda x: x.var(-1), {"x": rows})
        assert bool((found.noise <= 1e-4 * found.value).all())


@pytest.mark.parametrize("scale", [2.0, 3.0])
def test_an_interpolation_may_add_rows_or_columns_first(scale: float) -> None:
    """Some sums fit float32 in one of the two orders. Kernels round the positions of the weights too."""
    x = drawn(1, 1, 32, 32)

    def grown(x: Tensor) -> Tensor:
        return functional.interpolate(x, scale_factor=scale, mode="bilinear", align_corners=False)

    found = at_hand(grown, {"x": x})
    for turned in (False, True):
        line = x.mT if turned else x
        for _ in range(2):
            line = _grown_rows(line, scale).mT
        assert bool((units(line.mT if turned else line, found) < 8).all())


def _grown_rows(x: Tensor, scale: float) -> Tensor:
    """Doubles or triples the rows, with float32 positions as a kernel computes them."""
    rows = x.shape[-2]
    at = (torch.arange(rows * scale, dtype=torch.float32) + 0.5) * torch.tensor(1 / scale) - 0.5
    at = at.clamp(min=0)
    low = at.floor().long()
    way = (at - low)[:, None]
    return x[..., low, :] * (1 - way) + x[..., (low + 1).clamp(max=rows - 1), :] * way


def test_three_numbers_have_the_noise_of_their_worst_order() -> None:
    """x - y is exact where the two are close. Another order rounds x + z."""
    x = torch.full((64, 1), 1.5) + drawn(64, 1) * 2.0**-10
    y, z = torch.full((64, 1), 1.5), drawn(64, 1, seed=1) * 2.0**-12
    found = at_hand(lambda x, y, z: (x - y) + z, {"x": x, "y": y, "z": z})
    assert bool((units((x + z) - y, found) < 8).all()) and bool(units((x + z) - y, found).any())
    assert not noise(lambda x, y: (x - y) * 2, {"x": x, "y": y}, runs=4).deviation.any(), "two have one order"
    few = {name: value.bfloat16().float() for name, value in {"x": x, "y": y, "z": z.round(decimals=3)}.items()}
    assert not noise(lambda x, y: x - y + x - 2 * y, {"x": few["x"], "y": few["y"]}, runs=4).deviation.any()


def test_sums_of_few_digits_are_exact() -> None:
    """Not only integers: sixteenths with a sum below 2^20 fit float32 in each order."""
    few = (drawn(3, 256) * 64).round() / 16
    assert not noise(lambda x: x.sum(-1), {"x": few}, runs=4).deviation.any()
    one = few.clone()
    one[0, 0] = torch.pi
    found = noise(lambda x: x.sum(-1), {"x": one}, runs=4).deviation
    assert bool(found[0] > 0) and not found[1:].any(), "each row for itself"


# -- kinks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bent", "at"),
    [
        (functional.relu, 0.0),
        (lambda z: torch.maximum(z, torch.zeros(())), 0.0),
        (lambda z: functional.hardtanh(z, -1.0, 1.0), 1.0),
        (lambda z: torch.clamp(z, max=1.0), 1.0),
    ],
)
def test_a_kernel_may_be_on_the_other_side_of_a_kink(bent: Function, at: float) -> None:
    """A sum slightly beyond the kink has the value of the kink, and a kernel's sum may lie before it."""
    x = drawn(512, 64)
    x[:, 0] += at - x.double().sum(-1).float()
    shifted = x.double().sum(-1)
    found = at_hand(lambda x: bent(x.sum(-1)), {"x": x})
    flat = found.value == at
    assert 50 < int(flat.sum()) < 500
    noise_of_sum = noise(lambda x: x.sum(-1), {"x": x}, runs=64).deviation
    for times in (-4, 4):
        kernel = bent((shifted + times * noise_of_sum).float())
        assert bool((units(kernel, found) < 8).all())
    far = bent(shifted + (100 if at == 0 else -100) * noise_of_sum)
    assert bool((units(far.float(), found) > 8).any())


def test_far_from_a_kink_nothing_is_added() -> None:
    x = drawn(64, 64) - 3
    assert not noise(lambda x: functional.relu(x.sum(-1)), {"x": x}, runs=16).deviation.any()
    ahead = noise(lambda x: x.sum(-1), {"x": x + 6}, runs=16).deviation
    assert torch.allclose(noise(lambda x: functional.relu(x.sum(-1)), {"x": x + 6}, runs=16).deviation, ahead)


# -- gradients that are always 0 ------------------------------------------------------------------------------


def test_the_gate_of_a_first_step_may_be_computed_as_a_difference() -> None:
    """Its gradient is 0, as there is no state before it. Kernels add up q dq - k dk from the end."""

    def scanned(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
        state, found = q.new_zeros(q.shape[1], v.shape[1]), []
        for at in range(q.shape[0]):
            state = state * g[at].exp()[:, None] + k[at][:, None] * v[at][None]
            found.append(q[at] @ state)
        return torch.stack(found)

    inputs = {name: drawn(6, 4, seed=place) for place, name in enumerate("qkv")}
    inputs["g"] = -torch.rand(6, 4, generator=torch.Generator().manual_seed(3))
    given = {name: value.requires_grad_() for name, value in inputs.items()}
    upstream = drawn(6, 4, seed=4)
    dq, dk = torch.autograd.grad(scanned(*given.values()), [given["q"], given["k"]], upstream)
    kernel = (given["q"] * dq - given["k"] * dk).sum(0).detach()
    found = at_hand(scanned, {name: value.detach() for name, value in given.items()}, "dg", upstream=upstream)
    assert not found.value[0].any() and bool(kernel.any())
    assert bool((kernel.abs() <= 8 * found.noise[0]).all())
    assert bool((found.noise[0] < 100 * U * found.value.abs().max()).all())


def test_a_rounding_to_a_format_passes_errors_of_several_spacings() -> None:
    """A sum that cancels is rounded to bfloat16. A kernel's own sum lies many numbers of bfloat16 away."""
    x = drawn(64, 256)
    x[:, 0] -= (x.double().sum(-1) - 2e-4).float()
    exact, few = x.double().sum(-1), noise(lambda x: x.sum(-1), {"x": x}, runs=64).deviation

    def like(x: Tensor) -> Tensor:
        return x.sum(-1).bfloat16().float()

    for times in (0, -2, 2):
        verify.assert_close((exact + times * few).bfloat16().float(), like=like, inputs=(x,))
    with pytest.raises(AssertionError, match="is wrong"):
        verify.assert_close((exact + 40 * few).bfloat16().float(), like=like, inputs=(x,))


@pytest.mark.parametrize("seed", [1, 5, 6])
def test_equal_probabilities_are_all_rounded_in_one_direction(seed: int) -> None:
    """Scores of 4e6 are multiples of 0.25 in float32: most probabilities of a row are equal, and rounded alike."""
    q, k, v = (1000 + drawn(rows, 17, seed=3 * seed + at) / 100 for at, rows in enumerate((4, 129, 129)))

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return verify.rounds((q @ k.mT / 17**0.5).softmax(-1), "bfloat16") @ v

    scores = (q.double() @ k.double().mT / 17**0.5).float().double()
    found = at_hand(attention, {"q": q, "k": k, "v": v})
    assert bool((units((scores.softmax(-1).bfloat16().double() @ v.double()).float(), found) < 8).all())
    assert bool((units(found.value * 1.1, found) > 8).all())


def test_the_gradient_of_a_norm_may_be_computed_term_by_term() -> None:
    """dy a + x b + c, as PyTorch has it on a CPU: at a mean of 30, x b and c are larger than the gradient."""
    for seed in range(4):
        x, dy = drawn(8, 256, seed=seed) + 30, drawn(8, 256, seed=9 + seed)
        mean = x.mean(-1, keepdim=True)
        rate = ((x - mean).square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        total, weighted = dy.sum(-1, keepdim=True), (dy * x).sum(-1, keepdim=True)
        b = (total * mean - weighted) * rate**3 / 256
        dx = dy * rate + x * b + (-b * mean - total * rate / 256)
        found = at_hand(lambda x: functional.layer_norm(x, (256,)), {"x": x}, "dx", upstream=dy)
        assert bool((units(dx, found) < 8).all()) and bool((units(dx * 1.001, found).amax() > 8).all())


def test_a_softmax_of_one_number_has_a_gradient_of_exactly_0() -> None:
    """It has no noise, so no bound may be left of the products of numbers that float64 has exactly."""
    found = at_hand(lambda x: x.log_softmax(-1), {"x": drawn(300, 1)}, "dx", upstream=drawn(300, 1, seed=1))
    assert not found.value.any() and not found.bound.any()


def test_the_square_of_a_rounding_is_noise_too() -> None:
    """On constant rows x less its mean is 0 but for the rounding of the mean, and dx depends on its square."""
    x = torch.linspace(500, 1000, 16)[:, None].expand(16, 13).contiguous()
    dy, weight = drawn(16, 13, seed=1), drawn(13, seed=2)

    def norm(x: Tensor, w: Tensor) -> Tensor:
        return functional.layer_norm(x, (13,), w)

    found = at_hand(norm, {"x": x, "w": weight}, "dx", upstream=dy)
    total = torch.zeros(16)
    for column in x.unbind(-1):  # one term after the other
        total = total + column
    away = (x - total[:, None] / 13).double()
    rate, wide = (away.square().mean(-1, True) + 1e-5).rsqrt(), (weight * dy).double()
    inner = (away * rate * wide).mean(-1, True)
    kernel = (rate * (wide - wide.mean(-1, True) - away * rate * inner)).float()
    size = units(kernel, found)
    assert bool((size < 8).all()) and bool(away.any())
    assert bool((units(kernel * 1.02, found) > 8).any())
