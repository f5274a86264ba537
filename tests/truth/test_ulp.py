"""The tensor ULP code against independent arithmetic.

A million (got, truth) pairs are compared with numpy's 80-bit long double, whose 64-bit mantissa makes the
difference of a number and a nearby truth exact, and with rounding by other means: numpy's casts for float32
and float16, a search in the sorted list of all values for the 8-bit formats and bfloat16, the normalised
pair itself for float64. test_policy.py compares with rational arithmetic at every boundary of a format.
"""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.truth.every_value import all_values, neighbour
from verify.truth.formats import FORMATS, Format, named, power_of_two, torch_dtype
from verify.truth.ulp import Policy, bits_of, errors, from_bits, ulp_exponent, widen

ALL = list(FORMATS.values())
NARROW = [fmt for fmt in ALL if fmt.name != "float64"]
each = pytest.mark.parametrize("fmt", ALL, ids=lambda fmt: fmt.name)
narrow = pytest.mark.parametrize("fmt", NARROW, ids=lambda fmt: fmt.name)
Generator = np.random.Generator

requires_long_double = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 63, reason="numpy's long double is no wider than float64 here"
)


# -- adversarial pairs --------------------------------------------------------------------------


def patterns(fmt: Format, count: int, source: Generator) -> np.ndarray:
    """Finite patterns: random ones, binade ends, subnormals, the largest numbers; both signs."""
    top = fmt.max_bits
    if fmt.bits == 64:
        bits = source.integers(0, top, count, dtype=np.int64, endpoint=True)
    else:
        bits = source.integers(0, top + 1, count)
    kind = source.integers(0, 8, count)
    m = fmt.mantissa_bits
    edge = ((bits >> m) << m) + source.integers(-2, 3, count)
    bits = np.where(kind == 0, np.clip(edge, 0, top), bits)
    bits = np.where(kind == 1, source.integers(0, min(1 << m, 1 << 20), count), bits)
    return np.where(kind == 2, top - source.integers(0, min(6, top), count), bits)


def to_tensor(fmt: Format, bits: np.ndarray, negative: np.ndarray) -> Tensor:
    raw = torch.from_numpy(bits.astype(np.int64))
    sign = torch.from_numpy(negative)
    if fmt.bits == 64:
        raw = torch.where(sign, raw | -(1 << 63), raw)
    else:
        raw = torch.where(sign, raw | fmt.sign_bit, raw)
    return from_bits(raw, fmt)


def pairs(fmt: Format, count: int, seed: int) -> tuple[Tensor, np.ndarray]:
    """(got, truth as float64) with the truth where mistakes are likely."""
    source = np.random.default_rng(seed)
    bits = patterns(fmt, count, source)
    got = to_tensor(fmt, bits, source.random(count) < 0.5)
    here = widen(got).numpy()
    unit = np.ldexp(1.0, ulp_exponent(widen(got), fmt).numpy())
    kind = source.integers(0, 10, count)
    half_steps = source.integers(-6, 7, count) * 0.5
    with np.errstate(over="ignore"):
        truth = here + half_steps * unit  # exact: ties, neighbours, the number itself
        truth = np.where(kind == 1, np.nextafter(truth, np.inf), truth)
        truth = np.where(kind == 2, np.nextafter(truth, -np.inf), truth)
        uniform = here + source.uniform(-3, 3, count) * unit
        truth = np.where((kind == 3) | (kind == 4), uniform, truth)
        truth = np.where(kind == 5, -uniform, truth)
        elsewhere = widen(to_tensor(fmt, patterns(fmt, count, source), source.random(count) < 0.5))
        truth = np.where(kind == 6, elsewhere.numpy() * source.uniform(0.4, 2.2, count), truth)
        largest = float(fmt.max_finite)
        sign = np.where(source.random(count) < 0.5, -1.0, 1.0)
        step = largest * 2.0**-fmt.precision
        beyond = sign * (largest + source.uniform(-3, 9, count) * step)
        truth = np.where(kind == 7, beyond, truth)
        tiny = sign * float(fmt.value(1)) * source.uniform(0, 2, count)
        truth = np.where(kind == 8, tiny, truth)
    infinite = torch.from_numpy((kind == 7) & (source.random(count) < 0.4))
    if fmt.has_inf:
        inf_bits = np.full(count, fmt.inf_bits, dtype=np.int64)
        infinity = to_tensor(fmt, inf_bits, sign < 0)
        merged = torch.where(infinite, bits_of(infinity), bits_of(got))
        got = from_bits(merged, fmt)
    return got, truth


