"""The noise of programs against routes of its own: knobs on hand-written steps, honest float32, shuffled sums."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial, reduce
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import verify
from tests.ops.graph.fp8_sums import added
from verify.measure.effort import Effort
from verify.measure.judge import JudgedBy, judge_by
from verify.ops.graph.choices import Choices
from verify.ops.graph.like import Definition
from verify.ops.graph.noise import Noise, noise_of
from verify.ops.graph.program import trace
from verify.ops.graph.rounding import Rounding
from verify.ops.graph.steps import Run
from verify.ops.op import Problem
from verify.truth.fast import evaluate
from verify.truth.formats import named

Function = Callable[..., Any]
U = 2.0**-24  # half an ulp of a float32 number, relative to it
FLOOR = (4 - 0.5) / 8  # in ULP, of a float32 kernel with the default limits


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def problem_of(inputs: dict[str, Tensor], upstream: Tensor | None, result: str) -> Problem:
    return Problem(inputs=inputs, params={}, upstream={} if upstream is None else {"y": upstream}, results=(result,))


def noise(function: Function, inputs: dict[str, Tensor], result: str = "y", runs: int = 256, **said: Any) -> Noise:
    """The noise of one result; gradients arrive from an upstream gradient of ones, or `upstream`."""
    upstream = said.pop("upstream", None)
    format, seed = said.pop("format", None), said.pop("seed", 0)
    op = Definition(function, list(inputs), examples=[tuple(inputs.values())], **said).op()
    if result.startswith("d") and upstream is None:
        upstream = torch.ones_like(function(*inputs.values()))
    program, run = op.meaning.program(problem_of(inputs, upstream, result))
    return noise_of(program, run, [result], format or Rounding.of(run), runs, seed=seed)[0][result]


def at_hand(function: Function, inputs: dict[str, Tensor], result: str = "y", **said: Any) -> Any:
    """What a verdict is made by: the fast reference with its noise, as an op gives it."""
    upstream = said.pop("upstream", None)
    op = Definition(function, list(inputs), examples=[tuple(inputs.values())], **said).op()
    return op.fast(problem_of(inputs, upstream, result))[result]


# -- one knob per step, by hand -----------------------------------------------------------------------------


class Knobs:
    """Moves every rounded step of a function by a number of its own, and writes down how far a rounding moves it."""

    def __init__(self, moves: tuple[Tensor, ...] | None = None) -> None:
        self.moves = None if moves is None else iter(moves)
        self.deviations: list[Tensor] = []

    def _turned(self, value: Tensor, deviation: Callable[[], Tensor]) -> Tensor:
        if self.moves is not None:
            return value + next(self.moves)
        self.deviations.append(deviation())
        return value

    def rounded(self, value: Tensor) -> Tensor:
        """One rounding, unless the number is a float32 number."""
        fits = lambda: torch.where(value.float().double() == value, 0.0, value.abs() * U / math.sqrt(3))  # noqa: E731
        return self._turned(value, fits)

    def added(self, terms: Tensor, *, products: bool = False) -> Tensor:
        """A sum over the last dimension, one term after the other: the mean square over all orders of its terms."""

        def deviation() -> Tensor:
            orders = list(itertools.permutations(range(terms.shape[-1])))
            partial = torch.stack([terms[..., list(order)].cumsum(-1) for order in orders])
            squares = partial[..., 0 if products else 1 :].square().sum(-1).mean(0)  # the first term is a copy
            return squares.sqrt() * U / math.sqrt(3)

        return self._turned(terms.sum(-1), deviation)


def first_order(function: Function, inputs: dict[str, Tensor]) -> Tensor:
    """The rms change of a result when every step is rounded once, from the derivative by each knob."""
    wide = [value.double() for value in inputs.values()]
    recorded = Knobs()
    result = function(recorded, *wide)
    still = tuple(torch.zeros_like(each) for each in recorded.deviations)
    slopes = torch.func.jacrev(lambda moves: function(Knobs(moves), *wide))(still)
    total = torch.zeros_like(result)
    for slope, deviation in zip(slopes, recorded.deviations, strict=True):
        total += (slope.reshape(*result.shape, -1) * deviation.reshape(-1)).square().sum(-1)
    return total.sqrt()


def _softmax(k: Knobs, x: Tensor) -> Tensor:
    apart = k.rounded(x - x.amax(-1, keepdim=True))
    e = k.rounded(torch.exp2(k.rounded(apart * math.log2(math.e))))
    return k.rounded(e / k.added(e)[..., None])


def _softmax_dx(k: Knobs, x: Tensor) -> Tensor:
    """With an upstream gradient of 1, 2, 3, ... for the columns."""
    y = _softmax(k, x)
    terms = k.rounded(torch.arange(1.0, x.shape[-1] + 1).double() * y)
    return k.rounded(terms - k.rounded(y * k.added(terms)[..., None]))


def _norm(k: Knobs, x: Tensor) -> Tensor:
    """A row of 4: the two divisions by 4 are exact."""
    apart = k.rounded(x - (k.added(x) / 4)[..., None])
    variance = k.added(k.rounded(apart * apart)) / 4
    rate = k.rounded(torch.rsqrt(k.rounded(variance + 1e-5)))[..., None]
    return k.added(torch.stack([x * rate, (apart - x) * rate], -1), products=True)  # a kernel may multiply first


def _product(k: Knobs, x: Tensor, w: Tensor) -> Tensor:
    return k.added(x[:, None, :] * w.T[None], products=True)


def _cumulated(k: Knobs, x: Tensor) -> Tensor:
    return torch.stack([k.added(x[..., :n]) if n > 1 else x[..., 0] for n in range(1, x.shape[-1] + 1)], -1)


X, MATRIX = drawn(3, 4, seed=1), drawn(4, 4, seed=2)
BY_HAND: dict[str, tuple[Function, Function, dict[str, Tensor], str]] = {
    "x @ w": (lambda x, w: x @ w, _product, {"x": X[:, :3], "w": MATRIX[:3]}, "y"),
    "x * w, added up": (
        lambda x, w: (x * w).sum(-1),
        lambda k, x, w: k.added(k.rounded(x * w)),
        {"x": X[:, :3], "w": MATRIX[:3, :3]},
        "y",
    ),
    "x * w + b": (
        lambda x, w, b: x * w + b,
        lambda k, x, w, b: k.rounded(k.rounded(x * w) + b),
        {"x": X, "w": MATRIX[0], "b": MATRIX[1]},
        "y",
    ),
    "softmax": (lambda x: functional.softmax(x, -1), _softmax, {"x": X}, "y"),
    "softmax, dx": (lambda x: functional.softmax(x, -1), _softmax_dx, {"x": X}, "dx"),
    "two layers": (
        lambda x, w, v: functional.relu(x @ w) @ v,
        lambda k, x, w, v: _product(k, torch.relu(_product(k, x, w)), v),
        {"x": X, "w": MATRIX, "v": drawn(4, 2, seed=3)},
        "y",
    ),
    "cumsum": (lambda x: x.cumsum(-1), _cumulated, {"x": drawn(3, 4, seed=4)}, "y"),
    "layer norm": (lambda x: functional.layer_norm(x, x.shape[-1:]), _norm, {"x": X}, "y"),
}


@pytest.mark.parametrize(("runs", "most"), [(256, 0.15), (16, 0.30)])
@pytest.mark.parametrize("name", BY_HAND)
def test_sampled_noise_is_the_first_order_response_of_hand_written_steps(name: str, runs: int, most: float) -> None:
    """Of 256 runs every element agrees, of 16 the result as a whole: one element of these is off by up to 60%."""
    function, by_hand, inputs, result = BY_HAND[name]
    upstream = torch.arange(1.0, 5.0).expand(3, 4).contiguous() if result == "dx" else None
    expected = first_order(by_hand, inputs)
    sampled = noise(function, inputs, result, runs, upstream=upstream).deviation
    assert torch.equal(sampled == 0, expected == 0)
    ratio = torch.where(expected > 0, sampled / expected, 1.0)
    if result == "dx":  # the largest element of a row has the noise of a sum over the row besides
        largest = X.amax(-1, keepdim=True) == X
        assert (ratio[largest] > 1 - most).all()
        ratio = ratio[~largest]
    if runs == 16:
        assert ((ratio > 0.4) & (ratio < 1.6)).all()
        ratio = ratio.square().mean().sqrt()
    assert (ratio - 1).abs().max() < most, ratio


@pytest.mark.parametrize("shape", [(1030, 1025), (3, 5, 70, 1025), (1_100_000,), (700_000, 2)])
def test_long_tensors_have_the_noise_of_short_ones(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).float()
    found = noise(lambda x: x.sin(), {"x": x}, runs=4).deviation
    ratio = found / (x.double().sin().abs() * 2.0**-24 / math.sqrt(3))
    assert abs(float(ratio.square().mean()) - 1) < 0.05
    # no two elements of a row, or of a column, share their random numbers
    rows = ratio.reshape(-1, shape[-1])
    for line in (rows[0], rows[:, 0]):
        assert len(line.unique()) > 0.99 * len(line)


# -- steps that round nothing -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "function", "inputs", "said"),
    [
        ("relu", functional.relu, {"x": X}, {}),
        ("times two", lambda x: x * 2, {"x": X}, {}),
        ("an eighth", lambda x: x / 8, {"x": X}, {}),
        ("a product of small numbers", lambda x: x.round() * 3, {"x": X * 100}, {}),
        ("minus", lambda x: -x.abs(), {"x": X}, {}),
        ("a copy", lambda x: x.clone().T.contiguous(), {"x": X}, {}),
        ("largest", lambda x: x.amax(-1), {"x": X}, {}),
        ("max-pool", lambda x: functional.max_pool1d(x[None], 2)[0], {"x": X}, {}),
        ("sorted", lambda x: x.sort(-1).values, {"x": X}, {}),
        ("embedding", lambda i, w: functional.embedding(i, w), {"i": torch.tensor([[2, 0, 3]]), "w": MATRIX}, {}),
        ("whole numbers", lambda x: x.round().sum(-1), {"x": X * 100}, {}),
        ("count", lambda x: (x > 0).float().sum(-1), {"x": X}, {}),
    ],
)
def test_steps_that_move_select_or_count_have_no_noise(
    name: str, function: Function, inputs: dict[str, Tensor], said: dict[str, Any]
) -> None:
    found = noise(function, inputs, runs=4, **said)
    assert not found.deviation.any()
    assert bool(noise(lambda *given: function(*given) / 7, inputs, runs=4, **said).deviation.any()), "a quotient rounds"


# -- sums in any order --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["both signs", "one sign", "an outlier"])
@pytest.mark.parametrize("count", [16, 256])
def test_honest_sums_in_random_orders_err_as_much_as_the_noise_says(kind: str, count: int) -> None:
    """On average over 24 rows, each added up in 200 orders by float32 additions, one after the other."""
    rows = drawn(24, count, seed=5)
    if kind == "one sign":
        rows = rows.abs()
    elif kind == "an outlier":
        rows[:, 3] *= 100
    sampled = noise(lambda x: x.sum(-1), {"x": rows}).deviation
    source = torch.Generator().manual_seed(6)
    errors = []
    for row in rows:
        shuffled = torch.stack([row[torch.randperm(count, generator=source)] for _ in range(200)])
        total = shuffled[:, 0]
        for place in range(1, count):
            total = total + shuffled[:, place]
        errors.append((total.double() - row.double().sum()).square().mean())
    ratio = torch.stack(errors).sqrt() / sampled
    assert 0.5 < float(ratio.square().mean().sqrt()) < 2, ratio


def test_a_step_with_a_constant_that_a_kernel_rounds_is_not_exact() -> None:
    """Every tenth 0.9 m is a float32 number, but the product of m and the float32 next to 0.9 is none."""
    m, g = drawn(1 << 14), drawn(1 << 14, seed=1)
    average = noise(lambda m, g: 0.9 * m + 0.1 * g, {"m": m, "g": g}, runs=16).deviation
    assert ((0.9 * m.double()).float() == 0.9 * m.double()).sum() > 1000
    assert (average > torch.hypot(0.9 * m.double(), 0.1 * g.double()) * (U / math.sqrt(3)) / 4).all()
    quotient = noise(lambda m: m / 0.875, {"m": m}, runs=16).deviation  # many kernels multiply by 1 / 0.875
    assert (quotient > m.double().abs() * (U / math.sqrt(3)) / 4).all()
    near = noise(lambda m, g: (m - 0.3) + 0.0 * g, {"m": 0.3 + m * 1e-6, "g": g}, runs=16).deviation
    assert (near > abs(0.3 - float(torch.tensor(0.3))) / 2).all(), "a float32 kernel subtracts the number next to 0.3"
    masks = (torch.tensor([0.0, -torch.inf]), torch.tensor([0.3, -torch.inf], dtype=torch.float64))
    for mask in masks:
        masked = noise(lambda m, g, mask=mask: m[:2] + mask + 0.0 * g[:2], {"m": m, "g": g}, runs=16).deviation
        assert torch.isfinite(masked).all()
    few_bits = m.bfloat16().float()
    assert not noise(lambda m: m * 3.0, {"m": few_bits}, runs=16).deviation.any(), "3 is a float32 number"
    assert (noise(lambda m: m / 0.875, {"m": m * 0}, runs=16).deviation == 0).all()


def test_zero_terms_are_no_terms_of_a_sum() -> None:
    """A row of which 252 are 0 is added up with 3 additions; its noise is that of the 4 others."""
    few = drawn(3, 4, seed=7)
    row = torch.cat([few, torch.zeros(3, 252)], -1)
    assert torch.allclose(
        noise(lambda x: x.sum(-1), {"x": row}).deviation, noise(lambda x: x.sum(-1), {"x": few}).deviation
    )


def test_equal_terms_have_the_noise_of_roundings_in_one_direction() -> None:
    """A sequential float32 sum of 4,096 equal numbers is off by far more than independent roundings make."""
    row = torch.full((1, 4096), 0.1)
    total = torch.zeros(1)
    for place in range(4096):
        total = total + row[:, place]
    off = (total.double() - row.double().sum(-1)).abs()
    sampled = noise(lambda x: x.sum(-1), {"x": row}).deviation
    assert bool(off <= 8 * sampled)
    varied = noise(lambda x: x.sum(-1), {"x": row * (1 + 1e-3 * drawn(1, 4096))}).deviation
    assert bool(off > 8 * varied) and bool(sampled < 100 * varied)


@pytest.mark.parametrize("to_rows", [False, True])
def test_equal_terms_that_are_scattered_or_accumulated_round_in_one_direction(to_rows: bool) -> None:
    count, x = 257, drawn(1, 63).expand(257, 63).contiguous()
    total = torch.zeros(63)
    for row in x:
        total = total + row
    inputs, function = {"x": x}, lambda x: x.cumsum(0)
    if to_rows:
        inputs["at"] = torch.zeros(count, dtype=torch.long)
        function = lambda x, at: x.new_zeros(2, 63).index_add(0, at, x)  # noqa: E731
    deviation = noise(function, inputs).deviation[0 if to_rows else -1]
    apart = (total.double() - count * x[0].double()).abs()
    assert bool((apart <= 8 * deviation).all()) and deviation.max() < 1e-5 * total.abs().max()


def test_a_function_errs_alike_for_equal_numbers() -> None:
    """Errors of 64 equal exponentials add up in their sum, those of 64 others cancel in part."""
    other = torch.linspace(0.2, 0.4, 64, dtype=torch.bfloat16)[None]
    given = ({"x": x} for x in (other, torch.full_like(other, 0.3)))
    apart, alike = (float(at_hand(lambda x: x.exp().sum(-1), each).noise) for each in given)
    assert apart < 0.05 and alike > 0.12, "each is stored: 1.35 +- 2^-8 / 3^0.5"
    few = torch.full((1, 72), 0.83)
    assert noise(functional.gelu, {"x": few}, runs=32).together > 1.4


def test_equal_numbers_err_alike_also_where_rounded_steps_err_more() -> None:
    """One rounding of each number moves the sum by chance, which says nothing of how far equal errors add up."""
    x, t = torch.tensor([-1.3, 0.25, -1.65] * 18).bfloat16(), torch.tensor([0.23, 0.57, -1.3] * 18).bfloat16()
    loss = lambda x, t: functional.binary_cross_entropy_with_logits(x, t.sigmoid())  # noqa: E731
    apart = at_hand(loss, {"x": x + 0.25 * drawn(54).bfloat16(), "t": t + 0.25 * drawn(54, seed=1).bfloat16()}).noise
    assert float(at_hand(loss, {"x": x, "t": t}).noise) > 1.8 * float(apart)


def test_a_gradient_in_float32_is_cast_where_it_arrives_at_numbers_of_16_bits() -> None:
    given = {"x": drawn(64).bfloat16()}
    sums = lambda x: x.cumsum(-1).float()  # noqa: E731
    held, cast = (at_hand(sums, given, "dx", upstream=dy).noise for dy in (torch.ones(64), drawn(64, seed=1)))
    assert float(held.max()) < 1e-5 and float(cast[:32].min()) > 1e-3


def test_equal_products_have_the_noise_of_roundings_in_one_direction() -> None:
    """As equal terms: rows of one number, with signs or without, times columns of one number with the same signs."""
    signs = torch.tensor([1.0, -1.0]).repeat(2048)
    for own, other in ((torch.ones(4096), torch.ones(4096)), (signs, signs)):
        x, w = (1.1792862 * own)[None], (0.7 * other)[:, None]
        total = torch.zeros(1)
        for place in range(4096):
            total = total + x[:, place] * w[place]
        off = (total.double() - (x.double() @ w.double())[0]).abs()
        sampled = noise(lambda x, w: x @ w, {"x": x, "w": w}).deviation[0]
        assert bool(off <= 8 * sampled)
        varied = noise(lambda x, w: x @ w, {"x": x * (1 + 1e-3 * drawn(1, 4096)), "w": w}).deviation[0]
        assert bool(off > 8 * varied) and bool(sampled < 100 * varied)
    mixed = noise(lambda x, w: x @ w, {"x": signs[None], "w": 0.7 * torch.ones(4096, 1)}).deviation
    alike = noise(lambda x, w: x @ w, {"x": signs[None] * (1 + 1e-3 * drawn(1, 4096)), "w": 0.7 * torch.ones(4096, 1)})
    assert bool(mixed <= 2 * alike.deviation), "terms that cancel do not add up"


def test_elements_that_hang_on_one_sum_move_together() -> None:
    """One disturbance moves all of them in one run by up to sqrt 3 of their deviation; others average out."""
    x = drawn(1, 512, seed=12)
    one = noise(lambda x: x * x.sum(), {"x": x + 1 - x.mean()}, runs=16)
    assert bool((one.deviation > 0).all()) and 1.2 < one.together < 2.5
    alone = noise(lambda x, w: x * w, {"x": x, "w": drawn(1, 512, seed=13)}, runs=16)
    assert 1 <= alone.together < 1.1


def test_a_slope_that_is_taken_from_a_saved_output_has_its_noise() -> None:
    """y (1 - y) of a sigmoid near 1 has few digits left, as 1 - y has few."""
    x = torch.tensor([[8.0, -8.0]])
    found = at_hand(lambda x: torch.sigmoid(x).sum(-1), {"x": x}, "dx", upstream=torch.ones(1))
    relative = (found.noise / found.value).reshape(-1)
    assert relative[0] > 100 * U and relative[1] < 6 * U
    y = torch.sigmoid(x)
    assert bool(((y * (1 - y)).double() - found.value).abs().le(8 * found.noise + 2.0**-24 * found.value).all())


@pytest.mark.parametrize("function", [torch.exp, functional.silu, functional.logsigmoid])
def test_an_exponential_has_the_rounding_of_an_exponent_of_two(function: Function) -> None:
    """GPUs have one instruction for all of them, 2^x. At 58, e^-x by it is off by some 30 ULP."""
    x = torch.linspace(1, 80, 4001) * (1 if function is functional.logsigmoid else -1)
    power, exact = torch.exp2(-x.abs() * math.log2(math.e)), function(x.double())
    got = {torch.exp: power, functional.silu: x * power / (1 + power), functional.logsigmoid: -torch.log1p(power)}
    apart, found = (got[function] - exact).abs(), noise(function, {"x": x}, runs=48).deviation
    assert bool((apart <= 8 * found + U * exact.abs()).all()) and bool((apart > 20 * U * exact.abs()).any())
    assert bool((8 * found < 1e-4 * exact.abs()).all()), "digits that are lost are not seen"


def test_a_softmax_of_scores_with_large_noise_may_take_another_row() -> None:
    """An honest sum in another order has another largest score, and so another answer: noise is as large."""
    q, keys, values = drawn(64, 48, seed=5) + 1e3, 1e3 + drawn(48, 6, seed=6) / 1e3, drawn(6, 2, seed=7)
    function = lambda q, k, v: torch.softmax(1e3 * (q @ k), -1) @ v  # noqa: E731
    found = at_hand(function, {"q": q, "k": keys, "v": values})
    backwards = torch.zeros(64, 6)
    for n in reversed(range(48)):
        backwards = backwards + q[:, n, None] * keys[n]
    apart = (torch.softmax(1e3 * backwards, -1) @ values - found.value).abs()
    assert bool((apart > 0.1).any()), "no row takes another answer: choose other numbers"
    assert bool((apart <= 8 * found.noise + 4 * U * found.value.abs()).all())


# -- decisions ----------------------------------------------------------------------------------------------


def chosen(function: Callable[..., Tensor], inputs: dict[str, Tensor], got: dict[str, Tensor], **given: Any) -> Any:
    """Returns the values under the choices that explain some results, and whether any decision was free."""
    upstream = {"y": given["upstream"]} if "upstream" in given else {}
    op = Definition(function, list(inputs), examples=[tuple(inputs.values())]).op()
    problem = Problem(inputs, {}, upstream, tuple(got))
    own = op.meaning.chosen(problem, got)
    found = op.fast(own)
    return {name: found[name].value for name in got}, bool(problem.kept.choices)


def test_a_tie_of_a_max_pool_within_noise_sends_the_gradient_either_way() -> None:
    x, w = drawn(1, 4, seed=8), drawn(4, 2, seed=9)
    near = torch.stack([w[:, 0], w[:, 0]], 1)
    near[0, 1] = torch.nextafter(near[0, 1], torch.tensor(9.0))

    def pooled(x: Tensor, w: Tensor) -> Tensor:
        return functional.max_pool1d((x @ w)[None], 2)[0]

    one = torch.stack([x[0], torch.zeros(4)], 1)
    for dw in (one, one.flip(-1)):
        found, free = chosen(pooled, {"x": x, "w": near}, {"dw": dw}, upstream=torch.ones(1, 1))
        assert free and torch.equal(found["dw"], dw.double())
    for dw in (one * 0, one + one.flip(-1), one * 0.5):
        found, _ = chosen(pooled, {"x": x, "w": near}, {"dw": dw}, upstream=torch.ones(1, 1))
        assert not torch.equal(found["dw"], dw.double())
    assert not chosen(pooled, {"x": x, "w": w}, {"dw": one}, upstream=torch.ones(1, 1))[1]


def test_decisions_stay_as_they_are_while_noise_is_sampled() -> None:
    """A remainder beside its jump and ranks that nearly tie have the noise of their roundings alone."""
    x, w = drawn(1, 4, seed=8), drawn(4, 2, seed=9)
    near = torch.stack([w[:, 0], torch.nextafter(w[:, 0], torch.tensor(9.0))], 1)
    upstream = torch.tensor([[1.0, 5.0]])
    ranked = at_hand(lambda x, w: (x @ w).sort(-1).values, {"x": x, "w": near}, "dw", upstream=upstream)
    assert bool((ranked.noise <= 2 * U * ranked.value.abs()).all())
    third = {"x": torch.tensor([[1 / 3]]), "w": torch.tensor([[3.0]])}

    def cut(x: Tensor, w: Tensor) -> Tensor:
        return torch.remainder(x * w, 1.0) + 0 * x.sum()

    found = at_hand(cut, third)
    assert float(found.noise) < 2 * U and 0 < float(found.value) < 1e-6
    for got, low, high in ((0.0, 0, 1e-6), (1.0, 1 - 1e-6, 1 + 1e-6), (0.5, 0, 1)):
        value = float(chosen(cut, third, {"y": torch.tensor([[got]])})[0]["y"])
        assert low <= value <= high + 1e-6 and abs(value - 0.5) > 0.4, "1 is right as well, and nothing in between"


def test_only_decisions_within_eight_times_their_noise_are_free() -> None:
    """relu(x y - z): the product is rounded, the difference too; the kink is moved across their noise."""

    def kinked(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return functional.relu(x * y - z)

    x, y = torch.full((40,), 1.1), torch.full((40,), 1.3)
    product = float(x[0].double() * y[0].double())
    z = torch.full((40,), product).double() + torch.linspace(-20, 20, 40).double() * U * product / math.sqrt(3)
    inputs = {"x": x.double()[None], "y": y.double()[None], "z": z[None]}
    program = trace(kinked, inputs, differentiable=("z",))
    run = Run({**inputs, "grad y": torch.ones(1, 40).double()}, torch.device("cpu"))
    found, reach = noise_of(program, run, ["dz"], Rounding(), runs=256)
    choices = Choices.of(program, run, ["dz"], reach, {"dz": found["dz"].deviation})
    assert choices is not None
    [step] = choices.deciding
    own = run.decisions[id(step)]
    free = reduce(torch.logical_or, (turned.decisions[id(step)] != own for turned in choices.directions({})))[0]
    margin = ((x.double() * y.double() - z).abs() / (U * product / math.sqrt(3))).tolist()
    for distance, is_free in zip(margin, free.tolist(), strict=True):
        assert not (is_free and distance > 10) and (is_free or distance > 6), distance


def test_several_decisions_at_once_are_explained_together() -> None:
    """Three kinks in front of one sum: its gradient has eight values, and no other.

    They are no exact ties: x w - w / 3 is a rounding off 0.
    """

    def net(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return functional.relu(x * w - w * torch.tensor(1 / 3, dtype=torch.float64)) @ v

    inputs = {"x": torch.full((1, 1), 1 / 3), "w": drawn(1, 3, seed=10), "v": torch.tensor([[1.0], [10.0], [100.0]])}
    slopes = inputs["w"].double()[0] * inputs["v"].double()[:, 0]
    for way in itertools.product((0, 1), repeat=3):
        right = (slopes @ torch.tensor(way).double()).float().reshape(1, 1)
        for got in (right, right * 1.01 + 0.01):
            value = chosen(net, inputs, {"dx": got}, upstream=torch.ones(1, 1))[0]["dx"]
            assert (abs(float(value) - float(got)) < 1e-5 * (1 + abs(float(got)))) == (got is right), (way, value, got)


@pytest.mark.parametrize(("function", "slope"), [(torch.erfc, 1240), (lambda x: torch.exp(28 * x), 700)])
def test_changes_whose_squares_float64_does_not_hold_are_noise(function: Function, slope: float) -> None:
    """3e-271 and 1e302: the square of a change underflows, or is infinite."""
    inputs = {"x": torch.tensor([14.15]).double(), "w": torch.tensor([1.76]).double()}
    found = noise(lambda x, w: function(x * w), inputs, format=Rounding(torch.float64))
    value = function(inputs["x"] * inputs["w"])
    assert 0.5 < float(found.deviation / value) / (slope * 2.0**-53 / math.sqrt(3)) < 2


# -- the same, again ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [660, -660])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(-1),
        lambda x: x.cumsum(-1),
        lambda x: x @ torch.ones(9, 2, dtype=torch.float64).cumsum(0),
        lambda x: x - x.mean(-1, keepdim=True),
        lambda x: torch.zeros_like(x).index_add(-1, torch.zeros(9, dtype=torch.int64), x),
    ],
)
def test_sums_whose_squares_float64_does_not_hold_have_noise(function: Function, power: int) -> None:
    x = drawn(4, 9, dtype=torch.float64) * 1.1  # float32 does not hold it
    plain, scaled = (noise(function, {"x": value}, runs=32).deviation for value in (x, x * 2.0**power))
    assert bool((plain > 0).any()) and torch.equal(plain * 2.0**power, scaled)


def test_a_seed_says_the_noise_to_the_bit() -> None:
    inputs = {"x": drawn(8, 16), "w": drawn(16, 16, seed=1), "v": drawn(16, 4, seed=2)}

    def net(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return functional.relu(x @ w) @ v

    def sampled(seed: int) -> Tensor:
        torch.rand(seed + 3)  # the state of PyTorch's own generator says nothing
        return noise(net, inputs, "dw", 8, seed=seed).deviation

    first = sampled(0)
    assert torch.equal(first, sampled(0)) and not torch.equal(first, sampled(1))


# -- formats ------------------------------------------------------------------------------------------------


def layers(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return torch.tanh(x @ w) @ v


def _layers_inputs(dtype: torch.dtype) -> dict[str, Tensor]:
    x, w, v = drawn(4, 32), drawn(32, 32, seed=1) / 8, drawn(32, 4, seed=2)
    return {"x": x.to(dtype), "w": w.to(dtype), "v": v.to(dtype)}


def _of_layers(dtype: torch.dtype, **said: Any) -> Tensor:
    inputs = _layers_inputs(dtype)
    found = at_hand(layers, inputs, **said)
    assert found.noise is not None and bool((found.noise > 0).all())
    values: Tensor = found.noise
    return values


def test_what_lies_between_operators_in_bfloat16_is_most_of_the_noise() -> None:
    """tanh(x @ w) is stored twice: rounded to 8 bits each time, whatever the products are computed in."""
    x, w, v = (value.double() for value in _layers_inputs(torch.bfloat16).values())
    h = x @ w
    t = h.tanh()
    one = 2.0**-8 / math.sqrt(3)
    squares = ((1 - t * t) * h * one).square() + (t * one).square()
    expected = (squares @ v.square()).sqrt()
    ratio = _of_layers(torch.bfloat16) / expected
    assert 0.8 < float(ratio.square().mean().sqrt()) < 1.2 and bool(((ratio > 0.3) & (ratio < 2)).all())


def test_what_a_backward_stores_is_no_noise_of_an_operator_that_computes_it_inside() -> None:
    """The backward of `var` stores x - mean in bfloat16. The forward keeps it in float32."""
    x, dy = torch.tensor([8.8125, 8.25], dtype=torch.bfloat16), torch.ones((), dtype=torch.bfloat16)

    def of(like: Function) -> dict[str, Any]:
        given = Problem(inputs={"x": x}, params={}, upstream={"y": dy}, results=("y", "dx"))
        return {name: each.noise for name, each in Definition(like, ["x"], examples=[(x,)]).op().fast(given).items()}

    inside, written = of(lambda x: x.var(-1)), of(lambda x: (x - x.mean())[0] * 3)
    assert inside["y"] == 0.0 and inside["dx"].max() > 1e-3
    assert written["y"] > 1e-4


def test_numbers_of_16_bits_are_not_rounded_again() -> None:
    """The cast rounds a gradient once. What selects it, adds zeros to it or halves it does not."""
    x = torch.tensor([[2.5, 1.5], [1.5, 1.5], [-0.5, -1.0]], dtype=torch.bfloat16)
    dy = torch.tensor([1.1793594, -0.0194812, -0.27713], dtype=torch.float64)
    given = Problem(inputs={"x": x}, params={}, upstream={"y": dy}, results=("y", "dx"))

    def like(x: Tensor) -> Tensor:
        return x.amin(-1).cummin(-1).values.clamp(min=0.5).double()

    dx = Definition(like, ["x"], examples=[(x,)]).op().fast(given)["dx"].noise
    assert dx is not None
    once = dy[:2] * 2.0**-8 / math.sqrt(3)
    assert bool((dx[[0, 1], [1, 1]] < torch.tensor([1.2, 0.7]) * once.abs()).all()) and bool(dx[0, 1] > 0.4 * once[0])


def test_the_last_rounding_to_16_bits_is_no_noise_before_a_selection() -> None:
    x, w = drawn(64, dtype=torch.bfloat16), drawn(64, seed=1, dtype=torch.bfloat16)

    def of(like: Function) -> Tensor:
        meaning = Definition(like, ["x", "w"], examples=[(x, w)]).op().meaning
        return meaning.deviation(problem_of({"x": x, "w": w}, None, "y"), "y")

    plain, selected = of(lambda x, w: (x * w).exp()), of(lambda x, w: -torch.where(x > 0, (x * w).exp(), x))
    torch.testing.assert_close(selected, torch.where(x > 0, plain, 0.0), rtol=0.5, atol=0.0)


def test_the_largest_of_equal_scores_has_the_noise_of_one_rounding() -> None:
    """float64 leaves 1e-16 of s - max(s). A rounding of s is no multiple of that."""
    x = drawn(4, 2) + 1.0
    found = noise(lambda x: functional.cosine_similarity(x, x, -1).softmax(-1), {"x": x}).deviation
    assert float(found.max()) < 1e-6


def test_numbers_beside_codes_have_the_noise_of_16_bits() -> None:
    """Codes count no 16-bit steps of their definition. What else a function returns does."""

    def like(x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x.exp() * x).sum(-1)
        return y.round().to(torch.int32), y

    x, dy = drawn(2, 8).bfloat16(), torch.ones(2, dtype=torch.bfloat16)
    given = Problem(inputs={"x": x}, params={}, upstream={"y2": dy}, results=("y1", "y2", "dx"))
    op = Definition(like, ["x"], shapes={"x": "n d"}).op()
    found = op.fast(given)
    assert float((found["dx"].noise / found["dx"].value.abs()).amin()) > 2.0**-11
    away = (found["y2"].value - found["y2"].value.floor() - 0.5).abs()
    assert bool((away < 8 * found["y2"].noise).any()) and given.kept.choices == [], "the code is decided in float32"


def test_what_a_selection_hands_on_is_stored_too() -> None:
    """A softmax ends in a selection, which rounds nothing; its probabilities lie in memory in 16 bits all the same."""
    x, v = drawn(4, 32).bfloat16(), drawn(32, 4, seed=2).bfloat16()
    found = at_hand(lambda x, v: functional.softmax(x, -1) @ v, {"x": x, "v": v})
    p = functional.softmax(x.double(), -1)
    expected = ((p * 2.0**-8 / math.sqrt(3)).square() @ v.double().square()).sqrt()
    assert found.noise is not None
    ratio = found.noise / expected
    assert 0.8 < float(ratio.square().mean().sqrt()) < 1.2
    # of a number that was stored before, a selection stores nothing more
    twice = at_hand(lambda x, v: functional.relu(functional.softmax(x, -1)) @ v, {"x": x, "v": v})
    assert twice.noise is not None and 0.8 < float((twice.noise / expected).square().mean().sqrt()) < 1.2


def test_a_number_of_16_bits_keeps_its_rounding_in_a_wider_result() -> None:
    """A result of float32 joins stored numbers: the kernel's own rounding to float32 is not that of float16."""
    x = drawn(1, 16).half()
    joined = at_hand(lambda x: torch.cat([x.float().cumsum(-1), x * x], -1), {"x": x})
    assert joined.noise is not None
    square = x.double() ** 2
    apart = (square.half().double() - square).abs()
    assert bool((apart <= 8 * joined.noise[..., 16:] + 2.0**-23 * square).all()) and bool(apart.any())
    assert bool((joined.noise[..., :16] < 2.0**-18).all()), "sums in float32 alone"


