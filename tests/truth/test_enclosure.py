"""Enclosures contain their value, whatever the working precision of the moment."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import flint
import mpmath
import pytest

from verify.truth.enclosure import (
    MINUS_INFINITY,
    NAN,
    PLUS_INFINITY,
    Enclosure,
    from_arb,
    from_mpmath,
    to_double_double,
)

CUT = 20_000


@pytest.fixture(params=[20, 53, 400])
def moment(request: pytest.FixtureRequest):
    """A working precision that has nothing to do with the value."""
    before = flint.ctx.prec
    flint.ctx.prec = request.param
    with mpmath.workprec(request.param):
        yield request.param
    flint.ctx.prec = before


def exact(mantissa: int, exponent: int) -> Fraction:
    return Fraction(mantissa) * Fraction(2) ** exponent


def random_dyadics(seed: int, count: int) -> list[tuple[int, int]]:
    source = random.Random(seed)
    found = []
    for _ in range(count):
        bits = source.choice([1, 3, 53, 130, 700])
        mantissa = source.getrandbits(bits) | 1
        exponent = source.choice([0, -60, 300, -1074, 5000, -5000, -12_000, 12_000])
        found.append((source.choice([-1, 1]) * mantissa, exponent - bits))
    return found


def test_an_arb_ball_is_enclosed_at_any_precision(moment: int) -> None:
    source = random.Random(moment)
    for mantissa, exponent in random_dyadics(moment, 300):
        radius = source.getrandbits(20) | 1
        places = exponent + source.choice([-400, -30, 0, 5, 60])
        ball = flint.arb((mantissa, exponent), (radius, places))
        # arb rounds a radius up to 30 bits when the ball is made
        found = from_arb(ball)
        assert found is not None
        middle, spread = exact(mantissa, exponent), exact(radius, places)
        assert found.low <= middle - spread
        assert found.high >= middle + spread
        # a radius far below the last bit of the middle may grow to a part of that bit
        grown = exact(4, exponent - 4 * max(mantissa.bit_length(), 64))
        assert found.high - found.low <= 2 * spread * (1 + Fraction(1, 2**20)) + grown


def test_an_exact_ball_is_itself(moment: int) -> None:
    for mantissa, exponent in random_dyadics(moment + 1, 200):
        found = from_arb(flint.arb((mantissa, exponent)))
        assert found is not None
        assert found.is_exact
        assert found.low == exact(mantissa, exponent)
    assert from_arb(flint.arb(0)) == Enclosure(Fraction(0), Fraction(0))


def test_a_ball_around_zero() -> None:
    for places in (-3000, -10, 0, 900):
        found = from_arb(flint.arb(0, (1, places)))
        assert found is not None
        assert found.low <= -exact(1, places)
        assert found.high >= exact(1, places)
        assert found.high - found.low <= 3 * exact(1, places)


@pytest.mark.parametrize("exponent", [30_000, 10**12, 10**400])
@pytest.mark.parametrize("sign", [1, -1])
def test_exponents_beyond_every_format_are_cut_outwards(exponent: int, sign: int) -> None:
    huge = from_arb(flint.arb((sign * 5, exponent)))
    tiny = from_arb(flint.arb((sign * 5, -exponent)))
    assert huge is not None
    assert tiny is not None
    inner, outer = sorted((abs(huge.low), abs(huge.high)))
    assert inner == 2**CUT
    assert outer > inner
    assert (huge.low > 0) == (sign > 0)
    if sign > 0:
        assert tiny == Enclosure(Fraction(0), Fraction(1, 2**CUT))
    else:
        assert tiny == Enclosure(Fraction(-1, 2**CUT), Fraction(0))
    with mpmath.workprec(100):
        number = mpmath.ldexp(mpmath.mpf(5 * sign), exponent)
        assert from_mpmath(number, 100).meets(huge)
        assert from_mpmath(1 / number, 100).meets(tiny)


def test_an_mpf_is_enclosed_with_its_promised_error(moment: int) -> None:
    """The truth may be 2^-(precision - 8) away from the mpf, relatively."""
    for mantissa, exponent in random_dyadics(moment + 2, 300):
        for precision in (60, 160, 900):
            with mpmath.workprec(5000):
                number = mpmath.ldexp(mpmath.mpf(mantissa), exponent)
            found = from_mpmath(number, precision)
            value = exact(mantissa, exponent)
            assert found.low <= value <= found.high
            allowed = abs(value) / 2 ** (precision - 8)
            assert found.low <= value - allowed
            assert found.high >= value + allowed
            assert found.high - found.low <= 5 * allowed


def test_integers_and_floats_are_not_rounded_to_the_context(moment: int) -> None:
    number = 2**200 + 1
    assert from_mpmath(number, 100) == Enclosure(Fraction(number), Fraction(number))
    assert from_mpmath(-0.1, 60).low <= Fraction(-0.1) <= from_mpmath(-0.1, 60).high


def test_values_of_functions_are_enclosed_by_both_routes(moment: int) -> None:
    for number in (0.5, -3.0, 11.25, -40.0, 700.0):
        coarse = from_arb(evaluate_arb(number, 90))
        fine = from_arb(evaluate_arb(number, 600))
        assert coarse is not None
        assert fine is not None
        assert coarse.low <= fine.low <= fine.high <= coarse.high
        with mpmath.workprec(200):
            value = mpmath.exp(mpmath.mpf(number))
        assert from_mpmath(value, 190).low <= fine.low <= fine.high <= from_mpmath(value, 190).high


def evaluate_arb(number: float, precision: int):
    before = flint.ctx.prec
    flint.ctx.prec = precision
    try:
        return flint.arb(number).exp()
    finally:
        flint.ctx.prec = before


def test_infinities_and_nothing() -> None:
    assert from_arb(flint.arb("inf")) == PLUS_INFINITY
    assert from_arb(flint.arb("-inf")) == MINUS_INFINITY
    assert from_arb(flint.arb("0 +/- inf")) is None
    assert from_mpmath(mpmath.inf, 100) == PLUS_INFINITY
    assert from_mpmath(mpmath.ninf, 100) == MINUS_INFINITY
    assert from_mpmath(mpmath.nan, 100) == NAN
    assert from_mpmath(mpmath.mpf(0), 100) == Enclosure(Fraction(0), Fraction(0))


def test_arbs_nan_says_nothing_because_it_also_means_not_yet_known() -> None:
    undetermined = flint.arb(1) / flint.arb("0 +/- 1e-9")
    assert undetermined.is_nan()
    assert from_arb(undetermined) is None
    assert from_arb(flint.arb.nan()) is None


def test_meets() -> None:
    def between(low: int, high: int) -> Enclosure:
        return Enclosure(Fraction(low), Fraction(high))

    assert between(1, 3).meets(between(3, 4))
    assert not between(1, 3).meets(between(4, 5))
    assert not between(4, 5).meets(between(1, 3))
    assert NAN.meets(NAN)
    assert not NAN.meets(between(0, 0))
    assert not PLUS_INFINITY.meets(MINUS_INFINITY)


def test_a_pair_holds_106_bits() -> None:
    source = random.Random(3)
    for _ in range(500):
        real = Fraction(source.getrandbits(200) + 1, source.getrandbits(190) + 1)
        real *= Fraction(2) ** source.choice([0, 900, -700]) * source.choice([1, -1])
        high, low = to_double_double(Enclosure(real, real))
        assert high == float(real)
        assert abs(Fraction(high) + Fraction(low) - real) <= abs(real) / 2**106


def test_pairs_at_the_ends() -> None:
    largest = Fraction(1.7976931348623157e308)
    step = Fraction(2) ** 971
    at = to_double_double(Enclosure(largest + step / 4, largest + step / 4))
    assert at == (1.7976931348623157e308, float(step / 4))
    assert to_double_double(Enclosure(largest + step, largest + step)) == (math.inf, -0.5)
    assert to_double_double(Enclosure(-largest - step, -largest - step))[0] == -math.inf
    assert to_double_double(PLUS_INFINITY) == (math.inf, 0.0)
    assert math.isnan(to_double_double(NAN)[0])
    tiny = Enclosure(Fraction(-1, 2**5000), Fraction(0))
    assert math.copysign(1, to_double_double(tiny)[0]) == -1
