"""A traced program: PyTorch's float64, its intervals and its single elements in Arb and mpmath are one function."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable
from itertools import islice
from typing import Any

import flint
import pytest
import torch
from mpmath import mp
from torch import Tensor
from torch.nn import functional

import verify
from tests.ops.graph.suite import SUITE, followed
from verify.errors import BeyondEffort, UsageError
from verify.measure.judge import JudgedBy, judge_by
from verify.ops.graph import single
from verify.ops.graph.arithmetic import Balls, Decimals
from verify.ops.graph.like import Definition
from verify.ops.graph.noise import noise_of
from verify.ops.graph.program import trace
from verify.ops.graph.rounding import Rounding
from verify.ops.graph.shapes import NamedDims, sizes_within
from verify.ops.graph.spans import Span
from verify.ops.graph.steps import Run
from verify.ops.op import Problem
from verify.records.record import value_of
from verify.truth.exact import digits, judge
from verify.truth.fast import check_bound, evaluate
from verify.truth.formats import named


def _random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float32).double()


# PyTorch's float64 is off there: the slope 1 / 6 is one of float32, and a series of digamma loses digits
INEXACT = {"elementwise: hardsigmoid": "dx0", "special functions: digamma": "dx0"}


@pytest.mark.parametrize("name", SUITE)
def test_intervals_hold_what_pytorch_and_both_arithmetics_compute(name: str) -> None:
    of = followed(name)
    program, run = of.program, of.run()
    found = program.spans(run, list(program.results))
    noise, _ = noise_of(program, run, list(program.results), Rounding())
    for key, want in of.by_pytorch().items():
        span = found[key]
        if not isinstance(span, Span):
            assert torch.equal(span.to(want.dtype), want)
            continue
        assert span.lo.shape == want.shape
        size = span.mid().abs() + noise[key].deviation * 2.0**24  # of the terms
        room = size * 2.0**-39 + 1e-300
        if INEXACT.get(name) != key:
            assert bool(((want >= span.lo - room) & (want <= span.hi + room)).all())
        assert bool(((span.hi - span.lo) <= size.clamp(min=1e-4) * 2.0**-32).all()), "far wider than it has to be"
        wanted = [0, want.numel() // 2, want.numel() - 1]
        flint.ctx.prec, mp.prec = 100, 140
        balls = program.elements(run, Balls(), key, wanted)
        decimals = program.elements(run, Decimals(), key, wanted)
        for place, ball, decimal in zip(wanted, balls, decimals, strict=True):
            low, high = (flint.arb(float(end.reshape(-1)[place])) for end in (span.lo, span.hi))
            ball = flint.arb(ball) if isinstance(ball, float) else ball
            assert low <= ball.upper() and ball.lower() <= high
            assert abs(ball.mid() - flint.arb(str(mp.nstr(decimal, 40)))) <= flint.arb(1e-24) + ball.rad()


def test_masks_overflow_and_what_is_not_defined_are_values() -> None:
    def masked(x: Tensor) -> Tensor:
        mask = torch.tensor([[0.0, -math.inf], [-math.inf, -math.inf]], dtype=x.dtype)
        return functional.softmax(x * 1e4 + mask, -1)

    program = trace(masked, {"x": torch.zeros(2, 2)})
    run = Run({"x": torch.tensor([[1.0, 5.0], [1.0, 2.0]])}, torch.device("cpu"))
    span = program.spans(run, ["y"])["y"]
    assert span.hi[0].tolist()[1] == 0.0 and abs(span.lo[0, 0] - 1) < 1e-14
    assert bool(torch.isnan(span.lo[1]).all())
    balls = program.elements(run, Balls(), "y", [1, 2])
    assert balls[0] == 0 and math.isnan(balls[1])


def test_an_interval_as_wide_as_its_values_decides_nothing_and_arb_is_asked() -> None:
    op = Definition(lambda x: torch.logsumexp(x, -1), ["x"], shapes={"x": "n d"}).op()
    x, upstream = torch.tensor([[3e38, 1.0, 2.0]]), torch.tensor([0.9375])
    problem = Problem({"x": x}, {}, {"y": upstream}, ("y", "dx"))
    found = evaluate(op, problem, dict.fromkeys(("y", "dx"), named("float32")))["dx"]
    spans = trace(lambda x: torch.logsumexp(x, -1), {"x": x}, differentiable=("x",)).spans(
        Run({"x": x, "grad y": upstream}, x.device), ["dx"]
    )
    assert spans["dx"].hi[0, 0] - spans["dx"].lo[0, 0] > 0.9
    assert found.bound[0, 0] < 1e-12 and abs(found.value[0, 0] - 0.9375) < 1e-12
    arb = op.points(problem, "dx", [0])[0].arb
    assert arb is not None and abs(arb(128) - 0.9375) < 1e-30


def test_shapes_where_and_integers_say_what_is_promised() -> None:
    op = Definition(
        functional.cross_entropy,
        ["logits", "label"],
        shapes={"logits": "n v", "label": "n"},
        where="v % 4 == 0 and n in (3, 5)",
        integers={"label": "0 <= label < v"},
    ).op()
    assert op.geometry.named and op.geometry.dims == ("n", "v")
    assert op.geometry.allows((3, 8)) and not op.geometry.allows((3, 7)) and not op.geometry.allows((4, 8))
    assert op.operands[1].range is not None and op.operands[1].range((3, 8)) == (0, 8)
    assert op.gradients == ("dlogits",)
    assert op.result_shapes((3, 8), {})["y"] == ()
    with pytest.raises(UsageError, match="names of dimensions"):
        Definition(torch.exp, ["x"], shapes={"x": "n"}, where="__import__('os')").op()
    with pytest.raises(UsageError, match="not elementwise"):
        Definition(torch.cumsum, ["x", "dim"]).op() if False else Definition(lambda x: x.sum(-1), ["x"]).op()


def test_parameters_of_a_module_are_operands_where_the_kernel_names_them() -> None:
    torch.manual_seed(0)
    op = Definition(torch.nn.Linear(5, 3), ["x", "weight"], shapes={"x": "n 5"}).op()
    assert op.shapes((2,), {}) == {"weight": (3, 5), "x": (2, 5)}
    assert {operand.name: operand.role for operand in op.operands} == {"x": "data", "weight": "matrix"}
    x, weight = _random(2, 5), _random(3, 5, seed=3)
    y = op.fast(Problem({"x": x, "weight": weight}, {}, {}, ("y",)))["y"].value
    bias = op.fast(Problem({"x": x, "weight": 0 * weight}, {}, {}, ("y",)))["y"].value
    assert torch.allclose(y, x @ weight.T + bias, rtol=1e-12, atol=0)


def test_sizes_follow_from_the_condition_and_are_plain_first() -> None:
    shapes = NamedDims({}, dims=("b", "h", "s", "d", "t"), where="d in (32, 64) and s == t and b * h < 12")
    found = list(islice(sizes_within(shapes, 1 << 12), 40))
    assert len(set(found)) == 40 and all(d in (32, 64) and s == t and b * h < 12 for b, h, s, d, t in found)
    wide = NamedDims({}, dims=("n", "d"), where="d % 16 == 0 and 4000 < d")
    assert next(iter(sizes_within(wide, 1 << 16)))[1] == 4096
    assert not list(sizes_within(NamedDims({}, dims=("n",), where="n > 5000"), 1 << 16))[1:]
    half = "d == 2 * e and d <= 64"
    turned = NamedDims({}, dims=("b", "h", "s", "d", "g", "e"), where=half)
    small = [each for each in sizes_within(turned, 64) if math.prod(each[:4]) <= 64]
    assert small and all(each[3] == 2 * each[5] <= 64 for each in small)
    never = NamedDims({}, dims=("b", "h", "s", "d", "g", "e"), where="b * h * s * d * g * e == 96")
    assert next(iter(sizes_within(never, 64)))  # none of the first ones


def test_both_routes_of_a_point_agree_where_the_value_is_exact_and_where_it_cancels() -> None:
    op = Definition(lambda x: (x * 3 - x) - x.sum() * 2, ["x"], shapes={"x": "n"}).op()
    problem = Problem({"x": torch.tensor([1.0, 2.0**-60, -1.0])}, {}, {}, ("y",))
    with mp.workprec(300):
        small = mp.mpf(2) ** -59
        for place, want in enumerate((2 - small, small * 0, -2 - small)):
            [point] = op.points(problem, "y", [place])
            assert point.arb is not None
            mantissa, exponent = (int(part) for part in point.arb(160).man_exp())
            assert mp.ldexp(mp.mpf(mantissa), exponent) == want == point.mp(160)


def test_what_no_precision_finds_is_not_undefined() -> None:
    """1 - tanh(250,000) is 2^-720,000: its logarithm is less than -100, whatever it is."""
    op = Definition(lambda x: torch.log1p(-x.tanh()).clamp(min=-100).sum(), ["x"], shapes={"x": "n"}).op()
    problem = Problem({"x": torch.tensor([250_000.0])}, {}, {}, ("y",))
    truth = evaluate(op, problem, {"y": named("float32")})["y"]
    [point] = op.points(problem, "y", [0])
    check_bound([point], truth, [0])
    with pytest.raises(BeyondEffort, match="is not known at"):
        point.mp(160)
    assert abs(truth.value.item() + 100) <= truth.bound.item() * (1 + 1e-9)


@pytest.mark.parametrize(
    ("function", "shapes", "gate"),
    [
        (functional.silu, None, "plain"),
        (lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))), None, "plain"),  # one number: its formula cancels
        (lambda x: functional.glu(x, -1), {"x": "n d"}, "plain"),
        (lambda x, s: x + 2 * s, None, "noise"),
        (lambda x: x.chunk(2, -1)[0] * 3 - x.chunk(2, -1)[1] * 5, {"x": "n d"}, "noise"),
        (lambda x, w: torch.linalg.cross(x, w), {"x": "d 3", "w": "d 3"}, "noise"),
        (lambda x, w: x * w, {"x": "n d", "w": "d"}, "noise"),  # the gradient of w is a sum over rows
    ],
)
def test_what_is_added_up_is_judged_by_its_noise(function: Any, shapes: dict[str, str] | None, gate: str) -> None:
    names = list(inspect.signature(function).parameters)[: 1 if function is functional.silu else None]
    assert Definition(function, names, shapes=shapes, where="d % 2 == 0" if shapes else "").op().gate == gate


def test_infinities_have_signs_in_mpmath() -> None:
    assert [Decimals().sign(mp.mpf(each)) for each in ("inf", "-inf", "0", "-2", "0.5")] == [1, -1, 0, -1, 1]


EDGES: list[tuple[Callable[[Tensor], Tensor], float, float]] = [
    (lambda x: torch.logit(torch.sigmoid(x)), 50.0, 50.0),
    (lambda x: torch.atanh(torch.tanh(x)), 40.0, 40.0),
    (lambda x: torch.sqrt(x * x - x * x), 3.0, 0.0),
    (lambda x: torch.sqrt(-x.abs()), 3.0, math.nan),
    (lambda x: torch.log(torch.relu(x)), -1.0, -math.inf),
    (lambda x: (x - x) / (x - x), 2.0, math.nan),
    (lambda x: x**1.5, -2.0, math.nan),
    (lambda x: x ** (1 / 3), 0.0, 0.0),
    (lambda x: x**-0.5, 0.0, math.inf),
    (lambda x: torch.pow(x, x), -2.0, 0.25),
    (lambda x: torch.log1p(-torch.sigmoid(x)), 50.0, -50.0),
    (lambda x: torch.exp(-torch.exp(x)), 50.0, 0.0),
]


@pytest.mark.parametrize(("function", "at", "want"), EDGES)
def test_an_edge_of_a_domain_has_its_value_and_a_bound(
    function: Callable[[Tensor], Tensor], at: float, want: float
) -> None:
    """These had no bound in float64, and an exact value that contradicted it: the run stopped."""
    op = Definition(function, ["x"]).op()
    problem = Problem({"x": torch.tensor([at])}, {}, {"y": torch.ones(1)}, ("y", "dx"))
    truths = evaluate(op, problem, dict.fromkeys(("y", "dx"), named("float32")))
    for name, truth in truths.items():
        check_bound(op.points(problem, name, [0]), truth, [0])
    y = truths["y"]
    assert y.bound.item() <= 1e-12 * max(1.0, abs(want))
    assert math.isnan(want) == math.isnan(y.value.item()) and (y.value.item() == pytest.approx(want) or want != want)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: functional.binary_cross_entropy(x.sigmoid(), x.flip(0).sigmoid(), reduction="none"),
        lambda x: torch.log(1 - x.softmax(-1)).clamp(min=-100),
    ],
)
def test_both_routes_see_a_number_that_saturates_far_beyond_float64(
    function: Callable[[Tensor], Tensor], dtype: str
) -> None:
    """In few bits, 1 - sigmoid(404) is 0: Arb takes 580 bits, and mpmath divided by 0 in 256."""
    op = Definition(function, ["x"], shapes={"x": "n"}).op()
    x = torch.tensor([403.5, 37.5, 120.0, 800.0, -120.0, -37.5, 12.0, -1071.25], dtype=getattr(torch, dtype))
    problem = Problem({"x": x}, {}, {"y": torch.ones_like(x)}, ("y", "dx"))
    for name, truth in evaluate(op, problem, dict.fromkeys(("y", "dx"), named(dtype))).items():
        check_bound(op.points(problem, name, range(8)), truth, range(8))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_cross_entropy_of_saturated_sigmoids_has_a_narrow_bound_and_pytorchs_is_within_its_noise(dtype: str) -> None:
    """PyTorch computes log(1 - 1), which it cuts at -100, where the real number is -40."""

    def loss(x: Tensor) -> Tensor:
        return functional.binary_cross_entropy(x.sigmoid(), torch.full_like(x, 0.25))

    op = Definition(loss, ["x"], shapes={"x": "n"}).op()
    x = torch.tensor([40.0, 101.0, -40.0, 0.5], dtype=getattr(torch, dtype))
    truth = evaluate(op, Problem({"x": x}, {}, {}, ("y",)), {"y": named(dtype)})["y"]
    assert truth.noise is not None and truth.bound.item() <= 1e-12
    assert 1 <= abs(loss(x).item() - truth.value.item()) <= 8 * truth.noise.item()


@pytest.mark.parametrize(
    "function",
    [
        torch.lgamma,
        torch.digamma,
        lambda x: torch.polygamma(1, x),
        torch.erfinv,
        torch.special.ndtri,
        torch.special.log_ndtr,
        torch.special.i1e,
    ],
)
def test_special_functions_have_values_at_their_poles_and_ends(function: Any) -> None:
    op = Definition(function, ["x"]).op()
    assert op.gradients == ("dx",)
    x = torch.tensor([0.0, -0.0, 1.0, -1.0, -3.3, 0.25, 0.999, 2.5, 40.0, 1e-40, -1e10, math.inf, -math.inf, math.nan])
    results = ("y", *op.gradients)
    problem = Problem({"x": x}, {}, {"y": torch.ones_like(x)}, results)
    for name, truth in evaluate(op, problem, dict.fromkeys(results, named("float32"))).items():
        points = op.points(problem, name, range(len(x)))
        check_bound(points, truth, range(len(x)))
        for point in points:
            judge(point, named("float32"), 0, both=True)  # raises where mpmath and Arb differ
        if name == "y":
            theirs = function(x.double())
            close = torch.isclose(truth.value, theirs, rtol=1e-8, equal_nan=True) | torch.isinf(x)
            assert bool((close | (theirs.abs() > 1e11)).all()), "PyTorch's trigamma is finite at its poles"


def test_an_element_without_a_bound_is_looked_up_in_a_gradient_that_lies_transposed() -> None:
    """The gradient of a transposed operand is a transposed tensor, which cannot be written to as one line."""
    op = Definition(lambda a, b: (a @ b.mT).exp(), ["a", "b"], shapes={"a": "2 3 4", "b": "2 4 4"}).op()
    operands = {"a": torch.ones(2, 3, 4).double() * 1e200, "b": torch.ones(2, 4, 4).double() * -1e200}
    problem = Problem(operands, {}, {"y": torch.ones(2, 3, 4).double()}, ("db",))
    truth = evaluate(op, problem, {"db": named("float32")})["db"]
    assert truth.value.shape == (2, 4, 4) and bool(truth.bound.isfinite().all())


def test_a_variance_of_equal_numbers_is_known_not_to_be_negative() -> None:
    """Arb has mish(1) as a ball, so the difference from the mean and its square may be any small number."""

    def like(x: Tensor) -> Tensor:
        return functional.mish(x).std(-1)

    x = torch.ones(1, 5, dtype=torch.float64)
    verify.assert_close(torch.zeros(1, dtype=torch.float64), like=like, inputs=(x,))
    with pytest.raises(AssertionError, match="wrong"):
        verify.assert_close(torch.full((1,), 1e-3, dtype=torch.float64), like=like, inputs=(x,))


def test_intervals_of_gelu_are_as_narrow_where_its_share_is_one() -> None:
    """Their width grew with the square of x on that side too: all elements around 10^4 were left to Arb."""
    x = torch.tensor([0.5, 3.0, 1e2, 1e4, 1e19])
    found = Definition(functional.gelu, ["x"]).op().fast(Problem({"x": x}, {}, {"y": torch.ones(5)}, ("y", "dx")))
    assert all(fast.bound is not None and bool((fast.bound <= 1e-14 * fast.value).all()) for fast in found.values())


def test_what_depends_on_too_many_numbers_keeps_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """One element of a gradient of attention over 1,024 positions would take minutes and gigabytes."""
    op = Definition(lambda x: torch.softmax(x, -1).cumsum(-1), ["x"], shapes={"x": "n d"}).op()
    problem = Problem({"x": _random(8, 24).float()}, {}, {}, ("y",))
    fmt = named("float32")
    truth = evaluate(op, problem, {"y": fmt})["y"]
    got = truth.value.float() * (1 + 5e-8 * _random(8, 24, seed=1)).float()

    def judged() -> Any:
        fresh = Problem(problem.inputs, {}, {}, ("y",))
        return judge_by(JudgedBy(op, fresh, "y", truth, fmt), got)

    whole = judged()
    assert {each.routes for each in whole.exact.values()} == {1} and whole.escalated == len(whole.exact)
    assert whole.printed(next(iter(whole.exact))).routes == 2
    monkeypatch.setattr(single, "_CHEAP", 4)
    for effort, some in ((1000, True), (10, False)):
        monkeypatch.setattr(single, "_EFFORT", effort)
        part = judged()
        assert part.exact == judged().exact  # no clock decides
        left = {index: each for index, each in part.exact.items() if not each.routes}
        assert left and (len(left) < len(part.exact)) == some and part.escalated == len(part.exact) - len(left)
        for index, each in left.items():
            known, middle = whole.exact[index], (each.enclosure.low + each.enclosure.high) / 2
            assert each.enclosure.low <= known.enclosure.low <= known.enclosure.high <= each.enclosure.high
            assert float(middle) == truth.value.reshape(-1)[index]
            if fmt.ulp_exponent(each.enclosure.low) == fmt.ulp_exponent(each.enclosure.high):
                assert each.ulp == pytest.approx(known.ulp, abs=1e-6)
            point = op.points(Problem(problem.inputs, {}, {}, ("y",)), "y", [index])[0]
            if not some:
                assert " to " in digits(point, known=each.enclosure)
                with pytest.raises(BeyondEffort, match="an exact value of y depends on too many numbers"):
                    judge(point, fmt, 0)
        [tally], [all_known] = part.tallies, whole.tallies
        assert tally.n == all_known.n == 192 and tally.misrounded + tally.undecided >= all_known.misrounded
        most = value_of(all_known.plain.upper)
        assert value_of(tally.plain.seen) == pytest.approx(most, abs=1e-6) and most <= value_of(tally.plain.upper)


def test_what_no_route_finds_a_number_for_is_open() -> None:
    op = Definition(lambda x: torch.exp(torch.exp(x)), ["x"]).op()
    problem = Problem({"x": torch.tensor([1e30, 1.0])}, {}, {}, ("y",))
    truth = evaluate(op, problem, {"y": named("float32")})["y"]
    assert truth.unknown is not None and truth.unknown.tolist() == [True, False] and truth.bound.isfinite().all()
    check_bound(op.points(problem, "y", (0, 1)), truth, (0, 1))
    got = torch.tensor([5.0, 15.154262])
    [tally] = judge_by(JudgedBy(op, problem, "y", truth, named("float32")), got).tallies
    assert (tally.n, tally.undecided, tally.nan) == (2, 1, 0)


def test_operands_without_a_gradient_in_pytorch_have_none_here() -> None:
    """PyTorch's cross entropy has none for its weights, and raised an error in every case."""
    op = Definition(
        lambda x, w, label: functional.cross_entropy(x, label, weight=w),
        ["x", "w", "label"],
        shapes={"x": "n 4", "w": "4", "label": "n"},
        integers={"label": "0 <= label < 4"},
    ).op()
    assert op.gradients == ("dx",)


