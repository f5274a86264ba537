"""The exact judge: two routes, one verdict, and an honest stop where they differ."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import flint
import mpmath
import pytest
import torch
from mpmath import mp

from tests.ops.formulas import formula
from tests.truth.every_value import all_values, nearest
from verify import ops
from verify.errors import BeyondEffort, TruthError
from verify.ops.graph.like import Definition
from verify.ops.op import Point, Problem, remembering
from verify.truth import exact
from verify.truth.enclosure import Enclosure
from verify.truth.exact import digits, judge, settle
from verify.truth.fast import evaluate
from verify.truth.formats import Format, named
from verify.truth.ulp import errors, from_bits

GELU = ops.get("gelu")
FORMS, RESULTS, DTYPES = ("none", "tanh"), ("y", "dx"), ("bfloat16", "float16")
FUNCTIONS = list(itertools.product(DTYPES, FORMS, RESULTS))
INPUTS = 1 << 16
# Each function in one dtype, each dtype with each form and each result; the slow tests take the other four too.
PAIRED = [
    each
    if (each[0] == "float16") == ((each[1] == "tanh") == (each[2] == "y"))
    else pytest.param(*each, marks=pytest.mark.slow)
    for each in FUNCTIONS
]


def problem(dtype: str, form: str) -> Problem:
    x = all_values(named(dtype))
    upstream = {"y": torch.ones_like(x)}
    return Problem(inputs={"x": x}, params={"approximate": form}, upstream=upstream, results=RESULTS)


def rounded(fmt: Format, value: mpmath.mpf) -> int:
    if mp.isnan(value):
        return fmt.nan_bits
    if mp.isinf(value):
        return fmt.inf_bits | (0 if value > 0 else fmt.sign_bit)
    sign, mantissa, exponent, bits = value._mpf_
    if exponent + bits < -2000:  # far below every format
        return fmt.sign_bit if sign else 0
    number = Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
    return fmt.round(-number if sign else number)


def same(fmt: Format, a: int, b: int) -> bool:
    return a == b or (a | b) & ~fmt.sign_bit == 0 or (fmt.is_nan(a) and fmt.is_nan(b))


@pytest.mark.parametrize("step", [32, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("dtype", "form", "result"), PAIRED)
def test_inputs_by_arb_against_the_certified_fast_reference(dtype: str, form: str, result: str, step: int) -> None:
    """Every 32nd input, others for each function; all 65,536 in slow runs.

    tests/ops/test_op_formulas.py compares more inputs of each op with formulas. Where the bound of `fast` leaves the
    rounding open, mpmath decides.
    """
    fmt, whole = named(dtype), problem(dtype, form)
    tried = range(FUNCTIONS.index((dtype, form, result)) % step, INPUTS, step)
    nan = torch.isnan(whole.inputs["x"].float()).tolist()  # type: ignore[union-attr]
    kept = [index for index in tried if not nan[index]]
    right = [fmt.nan_bits] * INPUTS
    for index, point in zip(kept, GELU.points(whole, result, kept), strict=True):
        right[index] = nearest(point, fmt, both=False)
    truth = evaluate(GELU, whole, dict.fromkeys(RESULTS, fmt))[result]
    found = errors(from_bits(torch.tensor(right), fmt), truth.value, fmt, bound=truth.bound)
    assert len(kept) >= INPUTS // step * 0.96
    assert not found.misrounded[kept].any()
    assert not found.nonfinite[kept].any()
    open_ones = [index for index in kept if found.undecided[index]]
    assert len(open_ones) <= 300  # halves of odd subnormals are all but ties
    for index in open_ones:
        assert same(fmt, right[index], rounded(fmt, formula("gelu", whole, result, index)(200)))


# -- the judge against rational arithmetic -----------------------------------------------------


def square_root_of_two(precision: int) -> mpmath.mpf:
    with mp.workprec(precision + 10):
        return mp.sqrt(2)


def arb_at(precision: int, compute) -> flint.arb:  # type: ignore[no-untyped-def]
    before = flint.ctx.prec
    flint.ctx.prec = precision
    try:
        return compute()
    finally:
        flint.ctx.prec = before


ROOT = Point(mp=square_root_of_two, arb=lambda p: arb_at(p, lambda: flint.arb(2).sqrt()))


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16", "float8_e5m2"])
def test_an_irrational_number_is_judged_to_its_last_bit(name: str) -> None:
    fmt = named(name)
    with mp.workprec(600):
        scaled = int(mp.floor(mp.ldexp(mp.sqrt(2), 500)))
    real = Fraction(scaled, 2**500)
    right = fmt.round(real)
    assert nearest(ROOT, fmt) == right
    for step, bits in ((0, right), (1, right + 1), (-1, right - 1), (7, right + 7)):
        verdict = judge(ROOT, fmt, bits)
        assert verdict.ulp == pytest.approx(float(fmt.error(bits, real)), rel=1e-12)
        assert verdict.misrounded == (step != 0)
        assert verdict.right_bits == right
        assert verdict.routes == 2
        assert verdict.exponent == fmt.ulp_exponent(real)


def near_tie(excess: int) -> Point:
    """1 + 2^-24 + 2^-excess: between two float32 numbers, barely past the middle."""

    def by_mp(precision: int) -> mpmath.mpf:
        with mp.workprec(precision):
            return 1 + mp.ldexp(1, -24) + mp.ldexp(1, -excess)

    def by_arb(precision: int) -> flint.arb:
        whole = flint.arb((1, 0)) + flint.arb((1, -24))
        return arb_at(precision, lambda: whole + flint.arb((1, -excess)))

    return Point(mp=by_mp, arb=by_arb)


def test_arb_alone_raises_the_precision_and_mpmath_joins_where_it_has_decided() -> None:
    """Of a near tie at 2^-1500 mpmath is asked first and last; what it says last has to meet Arb's ball there."""
    point, asked = near_tie(1500), dict[str, list[int]](mpmath=[], Arb=[])
    heard = Point(
        mp=lambda bits: (asked["mpmath"].append(bits), point.mp(bits))[1],
        arb=lambda bits: (asked["Arb"].append(bits), point.arb(bits))[1],  # type: ignore[misc]
    )
    verdict = judge(heard, named("float32"), named("float32").from_float(1.0))
    assert (verdict.precision, verdict.routes) == (2_560, 2)
    assert asked == {"mpmath": [160, 2_560], "Arb": [160, 640, 2_560]}
    wrong = near_tie(1400)
    later = Point(mp=lambda bits: (point if bits < 2_560 else wrong).mp(bits), arb=point.arb)
    with pytest.raises(TruthError, match="two routes to one exact value disagree"):
        judge(later, named("float32"), 0)


