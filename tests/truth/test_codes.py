"""Formats of at most 8 bits against two independent routes: gfloat, where it is installed, and PyTorch's own casts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch

from tests.truth.rationals import of_rational
from verify.errors import UsageError
from verify.truth.codes import CODE_FORMATS, TIES, CodeFormat, Ties, code_format

ALL = list(CODE_FORMATS.values())
TORCH = {
    "e4m3fn": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
    "e8m0": torch.float8_e8m0fnu,
}
# gfloat names six of the formats. The others are bits, significant bits, bias, signed, two's complement in its terms.
GFLOAT = {
    "e4m3fn": "ocp_e4m3",
    "e5m2": "ocp_e5m2",
    "e8m0": "ocp_e8m0",
    "e2m1": "ocp_e2m1",
    "e2m3": "ocp_e2m3",
    "e3m2": "ocp_e3m2",
    "e4m3fnuz": (8, 4, 8, True, False),
    "e5m2fnuz": (8, 3, 16, True, False),
    "int8": (8, 8, -6, True, True),
    "int4": (4, 4, -2, True, True),
    "uint8": (8, 9, -7, False, False),
    "uint4": (4, 5, -3, False, False),
}


def in_gfloat(name: str) -> Any:
    """The format as gfloat describes it."""
    gfloat: Any = pytest.importorskip("gfloat")
    known: Any = pytest.importorskip("gfloat.formats")
    said = GFLOAT[name]
    if isinstance(said, str):
        return getattr(known, f"format_info_{said}")
    bits, precision, bias, signed, complement = said
    return gfloat.FormatInfo(
        name, bits, precision, bias=bias, is_signed=signed, domain=gfloat.Domain.Finite, has_nz=False,
        num_high_nans=0, has_subnormals=True, is_twos_complement=complement,
    )  # fmt: skip


def test_gfloat_knows_every_format() -> None:
    assert GFLOAT.keys() == CODE_FORMATS.keys()


def rounded(fmt: CodeFormat, reals: Sequence[float], ties: Ties) -> list[float]:
    """The numbers to which a format rounds real ones."""
    return [fmt.numbers[place] for place in fmt.nearest(torch.tensor(reals, dtype=torch.float64), ties).tolist()]


def same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))


@pytest.mark.parametrize(
    ("name", "bits", "largest", "nan", "inf", "negative_zero", "numbers"),
    [
        ("e4m3fn", 8, 448, (0x7F, 0xFF), (), 0x80, 253),
        ("e5m2", 8, 57344, (0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF), (0x7C, 0xFC), 0x80, 247),
        ("e4m3fnuz", 8, 240, (0x80,), (), None, 255),
        ("e5m2fnuz", 8, 57344, (0x80,), (), None, 255),
        ("e8m0", 8, 2.0**127, (0xFF,), (), None, 255),
        ("e2m3", 6, 7.5, (), (), 0x20, 63),
        ("e3m2", 6, 28, (), (), 0x20, 63),
        ("e2m1", 4, 6, (), (), 8, 15),
        ("int8", 8, 127, (), (), None, 256),
        ("int4", 4, 7, (), (), None, 16),
        ("uint4", 4, 15, (), (), None, 16),
    ],
)
def test_specials_and_ends(
    name: str, bits: int, largest: float, nan: tuple[int, ...], inf: tuple[int, ...], negative_zero: int, numbers: int
) -> None:
    fmt = code_format(name)
    assert (fmt.bits, fmt.largest, fmt.nan_codes, fmt.inf_codes) == (bits, largest, nan, inf)
    assert (fmt.negative_zero, len(fmt.numbers), len(fmt.table)) == (negative_zero, numbers, 1 << bits)


@pytest.mark.parametrize("name", TORCH)
def test_every_code_is_what_pytorch_reads(name: str) -> None:
    read = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(TORCH[name]).double().tolist()
    assert all(same(*pair) for pair in zip(read, code_format(name).table, strict=True))


@pytest.mark.parametrize("name", ["e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"])
def test_all_bfloat16_numbers_are_rounded_as_pytorch_casts(name: str) -> None:
    fmt = code_format(name)
    x = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    x = x[x.abs() <= fmt.largest]
    codes = x.to(TORCH[name]).view(torch.uint8).long()
    assert torch.equal(fmt.tensor("places")[codes], fmt.nearest(x.double()))


@pytest.mark.parametrize("name", GFLOAT)
def test_every_code_and_tie_is_what_gfloat_says(name: str) -> None:
    gfloat: Any = pytest.importorskip("gfloat")
    fmt, other = code_format(name), in_gfloat(name)
    decoded = [gfloat.decode_float(other, code).fval for code in range(len(fmt.table))]
    assert all(same(*pair) for pair in zip(decoded, fmt.table, strict=True))
    modes: dict[Ties, Any] = {
        "even": gfloat.RoundMode.TiesToEven,
        "away": gfloat.RoundMode.TiesToAway,
        "truncate": gfloat.RoundMode.TowardZero,
    }
    numbers = [*fmt.midpoints, *fmt.numbers, *(low + (high - low) * 0.4 for low, high in pairwise(fmt.numbers))]
    for ties, mode in modes.items():
        assert rounded(fmt, numbers, ties) == [
            gfloat.round_float(other, number, mode, sat=True) + 0.0 for number in numbers
        ]
    up, down = gfloat.RoundMode.TowardPositive, gfloat.RoundMode.TowardNegative
    outward = [gfloat.round_float(other, each, up if each > 0 else down, sat=True) + 0.0 for each in numbers]
    assert rounded(fmt, numbers, "outward") == outward


@pytest.mark.parametrize("fmt", ALL, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("ties", TIES)
def test_tensors_are_rounded_as_rationals_are(fmt: CodeFormat, ties: Ties) -> None:
    inside = [value * factor for value in fmt.midpoints for factor in (1, 1 + 2.0**-20, 1 - 2.0**-20)]
    reals = [*inside, *fmt.numbers, -2 * fmt.largest, 2 * fmt.largest]
    assert rounded(fmt, reals, ties) == [of_rational(fmt, real, ties) for real in reals]


def test_a_tie_goes_where_its_rule_says() -> None:
    e2m1 = code_format("e2m1")
    found = {ties: rounded(e2m1, (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0), ties) for ties in TIES}
    assert found["even"] == [0, 1, 1, 2, 2, 4, 4]
    assert found["up"] == found["away"] == found["outward"] == [0.5, 1, 1.5, 2, 3, 4, 6]
    assert rounded(e2m1, (0.1, 1.1, -1.1, 4, -4.5), "outward") == [0.5, 1.5, -1.5, 4, -6]
    assert found["to zero"] == found["truncate"] == [0, 0.5, 1, 1.5, 2, 3, 4]
    assert rounded(e2m1, [-1.25], "up") == [-1.0] and rounded(e2m1, [-1.25], "away") == [-1.5]


def test_a_name_that_is_none() -> None:
    assert code_format("e4m3") is code_format("float8_e4m3fn") is CODE_FORMATS["e4m3fn"]
    with pytest.raises(UsageError, match="unknown format of codes 'e3m4'; verify knows: e4m3fn, "):
        code_format("e3m4")
