"""Defines floating-point formats exactly: bits, neighbours, ulp of a real number, rounding to nearest even.

All arithmetic is on integers or rationals, which is slow but exact. The tests compare the tensor code in
`verify.truth.ulp` with it, and `verify.truth.exact` judges single elements by it. A real number is a
`fractions.Fraction`.

>>> bfloat16 = named("bfloat16")
>>> hex(bfloat16.round(Fraction(1, 3)))
'0x3eab'
>>> bfloat16.value(0x3EAB)
Fraction(171, 512)
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from verify.errors import UsageError, closest


@dataclass(frozen=True)
class Format:
    """A binary floating-point format with gradual underflow.

    A pattern is the bits of a number, as a non-negative integer.
    """

    name: str
    bits: int
    precision: int  # bits of the significand, with the hidden bit
    emin: int  # 2^emin is the smallest normal number
    emax: int  # exponent of the largest binade
    # False for float8 e4m3fn: its only value that is not finite is NaN, with all bits one but the sign. So its largest
    # finite number has the mantissa 110 instead of 111.
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
        """The pattern of +infinity. Without infinities, the pattern after the largest finite number."""
        return self.max_bits + 1

    @cached_property
    def max_bits(self) -> int:
        """The pattern of the largest finite number."""
        if self.has_inf:
            return (((1 << (self.bits - self.precision)) - 1) << self.mantissa_bits) - 1
        return self.sign_bit - 2

    @property
    def nan_bits(self) -> int:
        """The pattern of a quiet NaN."""
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
        """The exponent of the spacing of subnormal numbers, which is the smallest ulp."""
        return self.emin - self.mantissa_bits

    @cached_property
    def overflow(self) -> Fraction:
        """The number that replaces infinity when errors are computed: one ulp above the largest finite number."""
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
        """True if the sign bit is set, also for zero and NaN."""
        return bool(self._checked(bits) & self.sign_bit)

    def value(self, bits: int) -> Fraction:
        """Returns the number of a finite pattern. Raises ValueError for any other pattern."""
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
        """Returns the value of any pattern as a Python float, which is exact."""
        if self.is_nan(bits):
            return math.nan
        if self.is_inf(bits):
            return -math.inf if self.is_negative(bits) else math.inf
        number = float(self.value(bits))
        return math.copysign(number, -1.0) if self.is_negative(bits) else number

    # -- neighbours -------------------------------------------------------------------------------

    def ordinal(self, bits: int) -> int:
        """Returns the position on the number line: neighbours have consecutive ordinals, and both zeros have 0."""
        magnitude = self._checked(bits) & ~self.sign_bit
        return -magnitude if bits & self.sign_bit else magnitude

    def signed(self, bits: int) -> int:
        """Returns a pattern as a signed integer of the same width, as a tensor of integers holds it."""
        return bits - (1 << self.bits) if bits >= self.sign_bit else bits

    def unsigned(self, bits: int) -> int:
        """Returns the pattern that a tensor of integers holds, signed or not."""
        return bits & ((1 << self.bits) - 1)

    def from_ordinal(self, ordinal: int) -> int:
        """Returns the pattern at an ordinal; +0 for 0. Raises ValueError if there is no number."""
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
        """Returns e such that the spacing of this format at `real` is 2^e.

        This is the spacing of the binade with |real|, where 2^k belongs to the binade above it. Below 2^emin, it is the
        spacing of the subnormal numbers. Beyond the largest binade, it is the spacing of that binade.
        """
        if real == 0:
            return self.min_ulp_exponent
        exponent = min(max(floor_log2(real), self.emin), self.emax)
        return exponent - self.mantissa_bits

    def ulp(self, real: Fraction) -> Fraction:
        """Returns the spacing of this format at a real number."""
        return power_of_two(self.ulp_exponent(real))

    def round(self, real: Fraction, *, negative_zero: bool = False) -> int:
        """Returns the nearest pattern, ties to even, with gradual underflow.

        Beyond the overflow threshold it returns infinity, or NaN if the format has no infinity. A number that rounds to
        zero keeps its sign. If `real` is zero, `negative_zero` chooses between -0 and +0.
        """
        # In integers: Fraction would search for common factors in each step and take most of the exact judge's time.
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
        """Returns the signed error (got - real) / ulp(real). Raises ValueError if `got` is NaN.

        Infinity counts as `overflow`, one ulp above the largest finite number. A real number beyond `overflow` counts
        as `overflow` too. So the error is continuous there: for a real number beyond it, infinity has the error 0 and
        the largest finite number has the error of one ulp.
        """
        if self.is_nan(got):
            raise ValueError("NaN has no error in ulp")
        value = self.value(got) if self.is_finite(got) else -self.overflow if self.is_negative(got) else self.overflow
        exponent = self.ulp_exponent(real)
        if exponent == self.emax - self.mantissa_bits:
            real = min(max(real, -self.overflow), self.overflow)
        # in integers, like `round`
        denominator = value.denominator * real.denominator << max(exponent, 0)
        difference = value.numerator * real.denominator - real.numerator * value.denominator
        return quotient(difference << max(-exponent, 0), denominator)

    def from_float(self, number: float) -> int:
        """Returns the nearest pattern to a Python float, which may be infinite or NaN."""
        if math.isnan(number):
            return self.nan_bits
        if math.isinf(number):
            return (self.sign_bit if number < 0 else 0) | self.inf_bits
        return self.round(Fraction(number), negative_zero=math.copysign(1.0, number) < 0)

    def hex(self, bits: int) -> str:
        """Returns the pattern as reports print it: 0x and all hex digits."""
        return f"{self._checked(bits):#0{2 + self.bits // 4}x}"

    # -- inside -----------------------------------------------------------------------------------

    def _checked(self, bits: int) -> int:
        """Returns the pattern. Raises ValueError if it has too many bits."""
        if not 0 <= bits < 1 << self.bits:
            raise ValueError(f"{bits:#x} is not a {self.bits}-bit pattern of {self.name}")
        return bits

    def _pattern_at(self, steps: int, exponent: int) -> int:
        """Returns the pattern of steps * 2^exponent. Rounding may have carried `steps` into the next binade."""
        if steps == 0:
            return 0
        if steps >> self.precision:  # carried, so steps is a power of two
            steps >>= 1
            exponent += 1
        binade = exponent - self.min_ulp_exponent  # 0 for subnormals and the first normal binade
        # adding the mantissa as an integer turns a carry out of the subnormal numbers into an exponent of 1
        return min((binade << self.mantissa_bits) + steps, self.inf_bits)


def quotient(numerator: int, denominator: int) -> Fraction:
    """Returns a Fraction in lowest terms. If the denominator is a power of two, shifts replace the slow gcd."""
    if denominator & (denominator - 1) or not numerator:
        return Fraction(numerator, denominator)
    zeros = min((numerator & -numerator).bit_length(), denominator.bit_length()) - 1
    number = object.__new__(Fraction)
    number._numerator = numerator >> zeros  # type: ignore[attr-defined]
    number._denominator = denominator >> zeros  # type: ignore[attr-defined]
    return number


def power_of_two(exponent: int) -> Fraction:
    """Returns 2^exponent as a rational."""
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


def floor_log2(real: Fraction) -> int:
    """Returns floor(log2 |real|) exactly, for a nonzero rational."""
    numerator, denominator = real.as_integer_ratio()
    return _floor_log2(abs(numerator), denominator)


def _floor_log2(numerator: int, denominator: int) -> int:
    """Returns floor(log2(numerator / denominator)) for two positive integers."""
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
    """Returns the format with a name, such as "float32" or "torch.float32". Raises UsageError if there is none."""
    short = name.removeprefix("torch.")
    if short not in FORMATS:
        raise UsageError(f"unknown dtype {name!r}{closest(short, FORMATS, 0.5)}; verify knows: {', '.join(FORMATS)}")
    return FORMATS[short]


def of(dtype: Any) -> Format:
    """Returns the format of a torch dtype."""
    return named(str(dtype))


def torch_dtype(fmt: Format) -> Any:
    """Returns the torch dtype of a format."""
    import torch

    return getattr(torch, fmt.name)
