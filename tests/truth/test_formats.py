"""Formats against what torch and numpy do with the same bits."""

from __future__ import annotations

import math
import random
import struct
from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.truth.every_value import all_values, neighbour
from verify.errors import UsageError
from verify.truth.formats import FORMATS, Format, floor_log2, named, power_of_two, torch_dtype
from verify.truth.ulp import bits_of, from_bits, widen

ALL = list(FORMATS.values())
SMALL = [fmt for fmt in ALL if fmt.bits <= 16]
WIDE = [fmt for fmt in ALL if fmt.bits > 16]
IEEE = [fmt for fmt in ALL if fmt.has_inf]

names = pytest.mark.parametrize("fmt", ALL, ids=lambda fmt: fmt.name)
small = pytest.mark.parametrize("fmt", SMALL, ids=lambda fmt: fmt.name)
wide = pytest.mark.parametrize("fmt", WIDE, ids=lambda fmt: fmt.name)


def boundary_patterns(fmt: Format) -> list[int]:
    """Both ends of the subnormals, of a few binades and of the format, in both signs."""
    m = fmt.mantissa_bits
    one = fmt.from_float(1.0)
    centres = [0, 1 << m, 2 << m, one, one + (1 << m), fmt.max_bits, fmt.nan_bits]
    found = {c + step for c in centres for step in range(-3, 4)}
    limit = fmt.sign_bit
    positive = {bits for bits in found if 0 <= bits < limit}
    return sorted(positive | {bits | fmt.sign_bit for bits in positive})


def sample(fmt: Format, count: int, seed: int) -> list[int]:
    source = random.Random(seed)
    return boundary_patterns(fmt) + [source.getrandbits(fmt.bits) for _ in range(count)]


def machine_value(fmt: Format, bits: int) -> float:
    """The value of a pattern by the hardware's own reading of it."""
    if fmt.name == "float64":
        return struct.unpack("<d", struct.pack("<Q", bits))[0]
    if fmt.name == "float32":
        return struct.unpack("<f", struct.pack("<I", bits))[0]
    raw = torch.tensor([bits], dtype=torch.int64)
    return float(widen(from_bits(raw, fmt))[0])


# -- values -------------------------------------------------------------------------------------


@small
def test_every_pattern_has_the_value_that_torch_gives_it(fmt: Format) -> None:
    machine = widen(all_values(fmt)).tolist()
    assert len(machine) == 1 << fmt.bits
    for bits, value in enumerate(machine):
        if math.isnan(value):
            assert fmt.is_nan(bits)
            assert math.isnan(fmt.to_float(bits))
        elif math.isinf(value):
            assert fmt.is_inf(bits)
            assert fmt.to_float(bits) == value
        else:
            assert fmt.is_finite(bits)
            assert fmt.value(bits) == Fraction(value)
            assert math.copysign(1, fmt.to_float(bits)) == math.copysign(1, value)


@small
def test_every_pattern_comes_back_from_its_value(fmt: Format) -> None:
    for bits in range(1 << fmt.bits):
        if fmt.is_nan(bits):
            assert fmt.is_nan(fmt.from_float(fmt.to_float(bits)))
            continue
        assert fmt.from_float(fmt.to_float(bits)) == bits
        if fmt.has_inf or fmt.is_finite(bits):
            again = fmt.from_ordinal(fmt.ordinal(bits))
            assert again == (0 if bits == fmt.sign_bit else bits)


@wide
def test_wide_patterns_against_struct(fmt: Format) -> None:
    for bits in sample(fmt, 4000, 1):
        value = machine_value(fmt, bits)
        if math.isnan(value):
            assert fmt.is_nan(bits)
            continue
        assert fmt.to_float(bits) == value
        assert fmt.from_float(value) == bits
        if math.isfinite(value):
            assert fmt.value(bits) == Fraction(value)


# -- neighbours ---------------------------------------------------------------------------------


# -- rounding -----------------------------------------------------------------------------------


