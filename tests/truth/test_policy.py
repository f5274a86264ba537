"""The tensor code and the exact judge agree on every policy, special value and format."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import flint
import mpmath
import pytest
import torch

from verify.cases.values import special_patterns
from verify.errors import UsageError
from verify.ops.op import Point
from verify.truth.enclosure import Enclosure, to_double_double
from verify.truth.exact import judge
from verify.truth.fast import Truth
from verify.truth.formats import FORMATS, Format, named
from verify.truth.ulp import Policy, errors, from_bits, pattern_at, unit_of_scale

POLICIES = [
    Policy(nan=nan, overflow=overflow, signed_zero=zero, subnormals=subnormals)
    for nan, overflow, zero, subnormals in itertools.product(
        ("match", "any"),
        ("continuous", "saturate"),
        ("ignore", "strict"),
        ("gradual", "flush"),
    )
]


def policies_for(fmt: Format) -> list[Policy]:
    """All of them where the format is a case of its own; half where another stands for it."""
    if fmt.name in ("float64", "float32", "float8_e4m3fn"):
        return POLICIES
    return [policy for policy in POLICIES if policy.nan == "match"]


def point_at(real: Fraction | float) -> Point:
    """The exact value of a dyadic rational, or of an infinity or NaN, by both routes."""
    if isinstance(real, float):
        ball = flint.arb.nan() if math.isnan(real) else flint.arb(real)
        return Point(mp=lambda prec: mpmath.mpf(real), arb=lambda prec: ball)
    exponent = -(real.denominator.bit_length() - 1)
    mantissa = real.numerator
    with mpmath.workprec(5000):
        number = mpmath.ldexp(mpmath.mpf(mantissa), exponent)
    return Point(mp=lambda prec: number, arb=lambda prec: flint.arb((mantissa, exponent)))


def truths(fmt: Format) -> list[Fraction | float]:
    """Reals where rounding, overflow, underflow or a sign turns, and infinities and NaN."""
    largest, step = fmt.max_finite, fmt.ulp(fmt.max_finite)
    small, normal = fmt.value(1), fmt.min_normal
    positive = [
        *(small / 4, small / 2, small * Fraction(3, 4), small, small * Fraction(3, 2)),
        *(normal - small, normal - small / 2, normal, normal + small / 2),
        *(Fraction(1), Fraction(1) - fmt.ulp(Fraction(1)) / 4, Fraction(1) + fmt.ulp(Fraction(1)) / 2),
        *(largest - step / 2, largest - step / 4, largest, largest + step / 4),
        *(largest + step / 2, largest + step * Fraction(3, 4), largest + step, largest * 2),
    ]
    return [*positive, *(-real for real in positive[::3]), math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_tensor_code_and_judge_agree(fmt: Format) -> None:
    patterns, reals = special_patterns(fmt), truths(fmt)
    grid = list(itertools.product(patterns, reals))
    high_low = [
        to_double_double(Enclosure(real, real)) if isinstance(real, Fraction) else (real, 0.0) for real in reals
    ]
    signed = [bits - (1 << 64) if fmt.bits == 64 and bits >> 63 else bits for bits in patterns]
    got = from_bits(torch.tensor(signed).repeat_interleave(len(reals)), fmt)
    value, low = (
        torch.tensor(column, dtype=torch.float64).repeat(len(patterns)) for column in zip(*high_low, strict=True)
    )
    if fmt.name == "float64":  # a pair cannot hold half of the smallest subnormal
        holds = [
            not isinstance(real, Fraction) or (math.isfinite(head) and Fraction(head) + Fraction(tail) == real)
            for real, (head, tail) in zip(reals, high_low, strict=True)
        ]
        grid_holds = holds * len(patterns)
    else:
        assert not low.any()
        grid_holds = [True] * len(grid)
    points = {id(real): point_at(real) for real in reals}
    checked = 0
    for policy in policies_for(fmt):
        pair = low if fmt.name == "float64" else None
        found = errors(got, value, fmt, low=pair, policy=policy)
        columns = zip(grid, grid_holds, found.ulp.tolist(), found.misrounded.tolist(), strict=True)
        for (bits, real), hold, ulp, misrounded in columns:
            if not hold:
                continue
            exact = judge(points[id(real)], fmt, bits, both=False, policy=policy)
            where = (policy, fmt.hex(bits), real)
            assert ulp == exact.ulp or math.isclose(ulp, exact.ulp, rel_tol=1e-9), where
            assert misrounded == exact.misrounded, where
            checked += 1
    assert checked > 5_000


def test_a_float64_truth_between_the_largest_and_its_overflow_is_left_to_the_judge() -> None:
    """The pair can only say "infinite by rounding"; with its bound the element is undecided."""
    fmt = FORMATS["float64"]
    pair = to_double_double(Enclosure(fmt.overflow - 1, fmt.overflow - 1))
    assert pair == (math.inf, -0.5)
    value, low = (torch.tensor([part], dtype=torch.float64) for part in pair)
    largest = torch.tensor([float(fmt.max_finite)], dtype=torch.float64)
    found = errors(largest, value, fmt, low=low, bound=value.abs())
    assert bool(found.undecided[0])
    real = fmt.max_finite + fmt.ulp(fmt.max_finite) * Fraction(5, 8)
    exact = judge(point_at(real), fmt, fmt.max_bits)
    assert exact.ulp == -0.625
    assert exact.misrounded


def test_a_scale_beyond_the_format_is_the_same_unit_for_the_judge_of_single_elements() -> None:
    """dx of a float16 layer norm whose terms are near 2e7: 18.5 off is 0.58 of the 32 between its largest numbers."""
    fmt, value = named("float16"), Fraction(-36082.5)
    got = torch.tensor([-36064.0], dtype=torch.float16)
    truth = Truth(
        torch.tensor([float(value)], dtype=torch.float64),
        torch.tensor([2e7]).double(),
        bound=torch.zeros(1).double(),
    )
    found = errors(got, truth.value, fmt, scale=truth.scale)
    judged = judge(point_at(value), fmt, pattern_at(got, 0))
    assert found.scaled is not None and found.scaled.item() == 18.5 / 32
    assert judged.scaled(truth.scale_exponent(0, fmt)) == 18.5 / 32
    wide = Truth(truth.value, torch.tensor([1e12], dtype=torch.float64), bound=truth.bound)
    infinite = judge(point_at(Fraction(5)), fmt, fmt.inf_bits)
    assert infinite.scaled(wide.scale_exponent(0, fmt)) == (65536 - 5) / 32


@pytest.mark.parametrize(
    ("name", "exponent", "unit"), [("bfloat16", 200, 152), ("bfloat16", 160, 120), ("float64", 0, -52)]
)
def test_the_unit_of_a_scale_is_what_float64_resolves_of_it(name: str, exponent: int, unit: int) -> None:
    """Of terms near 2^200 that cancel, float64 arithmetic keeps an error of 2^152."""
    fmt = named(name)
    scale, value = (torch.tensor([each], dtype=torch.float64) for each in (2.0**exponent, 1.0))
    assert unit_of_scale(scale, value, fmt).item() == unit
    truth = Truth(value, scale, bound=torch.zeros(1).double())
    got = torch.tensor([torch.inf], dtype=getattr(torch, name))
    found, judged = errors(got, value, fmt, scale=scale), judge(point_at(Fraction(1)), fmt, fmt.inf_bits)
    assert found.scaled is not None
    assert found.scaled.item() == judged.scaled(truth.scale_exponent(0, fmt)) > (0.5 if exponent < 200 else 0)


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
@pytest.mark.parametrize(("value", "scale"), [(2.0**242, 2.0**242), (1e300, 1.0), (torch.inf, 1.0), (1e300, torch.inf)])
def test_where_nothing_cancels_an_overflow_demands_infinity(name: str, value: float, scale: float) -> None:
    """A sum of products of 2^120 is infinite; with 2^-48 of it as the unit, 0 and -inf would be right."""
    fmt, dtype = named(name), getattr(torch, name)
    truth, terms = (torch.tensor([each] * 5, dtype=torch.float64) for each in (value, scale))
    got = torch.tensor([0.0, 1.0, -1e30, -torch.inf, torch.inf], dtype=dtype)
    found = errors(got, truth, fmt, scale=terms)
    assert found.scaled is not None
    largest = 2.0**fmt.precision
    assert (found.scaled.abs()[:4] >= 0.9 * largest).all() and found.scaled[4] == 0


def test_a_choice_that_no_policy_has_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Policy: nan is one of match, any; received 'mach' \(closest: match\)"):
        Policy(nan="mach")  # type: ignore[arg-type]
