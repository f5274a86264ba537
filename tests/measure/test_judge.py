"""Seeded lies: a known error in a known place must come out as exactly that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.truth.every_value import all_values, nearest
from verify import ops
from verify.errors import BeyondEffort, KernelError, TruthError
from verify.measure import judge as judging
from verify.measure.counting import tally
from verify.measure.effort import Effort
from verify.measure.judge import JudgedBy, JudgedResult, judge_by
from verify.measure.tally import Tally
from verify.ops.graph.like import Definition
from verify.ops.op import Op, Point, Problem
from verify.records.record import value_of
from verify.truth.fast import Truth, evaluate
from verify.truth.formats import Format, named
from verify.truth.ulp import Policy, errors, from_bits, widen

GELU = ops.get("gelu")


def gelu(x: Tensor) -> Problem:
    return Problem(inputs={"x": x}, params=GELU.resolve({}), upstream={"y": torch.ones_like(x)}, results=("y",))


def layer_norm(x: Tensor) -> Problem:
    op = ops.get("layer_norm")
    inputs: dict[str, Tensor | None] = dict.fromkeys(o.name for o in op.operands)
    inputs["x"] = x
    return Problem(inputs=inputs, params=op.resolve({}), results=("y",))


def right_bits(op: Op, problem: Problem, fmt: Format, count: int) -> Tensor:
    """The correctly rounded result, element by element through both exact routes."""
    points = op.points(problem, "y", range(count))
    bits = [nearest(point, fmt) for point in points]
    return torch.tensor([item - (1 << 64) if item >> 63 else item for item in bits])


def judged(op: Op, problem: Problem, got: Tensor, fmt: Format, **options: Any) -> tuple[JudgedResult, Truth]:
    truth = evaluate(op, problem, {"y": fmt})["y"]
    by = JudgedBy(op, problem, "y", truth, fmt, options.pop("policy", Policy()))
    return judge_by(by, got, **options), truth


def test_elements_of_which_nothing_is_known_are_open_and_no_figure_counts_them() -> None:
    fmt, x = named("float32"), torch.linspace(-3, 3, 64)
    problem, got = gelu(x), torch.nn.functional.gelu(x.double()).float()
    truth = evaluate(GELU, problem, {"y": fmt})["y"]
    value, bound = truth.value.clone(), truth.bound.clone()
    value[8:24], bound[8:24] = 5e-324, torch.inf  # where float64 has no interval, and nobody asked Arb

    def open_ones(got: Tensor) -> Tally:
        known = replace(truth, value=value, bound=bound)
        effort = Effort(sample=0, keep=1, open_limit=0, rounds=0)
        return judge_by(JudgedBy(GELU, problem, "y", known, fmt), got, effort=effort).tallies[0]

    right = open_ones(got)
    assert (right.n, right.open, right.nan) == (64, 15, 0), "the leader alone was asked for exactly"
    figures = right.figures()
    assert figures.undecided >= figures.open == 15 and value_of(figures.max_upper) < 0.51 and figures.mean < 0.51
    wrong = got.clone()
    wrong[60] += 1e-3
    assert value_of(open_ones(wrong).figures().max_upper) > 1000, "what is known is held against it"
    wrong[10] = torch.nan
    assert open_ones(wrong).figures().max_upper == "nan"


def test_of_an_element_that_no_route_decides_the_least_error_is_proven_not_the_middle() -> None:
    def beyond(precision: int) -> Any:
        raise BeyondEffort("too many terms")

    op = replace(GELU, remembered=lambda _problem, _result, indices: [Point(beyond, beyond) for _ in indices])
    fmt, x = named("float32"), torch.tensor([1.0])
    truth, ulp = evaluate(GELU, gelu(x), {"y": fmt})["y"], 2.0**-24  # gelu(1) is 0.84
    blurred = replace(truth, bound=torch.full((1,), 3 * ulp, dtype=torch.float64))
    got = truth.value.float() + 5 * ulp
    asked = judge_by(JudgedBy(op, gelu(x), "y", blurred, fmt), got, effort=Effort(sample=0)).tallies[0]
    not_asked = tally(JudgedBy(op, gelu(x), "y", blurred, fmt).compared(got)[1])[0]
    for figures in (asked.figures(), not_asked.figures()):
        assert (round(value_of(figures.max_ulp)), round(value_of(figures.max_upper))) == (2, 8)
        assert (round(figures.mean), round(figures.rms or 0.0)) == (2, 2), "nor do other figures count the middle"
    more = judge_by(JudgedBy(op, gelu(x), "y", truth, fmt), got, effort=Effort(sample=0)).tallies[0].figures()
    assert round(value_of(more.max_ulp)) == round(value_of(more.max_upper)) == 5


def largest(tally: Tally, scaled: bool = False) -> float:
    return value_of((tally.deciding if scaled else tally.plain).seen)


def spread(count: int, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(count, generator=source) * 4


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float64"])
def test_the_correctly_rounded_result_has_no_misrounded_element(name: str) -> None:
    fmt, x = named(name), spread(300)
    whole = gelu(x.to(getattr(torch, name)))
    got = from_bits(right_bits(GELU, whole, fmt, 300), fmt)
    outcome, _ = judged(GELU, whole, got, fmt)
    figures = outcome.tallies[0].figures()
    assert (figures.n, figures.misrounded, figures.undecided, figures.nonfinite) == (300, 0, 0, 0)
    assert 0.0 < float(figures.max_ulp) <= 0.5
    assert float(figures.max_upper) <= 0.5


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("step", [1, -1])
def test_one_element_off_by_one_is_the_worst_and_the_only_misrounded(name: str, step: int) -> None:
    fmt, x, place = named(name), spread(400), 217
    whole = gelu(x.to(getattr(torch, name)))
    bits = right_bits(GELU, whole, fmt, 400)
    bits[place] += step
    outcome, _ = judged(GELU, whole, from_bits(bits, fmt), fmt)
    tally = outcome.tallies[0]
    assert tally.misrounded == 1
    assert 0.5 < largest(tally) <= 1.5
    assert (tally.leaders[0].upper, tally.leaders[0].place) == (largest(tally), place)
    assert tally.leaders[0].bits == int(bits[place])
    verdict = outcome.printed(place)
    assert verdict.routes == 2
    assert verdict.misrounded
    assert abs(verdict.ulp) == largest(tally)


def test_every_printed_element_went_through_both_routes() -> None:
    whole = gelu(spread(5000))
    outcome, _ = judged(GELU, whole, torch.nn.functional.gelu(spread(5000)), named("float32"))
    for leader in outcome.tallies[0].leaders:
        assert outcome.printed(leader.place).routes == 2
        assert abs(outcome.exact[leader.place].ulp) == leader.upper


@pytest.mark.parametrize("lie", [float("nan"), float("inf")])
def test_nan_or_infinity_at_one_finite_input(lie: float) -> None:
    whole = gelu(spread(500))
    got = from_bits(right_bits(GELU, whole, named("float32"), 500), named("float32"))
    got[123] = lie
    figures_of = judged(GELU, whole, got, named("float32"))[0]
    figures = figures_of.tallies[0].figures()
    assert figures.nonfinite == 1
    assert figures.misrounded == 1
    assert figures_of.tallies[0].leaders[0].place == 123
    if lie != lie:
        assert figures.max_ulp == figures.max_upper == "nan"
    else:
        assert float(figures.max_ulp) > 1e30


def test_the_fast_reference_rounded_is_not_flagged() -> None:
    """All bfloat16 inputs: where float64 cannot tell, the exact judge does, and says right."""
    fmt = named("bfloat16")
    x = all_values(fmt)
    whole = gelu(x[torch.isfinite(x)])
    truth = evaluate(GELU, whole, {"y": fmt})["y"]
    # rounded by integer arithmetic: torch's cast goes through float32 and rounds twice
    bits = torch.tensor([fmt.from_float(value) for value in truth.value.tolist()])
    outcome, _ = judged(GELU, whole, from_bits(bits, fmt), fmt)
    tally = outcome.tallies[0]
    assert tally.undecided == 0
    assert tally.nonfinite == 0
    # halves of odd subnormals are ties for float64 and barely none for the reals
    assert tally.misrounded <= 130
    for index in outcome.exact:
        if outcome.exact[index].misrounded:
            assert abs(float(whole.inputs["x"][index])) < 2.36e-38  # twice the smallest normal  # type: ignore[index]
    assert largest(tally) < 0.5 + 1e-6


def test_all_zeros_and_the_input_itself_are_wrong() -> None:
    x = spread(2000)
    whole = gelu(x)
    for lie in (torch.zeros_like(x), x):
        tally = judged(GELU, whole, lie, named("float32"))[0].tallies[0]
        assert largest(tally) > 1e6
        assert tally.misrounded > 1000


def test_ties_are_judged_by_the_even_rule() -> None:
    """relu of x is exact, so a wider input lands on midpoints of the result's format."""
    fmt = named("bfloat16")
    silu = ops.get("silu")
    wide = torch.tensor([1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8], dtype=torch.float64)

    def points(problem, result, indices):  # type: ignore[no-untyped-def]
        import flint
        from mpmath import mp

        from verify.ops.op import Point

        values = [float(problem.inputs["x"][index]) for index in indices]
        return [Point(mp=lambda p, v=v: mp.mpf(v), arb=lambda p, v=v: flint.arb(v)) for v in values]

    identity = replace(silu, remembered=points)
    whole = Problem(inputs={"x": wide}, params=silu.resolve({}), results=("y",))
    bound = wide * 2.0**-50
    truth = Truth(wide, wide, bound=bound)
    even, odd = torch.tensor([0x3F80, 0x3F82]), torch.tensor([0x3F81, 0x3F81])
    for bits, wrong in ((even, 0), (odd, 2)):
        outcome = judge_by(JudgedBy(identity, whole, "y", truth, fmt), from_bits(bits, fmt))
        tally = outcome.tallies[0]
        assert (tally.misrounded, tally.undecided, largest(tally)) == (wrong, 0, 0.5)


