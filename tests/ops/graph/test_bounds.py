"""The bounds of float64 references hold: 500 bits of an oracle that shares no code with verify lie inside."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor
from torch.nn import functional

import verify
from tests.oracle.choices import evaluate
from tests.oracle.numbers import Oracled
from verify.ops.graph import spans
from verify.ops.graph.like import Definition
from verify.ops.graph.spans import point
from verify.ops.op import Fast, Problem
from verify.truth.fast import evaluate as evaluate_all
from verify.truth.formats import named

ROWS, WIDTH = 6, 8
STEPS = """x.exp()|x.sin()|x.tanh()|x.sigmoid()|x.erf()|F.gelu(x)|F.silu(x)|F.softplus(x)|x * x - 1|x / (1 + x * x)
F.linear(x, w, b)|x @ w|x * b|x + b|x - b|1.5 * x + 1|x.exp() - 1.3|x - x.mean(-1, keepdim=True)|x.cumsum(-1)
x.softmax(-1)|x.log_softmax(-1)|x - x.logsumexp(-1, keepdim=True)|F.layer_norm(x, x.shape[-1:], b, b)
F.rms_norm(x, x.shape[-1:], b, 1e-6)|F.normalize(x, dim=-1)|(x - x.amax(-1, keepdim=True)).exp()
F.scaled_dot_product_attention(x, x @ w, x * b)|x.mT.softmax(-1).mT|F.conv1d(x[None], w[:6, :6, None])[0]
x * x.sum(0)|x / (1 + x.square().sum(-1, keepdim=True)).sqrt()|x.flip(0) * x + b|x.relu() + b|x.abs().sqrt() * b
x.log1p()|x.square().mean(-1, keepdim=True).rsqrt() * x|x.std(-1, keepdim=True) * x|x.sort(-1).values * b"""
ENDS = [
    "x",
    "x",
    "x.sum(0)",
    "x.expand(5, *x.shape) * math.pi",
    "x.mT @ x",
    "x.logsumexp(-1)",
    "F.mse_loss(x, b + 0 * x)",
]
VALUES: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda x: x,
    "large mean": lambda x: x + 1e3,
    "tiny": lambda x: x * 1e-20,
    "one tiny": lambda x: torch.where(torch.arange(x.numel()).reshape(x.shape) % 3 == 1, x * 1e-20, 1.0),
    "spread": lambda x: x * torch.exp(4 * x.flip(0)),
    "equal": lambda x: torch.full_like(x, 1.7),
}


def drawn(draw: random.Random) -> tuple[str, dict[str, Tensor]]:
    """Returns the source of a program of up to five steps, and its operands."""
    steps = [each for line in STEPS.splitlines() for each in line.split("|")]
    body = [f"    x = {draw.choice(steps)}" for _ in range(draw.randint(1, 4))]
    source = "\n".join(["def program(x, w, b):", *body, f"    return {draw.choice(ENDS)}"])
    generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
    kind = draw.choice([torch.float32, torch.float32, torch.bfloat16, torch.float64])
    x, w, b = (torch.randn(shape, generator=generator) for shape in ((ROWS, WIDTH), (WIDTH, WIDTH), (WIDTH,)))
    given = {
        "x": VALUES[draw.choice(list(VALUES))](x),
        "w": w / 3,
        "b": torch.ones_like(b) if draw.random() < 0.5 else b,
    }
    return source, {name: value.to(kind) for name, value in given.items()}


def references(
    function: Callable[..., Any], inputs: Mapping[str, Tensor], upstream: Tensor | None
) -> tuple[dict[str, Fast], Callable[[str, int], bool]]:
    """Returns the reference of each result, and a function that tells if the exact value of an element is inside."""
    op = Definition(function, tuple(inputs), examples=[tuple(inputs.values())]).op()
    results = ("y", *(f"d{name}" for name in inputs if upstream is not None))
    found = op.fast(Problem(dict(inputs), {}, {} if upstream is None else {"y": upstream}, results))
    exact = evaluate(function, list(inputs.values()), [upstream])
    if exact.ties or exact.nears:
        raise Oracled("a decision is open")
    truths = dict(zip(results, exact.values, strict=False))

    def holds(name: str, place: int) -> bool:
        truth, fast = truths[name].reshape(-1)[place], found[name]
        value, bound = (mpf(each.reshape(-1)[place].item()) for each in (fast.value, fast.bound))  # type: ignore[union-attr]
        with mp.workprec(600):
            return not mp.isfinite(truth) or bool(abs(value - truth) <= bound + mpf(2) ** -400)

    return found, holds


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_exact_value_lies_inside_its_bound() -> None:
    draw, elements, bounded, outside = random.Random(4), 0, 0, list[str]()
    while elements < 3_000:
        source, inputs = drawn(draw)
        scope: dict[str, Any] = {"F": functional, "math": math, "torch": torch}
        exec(source, scope)
        shape = scope["program"](*inputs.values()).shape
        upstream = torch.randn(shape, generator=torch.Generator().manual_seed(elements), dtype=torch.float64)
        upstream = upstream if draw.random() < 0.5 else upstream.to(inputs["x"].dtype)
        try:
            found, holds = references(scope["program"], inputs, upstream)
        except Oracled:
            continue
        for name, fast in found.items():
            count = fast.value.numel()
            elements, bounded = elements + count, bounded + int(torch.isfinite(fast.bound).sum())  # type: ignore[arg-type]
            outside += [
                f"{name}[{place}] {inputs['x'].dtype}\n{source}" for place in range(count) if not holds(name, place)
            ]
    assert not outside, f"{len(outside)} of {elements} elements are outside of their bound; the first: {outside[0]}"
    assert bounded > 0.9 * elements, "a bound without an end says nothing"


def test_a_saturated_softmax_of_computed_scores_keeps_a_narrow_bound() -> None:
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, 24, 16, generator=generator) * 100 + 300 for _ in range(3))

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v)

    op = Definition(attention, ("q", "k", "v"), examples=[(q, k, v)]).op()
    found = op.fast(Problem({"q": q, "k": k, "v": v}, {}, {}, ("y",)))["y"]
    assert found.bound is not None and found.noise is not None
    assert bool((found.bound <= found.noise / 100).all()), "the largest score less itself is exactly 0"


SUMS: dict[str, tuple[Tensor, Tensor]] = {
    "normal": (torch.ones(999), torch.ones(999)),
    "spread over 2^60": (2.0 ** -(torch.arange(999) % 60), 2.0 ** (torch.arange(999) % 60)),
    "that cancels": (torch.ones(999), torch.where(torch.arange(999) % 2 == 0, 1.0, 1e-9)),
    "below 2^-1022": (torch.full((999,), 1e-160, dtype=torch.float64), torch.full((999,), 1e-158, dtype=torch.float64)),
    "near the largest": (torch.full((999,), 1e304, dtype=torch.float64), torch.ones(999)),
}


@pytest.mark.parametrize("name", SUMS)
def test_the_interval_of_a_long_sum_holds_it_and_is_as_narrow_as_few_roundings(name: str) -> None:
    generator = torch.Generator().manual_seed(5)
    left, right = SUMS[name]
    narrow = name in ("normal", "that cancels")
    a = torch.randn(3, 999, dtype=torch.float64, generator=generator) * left
    b = torch.randn(999, 4, dtype=torch.float64, generator=generator) * right.double().unsqueeze(-1)
    if name == "that cancels":
        b[1::2] = -b[:-1:2]
        a[:, 1::2] = a[:, :-1:2] * (1 + 1e-9 * a[:, 1::2])
    product, total = spans.contract(point(a[None]), point(b[None])), spans.total(point(a), (1,), False)
    for row in range(3):
        terms = [Fraction(x) for x in a[row].tolist()]
        _lies_inside(terms, total.lo[row], total.hi[row], narrow=narrow)
        for column in range(4):
            factors = [Fraction(x) for x in b[:, column].tolist()]
            parts = [x * y for x, y in zip(terms, factors, strict=True)]
            _lies_inside(parts, product.lo[0, row, column], product.hi[0, row, column], narrow=narrow)


def _lies_inside(terms: list[Fraction], lo: Tensor, hi: Tensor, *, narrow: bool) -> None:
    """Asserts that a sum lies in its interval, and if `narrow`, that this is far from the width of 999 roundings."""
    exact, size = sum(terms, Fraction(0)), sum(map(abs, terms), Fraction(0))
    low, high = Fraction(lo.item()), Fraction(hi.item())
    assert low <= exact <= high
    assert high - low <= size * Fraction(2) ** -52 or not narrow


BESIDE = {  # a decision on a number whose last operand float64 loses: x of a third row, and its exact result
    "floor of a product": (lambda x: functional.linear(x, torch.ones(1, 2), torch.ones(1)).floor(), -1e-20, 0.0),
    "round of a sum": (lambda x: ((x * 1.5).sum(-1, keepdim=True) + 0.5).round(), 1e-20, 1.0),
    "a comparison": (lambda x: ((x.sum(-1, keepdim=True) + 1) >= 1).float(), -1e-20, 0.0),
    "floor of a function": (lambda x: x[:, :1].exp().floor(), -1e-20, 0.0),
    "floor of a root": (lambda x: (1 + x[:, :1]).sqrt().floor(), -1e-20, 0.0),
}


@pytest.mark.parametrize("name", BESIDE)
def test_the_exact_result_is_right_where_float64_loses_what_decides(name: str) -> None:
    function, tiny, exact = BESIDE[name]
    x = torch.rand(16, 2, generator=torch.Generator().manual_seed(2)) + 0.1
    x[3] = tiny
    y = function(x)
    right, wrong = y.clone(), y.clone()
    right[3], wrong[5] = exact, 7.0
    assert float(y[3]) != exact
    verify.assert_close(right, like=function, inputs=(x,))
    verify.assert_close(y, like=function, inputs=(x,))
    with pytest.raises(AssertionError):
        verify.assert_close(wrong, like=function, inputs=(x,))


CANCELLING: dict[str, Callable[[Tensor], Tensor]] = {  # their gradients are 0
    "batch norm": lambda x: functional.batch_norm(x, None, None, training=True).mean(),
    "smooth L1": lambda x: functional.smooth_l1_loss(x, x.detach() / 2) - (x - x.detach() / 2).square().mean() / 2,
    "huber": lambda x: functional.huber_loss(x, x.detach() / 2) - (x - x.detach() / 2).square().mean() / 2,
    "hard sigmoid": lambda x: (functional.hardsigmoid(x) - x / 6).sum(),
}


@pytest.mark.parametrize("name", CANCELLING)
def test_a_gradient_that_cancels_leaves_no_rounding_of_a_count(name: str) -> None:
    x = torch.rand(9, 3, generator=torch.Generator().manual_seed(2))
    op = Definition(CANCELLING[name], ["x"], examples=[(x,)]).op()
    problem = Problem({"x": x}, {}, {op.outputs[0]: torch.tensor(1.7)}, ("dx",))
    assert all(abs(point.mp(160)) < mpf(2) ** -140 for point in op.points(problem, "dx", range(9)))


def test_a_variance_that_may_be_zero_is_not_negative_and_has_a_root() -> None:
    def spread(x: torch.Tensor) -> torch.Tensor:
        return x.std(-1, correction=0)

    kernel = verify.kernel(like=spread, shapes={"x": "n d"}, dtypes=["float32"], gradients=False)(spread)
    rows = Problem(inputs={"x": torch.full((3, 17), 0.1)}, params={}, results=("y",))
    assert bool(torch.isfinite(kernel.op.fast(rows)["y"].bound).all())


def test_layer_on_layer_every_element_stays_known() -> None:
    """Intervals of float64 grow in every layer, until they say nothing. Arb evaluates such a program as a whole."""

    def deep(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(12):
            x = x + functional.layer_norm(x, (8,)) @ w
            x = functional.softmax(x, -1) * x
        return x

    source = torch.Generator().manual_seed(0)
    x, w = torch.randn(6, 8, generator=source), torch.randn(8, 8, generator=source)
    op = Definition(deep, ["x", "w"], examples=[(x, w)]).op()
    problem = Problem(inputs={"x": x, "w": w}, upstream={"y": torch.ones(6, 8)}, results=("y", "dx", "dw"))
    assert float(op.fast(problem)["y"].bound.max()) > 0.1, "the intervals say nothing"
    for name, truth in evaluate_all(op, problem, dict.fromkeys(problem.results, named("float32"))).items():
        assert bool((truth.bound <= 2.0**-30 * truth.value.abs().max()).all()), name
    verify.assert_close(deep(x, w), like=deep, inputs=(x, w))
    with pytest.raises(AssertionError, match="noise"):
        verify.assert_close(deep(x, w) * 1.001, like=deep, inputs=(x, w))


def test_a_difference_that_is_smaller_than_float64s_roundings_is_known() -> None:
    x = torch.linspace(900, 1000, 4)[:, None] - torch.tensor([0.0, 40.0, 60.0])

    def rest(x: Tensor) -> Tensor:
        return x.logsumexp(-1) - x.amax(-1)

    op = Definition(rest, ["x"], examples=[(x,)]).op()
    truth = evaluate_all(op, Problem(inputs={"x": x}, upstream={}, results=("y",)), {"y": named("float32")})["y"]
    assert bool((truth.bound <= 1e-12 * truth.value).all())
    assert torch.allclose(truth.value, torch.tensor(math.exp(-40)).double().expand(4), rtol=1e-3)
    verify.assert_close(torch.zeros(4), like=rest, inputs=(x,), vacuous={"y": "the noise is larger than the result"})