# -- the oracle in long double ------------------------------------------------------------------


def long_error(fmt: Format, got: Tensor, value: np.ndarray, low: np.ndarray | None) -> np.ndarray:
    """(got - truth) / ulp(truth), the overflow rule included, in 80-bit arithmetic."""
    wide = np.longdouble
    actual = widen(got).numpy().astype(wide)
    top = np.ldexp(wide(1), fmt.emax) * 2 if fmt.has_inf else wide(480)
    actual = np.where(np.isinf(actual), np.copysign(top, actual), actual)
    head = np.clip(value.astype(wide), -top, top)
    _, exponent = np.frexp(value)
    exponent = exponent.astype(np.int64) - 1
    if low is not None:
        below = (np.abs(np.frexp(value)[0]) == 0.5) & (np.sign(low) * np.sign(value) < 0)
        exponent = exponent - below
    exponent = np.where(value == 0, fmt.emin, np.clip(exponent, fmt.emin, fmt.emax))
    difference = actual - head
    if low is not None:
        difference = difference - low.astype(wide)
    return np.ldexp(difference, -(exponent - fmt.mantissa_bits))


def rounded(fmt: Format, value: np.ndarray) -> np.ndarray:
    """The correctly rounded value, infinities included, without verify's arithmetic."""
    with np.errstate(over="ignore"):
        if fmt.name == "float32":
            return value.astype(np.float32).astype(np.float64)
        if fmt.name == "float16":
            return value.astype(np.float16).astype(np.float64)
    table = widen(all_values(fmt)).numpy()[: fmt.max_bits + 1]
    table = np.append(table, 2 * table[-1] - table[-2])  # where overflow stands
    magnitude = np.minimum(np.abs(value), table[-1])
    above = np.searchsorted(table, magnitude)  # table[above - 1] < magnitude <= table[above]
    under = np.maximum(above - 1, 0)
    wide = np.longdouble
    up = table[above].astype(wide) - magnitude.astype(wide)
    down = magnitude.astype(wide) - table[under].astype(wide)
    take_up = (up < down) | ((up == down) & (above % 2 == 0))
    index = np.where(take_up, above, under)
    return np.copysign(np.where(index == table.size - 1, np.inf, table[index]), value)


def check_against_long_double(fmt: Format, got: Tensor, value: np.ndarray) -> None:
    found = errors(got, torch.from_numpy(value), fmt)
    actual = widen(got).numpy()
    # infinity for a truth that is at most the largest finite number
    early = np.isinf(actual) & (np.abs(value) <= float(fmt.max_finite))
    expected = np.where(early, np.inf, long_error(fmt, got, value, None))
    compare(found.ulp.numpy(), expected)
    right = rounded(fmt, value)
    # e4m3fn has no infinity to return: every finite number is misrounded where it overflows
    wrong = actual != right
    assert np.array_equal(found.misrounded.numpy(), wrong)
    assert not found.undecided.any()


def compare(ulp: np.ndarray, expected: np.ndarray) -> None:
    huge = np.abs(expected) > np.finfo(np.float64).max
    assert np.array_equal(np.isinf(ulp), huge)
    kept, wanted = ulp[~huge].astype(np.longdouble), expected[~huge]
    assert np.all(np.abs(kept - wanted) <= 1e-9 * np.abs(wanted))


@requires_long_double
@narrow
def test_190_000_pairs_per_format_against_long_double(fmt: Format) -> None:
    got, truth = pairs(fmt, 190_000, seed=sum(map(ord, fmt.name)))
    check_against_long_double(fmt, got, truth)