def test_segments_have_their_own_maxima_and_worst() -> None:
    fmt, count = named("float32"), 300
    whole = gelu(spread(count))
    bits = right_bits(GELU, whole, fmt, count)
    segments = torch.arange(count) % 3
    bits[30] += 5  # segment 0
    bits[31] += 2  # segment 1
    outcome, _ = judged(GELU, whole, from_bits(bits, fmt), fmt, segments=segments, n_segments=4)
    first, second, third, empty = outcome.tallies
    assert 4.5 <= largest(first) <= 5.5
    assert first.leaders[0].place == 30
    assert 1.5 <= largest(second) <= 2.5
    assert second.leaders[0].place == 31
    assert largest(third) <= 0.5
    assert empty.n == 0
    assert [part.misrounded for part in outcome.tallies] == [1, 1, 0, 0]


def test_a_wide_bound_is_paid_with_escalations_not_with_wrong_figures() -> None:
    """The same verdict with a bound a million times wider, and with half the values shifted by it."""
    fmt, count = named("bfloat16"), 600
    whole = gelu(spread(count).bfloat16())
    bits = right_bits(GELU, whole, fmt, count)
    bits[77] += 1
    got = from_bits(bits, fmt)
    truth = evaluate(GELU, whole, {"y": fmt})["y"]
    wide = truth.value.abs() * 2.0**-14
    sign = torch.where(torch.arange(count) % 2 == 0, 0.9, -0.9)
    shifted = Truth(truth.value + sign * wide, truth.scale, bound=wide)
    plain = judge_by(JudgedBy(GELU, whole, "y", truth, fmt), got)
    rough = judge_by(JudgedBy(GELU, whole, "y", shifted, fmt), got)
    assert rough.escalated > plain.escalated
    for left, right in zip(plain.tallies, rough.tallies, strict=True):
        assert right.misrounded == left.misrounded == 1
        assert right.plain.seen == left.plain.seen
        assert right.leaders[0] == left.leaders[0]
        assert right.undecided == left.undecided == 0