def test_steps_in_float32_of_float64_operands_have_the_noise_of_float32() -> None:
    x = 1 + drawn(1, 6, dtype=torch.float64).abs()

    def like(x: Tensor) -> Tensor:
        return torch.softmax(1 / x.float(), -1).double() * x

    inner = 1 / x.float()
    shares = torch.softmax(inner.double(), -1)
    for got, right in ((shares.float().double() * x, True), (shares * x, True), (shares * x * (1 + 1e-4), False)):
        if right:
            verify.assert_close(got, like=like, inputs=(x,))
        else:
            with pytest.raises(AssertionError):
                verify.assert_close(got, like=like, inputs=(x,))
    doubled = at_hand(lambda x: x.float().double().cumsum(-1), {"x": x})
    assert doubled.noise is not None and bool((doubled.noise < 2.0**-40).all()), "no step in float32 but the cast"


def test_steps_in_float64_beside_steps_in_float32_keep_the_noise_of_float64() -> None:
    """softsign(k / 2) of integers is in float32, and the slope of celu at x - 1 alone in float64."""
    x, k = drawn(6, dtype=torch.float64).abs(), torch.arange(6)
    like = lambda x: (functional.softsign(k * 0.5) + functional.celu(x - 1)).cumsum(-1)  # noqa: E731
    assert 1e-9 < float(at_hand(like, {"x": x}).noise.max()) < 1e-6
    assert 0 < float(at_hand(like, {"x": x}, "dx", upstream=x).noise.max()) < 1e-14