@requires_long_double
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_every_pair_of_an_8_bit_number_and_a_midpoint(name: str) -> None:
    fmt = named(name)
    table = widen(all_values(fmt)).numpy()
    finite = np.unique(table[np.isfinite(table)])
    places = np.concatenate([finite, (finite[1:] + finite[:-1]) / 2, [-1e9, 1e9, 464, -464]])
    places = np.concatenate([places, np.nextafter(places, np.inf), np.nextafter(places, -np.inf)])
    patterns_ = torch.tensor([bits for bits in range(1 << fmt.bits) if not fmt.is_nan(bits)])
    got = from_bits(patterns_.repeat_interleave(places.size), fmt)
    check_against_long_double(fmt, got, np.tile(places, patterns_.numel()))


@requires_long_double
def test_50_000_float64_results_against_truths_of_two_floats() -> None:
    fmt, count = named("float64"), 50_000
    source = np.random.default_rng(17)
    bits = patterns(fmt, count, source)
    value = to_tensor(fmt, bits, source.random(count) < 0.5).numpy()
    _, exponent = np.frexp(value)
    unit = np.ldexp(1.0, np.clip(exponent - 1, fmt.emin, fmt.emax) - 52)
    # below a power of two the pair may be a quarter of the upper ulp away at most
    power = np.abs(np.frexp(value)[0]) == 0.5
    inward = np.where(power & (np.abs(value) > float(fmt.min_normal)), 0.25, 0.5)
    share = source.choice([0.0, 0.5, 0.5 - 2.0**-54, 0.25, 0.1], count)
    share = np.where(source.random(count) < 0.5, source.uniform(0, 0.5, count), share)
    sign = np.where(source.random(count) < 0.5, -1.0, 1.0)
    low = np.where(sign * value < 0, np.minimum(share, inward), share) * unit * sign
    representable = np.abs(value) > 2.0**-900
    low = np.where(representable, low, 0.0)
    with np.errstate(over="ignore"):
        normalised = value + low  # a tie goes to even here, as it must
    low = (value - normalised) + low
    value = normalised
    keep = np.isfinite(value)
    value, low = value[keep], low[keep]
    steps = source.integers(-3, 4, value.size)
    got = torch.from_numpy(value.view(np.int64) + np.where(value == 0, np.abs(steps), steps))
    got = torch.where(got.abs() >= fmt.inf_bits, torch.from_numpy(value.view(np.int64)), got)
    actual = from_bits(got, fmt)
    flip = torch.from_numpy(source.random(value.size) < 0.05)
    actual = torch.where(flip, -actual, actual)
    keep_finite = torch.isfinite(actual)
    actual, value, low = actual[keep_finite], value[keep_finite], low[keep_finite]
    found = errors(actual, torch.from_numpy(value), fmt, low=torch.from_numpy(low))
    compare(found.ulp.numpy(), long_error(fmt, actual, value, low))
    # the pair is normalised, so its first part is the correctly rounded truth
    assert np.array_equal(found.misrounded.numpy(), actual.numpy() != value)
    assert int(found.misrounded.sum()) > 20_000


def test_a_pair_just_past_a_tie_is_no_tie() -> None:
    """1 - (0.5 - 2^-54) rounds to 0.5 in float64: the rest decides."""
    fmt = named("float64")
    odd = 1.0 + 2.0**-52
    even = 1.0 + 2.0**-51
    for share, wrong in ((0.5 - 2.0**-54, True), (0.5, False)):
        low = torch.tensor([share * 2.0**-52], dtype=torch.float64)
        value = torch.tensor([odd], dtype=torch.float64)
        found = errors(torch.tensor([even], dtype=torch.float64), value, fmt, low=low)
        exact = Fraction(odd) + Fraction(float(low))
        assert (fmt.to_float(fmt.round(exact)) != even) is wrong
        assert bool(found.misrounded[0]) is wrong


# -- intervals ----------------------------------------------------------------------------------


