"""Floating-point formats, exactly: bits, neighbours, ulp of a real number, rounding to nearest even.

Everything here is integer or rational arithmetic, so it is slow and right: it is the oracle for the tensor
code in `verify.truth.ulp`, and the judge of single elements. A real number is a `fractions.Fraction`.

>>> bfloat16 = named("bfloat16")
>>> hex(bfloat16.round(Fraction(1, 3)))
'0x3eab'
>>> bfloat16.value(0x3EAB)
Fraction(171, 512)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from verify.errors import UsageError


@dataclass(frozen=True)
class Format:
    """A binary floating-point format with gradual underflow.

    `precision` counts the hidden bit; `emin` and `emax` are the exponents of the smallest normal number
    2^emin and of the largest binade. `has_inf` is False for float8 e4m3fn, whose only non-finite value is
    NaN (all ones), so that its largest finite number has mantissa 110 instead of 111.
    """

    name: str
    bits: int
    precision: int
    emin: int
    emax: int
    has_inf: bool = True

    # -- the shape of the format ------------------------------------------------------------------

    @property
    def mantissa_bits(self) -> int:
        return self.precision - 1

    @cached_property
    def sign_bit(self) -> int:
        return 1 << (self.bits - 1)

    @cached_property
    def inf_bits(self) -> int:
        """Pattern of +infinity, or, without infinities, of the first pattern after the largest finite."""
        return self.max_bits + 1

    @cached_property
    def max_bits(self) -> int:
        """Pattern of the largest finite number."""
        if self.has_inf:
            return (((1 << (self.bits - self.precision)) - 1) << self.mantissa_bits) - 1
        return self.sign_bit - 2

    @property
    def nan_bits(self) -> int:
        """One quiet NaN."""
        if self.has_inf:
            return self.inf_bits | (1 << (self.mantissa_bits - 1))
        return self.inf_bits

    @cached_property
    def max_finite(self) -> Fraction:
        return self.value(self.max_bits)

    @cached_property
    def min_normal(self) -> Fraction:
        return power_of_two(self.emin)

    @cached_property
    def min_ulp_exponent(self) -> int:
        """Exponent of the spacing of subnormal numbers: no ulp is finer."""
        return self.emin - self.mantissa_bits

    @cached_property
    def overflow(self) -> Fraction:
        """The number that stands for infinity in error figures: one ulp above the largest finite."""
        return self.max_finite + power_of_two(self.emax - self.mantissa_bits)

    # -- bits and values --------------------------------------------------------------------------

    def is_nan(self, bits: int) -> bool:
        magnitude = self._checked(bits) & ~self.sign_bit
        return magnitude > self.inf_bits if self.has_inf else magnitude == self.inf_bits

    def is_inf(self, bits: int) -> bool:
        return self.has_inf and (self._checked(bits) & ~self.sign_bit) == self.inf_bits

    def is_finite(self, bits: int) -> bool:
        return (self._checked(bits) & ~self.sign_bit) <= self.max_bits

    def is_negative(self, bits: int) -> bool:
        """The sign bit, also of zero and NaN."""
        return bool(self._checked(bits) & self.sign_bit)

    def value(self, bits: int) -> Fraction:
        """The number behind a finite pattern."""
        magnitude = self._checked(bits) & ~self.sign_bit
        if magnitude > self.max_bits:
            raise ValueError(f"{self.name} pattern {bits:#x} is not finite and has no rational value")
        fraction = magnitude & ((1 << self.mantissa_bits) - 1)
        exponent = magnitude >> self.mantissa_bits
        if exponent:
            fraction |= 1 << self.mantissa_bits
            exponent -= 1
        number = -fraction if bits & self.sign_bit else fraction
        exponent += self.min_ulp_exponent
        return quotient(number << max(exponent, 0), 1 << max(-exponent, 0))

    def to_float(self, bits: int) -> float:
        """The value as a Python float (exact for every format here), infinities and NaN included."""
        if self.is_nan(bits):
            return math.nan
        if self.is_inf(bits):
            return -math.inf if self.is_negative(bits) else math.inf
        number = float(self.value(bits))
        return math.copysign(number, -1.0) if self.is_negative(bits) else number

    def patterns(self) -> Iterator[int]:
        """Every bit pattern, in pattern order."""
        return iter(range(1 << self.bits))

    # -- neighbours -------------------------------------------------------------------------------

    def ordinal(self, bits: int) -> int:
        """Position on the number line: consecutive numbers have consecutive ordinals, both zeros have 0."""
        magnitude = self._checked(bits) & ~self.sign_bit
        return -magnitude if bits & self.sign_bit else magnitude

    def signed(self, bits: int) -> int:
        """A pattern as the signed integer of its width, which is what a tensor of integers holds."""
        return bits - (1 << self.bits) if bits >= self.sign_bit else bits

    def from_ordinal(self, ordinal: int) -> int:
        """The pattern at an ordinal; 0 gives +0."""
        bits = abs(ordinal)
        if bits > self.inf_bits or (bits == self.inf_bits and not self.has_inf):
            raise ValueError(f"{self.name} has no number at ordinal {ordinal}")
        return bits | self.sign_bit if ordinal < 0 else bits

    def up_to(self, magnitude: float) -> int:
        """Returns the pattern of the largest finite number that is at most a magnitude."""
        if magnitude >= self.max_finite:
            return self.max_bits
        bits = self.round(Fraction(magnitude))
        return bits - (self.value(bits) > Fraction(magnitude))

    # -- real numbers -----------------------------------------------------------------------------

    def ulp_exponent(self, real: Fraction) -> int:
        """e such that the spacing of this format at `real` is 2^e.

        The spacing of the binade that holds |real| (2^k belongs to the binade above it); of the subnormals
        below 2^emin and at zero; of the largest binade for everything beyond it.
        """
        if real == 0:
            return self.min_ulp_exponent
        exponent = min(max(floor_log2(real), self.emin), self.emax)
        return exponent - self.mantissa_bits

    def ulp(self, real: Fraction) -> Fraction:
        """The spacing of this format at a real number."""
        return power_of_two(self.ulp_exponent(real))

    def round(self, real: Fraction, *, negative_zero: bool = False) -> int:
        """Nearest pattern, ties to even, gradual underflow; beyond the overflow threshold infinity.

        Without infinities (e4m3fn) overflow gives NaN. A result of zero takes the sign of `real`, and
        `negative_zero` says which zero `real` itself is when it is zero.
        """
        # in integers: rationals look for common factors at each step, which is most of the exact judge's time
        numerator, denominator = real.as_integer_ratio()
        if numerator == 0:
            return self.sign_bit if negative_zero else 0
        sign, magnitude = (self.sign_bit, -numerator) if numerator < 0 else (0, numerator)
        binade = _floor_log2(magnitude, denominator)
        if binade >= self.emax:
            if abs(real) > self.overflow:
                return sign | self.inf_bits
            binade = self.emax
        exponent = (binade if binade > self.emin else self.emin) - self.precision + 1
        places = exponent + denominator.bit_length() - 1
        if denominator & (denominator - 1):
            unit = denominator << max(exponent, 0)
            steps, rest = divmod(magnitude << max(-exponent, 0), unit)
            steps += 2 * rest > unit or (2 * rest == unit and steps & 1)
        elif places <= 0:
            steps = magnitude << -places
        else:
            steps = magnitude >> places - 1  # in halves
            half_or_more, exact = steps & 1, magnitude == steps << places - 1
            steps >>= 1
            steps += half_or_more and (steps & 1 or not exact)
        return sign | self._pattern_at(steps, exponent)

    def error(self, got: int, real: Fraction) -> Fraction:
        """Signed error (got - real) / ulp(real). Infinity stands one ulp above the largest finite number.

        Continuous over the overflow threshold: `real` counts as at most that number, so that infinity is
        right, and the largest finite number one ulp off, wherever the real number is beyond.
        """
        if self.is_nan(got):
            raise ValueError("NaN has no error in ulp")
        value = self.value(got) if self.is_finite(got) else -self.overflow if self.is_negative(got) else self.overflow
        exponent = self.ulp_exponent(real)
        if exponent == self.emax - self.mantissa_bits:
            real = min(max(real, -self.overflow), self.overflow)
        # in integers, as in `round`
        denominator = value.denominator * real.denominator << max(exponent, 0)
        difference = value.numerator * real.denominator - real.numerator * value.denominator
        return quotient(difference << max(-exponent, 0), denominator)

    def from_float(self, number: float) -> int:
        """The nearest pattern to a Python float, infinities and NaN included."""
        if math.isnan(number):
            return self.nan_bits
        if math.isinf(number):
            return (self.sign_bit if number < 0 else 0) | self.inf_bits
        return self.round(Fraction(number), negative_zero=math.copysign(1.0, number) < 0)

    def hex(self, bits: int) -> str:
        """The pattern as reports print it: 0x with all digits."""
        return f"{self._checked(bits):#0{2 + self.bits // 4}x}"

    # -- inside -----------------------------------------------------------------------------------

    def _checked(self, bits: int) -> int:
        if not 0 <= bits < 1 << self.bits:
            raise ValueError(f"{bits:#x} is not a {self.bits}-bit pattern of {self.name}")
        return bits

    def _pattern_at(self, steps: int, exponent: int) -> int:
        """Pattern of steps * 2^exponent, where steps came from rounding and may have carried."""
        if steps == 0:
            return 0
        if steps >> self.precision:  # carried into the next binade: steps is a power of two
            steps >>= 1
            exponent += 1
        binade = exponent - self.min_ulp_exponent  # 0 for subnormals and the first normal binade
        # adding the integer mantissa lets a carry out of the subnormals become the exponent by itself
        return min((binade << self.mantissa_bits) + steps, self.inf_bits)


def quotient(numerator: int, denominator: int) -> Fraction:
    """A rational, in lowest terms: by the zeros at the end over a power of two, which is faster than by a divisor."""
    if denominator & (denominator - 1) or not numerator:
        return Fraction(numerator, denominator)
    zeros = min((numerator & -numerator).bit_length(), denominator.bit_length()) - 1
    number = object.__new__(Fraction)
    number._numerator = numerator >> zeros  # type: ignore[attr-defined]
    number._denominator = denominator >> zeros  # type: ignore[attr-defined]
    return number


def power_of_two(exponent: int) -> Fraction:
    """2^exponent as a rational."""
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


def floor_log2(real: Fraction) -> int:
    """floor(log2 |real|), exactly, for a nonzero rational."""
    numerator, denominator = real.as_integer_ratio()
    return _floor_log2(abs(numerator), denominator)


def _floor_log2(numerator: int, denominator: int) -> int:
    """The same for a positive rational in two integers."""
    guess = numerator.bit_length() - denominator.bit_length()
    # numerator / denominator lies in (2^(guess-1), 2^(guess+1))
    if guess >= 0:
        return guess if numerator >= denominator << guess else guess - 1
    return guess if numerator << -guess >= denominator else guess - 1


FORMATS: dict[str, Format] = {
    fmt.name: fmt
    for fmt in (
        Format("float64", bits=64, precision=53, emin=-1022, emax=1023),
        Format("float32", bits=32, precision=24, emin=-126, emax=127),
        Format("float16", bits=16, precision=11, emin=-14, emax=15),
        Format("bfloat16", bits=16, precision=8, emin=-126, emax=127),
        Format("float8_e4m3fn", bits=8, precision=4, emin=-6, emax=8, has_inf=False),
        Format("float8_e5m2", bits=8, precision=3, emin=-14, emax=15),
    )
}


def named(name: str) -> Format:
    """The format with a name, or of a torch dtype ("torch.float32" works too)."""
    short = name.removeprefix("torch.")
    if short not in FORMATS:
        raise UsageError(f"unknown dtype {name!r}; verify knows: {', '.join(FORMATS)}")
    return FORMATS[short]


def of(dtype: Any) -> Format:
    """The format of a torch dtype."""
    return named(str(dtype))


def torch_dtype(fmt: Format) -> Any:
    """The torch dtype of a format."""
    import torch

    return getattr(torch, fmt.name)
