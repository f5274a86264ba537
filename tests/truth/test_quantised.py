"""The judge of blocks against an independent route: one block at a time, in rationals, by the rules as written."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
import torch

from tests.truth.rationals import of_rational
from verify.cases.blocks import block_cases, dims_of, filled
from verify.errors import UsageError
from verify.truth.codes import code_format
from verify.truth.formats import floor_log2, named
from verify.truth.quantised import Encoding, Parts, Value, WrongForm, causes, judge, quantised
from verify.truth.quantised.operands import drawn, laid, meant
from verify.truth.ulp import bits_of

TWO = Fraction(2)


def scale_of(amax: Fraction, encoding: Encoding) -> Fraction:
    """The scale that a rule gives, in rationals."""
    data = encoding.data
    largest, exponent = Fraction(data.largest), floor_log2(amax)
    match encoding.rule:
        case "floor":
            power = TWO ** (exponent - data.emax)
        case "ceil":
            power = TWO ** (exponent + (amax != TWO**exponent) - data.emax)
        case "even":
            mantissa = {"e4m3fn": 3, "e5m2": 2, "e2m1": 1, "e2m3": 3}[data.name]
            steps = amax / TWO**exponent * 2**mantissa
            up = math.floor(steps + Fraction(1, 2)) >= 2 ** (mantissa + 1)
            power = TWO ** (exponent + up - data.emax)
        case "rceil":
            quotient = amax / largest
            power = TWO ** (floor_log2(quotient) + (quotient != TWO ** floor_log2(quotient)))
        case _:
            table = code_format(encoding.scale)
            return Fraction(of_rational(table, amax / largest))
    return max(min(power, TWO**127), TWO**-127)


def quantise(x: torch.Tensor, encoding: Encoding) -> Parts:
    """Quantises rows of blocks of one row, in rationals."""
    columns, scales, codes = encoding.block[1], [], []
    table = code_format(encoding.scale)
    for row in x.double().tolist():
        for at in range(0, len(row), columns):
            block = [Fraction(each) for each in row[at : at + columns]]
            amax = max(map(abs, block))
            scale = scale_of(amax, encoding) if amax else Fraction(1)
            scales.append(table.code_of[float(scale)])
            divided = scale or Fraction(1, 10**9)
            ties = "even" if encoding.ties == "any" else encoding.ties
            codes += [encoding.data.code_of[of_rational(encoding.data, each / divided, ties)] for each in block]
    grid = (x.shape[0], x.shape[1] // columns)
    return Parts(
        torch.tensor(codes, dtype=torch.uint8).reshape(x.shape), torch.tensor(scales, dtype=torch.uint8).reshape(grid)
    )


def draw(seed: int, *, columns: int = 16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-30, 30, (24, 1), generator=generator).double()
    x = torch.randn(24, 2 * columns, generator=generator) * torch.exp2(exponents).float()
    x[3], x[5, :columns] = 0.0, -0.0
    x[7] = x[7].sign() * 1.75  # a border of the rule "even", and ties
    return x.bfloat16()


MX = [
    quantised(data, block=(1, 16), scale="e8m0", rule=rule, ties=ties)  # type: ignore[arg-type]
    for data, rule, ties in product(("e4m3", "e5m2", "e2m1", "e2m3"), ("floor", "ceil", "rceil", "even"), ("even",))
] + [quantised("e2m1", block=(1, 16), scale="e8m0", ties=ties) for ties in ("up", "away", "to zero", "truncate")]  # type: ignore[arg-type]


@pytest.mark.parametrize("encoding", MX, ids=lambda each: f"{each.data.name} {each.rule} {each.ties}")
def test_rationals_are_right_and_any_other_bits_are_wrong(encoding: Encoding) -> None:
    x = draw(1)
    parts = quantise(x, encoding)
    found = judge(encoding, Value.of(x), parts)
    assert found.counts == {name: (48 if name == "right" else 0) for name in found.counts}, causes(
        encoding, found.value, parts
    )
    assert causes(encoding, found.value, parts, found) == []
    off = replace(parts, scales=parts.scales + 1)
    assert judge(encoding, Value.of(x), off).wrong == int((x.reshape(48, 16) != 0).any(1).sum())
    changed = parts.codes.clone()
    changed[0, 5] ^= 1
    wrong = judge(encoding, Value.of(x), replace(parts, codes=changed))
    assert wrong.wrong == 1 and wrong.facts()["block"].startswith("[0, 0]")
    assert wrong.away.sum() == 1, "one code off"


def test_every_bfloat16_amax_has_the_scale_of_rationals() -> None:
    fmt = named("bfloat16")
    bits = [*range(1, 300), *range(0x3F00, 0x4300, 7), *range(0x7E00, 0x7F80, 5)]
    for rule in ("floor", "ceil", "rceil", "even"):
        encoding = quantised("e2m1", block=(1, 16), scale="e8m0", rule=rule)  # type: ignore[arg-type]
        amax = torch.tensor([float(fmt.value(each)) for each in bits], dtype=torch.float64)
        x = torch.zeros(len(bits), 16, dtype=torch.float64)
        x[:, 3] = -amax
        found = judge(encoding, Value.of(x), quantise(x, encoding))
        assert found.wanted.nominal.reshape(-1).tolist() == [
            float(scale_of(fmt.value(each), encoding)) for each in bits
        ]


def test_a_scale_that_is_no_power_of_two_has_ties_and_neighbours() -> None:
    """float32 arithmetic may move a quotient over a midpoint: of an element it is a tie, of a scale another scale."""
    encoding = quantised("e2m1", block=(1, 16), scale="e4m3")
    x = draw(2).double()
    x[0, 0], x[0, 1:16] = 10.5, 0.0
    x[0, 1] = 1.75 * 0.75  # with the scale 1.75 a midpoint
    parts = quantise(x, encoding)
    found = judge(encoding, Value.of(x), parts)
    assert found.wrong == 0 and found.counts["right"] == 48
    changed = parts.codes.clone()
    assert changed[0, 1] == 2, "0.75 rounds to even, which is 1"
    changed[0, 1] = 1
    assert judge(encoding, Value.of(x), replace(parts, codes=changed)).counts["right at a tie"] == 1
    # the midpoint of the scales 1.75 and 1.875 times 6
    x[0, 0], x[0, 1] = 6 * 1.8125, 0.0
    parts = quantise(x, encoding)
    scales = parts.scales.clone()
    scales[0, 0] += 1 if scales[0, 0] % 2 == 0 else -1
    other = judge(encoding, Value.of(x), replace(parts, scales=scales))
    assert (other.wrong, other.counts["right under another scale"]) == (0, 1)
    strict = replace(encoding, by="division")
    assert judge(strict, Value.of(x), replace(parts, scales=scales)).wrong == 1, "a division is exact there"


def test_nan_zeros_and_infinities() -> None:
    encoding = quantised("e4m3", block=(1, 16), scale="e8m0")
    x = draw(3)
    parts = quantise(x, encoding)
    x[1, 2], x[2, 20] = math.nan, math.inf
    found = judge(encoding, Value.of(x), parts)
    assert (found.wrong, found.counts["not promised"]) == (1, 1)
    assert causes(encoding, Value.of(x), parts, found) == ["NaN is lost: 1 blocks with NaN decode to numbers"]
    scales = parts.scales.clone()
    scales[1, 0] = 255
    whole = replace(parts, scales=scales)
    assert judge(encoding, Value.of(x), whole).wrong == 0
    codes = parts.codes.clone()
    codes[1, 2] = 0x7F
    one = replace(parts, codes=codes)
    assert judge(encoding, Value.of(x), one).wrong == 0, "NaN is kept where x has it"
    assert judge(replace(encoding, nan="block"), Value.of(x), one).wrong == 1
    assert judge(replace(encoding, nan="element"), Value.of(x), whole).wrong == 1
    assert judge(replace(encoding, nan="any"), Value.of(x), parts).wrong == 0
    scales[0, 0] = 255
    made = judge(encoding, Value.of(x), whole)
    assert made.wrong == 1 and causes(encoding, Value.of(x), whole)[0].startswith("NaN is made: 1 blocks")
    assert (
        judge(encoding, Value.of(torch.zeros(1, 16)), Parts(torch.full((1, 16), 1).byte(), scales[:1, :1])).wrong == 1
    )


# -- 4 over 6 -----------------------------------------------------------------------------------------------

NVFP4 = quantised("e2m1", block=(1, 16), scale="e4m3", second="float32", rule="4over6")


def with_maxima(x: torch.Tensor, maxima: list[int], largest: int = 256) -> Parts:
    """Quantises rows of 16 in rationals, so that amax of each block becomes its number in `maxima`."""
    table = code_format("e4m3")
    second = Fraction(float(x.abs().max())) / (6 * largest)
    scales, codes = [], []
    for block, most in zip(x.double().reshape(-1, 16).tolist(), maxima, strict=True):
        scale = Fraction(of_rational(table, max(abs(Fraction(each)) for each in block) / most / second))
        scales.append(table.code_of[float(scale)])
        quotients = [Fraction(each) / (scale * second) if scale else Fraction(0) for each in block]
        codes += [NVFP4.data.code_of[of_rational(NVFP4.data, each)] for each in quotients]
    grid = (x.shape[0], x.shape[1] // 16)
    return Parts(
        torch.tensor(codes, dtype=torch.uint8).reshape(x.shape),
        torch.tensor(scales, dtype=torch.uint8).reshape(grid),
        torch.tensor([float(second)], dtype=torch.float32),
    )


def test_a_block_of_4over6_may_have_either_maximum_and_no_third() -> None:
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(9)).bfloat16() * 8
    x[0, 0] = 48  # 48 / (6 * 256) is a power of two
    either = with_maxima(x, [4, 6] * 8)
    found = judge(NVFP4, Value.of(x), either)
    assert found.wrong == 0 and found.counts["right"] == 16, found.words
    plain = judge(replace(NVFP4, rule="nearest"), Value.of(x), either)
    assert plain.wrong > 8, plain.words
    assert judge(NVFP4, Value.of(x), with_maxima(x, [6] * 16, largest=448)).wrong == 0
    assert judge(NVFP4, Value.of(x), with_maxima(x, [5, 6] * 8)).wrong == 8
    assert judge(NVFP4, Value.of(x), with_maxima(x, [6] * 16, largest=300)).second.startswith("the second scale is")
    named = causes(replace(NVFP4, rule="up"), Value.of(x), either)
    assert named[0] == "scales follow the rule 4over6, the declaration says up"


def test_4over6_is_about_e2m1() -> None:
    for data, scale in (("e4m3", "e4m3"), ("e2m1", "float32")):
        with pytest.raises(UsageError, match="the rule 4over6 is about codes in e2m1 with scales in e4m3"):
            quantised(data, block=(1, 16), scale=scale, rule="4over6")


def test_signed_zeros_count_where_they_are_declared() -> None:
    encoding = quantised("e2m1", block=(1, 16), scale="e8m0", zero="signed")
    x = draw(4)
    parts = quantise(x, encoding)  # rationals have no -0
    found = judge(encoding, Value.of(x), parts)
    assert found.wrong > 0
    assert causes(encoding, Value.of(x), parts)[0] == "zeros are positive, the declaration says signed"
    signed = torch.where((parts.codes == 0) & torch.signbit(x), 8, parts.codes).to(torch.uint8)
    assert judge(encoding, Value.of(x), replace(parts, codes=signed)).wrong == 0


def test_layouts_decode_to_the_same_numbers() -> None:
    plain = quantised("e2m1", block=(1, 16), scale="e8m0")
    x = torch.cat([draw(5)] * 6)  # 144 rows: two tiles of scales, the second filled up
    parts = quantise(x, plain)
    low = parts.codes[:, ::2] | parts.codes[:, 1::2] << 4
    rows, columns = parts.scales.shape
    tiled = torch.full((2 * 512,), 77, dtype=torch.uint8)
    for row, column in product(range(rows), range(columns)):
        tiled[row // 128 * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column] = parts.scales[row, column]
    packed = replace(plain, packed="low first", swizzle="128x4")
    wanted = plain.decode(parts, (144, 32))
    assert torch.equal(packed.decode(Parts(low, tiled), (144, 32)), wanted)
    assert torch.equal(wanted, torch.tensor(plain.data.table)[parts.codes.long()].double() * torch.exp2(
        parts.scales.double() - 127).repeat_interleave(16, 1))  # fmt: skip
    assert causes(packed, Value.of(x), Parts(low >> 4 | low << 4, tiled))[0].startswith(
        "the codes of a byte are swapped"
    )
    by_rows = replace(plain, packed="low first by rows")
    pairs = parts.codes[::2] | parts.codes[1::2] << 4
    assert torch.equal(by_rows.decode(Parts(pairs, parts.scales), (144, 32)), wanted)
    assert causes(by_rows, Value.of(x), Parts(pairs >> 4 | pairs << 4, parts.scales))[0] == (
        "the codes of a byte are swapped: they lie high first by rows, the declaration says low first by rows"
    )
    in_rows = torch.zeros(1024, dtype=torch.uint8)
    in_rows[: parts.scales.numel()] = parts.scales.reshape(-1)
    assert causes(packed, Value.of(x), Parts(low, in_rows)) == [
        "the scales are in the order of the blocks, the declaration says in 128x4 tiles"
    ]


@pytest.mark.parametrize(
    ("packed", "places"),
    [("int32", range(8)), ("awq", (0, 4, 1, 5, 2, 6, 3, 7)), ("gptq", range(8)), ("gptq v2", range(8))],
)
def test_eight_codes_share_an_int32_and_so_do_zero_points(packed: Any, places: Any) -> None:
    plain = quantised("uint4", block=(4, 1), scale="float16", zero_point="uint4")
    x = torch.randn(16, 24) + torch.linspace(-1, 1, 24)
    parts = drawn(replace(plain, packed=packed), x)
    codes, zeros = parts["codes"].tolist(), parts["zeros"].tolist()
    less = packed == "gptq"
    rows = [[0] * 3 for _ in codes]
    columns = [[0] * 24 for _ in range(2)]
    for row, column in product(range(16), range(24)):
        rows[row][column // 8] |= codes[row][column] << 4 * places[column % 8]
        columns[row // 8][column] |= codes[row][column] << 4 * (row % 8)
    stored = [[sum(line[8 * at + i] - less << 4 * places[i] for i in range(8)) for at in range(3)] for line in zeros]
    as_int32 = lambda words: torch.tensor(words).to(torch.int32)  # noqa: E731
    wanted = Parts(
        as_int32(columns if packed.startswith("gptq") else rows), parts["scales"].half(), zeros=as_int32(stored)
    )
    encoding = replace(plain, packed=packed)
    assert torch.equal(laid(encoding, "codes", parts["codes"]), wanted.codes)
    assert wanted.zeros is not None and torch.equal(laid(encoding, "zeros", parts["zeros"]), wanted.zeros)
    assert torch.equal(encoding.decode(wanted, (16, 24)), meant(encoding, parts))
    with pytest.raises(WrongForm, match=r"zeros has the shape \(4, 3\)"):
        encoding.demand_form(replace(wanted, zeros=parts["zeros"]), (16, 24))
    with pytest.raises(WrongForm, match=r"codes is int32 \(uint4\); received torch.uint8"):
        encoding.demand_form(replace(wanted, codes=wanted.codes.to(torch.uint8)), (16, 24))


def test_the_other_order_of_an_int32_is_named() -> None:
    awq = quantised("e2m1", block=(1, 16), scale="e8m0", packed="awq")
    x = draw(5)
    parts = quantise(x, replace(awq, packed=""))
    words = laid(replace(awq, packed="int32"), "codes", parts.codes.long())
    assert causes(awq, Value.of(x), replace(parts, codes=words))[0] == (
        "the codes of an int32 lie in another order: int32, the declaration says awq"
    )


def test_packed_zero_points_need_a_block_of_one_column() -> None:
    with pytest.raises(UsageError, match=r"packed='awq' packs zero points of 4 bits, one for each column; received"):
        quantised("uint4", block=(1, 32), scale="float16", zero_point="uint4", packed="awq")


@pytest.mark.parametrize(
    ("codes", "scales", "words"),
    [
        (torch.zeros(4, 16).byte(), torch.zeros(4, 2).byte(), r"codes has the shape \(4, 32\) .*; received \(4, 16\)"),
        (torch.zeros(4, 32).byte(), torch.zeros(2, 4).byte(), r"scales has the shape \(4, 2\) .*; received \(2, 4\)"),
        (torch.zeros(4, 32), torch.zeros(4, 2).byte(), r"codes is one byte each \(e2m1\); received torch.float32"),
    ],
)
def test_another_form_is_refused_with_what_is_wanted(codes: torch.Tensor, scales: torch.Tensor, words: str) -> None:
    with pytest.raises(WrongForm, match=words):
        judge(quantised("e2m1", block=(1, 16), scale="e8m0"), Value.of(torch.zeros(4, 32)), Parts(codes, scales))


def test_dims_are_those_that_a_quantiser_takes() -> None:
    encoding = quantised("e4m3", block=(1, 32), scale="e8m0")
    assert dims_of(encoding, 24, lambda dims: True) == (6, 128)
    assert dims_of(encoding, 24, lambda dims: dims[0] % 128 == 0 and dims[1] % 256 == 0) == (128, 256)
    assert dims_of(quantised("e4m3", block=(0, 0), scale="float32"), 24, lambda dims: True) == (64, 64)


def test_recipes_hold_every_maximum_and_every_number() -> None:
    encoding, fmt = quantised("e4m3", block=(1, 32), scale="e8m0"), named("bfloat16")
    cases = {case.kind: case for case in block_cases(encoding, fmt, lambda dims: True) if case.everything}
    x = filled(cases["scales"].fill, fmt, cases["scales"].dims).double().abs()
    maxima = set(x.reshape(-1, 32).amax(1).tolist())
    assert maxima == {float(fmt.value(bits)) for bits in range(1, fmt.max_bits + 1)}
    numbers = set(bits_of(filled(cases["rounding"].fill, fmt, cases["rounding"].dims)).reshape(-1).tolist())
    most = fmt.from_float(511.0)
    assert numbers == {bits | sign for bits in range(most) for sign in (0, fmt.sign_bit)} | {most - 1}


# -- zero points --------------------------------------------------------------------------------------------

ASYMMETRIC = quantised("uint4", block=(1, 16), scale="float32", zero_point="uint4")


def with_zero_points(x: torch.Tensor, *, moved: int = 0) -> Parts:
    """Quantises rows of 16 in rationals: the range of a block with 0 over 15 codes."""
    scales, zeros, codes = [], [], []
    for block in x.double().reshape(-1, 16).tolist():
        low, high = min(0, *map(Fraction, block)), max(0, *map(Fraction, block))
        scale = Fraction(float(torch.tensor(float((high - low) / 15), dtype=torch.float32)))
        zero = round(-low / scale) + moved if scale else 0
        scales.append(float(scale))
        zeros.append(zero)
        codes += [max(0, min(15, round(Fraction(each) / scale) + zero)) if scale else 0 for each in block]
    grid = (x.shape[0], x.shape[1] // 16)
    return Parts(
        torch.tensor(codes, dtype=torch.uint8).reshape(x.shape),
        torch.tensor(scales).reshape(grid),
        zeros=torch.tensor(zeros, dtype=torch.uint8).reshape(grid),
    )


def test_rationals_with_zero_points_are_right_and_any_other_zero_point_is_named() -> None:
    x = draw(4)
    x[9], x[10] = x[9].abs(), -x[10].abs()
    found = judge(ASYMMETRIC, Value.of(x), with_zero_points(x))
    assert found.wrong == 0 and found.counts["right"] >= 40, found.words
    inside = x[[0, 1, 2, 4]]  # with both signs, so that no zero point is at an end
    for moved in (1, -1):
        parts = with_zero_points(inside, moved=moved)
        other = judge(ASYMMETRIC, Value.of(inside), parts)
        assert other.wrong == 8, other.words
        named = causes(ASYMMETRIC, other.value, parts, other)
        assert f"the zero point is off ({moved:+d}) in 8 blocks" in named, named
        assert "zero point" in other.facts()


def test_the_decoded_number_is_that_of_the_distance_to_the_zero_point() -> None:
    x = draw(5)
    parts = with_zero_points(x)
    numbers = ASYMMETRIC.decode(parts, (24, 32))
    for row, column in ((0, 0), (7, 20), (23, 31)):
        block = column // 16
        wanted = (int(parts.codes[row, column]) - int(parts.zeros[row, block])) * float(parts.scales[row, block])
        assert float(numbers[row, column]) == wanted
    assert float((numbers - x.double()).abs().max() / x.double().abs().max()) < 0.1


def test_a_tie_beside_an_odd_zero_point_is_rounded_before_it_is_added() -> None:
    """x / scale = 0.5 rounds to 0, and to the code of the zero point; 0.5 + 7 would round to 8."""
    x = torch.zeros(1, 16, dtype=torch.float64)
    x[0, :3] = torch.tensor([-7.0, 8.0, 0.5])  # the scale 1 and the zero point 7
    parts = with_zero_points(x)
    assert (float(parts.scales[0, 0]), int(parts.zeros[0, 0]), int(parts.codes[0, 2])) == (1.0, 7, 7)
    assert judge(ASYMMETRIC, Value.of(x), parts).counts["right"] == 1
    changed = parts.codes.clone()
    changed[0, 2] = 8
    assert judge(ASYMMETRIC, Value.of(x), replace(parts, codes=changed)).wrong == 1
    assert judge(replace(ASYMMETRIC, ties="up"), Value.of(x), replace(parts, codes=changed)).wrong == 0


def test_a_zero_point_in_float32_is_added_before_an_element_is_rounded() -> None:
    encoding = replace(ASYMMETRIC, zero_point="float32")
    x = draw(8)
    integer = with_zero_points(x)
    assert integer.zeros is not None
    scales = encoding.scales_of(integer, (24, 32))
    low = x.double().reshape(24, 2, 16).amin(2).clamp(max=0)
    zeros = torch.where(scales > 0, -low / scales, 0.0).float()
    codes = [
        max(0, min(15, round(Fraction(float(each)) / Fraction(float(scale)) + Fraction(float(zero))))) if scale else 0
        for block, scale, zero in zip(x.reshape(-1, 16), scales.reshape(-1), zeros.reshape(-1), strict=True)
        for each in block
    ]
    parts = replace(integer, codes=torch.tensor(codes, dtype=torch.uint8).reshape(x.shape), zeros=zeros)
    found = judge(encoding, Value.of(x), parts)
    assert found.wrong == 0 and found.counts["right"] >= 40, found.words
    moved = judge(encoding, Value.of(x), replace(parts, zeros=zeros + 0.25))
    assert (
        moved.wrong > 40
        and "the zero point is off" in causes(encoding, moved.value, replace(parts, zeros=zeros + 0.25))[0]
    )
    rounded = replace(parts, codes=integer.codes)  # x / scale is rounded before the zero point is added
    assert judge(encoding, Value.of(x), rounded).wrong > 20


def test_zero_points_belong_to_integers() -> None:
    for said in ({"data": "e4m3", "scale": "float32"}, {"data": "uint4", "scale": "e8m0"}):
        data = said.pop("data")
        with pytest.raises(UsageError, match="zero points belong to integers with scales by the rules"):
            quantised(data, block=(1, 16), zero_point="uint4", **said)


# -- random bits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("random", ["add", "less"])
@pytest.mark.parametrize("count", [4, 16])
def test_elements_are_rounded_by_their_bits_as_rationals_say(random: str, count: int) -> None:
    encoding = quantised("e2m1", block=(1, 16), scale="e8m0", random=random, random_bits=count)  # type: ignore[arg-type]
    x = draw(6)
    bits = torch.randint(0, 1 << count, x.shape, generator=torch.Generator().manual_seed(7))
    parts = quantise(x, replace(encoding, random="", random_bits=0))
    scales = encoding.scales_of(parts, (24, 32))
    numbers = [Fraction(each) for each in encoding.data.numbers]
    codes = parts.codes.clone()
    for row in range(24):
        for column in range(32):
            quotient = Fraction(float(x[row, column])) / Fraction(float(scales[row, column // 16]))
            size = min(abs(quotient), numbers[-1])
            near = max(each for each in numbers if each <= size)
            beyond = min((each for each in numbers if each > near), default=near)
            part = (size - near) / (beyond - near) * 2**count if beyond > near else Fraction(0)
            drawn = int(bits[row, column])
            up = math.floor(part) + drawn >= 2**count if random == "add" else drawn < part
            size = beyond if up else near
            codes[row, column] = encoding.data.code_of[float(size if quotient > 0 else -size)]
    value = Value.of(x, bits)
    assert judge(encoding, value, replace(parts, codes=codes)).counts["right"] == 48
    other = judge(encoding, value, parts)
    assert other.wrong > 20
    assert causes(encoding, value, parts, other)[0].startswith("elements are rounded to nearest, without the bits")
    numbers_of = encoding.decode(replace(parts, codes=codes), (24, 32))
    moved = judge(encoding, Value.of(numbers_of, bits), replace(parts, codes=codes))
    assert moved.wrong == 0, "what has a code is not moved by any bits"


def test_random_bits_have_a_number_and_a_rule() -> None:
    for said in ({"random": "add"}, {"random_bits": 8}, {"random": "less", "random_bits": 33}, {"random_bits": "8"}):
        with pytest.raises(UsageError, match="random= and random_bits= from 1 to 32 belong together"):
            quantised("e2m1", block=(1, 16), scale="e8m0", **said)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        ({"least": -1.0}, "least is a finite number of at least 0; received -1.0"),
        ({"least_scale": math.nan}, "least_scale is a finite number of at least 0; received nan"),
        ({"rule": ""}, "rule is one of floor, .*; received ''"),
        ({"ties": "evn"}, r"ties is one of .*; received 'evn' \(closest: even\)"),
        ({"overflow": "inf"}, "overflow='inf' needs a code for it, and e4m3fn has none"),
    ],
)
def test_a_declaration_of_nonsense_is_refused(said: dict[str, Any], rule: str) -> None:
    with pytest.raises(UsageError, match=rule):
        quantised("e4m3", block=(1, 32), scale="e8m0", **said)