def bounded_truths(fmt: Format, count: int, seed: int) -> list[tuple[int, float, float, float]]:
    """(got, value, low, bound): values at powers of two, at zero, at the top; bounds of all sizes."""
    source = random.Random(seed)
    found = []
    while len(found) < count:
        bits = source.getrandbits(fmt.bits)
        kind = source.randrange(6)
        if kind == 0:
            bits = (bits >> fmt.mantissa_bits << fmt.mantissa_bits) & ((1 << fmt.bits) - 1)
        if kind == 1:
            bits = source.randrange(4) | (bits & fmt.sign_bit)
        if kind == 2:
            bits = (fmt.max_bits - source.randrange(3)) | (bits & fmt.sign_bit)
        if not fmt.is_finite(bits):
            continue
        centre = fmt.to_float(bits)
        unit = float(fmt.ulp(fmt.value(bits)))
        value = centre + source.choice([0.0, 0.5, 1.0, source.uniform(-2, 2)]) * unit
        if abs(value) > 1.7e308:
            continue
        bound = unit * 2.0 ** source.choice([-60, -30, -20, -3, -1, 0, 2, 12]) * source.random()
        if source.randrange(8) == 0:
            bound = abs(value) * source.choice([0.9, 1.0, 1.5, 2.0**-55])
        low = 0.0
        if fmt.name == "float64" and abs(value) > 1e-270:
            low = unit * source.choice([0.0, 0.25, -0.25, 2.0**-70, -(2.0**-70)])
        got = bits
        for _ in range(source.randrange(4)):
            got = neighbour(fmt, got, 1 if source.randrange(2) else -1)
        if source.randrange(20) == 0:
            got = source.choice([0, fmt.sign_bit])
        if fmt.is_finite(got):
            found.append((got, value, low, bound))
    return found


def reals_within(fmt: Format, centre: Fraction, bound: Fraction, source: random.Random) -> list[Fraction]:
    reals = [centre - bound, centre + bound, centre]
    reals.append(centre + bound * Fraction(source.randint(-1000, 1000), 1000))
    for exponent in (fmt.ulp_exponent(centre) + fmt.mantissa_bits + step for step in (0, 1)):
        edge = power_of_two(exponent) * (1 if centre >= 0 else -1)
        hair = Fraction(1, 2**1200)
        reals += [edge, edge - hair, edge + hair]
    return [real for real in reals if abs(real - centre) <= bound]


@each
def test_the_interval_holds_the_error_of_every_real_within_the_bound(fmt: Format) -> None:
    """And a decided verdict on rounding is the verdict on each of those reals."""
    drawn = bounded_truths(fmt, 1500, seed=5)
    got = from_bits(torch.tensor([signed_pattern(fmt, bits) for bits, *_ in drawn]), fmt)
    columns = [torch.tensor(column, dtype=torch.float64) for column in list(zip(*drawn, strict=True))[1:]]
    low = columns[1] if fmt.name == "float64" else None
    found = errors(got, columns[0], fmt, low=low, bound=columns[2])
    source = random.Random(6)
    decided = 0
    for place, (bits, value, tail, bound) in enumerate(drawn):
        centre = Fraction(value) + Fraction(tail)
        ulp, width = float(found.ulp[place]), float(found.width[place])
        undecided = bool(found.undecided[place])
        decided += not undecided
        for real in reals_within(fmt, centre, Fraction(bound), source):
            exact = fmt.error(bits, real)
            if fmt.is_inf(bits) and abs(real) <= fmt.max_finite:
                assert ulp == np.inf or width == np.inf, drawn[place]
            elif ulp == ulp and abs(ulp) != np.inf and width != np.inf:
                rounding = (abs(exact) + Fraction(width)) * Fraction(1, 2**50)
                assert abs(exact - Fraction(ulp)) <= Fraction(width) + rounding, drawn[place]
            if not undecided:
                right = fmt.round(real)
                same = bits == right or (bits | right) & ~fmt.sign_bit == 0
                assert bool(found.misrounded[place]) == (not same), drawn[place]
    assert 500 < decided < len(drawn)  # both kinds occur


