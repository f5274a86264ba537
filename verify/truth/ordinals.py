"""Converts between numbers and ordinals: positions on the number line of a format, where neighbours are 1 apart.

With ordinals, a search edits numbers by integer arithmetic. Adding 1 is a step of one ulp, negation changes the sign,
and adding 2^mantissa_bits raises the exponent by 1. Every int64 within +-max_bits is a finite number, so no edit gives
an invalid number. Negative zero is the only finite pattern without its own ordinal. The special values of every run
test it.
"""

from fractions import Fraction

import torch
from torch import Tensor

from verify.truth.formats import Format
from verify.truth.ulp import bits_of, from_bits, widen


def to_tensor(ordinals: Tensor, fmt: Format) -> Tensor:
    """Returns the numbers at ordinals, in the format's dtype."""
    sign = -(1 << 63) if fmt.bits == 64 else fmt.sign_bit
    return from_bits(torch.where(ordinals < 0, ordinals.abs() | sign, ordinals), fmt)


def of_tensor(tensor: Tensor, fmt: Format) -> Tensor:
    """Returns the ordinals of numbers. Infinities and NaN count as the largest finite number of their sign."""
    bits = bits_of(tensor)
    magnitude = bits & ((1 << (fmt.bits - 1)) - 1)
    negative = bits < 0 if fmt.bits == 64 else bits >= fmt.sign_bit
    return torch.where(negative, -magnitude, magnitude).clamp(-fmt.max_bits, fmt.max_bits)


def between(fmt: Format, low: float, high: float) -> tuple[int, int] | None:
    """Returns the ordinals of the least and the greatest number from `low` to `high`; None if there is none."""

    def at_most(value: float) -> int:
        if value >= 0:
            return fmt.up_to(value)
        under = fmt.up_to(-value)
        return -under if fmt.value(under) == Fraction(-value) else -under - 1

    least, greatest = -at_most(-low), at_most(high)
    return (least, greatest) if -fmt.max_bits <= least <= greatest <= fmt.max_bits else None


def folded(ordinals: Tensor, low: int, high: int) -> Tensor:
    """Moves ordinals into low .. high. Ordinals inside stay.

    If the range has one sign only, the sign is dropped first. A magnitude outside is reflected at the nearer end, until
    it is inside. Since ordinals grow like logarithms, reflection at 1 maps x to about 1 / x.
    """
    size = ordinals.abs()
    if low >= 0:
        return _reflected(size, low, high)
    if high <= 0:
        return -_reflected(size, -high, -low)
    return torch.where(ordinals < 0, -_reflected(size, 0, -low), _reflected(size, 0, high))


def _reflected(size: Tensor, least: int, most: int) -> Tensor:
    """Reflects ordinals at `least` and `most` until they are inside."""
    span = most - least
    if span == 0:
        return torch.full_like(size, least)
    beyond = size > most
    distance = torch.where(beyond, size - most, least - size).clamp(min=0)
    turns, rest = distance // span, distance % span
    moved = torch.where(beyond == (turns % 2 == 0), most - rest, least + rest)
    return torch.where(distance == 0, size, moved)


def moved_inside(values: Tensor, fmt: Format, low: int, high: int) -> Tensor:
    """Folds the numbers outside of low .. high. Infinities and NaN count as the largest finite number of their sign."""
    ordinals = of_tensor(values, fmt)
    inside = folded(ordinals, low, high)
    kept = (inside == ordinals) & torch.isfinite(widen(values))
    return from_bits(torch.where(kept, bits_of(values), bits_of(to_tensor(inside, fmt))), fmt)