def machine_rounded(fmt: Format, numbers: list[float]) -> list[int]:
    """What torch's cast from float64 or float32 gives; only for numbers that float32 holds."""
    raw = torch.tensor(numbers, dtype=torch.float32).to(torch_dtype(fmt))
    return bits_of(raw).tolist()


def same_number(fmt: Format, a: int, b: int) -> bool:
    return a == b or (fmt.is_nan(a) and fmt.is_nan(b))


@small
def test_midpoints_and_their_neighbours_against_torch_casts(fmt: Format) -> None:
    """Every midpoint of 8-bit formats, every 13th of 16-bit ones, and both float32 neighbours."""
    step = 1 if fmt.bits == 8 else 13
    single, numbers = named("float32"), list[float]()
    for bits in [*range(0, fmt.max_bits, step), fmt.max_bits]:
        above = fmt.overflow if bits == fmt.max_bits else fmt.value(bits + 1)
        middle = (fmt.value(bits) + above) / 2
        centre = single.round(middle)
        if single.value(centre) != middle:
            # only below float32's own range, half of bfloat16's smallest number
            assert fmt.name == "bfloat16"
            assert bits == 0
            continue
        for pattern in (centre, neighbour(single, centre, 1), neighbour(single, centre, -1)):
            number = single.to_float(pattern)
            if not fmt.has_inf and number > 464:
                continue  # NaN in torch 2.11, 448 in torch 2.13
            numbers += (number, -number)
    for number, expected in zip(numbers, machine_rounded(fmt, numbers), strict=True):
        assert same_number(fmt, fmt.round(Fraction(number)), expected), number


def test_float32_rounding_against_numpy() -> None:
    fmt, source = named("float32"), random.Random(4)
    numbers = []
    for bits in sample(fmt, 3000, 5):
        if not fmt.is_finite(bits) or fmt.is_negative(bits):
            continue
        above = fmt.overflow if bits == fmt.max_bits else fmt.value(bits + 1)
        middle = float((fmt.value(bits) + above) / 2)
        numbers += [middle, math.nextafter(middle, 0.0), math.nextafter(middle, math.inf)]
        numbers.append(float(fmt.value(bits)) * source.uniform(0.9, 1.1))
    values = np.array(numbers + [-x for x in numbers])
    with np.errstate(over="ignore"):
        expected = values.astype(np.float32).view(np.uint32).tolist()
    for number, bits in zip(values.tolist(), expected, strict=True):
        right = fmt.round(Fraction(number), negative_zero=math.copysign(1, number) < 0)
        assert right == bits, number.hex()


def test_float64_rounding_against_python_division() -> None:
    fmt, source = named("float64"), random.Random(6)
    for _ in range(5000):
        scale = source.choice([0, 0, 900, -950, -1040, -1073, 1000])
        p, q = source.getrandbits(70) + 1, source.getrandbits(60) + 1
        real = Fraction(p, q) * power_of_two(scale)
        try:
            expected = float(real)  # int / int is correctly rounded
        except OverflowError:
            expected = math.inf
        assert fmt.to_float(fmt.round(real)) == expected


@names
def test_the_overflow_threshold_is_half_an_ulp_above_the_largest(fmt: Format) -> None:
    threshold = fmt.max_finite + fmt.ulp(fmt.max_finite) / 2
    assert (fmt.overflow + fmt.max_finite) / 2 == threshold
    hair = fmt.value(1)
    assert fmt.round(threshold - hair) == fmt.max_bits
    assert fmt.round(threshold + hair) == fmt.inf_bits
    # IEEE's largest is odd, so that the tie overflows; e4m3fn's, 448, is even and keeps it
    assert fmt.round(threshold) == (fmt.inf_bits if fmt.has_inf else fmt.max_bits)
    assert fmt.round(Fraction(10) ** 400) == fmt.inf_bits