def test_an_exact_tie_is_a_tie() -> None:
    fmt = named("float32")
    one = fmt.from_float(1.0)

    def tie(precision: int) -> mpmath.mpf:
        with mp.workprec(max(precision, 60)):
            return 1 + mp.ldexp(1, -24)

    point = Point(mp=tie, arb=lambda precision: flint.arb(1) + flint.arb(2) ** -24)
    verdict = judge(point, fmt, one)
    assert (verdict.ulp, verdict.misrounded) == (-0.5, False)
    odd = judge(point, fmt, one + 1)
    assert (odd.ulp, odd.misrounded) == (0.5, True)


@pytest.mark.parametrize(("name", "steps", "error"), [("silu", -1, -1.0), ("silu", 1, 2.0), ("double", 1, 1.0)])
def test_a_truth_at_a_power_of_two_that_no_precision_tells_from_it(name: str, steps: int, error: float) -> None:
    """silu(2^15) is below 2^15 by a part of 2^-47,000: an ulp there is that of the binade below, twice as fine."""
    fmt = named("float32")
    op, x = (ops.get(name), 2.0**15) if name == "silu" else (Definition(lambda x: 2 * x, ["x"]).op(), 2.0**14)
    problem = Problem({"x": torch.tensor([x])}, {})
    points = remembering(op, problem).points(problem, "y", [0])
    right = fmt.from_float(2.0**15)
    judged = judge(points[0], fmt, right + steps)
    assert (judged.ulp, judged.misrounded, judged.right_bits) == (pytest.approx(error), True, right)
    assert judged.scaled(judged.exponent + 1) == judged.ulp / 2
    assert abs(judge(points[0], fmt, right).ulp) < 1e-30


def test_a_tie_that_no_precision_decides_is_evaluated_by_mpmath_at_the_first_and_the_last_alone() -> None:
    """silu(2^15 + 2^7) is below a tie of bfloat16 by a part of 2^-47,000. No power of two is near."""
    problem = Problem({"x": torch.tensor([2.0**15 + 2.0**7])}, {})
    (point,) = remembering(ops.get("silu"), problem).points(problem, "y", [0])
    asked: list[int] = []

    def noted(precision: int) -> mpmath.mpf:
        asked.append(precision)
        return point.mp(precision)

    fmt = named("bfloat16")
    judged = judge(Point(mp=noted, arb=point.arb), fmt, fmt.from_float(2.0**15))
    assert judged.ulp == pytest.approx(-0.5) and asked == [exact.START_PRECISION, exact.MAX_PRECISION]


def test_an_exact_zero_that_no_precision_shows_is_zero() -> None:
    """A cancelling sum returns noise of 2^-precision around nothing."""
    fmt = named("float32")

    def noise(precision: int) -> flint.arb:
        return flint.arb(0, (1, -precision))

    def mp_noise(precision: int) -> mpmath.mpf:
        return mp.mpf(0)

    verdict = judge(Point(mp=mp_noise, arb=noise), fmt, 0, both=False)
    assert (verdict.ulp, verdict.misrounded) == (0.0, False)
    tiny = Fraction(1, 2**9000)
    assert exact._as_short_number(Enclosure(-tiny / 3, tiny / 2)).low == 0


