"""Values, derivatives and limits of a formula that a user gave, without knowing what is inside it.

Nothing is assumed about how the formula rounds: it is evaluated at rising precision until two
evaluations agree (Ziv's strategy), and so is the central difference that stands for its derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpmath import mp

from verify.errors import TruthError, UsageError
from verify.ops.precision import GUARD, magnitude, mp_bits

Function = Callable[..., Any]

# A zero is believed at this precision only: 1 + erf(x / sqrt 2) is a false zero until x^2 / 1.39
# bits.
_ZERO_BITS = 4096
_LIMIT_BITS = 1 << 17  # two steps more than a judge asks for: a slope that bends settles half as fast


def call(name: str, function: Function, values: Sequence[Any]) -> Any:
    """The formula at mpf values, as an mpf at the working precision; NaN where it is not real."""
    try:
        result = function(*values)
    except ZeroDivisionError:
        return mp.nan
    except (ArithmeticError, ValueError, TypeError, AttributeError) as error:
        shown = ", ".join(mp.nstr(value, 8) for value in values)
        raise UsageError(
            f"op {name!r}: the exact formula raised {type(error).__name__} at ({shown}): {error}",
            hint="write it with mpmath functions (from mpmath import mp; mp.exp, mp.erfc, ...)",
        ) from error
    return to_real(name, result)


def to_real(name: str, result: Any) -> Any:
    """A number of mpmath or an integer as an mpf; a Python float is refused."""
    if isinstance(result, float):
        raise UsageError(
            f"op {name!r}: the exact formula returned a Python float, which has 53 bits only",
            hint="write it with mpmath functions (from mpmath import mp; mp.exp, mp.erfc, ...)",
        )
    if isinstance(result, mp.mpc):
        return result.real if result.imag == 0 else mp.nan
    return mp.mpf(result) if isinstance(result, int) else +result


def _agree(a: Any, b: Any, prec: int) -> bool:
    if not (mp.isfinite(a) and mp.isfinite(b)):
        return bool((mp.isnan(a) and mp.isnan(b)) or a == b)
    return bool(abs(a - b) <= mp.ldexp(abs(b), -prec))


def settle(name: str, evaluate: Callable[[int], Any], prec: int) -> Any:
    """The value that `evaluate(bits)` tends to, within 2^-prec relative."""
    bits = prec + GUARD
    before = evaluate(bits)
    while bits <= _LIMIT_BITS:
        zero = before == 0 and bits < _ZERO_BITS
        # for a start at 160 bits this is where a second opinion at 2 * 160 + 64 starts: a row is evaluated once there
        bits = _ZERO_BITS if zero else 2 * bits + 64 - GUARD
        value = evaluate(bits)
        with mp_bits(bits):
            if _agree(before, value, prec):
                return value
        before = value
    raise TruthError(f"op {name!r}: the exact formula does not settle at {_LIMIT_BITS} bits")


def value_at(name: str, function: Function, values: Sequence[Any], prec: int) -> Any:
    """function(*values) within 2^-prec relative."""

    def evaluate(bits: int) -> Any:
        with mp_bits(bits):
            return call(name, function, values)

    return settle(name, evaluate, prec)


def derivative_at(name: str, function: Function, values: Sequence[Any], position: int, prec: int) -> Any:
    """The partial derivative with respect to values[position] within 2^-prec relative.

    A central difference with step h errs by h^2 relative to the scale on which the function
    changes; h shrinks until two steps agree, so that scale need not be known.
    """
    here = values[position]
    small, large = min(0, magnitude(here)), max(0, magnitude(here))

    def difference(bits: int) -> Any:
        # A step of 2^-(bits / 2) leaves an error near 2^-bits, and costs half as many bits.
        exponent = small - bits // 2
        with mp_bits(2 * bits + large - small):
            step = mp.ldexp(1, exponent)
            moved = [*values[:position], None, *values[position + 1 :]]
            ends = []
            for shifted in (here + step, here - step):
                moved[position] = shifted
                ends.append(call(name, function, moved))
            return mp.ldexp(ends[0] - ends[1], -exponent - 1)

    return settle(name, difference, prec)


def sides_at(
    name: str,
    function: Function,
    values: Sequence[Any],
    position: int,
    prec: int,
    *,
    slope: Function | None = None,
) -> tuple[Any, Any] | None:
    """What the partial derivative tends to from the left and from the right, where `derivative_at` has no meaning.

    That is at a kink, where they differ, and at a jump, where the difference quotient has no limit. None elsewhere.
    `slope` is the derivative, where the caller has a formula for it: then only its two limits are compared.

    A step h shows which it is: what two points at x - h and x + h say of the slope differs by h times the second
    derivative of a smooth function, by the same amount at any h of a kink, and by 1 / h of a jump.
    """
    here = values[position]
    small, large = min(0, magnitude(here)), max(0, magnitude(here))

    def at(evaluated: Function, shift: Any) -> Any:
        return call(name, evaluated, [*values[:position], here + shift, *values[position + 1 :]])

    def look(bits: int) -> tuple[Any, Any, Any, Any]:
        """From each side the slope; how far three values are from a line; and the size of a step along it."""
        exponent = small - bits // 2
        with mp_bits(2 * bits + large - small):
            step = mp.ldexp(1, exponent)
            if slope is not None:
                left, right = (at(slope, side * step) for side in (-1, 1))
                return left, right, abs(right - left), abs(right) + abs(left)
            middle, before, after = (at(function, shift) for shift in (0, -step, step))
            bend = abs(after - 2 * middle + before)
            size = abs(after - middle) + abs(middle - before)
            if not bend > mp.ldexp(size, -bits // 4):
                return None, None, bend, size
            # the weights give the slope at distance 0 of a parabola through the three points
            left, right = (
                mp.ldexp(sum(weight * at(function, side * times * step) for times, weight in _ONE_SIDED), -exponent)
                * side
                for side in (-1, 1)
            )
            return left, right, bend, size

    first, second = prec + GUARD, 2 * (prec + GUARD) + 64
    shrinks = (second - first) // 4  # in bits: half of what the step shrinks by
    left, right, bend, size = look(first)
    if not all(map(mp.isfinite, (bend, size))):
        return None
    if not bend > mp.ldexp(size, -first // 4):
        return None
    finer_left, finer_right, finer_bend, _ = look(second)
    if finer_left is None or not all(map(mp.isfinite, (left, right, finer_left, finer_right))):
        return None
    jump = slope is None and finer_bend > mp.ldexp(bend, -shrinks)
    kink = abs(finer_right - finer_left) > mp.ldexp(abs(right - left), -shrinks)
    if not (jump or kink):
        return None
    ends = [_limit_of(*pair, prec, shrinks) for pair in ((left, finer_left), (right, finer_right))]
    if any(end is None for end in ends):
        return None
    return min(ends), max(ends)


_ONE_SIDED = ((1, mp.mpf(-5) / 2), (2, mp.mpf(4)), (3, mp.mpf(-3) / 2))


def _limit_of(coarse: Any, fine: Any, prec: int, shrinks: int) -> Any:
    """What a one-sided slope tends to, from its values at two steps; None where they do not agree."""
    if fine == 0 or abs(fine) <= mp.ldexp(abs(coarse), -shrinks):
        return mp.zero
    return fine if abs(coarse - fine) <= mp.ldexp(abs(fine), -prec) else None


def pole_at(evaluate: Callable[[Any], Any], sign: int) -> Any:
    """The infinity that `evaluate` tends to at a zero from the side of its sign; None where it tends to none."""
    near, far = (evaluate(mp.ldexp(sign, exponent)) for exponent in (-1500, -3000))
    if mp.isnan(near) or mp.isnan(far) or not abs(far) > mp.ldexp(1 + abs(near), 16):
        return None
    return mp.inf if far > 0 else mp.ninf


def limit_at(evaluate: Callable[[Any], Any], infinity: Any) -> Any:
    """The limit of `evaluate` at an infinity, from its value there or else from two remote points.

    Zero below 2^-1000, infinite above 2^1000 and growing, a constant when the two points agree to
    100 bits; NaN otherwise.
    """
    there = evaluate(infinity)
    if not mp.isnan(there):
        return there
    sign = 1 if infinity > 0 else -1
    near, far = (evaluate(mp.ldexp(sign, exponent)) for exponent in (1500, 3000))
    if mp.isnan(near) or mp.isnan(far):
        return mp.nan
    if abs(far) < mp.ldexp(1, -1000):
        return mp.zero
    if abs(far) > mp.ldexp(1, 1000) and abs(far) > abs(near):
        return mp.inf if far > 0 else mp.ninf
    return far if abs(near - far) <= mp.ldexp(abs(far), -100) else mp.nan