def test_a_gradient_that_is_computed_in_float32_has_the_noise_of_float32() -> None:
    """The square of float32 numbers of a float64 operand: PyTorch computes 2 x dy in float32, and casts that."""
    x, upstream = drawn(3, 6, dtype=torch.float64), drawn(3, 6, seed=5)

    def like(x: Tensor) -> Tensor:
        return x.float().square()

    dx = (2 * x.float() * upstream).double()
    for got, right in ((dx, True), (2 * x.float().double() * upstream, True), (dx * (1 + 1e-5), False)):
        try:
            verify.assert_close(like(x), like=like, inputs=(x,), grads=(got,), upstream=upstream)
        except AssertionError:
            assert not right
        else:
            assert right


def test_a_gradient_that_a_cast_rounds_leaves_float64_programs_their_noise() -> None:
    """The backward of a cast rounds the gradient, which is computed in float64 like everything else."""
    x, w = drawn(3, 6, dtype=torch.float64), drawn(3, 6, seed=5, dtype=torch.float64)

    def like(x: Tensor, w: Tensor) -> Tensor:
        return (torch.sin(x * w).bfloat16().double() * w).exp()

    y, upstream = like(x, w), drawn(3, 6, seed=6, dtype=torch.float64)
    leaves = [each.clone().requires_grad_() for each in (x, w)]
    dx, dw = torch.autograd.grad(like(*leaves), leaves, upstream)
    given: dict[str, Any] = {"like": like, "inputs": (x, w), "upstream": upstream}
    verify.assert_close(y, grads=(dx, dw), **given)
    for off in ((1 + 1e-8, 1.0), (1.0, 1 + 1e-8)):
        with pytest.raises(AssertionError, match="is wrong"):
            verify.assert_close(y * off[0], grads=(dx, dw * off[1]), **given)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def _as_flash_attention(q: Tensor, k: Tensor, v: Tensor, dy: Tensor, low: torch.dtype) -> dict[str, Tensor]:
    """Probabilities and their gradients are rounded before products, and the output as it is stored weighs the rows."""
    q, k, v, dy = (each.float() for each in (q, k, v, dy))
    c, apart = q.shape[-1] ** -0.5, torch.ones(q.shape[-2], k.shape[-2]).triu(1).bool()
    scores = ((q @ k.mT) * c).masked_fill(apart, -math.inf)
    weights = (scores - scores.amax(-1, True)).exp()
    total = weights.sum(-1, True)
    y = (weights.to(low).float() @ v) / total
    p = (scores - scores.amax(-1, True) - total.log()).exp()
    ds = (p * (dy @ v.mT - (dy * y.to(low).float()).sum(-1, True))).to(low).float()
    return {"y": y, "dq": ds @ k * c, "dk": ds.mT @ q * c, "dv": p.to(low).float().mT @ dy}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 2, 48, 16), (97, 1, 2, 3)])