def test_elements_with_the_widest_bounds_are_judged_exactly_first() -> None:
    """All intervals reach the largest error, and those of the last elements exceed any limit."""
    fmt, count = named("float32"), 600
    whole = gelu(spread(count))
    truth = evaluate(GELU, whole, {"y": fmt})["y"]
    ulps = torch.where(torch.arange(count) < count - 30, 4.0, 400.0)
    wide = Truth(truth.value, truth.scale, bound=truth.value.abs() * 2.0**-23 * ulps)
    got = truth.value.float()
    effort = Effort(sample=0, open_limit=0, rounds=1)
    tally = judge_by(JudgedBy(GELU, whole, "y", wide, fmt), got, effort=effort).tallies[0]
    assert value_of(tally.figures().max_upper) < 10


def test_a_fast_reference_outside_its_bound_stops_the_run() -> None:
    fmt = named("float32")
    whole = gelu(spread(50))
    truth = evaluate(GELU, whole, {"y": fmt})["y"]
    wrong = replace(truth, value=truth.value * (1 + 2.0**-30))
    with pytest.raises(TruthError, match="further apart than the bound"):
        judge_by(JudgedBy(GELU, whole, "y", wrong, fmt), truth.value.float())


def test_what_escalation_does_not_reach_is_counted() -> None:
    fmt, count = named("float32"), 200
    whole = gelu(spread(count))
    truth = evaluate(GELU, whole, {"y": fmt})["y"]
    blind = replace(truth, bound=truth.value.abs() + 1.0)
    by = JudgedBy(GELU, whole, "y", blind, fmt)
    outcome = judge_by(by, truth.value.float(), effort=Effort(open_limit=20, rounds=0))
    figures = outcome.tallies[0].figures()
    assert figures.undecided >= count - 20 - judging.KEEP
    assert figures.max_upper == "inf" or float(figures.max_upper) > 1e6