@each
def test_an_answer_far_off_is_misrounded_whatever_the_side_of_a_power_of_two(fmt: Format) -> None:
    source, edge = random.Random(7), fmt.from_float(1.0)
    steps = [step for step in range(-14, 15) if step]
    patterns = [edge + step for step in steps for _ in range(8)]
    got = from_bits(torch.tensor([signed_pattern(fmt, bits) for bits in patterns]), fmt)
    size = 2.0**-fmt.mantissa_bits * 0.9
    bound = torch.tensor([size * source.random() for _ in patterns], dtype=torch.float64)
    value = 1.0 + bound * torch.tensor([2 * source.random() - 1 for _ in patterns], dtype=torch.float64)
    found = errors(got, value, fmt, bound=bound)
    for place, (bits, near, width) in enumerate(zip(patterns, value.tolist(), bound.tolist(), strict=True)):
        if abs(fmt.value(bits) - 1) >= 6 * power_of_two(-fmt.mantissa_bits):
            assert found.misrounded[place] and not found.undecided[place]
        for real in reals_within(fmt, Fraction(near), Fraction(width), source):
            if not found.undecided[place]:
                assert bool(found.misrounded[place]) == (fmt.round(real) != bits)


def signed_pattern(fmt: Format, bits: int) -> int:
    return bits - (1 << 64) if fmt.bits == 64 and bits >> 63 else bits


def test_a_bound_wider_than_the_value_makes_the_ulp_uncertain_over_all_binades() -> None:
    fmt = named("float32")
    value = torch.tensor([1e-10], dtype=torch.float64)
    bound = torch.tensor([2e-10], dtype=torch.float64)
    found = errors(torch.tensor([1e-10], dtype=torch.float32), value, fmt, bound=bound)
    # the truth may be zero, where an ulp is 2^-149
    assert float(found.ulp[0] + found.width[0]) >= 1e-10 / 2.0**-149 * 0.99
    assert bool(found.undecided[0])


# -- scaled errors ------------------------------------------------------------------------------


@narrow
def test_scaled_error_is_the_error_in_ulps_of_the_scale(fmt: Format) -> None:
    source = random.Random(9)
    got, truth = pairs(fmt, 400, seed=3)
    top = float(fmt.max_finite)
    finite = (abs(truth) <= top) & np.isfinite(widen(got).numpy())
    got, truth = got[torch.from_numpy(finite)], truth[finite]
    scale = np.array([abs(x) * source.choice([0.5, 1.0, 3.0, 1e3]) for x in truth.tolist()])
    scale = np.minimum(scale, top)
    bound = np.abs(truth) * 2.0**-50
    found = errors(
        got,
        torch.from_numpy(truth),
        fmt,
        scale=torch.from_numpy(scale),
        bound=torch.from_numpy(bound),
    )
    assert found.scaled is not None
    assert found.scaled_width is not None
    for place, number in enumerate(truth.tolist()):
        actual = Fraction(float(widen(got[place : place + 1])[0]))
        unit = fmt.ulp(Fraction(max(abs(number), float(scale[place]))))
        exact = (actual - Fraction(number)) / unit
        assert abs(Fraction(float(found.scaled[place])) - exact) <= abs(exact) / 10**9
        width = Fraction(float(bound[place])) / unit
        assert abs(Fraction(float(found.scaled_width[place])) - width) <= width / 10**9


def test_the_scale_is_never_smaller_than_the_truth() -> None:
    fmt = named("float32")
    value = torch.tensor([3.0], dtype=torch.float64)
    got = torch.tensor([3.0 + 2.0**-21], dtype=torch.float32)
    found = errors(got, value, fmt, scale=torch.tensor([1e-30], dtype=torch.float64))
    assert found.scaled is not None
    assert float(found.scaled[0]) == float(found.ulp[0]) == 2.0


@narrow
def test_a_scale_beyond_the_format_has_the_unit_of_the_largest_number(fmt: Format) -> None:
    """A wider one would call every number of the format right, and infinity, beside summands far above its largest."""
    top = float(fmt.max_finite)
    scale = torch.tensor([top, 2 * top, 2.0**20 * top], dtype=torch.float64)
    got = torch.full((3,), float(fmt.overflow) if fmt.has_inf else top, dtype=torch.float64).to(torch_dtype(fmt))
    found = errors(got, torch.zeros(3, dtype=torch.float64), fmt, scale=scale)
    assert found.scaled is not None and found.scaled_width is not None
    reached = float(fmt.overflow if fmt.has_inf else fmt.max_finite) / float(fmt.ulp(fmt.max_finite))
    assert found.scaled.tolist() == [reached] * 3