def test_flash_attention_is_within_five_times_the_noise(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Its backward adds up in another order: where one key is all, a gradient of 0 is a rounding error in it."""
    q, k, v, dy = (drawn(*shape, seed=seed).to(dtype) for seed in range(4))
    got = _as_flash_attention(q, k, v, dy, dtype)
    for name, x in got.items():
        inputs = {"q": q, "k": k, "v": v}
        upstream = None if name == "y" else dy
        result = at_hand(_causal, inputs, result=name, upstream=upstream)
        assert result.noise is not None
        apart = (x.to(dtype).double() - result.value).abs()
        half = result.value.abs() * torch.finfo(dtype).eps / 2
        figure = ((apart - half).clamp(min=0) / (result.noise + result.value.abs() * 2.0**-25)).nan_to_num(0.0)
        assert float(figure.max()) < 5, name
        percent = ((0.01 * result.value.abs() - half).clamp(min=0) / result.noise).nan_to_num(0.0)
        assert float(percent.max()) > (1e3 if dtype == torch.float32 else 1), name


@pytest.mark.parametrize(("off", "right"), [(0.0, True), (1e-3, False)])
def test_attention_may_weigh_parts_of_the_keys_by_their_log_sums(off: float, right: bool) -> None:
    """Scores of 500: float32 holds a log-sum-exp of this size up to 3e-5."""

    def like(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / 4).softmax(-1) @ v

    q, k, v = (drawn(n, 16, seed=seed) * 12 for n, seed in ((16, 3), (8, 4), (8, 5)))
    parts = [((q @ keys.mT / 4), values) for keys, values in zip(k.split(4), v.split(4), strict=True)]
    sums = torch.stack([s.logsumexp(-1, True) for s, _ in parts])
    weights = (sums - sums.logsumexp(0) + off).exp()
    y = sum(weight * (s.softmax(-1) @ values) for weight, (s, values) in zip(weights, parts, strict=True))
    assert float(sums.amax()) > 400
    with nullcontext() if right else pytest.raises(AssertionError, match="wrong"):
        verify.assert_close(y, like=like, inputs=(q, k, v))


@pytest.mark.parametrize(("off", "right"), [(1e-5, True), (2e-4, False)])
def test_a_log_sum_exp_is_rounded_where_one_number_is_all(off: float, right: bool) -> None:
    """PyTorch's backward of logcumsumexp subtracts 114.6 from a logarithm, which is rounded to 4e-6."""
    x, dy = torch.tensor([-11.6, 114.59563, 0.0, 0.0]), torch.tensor([1.0, 1.66, -1.41, 0.45])
    live = x.clone().requires_grad_()
    y = live.logcumsumexp(0)
    (dx,) = torch.autograd.grad(y, live, dy)
    factor = torch.tensor([1, 1 + off, 1, 1])
    with nullcontext() if right else pytest.raises(AssertionError, match="dx is wrong"):
        verify.assert_close(
            y.detach(), like=lambda x: x.logcumsumexp(0), inputs=(x,), grads=(dx * factor,), upstream=dy
        )


@pytest.mark.parametrize(("kept", "right"), [(torch.float16, True), (torch.bfloat16, False)])
def test_a_batch_norm_of_16_bits_keeps_mean_and_deviation_in_its_format(kept: torch.dtype, right: bool) -> None:
    """As PyTorch's does on a CPU. The difference of -1 and a mean of -8/9 loses most digits."""
    x = torch.zeros(9, 2, dtype=torch.float16)
    x[:8, 0] = x[:5, 1] = -1.0
    wide = x.double()
    mean, rstd = wide.mean(0), (wide.var(0, correction=0) + 1e-5).rsqrt()
    y = ((wide - mean.to(kept)) * rstd.to(kept)).half()
    with nullcontext() if right else pytest.raises(AssertionError, match="wrong"):
        verify.assert_close(y, like=lambda x: functional.batch_norm(x, None, None, training=True), inputs=(x,))


@pytest.mark.parametrize(("off", "right"), [(0.0, True), (1e-5, False)])
def test_a_share_of_gelu_is_rounded_near_one(off: float, right: bool) -> None:
    """PyTorch has erf as 1 - p(t) exp(-x^2), whose roundings are those of a 1, although erf is -0.3 here."""
    x, dy, dx = torch.tensor([-0.39024684]), torch.tensor([0.51062524]), torch.tensor([0.10411956 * (1 + off)])
    with nullcontext() if right else pytest.raises(AssertionError, match="dx0 is wrong"):
        verify.assert_close(functional.gelu(x), like=functional.gelu, inputs=(x,), grads=(dx,), upstream=dy)


def test_scores_of_attention_are_stored_only_where_a_program_writes_them_down() -> None:
    q, k, v = (3 * drawn(2, 2, 48, 16, seed=seed).bfloat16() for seed in range(3))

    def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        apart = torch.ones(q.shape[-2], k.shape[-2], device=q.device).triu(1).bool()
        return functional.softmax((q @ k.mT * q.shape[-1] ** -0.5).masked_fill(apart, -math.inf), -1) @ v

    def projected(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _causal(q * 0.7, k, v)

    one, written, before = (at_hand(each, {"q": q, "k": k, "v": v}).noise for each in (_causal, by_hand, projected))
    assert one is not None and written is not None and before is not None
    assert all(float(each.square().mean() / one.square().mean()) > 1.5 for each in (written, before))


def test_a_fused_kernel_has_float32_noise_and_tf32_has_more() -> None:
    stored, fused = _of_layers(torch.bfloat16), _of_layers(torch.bfloat16, intermediate="float32")
    assert float((stored / fused).median()) > 2.0**10
    plain, tf32 = _of_layers(torch.float32), _of_layers(torch.float32, accumulate="tf32")
    assert 2.0**8 < float((tf32 / plain).median()) < 2.0**14
    assert torch.equal(_of_layers(torch.float32, intermediate="float32"), plain), "float32 has nothing narrower between"


def test_the_noise_of_float64_is_that_of_float32_in_its_own_roundings() -> None:
    narrow, wide = _of_layers(torch.float32), _of_layers(torch.float64)
    assert torch.allclose(wide * 2.0**29, narrow, rtol=1e-3)
    mixed = {"x": drawn(4, 32, dtype=torch.float64), "w": drawn(32, 32, seed=1) / 8, "v": drawn(32, 4, seed=2)}
    _, run = (
        Definition(layers, list(mixed), examples=[tuple(mixed.values())])
        .op()
        .meaning.program(problem_of(mixed, None, "y"))
    )  # type: ignore[misc]
    assert Rounding.of(run).unit == 2.0**-53, "one operand of float64 makes a float64 kernel"
    assert Rounding.of(run, products="tf32").products == "float32"


# -- what it calls right and wrong --------------------------------------------------------------------------


def judged(function: Function, inputs: dict[str, Tensor], got: Tensor, format: str = "float32") -> float:
    """The largest error of y, in units of noise."""
    op = Definition(function, list(inputs), examples=[tuple(inputs.values())]).op()
    problem, fmt = problem_of(inputs, None, "y"), named(format)
    truth = evaluate(op, problem, {"y": fmt})["y"]
    by = JudgedBy(op, problem, "y", truth, fmt, seed=1, floor=FLOOR)
    found = judge_by(by, got, effort=Effort(sample=2, keep=1, rounds=1)).errors.scaled
    assert found is not None
    return float(found.abs().max())


def in_turn(x: Tensor, w: Tensor) -> Tensor:
    """A product of matrices, its terms added up one after the other in float32."""
    total = x[:, :1] * w[:1]
    for place in range(1, x.shape[1]):
        total = total + x[:, place : place + 1] * w[place : place + 1]
    return total


@pytest.mark.parametrize("depth", [1, 16])
def test_honest_float32_is_within_eight_and_a_percent_is_not_at_any_depth(depth: int) -> None:
    weights = [drawn(32, 32, seed=20 + n) / 4 for n in range(depth)]

    def net(x: Tensor, product: Function = torch.matmul) -> Tensor:
        for w in weights:
            x = functional.relu(product(x, w.to(x.dtype)))
        return x

    inputs = {"x": drawn(4, 32, seed=19)}
    eager, sequential = net(inputs["x"]), net(inputs["x"], in_turn)
    assert not torch.equal(eager, net(inputs["x"].double()).float())
    assert judged(net, inputs, eager) <= 8
    assert judged(net, inputs, sequential) <= 8
    assert judged(net, inputs, eager * 1.01) > 1_000
    assert judged(net, inputs, torch.zeros_like(eager)) > 1e6


def test_honest_float64_is_within_eight_and_float32_is_not() -> None:
    inputs = {"x": drawn(3, 16, dtype=torch.float64), "w": drawn(16, 3, seed=1, dtype=torch.float64) / 3}

    def net(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x @ w)

    eager = net(**inputs)
    assert judged(net, inputs, eager, "float64") <= 8
    assert judged(net, inputs, net(**{name: value.float() for name, value in inputs.items()}).double(), "float64") > 1e6


def test_the_product_of_two_numbers_of_16_bits_is_rounded_where_it_is_stored() -> None:
    """It fits float32, so that computing it rounds nothing, but storing it does."""
    x, w = drawn(64, dtype=torch.bfloat16), drawn(64, seed=1, dtype=torch.bfloat16)
    v = drawn(64, seed=2, dtype=torch.bfloat16)
    program = lambda x, w, v: ((x * w) * v).sum()  # noqa: E731
    deviation = at_hand(program, {"x": x, "w": w, "v": v}).noise
    honest = ((x * w) * v).double().sum() - (x.double() * w.double() * v.double()).sum()
    assert float(honest.abs()) <= 4 * float(deviation)


@pytest.mark.parametrize("inner", [32, 128, 4096])
@pytest.mark.parametrize("sign", ["both", "one"])
def test_sums_of_14_bits_are_as_far_off_as_the_accumulator_that_is_declared_allows(inner: int, sign: str) -> None:
    """Tensor cores for FP8, emulated. Fewer bits, and sums that are never promoted, are beyond it."""
    numbers = [drawn(16, inner, seed=seed) * 64 for seed in (0, 1)]
    a, b = ((x.abs() if sign == "one" else x).to(torch.float8_e4m3fn).float() for x in numbers)

    def off(accumulate: str, **how: int) -> float:
        noise = at_hand(lambda a, b: a @ b.mT, {"a": a, "b": b}, accumulate=accumulate).noise
        return float(((added(a, b, **how).double() - a.double() @ b.double().mT) / noise).square().mean().sqrt())

    never, promoted = "14 bits", "14 bits, promoted every 128"
    assert off("float32") > 20 and off(never) < 1.2 and off(promoted, promoted=128) < 1.2
    assert off(never, bits=9) > 3 and off(promoted, promoted=128, bits=9) > 3
    if inner > 128 and sign == "one":
        assert off(promoted) > 3, "never promoted"


@pytest.mark.parametrize("columns", [33, 4096])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_the_largest_element_of_a_softmax_has_the_noise_of_its_row(name: str, columns: int) -> None:
    """By hand, the gradient of the maximum that is subtracted is minus the sum over the row, and that is 0."""

    def by_hand(x: Tensor) -> Tensor:
        apart = x - x.amax(-1, keepdim=True)
        grown = apart.exp()
        total = grown.sum(-1, keepdim=True)
        return grown / total if name == "softmax" else apart - total.log()

    x, dy = drawn(8, columns, seed=21).requires_grad_(), drawn(8, columns, seed=22)
    (got,) = torch.autograd.grad(by_hand(x), x, dy)
    found = at_hand(lambda x: getattr(functional, name)(x, -1), {"x": x.detach()}, "dx", upstream=dy)
    off = (got.double() - found.value).abs() - found.value.abs() * U
    largest = x == x.amax(-1, keepdim=True)
    assert bool((off <= 8 * found.noise).all())
    assert bool((off[largest] > 8 * (found.value.abs() * U)[largest]).any()), "a few ULP are not enough there"
    assert bool((found.noise[largest] < 2e-2 * found.value[largest].abs().max()).all())


def test_the_gradient_of_a_convolution_is_one_sum_over_channels_and_taps() -> None:
    """One term after the other in float32, 800 terms an element: no sum of 25 short sums."""
    x, w, dy = drawn(1, 1, 16, 16), drawn(32, 1, 5, 5, seed=1), drawn(1, 32, 16, 16, seed=2)

    def convolved(x: Tensor, w: Tensor) -> Tensor:
        return functional.conv2d(x, w, padding=2)

    found = at_hand(convolved, {"x": x, "w": w}, "dx", upstream=dy)
    padded = functional.pad(dy[0], (2, 2, 2, 2))
    total = torch.zeros(16, 16)
    for channel, row, column in itertools.product(range(32), range(5), range(5)):
        total = total + padded[channel, row : row + 16, column : column + 16] * w[channel, 0, 4 - row, 4 - column]
    off = ((total.double() - found.value).abs() - found.value.abs() * U).reshape(-1) / found.noise.reshape(-1)
    assert bool((off < 8).all())
    assert float(off.square().mean().sqrt()) < 1.5
    assert float((found.noise / found.value.abs().mean()).mean()) < 100 * U


def _squares_in_16_bits(x: Tensor, target: Tensor, upstream: Tensor) -> Tensor:
    """The gradient of mse_loss as PyTorch computes it on CPUs: each step and the constant in 16 bits."""
    return torch.tensor(2 / x.numel()).to(x.dtype) * (x - target) * upstream


def _log_softmax_in_16_bits(x: Tensor) -> Tensor:
    """PyTorch's log_softmax on CPUs, which keeps the sum of the exponentials and its logarithm in 16 bits."""
    shifted = x.float() - x.float().amax(-1, keepdim=True)
    total = shifted.exp().sum(-1, keepdim=True).to(x.dtype)
    return (shifted - total.float().log().to(x.dtype).float()).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("seed", [8, 17])
def test_numbers_that_pytorch_keeps_in_16_bits_inside_of_an_operator_are_noise(dtype: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, target = (torch.randn(9, generator=generator).to(dtype) for _ in range(2))
    upstream = torch.tensor(0.7, dtype=dtype)
    y = functional.mse_loss(x.float(), target.float()).to(dtype)
    dx = _squares_in_16_bits(x, target, upstream)
    given: dict[str, Any] = {"like": functional.mse_loss, "inputs": (x, target), "upstream": upstream}
    verify.assert_close(y, grads=(dx, -dx), **given)
    with pytest.raises(AssertionError, match="dtarget is wrong"):
        verify.assert_close(y, grads=(dx, -dx * 1.02), **given)
    x = torch.randn(5, 4, generator=generator).to(dtype)
    like = partial(functional.log_softmax, dim=-1)
    verify.assert_close(_log_softmax_in_16_bits(x), like=like, inputs=(x,))
    with pytest.raises(AssertionError, match="is wrong"):
        verify.assert_close(_log_softmax_in_16_bits(x) * 1.02, like=like, inputs=(x,))


def _steps_of(dtype: torch.dtype) -> dict[str, tuple[Function, Function, tuple[Tensor, ...]]]:
    """Functions of which PyTorch on CPUs computes each step in 16 bits, the same step by step, and operands."""

    def q(value: Tensor) -> Tensor:
        return value.to(dtype).float()

    def logsumexp(x: Tensor) -> Tensor:
        most = x.amax(-1, keepdim=True)
        return q(q(q(q(q(x - most).exp()).sum(-1)).log()) + most[:, 0])

    def softmax(x: Tensor) -> Tensor:
        e = (x - x.amax(-2, keepdim=True)).exp()
        return q(e) / e.sum(-2, keepdim=True)

    x, pairs = drawn(512, 9).to(dtype), (drawn(2, 4096) + torch.tensor([[8.0], [0.0]])).to(dtype).double()
    # of all pairs, the one whose square is furthest off, 63 times
    worst = (q(q(pairs[0] - pairs[1]).square()) / (pairs[0] - pairs[1]).square() - 1).abs().argmax()
    equal = [torch.full((63,), float(each), dtype=dtype) for each in pairs[:, worst]]
    near_half = (0.5 + torch.arange(-32, 32) / 256).to(dtype)
    return {
        "logsumexp": (lambda x: x.logsumexp(-1), logsumexp, (x,)),
        "mse_loss": (functional.mse_loss, lambda x, y: q(q(q(x - y).square()).mean()), tuple(equal)),
        "logit": (torch.logit, lambda x: q(q(x / q(1 - x)).log()), (near_half,)),
        "prod": (lambda x: x.prod(-1), lambda x: reduce(lambda a, b: q(a * b), x.unbind(-1)), (x,)),
        "rsqrt": (torch.rsqrt, lambda x: 1 / q(x.sqrt()), (x.abs() + 0.01,)),
        "softmax": (lambda x: x.softmax(-2), softmax, (x.mT,)),
    }


@pytest.mark.parametrize("name", ["logsumexp", "mse_loss", "logit", "prod", "rsqrt", "softmax"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_steps_that_pytorch_computes_in_16_bits_are_right(name: str, dtype: torch.dtype) -> None:
    like, by_steps, inputs = _steps_of(dtype)[name]
    found = by_steps(*map(Tensor.float, inputs))
    verify.assert_close(found.to(dtype), like=like, inputs=inputs)
    exact = like(*map(Tensor.double, inputs))
    verify.assert_close(exact.to(dtype), like=like, inputs=inputs)
    with pytest.raises(AssertionError, match="is wrong"):
        verify.assert_close((exact * (1.1 if name == "logit" else 1.03)).to(dtype), like=like, inputs=inputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_gradient_of_a_pool_may_be_added_up_in_16_bits(dtype: torch.dtype) -> None:
    """The thirds of three upstream gradients cancel, and each of their sums is rounded."""
    x, up = drawn(1, 64, 9).to(dtype), drawn(1, 64, 9, seed=1).to(dtype)
    up[..., 2] = -(up[..., 0] + up[..., 1])
    wide = functional.pad(up / 3, (1, 1))
    dx = (wide[..., :-2] + wide[..., 1:-1]) + wide[..., 2:]
    like = partial(functional.avg_pool1d, kernel_size=3, stride=1, padding=1)
    y = like(x.double()).to(dtype)
    verify.assert_close(y, like=like, inputs=(x,), upstream=up, grads=(dx,))
    for wrong in (dx * 1.05, dx * 0):
        with pytest.raises(AssertionError, match="dx0 is wrong"):
            verify.assert_close(y, like=like, inputs=(x,), upstream=up, grads=(wrong,))


@pytest.mark.parametrize("like", [functional.huber_loss, functional.binary_cross_entropy])
def test_gradients_of_which_pytorch_rounds_each_step_to_16_bits_are_right(like: Function) -> None:
    """A constant too: 1 / 109 has an error of half a spacing in float16."""
    x, target = (drawn(109, seed=seed).sigmoid().half() for seed in (0, 1))
    upstream, apart = torch.tensor(1.0, dtype=torch.float16), x - target
    dx = apart * torch.tensor(1 / 109).half() if like is functional.huber_loss else apart / ((1 - x) * x) / 109
    y = like(x.float(), target.float()).half()
    dtarget = -dx if like is functional.huber_loss else (torch.logit(x.double()) / -109).half()
    verify.assert_close(y, like=like, inputs=(x, target), upstream=upstream, grads=(dx, dtarget))
    with pytest.raises(AssertionError, match="dinput is wrong"):
        verify.assert_close(y, like=like, inputs=(x, target), upstream=upstream, grads=(dx * 1.03, dtarget))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("like", [torch.remainder, torch.fmod])
def test_each_quotient_adds_the_rounding_of_a_constant_divisor(
    dtype: torch.dtype, like: Callable[[Tensor, float], Tensor]
) -> None:
    """A kernel holds 0.1 in float32, and PyTorch on a CPU holds that of float16 numbers in float16."""
    divisor = torch.tensor(0.1).to(dtype).double()
    for x in (drawn(64) * 10, torch.arange(-31.0, 33.0)):
        x = x.to(dtype)
        kernel = like(x.double(), divisor).to(dtype)  # type: ignore[arg-type]
        verify.assert_close(kernel, like=lambda x: like(x, 0.1), inputs=(x,))
    x = (torch.rand(64, generator=torch.Generator().manual_seed(0)) * 0.08 + 0.11).to(dtype)  # quotients of 1
    verify.assert_close((x.double() - divisor).to(dtype), like=lambda x: like(x, 0.1), inputs=(x,))
    with pytest.raises(AssertionError, match="is wrong"):
        verify.assert_close((x.double() - 0.102).to(dtype), like=lambda x: like(x, 0.1), inputs=(x,))


def test_a_float64_kernel_holds_all_digits_of_a_constant_divisor() -> None:
    x = drawn(64).double() + 100
    y = torch.remainder(x, 0.001)
    verify.assert_close(y, like=lambda x: torch.remainder(x, 0.001), inputs=(x,))
    with pytest.raises(AssertionError, match="is wrong"):
        verify.assert_close(y * (1 + 1e-6), like=lambda x: torch.remainder(x, 0.001), inputs=(x,))


def test_a_subnormal_number_is_rounded_to_the_spacing_of_its_format() -> None:
    """Weights of 4e-6 beside a weight of 1 have 7 bits in float16, not 11: kernels round them before the product."""
    source = torch.Generator().manual_seed(0)
    scores, v = torch.rand(16, 65, generator=source) / 4, torch.zeros(65, 8)
    scores[:, 0], v[1:] = 12.5, torch.rand(64, 8, generator=source)
    inputs = {"scores": scores.half(), "v": v.half()}
    found = at_hand(lambda scores, v: scores.softmax(-1) @ v, inputs)
    ratio = found.noise / (2.0**-25 / math.sqrt(3) * inputs["v"].double().square().sum(-2, keepdim=True).sqrt())
    assert 0.7 < float(ratio.median()) < 1.5 and float(ratio.min()) > 0.4
