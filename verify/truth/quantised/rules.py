"""Finds the scales that a rule can give for the largest magnitude (amax) of a block, and the codes of its elements.

Everything is computed in float64, which decides correctly. A float32 amax divided by a largest number of 3 bits is
either exactly a power of two or at least 2^-27 away from one. A float32 element divided by a scale of 28 bits is either
exactly a midpoint or at least 2^-33 away from one. A quotient in float64 distinguishes these cases.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from verify.truth.codes import Ties, code_format
from verify.truth.quantised.encoding import FLOATS, POWERS, Encoding

# Largest relative error of a quotient after four roundings to float32: amax / largest / second in any order, or
# x / (scale * second).
FLOAT32 = 2.0**-22
# A tensor with a second scale and a smaller maximum is not judged, because the inverse of its second scale overflows
# float32.
LEAST_OF_ALL = 2.0**-100


@dataclass(frozen=True)
class Reach:
    """Holds the result of the exact quotient, and the least and the greatest result of float32 arithmetic."""

    nominal: Tensor
    low: Tensor
    high: Tensor


def reach(encoding: Encoding, low: Tensor, high: Tensor, second: Tensor) -> Reach:
    """Returns the possible scales of blocks whose largest magnitude is between `low` and `high`."""
    low, high = low.clamp(min=encoding.least), high.clamp(min=encoding.least)
    middle = torch.where(low == high, low, (low + high) / 2)
    largest = encoding.span
    if encoding.rule in ("floor", "ceil", "even"):  # exponents alone: no arithmetic rounds
        found = [_by_exponent(encoding, each) for each in (middle, low, high)]
    elif encoding.by and not encoding.second:
        inverse = torch.tensor(1.0 / largest, dtype=torch.float32)
        divisor = torch.tensor(largest, device=low.device)  # on a GPU, PyTorch has a reciprocal of Python's numbers
        narrow = [each.float() for each in (middle, low, high)]
        quotients = (each / divisor if encoding.by == "division" else each * inverse for each in narrow)
        found = [_rounded(encoding, each.double()) for each in quotients]
    else:
        unit = largest * second
        exact = (middle / unit, low / unit * (1 - FLOAT32), high / unit * (1 + FLOAT32))
        found = [_rounded(encoding, each) for each in exact]
    return Reach(*(_held(encoding, each) for each in found))


def reach_of_second(encoding: Encoding, low: Tensor, high: Tensor, scales: float = 0.0) -> Reach:
    """Returns the possible second scales, of the whole tensor: amax / (largest code * largest scale).

    `scales` is the largest scale. Without it, it is that of the format.
    """
    scales = scales or (1.0 if encoding.scale in FLOATS else code_format(encoding.scale).largest)
    unit = encoding.data.largest * scales
    near = (low + high) / 2 / unit
    return Reach(near.float().double(), low / unit * (1 - FLOAT32), high / unit * (1 + FLOAT32))


def reach_of_zero(encoding: Encoding, low: Tensor, high: Tensor, scale: Tensor) -> Reach:
    """Returns the possible zero points of blocks at their scale.

    The least number of each block, or 0 if that is less, is between `low` and `high`.
    """
    first = encoding.data.numbers[0]
    exact = [torch.where(scale > 0, -each / scale, 0.0) for each in (low, high)]
    found = ((exact[0] + exact[1]) / 2, exact[1] * (1 - FLOAT32), exact[0] * (1 + FLOAT32))
    if encoding.zero_point in FLOATS:
        return Reach(*((first + each).to(FLOATS[encoding.zero_point]).double() for each in found))
    numbers = code_format(encoding.zero_point).numbers
    return Reach(*((first + integers(each, "even")).clamp(numbers[0], numbers[-1]) for each in found))


def integers(values: Tensor, ties: Ties) -> Tensor:
    """Rounds numbers to integers."""
    if ties == "even":
        return values.round()
    if ties == "truncate":
        return values.trunc()
    if ties == "outward":
        return torch.copysign(values.abs().ceil(), values)
    if ties == "up":
        return (values + 0.5).floor()
    size = values.abs()
    return torch.copysign((size + 0.5).floor() if ties == "away" else (size - 0.5).ceil(), values)


def power_at_most(values: Tensor) -> Tensor:
    """Returns the exponent of the largest power of two up to each positive number."""
    return torch.frexp(values)[1].to(torch.int64) - 1


def power(exponent: Tensor) -> Tensor:
    """Returns 2^exponent as float64, by its bits: exact on every device."""
    return ((exponent.clamp(-1022, 1023) + 1023) << 52).view(torch.float64)


def _by_exponent(encoding: Encoding, amax: Tensor) -> Tensor:
    """Returns the scale by the rules "floor", "ceil" and "even", which use exponents alone."""
    exponent = power_at_most(amax)
    if encoding.rule == "even":  # the mantissa rounded to that of the data, half up: 1.75 becomes 2 in e2m1
        steps = sum(1 for value in encoding.data.numbers if 1 <= value < 2)
        exponent = power_at_most(amax + 0.5 / steps * power(exponent))
    found = power(exponent)
    if encoding.rule == "ceil":
        found = torch.where(found < amax, found * 2, found)
    return torch.where(amax == 0, 0.0, found * 2.0**-encoding.data.emax)


def _rounded(encoding: Encoding, quotient: Tensor) -> Tensor:
    """Rounds amax / largest to a scale by the rules "rceil", "nearest" and "up"."""
    if encoding.rule == "rceil":
        found = power(power_at_most(quotient))
        found = torch.where(found < quotient, found * 2, found)
        return torch.where(quotient == 0, 0.0, found)
    up = encoding.rule == "up"
    if encoding.scale in FLOATS:
        kind = torch.finfo(FLOATS[encoding.scale])
        least = math.frexp(kind.smallest_normal)[1] - 1
        unit = power(power_at_most(quotient).clamp(min=least)) * kind.eps
        return (quotient / unit).ceil() * unit if up else (quotient / unit).round() * unit
    table = code_format(encoding.scale)
    numbers = table.tensor("numbers", quotient.device)
    places = torch.searchsorted(numbers, quotient) if up else table.nearest(quotient)
    return numbers[places.clamp(max=len(numbers) - 1)]


def _held(encoding: Encoding, scale: Tensor) -> Tensor:
    """Clamps scales to the range of their format, and from below to the declared least scale."""
    low, high = encoding.least_scale, float("inf")
    if encoding.scale not in FLOATS:
        numbers = code_format(encoding.scale).numbers
        low, high = max(low, numbers[0]), numbers[-1]
    else:
        high = torch.finfo(FLOATS[encoding.scale]).max
        low = max(low, 2.0**-149) if encoding.rule in POWERS else low
    return scale.clamp(low, high)


def place(
    encoding: Encoding, quotient: Tensor, zero: Tensor | None = None, random: Tensor | None = None, room: float = 0.0
) -> Tensor:
    """Returns the places in `data.numbers` to which quotients round. Ties go to even if the declaration allows any.

    A zero point that is an integer is added after the rounding, any other before. `random` has the bits of each
    element. `room` is added to a quotient before it is rounded to an integer.
    """
    table, ties = encoding.data, "even" if encoding.ties == "any" else encoding.ties
    if random is not None and encoding.random:
        return _by_bits(encoding, quotient, random)
    if zero is None:
        return table.nearest(quotient, ties)
    if encoding.zero_point in FLOATS:
        quotient, zero = quotient + zero, torch.zeros_like(zero)
    return (integers(quotient + room, ties) + zero - table.numbers[0]).clamp(0, len(table.numbers) - 1).long()


def _by_bits(encoding: Encoding, quotient: Tensor, random: Tensor) -> Tensor:
    """Returns the places of quotients that are rounded by random bits."""
    numbers, whole = encoding.data.tensor("numbers", quotient.device), 2.0**encoding.random_bits
    near = encoding.data.nearest(quotient, "truncate")
    next_ = (near + torch.where(quotient < 0, -1, 1)).clamp(0, len(numbers) - 1)
    step = (numbers[next_] - numbers[near]).abs()
    part = torch.where(step > 0, (quotient.abs() - numbers[near].abs()) / step, 0.0).clamp(0, 1) * whole
    up = part.floor() + random >= whole if encoding.random == "add" else random < part
    return torch.where(up, next_, near)