def test_an_error_of_a_tiny_truth_is_nothing_beside_a_scale_far_beyond_the_format() -> None:
    truth, scale = (torch.tensor([number], dtype=torch.float64) for number in (1.1e-40, 1e300))
    found = errors(torch.tensor([1e-40]), truth, named("float32"), scale=scale)
    assert found.ulp.item() < -1000 and found.scaled is not None and found.scaled.item() == 0


# -- special values -----------------------------------------------------------------------------


def one(fmt: Format, got: float, truth: float, policy: Policy | None = None) -> dict[str, object]:
    actual = torch.tensor([got], dtype=torch.float32).to(torch_dtype(fmt))
    found = errors(actual, torch.tensor([truth], dtype=torch.float64), fmt, policy=policy)
    return {
        "ulp": float(found.ulp[0]),
        "misrounded": bool(found.misrounded[0]),
        "nonfinite": bool(found.nonfinite[0]),
        "nan": bool(found.nan[0]),
    }


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("got", "truth", "ulp", "misrounded", "nonfinite", "nan"),
    [
        (NAN, NAN, 0.0, False, False, False),
        (NAN, 1.0, INF, True, True, True),
        (NAN, INF, INF, True, True, True),
        (1.0, NAN, INF, True, True, False),
        (INF, INF, 0.0, False, False, False),
        (INF, -INF, INF, True, True, False),
        (INF, 1.0, INF, True, True, False),
        (3.4028234663852886e38, INF, INF, True, True, False),
        (-5.0, -INF, INF, True, True, False),
        (INF, 3.4028234663852886e38, INF, True, True, False),
        (-INF, -3.4028232635611926e38, INF, True, True, False),
        (INF, 3.5e38, 0.0, False, False, False),
        (INF, 3.40282357e38, None, False, False, False),
    ],
)
def test_special_values_in_float32(
    got: float, truth: float, ulp: float | None, misrounded: bool, nonfinite: bool, nan: bool
) -> None:
    found = one(named("float32"), got, truth)
    if ulp is None:
        assert 0 < float(found["ulp"]) <= 0.5  # type: ignore[arg-type]
    else:
        assert found["ulp"] == ulp
    assert (found["misrounded"], found["nonfinite"], found["nan"]) == (misrounded, nonfinite, nan)


def test_nan_any_accepts_everything_where_the_truth_has_no_value() -> None:
    lenient = Policy(nan="any")
    assert one(named("bfloat16"), 1.0, NAN, lenient)["ulp"] == 0.0
    assert one(named("bfloat16"), NAN, 1.0, lenient)["ulp"] == INF


def test_saturate_wants_the_largest_finite_number() -> None:
    fmt, policy = named("float16"), Policy(overflow="saturate")
    assert one(fmt, 65504.0, 1e9, policy) == {
        "ulp": 0.0,
        "misrounded": False,
        "nonfinite": False,
        "nan": False,
    }
    assert one(fmt, 65504.0, INF, policy)["nonfinite"] is False
    assert one(fmt, INF, 1e9, policy)["ulp"] == 1.0
    assert one(fmt, INF, 1e9, policy)["misrounded"] is True


def test_infinity_is_infinitely_wrong_where_the_largest_number_or_a_smaller_one_is_right() -> None:
    fmt = named("float16")
    assert one(fmt, INF, 65504.0)["ulp"] == INF
    assert one(fmt, INF, 65530.0)["ulp"] == pytest.approx((65536 - 65530) / 32)
    assert one(fmt, 65504.0, INF)["ulp"] == INF
    assert one(fmt, 65504.0, 1e9)["ulp"] == -1.0  # a finite truth that overflows: saturated, by one ulp


