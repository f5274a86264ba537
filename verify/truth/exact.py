"""Judges single elements exactly: raises the precision until rounding and error are decided (Ziv's strategy).

Two routes lead to every exact value: Arb encloses it in a ball, and mpmath evaluates the same steps. So they check each
other's arithmetic, and trust the definition. If the two cannot be the same real number, the harness is wrong, and
`TruthError` stops the run. Arb alone judges in bulk, since it is several times faster. mpmath joins for every
number that is printed.

Ziv, "Fast evaluation of elementary mathematical functions with correctly rounded last bit", ACM TOMS 17 (1991).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from verify.errors import BeyondEffort, TruthError
from verify.ops.op import Point
from verify.truth.enclosure import Enclosure, from_arb, from_mpmath
from verify.truth.formats import Format, floor_log2, power_of_two, quotient
from verify.truth.ulp import Policy

START_PRECISION = 160
MAX_PRECISION = 20_480
# A wider enclosure is not narrowed by more bits. A ball around a short number is rounded up to 2^-256 of it.
_WIDE, _NOTHING = Fraction(1, 2**128), Fraction(1, 2**2048)
_RARE = 2_560  # after this precision the largest comes next: only ties and numbers very near one are still open
# A truth may be so near a power of two, in bits, that its side is open. An error of more ULP is then decided: the sides
# differ in their unit alone. Softmax has many such truths, as 1 - exp(-1000).
_FAR, _BESIDE = 1_024, 120
_TINY = 1_300  # below 2^-1300 lies no number of any format
_SETTLED = 40  # an error is decided once its interval is narrower than 2^-40 times it, or than 2^-40 ulp


@dataclass(frozen=True)
class Judged:
    """The verdict on one element."""

    ulp: float  # signed error in units of 2^exponent; infinite as in `verify.truth.ulp.Errors`
    exponent: int
    misrounded: bool
    right_bits: int | None  # correctly rounded pattern; None: the truth is NaN
    enclosure: Enclosure
    precision: int  # bits that decided
    routes: int  # number of routes that agreed
    error: Fraction | None = None  # exact value of `ulp`; None: no number, such as NaN against a number

    def scaled(self, exponent: int) -> float:
        """Returns the error in units of 2^exponent.

        Uses the exact error, because the error in ulps may exceed float64 where the result does not.
        """
        if self.error is None:
            return self.ulp
        finer = self.exponent - exponent
        return _to_float(quotient(self.error.numerator << max(finer, 0), self.error.denominator << max(-finer, 0)))

    def in_noise(self, noise: float, floor: float) -> float:
        """Returns how far the error exceeds half a ULP, in units of the noise, with the error's sign.

        Args:
            noise: the noise of the element, as a real number
            floor: the least noise, in ULP
        """
        if self.error is None or math.isnan(noise) or math.isinf(noise):
            return self.ulp if self.error is None else 0.0
        ulp = power_of_two(self.exponent)
        beyond = abs(self.error) - Fraction(1, 2)
        if beyond <= 0:
            return 0.0
        unit = max(Fraction(noise) / ulp, Fraction(floor))
        size = _to_float(beyond / unit) if unit else math.inf
        return size if self.error > 0 else -size  # the error itself may be beyond float64's range

    def beside_noise(self, noise: float, floor: float) -> float:
        """Returns the error in ULP, of which the part beyond half a ULP shrinks as far as the noise exceeds `floor`."""
        if not abs(self.ulp) > 0.5 or math.isinf(self.ulp):
            return self.ulp
        beyond = abs(self.in_noise(noise, floor))
        return math.copysign(min(abs(self.ulp), 0.5 + beyond * floor), self.ulp)


def enclose(
    point: Point, precision: int, *, both: bool, joins: Callable[[Enclosure], bool] = lambda ball: True
) -> tuple[Enclosure | None, int]:
    """Returns the tightest enclosure of a value at a precision, and the number of routes that agree on it.

    The enclosure is None if Arb gives no finite ball for a real value. Raises TruthError if the routes disagree.

    Args:
        both: False: Arb alone evaluates, and mpmath only if Arb gives no ball
        joins: with `both`, True if mpmath has to evaluate too, given Arb's ball
    """
    ball = from_arb(point.arb(precision))
    if ball is not None and not (both and joins(ball)):
        return ball, 1
    number = from_mpmath(point.mp(precision), precision)
    if ball is None and number.kind == "nan":
        return number, 2  # both routes say that there is no value
    if ball is None and number.kind != "real":
        return number, 1  # an infinity after a product or a sum, where Arb has NaN
    if ball is None:
        return None, 2
    if not number.meets(ball):
        raise TruthError(_disagreement("mpmath", number, "Arb", ball))
    if number.kind != "real":
        return number, 2
    return Enclosure(max(number.low, ball.low), min(number.high, ball.high)), 2


def settle(point: Point, decided: Callable[[Enclosure], bool], *, both: bool = True) -> tuple[Enclosure, int, int]:
    """Raises the precision until `decided(enclosure)` holds. Returns (enclosure, precision, routes).

    mpmath evaluates at the first precision, and again once Arb has decided or reached the largest precision. Arb works
    alone in between. An enclosure that stays undecided counts as a short number.
    """
    precision = START_PRECISION

    def joins(ball: Enclosure) -> bool:
        return not START_PRECISION < precision < MAX_PRECISION or ball.kind != "real" or decided(ball)

    while True:
        enclosure, routes = enclose(point, precision, both=both, joins=joins)
        if enclosure is not None and (enclosure.kind != "real" or decided(enclosure)):
            return enclosure, precision, routes
        if precision >= MAX_PRECISION:
            if enclosure is None:
                raise TruthError(f"no finite enclosure of an exact value at {precision} bits")
            return _as_short_number(enclosure), precision, routes
        precision = 4 * precision if precision < _RARE else MAX_PRECISION


def judge(point: Point, fmt: Format, got: int, *, both: bool = True, policy: Policy | None = None) -> Judged:
    """Judges one output pattern against the exact value."""
    policy = policy or Policy()
    last: list[Any] = [None, None]  # the last enclosure that `decided` received, and the errors that it allows

    def decided(enclosure: Enclosure) -> bool:
        if fmt.is_inf(got) and _overflows(fmt, enclosure.low) != _overflows(fmt, enclosure.high):
            return False
        if not fmt.is_nan(got):
            found = error_range(fmt, got, enclosure)
            last[:] = enclosure, found
            (low, unit), (high, other) = (error.as_integer_ratio() for error in found)
            if (high * unit - low * other) << _SETTLED > max(unit, abs(low)) * other:
                return _is_far(enclosure, found)
        return _without_minus_zero(fmt, fmt.round(enclosure.low)) == _without_minus_zero(fmt, fmt.round(enclosure.high))

    enclosure, precision, routes = settle(point, decided, both=both)
    allowed = last[1] if last[0] is enclosure else None
    right, error, exponent = _compare(fmt, got, enclosure, policy, allowed)
    if allowed is not None and isinstance(error, Fraction) and _is_far(enclosure, allowed):
        error = max(allowed, key=abs)
        exponent = min(fmt.ulp_exponent(enclosure.low), fmt.ulp_exponent(enclosure.high))
    if precision >= MAX_PRECISION and isinstance(error, Fraction) and error:
        # If the truth is so near a power of two that its side is unknown, it gets the smaller of the two units. For
        # example, x / (1 + exp(-x)) at 2^15 is below 2^15 by 2^-47,000 of it.
        finer = fmt.ulp_exponent(enclosure.low * (1 - power_of_two(-fmt.precision - 2)))
        if finer != exponent and _is_rounded(point):  # elsewhere both units are the same
            error, exponent = error * power_of_two(exponent - finer), finer
    ulp = _to_float(error) if isinstance(error, Fraction) else error
    if enclosure.kind == "real" and fmt.is_inf(got) and not _overflows(fmt, enclosure.low):
        ulp = float("inf")
    misrounded = not _same(fmt, got, right)
    if ulp == 0.0 and right is not None and enclosure.kind == "real":
        misrounded = False  # exact, or excused by the policy
    if right is None:
        misrounded = ulp != 0.0
    if policy.signed_zero == "strict" and _without_minus_zero(fmt, got) == 0 and abs(ulp) <= 0.5:
        # a truth of zero has no known sign here
        side = -1 if enclosure.high < 0 else int(enclosure.low > 0)
        misrounded = misrounded or side == (1 if fmt.is_negative(got) else -1)
    number = error if isinstance(error, Fraction) else None
    return Judged(ulp, exponent, misrounded, right, enclosure, precision, routes, number)


def judge_known(
    point: Point, known: Callable[[], Enclosure], fmt: Format, got: int, *, both: bool, policy: Policy
) -> Judged:
    """Judges one element as `judge` does, but also if an exact value is beyond the budget (BeyondEffort).

    Without mpmath, Arb and the interval that `known()` returns are the two routes. Without Arb too, the interval alone
    decides.
    """
    try:
        return judge(point, fmt, got, both=both, policy=policy)
    except BeyondEffort:
        interval = known()
    try:
        judged = judge(point, fmt, got, both=False, policy=policy)
    except BeyondEffort:  # the middle of the interval
        right, error, exponent = _compare(fmt, got, interval, policy, None)
        number = error if isinstance(error, Fraction) else None
        ulp = _to_float(error) if isinstance(error, Fraction) else error
        return Judged(ulp, exponent, False, right, interval, 53, 0, number)
    if "real" == interval.kind == judged.enclosure.kind and not interval.meets(judged.enclosure):
        raise TruthError(_disagreement("float64", interval, "Arb", judged.enclosure))
    return judged


def _is_far(enclosure: Enclosure, allowed: tuple[Fraction, Fraction]) -> bool:
    """True if only the unit of a large error is open: a power of two lies within a narrow enclosure of the truth."""
    smallest, largest = sorted(map(abs, allowed))
    return _FAR < smallest < largest * 2 / 3 and allowed[0] * allowed[1] > 0 and enclosure.is_narrow(_BESIDE)


def _is_rounded(point: Point) -> bool:
    """True if the formula of a point rounds, so that its value may differ from the truth.

    Evaluates it with roundings down and up, and compares. Points keep their values by precision, so each direction has
    a precision that nothing else asks for.
    """
    from mpmath import mp

    before, values = mp._prec_rounding[1], []
    try:
        for direction, bits in (("f", 4_096), ("c", 8_192)):
            mp._prec_rounding[1] = direction
            values.append(point.mp(bits))
    finally:
        mp._prec_rounding[1] = before
    return bool(values[0] != values[1])


def _overflows(fmt: Format, real: Fraction) -> bool:
    """True if a real number is beyond the largest finite number, so that it may round to infinity."""
    return abs(real) > fmt.max_finite


def _compare(
    fmt: Format, got: int, enclosure: Enclosure, policy: Policy, allowed: tuple[Fraction, Fraction] | None
) -> tuple[int | None, Fraction | float, int]:
    """Returns (correctly rounded pattern, signed error, exponent of the error's unit) under a policy.

    The error is a Fraction, or a float in two cases: infinite for a mismatch, and 0 if the policy excuses the
    difference. `allowed` is `error_range` of the enclosure, if the caller has it.
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
    right, negative = fmt.round(low), low < 0
    if policy.overflow == "saturate" and right & ~fmt.sign_bit == fmt.inf_bits:
        right = right & fmt.sign_bit | fmt.max_bits

    if fmt.is_nan(got):
        if fmt.has_inf or not fmt.is_nan(right):
            return right, infinite, exponent
        # e4m3fn overflows to NaN, which counts like infinity here
        place = -fmt.overflow if negative else fmt.overflow
        return right, (place - (low + high) / 2) / power_of_two(exponent), exponent
    if enclosure.kind != "real" and fmt.is_inf(got) and fmt.is_negative(got) != negative:
        return right, infinite, exponent
    if enclosure.kind != "real" and not fmt.is_inf(got) and policy.overflow != "saturate":
        return right, infinite, exponent
    flushed = policy.subnormals == "flush" and max(abs(low), abs(high)) < fmt.min_normal
    if flushed and _without_minus_zero(fmt, got) == 0:
        return right, 0.0, exponent
    smallest, largest = allowed or error_range(fmt, got, Enclosure(low, high))
    return right, smallest if smallest == largest else (smallest + largest) / 2, exponent


def _same(fmt: Format, got: int, right: int | None) -> bool:
    """True if a pattern is the right one. All NaN are the same, and so are both zeros. right=None means NaN."""
    if right is None or fmt.is_nan(got):
        return fmt.is_nan(got) and (right is None or fmt.is_nan(right))
    return _without_minus_zero(fmt, got) == _without_minus_zero(fmt, right)


def error_range(fmt: Format, got: int, enclosure: Enclosure) -> tuple[Fraction, Fraction]:
    """Returns the smallest and the largest error in ULP that the enclosure allows.

    If the enclosure contains a power of two, the ULP changes there, and both sides count.
    """
    low, high = enclosure.low, enclosure.high
    if low == high:
        return (only := fmt.error(got, low)), only
    ends = [fmt.error(got, high), fmt.error(got, low)]
    if fmt.ulp_exponent(low) == fmt.ulp_exponent(high):
        return ends[0], ends[1]
    if low * high > 0:
        outer = max(abs(low), abs(high))
        boundary = power_of_two(floor_log2(outer)) * (-1 if high < 0 else 1)
        at_boundary = fmt.error(got, boundary)
        ends += [at_boundary, at_boundary * 2]
    return min(ends), max(ends)


def digits(point: Point, count: int = 30, *, known: Enclosure | None = None) -> str:
    """Returns the exact value in decimal with `count` significant digits.

    Uses the enclosure `known` if it determines the digits. Else evaluates mpmath. If that is beyond the budget, returns
    the ends of `known`.
    """
    import mpmath

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
        if value and mpmath.isfinite(value) and (size := -int(mpmath.mag(value))) > _TINY:
            # a program promises no digits there: its rounding errors grow with the exponent, as in exp(-x^2 / 2)
            value = point.mp(bits + 3 * size.bit_length())
    except BeyondEffort:
        if known is None:
            raise
        return " to ".join(ends) or known.kind
    if mpmath.isnan(value):
        return "nan"
    if mpmath.isinf(value):
        return "inf" if value > 0 else "-inf"
    return written(value)


def _as_short_number(enclosure: Enclosure) -> Enclosure:
    """Returns the number with the shortest binary expansion inside an enclosure that no precision decides.

    Exact arithmetic (a dot product of floats, a halving) may give a midpoint of the format. Every enclosure of an
    mpmath value then contains the midpoint, at any precision. Raises TruthError if no short number is inside, and
    BeyondEffort for a wide enclosure, which no larger precision narrows.
    """
    size, is_zero = max(abs(enclosure.low), abs(enclosure.high)), enclosure.low <= 0 <= enclosure.high
    if size < 1 / _NOTHING and enclosure.high - enclosure.low > 2 * (_NOTHING if is_zero else _WIDE * size):
        raise BeyondEffort(
            f"an exact value is anywhere from {float_or_text(enclosure.low)} to {float_or_text(enclosure.high)}: "
            f"{MAX_PRECISION} bits do not enclose it"
        )
    if is_zero:
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


def _without_minus_zero(fmt: Format, bits: int) -> int:
    """Returns the pattern, or that of +0 for -0: the policy decides about the sign of zero, not the rounding."""
    return 0 if bits & ~fmt.sign_bit == 0 else bits


def _to_float(error: Fraction) -> float:
    """Returns a rational as a float, infinite beyond float64's range."""
    try:
        return float(error)
    except OverflowError:
        return float("inf") if error > 0 else float("-inf")


def _disagreement(first: str, a: Enclosure, second: str, b: Enclosure) -> str:
    """Returns the message of a TruthError for two routes that disagree."""

    def show(item: Enclosure) -> str:
        return item.kind if item.kind != "real" else f"{float_or_text(item.low)}..{float_or_text(item.high)}"

    return (
        f"two routes to one exact value disagree: {first} gives {show(a)}, {second} gives {show(b)}; "
        "this is an error of the op's definition, no verdict is given"
    )


def float_or_text(value: Fraction) -> str:
    """Returns a rational for a message: as a float, or as a power of two such as `about 2^5000` beyond float64."""
    try:
        return repr(float(value))
    except OverflowError:
        return f"about 2^{floor_log2(value)}"