# -- scaled -------------------------------------------------------------------------------------


def test_a_cancelling_op_is_gated_by_the_scaled_error() -> None:
    """An absolute error of 2^-24 near a zero of layer norm is huge in ulps and small in the scale's."""
    op, fmt = ops.get("layer_norm"), named("float32")
    assert op.gate == "scaled"
    x = spread(64).reshape(1, 64)
    wide = x.double()
    normal = (wide - wide.mean()) / (wide.var(correction=0) + op.resolve({})["eps"]).sqrt()
    inputs: dict[str, Tensor | None] = {"x": x, "weight": torch.ones(64), "bias": torch.ones(64)}
    inputs["bias"][0] = -normal[0, 0]  # type: ignore[index]
    whole = Problem(inputs=inputs, params=op.resolve({}), results=("y",))
    got = from_bits(right_bits(op, whole, fmt, 64), fmt)
    truth = evaluate(op, whole, {"y": fmt})["y"]
    clean = judge_by(JudgedBy(op, whole, "y", truth, fmt), got.reshape(1, 64))
    assert clean.tallies[0].misrounded == 0
    assert largest(clean.tallies[0], True) <= 0.5
    got[0] += 2.0**-24
    small = judge_by(JudgedBy(op, whole, "y", truth, fmt), got.reshape(1, 64))
    assert largest(small.tallies[0]) > 4
    assert largest(small.tallies[0], True) <= 1.0
    place = 5
    scale = float(torch.maximum(truth.scale, truth.value.abs()).reshape(-1)[place])
    got[place] += 3 * torch.finfo(torch.float32).eps * 2.0 ** int(torch.tensor(scale).log2().floor())
    lied = judge_by(JudgedBy(op, whole, "y", truth, fmt), got.reshape(1, 64))
    tally = lied.tallies[0]
    assert tally.leaders[0].place == place
    assert 2.5 <= largest(tally, True) <= 3.5
    assert largest(tally) >= largest(tally, True)
    assert tally.figures().scaled_max == largest(tally, True)


