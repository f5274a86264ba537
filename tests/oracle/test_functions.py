"""The oracle's functions have PyTorch's values and gradients, in float64 and away from ties."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.oracle.choices import choices, evaluate, rounded
from tests.oracle.numbers import Oracled
from tests.oracle.tensors import HANDLERS, MOVES

UNARY = """torch.exp torch.exp2 torch.expm1 torch.sin torch.cos torch.tanh torch.sinh torch.atan torch.asinh
torch.sigmoid torch.erf torch.erfc torch.square torch.abs torch.floor torch.ceil torch.round torch.trunc torch.frac
torch.sign torch.relu torch.neg F.silu F.gelu F.mish F.softplus F.elu F.selu F.celu F.relu6 F.hardtanh F.hardsigmoid
F.hardswish F.softsign F.tanhshrink F.softshrink F.hardshrink F.logsigmoid F.leaky_relu""".split()
POSITIVE = "log log2 log1p sqrt rsqrt reciprocal".split()
ONE = """F.gelu(x, approximate="tanh")|F.leaky_relu(x, 0.3)|F.threshold(x, 0.3, -1.0)|x.clamp(-0.5, 0.7)
torch.clamp(x, min=0.1)|x ** 3|x ** 2|1 / (x * x + 1)|2 - x|x.sum(-1)|x.mean()|x.mean((0, 1), keepdim=True) * x
x.prod(-1)|x.amax(0)|x.max()|x.max(-1)[1]|x.max(-1).values|x.min(0)[0]|x.argmax(-1)|x.argmax(-1, keepdim=True) + x
x.var(-1)|x.std(0, unbiased=False)|x.norm()|x.norm(dim=-1)|x.norm(p=1, dim=-1)|torch.linalg.vector_norm(x, dim=-1)
torch.linalg.vector_norm(x, 1, dim=-1)|x.softmax(-1)|torch.logsumexp(x, -1)|torch.softmax(x, 0)|F.softmin(x, -1)
torch.log_softmax(x, -1)|F.normalize(x, dim=-1)|x.T @ x|x @ x.mT|F.layer_norm(x, (6,))|F.layer_norm(x, (4, 6))
F.layer_norm(x, (6,), x[0], x[1])|F.rms_norm(x, (6,))|F.group_norm(x, 2)|F.rms_norm(x, (6,), None, 1e-5)
F.batch_norm(x, None, None, training=True)|x.sort(-1).values|x.sort(-1, descending=True).indices
x.argsort(-1).argsort(-1) * x|x.topk(3).values|x.topk(2, 0)[0]|x.topk(2).indices * 0.5|x.kthvalue(2, -1).values
x.median()|x.median(-1).values|x.cumsum(-1)|x.cumprod(0)|x.cummax(-1).values|x.cummin(-1)[0]|x.logcumsumexp(-1)
x.flip(-1) * x|x.tril()|torch.cat([x, x * 2], -1)|torch.stack([x, x.exp()], 0)|x[..., 1:] * x[..., :-1]
x[:, None] * x[None]|F.pad(x, (1, 2))|F.pad(x, (1, 2), value=0.5)|F.pad(x[None], (1, 2), mode="reflect")
x.gather(-1, x.argsort(-1))|x[torch.tensor([0, 2, 2])]|torch.zeros_like(x).scatter(-1, x.topk(2).indices, 1.0) * x
x.scatter_add(0, torch.tensor([[0, 1, 2, 0, 1, 1]]), x[:1])|x.index_add(0, torch.tensor([1, 1, 0, 3]), x)
torch.where(x > 0.1, x, 0.0)|x.masked_fill(x > 0.5, -1e4).softmax(-1)
torch.where(x >= x.topk(3).values.amin(-1, keepdim=True), x * 2, 0.0)|(x == x.amax(-1, keepdim=True)) * x|x.double()
x.to(torch.int32) + x|F.one_hot(x.argmax(-1), 6) * x|F.cross_entropy(x, torch.tensor([1, 0, 5, 2]))
torch.outer(x[0], x[1])|F.cross_entropy(x, torch.tensor([1, 0, 5, 2]), label_smoothing=0.1)
F.nll_loss(x.log_softmax(-1), torch.tensor([1, 0, 5, 2]))|torch.maximum(x, x.flip(0))|torch.remainder(x, 0.7)
torch.fmod(x, 0.7)|torch.lerp(x, x * x, 0.3)|torch.hypot(x, x + 1)|x.diff(dim=-1)|(x > 0).sum(-1)
torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0]))|x.detach() * x|torch.arange(6) * x
x.reshape(-1).unsqueeze(0).expand(2, -1).sum(0)|torch.addcmul(x, x, x, value=0.5)|x.roll(1, 0) + x|x.narrow(1, 2, 3)"""
TWO = """F.linear(x, w)|x @ w.T|F.mse_loss(x, w[:4])|F.l1_loss(x, w[:4], reduction="sum")|F.smooth_l1_loss(x, w[:4])
F.huber_loss(x, w[:4], reduction="none")|F.binary_cross_entropy_with_logits(x, w[:4].sigmoid())|x * w[0] + w[1]
F.kl_div(x.log_softmax(-1), w[:4].softmax(-1), reduction="batchmean")|F.cosine_similarity(x, w[:4], dim=-1)
F.kl_div(x.log_softmax(-1), w[:4].log_softmax(-1), reduction="sum", log_target=True)
F.scaled_dot_product_attention(x, w, w)|F.scaled_dot_product_attention(x, x, x, is_causal=True)"""
ROWS = """F.conv1d(x, w)|F.conv1d(x, w, padding=1, stride=2)|F.max_pool1d(x, 2)|F.max_pool1d(x, 3, 1, 1)
F.avg_pool1d(x, 2)|F.instance_norm(x)"""
IMAGES = "F.conv2d(x, w, padding=1)|F.max_pool2d(x, 2)|F.avg_pool2d(x, 2, 1)"


def programs(text: str) -> list[str]:
    return [each for line in text.splitlines() for each in line.split("|")]


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64)


CASES = [
    *[(f"{name}(x)", ((4, 6),)) for name in UNARY],
    *[(f"torch.{name}(x.abs() + 0.1)", ((4, 6),)) for name in POSITIVE],
    *[(each, ((4, 6),)) for each in programs(ONE)],
    *[(each, ((4, 6), (5, 6))) for each in programs(TWO)],
    *[(each, ((2, 2, 5), (3, 2, 3))) for each in programs(ROWS)],
    *[(each, ((2, 2, 5, 5), (2, 2, 3, 3))) for each in programs(IMAGES)],
]


@pytest.mark.parametrize(("text", "shapes"), CASES, ids=[text for text, _ in CASES])
def test_a_function_has_pytorchs_value_and_gradients(text: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    f = eval(f"lambda x, w=None: {text}", {"torch": torch, "F": functional})
    inputs = [tensor(*shape) for shape in shapes]
    live = [x.clone().requires_grad_() for x in inputs]
    y = f(*live)
    upstream = [tensor(*y.shape)] if y.requires_grad else []
    grads = torch.autograd.grad(y, live, upstream, allow_unused=True) if upstream else [None] * len(live)
    found = evaluate(f, inputs, upstream)
    wanted = [y.detach(), *[torch.zeros_like(x) if g is None else g for g, x in zip(grads, live, strict=True)]]
    assert not any(unclear.any() for unclear in found.open)
    rtol = 1e-7 if "hardsigmoid" in text else 1e-11  # PyTorch's slope of 1 / 6 is a float32 number
    for values, want in zip(found.values, wanted, strict=True):
        torch.testing.assert_close(rounded(values, want.dtype).double(), want.double(), rtol=rtol, atol=1e-12)


def test_there_are_more_than_a_hundred_functions() -> None:
    assert len({*HANDLERS, *MOVES}) > 100


def test_what_the_oracle_does_not_know_is_refused_by_name() -> None:
    with pytest.raises(Oracled, match="digamma"):
        evaluate(lambda x: torch.digamma(x), [tensor(3)], [])


def test_a_decision_within_rounding_is_open() -> None:
    def f(x: Any) -> Any:
        return torch.where(x.sum(-1, keepdim=True) > 0.3, x, 0.0), x * 1

    x = torch.tensor([[0.1, 0.1, 0.1], [1.0, 1.0, 1.0]])
    found = evaluate(f, [x], [torch.ones(2, 3), torch.zeros(2, 3)])
    assert found.open[0].tolist() == [[True] * 3, [False] * 3]
    assert found.open[2].tolist() == [[True] * 3, [False] * 3]
    assert not found.open[1].any()


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_a_cast_to_a_narrower_format_than_every_operand_rounds_values_and_gradients(kind: torch.dtype) -> None:
    def f(x: Any) -> Any:
        return x.to(kind).to(x.dtype) * 4

    x, dy = tensor(5, 7).float(), tensor(7, 5).T.float()
    live = x.clone().requires_grad_()
    y = f(live)
    (dx,) = torch.autograd.grad(y, live, dy)
    found = evaluate(f, [x], [dy])
    assert torch.equal(rounded(found.values[0], torch.float64), x.to(kind).double() * 4)
    assert torch.equal(rounded(found.values[1], torch.float32), dx)
    assert not found.open[0].any()


def test_a_cast_to_the_format_of_an_operand_is_the_identity() -> None:
    x, w = tensor(5, 7).float(), tensor(7).half()
    found = evaluate(lambda x, w: x.half().float() + w * 0, [x, w], [torch.ones(5, 7)])
    assert torch.equal(rounded(found.values[0], torch.float64), x.double())


def test_a_number_beside_the_midpoint_of_a_narrow_format_is_open() -> None:
    x = torch.tensor([2049.0, 2048.9, 2.0**20])
    found = evaluate(lambda x: (x * 1.0000001 * 0.9999999).half().float(), [x[:2]], [torch.ones(2)])
    assert found.open[0].tolist() == [True, False]
    with pytest.raises(Oracled, match="range"):
        evaluate(lambda x: x.half().float(), [x], [torch.ones(3)])


def test_a_number_below_the_smallest_of_the_format_may_be_zero() -> None:
    x = torch.tensor([-45.0, -1.0])
    found = evaluate(lambda x: torch.where(functional.gelu(x) == 0.0, 3.0, x), [x], [torch.ones(2)])
    assert found.open[0].tolist() == [True, False]


def test_numbers_that_roundings_may_exchange_are_counted() -> None:
    rows = [torch.tensor([0.5, 0.5 + apart, 3.0]) for apart in (2.0**-23, 0.25)]
    near, far = (evaluate(lambda x: x.tanh().sort(-1).values, [x], []) for x in rows)
    assert (near.nears > 0, far.nears) == (True, 0)


def test_nan_and_infinity_keep_their_meaning_at_thresholds() -> None:
    def f(x: Any) -> Any:
        nan, edges = x * 0 / x, torch.tensor([0.0, 1.0])
        large = functional.threshold(x * 1.1, 2.0, -1.0)
        return functional.hardshrink(nan), functional.threshold(nan, 2.0, -1.0), torch.bucketize(nan, edges), large

    x = torch.tensor([float("inf"), 3.0])
    for values, want in zip(evaluate(f, [x], []).values, f(x), strict=False):
        torch.testing.assert_close(rounded(values, torch.float32), want.float(), equal_nan=True)


@pytest.mark.parametrize(
    ("f", "x"),
    [
        (lambda x: (x > 0.5).diff(dim=-1), [[1.0, 0.0, 0.0, 1.0]]),
        (lambda x: (b := x > 0.5).index_add(-1, torch.tensor([0, 0, 1, 2]), b), [[1.0, 1.0, 0.0, 1.0]]),
        (lambda x: torch.where(x > x.mean(-1, keepdim=True), x, 0.0), [[1.0, -torch.inf, 2.0, -torch.inf]]),
        (lambda x: torch.hypot(x * torch.sigmoid(x), x), [[1.0, -torch.inf]]),
        (lambda x: functional.binary_cross_entropy_with_logits(x, torch.full((1, 2), 0.25)), [[torch.inf, 1.0]]),
    ],
)
def test_conditions_and_infinities_are_pytorchs(f: Any, x: list[list[float]]) -> None:
    given = torch.tensor(x, dtype=torch.float64)
    for found in choices(f, [given], [None]):
        assert torch.allclose(rounded(found.values[0], torch.float64), f(given).double())


def test_a_gradient_of_nan_that_no_output_takes_is_nan() -> None:
    def f(x: Any) -> Any:
        return torch.where(x * torch.nan > 0.0, x * torch.nan, 0.0) + x

    found = evaluate(f, [torch.ones(2, dtype=torch.float64)], [torch.ones(2, dtype=torch.float64)])
    assert rounded(found.values[1], torch.float64).isnan().all()
