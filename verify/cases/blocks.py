"""Makes inputs of quantisers, block by block: every largest magnitude, every rounding, NaN, zeros.

A recipe is a text, as in `Case.fill`. It names the size of a block and gives the same bits on every device:

    block amax 1x32 from 128             block n has the number with the bits 128 + n, and smaller ones
    block borders 1x32 at 1,1.75         block maxima of these mantissas and their two neighbours, at each exponent
    block codes 1x32 amax 40c0 top 40c0  all numbers up to the bits amax; the first block begins with top
    block ties 1x32 of e2m1 by 0.5 amax 4040 top 4040    midpoints between two codes times 0.5, and their neighbours
    block special 1x32 of zeros          every second block has zeros of both signs; or subnormals, nan, infinities
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import torch
from torch import Tensor

from verify.truth.codes import code_format
from verify.truth.formats import Format
from verify.truth.quantised.encoding import Encoding
from verify.truth.quantised.rules import LEAST_OF_ALL
from verify.truth.ulp import from_bits

Kind = Literal["scales", "rounding", "special", "blocks"]
Allows = Callable[[tuple[int, int]], bool]  # True if a quantiser accepts these dims
_WIDE = 64  # number of columns or rows if a block takes all of them
_MOST = 1 << 22  # the cases with every scale have at most this many elements; larger blocks are sampled
_SOME = 48  # number of sampled block maxima
_SPAN = 1 << 11  # number of block maxima with one scale of the tensor


@dataclass(frozen=True)
class BlockCase:
    """Plans one case of a quantiser: its kind, its dims, its recipe, and how many values it tries."""

    kind: Kind
    dims: tuple[int, int]
    fill: str
    tried: int
    everything: bool  # True: the cases of this kind together try every value


def filled(recipe: str, fmt: Format, shape: tuple[int, ...]) -> Tensor:
    """Makes a tensor of rows and columns by a recipe of this module."""
    _, kind, size, *rest = recipe.split()
    rows, columns = map(int, size.split("x"))
    given = dict(zip(rest[::2], rest[1::2], strict=True))
    high, wide = -(-shape[0] // rows), -(-shape[1] // columns)
    made = _MAKERS[kind](fmt, high * wide, rows * columns, given)
    whole = made.reshape(high, wide, rows, columns).transpose(1, 2).reshape(high * rows, wide * columns)
    return from_bits(whole[: shape[0], : shape[1]].contiguous(), fmt)


def _hash(first: Tensor, second: Tensor) -> Tensor:
    """Mixes two numbers to 16 bits."""
    mixed = first * 2_654_435_761 + second * 40_503
    return ((mixed >> 7) ^ (mixed >> 21)) & 0xFFFF


def _below(fmt: Format, maxima: Tensor, size: int) -> Tensor:
    """Makes blocks with these maxima. Half of the other numbers lie within three octaves, half anywhere below."""
    at, most = torch.arange(size), maxima[:, None]
    mixed = _hash(most, at.expand(len(maxima), size))
    near = most - mixed % torch.minimum(most + 1, torch.tensor(3 << fmt.mantissa_bits))
    found = torch.where(at % 2 == 0, near, most * mixed >> 16)
    found[torch.arange(len(maxima)), maxima * 7 % size] = maxima
    return found | torch.where(mixed % 3 == 0, fmt.sign_bit, 0)


def _amax(fmt: Format, blocks: int, size: int, given: dict[str, str]) -> Tensor:
    maxima = (int(given["from"]) + torch.arange(blocks) * int(given.get("by", 1))).clamp(max=fmt.max_bits)
    return _below(fmt, maxima, size)


def _borders(fmt: Format, blocks: int, size: int, given: dict[str, str]) -> Tensor:
    """Makes blocks whose maxima are the given mantissas and their neighbours, at every exponent."""
    found = []
    for exponent in range(fmt.emin, fmt.emax + 1):
        for mantissa in map(Fraction, given["at"].split(",")):
            bits = fmt.round(mantissa * Fraction(2) ** exponent)
            found += [bits - 1, bits, bits + 1]
    maxima = torch.tensor(found).clamp(1, fmt.max_bits)
    return _below(fmt, maxima[torch.arange(blocks) % len(maxima)], size)


def _listed(numbers: Tensor, blocks: int, size: int, given: dict[str, str]) -> Tensor:
    """Makes blocks that begin with the largest magnitude, followed by the numbers in turn."""
    made = numbers[torch.arange(blocks * (size - 1)) % len(numbers)].reshape(blocks, size - 1)
    first = torch.full((blocks, 1), int(given["amax"], 16))
    first[0] = int(given["top"], 16)
    return torch.cat([first, made], dim=1)


def _codes(fmt: Format, blocks: int, size: int, given: dict[str, str]) -> Tensor:
    one_sign = torch.arange(int(given["amax"], 16) + 1)
    return _listed(torch.stack([one_sign, one_sign | fmt.sign_bit], 1).reshape(-1), blocks, size, given)


def _ties(fmt: Format, blocks: int, size: int, given: dict[str, str]) -> Tensor:
    """Makes blocks of midpoints and codes of a format, times a scale, with their neighbours."""
    table, most = code_format(given["of"]), int(given["amax"], 16)
    scale, bits = Fraction(given["by"]), list[int]()
    for value in (*table.midpoints, *table.numbers):
        here = fmt.ordinal(fmt.round(Fraction(value) * scale))
        bits += [abs(step) | (fmt.sign_bit if step < 0 else 0) for step in (here - 1, here, here + 1)]
    held = [each for each in (*bits, fmt.sign_bit) if each & ~fmt.sign_bit <= most]
    return _listed(torch.tensor(held), blocks, size, given)


def _special(fmt: Format, blocks: int, size: int, given: dict[str, str]) -> Tensor:
    """Makes blocks where every second one is special."""
    made = _below(fmt, torch.full((blocks,), fmt.from_float(3.0)), size)
    every, one = torch.arange(blocks) % 2 == 0, torch.arange(size)
    match given["of"]:
        case "zeros":
            made[every] = torch.where(one % 2 == 0, 0, fmt.sign_bit)
        case "subnormals":
            made[every] = torch.where(one % 2 == 0, 1, fmt.sign_bit | 1)
        case "nan":
            made[every, size // 2] = fmt.nan_bits
        case _:
            made[every, 0] = fmt.inf_bits
    return made


_MAKERS: dict[str, Callable[[Format, int, int, dict[str, str]], Tensor]] = {
    "amax": _amax,
    "borders": _borders,
    "codes": _codes,
    "ties": _ties,
    "special": _special,
}


def block_cases(encoding: Encoding, fmt: Format, allows: Allows, ordinary: Sequence[str] = ()) -> list[BlockCase]:
    """Lists the cases of a quantiser in a format: every scale that it may choose, every rounding, special values.

    `ordinary` names further recipes.
    """
    sizes = _sizes(encoding)
    label, found = f"{sizes[0]}x{sizes[1]}", list[BlockCase]()

    def add(kind: Kind, blocks: int, recipe: str, tried: int, *, everything: bool = False) -> None:
        found.append(BlockCase(kind, dims_of(encoding, blocks, allows), recipe, tried, everything))

    name, size = f"block {{}} {label}", math.prod(sizes)
    for first, count, step in _maxima(encoding, fmt, size):
        # with zero points a scale follows from two numbers of a block, of which not all pairs are tried
        everything = step == 1 and fmt.bits <= 16 and not encoding.zero_point
        add("scales", count, name.format("amax") + f" from {first} by {step}", count, everything=everything)
    if not encoding.second and all(encoding.block) and fmt.bits > 16:  # 16-bit formats have all maxima above
        mantissas = sorted({1.0, 2 - 2.0**-1, 2 * math.frexp(encoding.data.largest)[0], 1.75})
        count = 3 * len(mantissas) * (fmt.emax - fmt.emin + 1)
        if count * size <= _MOST:
            text = ",".join(f"{each:g}" for each in mantissas)
            add("scales", count, name.format("borders") + f" at {text}", count)
    for scale, amax, top in _scales(encoding, fmt):
        bits = f"amax {fmt.round(Fraction(amax)):x} top {fmt.round(Fraction(top)):x}"
        numbers = 2 * (fmt.round(Fraction(amax)) + 1)
        if fmt.bits <= 16 and (all(encoding.block) or encoding.block == (1, 0)):
            blocks = -(-numbers // (size - 1)) + 1
            add("rounding", blocks, name.format("codes") + f" {bits}", numbers, everything=not encoding.random)
            continue
        ties = 3 * (2 * len(encoding.data.numbers) - 1) + 1
        blocks = -(-ties // (size - 1)) + 1 if all(encoding.block) else 1
        add("rounding", blocks, name.format("ties") + f" of {encoding.data.name} by {scale:g} {bits}", ties)
    for what in ("zeros", "subnormals", "nan", *(["infinities"] if fmt.has_inf else [])):
        several = encoding.block[0] > 0  # else a case has a single block, and a special one shows little alone
        add("special" if several else "blocks", 8 if several else 1, name.format("special") + f" of {what}", 8)
    for recipe in ordinary:
        add("blocks", 12 if all(encoding.block) else 1, recipe, 12)
    return found


def _maxima(encoding: Encoding, fmt: Format, size: int) -> Iterator[tuple[int, int, int]]:
    """Yields, for each case, the bits of the first block maximum, the number of blocks, and the step between maxima."""
    if not all(encoding.block) and encoding.block != (1, 0):  # blocks that grow with the tensor: one in each case
        step = fmt.max_bits // _SOME
        yield from ((1 + place * step, 1, step) for place in range(_SOME))
        return
    if encoding.second:
        low, span = fmt.round(Fraction(LEAST_OF_ALL)) if fmt.emin < -100 else 1, _SPAN << max(fmt.mantissa_bits - 7, 0)
        step = max(span >> 11, 1) if fmt.bits > 16 else 1
        yield from ((start, span // step, step) for start in range(low, fmt.max_bits, span))
        return
    count = fmt.max_bits
    step = 1 if count * size <= _MOST and fmt.bits <= 16 else max(count * size // (_MOST // 2), 1) | 1
    yield 1, count // step, step


def _scales(encoding: Encoding, fmt: Format) -> Iterator[tuple[float, float, float]]:
    """Yields scales for which elements are exact multiples, each with the amax of its blocks and of the tensor.

    With a second scale, these are all values that a code of the scale can have. Otherwise one scale serves all.
    """
    largest = encoding.data.largest
    if encoding.second:
        table = code_format(encoding.scale)
        held = (value for value in table.numbers if value > 0 and value >= encoding.least_scale)
        yield from ((scale, scale * largest, largest * table.largest) for scale in held)
    elif encoding.rule == "floor":  # an amax up to the next power of two has this scale too
        amax = 2.0**encoding.data.emax * (2 - 2.0**-fmt.mantissa_bits)
        yield 1.0, amax, amax
    else:
        yield 1.0, largest, largest


def dims_of(encoding: Encoding, blocks: int, allows: Allows) -> tuple[int, int]:
    """Returns the least dims with this many blocks that the quantiser accepts.

    At least four blocks lie side by side.
    """
    rows, columns = _sizes(encoding)
    least = 4 if encoding.block[1] and blocks > 1 else 1
    widths = [least << more for more in range(7)]
    for wide in widths:
        high = -(-blocks // wide) if encoding.block[0] else 1
        for more in range(257):
            dims = (rows * (high + more), columns * wide)
            if allows(dims):
                return dims
    return (rows * -(-blocks // least), columns * least)


def _sizes(encoding: Encoding) -> tuple[int, int]:
    """Returns the rows and columns of a block in the cases."""
    return (encoding.block[0] or _WIDE, encoding.block[1] or _WIDE)