def test_an_error_of_more_ulps_than_a_float_counts_has_a_scaled_figure() -> None:
    """A row of one number: its gradient is exactly 0, and what is left of g - mean(g) belongs to the size of g."""
    op, fmt = ops.get("layer_norm"), named("float64")
    inputs: dict[str, Tensor | None] = dict.fromkeys(o.name for o in op.operands)
    inputs["x"] = torch.tensor([[3.0]], dtype=torch.float64)
    upstream = {"y": torch.tensor([[0.5]], dtype=torch.float64)}
    problem = Problem(inputs=inputs, params=op.resolve({}), results=("dx",), upstream=upstream)
    truth = evaluate(op, problem, {"dx": fmt})["dx"]
    got = torch.tensor([[-1e-14]], dtype=torch.float64)
    outcome = judge_by(JudgedBy(op, problem, "dx", truth, fmt), got)
    expected = 1e-14 / 2.0 ** (truth.scale_exponent(0, fmt))
    assert 0.05 < expected < 1
    assert outcome.exact[0].ulp == -torch.inf
    assert largest(outcome.tallies[0], True) == pytest.approx(expected, rel=1e-12)
    assert not outcome.tallies[0].nonfinite
    direct = errors(got, truth.value, fmt, low=truth.low, bound=truth.bound, scale=truth.scale)
    assert direct.scaled is not None and direct.scaled_width is not None
    assert float(direct.scaled[0]) == pytest.approx(-expected, rel=1e-12)
    assert float(direct.scaled_width[0]) < 1e-12


def _flush() -> Iterator[None]:
    torch.set_flush_denormal(True)
    yield
    torch.set_flush_denormal(False)


def _replaced(owner: Any, name: str, by: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, by)
        yield


@pytest.mark.parametrize(
    "change",
    [
        _flush,
        lambda: _replaced(torch, "equal", lambda *tensors: True),
        lambda: _replaced(torch.Tensor, "abs", lambda tensor: tensor * 0),
        lambda: _replaced(judging, "errors_of", lambda got, value, fmt: errors(got, widen(got), fmt)),
        lambda: _replaced(judging, "same_bits", lambda *sides: False),
    ],
)
def test_known_bits_show_a_judge_that_is_another_one(change: Any) -> None:
    judging.demand_known_answers("cpu")
    with contextmanager(change)(), pytest.raises(KernelError, match="no longer come out right"):
        judging.demand_known_answers("cpu")
    judging.demand_known_answers("cpu")


def _normalized() -> tuple[Op, Problem, Truth]:
    op = Definition(lambda x, w: (x @ w).softmax(-1), ("x", "w"), shapes={"x": "m k", "w": "k n"}).op()
    x, w = (torch.randn(shape, generator=torch.Generator().manual_seed(1)) for shape in ((16, 24), (24, 32)))
    problem = Problem(inputs={"x": x, "w": w}, results=("y",))
    return op, problem, evaluate(op, problem, {"y": named("float32")})["y"]


def test_an_element_whose_noise_was_sampled_too_small_is_sampled_again() -> None:
    op, problem, truth = _normalized()
    fmt = named("float32")
    assert truth.noise is not None
    got, noise = truth.value.float(), truth.noise.clone()
    got[3, 5] = float(truth.value[3, 5] + 4 * truth.noise[3, 5])
    noise[3, 5] /= 4  # as an accident of sixteen runs has it
    unlucky = replace(truth, noise=noise)
    again = JudgedBy(op, problem, "y", unlucky, fmt).with_noise_again(got).truth
    assert again.noise is not None and 0.7 < float(again.noise[3, 5] / truth.noise[3, 5]) < 1.4
    others = torch.ones_like(noise, dtype=torch.bool)
    others[3, 5] = False
    assert torch.equal(again.noise[others], noise[others])

    def largest(by: Truth) -> float:
        judged = judge_by(JudgedBy(op, problem, "y", by, fmt), got, effort=Effort(sample=0))
        return value_of(judged.tallies[0].deciding.upper)

    assert largest(unlucky) > 8 > 6 > largest(again)


def test_noise_is_sampled_again_beside_an_element_that_the_policy_of_the_kernel_excuses() -> None:
    """Without the policy, the error of that element is infinite, so that the kernel looks broken."""
    op, problem, truth = _normalized()
    assert truth.noise is not None
    got, value, noise = truth.value.float(), truth.value.clone(), truth.noise.clone()
    got[3, 5], value[0, 0] = (float(truth.value[3, 5] + 4 * truth.noise[3, 5]), torch.nan)
    noise[3, 5] /= 4
    unlucky = replace(truth, value=value, noise=noise)
    by = JudgedBy(op, problem, "y", unlucky, named("float32"), Policy(nan="any")).with_noise_again(got)
    assert by.truth.noise is not None and 0.7 < float(by.truth.noise[3, 5] / truth.noise[3, 5]) < 1.4
