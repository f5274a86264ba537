"""Single elements judged exactly: precision is raised until rounding and error are decided (Ziv's strategy).

Two routes lead to every exact value: mpmath evaluates a stable formula, Arb encloses the value in a ball.
Both must be able to hold the same real number, else `TruthError` stops the run: the harness is wrong.
Arb alone serves in bulk (several times faster), mpmath joins for every number that is printed.

Ziv, "Fast evaluation of elementary mathematical functions with correctly rounded last bit",
ACM TOMS 17 (1991).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from verify.errors import BeyondEffort, TruthError
from verify.ops.op import Point
from verify.truth.enclosure import Enclosure, from_arb, from_mpmath
from verify.truth.formats import Format, floor_log2, power_of_two, quotient
from verify.truth.ulp import Policy

START_PRECISION = 160
MAX_PRECISION = 20_480
_RARE = 2_560  # what that many bits do not decide, few do before the last: ties, and numbers 2^-5,000 beside one
_SETTLED = 40  # an error figure is known once its interval is 2^-40 of it, or 2^-40 ulp


@dataclass(frozen=True)
class Judged:
    """The verdict on one element. `ulp` is signed, in units of 2^exponent, infinite where `ulp.Errors` has it so.

    `right_bits` is the correctly rounded pattern, None where the truth is NaN. `error` is what `ulp` is the nearest
    float to, None where no number says it.
    """

    ulp: float
    exponent: int
    misrounded: bool
    right_bits: int | None
    enclosure: Enclosure
    precision: int
    routes: int
    error: Fraction | None = None

    def scaled(self, exponent: int) -> float:
        """The error in units of 2^exponent. It may fit a float where that in ulps of a tiny truth does not."""
        if self.error is None:
            return self.ulp
        finer = self.exponent - exponent
        return _to_float(quotient(self.error.numerator << max(finer, 0), self.error.denominator << max(-finer, 0)))

    def in_noise(self, noise: float, spread: float, floor: float) -> float:
        """The error beyond half a ULP and a spread, in units of noise that are at least `floor` ULP, with its sign."""
        if self.error is None or math.isnan(noise) or math.isinf(noise + spread):
            return self.ulp if self.error is None else 0.0
        ulp = power_of_two(self.exponent)
        beyond = abs(self.error) - Fraction(1, 2) - Fraction(spread) / ulp
        if beyond <= 0:
            return 0.0
        unit = max(Fraction(noise) / ulp, Fraction(floor))
        return math.copysign(_to_float(beyond / unit) if unit else math.inf, self.error)


def enclose(
    point: Point, precision: int, *, both: bool, joins: Callable[[Enclosure], bool] = lambda ball: True
) -> tuple[Enclosure | None, int]:
    """The tightest enclosure at a precision and the number of routes that agreed on it.

    With `both`, mpmath `joins` the balls of Arb's for which that says so.
    """
    assert point.arb is not None, "every exact value has two routes"
    ball = from_arb(point.arb(precision))
    if ball is not None and not (both and joins(ball)):
        return ball, 1
    number = from_mpmath(point.mp(precision), precision)
    if ball is None and number.kind == "nan":
        return number, 2  # both routes find no value
    if ball is None and number.kind != "real":
        return number, 1  # an infinity that went through a product or a sum: no ball can hold it
    if ball is None:
        return None, 2
    if not number.meets(ball):
        raise TruthError(_disagreement("mpmath", number, "Arb", ball))
    if number.kind != "real":
        return number, 2
    return Enclosure(max(number.low, ball.low), min(number.high, ball.high)), 2


def settle(
    point: Point,
    decided: Callable[[Enclosure], bool],
    *,
    both: bool = True,
    start: int = START_PRECISION,
) -> tuple[Enclosure, int, int]:
    """Raise the precision until `decided` holds; (enclosure, precision, routes).

    Beyond the first precision Arb goes on alone, and mpmath joins where Arb has decided, or has no more bits.
    """
    precision = start

    def joins(ball: Enclosure) -> bool:
        return not start < precision < MAX_PRECISION or ball.kind != "real" or decided(ball)

    while True:
        enclosure, routes = enclose(point, precision, both=both, joins=joins)
        if enclosure is not None and (enclosure.kind != "real" or decided(enclosure)):
            return enclosure, precision, routes
        if precision >= MAX_PRECISION:
            if enclosure is None:
                raise TruthError(f"no finite enclosure of an exact value at {precision} bits")
            return _as_tie(enclosure), precision, routes
        precision = 4 * precision if precision < _RARE else MAX_PRECISION


def judge(point: Point, fmt: Format, got: int, *, both: bool = True, policy: Policy | None = None) -> Judged:
    """Judge one output pattern against the exact value, or the nearest one where several are right."""
    policy = policy or Policy()
    between = point.ends() if point.ends is not None else None
    if between is not None:
        return _judge_between(*between, fmt, got, both=both, policy=policy)

    last: list[Any] = [None, None]  # the enclosure that was asked about last and the errors that it allows

    def decided(enclosure: Enclosure) -> bool:
        if fmt.is_inf(got) and _overflows(fmt, enclosure.low) != _overflows(fmt, enclosure.high):
            return False
        if not fmt.is_nan(got):
            found = error_range(fmt, got, enclosure)
            last[:] = enclosure, found
            (low, unit), (high, other) = (error.as_integer_ratio() for error in found)
            if (high * unit - low * other) << _SETTLED > max(unit, abs(low)) * other:
                return False
        return _magnitude(fmt, fmt.round(enclosure.low)) == _magnitude(fmt, fmt.round(enclosure.high))

    enclosure, precision, routes = settle(point, decided, both=both)
    right, error, exponent = _compare(fmt, got, enclosure, policy, last[1] if last[0] is enclosure else None)
    if precision >= MAX_PRECISION and isinstance(error, Fraction) and error and _is_rounded(point):
        # a number so near a power of two that its side is not known has the smaller of two units: x / (1 + exp(-x))
        # at 2^15 is below 2^15 by a part of 2^-47,000
        finer = fmt.ulp_exponent(enclosure.low * (1 - power_of_two(-fmt.precision - 2)))
        error, exponent = error * power_of_two(exponent - finer), finer
    ulp = _to_float(error) if isinstance(error, Fraction) else error
    if enclosure.kind == "real" and fmt.is_inf(got) and not _overflows(fmt, enclosure.low):
        ulp = float("inf")
    misrounded = not _same(fmt, got, right)
    if ulp == 0.0 and right is not None and enclosure.kind == "real":
        misrounded = False  # exact, or excused by the policy
    if right is None:
        misrounded = ulp != 0.0
    if policy.signed_zero == "strict" and _magnitude(fmt, got) == 0 and abs(ulp) <= 0.5:
        # where the truth itself is zero, its sign is not known here
        side = -1 if enclosure.high < 0 else int(enclosure.low > 0)
        misrounded = misrounded or side == (1 if fmt.is_negative(got) else -1)
    told = error if isinstance(error, Fraction) else None
    return Judged(ulp, exponent, misrounded, right, enclosure, precision, routes, told)


def judge_known(
    point: Point, known: Callable[[], Enclosure], fmt: Format, got: int, *, both: bool, policy: Policy
) -> Judged:
    """The verdict on one element. Where mpmath would take too much, by Arb and the interval that is `known` anyway;
    where Arb would too, by the interval alone."""
    try:
        return judge(point, fmt, got, both=both, policy=policy)
    except BeyondEffort:
        interval = known()
    try:
        judged = judge(point, fmt, got, both=False, policy=policy)
    except BeyondEffort:
        return _judge_within(interval, fmt, got, policy)
    if "real" == interval.kind == judged.enclosure.kind and not interval.meets(judged.enclosure):
        raise TruthError(_disagreement("float64", interval, "Arb", judged.enclosure))
    return judged


def _judge_within(enclosure: Enclosure, fmt: Format, got: int, policy: Policy) -> Judged:
    """The verdict by an interval that nothing narrows: its middle, and no route that says more."""
    right, error, exponent = _compare(fmt, got, enclosure, policy, None)
    told = error if isinstance(error, Fraction) else None
    ulp = _to_float(error) if isinstance(error, Fraction) else error
    return Judged(ulp, exponent, False, right, enclosure, 53, 0, told)


def _is_rounded(point: Point) -> bool:
    """Whether the formula rounds on its way to a value, which then is not known to be that number itself."""
    from mpmath import mp

    before, values = mp._prec_rounding[1], []
    try:
        for direction in "fc":
            mp._prec_rounding[1] = direction
            values.append(point.mp(START_PRECISION))
    finally:
        mp._prec_rounding[1] = before
    return bool(values[0] != values[1])


def _overflows(fmt: Format, real: Fraction) -> bool:
    """Whether a real number is beyond the largest finite one: only there infinity may be a rounding of it."""
    return abs(real) > fmt.max_finite


def _judge_between(least: Point, greatest: Point, fmt: Format, got: int, *, both: bool, policy: Policy) -> Judged:
    """The verdict where every number from one exact value to another is right."""
    low, high = (judge(end, fmt, got, both=both, policy=policy) for end in (least, greatest))
    if low.enclosure.kind == "-inf" and high.enclosure.kind == "inf":  # nothing is wrong, NaN neither
        return replace(low, ulp=0.0, error=Fraction(0), misrounded=False, right_bits=got)
    whole = Enclosure(low.enclosure.low, high.enclosure.high)
    finite = not fmt.is_nan(got) and not fmt.is_inf(got)
    if finite and low.enclosure.kind == high.enclosure.kind == "real" and whole.low <= fmt.value(got) <= whole.high:
        return replace(low, ulp=0.0, error=Fraction(0), misrounded=False, right_bits=got, enclosure=whole)
    nearer = min(low, high, key=lambda end: abs(end.ulp))
    return replace(nearer, enclosure=whole) if low.enclosure.kind == high.enclosure.kind == "real" else nearer


def _compare(
    fmt: Format, got: int, enclosure: Enclosure, policy: Policy, allowed: tuple[Fraction, Fraction] | None
) -> tuple[int | None, Fraction | float, int]:
    """(correctly rounded pattern, signed error, exponent of its unit) under a policy.

    The error is a float where it is no number: infinite for a mismatch, 0 for what the policy excuses. `allowed` is
    what `error_range` says of the enclosure, where that is known.
    """
    infinite = float("inf")
    if enclosure.kind == "nan":
        accepted = fmt.is_nan(got) or policy.nan == "any"
        return None, 0.0 if accepted else infinite, fmt.min_ulp_exponent

    top = fmt.max_finite if policy.overflow == "saturate" else fmt.overflow
    if enclosure.kind != "real":
        low = high = top if enclosure.kind == "inf" else -top
    elif enclosure.low < -top or enclosure.high > top:
        low, high = (min(max(end, -top), top) for end in (enclosure.low, enclosure.high))
        allowed = None
    else:
        low, high = enclosure.low, enclosure.high
    exponent = max(fmt.ulp_exponent(low), fmt.ulp_exponent(high))
    right = _nearest(fmt, low, saturate=policy.overflow == "saturate")
    negative = low < 0

    if fmt.is_nan(got):
        if fmt.has_inf or not fmt.is_nan(right):
            return right, infinite, exponent
        # e4m3fn overflows to NaN, which stands where infinity would
        place = -fmt.overflow if negative else fmt.overflow
        return right, (place - (low + high) / 2) / power_of_two(exponent), exponent
    if enclosure.kind != "real" and fmt.is_inf(got) and fmt.is_negative(got) != negative:
        return right, infinite, exponent
    if enclosure.kind != "real" and not fmt.is_inf(got) and policy.overflow != "saturate":
        return right, infinite, exponent
    flushed = policy.subnormals == "flush" and max(abs(low), abs(high)) < fmt.min_normal
    if flushed and _magnitude(fmt, got) == 0:
        return right, 0.0, exponent
    smallest, largest = allowed or error_range(fmt, got, Enclosure(low, high))
    return right, smallest if smallest == largest else (smallest + largest) / 2, exponent


def _nearest(fmt: Format, real: Fraction, *, saturate: bool) -> int:
    bits = fmt.round(real)
    if saturate and (bits & ~fmt.sign_bit) == fmt.inf_bits:
        bits = (bits & fmt.sign_bit) | fmt.max_bits
    return bits


def _same(fmt: Format, got: int, right: int | None) -> bool:
    if right is None:
        return fmt.is_nan(got)
    if fmt.is_nan(got):
        return fmt.is_nan(right)
    return _magnitude(fmt, got) == _magnitude(fmt, right)


def error_range(fmt: Format, got: int, enclosure: Enclosure) -> tuple[Fraction, Fraction]:
    """Smallest and largest error that the enclosure allows, across a change of binade too."""
    low, high = enclosure.low, enclosure.high
    if low == high:
        return (only := fmt.error(got, low)), only
    ends = [fmt.error(got, high), fmt.error(got, low)]
    if fmt.ulp_exponent(low) == fmt.ulp_exponent(high):
        return ends[0], ends[1]
    if low * high > 0:
        outer = max(abs(low), abs(high))
        boundary = power_of_two(floor_log2(outer))
        if high < 0:
            boundary = -boundary
        at_boundary = fmt.error(got, boundary)
        ends += [at_boundary, at_boundary * 2]
    return min(ends), max(ends)


def nearest(point: Point, fmt: Format, *, both: bool = True) -> int:
    """The correctly rounded pattern of an exact value (NaN where there is none)."""

    def decided(enclosure: Enclosure) -> bool:
        low, high = fmt.round(enclosure.low), fmt.round(enclosure.high)
        return low == high or _magnitude(fmt, low) == _magnitude(fmt, high)

    enclosure, _, _ = settle(point, decided, both=both, start=fmt.precision + 60)
    if enclosure.kind == "nan":
        return fmt.nan_bits
    if enclosure.kind != "real":
        return fmt.inf_bits | (fmt.sign_bit if enclosure.kind == "-inf" else 0)
    return fmt.round(enclosure.low if enclosure.low != 0 else enclosure.high)


def digits(point: Point, count: int = 30, *, known: Enclosure | None = None) -> str:
    """The exact value in decimal, `count` significant digits; of several right ones the two ends.

    From what it was judged by where that is `known` and narrow enough, or too much to narrow; else from mpmath.
    """
    import mpmath

    between = point.ends() if point.ends is not None else None
    if between is not None:
        least, greatest = (digits(end, count) for end in between)
        return least if least == greatest else f"{least} to {greatest}"

    def written(value: Any) -> str:
        return str(mpmath.nstr(value, count, strip_zeros=True, min_fixed=-5, max_fixed=count))

    bits = int(count * 3.4) + 40
    ends: list[str] = []
    if known is not None and known.kind == "real":
        with mpmath.workprec(bits):
            ends = [written(mpmath.mpf(end.numerator) / end.denominator) for end in (known.low, known.high)]
        if ends[0] == ends[1]:
            return ends[0]
    try:
        value: Any = point.mp(bits)
    except BeyondEffort:
        if known is None:
            raise
        return " to ".join(ends) or known.kind
    if mpmath.isnan(value):
        return "nan"
    if mpmath.isinf(value):
        return "inf" if value > 0 else "-inf"
    return written(value)


def _as_tie(enclosure: Enclosure) -> Enclosure:
    """The exact number with the shortest expansion inside an enclosure that no precision could split.

    Arithmetic that is exact in the reals (a dot product of floats, a halving) lands on a midpoint of the
    format; an mpmath value then never leaves it, however many bits it has.
    """
    if enclosure.low <= 0 <= enclosure.high:
        return Enclosure(Fraction(0), Fraction(0))
    middle = (enclosure.low + enclosure.high) / 2
    unit = power_of_two(floor_log2(middle) - 2_200)  # longer than any midpoint of a float64 result
    rounded = round(middle / unit) * unit
    if not enclosure.low <= rounded <= enclosure.high:
        raise TruthError(
            f"an exact value near {float_or_text(middle)} is not decided at {MAX_PRECISION} bits, and no "
            "short number lies within its enclosure; this is an error of the op's definition"
        )
    return Enclosure(rounded, rounded)


def _magnitude(fmt: Format, bits: int) -> int:
    """A pattern with both zeros made one: the sign of a zero is a matter of policy, not of rounding."""
    return 0 if bits & ~fmt.sign_bit == 0 else bits


def _to_float(error: Fraction) -> float:
    try:
        return float(error)
    except OverflowError:
        return float("inf") if error > 0 else float("-inf")


def _disagreement(first: str, a: Enclosure, second: str, b: Enclosure) -> str:
    def show(item: Enclosure) -> str:
        return item.kind if item.kind != "real" else f"{float_or_text(item.low)}..{float_or_text(item.high)}"

    return (
        f"two routes to one exact value disagree: {first} gives {show(a)}, {second} gives {show(b)}; "
        "this is an error of the op's definition, no verdict is given"
    )


def float_or_text(value: Fraction) -> str:
    """A rational for a message."""
    try:
        return repr(float(value))
    except OverflowError:
        return f"about 2^{floor_log2(value)}"