def test_whether_a_truth_beside_the_largest_number_overflows_is_left_to_the_judge() -> None:
    fmt = named("float16")
    got = torch.tensor([torch.inf], dtype=torch.float16)
    value, bound = torch.tensor([65504.0], dtype=torch.float64), torch.tensor([1e-6], dtype=torch.float64)
    assert bool(errors(got, value, fmt, bound=bound).undecided[0])
    assert not bool(errors(got, value + 1e-3, fmt, bound=bound).undecided[0])
    assert float(errors(got, value - 1e-3, fmt, bound=bound).ulp[0]) == INF


def test_of_a_sum_the_scaled_error_says_whether_an_infinity_is_far_off() -> None:
    fmt = named("float16")
    got = torch.tensor([torch.inf, torch.inf], dtype=torch.float16)
    value = torch.tensor([65500.0, 1.0], dtype=torch.float64)
    found = errors(got, value, fmt, scale=torch.full((2,), 65504.0, dtype=torch.float64))
    assert found.scaled is not None
    assert found.scaled.tolist() == [(65536 - 65500) / 32, (65536 - 1) / 32]


def test_flush_accepts_zero_below_the_smallest_normal_only() -> None:
    fmt, policy = named("float32"), Policy(subnormals="flush")
    assert one(fmt, 0.0, 1.1e-38, policy)["ulp"] == 0.0
    assert one(fmt, 0.0, 2.0**-126, policy)["ulp"] == -(2.0**23)
    assert one(fmt, 1e-45, 1.1e-38, policy)["misrounded"] is True


def test_strict_signed_zero() -> None:
    fmt, policy = named("float32"), Policy(signed_zero="strict")
    assert one(fmt, 0.0, -1e-50, policy)["misrounded"] is True
    assert one(fmt, -0.0, -1e-50, policy)["misrounded"] is False
    assert one(fmt, 0.0, -1e-50)["misrounded"] is False


def test_nan_of_e4m3fn_is_its_overflow_unless_saturation_is_asked_for() -> None:
    fmt = named("float8_e4m3fn")
    nan = from_bits(torch.tensor([fmt.nan_bits]), fmt)

    def judged(truth: float, policy: Policy) -> tuple[float, bool]:
        found = errors(nan, torch.tensor([truth], dtype=torch.float64), fmt, policy=policy)
        return float(found.ulp[0]), bool(found.nan[0])

    assert judged(1e9, Policy()) == (0.0, False)
    assert judged(472.0, Policy()) == (0.25, False)
    assert judged(464.0, Policy()) == (INF, True)
    assert judged(1.0, Policy()) == (INF, True)
    assert judged(1e9, Policy(overflow="saturate")) == (INF, True)


# -- plumbing -----------------------------------------------------------------------------------


def test_an_unusable_scale_does_not_excuse_an_error() -> None:
    got = torch.tensor([1.5, 1.5], dtype=torch.float32)
    truth = torch.tensor([1.0, 1.0], dtype=torch.float64)
    scale = torch.tensor([torch.nan, torch.inf], dtype=torch.float64)
    found = errors(got, truth, named("float32"), scale=scale)
    assert found.scaled is not None
    assert found.scaled.tolist() == [2.0**22, 2.0**22]


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32"])
def test_a_truth_far_beyond_overflow_is_certain_however_loose_its_bound(name: str) -> None:
    fmt = named(name)
    value = torch.tensor([1e60, -1e60, 1e60, 1e60], dtype=torch.float64)
    bound = torch.tensor([1e50, 1e50, 1e50, 1e60], dtype=torch.float64)
    top = float(fmt.max_finite)
    got = torch.tensor([torch.inf, -torch.inf, top, torch.inf], dtype=torch_dtype(fmt))
    found = errors(got, value, fmt, bound=bound, scale=value.abs())
    assert found.scaled_width is not None
    assert found.scaled_width.tolist()[:3] == [0.0, 0.0, 0.0]
    assert found.ulp.tolist()[:3] == [0.0, 0.0, -1.0]
    assert found.width.tolist()[:3] == [0.0, 0.0, 0.0]
    assert found.undecided.tolist() == [False, False, False, True], "the last truth may lie within the format"