def test_an_error_beyond_every_float_is_infinitely_many_units_of_noise() -> None:
    """1 where the truth is 0, in units of 2^-1074, is more than float64 holds."""
    fmt = named("float64")
    zero = Point(mp=lambda precision: mp.mpf(0), arb=lambda precision: flint.arb(0))
    for got, far in ((1.0, math.inf), (-2.0, -math.inf)):
        assert judge(zero, fmt, fmt.from_float(got), both=False).in_noise(0.0, 1.0) == far


def test_a_wide_enclosure_is_not_taken_for_a_number() -> None:
    """A number that no precision encloses is not the truth, whatever short number lies inside."""
    with pytest.raises(BeyondEffort, match=r"^an exact value is anywhere from 0\.0 to 0\.25: 20480 bits do not"):
        exact._as_short_number(Enclosure(Fraction(0), Fraction(1, 4)))


def test_an_undecided_number_without_a_short_neighbour_stops_the_run() -> None:
    third = Enclosure(Fraction(1, 3) - Fraction(1, 2**9000), Fraction(1, 3) + Fraction(1, 2**9000))
    with pytest.raises(TruthError, match="^an exact value near 0.333.* is not decided at 20480 bits"):
        exact._as_short_number(third)


# -- disagreement -------------------------------------------------------------------------------


def constant(value: float) -> Point:
    return Point(mp=lambda p: mp.mpf(value), arb=lambda p: flint.arb(value))


def test_two_routes_that_differ_stop_the_run() -> None:
    point = Point(mp=constant(1.0).mp, arb=constant(1.0 + 2.0**-40).arb)
    expected = (
        "two routes to one exact value disagree: mpmath gives 1.0..1.0, Arb gives "
        "1.0000000000009095..1.0000000000009095; this is an error of the op's definition, "
        "no verdict is given"
    )
    with pytest.raises(TruthError) as caught:
        judge(point, named("float32"), 0)
    assert str(caught.value) == expected
    with pytest.raises(TruthError):
        nearest(point, named("bfloat16"))


def test_a_wrong_gelu_formula_in_one_route_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cancelling formula at fixed precision, as the anchors found it in the wild."""

    def wrong(precision: int) -> mpmath.mpf:
        with mp.workprec(precision):
            x = mp.mpf(-16)
            return x * (1 + mp.erf(x / mp.sqrt(2))) / 2

    x = torch.tensor([-16.0])
    whole = Problem(inputs={"x": x}, params={"approximate": "none"})
    right = GELU.points(whole, "y", [0])[0]
    with pytest.raises(TruthError, match="two routes to one exact value disagree"):
        judge(Point(mp=wrong, arb=right.arb), named("float32"), 0)
    assert judge(right, named("float32"), 0).routes == 2


def test_infinite_against_finite_is_a_disagreement() -> None:
    point = Point(mp=lambda p: mp.inf, arb=lambda p: flint.arb(1))
    with pytest.raises(TruthError, match="mpmath gives inf, Arb gives 1.0"):
        judge(point, named("float32"), 0)


def test_arbs_nan_at_low_precision_is_not_an_undefined_truth() -> None:
    """1 / (sum that cancels): nothing is known until the divisor leaves zero."""

    def by_arb(precision: int) -> flint.arb:
        def compute() -> flint.arb:
            divisor = flint.arb((1, -300), (1, -precision))
            return flint.arb(1) / divisor

        return arb_at(precision, compute)

    def by_mp(precision: int) -> mpmath.mpf:
        with mp.workprec(precision):
            return mp.ldexp(1, 300)

    assert by_arb(160).is_nan()
    fmt = named("float64")
    want = fmt.from_float(2.0**300)
    for both in (True, False):
        verdict = judge(Point(mp=by_mp, arb=by_arb), fmt, want, both=both)
        assert abs(verdict.ulp) < 1e-9
        assert not verdict.misrounded


def test_where_neither_route_finds_a_value_the_truth_is_nan() -> None:
    point = Point(mp=lambda p: mp.nan, arb=lambda p: flint.arb.nan())
    fmt = named("float32")
    for both in (True, False):
        assert judge(point, fmt, fmt.nan_bits, both=both).ulp == 0.0
        assert judge(point, fmt, 0, both=both).ulp == math.inf
        assert nearest(point, fmt, both=both) == fmt.nan_bits


def test_an_enclosure_that_never_narrows_stops_the_run() -> None:
    point = Point(mp=lambda p: mp.one, arb=lambda p: flint.arb("0 +/- inf"))
    with pytest.raises(TruthError, match="^no finite enclosure of an exact value at 20480 bits$"):
        settle(point, lambda enclosure: True)


# -- words --------------------------------------------------------------------------------------


def test_digits_do_not_depend_on_the_context() -> None:
    with mp.workprec(20):
        assert digits(ROOT) == "1.41421356237309504880168872421"
        assert digits(ROOT, 5) == "1.4142"
        assert digits(constant(math.inf)) == "inf"
        assert digits(constant(-math.inf)) == "-inf"