def test_e4m3fn_rounds_464_to_448_and_more_to_nan() -> None:
    fmt = named("float8_e4m3fn")
    assert fmt.to_float(fmt.round(Fraction(464))) == 448.0
    assert fmt.is_nan(fmt.round(Fraction(465)))
    assert fmt.is_nan(fmt.from_float(math.inf))
    assert [fmt.is_inf(bits) for bits in range(1 << fmt.bits)].count(True) == 0
    assert machine_rounded(fmt, [464.0]) == [fmt.max_bits]


# -- ulp and error ------------------------------------------------------------------------------


@names
def test_ulp_is_the_distance_to_the_next_number(fmt: Format) -> None:
    for bits in sample(fmt, 500, 7):
        if not fmt.is_finite(bits) or fmt.is_negative(bits) or bits == fmt.max_bits:
            continue
        assert fmt.ulp(fmt.value(bits)) == fmt.value(bits + 1) - fmt.value(bits)


@names
def test_ulp_has_a_floor_and_a_ceiling(fmt: Format) -> None:
    assert fmt.ulp(Fraction(0)) == fmt.value(1)
    assert fmt.ulp(fmt.value(1) / 1000) == fmt.value(1)
    assert fmt.ulp(fmt.min_normal) == fmt.value(1)
    assert fmt.ulp(fmt.max_finite * 1000) == fmt.ulp(fmt.max_finite)


@pytest.mark.parametrize("fmt", IEEE, ids=lambda fmt: fmt.name)
def test_error_is_continuous_over_the_overflow_threshold(fmt: Format) -> None:
    step = fmt.ulp(fmt.max_finite)
    inf, top = fmt.inf_bits, fmt.max_bits
    assert fmt.error(top, fmt.max_finite + step / 4) == Fraction(-1, 4)
    assert fmt.error(inf, fmt.max_finite + step / 4) == Fraction(3, 4)
    assert fmt.error(inf, fmt.max_finite) == 1
    assert fmt.error(inf, fmt.overflow) == 0
    assert fmt.error(inf, 100 * fmt.overflow) == 0
    assert fmt.error(top, 100 * fmt.overflow) == -1
    assert fmt.error(inf | fmt.sign_bit, -100 * fmt.overflow) == 0
    assert fmt.error(inf | fmt.sign_bit, -fmt.max_finite) == -1
    before = fmt.error(top, fmt.overflow - step / 2**80)
    assert abs(before - fmt.error(top, fmt.overflow)) == Fraction(1, 2**80)


def test_floor_log2_on_both_sides_of_powers_of_two() -> None:
    for exponent in (-2000, -1074, -1, 0, 1, 52, 53, 1023, 3000):
        power = power_of_two(exponent)
        hair = power / 2**70
        assert floor_log2(power) == exponent
        assert floor_log2(-power) == exponent
        assert floor_log2(power - hair) == exponent - 1
        assert floor_log2(power + hair) == exponent


# -- errors and words ---------------------------------------------------------------------------


def test_messages() -> None:
    fmt = named("bfloat16")
    with pytest.raises(UsageError) as caught:
        named("float12")
    known = "float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2"
    assert str(caught.value) == f"unknown dtype 'float12' (closest: float32); verify knows: {known}"
    for given, near in {"bf16": "bfloat16", "fp16": "float16", "torch.fp32": "float32"}.items():
        with pytest.raises(UsageError, match=rf"unknown dtype '{given}' \(closest: {near}\)"):
            named(given)
    with pytest.raises(ValueError, match="^0x10000 is not a 16-bit pattern of bfloat16$"):
        fmt.ordinal(0x10000)
    with pytest.raises(ValueError, match="^bfloat16 pattern 0x7f80 is not finite and has no"):
        fmt.value(0x7F80)
    with pytest.raises(ValueError, match="^bfloat16 has no number at ordinal 32641$"):
        fmt.from_ordinal(32641)
    with pytest.raises(ValueError, match="^NaN has no error in ulp$"):
        fmt.error(fmt.nan_bits, Fraction(1))
