"""The oracle's noise has the roundings of every honest kernel, and stays small enough to see wrong results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from mpmath import mpf
from torch import Tensor
from torch.nn import functional

from benchmarks.fuzz_programs import limits
from tests.oracle.choices import evaluate, noise

T = torch.tensor
HALF, BRAIN = torch.float16, torch.bfloat16


def shares(f: Callable[..., Any], x: Tensor, dy: Tensor) -> list[float]:
    """Returns the largest noise of the output and of the gradient, as a part of the largest number there."""
    exact, found = evaluate(f, [x], [dy]), noise(f, [x], [dy])
    return [float(n.max() / max(map(abs, v.flat))) for n, v in zip(found, exact.values, strict=True)]


def doubled(x: Any) -> Any:
    return (x.repeat_interleave(2, -1)).prod(-1)


def scaled_rows(x: Any) -> Any:
    return x * x.sum(-1, keepdim=True)


def centred(x: Any) -> Any:
    return functional.layer_norm(x, (2,))


def logistic_loss(x: Any) -> Any:
    return functional.binary_cross_entropy_with_logits(x, x.sigmoid())


def softmax(x: Any) -> Any:
    return x.softmax(-1)


def sum_of_absolutes(x: Any) -> Any:
    return functional.normalize(x, p=1, dim=-1)


def twice(x: Any) -> Any:
    y = x * 1
    return torch.cat([y, y * 0.015])


def mean_of_sizes(x: Any) -> Any:
    return x.abs().mean(-1)


def cube(x: Any) -> Any:
    return x**3


def batch(x: Any) -> Any:
    return functional.batch_norm(x, None, None, training=True)


def attention(x: Any) -> Any:
    keys = T([[[60.0, 61.0], [60.5, 60.0]]], dtype=x.dtype)
    return functional.scaled_dot_product_attention(x, keys, T([[[5.0, 5.0], [5.5, 5.0]]], dtype=x.dtype))


def in_float32(x: Any) -> Any:
    return x.float().exp()


def ranks(x: Any) -> Any:
    """A row of two equal numbers is 0, or a rounding of 1000 in kernels, beside which its rank has several values."""
    y = functional.group_norm(x, 1)
    return functional.batch_norm((y.argsort(-2).argsort(-2) * y)[None], None, None, training=True)


def remainder(x: Any) -> Any:
    return torch.fmod(x, 0.001)


ROW = T([0.328125, 0.328125, 0.328125, 0.328125])
ROW_DY = T([-0.06, -1.53, 1.55, -0.97])


@pytest.mark.parametrize(
    ("f", "x", "dy", "result", "low", "high"),
    [
        (torch.sigmoid, T([9.8]), T([1.0]), 1, 1e-4, 2e-3),  # y (1 - y) of the rounded y
        (torch.tanh, T([5.0]), T([1.0]), 1, 1e-4, 2e-3),
        (logistic_loss, T([9.8]), T(1.0), 1, 2e-4, 1e-2),
        (softmax, T([4.0, -1.0]).to(BRAIN), T([1.0, 0.0]).to(BRAIN), 1, 0.1, 1.0),
        (remainder, T([0.0355]).to(HALF), T([1.0]).to(HALF), 0, 5e-3, 5e-2),  # 0.001 rounds to 0.0010004
        (functional.tanhshrink, T([0.05]).to(HALF), T([1.0]).to(HALF), 0, 0.2, 2.0),  # x - tanh(x), which is stored
        (sum_of_absolutes, ROW.to(BRAIN), ROW_DY.to(BRAIN), 1, 1e-3, 1e-2),
        (scaled_rows, T([3.0, -2.9375]).to(BRAIN), T([1.0, 1.0]).to(BRAIN), 1, 1e-2, 0.2),
        (doubled, T([[0.75]]).to(BRAIN), T([1.0]).to(BRAIN), 1, 1e-3, 1e-2),
        (twice, T([2.0]).to(BRAIN), T([1.0, 1.0]).to(BRAIN), 1, 1e-3, 1e-2),  # the sum of both is stored
        (mean_of_sizes, T([1.0, 2.0, 3.0]).to(BRAIN), T(1.0).to(BRAIN), 1, 1e-3, 1e-2),  # 1 / 3 is stored
        (cube, T([1.0]).to(BRAIN), T([1.0]).to(BRAIN), 1, 1e-3, 1e-2),  # its slope, too
        (batch, T([[100.0], [100.0625]]).to(HALF), T([[1.0], [0.5]]).to(HALF), 0, 1e-2, 2.0),  # the mean is stored
        (centred, T([[10.0, 12.0]]).to(HALF), T([[1.0, 0.5]]).to(HALF), 1, 5e2, 1e5),  # its backward takes that mean
        (attention, T([[[0.5, -0.25]]]).to(HALF), T([[[1.0, 0.5]]]).to(HALF), 1, 0.1, 2.0),  # sum of dy y, y stored
        (attention, T([[[0.5, -0.25]]]), T([[[1.0, 0.5]]]), 1, 1e-5, 1e-3),
        (in_float32, T([0.5, 2.0]).double(), T([1.0, 0.5]), 1, 1e-9, 1e-6),  # a float64 program has float32 steps
        (centred, T([[100.0, 100.0625]]), T([[1.0, 0.5]]), 0, 1e-5, 1e-3),  # x rstd - mean rstd
        (ranks, T([[1.5, -0.5], [3.0, 3.0], [1.0, -2.0]]), T([[[1.0], [0.5]]]).expand(1, 2, 3).mT, 1, 1e-5, 1e-2),
    ],
)
def test_the_noise_has_the_roundings_of_honest_kernels(
    f: Callable[..., Any], x: Tensor, dy: Tensor, result: int, low: float, high: float
) -> None:
    assert low <= shares(f, x, dy)[result] <= high


@pytest.mark.parametrize("kind", [BRAIN, HALF, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("f", "most"),
    [
        (torch.exp, 1),
        (lambda x: x * 3, 1),
        (lambda x: x @ x.T, 2),
        (lambda x: x.sum(-1), 2),
        (lambda x: functional.layer_norm(x, (5,)), 20),
    ],
)
def test_the_noise_of_ordinary_steps_is_a_few_roundings(f: Callable[..., Any], most: float, kind: torch.dtype) -> None:
    x = torch.linspace(-1.0, 1.5, 15).reshape(3, 5).to(kind)
    assert max(shares(f, x, f(x).exp())) <= most * torch.finfo(kind).eps


@pytest.mark.parametrize("kind", [BRAIN, torch.float32, torch.float64])
def test_the_gradient_of_a_log_softmax_has_the_noise_of_its_own_slopes(kind: torch.dtype) -> None:
    x, dy = torch.linspace(-1.0, 1.5, 15).reshape(3, 5).to(kind), T([2.0, -1.0, 0.5, 1.0, 0.25]).to(kind)
    assert shares(lambda x: x.log_softmax(-1), x, dy.expand(3, 5))[1] <= 3 * torch.finfo(kind).eps


def test_the_gradient_of_a_normalised_number_has_the_noise_of_kernels() -> None:
    """PyTorch's float32 gradient of a row whose two numbers lie close together, at inputs beside it."""
    off = 1 + 1e-4 * torch.randn(2, 4096, 2, generator=torch.Generator().manual_seed(0))
    x, dy = T([0.7387, 0.7972]) * off[0], T([-0.5554, 0.5486]) * off[1]

    def slope(x: Tensor) -> Tensor:
        return torch.autograd.grad(centred(x), x, dy.to(x.dtype))[0]

    errors = slope(x.clone().requires_grad_()) - slope(x.double().requires_grad_())
    of_pytorch = errors.square().mean(0).sqrt().max()
    assert of_pytorch / 2 <= noise(centred, [x[:1]], [dy[:1]])[1].max() <= 8 * of_pytorch


def test_the_gradient_of_a_weight_takes_the_stored_mean() -> None:
    x, weight, dy = T([[99.5625, 100.0625]]).to(HALF), T([1.0, 2.0]).to(HALF), T([[1.0, 0.5]]).to(HALF)
    assert noise(lambda x, w: functional.layer_norm(x, (2,), w), [x, weight], [dy])[2].max() > 0.01


@pytest.mark.parametrize(("x", "most"), [(-3.0, 1e-3), (-6.0, 1e-5)])
def test_gelu_has_no_noise_of_a_form_that_loses_its_tail(x: float, most: float) -> None:
    """1 + tanh(-3) has three digits fewer than tanh; the published limit ends where half of them are lost."""
    y, dx = shares(lambda x: functional.gelu(x, approximate="tanh"), T([x]), T([1.0]))
    assert 1e-7 < max(y, dx) < most


def test_a_sum_has_the_published_limit_of_programs_that_add_up() -> None:
    total, product = evaluate(lambda x: (x.sum(-1) * 2, x * 2), [T([0.1, 0.2])], []).adds
    assert (total, product) == (True, False)
    assert [limits(mpf(1), "float32", 0.0, adds) * 2**23 for adds in (total, product)] == [4, 10]