def test_outputs_by_name_are_those_of_a_mapping() -> None:
    op = Definition(lambda x: {"a": x * 2, "b": x.sum(-1)}, ["x"], shapes={"x": "n d"}).op()
    assert op.outputs == ("y1", "y2") and [made.ndim for made in op.baseline(torch.ones(2, 3))] == [2, 1]


def test_a_network_deeper_than_the_calls_of_python_is_followed() -> None:
    def deep(x: Tensor) -> Tensor:
        for _ in range(sys.getrecursionlimit() // 2 + 10):
            x = functional.relu6(x + 1.0)
        return x

    program = trace(deep, {"x": torch.zeros(3)}, differentiable=["x"])
    assert len(program.steps) > sys.getrecursionlimit()


def test_one_problem_may_be_given_to_two_ops() -> None:
    """What it keeps for the first one, a program and what exact values share, is not the second one's."""
    made = [Definition(each, ["x"]).op() for each in (lambda x: x * 3, lambda x: x.sinh())]
    problem = Problem({"x": torch.tensor([2.0])})
    values = [float(op.fast(problem)["y"].value) for op in (*made, made[0])]
    assert values == [6.0, pytest.approx(math.sinh(2.0)), 6.0]
    assert [float(op.points(problem, "y", [0])[0].mp(60)) for op in made] == [6.0, pytest.approx(math.sinh(2.0))]
